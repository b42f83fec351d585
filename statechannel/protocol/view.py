"""View of a caught-up reader: a fold of one partition into its accepted states (protocol.md sections 2 and 3).

`View.read` costs O(log n) for every record, except those that create or end a whole ring, whose cost is the size of the ring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from statechannel.protocol.bounded import remember
from statechannel.protocol.bundle import children_of, parse_key, partition_of
from statechannel.protocol.codec import BUNDLE_FORMS, NAMESPACE_FORMS, NewerFormat, decode, decode_form, load_object
from statechannel.protocol.debts import Debts
from statechannel.protocol.keys import KeyState, Ring, Writer
from statechannel.protocol.record import NEWEST_FORMAT, Record
from statechannel.protocol.resolver import judge
from statechannel.protocol.states import IN_FLIGHT, Flow, State
from statechannel.protocol.unknown_fields import KNOWN, unknown_in
from statechannel.protocol.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator


class Judgement(NamedTuple):
    """A reader's judgement of one record.

    Attributes:
        record: The decoded record; None for control keys, nulls and undecodable values.
        key: The key's state after the record; None for keys without a state.
        why: Details in addition to the verdict.
        format: The newer format that stops the reader; 0 otherwise.
        settles: Of a stale assert: it would settle its key if it counted, as by the mark of a cold start.
    """

    verdict: Verdict
    record: Record | None = None
    key: KeyState | None = None
    why: str = ""
    format: int = 0
    settles: bool = False


WRITERS_MAX: Final = 10_000
_OWNED: Final = IN_FLIGHT | {State.ASSIGNED}
_FLOWS: Final = {flow.value: flow.value for flow in Flow}
_ACCEPTED: Final = Verdict.ACCEPTED
_EQUAL: Final = Verdict.ASSERT_EQUAL
_STALE: Final = Verdict.ASSERT_STALE
_UNSUPPORTED: Final = Verdict.UNSUPPORTED_FORMAT
_ASSIGNED: Final = State.ASSIGNED
_SPLITTING: Final = State.SPLITTING
_ASSIGNING: Final = State.ASSIGNING
_DELETED: Final = State.DELETED
_SERVED: Final = frozenset({State.ASSIGNED, State.RELEASING, State.SPLITTING})
# Half the price of the named tuple's own constructor, which takes keywords and defaults.
_judgement: Final = tuple.__new__
_CONTROL: Final = Judgement(Verdict.CONTROL)
_PURGED: Final = Judgement(Verdict.PURGED)


class View:
    """Accepted state of one partition as of `applied`, with its debts.

    Attributes:
        applied: Offset of the last record read; -1 before the first.
        keys: Every key of known form in its right partition that was read or derived and not forgotten.
        writers: Newest processes whose records were accepted, by incarnation: only so that keys share one
            object for each. Verdicts do not depend on it.
        load: Number of bundles that each broker has or will have (placement counts those in flight).
        highest: Highest version of any key; it never decreases.
        changed: Keys whose accepted state has changed since a digest was computed; None where none is computed.
        changed_at: Offset of the last accepted record; that of a bulk is the last offset of the bulk.
    """

    def __init__(self, partition: int, partitions: int, newest_format: int = NEWEST_FORMAT) -> None:
        self.partition = partition
        self.partitions = partitions
        self.newest_format = newest_format
        self.applied = -1
        self.keys: dict[bytes, KeyState] = {}
        self.ledger = Debts()
        self.in_flight: dict[KeyState, None] = {}
        self.load: dict[str, int] = {}
        self.writers: dict[str, Writer] = {}
        self.highest = 0
        self.changed: dict[KeyState, None] | None = None
        self.changed_at = -1

    def read(self, offset: int, key: bytes | None, value: bytes | None) -> Judgement:
        state = self.keys.get(key)  # type: ignore[arg-type]  # nothing is held under None
        if state is None:
            held = self._unheld(key, value)
            if isinstance(held, Judgement):
                if held.verdict is not _UNSUPPORTED:
                    self.applied = offset
                return held
            state = held
        if value is None:
            return self._null(offset, state)
        forms = BUNDLE_FORMS if state.lower >= 0 else NAMESPACE_FORMS
        record = decode_form(value, forms, state.record_id, self.newest_format)
        if record.__class__ is not Record:
            if isinstance(record, NewerFormat):
                return Judgement(_UNSUPPORTED, format=record.format)
            self._hold(state)
            self.applied = offset
            self.ledger.unclean(state, offset, -1)
            return Judgement(Verdict.UNDECODABLE, None, state, record.why)  # type: ignore[union-attr]
        self.applied = offset
        verdict = judge(record, state)
        if verdict is _ACCEPTED:
            self.changed_at = offset
            self.accept(record, state, offset)
            self.ledger.clean(state, offset, record.covers, record.version)
            return _judgement(Judgement, (verdict, record, state, "", 0, False))
        if verdict is _EQUAL:
            self._hold(state)
            self.ledger.clean(state, offset, record.covers, record.version)
        else:
            self._hold(state)
            settles = verdict is _STALE and self.ledger.settles(state, record.covers, record.version)
            self.ledger.unclean(state, offset, record.version)
            return Judgement(verdict, record, state, settles=settles)
        return Judgement(verdict, record, state)

    def _unheld(self, key: bytes | None, value: bytes | None) -> KeyState | Judgement:
        """First record of a key: its state if readers hold it, else the verdict."""
        if key is not None and key[:1] == b"!":
            return _CONTROL
        parts = None if key is None else parse_key(key)
        in_place = parts is not None and partition_of(parts.namespace, self.partitions) == self.partition
        if parts is not None and in_place:
            return KeyState(parts.namespace, parts.lower, parts.upper, key)
        record = None
        if value is not None:
            newest = self.newest_format
            loaded = (
                load_object(value, newest)
                if parts is None
                else decode(value, namespace=parts.is_namespace, newest=newest)
            )
            if isinstance(loaded, NewerFormat):
                return Judgement(_UNSUPPORTED, format=loaded.format)
            record = loaded if isinstance(loaded, Record) else None
        if parts is not None:
            return Judgement(Verdict.WRONG_PARTITION, record)
        return _PURGED if value is None else Judgement(Verdict.UNDECODABLE, why="a key of unknown form")

    def _hold(self, state: KeyState) -> None:
        if state.state is None:
            state.purged = False
            self.keys.setdefault(state.key, state)

    def _null(self, offset: int, state: KeyState) -> Judgement:
        self._hold(state)
        self.applied = offset
        if state.state is None and state not in self.ledger.open:
            state.settled = offset
            state.purged = True
            return Judgement(Verdict.PURGED, None, state)
        self.ledger.unclean(state, offset, -1)
        return Judgement(Verdict.UNDECODABLE, None, state, "a null on a key that exists or is in debt")

    def accept(self, record: Record, key: KeyState, offset: int, *, derive: bool = True) -> None:
        """Make an accepted proposal the key's state and, unless switched off, derive dependent states."""
        writer = self.writer_of(record.broker, record.incarnation)
        if key.lower < 0 and derive:
            self._accept_namespace(record, key)
        self.place(key, record.state, record.version, record.from_, record.to)
        raw = record.raw
        self.note(key, record.id, writer, raw.get("operation"), raw.get("flow"), offset)
        if not KNOWN.issuperset(raw):
            key.more = unknown_in(raw)
        key.forced = record.forced
        if record.state is _SPLITTING:
            key.intent = _intent(record)
        if record.children is None:
            key.bounds = None
            return
        key.bounds = record.bounds()
        if key.lower >= 0:
            key.server = writer
        if derive and key.bounds is not None:
            self.derive(key)

    def writer_of(self, broker: str, incarnation: str) -> Writer:
        """The process of this name, as one shared object, unless forgotten meanwhile."""
        known = self.writers.get(incarnation)
        if known is None or known.broker != broker:
            known = Writer(broker, incarnation)
            remember(self.writers, incarnation, known, WRITERS_MAX)
        return known

    def note(self, key: KeyState, record_id: str, writer: Writer, operation: object, flow: object, offset: int) -> None:
        """Note the record of the key's new state.

        Args:
            operation, flow: As the record has them: only strings count.
        """
        key.record_id = record_id
        key.derived = False
        key.forced = False
        key.writer = writer
        state = key.state
        if state is _ASSIGNED:
            key.server = writer
        elif state not in _SERVED:
            key.server = None
        key.operation = operation if type(operation) is str else None
        key.flow = _FLOWS.get(flow, flow) if type(flow) is str else None
        key.offset = offset
        key.intent = None
        key.more = None

    def _accept_namespace(self, record: Record, key: KeyState) -> None:
        if key.ring is not None:
            self._end_ring(key.ring)
            key.ring = None
        self.keys.setdefault(key.key, key)
        if record.state is State.ACTIVE:
            key.ring = Ring(key.namespace, record.version)

    def place(self, key: KeyState, state: State, version: int, from_: str | None, to: str | None) -> None:
        """Set state and brokers of a key, and update the counts that depend on them."""
        was = key.state
        key.was = was
        key.state = state
        key.version = version
        if version > self.highest:
            self.highest = version
        if self.changed is not None:
            self.changed[key] = None
        if key.lower < 0:
            return
        key.from_ = from_
        key.to = to
        if state in IN_FLIGHT:
            self.in_flight[key] = None
        elif was in IN_FLIGHT:
            del self.in_flight[key]
        after = to if state is _ASSIGNED or state is _ASSIGNING else key.bound_for
        if key.bound != after:
            self._count(key.bound, after)
            key.bound = after
        ring = key.ring
        if ring is None:
            return
        if version > ring.highest:
            ring.highest = version
        if state is not was:
            ring.owned += (state in _OWNED) - (was in _OWNED)
            if state is _DELETED:
                ring.live.pop(key.lower, None)
                ring.parents.append(key)

    def _count(self, before: str | None, after: str | None) -> None:
        if before is not None:
            left = self.load[before] - 1
            if left:
                self.load[before] = left
            else:
                del self.load[before]
        if after is not None:
            self.load[after] = self.load.get(after, 0) + 1

    def derive(self, parent: KeyState) -> list[tuple[bytes, KeyState]]:
        """Derive the children of an Active namespace or of a split (protocol.md section 2); returns them with their names."""
        bounds = parent.bounds
        ring = parent.ring
        if bounds is None or ring is None:
            return []
        split = parent.lower >= 0
        state = State.ASSIGNED if split else State.UNASSIGNED
        version = parent.version + 1 if split else parent.version
        owner = parent.from_ if split else None
        server = parent.server if split else None
        prefix = parent.namespace + "/"
        keys = self.keys
        children: dict[int, KeyState] = {}
        named: list[tuple[bytes, KeyState]] = []
        for index, range_ in enumerate(children_of(bounds)):
            name = (prefix + range_).encode()
            lower = bounds[index]
            child = keys.get(name)
            if child is None:
                # All at once and not by `place`: 32,768 of them come in one step.
                child = keys[name] = KeyState(parent.namespace, lower, bounds[index + 1], name)
                child.state, child.version, child.to, child.bound = state, version, owner, owner
                child.ring = ring
            else:
                child.ring = ring
                self.place(child, state, version, None, owner)
                child.forced, child.bounds, child.intent, child.more = False, None, None, None
                ring.owned -= split
                self._count(owner, None)
            children[lower] = child
            named.append((name, child))
            child.record_id = parent.record_id
            child.derived = True
            child.writer = parent.writer
            child.server = server
            child.operation = parent.operation
            child.flow = parent.flow
            child.offset = parent.offset
        ring.highest = max(ring.highest, version)
        self.highest = max(self.highest, version)
        if self.changed is not None:
            self.changed.update(dict.fromkeys(children.values()))
        if owner is not None and children:
            self.load[owner] = self.load.get(owner, 0) + len(children)
        if split:
            ring.owned += len(children)
        ring.live.update(children)
        return named

    def _end_ring(self, ring: Ring) -> None:
        keys, open_debts = self.keys, self.ledger.open
        for member in (*ring.live.values(), *ring.parents):
            if member.bound_for is not None:
                self._count(member.bound_for, None)
            self.in_flight.pop(member, None)
            member.forget()
            if self.changed is not None:
                self.changed[member] = None
            if member.settled < 0 and member not in open_debts:
                del keys[member.key]

    def get(self, key: str) -> KeyState | None:
        state = self.keys.get(key.encode(errors="replace"))
        return state if state is not None and state.state is not None else None

    def existing(self) -> Iterator[KeyState]:
        """Every key with an accepted state: namespaces, live bundles, Deleted parents of existing namespaces."""
        return (key for key in self.keys.values() if key.state is not None)

    def live(self) -> Iterator[KeyState]:
        return (key for key in self.existing() if key.lower >= 0 and key.state is not State.DELETED)


def _intent(record: Record) -> tuple[str, ...] | None:
    children = record.raw.get("children")
    if type(children) is not list or not all(type(child) is str for child in children):
        return None
    return tuple(children)
