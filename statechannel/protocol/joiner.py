"""Lenient reader of a joining member, and the conversion of its records into a view (protocol.md sections 4 and 5)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from statechannel.protocol import codec
from statechannel.protocol.bundle import parse_key, partition_of, range_name
from statechannel.protocol.cold_start_marks import HeadMark, Mark
from statechannel.protocol.gaps import could_be_cleaned
from statechannel.protocol.keys import KeyState, Ring, Writer
from statechannel.protocol.record import NEWEST_FORMAT, Kind, Record
from statechannel.protocol.resolver import children_fit
from statechannel.protocol.states import State
from statechannel.protocol.unknown_fields import unknown_in
from statechannel.protocol.view import View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statechannel.protocol.bundle import KeyParts
    from statechannel.protocol.cold_start_marks import Marks
    from statechannel.protocol.log import RecordRead


LATE_MAX: Final = 4_000
"""Records that a joiner decodes late, at most: to decode them must not last, either."""
LATE_MAX_BYTES: Final = 8 * 2**20
REFUSED_RECORDS_MAX: Final = 4_096
"""Records until the next comparison with a voucher that held other states: each one hashes the whole view."""


class HeldRecord(NamedTuple):
    """The record that a joiner holds for a key."""

    offset: int
    record: Record


class Joiner:
    """Reads one partition leniently: held records may be wrong until the join is complete (R4).

    Attributes:
        last: Offset of the last record of every key of this partition.
        nulls: Keys whose last record is a null.
        applied: Offset of the last record read; -1 before the first.
        stopped: Newer format that stopped the reader; 0 if none did.
    """

    def __init__(self, partition: int, partitions: int, newest_format: int = NEWEST_FORMAT) -> None:
        self.partition = partition
        self.partitions = partitions
        self.newest_format = newest_format
        self.held: dict[bytes, HeldRecord] = {}
        self.last: dict[bytes, int] = {}
        self.nulls: set[bytes] = set()
        self.applied = -1
        self.stopped = 0
        self._parts: dict[bytes, KeyParts] = {}
        self._late: dict[bytes, list[tuple[int, bytes | None]]] = {}
        self._late_records = self._late_bytes = 0

    def read(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Apply a record, or skip it (R4)."""
        if self.stopped:
            return
        parts = self._parts.get(key) or self._known(key)  # type: ignore[arg-type]  # nothing is known under None
        if parts is None:
            self._skip(offset, key, value)
            return
        if value is None:
            self.held.pop(key, None)  # type: ignore[arg-type]
            self.nulls.add(key)  # type: ignore[arg-type]
        else:
            self.nulls.discard(key)
            forms = codec.BUNDLE_FORMS if parts.lower >= 0 else codec.NAMESPACE_FORMS
            record = codec.decode_form(value, forms, newest=self.newest_format)
            if isinstance(record, Record):
                if record.children is None or possible(record, parts):
                    self.take(offset, key, record)  # type: ignore[arg-type]
            elif isinstance(record, codec.NewerFormat):
                self.stopped = record.format
                return
        self.last[key] = offset  # type: ignore[index]
        self.applied = offset

    def read_late(self, records: Sequence[RecordRead]) -> None:
        """As `read`, for records in known formats, and decoded later: mostly the newest record of a key is enough.

        Until the next `settle` their effect on `held` is not there.
        """
        known, last, nulls = self._parts, self.last, self.nulls
        for record in records:
            _, _, offset, _, key, value = record
            if key not in known and self._known(key) is None:
                continue
            late = self._late.get(key)  # type: ignore[arg-type]  # nothing is known under None
            if late is None:
                self._late[key] = [(offset, value)]  # type: ignore[index]
            else:
                late.append((offset, value))
            last[key] = offset  # type: ignore[index]
            if value is None:
                nulls.add(key)  # type: ignore[arg-type]
            else:
                self._late_bytes += len(value)
                if nulls:
                    nulls.discard(key)
            self._late_records += 1
            if self._late_records >= LATE_MAX or self._late_bytes >= LATE_MAX_BYTES:
                self.settle()
        if records:
            self.applied = records[-1].offset

    def settle(self) -> None:
        """Decode what was read late, as far as it matters for `held`.

        From the newest record of a key back to one that counts whatever was held: it has seen the one before it (R4).
        """
        late, self._late = self._late, {}
        self._late_records = self._late_bytes = 0
        for key, records in late.items():
            parts = self._parts[key]
            forms = codec.BUNDLE_FORMS if parts.lower >= 0 else codec.NAMESPACE_FORMS
            newest: list[tuple[int, Record]] = []
            while records:
                offset, value = records.pop()
                if value is None:
                    self.held.pop(key, None)
                    break
                record = codec.decode_form(value, forms, newest=self.newest_format)
                if isinstance(record, Record) and (record.children is None or possible(record, parts)):
                    newest.append((offset, record))
                    if records and record.covers >= records[-1][0]:
                        break
            while newest:
                offset, record = newest.pop()
                self.take(offset, key, record)

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

    def hold(self, key: bytes, held: HeldRecord) -> None:
        self._known(key)
        self.held[key] = held

    def take(self, offset: int, key: bytes, record: Record) -> None:
        """Hold a record of a key of this partition iff it is newer than the held one, or has seen it (R4)."""
        self._known(key)
        held = self.held.get(key)
        if held is not None and record.covers < held.offset:
            least = held.record.version + (record.kind is Kind.PROPOSAL)
            if record.version < least:
                return
        self.held[key] = HeldRecord(offset, record)

    def view(self) -> View:
        """Walk the tree from the namespaces (R5): the accepted states as known to this joiner.

        The last record of each key counts as its settling one.
        """
        self.settle()
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
                key = view.keys[name] = KeyState(parts.namespace, parts.lower, parts.upper, name)
            key.settled = offset
            key.purged = name in self.nulls
        return view

    def _walk(self, view: View, name: bytes, parts: KeyParts, held: HeldRecord) -> None:
        root = view.keys[name] = KeyState(parts.namespace, -1, -1, name)
        if held.record.state is State.ACTIVE:
            root.ring = Ring(parts.namespace, held.record.version)
        _restore(view, root, held)
        open_parents = [root]
        while open_parents:
            parent = open_parents.pop()
            if parent.bounds is None or parent.ring is None:
                continue
            for child_name, child in view.derive(parent):
                own = self.held.get(child_name)
                if own is None or own.record.version < child.version or own.record.state is State.ABSENT:
                    continue
                _restore(view, child, own)
                if child.state is State.DELETED:
                    open_parents.append(child)


