"""Who is in the cluster: a fold of the registry topic with the reader's own monotonic clock.

Source: PIP-192 "LocalBrokerData" (upstream keeps it as ephemeral nodes); here each broker writes heartbeats to a topic.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from statechannel.protocol.bounded import remember
from statechannel.protocol.codec import is_broker_id
from statechannel.protocol.record import formats_of
from statechannel.protocol.side_record import json_object

MEMBER_FORMAT = 1
MEMBERS_MAX = 2_000
MEMBERS_MAX_BYTES = 64 * 2**20
SMALL_BYTES = 64 * 2**10
"""A heartbeat of this size is kept whatever the others add up to: an honest one has a few KiB."""
API_URL = r"\Ahttps?://(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?\Z"
"""Scheme, host and port: nothing that a terminal, a page or a client would take for something else."""
_MAKE_ROOM_EVERY_MS = 1_000
_FORM_MAX_BYTES = 16 * 2**10
_NUMBER = rb"(?:0|-?[1-9][0-9]{0,14})"
_is_api_url = re.compile(API_URL).match
_match_times = re.compile(_NUMBER + rb',"sent_at_ms":' + _NUMBER).match
_PAIR = rb'"[0-9]{1,4}":' + _NUMBER
_match_pairs = re.compile(rb"(?:%b(?:,%b)*)?" % (_PAIR, _PAIR)).match
_SEQ, _APPLIED = b'"seq":', b'"applied":{'
_MARKS = {"seq": 271_828, "sent_at_ms": 314_159, "applied": {"0": 161_803}}

Derived = TypeVar("Derived")


class HeartbeatForm(NamedTuple):
    """A heartbeat without `seq`, `sent_at_ms` and `applied`, by which it differs from the one before where nothing changes.

    Attributes:
        head: Bytes through `"seq":`.
        middle: Those from behind the number of `sent_at_ms` through the bracket of `applied`.
        tail: Those from the closing bracket on.
    """

    head: bytes
    middle: bytes
    tail: bytes

    @classmethod
    def of(cls, value: bytes, info: Mapping[str, Any]) -> HeartbeatForm | None:
        """The form of a heartbeat; None for one that no correct process of this version writes, or a large one."""
        times = _match_times(value, value.find(_SEQ) + len(_SEQ))
        pairs_at = value.rfind(_APPLIED) + len(_APPLIED)
        if len(value) > _FORM_MAX_BYTES or times is None or pairs_at < times.end():
            return None
        pairs = _match_pairs(value, pairs_at)
        pairs_end = pairs_at if pairs is None else pairs.end()
        form = cls(value[: times.start()], value[times.end() : pairs_at], value[pairs_end:])
        # The places are those of the three fields, and nothing repeats them, if other values there are decoded as theirs.
        marked = b'%b271828,"sent_at_ms":314159%b"0":161803%b' % form
        return form if decode_member(marked) == {**info, **_MARKS} else None

    def repeats(self, value: bytes) -> bool:
        """Whether a heartbeat has this form: it is decoded like the first, but for the three fields."""
        head, middle, tail = self
        if not value.startswith(head):
            return False
        times = _match_times(value, len(head))
        if times is None:
            return False
        at = times.end()
        if not value.startswith(middle, at):
            return False
        pairs = _match_pairs(value, at + len(middle))
        return pairs is not None and value[pairs.end() :] == tail


@dataclass(slots=True)
class Member:
    """One process that is heard in the registry.

    Attributes:
        heard_at_s: Reader's monotonic clock at its newest heartbeat.
        heard_at_ms: Log time of that heartbeat; no later than that of any heartbeat behind it in the log.
        first_offset: Offset of its first heartbeat read.
        steady: A heartbeat as decoded; newer ones differ by `seq`, `sent_at_ms` and `applied` only.
        heard_live: Heard while this reader listened, not only in what lay in the registry before.
        since: Offset of its first registry record as it read it back itself; -1 until it tells.
        size_bytes: Of the heartbeat that is kept.
        repeated: The newest heartbeat, as written; None where it is decoded already.
    """

    broker: str
    incarnation: str
    heard_at_s: float
    heard_at_ms: int
    first_offset: int
    steady: Mapping[str, Any] = field(default_factory=dict)
    heard_live: bool = False
    since: int = -1
    size_bytes: int = 0
    repeated: bytes | None = None
    _info: Mapping[str, Any] | None = None

    @property
    def info(self) -> Mapping[str, Any]:
        """The newest heartbeat; decoded when it is asked for, since most never are."""
        if self.repeated is not None:
            self._info, self.repeated = decode_member(self.repeated), None
        return self.steady if self._info is None else self._info

    def take(self, info: Mapping[str, Any], size_bytes: int) -> None:
        self.steady, self.size_bytes = info, size_bytes
        self._info = self.repeated = None

    @property
    def caught_up(self) -> bool:
        return self.steady.get("phase") == "caught-up"

    def kept(self, partition: int) -> int:
        """Offset through which it judged a partition before records were deleted that it had not read; -1: it keeps nothing."""
        kept = self.steady.get("kept")
        offset = kept.get(str(partition)) if isinstance(kept, dict) else None
        return offset if type(offset) is int else -1

    @property
    def accepting(self) -> bool:
        return self.caught_up and self.steady.get("accepting") is True and self.steady.get("mode") == "normal"

    @property
    def fit(self) -> bool:
        """Whether it could lead, as far as it knows; members of older versions do not tell."""
        able = self.caught_up and self.steady.get("mode") == "normal" and self.steady.get("draining") is not True
        return able and self.steady.get("fit", True) is True

    @property
    def writable(self) -> bool:
        """Whether its channel records come back to it, as it says; members of older versions do not tell."""
        return self.steady.get("writable", True) is True

    @property
    def leads(self) -> bool:
        """Whether it is elected and able to act on it, as it says."""
        return self.caught_up and self.steady.get("mode") == "normal" and self.steady.get("leading") is True

    @property
    def deputizes(self) -> bool:
        """Whether it acts for a leader that is not heard, as it says."""
        return self.caught_up and self.steady.get("mode") == "normal" and self.steady.get("deputy") is True

    @property
    def formats(self) -> frozenset[int]:
        """Formats of the channel's records that it reads, as it says."""
        return formats_of(self.steady)

    @property
    def extensions(self) -> frozenset[str] | None:
        """Names of the extensions that run with it, as it says; None: those of older versions do not tell."""
        names = self.steady.get("extensions")
        return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else None

    @property
    def checks(self) -> frozenset[str]:
        """Checks that it makes before it executes requests; none where it does not say so."""
        names = self.steady.get("checks")
        return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()

    @property
    def api_url(self) -> str | None:
        """URL of its admin API, as it says; None: it serves none, or those of older versions do not tell."""
        url = self.steady.get("api")
        return url if isinstance(url, str) and _is_api_url(url) is not None else None

    @property
    def traits(self) -> MemberTraits:
        leading, draining = self.steady.get("leading") is True, self.steady.get("draining") is True
        return MemberTraits(self.caught_up, self.accepting, self.fit, self.leads, self.deputizes, leading, draining)

    @property
    def urls(self) -> Mapping[str, str]:
        listeners = self.steady.get("listeners")
        return listeners if isinstance(listeners, dict) else {}


