"""State topic: plans, their progress and requests of operators, in one partition, and the fold of its records.

The order of the log decides who executes: the first claim holds the cluster until its executor leaves or expires.
Times are the log's own, so clocks of hosts do not matter. Policy delete, not compact: all events of a key count, not only the
last. Retention is long; an executor writes the plan again when it starts. A lost topic only ends control from other hosts:
the journal is on the executor's disk.
"""

from __future__ import annotations

import base64
import threading
import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from loaddata.samples.strict_json import Amount
from shedders.kafka_rebalance.execution.values import ExecutionEvent, ExecutionRequest, OperatorRequests
from statechannel.kafka.errors import KafkaAdapterError
from statechannel.kafka.tail import BlockingWriter, PartitionTail, Span, side_tail
from statechannel.kafka.topic_policy import plans_topic
from statechannel.kafka.topics import TopicAdmin, inspect, open_topics, refuse_unfit

if TYPE_CHECKING:
    from statechannel.kafka.client_settings import ClientSettings

VERSION: Final = 1
CHUNK_BYTES: Final = 400_000
PLAN_BYTES_MAX: Final = 1 << 29
"""Of a plan that was unpacked: two million moves."""
_PARTS_MAX: Final = 10_000
HELD_BYTES_MAX: Final = 1 << 28
"""Of parts and events that a reader holds: strangers may write to the topic, too."""
_ENTRY_BYTES: Final = 500
"""A part, an event or a plan takes about so much beside its own bytes."""


_Name = Annotated[str, Field(max_length=300)]
"""Not counted among the bytes that are held."""


