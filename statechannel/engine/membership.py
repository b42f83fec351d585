"""Who is in the cluster: a fold of the registry topic with the reader's own monotonic clock.

Source: PIP-192 "LocalBrokerData" (upstream keeps it as ephemeral nodes); here each broker writes heartbeats to a topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from statechannel.protocol.bounded import remember
from statechannel.protocol.codec import is_broker_id
from statechannel.protocol.record import formats_of

MEMBER_FORMAT = 1
MEMBERS_MAX = 2_000
MEMBERS_MAX_BYTES = 64 * 2**20
SMALL_BYTES = 64 * 2**10
"""A heartbeat of this size is kept whatever the others add up to: an honest one has a few KiB."""
_MAKE_ROOM_EVERY_MS = 1_000


@dataclass(slots=True)
class Member:
    """One process that is heard in the registry.

    Attributes:
        heard_at_s: Reader's monotonic clock at its newest heartbeat.
        heard_at_ms: Log time of that heartbeat.
        first_offset: Offset of its first heartbeat read.
        info: The heartbeat as written.
        heard_live: Heard while this reader listened, not only in what lay in the registry before.
        since: Offset of its first registry record as it read it back itself; -1 until it tells.
        size_bytes: Of the heartbeat that is kept.
    """

    broker: str
    incarnation: str
    heard_at_s: float
    heard_at_ms: int
    first_offset: int
    info: Mapping[str, Any] = field(default_factory=dict)
    heard_live: bool = False
    since: int = -1
    size_bytes: int = 0

    @property
    def caught_up(self) -> bool:
        """It judges every partition."""
        return self.info.get("phase") == "caught-up"

    @property
    def accepting(self) -> bool:
        """It may be given bundles."""
        return self.caught_up and self.info.get("accepting") is True and self.info.get("mode") == "normal"

    @property
    def fit(self) -> bool:
        """It could lead, as far as it knows; those of older versions do not tell."""
        able = self.caught_up and self.info.get("mode") == "normal" and self.info.get("draining") is not True
        return able and self.info.get("fit", True) is True

    @property
    def writable(self) -> bool:
        """Its channel records come back to it, as it says; those of older versions do not tell."""
        return self.info.get("writable", True) is True

    @property
    def leads(self) -> bool:
        """It is elected and able to act on it, as it says."""
        return self.caught_up and self.info.get("mode") == "normal" and self.info.get("leading") is True

    @property
    def deputizes(self) -> bool:
        """It acts for a leader that is not heard, as it says."""
        return self.caught_up and self.info.get("mode") == "normal" and self.info.get("deputy") is True

    @property
    def formats(self) -> frozenset[int]:
        """Formats of the channel's records that it reads, as it says."""
        return formats_of(self.info)

    @property
    def extensions(self) -> frozenset[str] | None:
        """Names of the extensions that run with it, as it says; None: those of older versions do not tell."""
        names = self.info.get("extensions")
        return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else None

    @property
    def urls(self) -> Mapping[str, str]:
        """Listeners by protocol."""
        listeners = self.info.get("listeners")
        return listeners if isinstance(listeners, dict) else {}


class LostMember(NamedTuple):
    """A process that is not heard any more."""

    broker: str
    incarnation: str
    last_heard_ms: int
    at_s: float
    heard_live: bool


