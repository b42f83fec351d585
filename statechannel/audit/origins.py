"""Operations of a log, and their origins: the request, decision or rule that started each. Pure.

The log shows what was done, not who requested it: that is in requests of commands, decisions of the balancer and, for a broker
that shuts down, its heartbeats. Each of these topics is an `OriginTopic` here. An operation in none of them that follows no
broker rule (`repair`, `lookup`) has no origin: its embedder started it, or a client that should not have write access to the
topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from statechannel.audit.moments import LogWindow
from statechannel.audit.transfer.import_run import decode_mark
from statechannel.engine.operation_fold import Operation, OperationFold
from statechannel.protocol.bounded import remember
from statechannel.protocol.bundle import parse_key
from statechannel.protocol.codec import IMPORT_KEY
from statechannel.protocol.log import RecordRead
from statechannel.protocol.record import Record
from statechannel.protocol.states import IN_FLIGHT, State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View
from statechannel.replay.part import JoinObserver
from statechannel.stories.bundle import contains, meant

BEGUN_MAX = 100_000
"""Maximum number of operations that are kept; older ones are only counted."""


class Origin(StrEnum):
    DECISION = "decision"
    REQUEST = "request"
    SHUTDOWN = "shutdown"
    IMPORT = "import"
    REPAIR = "repair"
    LOOKUP = "lookup"
    NONE = "none"
    UNKNOWN = "unknown"


MEANING: Mapping[Origin, str] = {
    Origin.DECISION: "a decision of the balancer names it",
    Origin.REQUEST: "a request has its id",
    Origin.SHUTDOWN: "its broker was shutting down, by its heartbeats, and handed over",
    Origin.IMPORT: "an import's mark names it",
    Origin.REPAIR: "a rule of the leader: repair, as its record is forced",
    Origin.LOOKUP: "a rule of the leader: a lookup of an unserved bundle",
    Origin.NONE: "no origin: the embedder of its writer started it, or another client wrote to the topic",
    Origin.UNKNOWN: "no origin in the available records, but these are incomplete, or were not read",
}


@dataclass(frozen=True, slots=True)
class OperationCause:
    """The cause of an operation, from one of the topics.

    Attributes:
        id, by: Of the request or decision, and its author.
        what: Command, or subject of a decision.
        name: Bundle, topic or namespace that it concerns.
        states: Possible first states of its operations; empty: any.
    """

    origin: Origin
    id: str
    by: str
    at_ms: int
    what: str
    name: str | None = None
    states: frozenset[State] = frozenset()
    destination: str | None = None


class OriginTopic(Protocol):
    """One topic with causes of operations, complete from a time on; 0: from the beginning."""

    @property
    def name(self) -> str: ...
    @property
    def since_ms(self) -> int: ...

    def asker(self, begun: Mapping[str, Any]) -> OperationCause | None:
        """Its cause for an operation, a row of `Origins`, by id or otherwise; whether that fits is checked elsewhere."""
        ...


class _Place(NamedTuple):
    """The operation of an in-flight state.

    Attributes:
        row: Its row; empty: it began before the first judged record.
        operation: None if its record has none.
    """

    row: str
    operation: str | None = None

    @property
    def alone(self) -> str:
        """The row of a move without an operation, which its reactions continue."""
        return self.row if self.operation is None else ""


class Origins(JoinObserver):
    """Collects the start of each operation: its first accepted record, or that of a move without an operation.

    Attributes:
        rows: By operation, or by place without one, for the JSON output; without origins yet.
        left_out: Number of operations beyond the limit.
        imports: Operations named by marks of imports.
    """

    def __init__(self, begun_max: int = BEGUN_MAX) -> None:
        self._max = begun_max
        self._open: dict[str, _Place] = {}  # by key that is under way
        self.rows: dict[str, dict[str, Any]] = {}
        self.left_out = 0
        self.imports: set[str] = set()

    def joined(self, view: View, *, sure: bool) -> None:
        """Start from a joining reader's view: its in-flight operations began before."""
        if sure:
            self._open.update(
                (key.name, _Place("", key.operation)) for key in view.existing() if key.state in IN_FLIGHT
            )

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        decoded, key = judgement.record, judgement.key
        if record.key == IMPORT_KEY:
            mark = decode_mark(record.value)
            if mark is not None:
                self.imports.add(mark.operation)
        if judgement.verdict is not Verdict.ACCEPTED or decoded is None or key is None:
            return
        under_way = self._open.pop(key.name, None) if key.was in IN_FLIGHT else None
        place = key.operation or (under_way or _Place("")).alone
        row = self.rows.get(place)
        if row is None:
            place = place or f"{record.partition}@{record.offset}"
            # Under way, and with a row of its own: another operation's, whose id this record does not bear.
            cut_in = under_way is not None and under_way.row != "" and key.operation is None
            row = _row(record, decoded, key.operation, whole=key.was not in IN_FLIGHT or cut_in)
            row["follows"] = under_way.operation if under_way is not None and key.operation is None else None
            self._begin(place, row)
        else:
            row["records"] += 1
        if key.state in IN_FLIGHT:
            self._open[key.name] = _Place(place, key.operation)

    def _begin(self, place: str, row: dict[str, Any]) -> None:
        self.left_out += len(self.rows) >= self._max
        remember(self.rows, place, row, self._max)


