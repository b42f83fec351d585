"""States of all live bundles as the page keeps them: in arrays, with the newest changes, by which it goes back in time. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from statechannel.protocol.bundle import bundle_key, parse_key
from statechannel.protocol.states import State

if TYPE_CHECKING:
    from statechannel.broker.changes import Change

_LOWER_BITS: Final = 32
_NOTES_MAX: Final = 4_096


class Holding(NamedTuple):
    """Who has a bundle.

    Attributes:
        owner: Who serves it, also while Releasing or Splitting.
        destination: Who is to serve it next.
        source: While Assigning: who served it before.
    """

    state: State
    owner: str | None
    destination: str | None = None
    source: str | None = None


class BundleStart(NamedTuple):
    """A live bundle as it is when a table begins.

    Attributes:
        key: As in the log: shared with the view that it is from.
    """

    key: bytes
    holding: Holding
    operation: str | None = None
    flow: str | None = None


class ChangeNote(NamedTuple):
    """What a record says of itself beyond the state."""

    by: str
    action: str | None
    flow: str | None
    reason: str | None
    decision: str | None
    lost: str | None
    last_heard_ms: int | None


class BundleStep(NamedTuple):
    """One bundle before and after a change; None: it did not exist.

    Attributes:
        place: Number of the change, from 1 on, as this process counts them; a split has one for all its steps.
        upper: Of its range.
    """

    place: int
    at_ms: int
    partition: int
    offset: int
    key: int
    upper: int
    before: Holding | None
    after: Holding | None
    operation: str | None
    note: ChangeNote


def holding_of(state: State, from_: str | None, to: str | None) -> Holding:
    """By the fields of a record, as `KeyState` has them."""
    if state is State.ASSIGNED:
        return Holding(state, to)
    if state is State.ASSIGNING:
        return Holding(state, None, to, from_)
    if state in (State.RELEASING, State.SPLITTING):
        return Holding(state, from_, to if to != from_ else None)
    return Holding(state, None)


class LiveBundleTable:
    """Live bundles by namespace and lower bound: 16 bytes each.

    Attributes:
        keys: Number of the namespace and lower bound of each, in order.
        namespaces: Names by number; empty where the number is free.
        names_version: Counts the changes of `namespaces`.
    """

    def __init__(self) -> None:
        self.keys = array("Q")
        self._uppers = array("I")
        self._holdings = array("I")
        self.namespaces: list[str] = []
        self.names_version = 0
        self._numbers: dict[str, int] = {}
        self._free_numbers: list[int] = []
        self._kinds: list[Holding] = []
        self._kind_numbers: dict[Holding, int] = {}
        self._bundles = Counter[int]()  # by number of the namespace

    def __len__(self) -> int:
        return len(self.keys)

    def copy(self) -> LiveBundleTable:
        """One that changes apart from this one."""
        copied = LiveBundleTable()
        copied.keys, copied._uppers, copied._holdings = self.keys[:], self._uppers[:], self._holdings[:]
        copied.namespaces, copied._numbers = list(self.namespaces), dict(self._numbers)
        copied._free_numbers, copied.names_version = list(self._free_numbers), self.names_version
        copied._kinds, copied._kind_numbers = list(self._kinds), dict(self._kind_numbers)
        copied._bundles = self._bundles.copy()
        return copied

    def key_of(self, namespace: str, lower: int) -> int:
        number = self._numbers.get(namespace)
        if number is None:
            self.names_version += 1
            if self._free_numbers:
                number = self._free_numbers.pop()
                self.namespaces[number] = namespace
            else:
                number = len(self.namespaces)
                self.namespaces.append(namespace)
            self._numbers[namespace] = number
        return number << _LOWER_BITS | lower

    def has_namespace(self, namespace: str) -> bool:
        """Whether it has, or had lately, a bundle."""
        return namespace in self._numbers

    @property
    def names_gone(self) -> int:
        """Number of names, of namespaces without a bundle, that are kept."""
        return len(self._numbers) - len(self._bundles)

    def forget_names(self, kept: Iterable[int]) -> None:
        """Forget the names of namespaces, and of brokers, that no bundle has.

        Args:
            kept: Keys of bundles that are gone whose names are needed still.
        """
        needed = {key >> _LOWER_BITS for key in kept} | self._bundles.keys()
        for name, number in list(self._numbers.items()):
            if number not in needed:
                del self._numbers[name]
                self.namespaces[number] = ""
                self._free_numbers.append(number)
                self.names_version += 1
        kinds = sorted(set(self._holdings))
        renumbered = {kind: number for number, kind in enumerate(kinds)}
        self._holdings = array("I", map(renumbered.__getitem__, self._holdings))
        self._kinds = [self._kinds[kind] for kind in kinds]
        self._kind_numbers = {holding: number for number, holding in enumerate(self._kinds)}

    def namespace_of(self, key: int) -> str:
        return self.namespaces[key >> _LOWER_BITS]

    def name_of(self, key: int, upper: int) -> str:
        return bundle_key(self.namespace_of(key), key & 0xFFFFFFFF, upper)

    def get(self, key: int) -> tuple[int, Holding] | None:
        """Upper bound and state."""
        at = bisect_left(self.keys, key)
        if at == len(self.keys) or self.keys[at] != key:
            return None
        return self._uppers[at], self._kinds[self._holdings[at]]

    def put(self, key: int, upper: int, holding: Holding | None) -> None:
        """Set one; None takes it away."""
        at = bisect_left(self.keys, key)
        there = at < len(self.keys) and self.keys[at] == key
        if holding is None:
            if there:
                for column in (self.keys, self._uppers, self._holdings):
                    del column[at]
                self._count(key, -1)
            return
        kind = self._kind_of(holding)
        if there:
            self._uppers[at], self._holdings[at] = upper, kind
        else:
            self.keys.insert(at, key)
            self._uppers.insert(at, upper)
            self._holdings.insert(at, kind)
            self._count(key, 1)

    def _count(self, key: int, by: int) -> None:
        number = key >> _LOWER_BITS
        self._bundles[number] += by
        if not self._bundles[number]:
            del self._bundles[number]

    @property
    def live_namespaces(self) -> int:
        """Number of namespaces that have a bundle."""
        return len(self._bundles)

    def fill(self, starts: Iterable[BundleStart]) -> None:
        """Begin with these, at once."""
        rows = []
        for start in starts:
            parts = parse_key(start.key)
            if parts is not None and not parts.is_namespace:
                kind = self._kind_of(start.holding)
                key = self.key_of(parts.namespace, parts.lower)
                rows.append(
                    (key << _LOWER_BITS | parts.upper) << _LOWER_BITS | kind
                )  # a number takes less than a tuple
        rows.sort()
        low = (1 << _LOWER_BITS) - 1
        self.keys = array("Q", (row >> 2 * _LOWER_BITS for row in rows))
        self._uppers = array("I", (row >> _LOWER_BITS & low for row in rows))
        self._holdings = array("I", (row & low for row in rows))
        self._bundles = Counter(row >> 3 * _LOWER_BITS for row in rows)

    def _kind_of(self, holding: Holding) -> int:
        kind = self._kind_numbers.get(holding)
        if kind is None:
            kind = self._kind_numbers[holding] = len(self._kinds)
            self._kinds.append(holding)
        return kind

    def rows(self) -> Iterator[tuple[int, int, Holding]]:
        """Key, upper bound and state of every bundle."""
        kinds = self._kinds
        for key, upper, kind in zip(self.keys, self._uppers, self._holdings, strict=True):
            yield key, upper, kinds[kind]

    def rows_as_in(self, other: LiveBundleTable) -> Iterator[tuple[int, int, Holding]]:
        """The same with the keys that these bundles have in another table, whose namespaces have other numbers."""
        low = (1 << _LOWER_BITS) - 1
        for key, upper, holding in self.rows():
            yield other.key_of(self.namespace_of(key), key & low), upper, holding

    def span(self, number: int) -> tuple[int, int]:
        """Where the bundles of a namespace, by its number, begin and end in `keys`."""
        return bisect_left(self.keys, number << _LOWER_BITS), bisect_left(self.keys, (number + 1) << _LOWER_BITS)

    def place_of(self, number: int, bound: tuple[str, int] | None) -> int:
        """Where in `keys` the bundles of a namespace, by its number, reach a namespace and lower bound; None: their end."""
        first, last = self.span(number)
        name = self.namespaces[number]
        if bound is None or name < bound[0]:
            return last
        return first if name > bound[0] else bisect_left(self.keys, number << _LOWER_BITS | bound[1], first, last)

    def of_namespace(self, namespace: str) -> list[tuple[int, int, Holding]]:
        """The same of one namespace."""
        number = self._numbers.get(namespace)
        if number is None:
            return []
        first, last = self.span(number)
        return [(self.keys[at], self._uppers[at], self._kinds[self._holdings[at]]) for at in range(first, last)]


class ChangeJournal:
    """The table now, and the newest changes (`most`), each with the state before it.

    Attributes:
        whole_from: The page can be shown as of this place, or later.
        is_whole: Every change since the log began is there.
        positions: The next offset of each partition.
    """

    def __init__(self, most: int) -> None:
        self.table = LiveBundleTable()
        self.steps: deque[BundleStep] = deque()
        self.place = 0
        self.whole_from = 0
        self.is_whole = True
        self.positions: dict[int, int] = {}
        self._most = most
        self._notes: dict[ChangeNote, ChangeNote] = {}

    def begin(self, starts: Iterable[BundleStart], positions: dict[int, int]) -> None:
        """Begin again with these bundles; older steps are forgotten."""
        self.table = LiveBundleTable()
        self.table.fill(starts)
        self.steps.clear()
        if self.place:  # whatever was missed is one change: what was known before it is another state
            self.place += 1
        self.whole_from = self.place
        self.is_whole = False
        self.positions = positions

    def take(self, change: Change) -> list[BundleStep]:
        """Apply a change; what is known already has no steps."""
        if change.offset < self.positions.get(change.partition, 0):
            return []
        self.positions[change.partition] = change.offset + 1
        self.place += 1
        steps = list(self._steps(change))
        for step in steps:
            self.table.put(step.key, step.upper, step.after)
        self.steps += steps
        while len(self.steps) > self._most:
            self.whole_from = self.steps.popleft().place
            self.is_whole = False
        return steps

    def _steps(self, change: Change) -> Iterator[BundleStep]:
        parts = parse_key(change.bundle.encode())
        if parts is None:
            return
        note, table = self._note(change), self.table
        lost: list[tuple[int, int]]
        if parts.is_namespace:
            gone = table.of_namespace(parts.namespace) if change.state is State.DELETED else []
            lost = [(key, upper) for key, upper, _ in gone]
        else:
            key = table.key_of(parts.namespace, parts.lower)
            held = table.get(key)
            if change.state is not State.DELETED:
                before = None if held is None else held[1]
                yield self._step(
                    change, key, parts.upper, before, holding_of(change.state, change.from_, change.to), note
                )
                return
            lost = [(key, parts.upper)]
        derived = list(change.derived)
        split_from = None
        for key, upper in lost:
            held = table.get(key)
            split_from = None if held is None else held[1]
            yield self._step(change, key, upper, split_from, None, note)
        for child in derived:
            bounds = parse_key(child.bundle.encode())
            if bounds is not None:
                key = table.key_of(bounds.namespace, bounds.lower)
                yield self._step(change, key, bounds.upper, None, Holding(child.state, child.owner), note)

    def _step(
        self, change: Change, key: int, upper: int, before: Holding | None, after: Holding | None, note: ChangeNote
    ) -> BundleStep:
        return BundleStep(
            self.place, change.timestamp_ms, change.partition, change.offset, key, upper, before, after,
            change.operation, note,
        )  # fmt: skip

    def _note(self, change: Change) -> ChangeNote:
        """Equal ones are one object."""
        lost = change.lost or {}
        broker, heard_ms = lost.get("broker"), lost.get("last_heard_ms")
        note = ChangeNote(
            change.by, change.action, change.flow, None if change.reason is None else change.reason[:200], change.decision,
            broker if isinstance(broker, str) else None, heard_ms if type(heard_ms) is int else None,
        )  # fmt: skip
        if len(self._notes) > _NOTES_MAX:
            self._notes.clear()
        return self._notes.setdefault(note, note)

    def place_at(self, at_ms: int) -> int:
        """The newest change of that log time, or before."""
        place = self.whole_from
        for step in self.steps:
            if step.at_ms > at_ms:
                break
            place = step.place
        return place

    def time_of(self, place: int) -> int | None:
        """Log time of a change, or of the newest one before it; None: not known."""
        return next((step.at_ms for step in reversed(self.steps) if step.place <= place), None)

    def as_of(self, place: int) -> LiveBundleTable | None:
        """The table after this change; None: it is not known any more."""
        if place < self.whole_from:
            return None
        table = self.table.copy()
        for step in reversed(self.steps):
            if step.place <= place:
                break
            table.put(step.key, step.upper, step.before)
        return table

    def of_bundle(self, namespace: str, lower: int, upper: int, most: int) -> list[BundleStep]:
        """The newest steps of a bundle, the newest first."""
        key = self.table.key_of(namespace, lower) if self.table.has_namespace(namespace) else -1
        steps = []
        for step in reversed(self.steps):
            if step.key == key and step.upper == upper:
                steps.append(step)
                if len(steps) == most:
                    break
        return steps
