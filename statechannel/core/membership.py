"""Who is in the cluster: a fold of the registry topic with the reader's own monotonic clock.

Source: PIP-192 "LocalBrokerData" (upstream keeps it as ephemeral nodes); here each broker writes heartbeats to a topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from statechannel.core.bounded import remember
from statechannel.core.codec import is_broker_id
from statechannel.core.formats import formats_of

MEMBER_FORMAT = 1


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
    """

    broker: str
    incarnation: str
    heard_at_s: float
    heard_at_ms: int
    first_offset: int
    info: Mapping[str, Any] = field(default_factory=dict)
    heard_live: bool = False
    since: int = -1

    @property
    def caught_up(self) -> bool:
        """It judges every partition."""
        return self.info.get("phase") == "caught-up"

    @property
    def accepting(self) -> bool:
        """It may be given bundles."""
        return self.caught_up and self.info.get("accepting") is True and self.info.get("mode") == "normal"

    @property
    def formats(self) -> frozenset[int]:
        """Formats of the channel's records that it reads, as it says."""
        return formats_of(self.info)

    @property
    def urls(self) -> Mapping[str, str]:
        """Listeners by protocol."""
        listeners = self.info.get("listeners")
        return listeners if isinstance(listeners, dict) else {}


class Lost(NamedTuple):
    """A process that is no longer heard."""

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

    Each table keeps its newest `remembered_max` entries, so that nobody who writes to the registry can fill the memory.
    """

    def __init__(self, expiry_s: float, remembered_max: int = 10_000) -> None:
        self.expiry_s = expiry_s
        self._remembered_max = remembered_max
        self._seen: dict[str, None] = {}
        self.alive: dict[str, Member] = {}
        self.lost: dict[str, Lost] = {}
        self.gone: dict[tuple[str, str], None] = {}

    def heard(
        self, now_s: float, offset: int, timestamp_ms: int, info: Mapping[str, Any], *, live: bool = True
    ) -> Member | None:
        """Take a heartbeat in; the member, unless it said goodbye or another process holds its id."""
        broker, incarnation = info["broker"], info["incarnation"]
        remember(self._seen, incarnation, None, self._remembered_max)
        if (broker, incarnation) in self.gone:
            return None
        member = self.alive.get(broker)
        if info.get("leaving") is True:
            remember(self.gone, (broker, incarnation), None, self._remembered_max)
            if member is not None and member.incarnation == incarnation:
                del self.alive[broker]
                self._lose(Lost(broker, incarnation, timestamp_ms, now_s, live))
            return None
        if member is None or member.incarnation != incarnation:
            if member is not None and not self._replaces(member, timestamp_ms, info):
                return None
            member = Member(broker, incarnation, now_s, timestamp_ms, offset)
            self.alive[broker] = member
            self.lost.pop(broker, None)
        member.heard_at_s = now_s
        member.heard_at_ms = timestamp_ms
        member.heard_live |= live
        member.info = info
        member.since = max(member.since, info["since"])
        return member

    def _replaces(self, member: Member, timestamp_ms: int, info: Mapping[str, Any]) -> bool:
        """Whether another process under a member's id takes its place; the same for every reader of the registry.

        One that was read back (`since`) has proved that nobody was in its way: of two such the later one counts, also for
        a reader that did not see them come. One that has not gives way to whoever is heard, by the log's own times; also
        if it takes over, since its record may be a late one of a process that has ended.
        """
        since = info["since"]
        if since >= 0:
            return bool(since > max(member.since, -1 if member.since >= 0 else member.first_offset))
        return timestamp_ms - member.heard_at_ms >= self.expiry_s * 1000

    def rank(self, broker: str) -> int:
        """Place of a broker among the caught-up members: who steps in first where no leader does."""
        return sum(1 for other, member in self.alive.items() if member.caught_up and other < broker)

    def knows(self, incarnation: str) -> bool:
        """Whether a process is, or was, heard in the registry."""
        return incarnation in self._seen

    def _lose(self, lost: Lost) -> None:
        remember(self.lost, lost.broker, lost, self._remembered_max)

    def settle_backlog(self, now_s: float, newest_ms: int) -> None:
        """The registry was read to its end: ages come from the log's own times, not from when they were read."""
        for member in self.alive.values():
            member.heard_at_s = now_s - max(0, newest_ms - member.heard_at_ms) / 1000

    def hear_all(self, now_s: float) -> None:
        """This reader was cut off: nobody's silence counts from before now."""
        for member in self.alive.values():
            member.heard_at_s = now_s

    def expire(self, now_s: float, *, keep: str) -> list[Lost]:
        """Members whose silence lasted longer than the expiry are lost; this process itself never is."""
        late = [
            member
            for member in self.alive.values()
            if now_s - member.heard_at_s > self.expiry_s and member.incarnation != keep
        ]
        found = []
        for member in late:
            del self.alive[member.broker]
            lost = Lost(member.broker, member.incarnation, member.heard_at_ms, now_s, member.heard_live)
            self._lose(lost)
            found.append(lost)
        return found


def decode_member(value: bytes | None) -> dict[str, Any] | None:
    """A registry heartbeat, or None for anything that is not one this version can use."""
    if value is None:
        return None
    try:
        loaded = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(loaded, dict) or loaded.get("format") != MEMBER_FORMAT or loaded.get("kind") != "member":
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