class _Event(BaseModel):
    """An event of an execution. What it is checked for is all that its fold uses; other fields are kept as they are."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)
    n: Amount
    event: str
    at_ms: Amount = 0
    executor: _Name = ""


_Pace = dict[str, Any]
_Partitions = list[Annotated[tuple[str, Amount], Field(strict=False)]]
_Before = dict[Annotated[str, Field(pattern=r"^(broker/[0-9]{1,9}|topic/.+)$")], dict[str, str | None]]
_FACTS: Final[Mapping[str, Mapping[str, Any]]] = {
    ExecutionEvent.BEGUN: {"pace": (_Pace | None, None)},
    ExecutionEvent.BATCH: {"batch": Amount},
    ExecutionEvent.MOVED: {
        "partitions": _Partitions,
        "dirs": (list[Annotated[tuple[str, Amount, Amount], Field(strict=False)]], []),
    },
    ExecutionEvent.REFUSED: {"topic": str, "partition": Amount, "reason": str},
    ExecutionEvent.THROTTLE: {"rate": Amount | None, "before": _Before},
    ExecutionEvent.UNTHROTTLED: {"resources": list[str]},
    ExecutionEvent.PACE: {"pace": _Pace},
    ExecutionEvent.PROGRESS: {"bytes_done": Amount, "busy_s": Annotated[float, Field(ge=0)]},
    ExecutionEvent.OUTPACED: {"partitions": _Partitions},
    ExecutionEvent.REMARK: {"text": str},
    ExecutionEvent.ENDED: dict.fromkeys(("kind", "reason", "hint"), (str, "")),
}
_EVENTS: Final = {name: create_model(f"{name}Event", __base__=_Event, **facts) for name, facts in _FACTS.items()}


def _checked(event: dict[str, Any]) -> dict[str, Any]:
    name = event.get("event")
    (_EVENTS.get(name, _Event) if isinstance(name, str) else _Event).model_validate(event)
    return event


def _encoded(data: str) -> str:
    base64.b64decode(data)
    return data


class TopicRecord(BaseModel):
    """A record of the topic; `_TAKERS` has the fields that each kind needs."""

    model_config = ConfigDict(strict=True)
    v: Literal[1]
    kind: str
    plan: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    part: Amount = 0
    of: Annotated[int, Field(ge=1, le=_PARTS_MAX)] = 1
    data: Annotated[str, AfterValidator(_encoded)] = ""
    executor: _Name = ""
    events: list[Annotated[dict[str, Any], AfterValidator(_checked)]] = []
    host: _Name = ""
    pid: Annotated[int, Field(ge=0, lt=2**31)] = 0
    replaces: _Name = ""
    request: Annotated[ExecutionRequest | None, Field(alias="wish", strict=False)] = None
    throttle: Amount | None = None
    by: _Name = ""


class JunkRecord(StrEnum):
    """Why a record of the topic is ignored."""

    NOT_JSON = "not JSON"
    NOT_A_RECORD = "not a record of plans"
    OTHER_VERSION = "another version"
    NO_ROOM = "no room"


def decode(value: bytes | None) -> TopicRecord | JunkRecord:
    """A record of this version as it is folded, or why it is none."""
    try:
        loaded = orjson.loads(value or b"")
    except ValueError:
        return JunkRecord.NOT_JSON
    try:
        record = TopicRecord.model_validate(loaded)
    except ValidationError:
        is_other = isinstance(loaded, dict) and type(loaded.get("v")) is int and loaded["v"] != VERSION
        return JunkRecord.OTHER_VERSION if is_other else JunkRecord.NOT_A_RECORD
    whole = record.kind in _TAKERS and _TAKERS[record.kind][1] <= record.model_fields_set
    return record if whole and record.part < record.of else JunkRecord.NOT_A_RECORD


@dataclass(slots=True)
class Holder:
    """Executor that holds the cluster, by the log."""

    executor: str
    plan_id: str
    host: str
    pid: int
    seen_at_ms: int


@dataclass(slots=True)
class PlanBook:
    """One plan in the topic: `events` by their name (`event_name`), encoded: objects take many times the room."""

    chunks: dict[int, bytes] = field(default_factory=dict)
    of: int = 0
    events: dict[tuple[int, str], bytes] = field(default_factory=dict)
    records: int = 0
    held_bytes: int = 0
    asked: OperatorRequests = field(default_factory=OperatorRequests)
    last_ms: int = 0

    def plan_bytes(self) -> bytes | None:
        """Plan file; None: parts of it are missing, damaged or too large."""
        if not self.of or set(self.chunks) != set(range(self.of)):
            return None
        unpacked = zlib.decompressobj()
        with suppress(zlib.error):
            raw = unpacked.decompress(b"".join(self.chunks[number] for number in range(self.of)), PLAN_BYTES_MAX)
            return raw if unpacked.eof else None
        return None

    def in_order(self) -> list[dict[str, Any]]:
        return in_order(map(orjson.loads, self.events.values()))


class StateBook:
    """State of the topic, in bounded memory: beyond it the plans that were written to longest ago go, but not the holder's.

    Args:
        away_ms: Time without heartbeats after which a holder expires.

    Attributes:
        junk: Records that were ignored, by reason.
    """

    def __init__(self, away_ms: int) -> None:
        self._away_ms = away_ms
        self.junk = Counter[JunkRecord]()
        self.plans: OrderedDict[str, PlanBook] = OrderedDict()
        self._held_bytes = 0
        self.holder: Holder | None = None
        self.newest_ms = 0

    def take(self, timestamp_ms: int, value: bytes | None) -> None:
        """Fold a record, in log order; an invalid one changes nothing."""
        if self.holder is not None and self.holder.seen_at_ms > timestamp_ms:
            # Kafka's clock was set back: else a holder that is gone would seem alive until its last time comes.
            self.holder.seen_at_ms = timestamp_ms
        self.newest_ms = timestamp_ms
        record = decode(value)
        if isinstance(record, JunkRecord):
            self.junk[record] += 1
        else:
            _TAKERS[record.kind][0](self, timestamp_ms, record)
            held = self.holder and self.holder.plan_id
            while self._held_bytes + len(self.plans) * _ENTRY_BYTES > HELD_BYTES_MAX:
                if (oldest := next((plan_id for plan_id in self.plans if plan_id != held), None)) is None:
                    break
                self._held_bytes -= self.plans[oldest].held_bytes
                self.junk[JunkRecord.NO_ROOM] += self.plans.pop(oldest).records

    def book(self, plan_id: str) -> PlanBook:
        """Records of one plan; empty if the topic has none."""
        return self.plans.get(plan_id, PlanBook())

    def _book(self, plan_id: str) -> PlanBook:
        """The book of a plan that is written to, as the last of all."""
        book = self.plans.setdefault(plan_id, PlanBook())
        self.plans.move_to_end(plan_id)
        book.records += 1
        return book

    def _hold(self, book: PlanBook, entries: dict[Any, Any], name: object, entry: bytes) -> bool:
        """Add or replace an entry of a plan; False: the plan has reached the limit, and nothing changes."""
        more = len(entry) - len(entries[name]) if name in entries else len(entry) + _ENTRY_BYTES
        if has_room := book.held_bytes + more <= HELD_BYTES_MAX:
            entries[name] = entry
            book.held_bytes += more
            self._held_bytes += more
        return has_room

    def alive(self, now_ms: int) -> Holder | None:
        """Executor at a time of the log."""
        holder = self.holder
        return holder if holder is not None and now_ms - holder.seen_at_ms <= self._away_ms else None

    def _plan(self, _: int, record: TopicRecord) -> None:
        book = self._book(record.plan)
        book.of = record.of
        if not self._hold(book, book.chunks, record.part, base64.b64decode(record.data)):
            self.junk[JunkRecord.NO_ROOM] += 1

    def _events(self, at_ms: int, record: TopicRecord) -> None:
        book = self._book(record.plan)
        book.last_ms = at_ms
        new = ((name, event) for event in record.events if (name := event_name(event)) not in book.events)
        # A copy: the bytes that orjson returns take a kilobyte at least.
        if not all(self._hold(book, book.events, name, bytes(memoryview(orjson.dumps(event)))) for name, event in new):
            self.junk[JunkRecord.NO_ROOM] += 1
        if self.holder is not None and self.holder.executor == record.executor:
            self.holder.seen_at_ms = at_ms

    def _claim(self, at_ms: int, record: TopicRecord) -> None:
        holder = self.alive(at_ms)
        if holder is not None and holder.executor not in {record.executor, record.replaces}:
            return
        if self.holder is None or self.holder.executor != record.executor:
            book = self._book(record.plan)
            if record.kind == "claim" or book.asked == OperatorRequests():  # a heartbeat revokes no request
                book.asked = OperatorRequests(request=record.request or ExecutionRequest.GO, by=record.executor)
            self.holder = Holder(record.executor, record.plan, record.host, record.pid, at_ms)
        self.holder.seen_at_ms = at_ms

    def _leave(self, _: int, record: TopicRecord) -> None:
        if self.holder is not None and self.holder.executor == record.executor:
            self.holder = None

    def _control(self, _: int, record: TopicRecord) -> None:
        book = self._book(record.plan)
        old, changed = book.asked, "throttle" in record.model_fields_set
        book.asked = OperatorRequests(
            request=record.request or old.request,
            throttle_changed=changed or old.throttle_changed,
            throttle_bytes_per_s=record.throttle if changed else old.throttle_bytes_per_s,
            by=record.by,
        )


_TAKERS: Final = {
    "plan": (StateBook._plan, {"part", "of", "data"}),  # noqa: SLF001 - of the class above
    "events": (StateBook._events, {"executor", "events"}),  # noqa: SLF001
    "claim": (StateBook._claim, {"executor", "host", "pid"}),  # noqa: SLF001
    # Its claim may have been deleted, by others or with the topic.
    "beat": (StateBook._claim, {"executor"}),  # noqa: SLF001
    "leave": (StateBook._leave, {"executor"}),  # noqa: SLF001
    "control": (StateBook._control, set[str]()),  # noqa: SLF001
}


def record(kind: str, plan_id: str, **facts: Any) -> bytes:
    return orjson.dumps({"v": VERSION, "kind": kind, "plan": plan_id, **facts})


def plan_records(plan_id: str, raw: bytes) -> Iterator[bytes]:
    packed = zlib.compress(raw, 6)
    parts = [packed[at : at + CHUNK_BYTES] for at in range(0, len(packed), CHUNK_BYTES)] or [b""]
    for number, part in enumerate(parts):
        yield record("plan", plan_id, part=number, of=len(parts), data=base64.b64encode(part).decode())


def event_name(event: Mapping[str, Any]) -> tuple[int, str]:
    """Number and executor: two executors may use one number, if the topic did not accept the event of the first."""
    return int(event["n"]), str(event.get("executor", ""))


def in_order(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Events by the first number of their executor (each starts after all events that it knows), and then by number."""
    copies = [dict(event) for event in events]
    began: dict[str, tuple[int, int]] = {}
    for event in copies:
        number, executor = event_name(event)
        first = (number, int(event.get("at_ms", 0)))
        began[executor] = min(first, began.get(executor, first))
    return sorted(copies, key=lambda event: (began[event_name(event)[1]], event_name(event)[1], event_name(event)[0]))