def _row(record: RecordRead, decoded: Record, operation: str | None, *, whole: bool) -> dict[str, Any]:
    return {
        "operation": operation,
        "name": (record.key or b"").decode(),
        "partition": record.partition,
        "offset": record.offset,
        "began_ms": record.timestamp_ms,
        "whole": whole,
        "by": decoded.broker,
        "incarnation": decoded.incarnation,
        "state": decoded.state.value,
        "from": decoded.from_,
        "to": decoded.to,
        "forced": decoded.forced,
        "flow": decoded.text("flow"),
        "reason": decoded.text("reason"),
        "records": 1,
    }


def as_rows(origins: Origins) -> dict[str, Any]:
    """Rows of one part of a log, to be merged with others."""
    return {"rows": list(origins.rows.values()), "left_out": origins.left_out, "imports": sorted(origins.imports)}


def put_together(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Several parts as one: an operation may have records in several partitions, and begins with the earliest."""
    rows: dict[str, dict[str, Any]] = {}
    left_out, imports = 0, set()
    for part in parts:
        left_out += part["left_out"]
        imports.update(part["imports"])
        for row in part["rows"]:
            name = row["operation"] or f"{row['partition']}@{row['offset']}"
            held = rows.get(name)
            if held is not None:
                records = held["records"] + row["records"]
                first: dict[str, Any] = min(row, held, key=_order)
                row = {**first, "records": records}  # noqa: PLW2901 - the two as one
            rows[name] = row
    newest = sorted(rows.values(), key=_order)
    return {
        "rows": newest[-BEGUN_MAX:],
        "left_out": left_out + max(0, len(newest) - BEGUN_MAX),
        "imports": sorted(imports),
    }


def _order(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["began_ms"], row["partition"], row["offset"]


def origins_document(answer: Mapping[str, Any], sources: Sequence[OriginTopic]) -> dict[str, Any]:
    """Document for the JSON output: each operation with its origin, in the order of their starts.

    Args:
        answer: Of `put_together`.
        sources: The first with a fitting cause counts. Without sources no operation is reported as without an
            origin.
    """
    imports = frozenset(answer["imports"])
    rows = [_with_origin(row, imports, sources) for row in answer["rows"]]
    return {
        "counts": _counts(rows),
        "left_out": answer["left_out"],
        "sources": [{"name": source.name, "since_ms": source.since_ms} for source in sources],
        "operations": rows,
    }


def select_operations(document: Mapping[str, Any], window: LogWindow, by: str | None) -> dict[str, Any]:
    """Only the operations that began in the window, and that this broker began or this person requested; None: any."""
    rows = [
        row
        for row in document["operations"]
        if window.has(row["offset"], row["began_ms"]) and by in (None, row["by"], _person(row))
    ]
    return {**document, "counts": _counts(rows), "operations": rows}


def persons_of(document: Mapping[str, Any]) -> list[str]:
    return sorted({person for row in document["operations"] if (person := _person(row))})


def _person(row: Mapping[str, Any]) -> str:
    return row["asked"]["by"] if row["origin"] == Origin.REQUEST.value else ""


def _counts(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    counts = Counter(row["origin"] for row in rows)
    return {origin.value: counts[origin.value] for origin in Origin if counts[origin.value]}


def _with_origin(row: Mapping[str, Any], imports: frozenset[str], sources: Sequence[OriginTopic]) -> dict[str, Any]:
    asked: OperationCause | None = None
    doubts = [] if row["follows"] is None else [f"it continues {row['follows']}, but has no operation id"]
    askers = [asker for source in sources if (asker := source.asker(row)) is not None]
    for asker in askers:
        doubt = _doubt(row, asker)
        if doubt is not None:
            doubts.append(doubt)
        elif asked is None:
            asked = asker
    if asked is not None and asked.origin is Origin.SHUTDOWN:
        # A broker that shuts down asks for a place, and begins with its own Releasing.
        placed = [_doubt(row, asker) for asker in askers if _is_only_place(row, asker)]
        doubts = [doubt for doubt in doubts if doubt not in placed]
    origin = asked.origin if asked is not None else _by_itself(row, imports, sources, doubtful=bool(doubts))
    return {
        "origin": origin.value,
        "asked": None
        if asked is None
        else {"id": asked.id, "by": asked.by, "at_ms": asked.at_ms, "what": asked.what, "name": asked.name},
        "doubts": doubts,
        **row,
    }


def _by_itself(
    row: Mapping[str, Any], imports: frozenset[str], sources: Sequence[OriginTopic], *, doubtful: bool
) -> Origin:
    if row["operation"] in imports:
        return Origin.IMPORT
    if doubtful:
        return Origin.NONE
    if row["forced"]:
        return Origin.REPAIR
    if row["state"] == State.ASSIGNING.value and row["from"] is None:
        return Origin.LOOKUP
    known_since_ms = max((source.since_ms for source in sources), default=row["began_ms"] + 1)
    return Origin.NONE if row["whole"] and row["began_ms"] >= known_since_ms else Origin.UNKNOWN


def _is_only_place(row: Mapping[str, Any], asker: OperationCause) -> bool:
    """Whether a decision placed the bundle where an operation takes it."""
    return asker.origin is Origin.DECISION and _doubt({**row, "whole": False}, asker) is None


def _doubt(row: Mapping[str, Any], asker: OperationCause) -> str | None:
    """Why an operation does not match the cause with its id."""
    text = f"{asker.origin.value} {asker.id} requested {asker.what}"
    if row["whole"] and asker.states and State(row["state"]) not in asker.states:
        return f"{text}, but it begins with {row['state']}"
    if asker.name is not None and not concerns(asker.name, row["name"]):
        return f"{text} of {asker.name}"
    if asker.destination is not None and row["to"] not in (None, asker.destination):
        return f"{text} to {asker.destination}"
    return None


def concerns(asked: str, name: str) -> bool:
    """Whether a request on a bundle, topic or namespace may change this key."""
    try:
        wanted, _ = meant(asked)
    except ValueError:
        return False
    parts = parse_key(name.encode())
    if parts is None or parts.namespace != wanted.namespace:
        return False
    if wanted.is_namespace or parts.is_namespace:
        return wanted.is_namespace
    return contains(parts, wanted)


def without_origin(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Operations without an origin, or that do not match it."""
    return (row for row in document["operations"] if row["origin"] == Origin.NONE.value or row["doubts"])


@dataclass(slots=True)
class OperationTimes:
    """Log times of an operation's first and newest accepted records, and the writer of the first."""

    began_ms: int
    changed_ms: int
    by: str
    records: int = 1


class OperationsSeen:
    """Folds an audit's observations into operations, and keeps the newest of them."""

    def __init__(self, operations_max: int = 10_000) -> None:
        self._fold = OperationFold(operations_max)
        self.times: dict[str, OperationTimes] = {}

    @property
    def known(self) -> dict[str, Operation]:
        return self._fold.known

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        decoded, key = judgement.record, judgement.key
        if judgement.verdict is not Verdict.ACCEPTED or decoded is None or key is None:
            return
        self._fold.accepted(decoded, key, record.partition, record.offset)
        if key.operation is None:
            return
        times = self.times.get(key.operation)
        if times is None:
            self.times[key.operation] = OperationTimes(record.timestamp_ms, record.timestamp_ms, decoded.broker)
        else:
            times.changed_ms = max(times.changed_ms, record.timestamp_ms)
            times.records += 1
