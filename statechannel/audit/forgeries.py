"""Forged records of a log: what shows that another process wrote them, and their list. Pure.

The log itself shows an id of another series (`statechannel.audit.id_series`), an id that another record has, a copy of a key's
accepted record whose content differs, an operation that begins a second time. The registry (`statechannel.audit.writers`) shows a
process that had left, never registered, or disowns the record. All parts of an audit look through the same check, so that a
record is marked in each of them or in none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from statechannel.audit.acknowledgements import acknowledged_sentence
from statechannel.audit.id_series import FOREIGN, IdSeries, UsedIds
from statechannel.audit.incident import seconds
from statechannel.audit.moments import LogWindow
from statechannel.audit.transfer.import_run import BROKER as IMPORT_BROKER
from statechannel.audit.writers import WritersHeard
from statechannel.protocol.bounded import remember
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.record import Record
from statechannel.protocol.states import IN_FLIGHT, Flow, State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View

PERSONS_CLAIM = (
    "Who requested something is the name that its client gave itself; Kafka's authorizer log knows the principal."
)
NOT_RECOGNIZED = "A forged record whose id continues the series of its process is not recognized by the log"
FORGED_MAX = 200
"""Number of newest forged records that are listed; all are counted."""


class ForgerySign(NamedTuple):
    """What shows that a record is forged.

    Attributes:
        code: `foreign-id`, `changed-copy`, `used-id`, `after-goodbye`, `disowned`, `unregistered` or `reused-operation`;
            of several signs the first.
        message: A sentence for each sign.
    """

    code: str
    message: str

    def at(self, offset: int) -> str:
        """As a sentence on the record at an offset."""
        return f"the record at offset {offset} is forged: {self.message}"


_FOREIGN_ID = ForgerySign("foreign-id", FOREIGN)
_OPERATIONS_MAX = 20_000
_BEGINS = frozenset({State.RELEASING, State.SPLITTING})


class ForgedStart(NamedTuple):
    """The forged record that began a move; the records that brokers wrote in answer to it belong to the move.

    Attributes:
        operation: The id that it bears; it may be that of another operation.
        known_since: Offset of the first record of an earlier operation with that id; None without one.
    """

    partition: int
    offset: int
    operation: str | None
    known_since: int | None
    sign: ForgerySign

    @property
    def place(self) -> str:
        """Its name among operations."""
        return f"{self.partition}@{self.offset}"


@dataclass(slots=True)
class _Begun:
    """An operation, by its records in one namespace.

    Attributes:
        ended: Offset at which its subject came to rest; None: it is in flight.
    """

    offset: int
    key: str
    deletes: bool
    ended: int | None = None


class ForgeryCheck:
    """Looks at each record of a log, in order. Several observers may share one: a record is looked at once.

    Args:
        writers: What the registry shows of the processes; None: it was not read.

    Attributes:
        writers: The same.
    """

    def __init__(self, writers: WritersHeard | None = None) -> None:
        self.writers = WritersHeard() if writers is None else writers
        self._series = IdSeries()
        self._place = (-1, -1)
        self._sign: ForgerySign | None = None
        self._start: ForgedStart | None = None
        self._starts: dict[str, ForgedStart] = {}
        self._begun: dict[tuple[str, str], _Begun] = {}
        self._used = UsedIds()

    def sign(self, record: RecordRead, judgement: Judgement) -> ForgerySign | None:
        """What shows that a judged record is forged; None: nothing does."""
        self._take(record, judgement)
        return self._sign

    def start(self, record: RecordRead, judgement: Judgement) -> ForgedStart | None:
        """The forged record that began the move to which an accepted record belongs; None: no forged one did.

        Whatever id such a move bears, who requested the operation of that id did not request it.
        """
        self._take(record, judgement)
        return self._start

    def taken(self, record: RecordRead, decoded: Record) -> None:
        """Learn the series from a record of a joining reader."""
        place = (record.partition, record.offset)
        if place != self._place:
            self._place, self._sign, self._start = place, None, None
            self._series.is_foreign(record, decoded)

    def _take(self, record: RecordRead, judgement: Judgement) -> None:
        place = (record.partition, record.offset)
        if place == self._place:
            return
        self._place = place
        decoded, key = judgement.record, judgement.key
        signs = [] if decoded is None else list(self._look(record, judgement, decoded))
        self._sign = None
        if signs:
            self._sign = ForgerySign(signs[0].code, "; ".join(sign.message for sign in signs))
        self._start = None
        if judgement.verdict is Verdict.ACCEPTED and decoded is not None and key is not None:
            self._start = self._follow(record, key)
            if self._start is None:
                self._note_operation(record, decoded, key)

    def _look(self, record: RecordRead, judgement: Judgement, decoded: Record) -> Iterator[ForgerySign]:
        key = judgement.key
        if self._series.is_foreign(record, decoded):
            yield _FOREIGN_ID
        if judgement.verdict is Verdict.DUPLICATE and key is not None and key.writer is not None:
            differing = "; ".join(_differences(decoded, key))
            if differing:
                yield ForgerySign("changed-copy", f"same id as offset {key.offset}, other content ({differing})")
        else:
            used = self._used.use(record, decoded)
            if used:
                yield ForgerySign("used-id", used)
        if decoded.broker == IMPORT_BROKER:
            return
        process, at_ms = (decoded.broker, decoded.incarnation), record.timestamp_ms
        late_ms = self.writers.after_goodbye_ms(process, at_ms)
        if late_ms is not None:
            message = f"written {seconds(late_ms)} after the goodbye of the process of {decoded.broker} that it names"
            yield ForgerySign("after-goodbye", message)
        if self.writers.is_disowned(process, record.partition, record.offset):
            yield ForgerySign("disowned", f"{decoded.broker} has read it, and says that it did not write it")
        if self.writers.never_registered(process, at_ms):
            yield ForgerySign(
                "unregistered", f"the registry never had a heartbeat of the process of {decoded.broker} that it names"
            )
        if judgement.verdict is Verdict.ACCEPTED and key is not None:
            yield from self._begun_again(decoded, key)

    def _begun_again(self, decoded: Record, key: KeyState) -> Iterator[ForgerySign]:
        """A broker begins an operation once; only the deletion of a namespace releases several bundles."""
        if key.operation is None or decoded.state not in _BEGINS or key.was in IN_FLIGHT:
            return
        begun = self._begun.get((key.namespace, key.operation))
        if begun is None or (begun.deletes and begun.ended is None):
            return
        of = "" if begun.key == key.name else f" of {begun.key}"
        ended = "is in flight" if begun.ended is None else f"ended at offset {begun.ended}"
        yield ForgerySign(
            "reused-operation",
            f"it begins with the id of an operation{of} that began at offset {begun.offset} and {ended}",
        )

    def _follow(self, record: RecordRead, key: KeyState) -> ForgedStart | None:
        held = self._starts.pop(key.name, None)
        start: ForgedStart | None = None
        if key.was in IN_FLIGHT:
            if held is not None and key.operation in (held.operation, None):
                start = held
        elif self._sign is not None:
            begun = None if key.operation is None else self._begun.get((key.namespace, key.operation))
            known_since = None if begun is None else begun.offset
            start = ForgedStart(record.partition, record.offset, key.operation, known_since, self._sign)
        if start is not None and key.state in IN_FLIGHT:
            self._starts[key.name] = start
        return start

    def _note_operation(self, record: RecordRead, decoded: Record, key: KeyState) -> None:
        if key.operation is None:
            return
        name = key.namespace, key.operation
        begun = self._begun.get(name)
        if begun is None:
            deletes = decoded.text("flow") == Flow.NAMESPACE
            begun = _Begun(record.offset, key.namespace if deletes else key.name, deletes)
            remember(self._begun, name, begun, _OPERATIONS_MAX)
        if begun.key == key.name and key.state not in IN_FLIGHT:
            begun.ended = record.offset


def _differences(copy: Record, key: KeyState) -> Iterator[str]:
    """What differs between a copy of the accepted record and the state that this made; the rest of its content is not kept."""
    writer = key.writer
    pairs: tuple[tuple[str, object, object], ...] = (
        ("", copy.state, key.state),
        ("version", copy.version, key.version),
        ("from", copy.from_, key.from_),
        ("to", copy.to, key.to),
        ("by", copy.broker, None if writer is None else writer.broker),
        ("process", copy.incarnation, None if writer is None else writer.incarnation),
        ("operation", copy.text("operation"), key.operation),
    )
    if writer is not None and writer.broker != copy.broker:
        pairs = tuple(pair for pair in pairs if pair[0] != "process")
    for name, other, accepted in pairs:
        if other != accepted:
            yield f"{name} {_text(other)}, not {_text(accepted)}".lstrip()
    if copy.forced != key.forced:
        yield "forced" if copy.forced else "not forced"
    if tuple(copy.children or ()) != tuple(key.children or ()):
        yield "other children"


def _text(value: object) -> str:
    return "-" if value is None else str(value)


class ForgeriesFound:
    """Collects the forged records.

    Args:
        check: Shared with other observers.

    Attributes:
        records: Their number.
        newest: For the JSON output.
    """

    def __init__(self, check: ForgeryCheck | None = None) -> None:
        self._check = ForgeryCheck() if check is None else check
        self.records = 0
        self.newest: list[dict[str, Any]] = []

    def taken(self, record: RecordRead, decoded: Record) -> None:
        """Learn the series of ids from a record of a joining reader."""
        self._check.taken(record, decoded)

    def joined(self, view: View, *, sure: bool) -> None:
        """Ignore the view of a joining reader: it has no ids of processes."""

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        sign = self._check.sign(record, judgement)
        decoded = judgement.record
        if sign is None or decoded is None:
            return
        self.records += 1
        self.newest.append(
            {
                "partition": record.partition,
                "offset": record.offset,
                "timestamp_ms": record.timestamp_ms,
                "key": (record.key or b"").decode(errors="replace"),
                "verdict": judgement.verdict.value,
                "state": decoded.state.value,
                "version": decoded.version,
                "from": decoded.from_,
                "to": decoded.to,
                "by": decoded.broker,
                "operation": decoded.text("operation"),
                "forged": sign.code,
                "note": sign.message,
            }
        )
        if len(self.newest) >= 2 * FORGED_MAX:
            self.newest = _newest(self.newest)


def as_rows(forgeries: ForgeriesFound) -> dict[str, Any]:
    """The forged records of one part of a log, to be merged with others."""
    return {"records": forgeries.records, "newest": _newest(forgeries.newest)}


def put_together(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge several parts: the number, and the newest of all."""
    records, newest = 0, list[dict[str, Any]]()
    for part in parts:
        records += part["records"]
        newest = _newest([*newest, *part["newest"]])
    return {"records": records, "newest": newest}


def select_forged(forgeries: Mapping[str, Any], window: LogWindow, by: str | None) -> dict[str, Any]:
    """Only those in the window, and in the name of this broker; None: any. Older ones than are listed count with all."""
    if window.is_whole and by is None:
        return dict(forgeries)
    rows = [
        row for row in forgeries["newest"] if window.has(row["offset"], row["timestamp_ms"]) and by in (None, row["by"])
    ]
    return {"records": len(rows), "newest": rows}


def _newest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["timestamp_ms"], row["partition"], row["offset"]))[-FORGED_MAX:]


def forged_sentence(row: Mapping[str, Any]) -> str:
    """A row as a sentence."""
    what = f"{row['state']} v{row['version']} of {row['key']} at partition {row['partition']}, offset {row['offset']}"
    seen = row.get("acknowledged")
    suffix = "" if seen is None else f"; {acknowledged_sentence(seen)}"
    return f"forged in the name of {row['by']}: {what}, {row['verdict']}; {row['note']}{suffix}"