def merged(here: Iterable[Mapping[str, Any]], there: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Distinct events of journal and topic, in order, as either may have more."""
    return in_order({event_name(event): event for event in (*there, *here)}.values())


def lacking(events: Iterable[dict[str, Any]], there: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Events that are not there."""
    names = {event_name(event) for event in there}
    return [event for event in events if event_name(event) not in names]


class StateTopic:
    """Reader and writer of the topic. A context manager; for one thread, but `append` may be called from any.

    Args:
        away_s: Time without heartbeats after which a holder expires.

    Attributes:
        failing: Whether the last append failed; each one takes up to `timeout_s` then.
        was_missing: Whether the topic was to be created, so that it lacks all that was written before.
    """

    def __init__(self, settings: ClientSettings, name: str, *, away_s: float, timeout_s: float = 20.0) -> None:
        self._settings, self.name, self._timeout_s = settings, name, timeout_s
        self._topic = plans_topic(name)
        self._tail: PartitionTail | None = None
        self._writer: BlockingWriter | None = None
        self._opening = threading.Lock()
        self._next = 0
        self.failing = self.was_missing = False
        self.book = StateBook(round(away_s * 1_000))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tail is not None:
            self._tail.close()
        if self._writer is not None:
            self._writer.close(1.0)

    def exists(self) -> bool:
        """Whether the topic exists, with valid settings."""
        states = TopicAdmin(self._settings, timeout_s=self._timeout_s).describe([self.name])
        if self.name not in states:
            return False
        refuse_unfit(inspect(states, self._settings, self._topic), self._topic)
        return True

    def create(self, replication_factor: int) -> None:
        self.was_missing |= not self.exists()
        open_topics(
            self._settings,
            self._topic,
            create=True,
            replication_factor=replication_factor,
            fit_nodes=True,
            timeout_s=self._timeout_s,
        )

    def read(self) -> StateBook:
        """Read new records up to the present end."""
        if self._tail is None:
            self._tail = side_tail(self._settings, self._topic, self._timeout_s)
        span = self._tail.span(start=self._next)
        if span.end < self._next:  # the topic was created again
            span = Span(low=span.low, start=span.low, end=span.end)
        if span.end > span.start:
            for record in self._tail.records(span):
                self.book.take(record.timestamp_ms, record.value)
        self._next = span.end
        return self.book

    def append(self, plan_id: str, values: Iterable[bytes]) -> None:
        """Write records and wait for their acknowledgement; without one in time they may have been written or not."""
        with self._opening:
            if self._writer is None:
                doing = f"writing to {self.name}"
                self._writer = BlockingWriter(self._settings, self.name, doing, timeout_s=self._timeout_s)
        try:
            self._writer.require(self._writer.write((0, plan_id.encode(), value) for value in values))
        except KafkaAdapterError:
            self.failing = True
            raise
        self.failing = False
