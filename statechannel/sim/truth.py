"""The omniscient reader: strict, from the first record, over the log as it was before any cleaning.

Whether a log vouches by itself is computed here by brute force, and from protocol.md (section 5, step 3) alone: the readers of
the core are measured by something else than themselves.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from statechannel.protocol import codec
from statechannel.protocol.bundle import FULL_LOWER, FULL_UPPER
from statechannel.protocol.codec import COLD_START_KEY, HEARTBEAT_KEY, decode_heartbeat
from statechannel.protocol.cold_start_marks import decode_mark
from statechannel.protocol.record import Kind, Record
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from statechannel.sim.trace import Violation

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from statechannel.protocol.keys import KeyState, Ring, Writer
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.view import Judgement
    from statechannel.sim.log import SimLog


class TrueState(NamedTuple):
    """One accepted state of a key, comparable between readers."""

    version: int
    state: State
    from_: str | None
    to: str | None
    record_id: str | None


class Grant(NamedTuple):
    """Who may serve a generation: the process whose record was accepted, if that is known."""

    broker: str
    writer: Writer | None
    offset: int


def accepted_of(key: KeyState) -> TrueState:
    if key.state is None:
        raise Violation("simulator", f"{key.name} does not exist")
    return TrueState(key.version, key.state, key.from_, key.to, key.accepted_id)


RING_END = 0xFFFFFFFF


class RingLevels:
    """A level for each hash of the ring: a step function, 0 everywhere at first."""

    def __init__(self) -> None:
        self._cuts = [0]
        self._levels = [0]

    def _cut(self, at: int) -> int:
        """Index of the step that begins at a hash; it does from now on."""
        index = bisect_left(self._cuts, at)
        if index == len(self._cuts) or self._cuts[index] != at:
            self._cuts.insert(index, at)
            self._levels.insert(index, self._levels[index - 1])
        return index


class Floor(RingLevels):
    """The highest generation at which each part of the hash ring was ever served; it may only rise."""

    def copy(self) -> Floor:
        other = Floor()
        other._cuts, other._levels = list(self._cuts), list(self._levels)
        return other

    def raise_to(self, lower: int, upper: int, level: int) -> int | None:
        """Raise a range to a level; the level that stands in the way, if somewhere it is as high already."""
        first = self._cut(lower)
        last = len(self._cuts) if upper == RING_END else self._cut(upper)
        worst = max(self._levels[first:last])
        self._levels[first:last] = [level] * (last - first)
        return worst if worst >= level else None


class Truth:
    """One partition's one accepted history, with the invariants that need no second reader.

    Attributes:
        states: TrueState states after each offset; dictionaries are shared where nothing changed.
        debts: Keys in debt after each offset.
        grants: Generations by bundle key.
        stopped_at: Offset of the record of a newer format; -1 without one.
    """

    def __init__(self, partition: int, partitions: int) -> None:
        self.view = View(partition, partitions)
        self.states: list[Mapping[bytes, TrueState]] = []
        self.debts: list[frozenset[bytes]] = []
        self.verdicts: list[Verdict] = []
        self.grants: dict[tuple[str, int], Grant] = {}
        self.stopped_at = -1
        self._now: dict[bytes, TrueState] = {}
        self._open: frozenset[bytes] = frozenset()
        self._highest: dict[bytes, int] = {}
        self._floors: dict[str, Floor] = {}

    @property
    def end(self) -> int:
        return len(self.states)

    def read(self, record: RecordRead) -> Judgement | None:
        """Judge the next record of the uncleaned log; None where judging has stopped."""
        if self.stopped_at >= 0:
            return None
        judgement = self.judge(record)
        if judgement.verdict is Verdict.UNSUPPORTED_FORMAT:
            self.stopped_at = record.offset
            return judgement
        if judgement.verdict is Verdict.ACCEPTED and judgement.key is not None:
            self._accepted(judgement.key, record.offset)
        self._note_debts(judgement)
        self.states.append(self._now)
        self.debts.append(self._open)
        self.verdicts.append(judgement.verdict)
        return judgement

    def judge(self, record: RecordRead) -> Judgement:
        """Apply the rules to a record: the only place that uses them."""
        return self.view.read(record.offset, record.key, record.value)

    def fork(self, view: View, later: Sequence[RecordRead]) -> Truth:
        """The history that counts from the mark of a cold start on, if that mark ever comes.

        Args:
            view: What the cold leader takes for the truth; taken over.
        """
        other = Truth(view.partition, view.partitions)
        other.view = view
        other.verdicts = self.verdicts[: view.applied + 1]
        other.states = self.states[: view.applied]
        other.debts = self.debts[: view.applied]
        other.grants = dict(self.grants)
        other._floors = {name: floor.copy() for name, floor in self._floors.items()}
        other.stopped_at = self.stopped_at if self.stopped_at <= view.applied else -1
        # What was accepted before and is forgotten now does not bind what comes.
        other._now = {key.key: accepted_of(key) for key in view.existing()}
        other._open = frozenset(key.key for key in view.ledger.open)
        other._highest = {key.key: key.version for key in view.existing()}
        other.states.append(other._now)
        other.debts.append(other._open)
        for key in view.existing():
            if key.owner is not None and key.generation is not None:
                other.grants.setdefault((key.name, key.generation), Grant(key.owner, None, view.applied))
        for record in later:
            other.read(record)
        return other

    def take_over(self, before: Truth, mark: int) -> None:
        """The mark came: below it, what counted then still does."""
        self.states[:mark] = before.states[:mark]
        self.debts[:mark] = before.debts[:mark]
        self.verdicts[:mark] = before.verdicts[:mark]
        self.grants = before.grants | self.grants

    def _note_debts(self, judgement: Judgement) -> None:
        key = judgement.key
        if key is not None and (key in self.view.ledger.open) != (key.key in self._open):
            self._open = frozenset(member.key for member in self.view.ledger.open)

    def _accepted(self, key: KeyState, offset: int) -> None:
        self._now = {member.key: accepted_of(member) for member in self.view.existing()}
        self._grow(key, offset)
        ring = key.ring
        if ring is not None:
            check_ring(ring)
            for bounds_index in range(len(key.bounds) - 1 if key.bounds is not None else 0):
                child = ring.live[key.bounds[bounds_index]]  # type: ignore[index]
                self._grow(child, offset)
        elif key.is_namespace:
            left = [member.name for member in self.view.existing() if member.namespace == key.namespace]
            if left != [key.name]:
                raise Violation("ring", f"{key.name} is Deleted, but {left} exist")

    def _grow(self, key: KeyState, offset: int) -> None:
        before = self._highest.get(key.key, 0)
        if key.version <= before:
            raise Violation("version", f"{key.name} went from version {before} to {key.version} at {offset}")
        if not key.is_namespace and not key.derived and key.version != before + 1:
            raise Violation("version", f"{key.name} jumped from version {before} to {key.version} at {offset}")
        self._highest[key.key] = key.version
        if key.is_namespace:
            return
        if key.state is State.ASSIGNED and key.to is not None:
            self.grants[key.name, key.version] = Grant(key.to, key.writer, offset)
            floor = self._floors.setdefault(key.namespace, Floor())
            below = floor.raise_to(key.lower, key.upper, key.version)
            if below is not None:
                raise Violation("generation", f"{key.name} is served at {key.version} after {below}, at {offset}")


def check_ring(ring: Ring) -> None:
    """The live bundles of a namespace cover the ring exactly once."""
    end = FULL_LOWER
    for lower in ring.live:
        bundle = ring.live[lower]
        if bundle.lower != lower or lower != end or bundle.upper <= lower or bundle.state is None:
            raise Violation("ring", f"{bundle.name} follows 0x{end:08x}")
        end = bundle.upper
    if end != FULL_UPPER:
        raise Violation("ring", f"{ring.namespace} ends at 0x{end:08x}")


def compare(who: str, view: View, truth: Truth) -> None:
    """A caught-up reader holds exactly what the omniscient reader held at the same offset, and knows of each open debt."""
    offset = view.applied
    if offset < 0:
        return
    if offset >= truth.end:
        raise Violation("history", f"{who} applied {offset}, but the truth ends at {truth.end - 1}")
    want = truth.states[offset]
    have = {key.key: accepted_of(key) for key in view.existing()}
    if have != want:
        keys = sorted(key for key in have.keys() | want.keys() if have.get(key) != want.get(key))
        first = keys[0]
        raise Violation(
            "history",
            f"{who} at {offset}: {len(keys)} keys differ, {first.decode()} is {have.get(first)} "
            f"instead of {want.get(first)}",
        )
    for key in view.existing():
        if key.is_namespace and key.ring is not None:
            check_ring(key.ring)
    missing = truth.debts[offset] - {key.key for key in view.ledger.open}
    if missing:
        raise Violation("debt", f"{who} at {offset} does not see the debt of {min(missing).decode()}")


_HARMLESS = (Verdict.ACCEPTED, Verdict.ASSERT_EQUAL, Verdict.CONTROL, Verdict.WRONG_PARTITION, Verdict.PURGED)


def misleading(log: SimLog, truth: Truth, through: int) -> set[bytes]:
    """Namespaces in which the log may mislead a lenient reader without a clean heartbeat (protocol.md section 5).

    Those with a rejected record that the lenient rule (R4) takes, or with an accepted one that was cleaned away.
    """
    namespaces = set()
    for offset in range(min(through + 1, truth.end)):
        if truth.verdicts[offset] not in _HARMLESS and _misleads(log, truth, log.entries[offset]):
            namespaces.add((log.entries[offset].key or b"").split(b"/0x")[0])
    return namespaces


def _misleads(log: SimLog, truth: Truth, entry: RecordRead) -> bool:
    key = truth.view.keys.get(entry.key or b"")
    if key is None or key.state is None:
        return entry.key is not None and b"/0x" not in entry.key
    kept = log.next(key.offset)
    if kept is None or kept.offset != key.offset or entry.value is None:
        return True
    record = codec.decode(entry.value, namespace=key.is_namespace)
    if not isinstance(record, Record):
        return False
    if entry.offset < key.offset:
        return record.version >= key.version  # the accepted one comes later, but need not cover this one
    return _taken(record, key)


def _taken(record: Record, key: KeyState) -> bool:
    if key.derived:
        return record.version >= key.version
    return record.version > key.version - (record.kind is Kind.ASSERT) or record.covers >= key.offset


def vouched_to(log: SimLog, end: int, now_ms: int, *, marks: Collection[int] = (), slack_ms: int = 0) -> int:
    """The offset up to which the log below `end` vouches for itself; -1 where it does not.

    Args:
        now_ms: Log time at which the reading ended.
        marks: Offsets of the marks of cold starts that count.
        slack_ms: By so much a reader's idea of log time may be ahead.
    """
    left = [record for record in log.left() if record.offset < end]
    newest = max((_clean_to(record) for record in left), default=-1)
    above = [record for record in left if record.offset > newest]
    oldest_ms = now_ms + slack_ms - log.settings.lag_ms // 2
    ages_ms = {record.offset: record.timestamp_ms for record in left}
    missing = [offset for offset in range(newest + 1, end) if offset not in ages_ms]
    before = [max((other for other in ages_ms if other < offset), default=None) for offset in missing]
    is_whole = all(offset is not None and ages_ms[offset] > oldest_ms for offset in before)
    is_young = all(record.timestamp_ms > oldest_ms for record in above)
    is_unmarked = not any(newest < mark < end for mark in marks)
    return newest if newest >= 0 and is_whole and is_young and is_unmarked else -1


def counting_marks(entries: Sequence[RecordRead]) -> list[int]:
    """Offsets of the marks of cold starts that are not void, of a whole log from offset 0."""
    counting: list[int] = []
    for entry in entries:
        mark = decode_mark(entry.value) if entry.key == COLD_START_KEY else None
        if mark is not None and not any(
            other.offset in counting or (other.key == HEARTBEAT_KEY and decode_heartbeat(other.value) is not None)
            for other in entries[max(0, mark.through + 1) : entry.offset]
        ):
            counting.append(entry.offset)
    return counting


def _clean_to(record: RecordRead) -> int:
    heartbeat = decode_heartbeat(record.value) if record.key == HEARTBEAT_KEY else None
    return heartbeat.clean_to if heartbeat is not None and heartbeat.clean_to < record.offset else -1
