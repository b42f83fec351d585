"""Overruling by a cold start: a strict reader applies the asserts of the mark's writer leniently (protocol.md section 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from statechannel.protocol.bundle import parse_key
from statechannel.protocol.cold_start_marks import Mark, Marks
from statechannel.protocol.digest import line
from statechannel.protocol.joiner import HeldRecord, Joiner, possible
from statechannel.protocol.keys import KeyState
from statechannel.protocol.record import Kind, Record
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view_rows import dump, restore

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from statechannel.protocol.cold_start_marks import HeadMark
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.view import Judgement, View
    from statechannel.protocol.view_rows import KeyRow

RESTATED_MAX: Final = 1_000_000


class OverruledState(NamedTuple):
    """A key whose accepted state a cold start has overruled: lines of the digest, None if the key does not exist."""

    key: str
    held: str | None
    asserted: str | None


class MarkedColdStart(NamedTuple):
    """A cold start whose mark counts.

    Attributes:
        offset: That of its mark. `timestamp_ms`: its log time.
        mark: Who accepted which view as the truth.
        overruled: The keys that it changed; None: unknown, since the log was not judged strictly there.
    """

    offset: int
    timestamp_ms: int
    mark: Mark
    overruled: tuple[OverruledState, ...] | None = None


class LateAssert(NamedTuple):
    """A stale assert that a mark may make count, or has made count.

    Attributes:
        settles: It would have settled its key as an equal assert at its place.
    """

    offset: int
    key: bytes
    record: Record
    settles: bool


class Restated:
    """Stale asserts since the newest heartbeat of a writer that knew the history: a mark may still make them count."""

    def __init__(self) -> None:
        self._asserts: dict[tuple[bytes, str], LateAssert] = {}

    def read(self, offset: int, judgement: Judgement) -> None:
        """Note a stale assert; of those of one writer on one key only the newest can count."""
        record, key = judgement.record, judgement.key
        if record is not None and key is not None and len(self._asserts) < RESTATED_MAX:
            self._asserts[key.key, record.incarnation] = LateAssert(offset, key.key, record, judgement.settles)

    def heartbeat_read(self, offset: int) -> None:
        """Note a heartbeat of a writer that knew the history: marks of earlier views are void.

        Asserts after it may be here already, if a whole portion was read at once.
        """
        if self._asserts:
            self._asserts = {name: late for name, late in self._asserts.items() if late.offset > offset}

    def control_read(self, record: RecordRead, marks: Marks, newest_format: int) -> list[LateAssert]:
        """Apply a control record, a heartbeat or a mark; returns the asserts that now count, in log order."""
        control = marks.control_read(record, newest_format)
        if isinstance(control, Mark):
            return self.take(control)
        if isinstance(control, Record):
            self.heartbeat_read(record.offset)
        return []

    def take(self, mark: Mark) -> list[LateAssert]:
        """The asserts that a mark makes count, in log order."""
        asserts, self._asserts = self._asserts, {}
        return sorted(
            (late for (_, writer), late in asserts.items() if writer == mark.writer and late.offset > mark.through),
            key=lambda late: late.offset,
        )


class StrictReader:
    """Judges a log record by record, also across the marks of cold starts.

    Args:
        marks: The marks read so far; they are taken further.
        finds_marks: It gets all records of the partition, and the marks among them count; else `start_cold` says where.

    Attributes:
        view: The accepted states; another object behind a cold start that changed some.
        cold_starts: Those read so far.
        restated: Stale asserts that a mark may make count.
    """

    def __init__(self, view: View, marks: Marks | None = None, *, finds_marks: bool = True) -> None:
        self.view = view
        self.cold_starts: list[MarkedColdStart] = []
        self._finds_marks = finds_marks
        self._marks = Marks() if marks is None else marks
        self.restated = Restated()

    @property
    def head(self) -> HeadMark | None:
        """The newest mark of a lost head that counts, among the records read; None without one."""
        return None if self._marks.head is None else self._marks.head[1]

    def read(self, record: RecordRead) -> Judgement:
        judgement = self.view.read(record.offset, record.key, record.value)
        if judgement.verdict is Verdict.ASSERT_STALE:
            self.restated.read(record.offset, judgement)
        elif judgement.verdict is Verdict.CONTROL and self._finds_marks:
            self.control_read(record)
        return judgement

    def control_read(self, record: RecordRead) -> None:
        """Apply a control record: a mark that counts makes the asserts of its writer count."""
        asserts = self.restated.control_read(record, self._marks, self.view.newest_format)
        if self._marks.newest == record.offset and self._marks.mark is not None:
            self._overrule(MarkedColdStart(record.offset, record.timestamp_ms, self._marks.mark), asserts)

    def read_leniently(self, record: RecordRead) -> None:
        """Note the heartbeats and marks among records that another reader takes leniently."""
        if not self._finds_marks:
            return
        mark = self._marks.control_read(record, self.view.newest_format)
        if isinstance(mark, Mark):
            self.cold_starts.append(MarkedColdStart(record.offset, record.timestamp_ms, mark))

    def start_cold(self, cold_start: MarkedColdStart) -> None:
        """Apply a cold start whose mark lies between the records: for a reader that gets those of some namespaces only."""
        self._overrule(cold_start, self.restated.take(cold_start.mark))

    def _overrule(self, cold_start: MarkedColdStart, asserts: Sequence[LateAssert]) -> None:
        overruled: Sequence[OverruledState] = ()
        if asserts:
            self.view, overruled = overrule(self.view, asserts)
        self.cold_starts.append(cold_start._replace(overruled=tuple(overruled)))


def overrule(view: View, asserts: Sequence[LateAssert]) -> tuple[View, list[OverruledState]]:
    """The view after applying asserts like a lenient reader (R4, R5), with its differences.

    Unchanged keys keep all their fields. An applied assert settles its key if it would have as an equal assert at its place;
    else the key stays in debt.
    """
    taken: dict[bytes, LateAssert] = {}
    joiner = Joiner(view.partition, view.partitions, view.newest_format)
    names = {late.key: parse_key(late.key) for late in asserts}
    namespaces = {parts.namespace for parts in names.values() if parts is not None}
    before = {row.key: row for row in dump(view)}
    _hold(joiner, [key for key in view.existing() if key.namespace in namespaces])
    for late in asserts:
        parts = names[late.key]
        if parts is not None and possible(late.record, parts):
            joiner.take(late.offset, late.key, late.record)
            if joiner.held[late.key].offset == late.offset:
                taken[late.key] = late
    rows = [row for row in before.values() if row.namespace not in namespaces]
    lenient = joiner.view()
    joined = {row.key: row for row in dump(lenient)}
    rows += [
        _row(name, joined.get(name), before.get(name), taken.get(name.encode()))
        for name in joined | {row.key: row for row in before.values() if row.namespace in namespaces}
    ]
    result = restore(view.partition, view.partitions, rows, view.applied)
    result.newest_format = view.newest_format
    for source in (lenient, view):  # rows hold no unknown fields
        for key in source.keys.values():
            there = result.keys[key.key]
            if key.more is not None and there.record_id == key.record_id:
                there.more = key.more
    return result, differences(lines_of(view), lines_of(result))


def continued(kept: View, since: Joiner, applied: int) -> Joiner:
    """What a lenient reader holds that knew these states, and has read what another one has read since.

    Args:
        applied: Offset through which the log was read; there may be no record since.
    """
    since.settle()
    joiner = Joiner(kept.partition, kept.partitions, kept.newest_format)
    _hold(joiner, kept.existing())
    for name, held in since.held.items():
        joiner.take(held.offset, name, held.record)
    for name in since.nulls:
        joiner.held.pop(name, None)
    joiner.last, joiner.nulls, joiner.applied = dict.fromkeys(joiner.held, -1) | since.last, since.nulls, applied
    return joiner


def _hold(joiner: Joiner, keys: Iterable[KeyState]) -> None:
    for key in keys:
        if not key.derived:
            joiner.hold(key.key, HeldRecord(key.offset, _assert_of(key)))


def lift(view: View, version: int) -> list[str]:
    """Raise every live bundle to a version, for a cold start; returns the keys that were below it.

    A namespace that is read of and does not exist counts as deleted at this version: created again, it goes on from there.
    """
    below = [key for key in view.live() if key.version < version]
    for key in below:
        view.place(key, key.state or State.UNASSIGNED, version, key.from_, key.to)
    for namespace in dict.fromkeys(key.namespace for key in view.keys.values()):
        root = view.keys.setdefault(namespace.encode(), KeyState(namespace, -1, -1))
        if root.state is not State.ACTIVE and root.version < version:
            view.place(root, State.DELETED, version, None, None)
            below.append(root)
    return [key.name for key in below]


def _assert_of(key: KeyState) -> Record:
    state = key.state or State.ABSENT
    held: tuple[Any, ...] = ("held", -1, "held", "held", {}, key.version, key.accepted_id, state, key.from_, key.to)
    record = Record(Kind.ASSERT, *held)
    record.children = key.children
    return record


def _row(name: str, joined: KeyRow | None, before: KeyRow | None, taken: LateAssert | None) -> KeyRow:
    """The new state of a key: unchanged if the asserts have not changed it."""
    row = joined
    if joined is None or (before is not None and _accepted(joined) == _accepted(before)):
        row = before
    if joined is None and before is not None and before.state is not None:
        row = before._replace(state=None, version=0, from_=None, to=None, id=None, record_id=None, derived=False)
        row = row._replace(offset=-1, bounds=None, writer=None, writer_incarnation=None, server=None, owner=None)
        row = row._replace(server_incarnation=None, was=None, forced=False, operation=None, flow=None, intent=None)
    if row is None:
        raise ValueError(f"{name} is in neither view")
    if before is not None:
        row = row._replace(settled=before.settled, purged=before.purged, debt_since=before.debt_since)
        row = row._replace(debt_newest=before.debt_newest, debt_highest=before.debt_highest)
    if taken is not None and taken.settles:
        newest = -1 if row.debt_newest is None else row.debt_newest
        row = row._replace(settled=taken.offset)
        if newest <= taken.offset:
            row = row._replace(debt_since=None, debt_newest=None, debt_highest=None)
    return row


def _accepted(row: KeyRow) -> tuple[object, ...]:
    return row.state, row.version, row.from_, row.to, row.id, row.bounds


def lines_of(view: View) -> dict[str, str]:
    """Lines of the digest, by key."""
    return {key.name: line(key).decode() for key in view.existing()}


def differences(held: Mapping[str, str], asserted: Mapping[str, str]) -> list[OverruledState]:
    """Keys whose state is another one: not bundles whose version alone was raised, nor namespaces that did and do not exist."""
    return [
        OverruledState(name, held.get(name), asserted.get(name))
        for name in sorted(held.keys() | asserted.keys())
        if _states_differ(held.get(name), asserted.get(name))
    ]


def _states_differ(held: str | None, asserted: str | None) -> bool:
    """Whether two lines of the digest, of one key, are of different states.

    A bundle whose version was raised has the same state, and a deleted namespace is as good as none.
    """
    if held == asserted:
        return False
    before, after = _state_in(held), _state_in(asserted)
    return before != after


def _state_in(of: str | None) -> list[object] | None:
    if of is None:
        return None
    name, version, *rest = orjson.loads(of)
    state: list[object] = rest
    parts = parse_key(name.encode())
    if parts is None or not parts.is_namespace:
        return state
    return None if state[0] == State.DELETED else [version, *state]