class Membership:
    """Members alive, and those lost lately.

    Attributes:
        alive: The newest process of each broker id.
        lost: Brokers that are gone, with when they were last heard; kept so that repair records can say so.
        gone: Processes that said goodbye.

    No writer of the registry can fill the memory. The tables of those who are gone keep their newest
    `remembered_max` entries. Those alive are not displaced: with `members_max` of them a newcomer is not taken in, and as
    long as that happens no member is called absent, since he may be one of those.
    """

    def __init__(
        self,
        expiry_s: float,
        remembered_max: int = 10_000,
        *,
        members_max: int = MEMBERS_MAX,
        members_max_bytes: int = MEMBERS_MAX_BYTES,
    ) -> None:
        self.expiry_s = expiry_s
        self._remembered_max = remembered_max
        self._members_max = members_max
        self._members_max_bytes = members_max_bytes
        self._size_bytes = 0
        self._refused_at_s: float | None = None
        self._made_room_ms = 0
        self._seen: dict[str, None] = {}
        self.alive: dict[str, Member] = {}
        self.lost: dict[str, LostMember] = {}
        self.gone: dict[tuple[str, str], None] = {}

    def heard(
        self,
        now_s: float,
        offset: int,
        timestamp_ms: int,
        info: Mapping[str, Any],
        *,
        live: bool = True,
        size_bytes: int = 0,
        own_id: bool = False,
    ) -> Member | None:
        """Take a heartbeat in; the member, unless it said goodbye, another process holds its id, or the table is full.

        Args:
            own_id: It bears the id of the broker that reads: there is room for that one.
        """
        broker, incarnation = info["broker"], info["incarnation"]
        remember(self._seen, incarnation, None, self._remembered_max)
        if (broker, incarnation) in self.gone:
            return None
        member = self.alive.get(broker)
        if info.get("leaving") is True:
            remember(self.gone, (broker, incarnation), None, self._remembered_max)
            if member is not None and member.incarnation == incarnation:
                self._drop(member, timestamp_ms, now_s, live=live)
            return None
        if member is None or member.incarnation != incarnation:
            if member is not None and not self._replaces(member, timestamp_ms, info):
                return None
            if not own_id and not self._has_room(member, timestamp_ms, size_bytes):
                self._refused_at_s = now_s
                self.lost.pop(broker, None)  # it is heard
                return None
            self._size_bytes -= 0 if member is None else member.size_bytes
            member = Member(broker, incarnation, now_s, timestamp_ms, offset)
            self.alive[broker] = member
            self.lost.pop(broker, None)
        member.heard_at_s = now_s
        member.heard_at_ms = timestamp_ms
        member.heard_live |= live
        member.since = max(member.since, info["since"])
        if own_id or self._fits(size_bytes, member.size_bytes):
            self._size_bytes += size_bytes - member.size_bytes
            member.info, member.size_bytes = info, size_bytes
        return member

    def _has_room(self, member: Member | None, timestamp_ms: int, size_bytes: int) -> bool:
        """Whether a process may be taken in, perhaps in the place of another one under its id."""
        if member is None and len(self.alive) >= self._members_max:
            self._make_room(timestamp_ms)
            if len(self.alive) >= self._members_max:
                return False
        return self._fits(size_bytes, 0 if member is None else member.size_bytes)

    def _fits(self, size_bytes: int, instead_of_bytes: int) -> bool:
        total_bytes = self._size_bytes + size_bytes - instead_of_bytes
        return size_bytes <= SMALL_BYTES or total_bytes <= self._members_max_bytes

    def _make_room(self, timestamp_ms: int) -> None:
        """A reader of the registry's backlog expires no member: by the log's own times these were gone before."""
        if timestamp_ms - self._made_room_ms < _MAKE_ROOM_EVERY_MS:
            return
        self._made_room_ms = timestamp_ms
        limit_ms = 2 * self.expiry_s * 1000
        for member in [alive for alive in self.alive.values() if timestamp_ms - alive.heard_at_ms > limit_ms]:
            self._drop(member, member.heard_at_ms, member.heard_at_s, live=member.heard_live)

    def overflowed(self, now_s: float) -> bool:
        """Whether a member was not taken in lately, which then seems absent and is not."""
        return self._refused_at_s is not None and now_s - self._refused_at_s <= self.expiry_s

    def _replaces(self, member: Member, timestamp_ms: int, info: Mapping[str, Any]) -> bool:
        """Whether another process under a member's id takes its place; the same for every reader of the registry.

        One that was read back (`since`) has proved that no process was in its way: of two such the later one counts, also for
        a reader that did not see them come. One that has not gives way to a member that is heard, by the log's own times; also
        if it takes over, since its record may be a late one of a process that has ended.
        """
        since = info["since"]
        if since >= 0:
            return bool(since > max(member.since, -1 if member.since >= 0 else member.first_offset))
        return timestamp_ms - member.heard_at_ms >= self.expiry_s * 1000

    def rank(self, broker: str) -> int:
        """Place of a broker among the caught-up members: who steps in first where no leader does."""
        return sum(1 for other, member in self.alive.items() if member.caught_up and other < broker)

    def fit_rank(self, broker: str) -> int:
        """Place of a broker among the members that could lead: who acts first where no leader is heard."""
        return sum(1 for other, member in self.alive.items() if other < broker and member.fit)

    def others_fit(self, broker: str) -> bool:
        """Whether another member could lead."""
        return any(other != broker and member.fit for other, member in self.alive.items())

    def led(self, broker: str) -> bool:
        """Whether another member is heard that leads, or that acts as deputy and comes before this broker."""
        return any(
            other != broker and (member.leads or (other < broker and member.deputizes))
            for other, member in self.alive.items()
        )

    def knows(self, incarnation: str) -> bool:
        """Whether a process is, or was, heard in the registry."""
        return incarnation in self._seen

    def _drop(self, member: Member, last_heard_ms: int, now_s: float, *, live: bool) -> LostMember:
        del self.alive[member.broker]
        self._size_bytes -= member.size_bytes
        lost = LostMember(member.broker, member.incarnation, last_heard_ms, now_s, live)
        remember(self.lost, lost.broker, lost, self._remembered_max)
        return lost

    def settle_backlog(self, now_s: float, newest_ms: int) -> None:
        """The registry was read to its end: ages come from the log's own times, not from when they were read."""
        for member in self.alive.values():
            member.heard_at_s = now_s - max(0, newest_ms - member.heard_at_ms) / 1000

    def hear_all(self, now_s: float) -> None:
        """This reader was cut off: no member's silence counts from before now."""
        for member in self.alive.values():
            member.heard_at_s = now_s

    def expire(self, now_s: float, *, keep: str) -> list[LostMember]:
        """Members whose silence lasted longer than the expiry are lost; this process itself never is."""
        late = [
            member
            for member in self.alive.values()
            if now_s - member.heard_at_s > self.expiry_s and member.incarnation != keep
        ]
        return [self._drop(member, member.heard_at_ms, now_s, live=member.heard_live) for member in late]