def possible(record: Record, parts: KeyParts) -> bool:
    """Whether the record is acceptable on its face: its children cover its key (protocol.md section 4)."""
    if record.children is None:
        return True
    if parts.is_namespace:
        return children_fit(record, is_namespace=True)
    return children_fit(record, parts.lower, parts.upper)


def _restore(view: View, key: KeyState, held: HeldRecord) -> None:
    """Make a held record the key's state. An assert has the accepted id, but not the writer of the accepted record."""
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
    """The serving process named by an assert, for information: without it the owner resumes, and lookups wait."""
    server = record.raw.get("server")
    if type(server) is not dict:
        return None
    broker, incarnation = server.get("broker"), server.get("incarnation")
    if not codec.is_broker_id(broker) or not codec.is_broker_id(incarnation):
        return None
    return Writer(broker, incarnation)


class Aside:
    """One lenient read of a partition, up to the offset that a heartbeat vouches for (protocol.md section 5, steps 1 to 3).

    Everything through this offset N is read leniently, the rest is judged strictly. N is known late, so the
    records above the highest N so far are kept here; records too old to be judged by any possible N are applied at once.

    Attributes:
        clean_to: M: the highest offset that a heartbeat of this read vouches for; -1 without one.
        voucher: That heartbeat.
        refused_to: M has to reach this offset before the next comparison with the voucher that was refused.
        refused: Incarnation of that voucher.
        floor: Minimum useful offset: those up to here were applied, or are before a mark that counts.
    """

    def __init__(
        self,
        joiner: Joiner,
        marks: Marks,
        *,
        half_lag_ms: float,
        kept_max: int,
        kept_max_bytes: int,
        newest_format: int,
    ) -> None:
        self.joiner = joiner
        self.clean_to = -1
        self.voucher: Record | None = None
        self.refused_to = -1
        self.refused: str | None = None
        self._refusals = 0
        self.floor = -1
        self._marks = marks
        self._half_lag_ms = half_lag_ms
        self._kept_max = kept_max
        self._kept_max_bytes = kept_max_bytes
        self._newest_format = newest_format
        self._kept: deque[RecordRead] = deque()
        self._bytes = 0
        self._newest_ms = 0
        self._applied: tuple[int, int | None] = (-1, None)

    def read(self, record: RecordRead) -> None:
        self._kept.append(record)
        self._bytes += len(record.value or b"")
        self._control_read(record)

    def _control_read(self, record: RecordRead) -> None:
        control = self._marks.control_read(record, self._newest_format)
        if isinstance(control, Mark | HeadMark):
            # Who vouches has to have read the mark: before it, a member that was only paused may hold another history.
            self.floor = max(self.floor, record.offset)
        elif isinstance(control, Record) and self.clean_to < control.clean_to < record.offset:
            self.clean_to = control.clean_to
            self.voucher = control

    def refuse(self, later: list[RecordRead]) -> None:
        """The voucher holds other states than were read: wait for a heartbeat further on, ever longer.

        Args:
            later: What `cut` returned.
        """
        self._kept = deque(later)
        self._refusals += 1
        self.refused = None if self.voucher is None else self.voucher.incarnation
        self.refused_to = self.clean_to + min(2**self._refusals, REFUSED_RECORDS_MAX)

    def read_many(
        self, records: Sequence[RecordRead], position: int, end_offset: int, controls: list[RecordRead]
    ) -> int:
        """Apply the first of these records as `read` and `release` would one by one; returns their number.

        It stops before the last record below the end as of the start, and before the mark of a cold start or a newer format.

        Args:
            position: The next offset.
            controls: Gets those of the applied records that have a control key.
        """
        kept, newest_format, newest_ms = self._kept, self._newest_format, self._newest_ms
        taken = size_bytes = 0
        for record in records:
            _, _, offset, timestamp_ms, key, value = record
            if not position <= offset < end_offset - 1 or key == codec.COLD_START_KEY:
                break
            if codec.newer_format(key, value, newest_format):
                break
            kept.append(record)
            if value is not None:
                size_bytes += len(value)
            if timestamp_ms > newest_ms:
                newest_ms = timestamp_ms
            if key is not None and key[:1] == b"!":
                controls.append(record)
                self._control_read(record)
            position = offset + 1
            taken += 1
        self._bytes += size_bytes
        self._newest_ms = newest_ms
        self.release(end_offset)
        return taken

    def release(self, end_offset: int) -> bool:
        """Apply records that need not wait, below the end as of the start; False if the rest exceeds the limit."""
        kept, ripe = self._kept, []
        if kept and kept[-1].offset < end_offset:
            self._newest_ms = max(self._newest_ms, kept[-1].timestamp_ms)
        useless_ms = self._newest_ms - self._half_lag_ms
        through = max(self.floor, self.clean_to)
        count, size_bytes = len(kept), self._bytes
        while kept and (first := kept[0]).offset < end_offset:
            over = count > self._kept_max or size_bytes > self._kept_max_bytes
            if first.offset > through and first.timestamp_ms > useless_ms and not over:
                break
            ripe.append(kept.popleft())
            count -= 1
            if first.value is not None:
                size_bytes -= len(first.value)
        self._apply(ripe, size_bytes)
        return count <= self._kept_max and size_bytes <= self._kept_max_bytes

    def _apply(self, records: list[RecordRead], kept_bytes: int) -> None:
        """Apply what was kept: who reads leniently stopped before a newer format, so that it need not be decoded at once."""
        self._bytes = kept_bytes
        if records:
            self.joiner.read_late(records)
            self.floor = max(self.floor, records[-1].offset)
            self._applied = records[-1].offset, records[-1].timestamp_ms

    def vouched_by_log(self, ended_ms: float) -> bool:
        """Whether M can be N without a further heartbeat: nothing above it can have been compacted, or hide records.

        Args:
            ended_ms: Kafka's clock when the read reached the end as of its start.
        """
        if self.clean_to < max(self.floor, 0):
            return False
        offset, before_ms = self._applied
        for record in self._kept:
            if record.offset > self.clean_to:
                is_gap = max(offset, self.clean_to) + 1 < record.offset
                if is_gap and could_be_cleaned(before_ms, ended_ms, self._half_lag_ms):
                    return False
                if could_be_cleaned(record.timestamp_ms, ended_ms, self._half_lag_ms):
                    return False
            offset, before_ms = record.offset, record.timestamp_ms
        return True

    def vouched_for(self, end_offset: int) -> bool:
        """Whether a writer that had read everything up to the start saw no debt."""
        return self.clean_to >= max(end_offset - 1, self.floor)

    def cut(self, through: int) -> list[RecordRead]:
        """Apply everything through an offset leniently; returns the rest."""
        kept, ripe = self._kept, []
        while kept and kept[0].offset <= through:
            ripe.append(kept.popleft())
        later, self._kept = [*kept], deque()
        self._apply(ripe, sum(len(record.value or b"") for record in later))
        return later