class MemberTraits(NamedTuple):
    """What a member says of itself, as far as others count it."""

    caught_up: bool
    accepting: bool
    fit: bool
    leads: bool
    deputizes: bool
    leading: bool
    draining: bool


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
        self._log_ms = 0
        self._seen: dict[str, None] = {}
        self._oldest_s = float("-inf")
        self._by_key: dict[bytes, tuple[HeartbeatForm, Member]] = {}
        self._derived: dict[tuple[str, str], Any] = {}
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
        form: HeartbeatForm | None = None,
    ) -> Member | None:
        """Take a heartbeat in; the member, unless it said goodbye, another process holds its id, or the table is full.

        Args:
            own_id: It bears the id of the broker that reads: there is room for that one.
            form: Of the heartbeat; with it `heard_again` recognises the next ones.
        """
        broker, incarnation = info["broker"], info["incarnation"]
        self._pass_time(timestamp_ms)
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
            self._by_key.pop(broker.encode(), None)
            self._derived.clear()
            self.lost.pop(broker, None)
        member.heard_at_s, member.heard_at_ms = now_s, timestamp_ms
        member.heard_live |= live
        self._oldest_s = min(self._oldest_s, now_s)
        member.since = max(member.since, info["since"])
        if own_id or self._fits(size_bytes, member.size_bytes):
            self._size_bytes += size_bytes - member.size_bytes
            before = member.traits
            member.take(info, size_bytes)
            if form is not None:
                self._by_key[broker.encode()] = form, member
            else:
                self._by_key.pop(broker.encode(), None)
            if member.traits != before:
                self._derived.clear()
        return member

    def heard_again(
        self, now_s: float, timestamp_ms: int, key: bytes | None, value: bytes | None, live: bool
    ) -> Member | None:
        """Take in a heartbeat that repeats the one before of its process; None for any other record, which changes nothing.

        It does what `heard` would, without decoding: of a thousand members, a heartbeat comes every millisecond.
        """
        if key is None or value is None or (known := self._by_key.get(key)) is None or not known[0].repeats(value):
            return None
        member, size_bytes = known[1], len(value)
        if timestamp_ms != self._log_ms:
            self._pass_time(timestamp_ms)
        remember(self._seen, member.incarnation, None, self._remembered_max)
        member.heard_at_s = now_s
        member.heard_at_ms = timestamp_ms
        if live:
            member.heard_live = True
        if now_s < self._oldest_s:
            self._oldest_s = now_s
        if size_bytes <= SMALL_BYTES or self._fits(size_bytes, member.size_bytes):
            self._size_bytes += size_bytes - member.size_bytes
            member.size_bytes, member.repeated = size_bytes, value
        return member

    def _pass_time(self, timestamp_ms: int) -> None:
        """The time of the next heartbeat in the log; where it is before that of the last one, Kafka's clock was set back.

        What comes last in the log is the newest: no time from the future outlasts the record behind it.
        """
        if timestamp_ms < self._log_ms:
            self._made_room_ms = min(self._made_room_ms, timestamp_ms)
            self._oldest_s = float("-inf")
            for member in self.alive.values():
                member.heard_at_ms = min(member.heard_at_ms, timestamp_ms)
            for broker, lost in self.lost.items():
                if lost.last_heard_ms > timestamp_ms:
                    self.lost[broker] = lost._replace(last_heard_ms=timestamp_ms)
        self._log_ms = timestamp_ms

    def _has_room(self, member: Member | None, timestamp_ms: int, size_bytes: int) -> bool:
        """Whether a process may be taken in, perhaps in the place of another one under its id."""
        if member is None and len(self.alive) >= self._members_max:
            self._make_room(timestamp_ms)
            if len(self.alive) >= self._members_max:
                return False
        return self._fits(size_bytes, 0 if member is None else member.size_bytes)

    def _fits(self, size_bytes: int, instead_of_bytes: int) -> bool:
        return size_bytes <= SMALL_BYTES or self._size_bytes + size_bytes - instead_of_bytes <= self._members_max_bytes

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

    # --- over all members, until one of them changes ----------------------------------------------------------------

    def _derive(self, name: str, broker: str, derive: Callable[[], Derived]) -> Derived:
        known = self._derived.get((name, broker))
        if known is None:
            known = self._derived[name, broker] = derive()
        return known

    def rank(self, broker: str) -> int:
        """Place of a broker among the caught-up members: who steps in first where no leader does."""
        return self._derive(
            "rank", broker, lambda: sum(member.caught_up for other, member in self.alive.items() if other < broker)
        )

    def fit_rank(self, broker: str) -> int:
        """Place of a broker among the members that could lead: who acts first where no leader is heard."""
        return self._derive(
            "fit_rank", broker, lambda: sum(member.fit for other, member in self.alive.items() if other < broker)
        )

    def others_fit(self, broker: str) -> bool:
        return self._derive(
            "others_fit", broker, lambda: any(other != broker and member.fit for other, member in self.alive.items())
        )

    def led(self, broker: str) -> bool:
        """Whether another member is heard that leads, or that acts as deputy and comes before this broker."""
        return self._derive(
            "led",
            broker,
            lambda: any(
                other != broker and (member.leads or (other < broker and member.deputizes))
                for other, member in self.alive.items()
            ),
        )

    def takers(self, broker: str, *, itself: bool) -> Sequence[str]:
        """Brokers that take bundles, sorted: the others by their last heartbeats."""
        return self._derive(
            "takers" if itself else "other-takers",
            broker,
            lambda: tuple(
                sorted(
                    other for other, member in self.alive.items() if (itself if other == broker else member.accepting)
                )
            ),
        )

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of members by what they say of themselves: `alive` and the names of `MemberTraits`."""
        return self._derive("counts", "", self._count)

    def _count(self) -> Mapping[str, int]:
        counts = Counter(dict.fromkeys(MemberTraits._fields, 0))
        for member in self.alive.values():
            counts.update(name for name, value in zip(MemberTraits._fields, member.traits, strict=True) if value)
        counts["alive"] = len(self.alive)
        return counts

    def common_checks(self) -> frozenset[str]:
        """Checks that every live broker makes before it executes a request."""
        return frozenset.intersection(*checks) if (checks := [m.checks for m in self.alive.values()]) else frozenset()

    def knows(self, incarnation: str) -> bool:
        """Whether a process is, or was, heard in the registry."""
        return incarnation in self._seen

    def _drop(self, member: Member, last_heard_ms: int, now_s: float, *, live: bool) -> LostMember:
        del self.alive[member.broker]
        self._by_key.pop(member.broker.encode(), None)
        self._derived.clear()
        self._size_bytes -= member.size_bytes
        lost = LostMember(member.broker, member.incarnation, last_heard_ms, now_s, live)
        remember(self.lost, lost.broker, lost, self._remembered_max)
        return lost

    def settle_backlog(self, now_s: float, last_ms: int) -> None:
        """The registry was read to its end: ages come from the log's own times, not from when they were read.

        Args:
            last_ms: Log time of its last record.
        """
        for member in self.alive.values():
            member.heard_at_s = now_s - max(0, last_ms - member.heard_at_ms) / 1000
        self._oldest_s = float("-inf")

    def hear_all(self, now_s: float) -> None:
        """This reader was cut off: no member's silence counts from before now."""
        for member in self.alive.values():
            member.heard_at_s = now_s

    def expire(self, now_s: float, *, keep: str, silent: Collection[str] = ()) -> list[LostMember]:
        """Members whose silence lasted longer than the expiry are lost; this process itself never is.

        Args:
            keep: Incarnation of this process.
            silent: Brokers that are lost whenever they were last heard.
        """
        if not silent and now_s - self._oldest_s <= self.expiry_s:
            return []  # nobody is silent for that long: the next walk over all is due an expiry after the oldest heartbeat
        late = [
            member
            for member in self.alive.values()
            if (now_s - member.heard_at_s > self.expiry_s or member.broker in silent) and member.incarnation != keep
        ]
        lost = [self._drop(member, member.heard_at_ms, now_s, live=member.heard_live) for member in late]
        self._oldest_s = min((member.heard_at_s for member in self.alive.values()), default=now_s)
        return lost


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
    loaded = json_object(value)
    if loaded is None or loaded.get("format") != MEMBER_FORMAT or loaded.get("kind") != kind:
        return None
    return loaded