def decode_probe(value: bytes | None) -> tuple[str, int] | None:
    """Incarnation and number of a probe: a registry record that only its writer takes in; None for anything else."""
    loaded = _decode(value, "probe")
    if loaded is None or not is_broker_id(loaded.get("incarnation")) or type(loaded.get("seq")) is not int:
        return None
    return loaded["incarnation"], loaded["seq"]


def decode_member(value: bytes | None) -> dict[str, Any] | None:
    """A registry heartbeat, or None for anything that is not one this version can use."""
    loaded = _decode(value, "member")
    if loaded is None:
        return None
    if not is_broker_id(loaded.get("broker")) or not is_broker_id(loaded.get("incarnation")):
        return None
    if type(loaded.get("seq")) is not int or type(loaded.get("since")) is not int:
        return None
    listeners = loaded.get("listeners")
    # Handed on to clients as they are: nothing but text by name, however the record came about.
    urls = listeners.items() if isinstance(listeners, dict) else ()
    loaded["listeners"] = {protocol: url for protocol, url in urls if isinstance(url, str)}
    return loaded


def _decode(value: bytes | None, kind: str) -> dict[str, Any] | None:
    """A registry record of one kind."""
    if value is None:
        return None
    try:
        loaded = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(loaded, dict) or loaded.get("format") != MEMBER_FORMAT or loaded.get("kind") != kind:
        return None
    return loaded
