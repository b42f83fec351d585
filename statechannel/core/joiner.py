"""The lenient reader of a joining member, and the walk that turns what it holds into a view (protocol.md sections 4 and 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from statechannel.core import codec
from statechannel.core.bundle import parse_key, partition_of, range_name
from statechannel.core.keys import KeyState, Ring, Writer
from statechannel.core.record import NEWEST_FORMAT, Kind, Record
from statechannel.core.resolver import children_fit
from statechannel.core.states import State
from statechannel.core.unknown_fields import unknown_in
from statechannel.core.view import View

if TYPE_CHECKING:
    from statechannel.core.bundle import KeyParts


class Held(NamedTuple):
    """The record that a joiner holds for a key."""

    offset: int
    record: Record


class Joiner:
    """Reads one partition leniently: what was taken may be wrong until the join is complete (R4).

    Attributes:
        held: Record held for each key.
        last: Offset of the last record of every key of this partition, whatever it was.
        nulls: Keys whose last record is a null.
        applied: Offset of the last record read; -1 before the first.
        stopped: Newer format that stopped the reader; 0 if none did.
    """

    def __init__(self, partition: int, partitions: int, newest_format: int = NEWEST_FORMAT) -> None:
        self.partition = partition
        self.partitions = partitions
        self.newest_format = newest_format
        self.held: dict[bytes, Held] = {}
        self.last: dict[bytes, int] = {}
        self.nulls: set[bytes] = set()
        self.applied = -1
        self.stopped = 0
        self._parts: dict[bytes, KeyParts] = {}

    def read(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Take a record in, or skip it (R4)."""
        if self.stopped:
            return
        parts = self._known(key)
        if parts is None:
            self._skip(offset, key, value)
            return
        if value is None:
            self.held.pop(key, None)  # type: ignore[arg-type]
            self.nulls.add(key)  # type: ignore[arg-type]
        else:
            self.nulls.discard(key)
            record = codec.decode(value, namespace=parts.is_namespace, newest=self.newest_format)
            if isinstance(record, codec.NewerFormat):
                self.stopped = record.format
                return
            if isinstance(record, Record) and possible(record, parts):
                self.take(offset, key, record)  # type: ignore[arg-type]
        self.last[key] = offset  # type: ignore[index]
        self.applied = offset

    def _known(self, key: bytes | None) -> KeyParts | None:
        if key is None or key[:1] == b"!":
            return None
        parts = self._parts.get(key)
        if parts is None:
            parts = parse_key(key)
            if parts is None or partition_of(parts.namespace, self.partitions) != self.partition:
                return None
            self._parts[key] = parts
        return parts

    def _skip(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        if value is not None and not (key is not None and key[:1] == b"!"):
            loaded = codec.load_object(value, self.newest_format)
            if isinstance(loaded, codec.NewerFormat):
                self.stopped = loaded.format
                return
        self.applied = offset

    def hold(self, key: bytes, held: Held) -> None:
        """Begin with a record that is held already."""
        self._known(key)
        self.held[key] = held

    def take(self, offset: int, key: bytes, record: Record) -> None:
        """Take a record of a key of this partition iff it is newer than the one held, or has seen it (R4)."""
        self._known(key)
        held = self.held.get(key)
        if held is not None and record.covers < held.offset:
            least = held.record.version + (record.kind is Kind.PROPOSAL)
            if record.version < least:
                return
        self.held[key] = Held(offset, record)

    def view(self) -> View:
        """Walk the tree from the namespaces (R5): the accepted states as far as this joiner can know them.

        The last record of each key counts as the one that settled it.
        """
        view = View(self.partition, self.partitions, self.newest_format)
        view.applied = self.applied
        for name, held in self.held.items():
            parts = self._parts[name]
            if parts.is_namespace and held.record.state is not State.ABSENT:
                self._walk(view, name, parts, held)
        for name, offset in self.last.items():
            key = view.keys.get(name)
            if key is None:
                parts = self._parts[name]
                key = view.keys[name] = KeyState(parts.namespace, parts.lower, parts.upper)
            key.settled = offset
            key.purged = name in self.nulls
        return view

    def _walk(self, view: View, name: bytes, parts: KeyParts, held: Held) -> None:
        root = view.keys[name] = KeyState(parts.namespace, -1, -1)
        if held.record.state is State.ACTIVE:
            root.ring = Ring(parts.namespace, held.record.version)
        _restore(view, root, held)
        open_parents = [root]
        while open_parents:
            parent = open_parents.pop()
            if parent.bounds is None or parent.ring is None:
                continue
            view.derive(parent)
            for index in range(len(parent.bounds) - 1):
                child = parent.ring.live[parent.bounds[index]]
                own = self.held.get(child.key)
                if own is None or own.record.version < child.version or own.record.state is State.ABSENT:
                    continue
                _restore(view, child, own)
                if child.state is State.DELETED:
                    open_parents.append(child)


def possible(record: Record, parts: KeyParts) -> bool:
    """Whether anybody could accept the record on its face: its children cover its key (protocol.md section 4)."""
    if record.children is None:
        return True
    if parts.is_namespace:
        return children_fit(record, is_namespace=True)
    return children_fit(record, parts.lower, parts.upper)


def _restore(view: View, key: KeyState, held: Held) -> None:
    """Make a held record the key's state. An assert tells the accepted id, but not who wrote the accepted record."""
    record = held.record
    if record.kind is Kind.PROPOSAL:
        if record.base != key.accepted_id:
            key.server = None  # records between were cleaned away, and with them who resumed
        view.accept(record, key, held.offset, derive=False)
        return
    view.place(key, record.state, record.version, record.from_, record.to)
    parent_id, _, tail = (record.base or "").partition("/")
    key.derived = bool(tail) and key.lower >= 0 and tail == range_name(key.lower, key.upper)
    key.record_id = parent_id if key.derived else record.base
    key.writer = None
    key.server = _server(record)
    key.forced = True
    key.operation = record.text("operation")
    key.flow = record.text("flow")
    key.offset = held.offset
    key.bounds = record.bounds() if record.children is not None else None
    key.intent = None
    key.more = unknown_in(record.raw)


def _server(record: Record) -> Writer | None:
    """The serving process as an assert tells it, for information: without it the owner resumes, and lookups wait."""
    server = record.raw.get("server")
    if type(server) is not dict:
        return None
    broker, incarnation = server.get("broker"), server.get("incarnation")
    if not codec.is_broker_id(broker) or not codec.is_broker_id(incarnation):
        return None
    return Writer(broker, incarnation)
