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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

import orjson

from shedders.kafka_rebalance.execution.values import ExecutionRequest, OperatorRequests
from statechannel.kafka.tail import BlockingWriter, PartitionTail, Span, side_tail
from statechannel.kafka.topic_policy import plans_topic
from statechannel.kafka.topics import TopicAdmin, inspect, open_topics, refuse_unfit

if TYPE_CHECKING:
    from statechannel.kafka.client_settings import ClientSettings

VERSION: Final = 1
CHUNK_BYTES: Final = 400_000


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
    """One plan in the topic: `events` by their name (`event_name`)."""

    chunks: dict[int, bytes] = field(default_factory=dict)
    of: int = 0
    events: dict[tuple[int, str], dict[str, Any]] = field(default_factory=dict)
    asked: OperatorRequests = field(default_factory=OperatorRequests)
    last_ms: int = 0

    def plan_bytes(self) -> bytes | None:
        """Plan file; None: parts of it are missing."""
        if not self.of or set(self.chunks) != set(range(self.of)):
            return None
        try:
            return zlib.decompress(b"".join(self.chunks[number] for number in range(self.of)))
        except zlib.error:
            return None

    def in_order(self) -> list[dict[str, Any]]:
        return in_order(self.events.values())


class StateBook:
    """State of the topic.

    Args:
        away_ms: Time without heartbeats after which a holder expires.
    """

    def __init__(self, away_ms: int) -> None:
        self._away_ms = away_ms
        self.plans: dict[str, PlanBook] = {}
        self.holder: Holder | None = None
        self.newest_ms = 0

    def take(self, timestamp_ms: int, value: bytes | None) -> None:
        """Fold a record, in log order; an invalid one changes nothing."""
        if self.holder is not None and self.holder.seen_at_ms > timestamp_ms:
            # Kafka's clock was set back: else a holder that is gone would seem alive until its last time comes.
            self.holder.seen_at_ms = timestamp_ms
        self.newest_ms = timestamp_ms
        with suppress(KeyError, TypeError, ValueError):
            record = orjson.loads(value or b"")
            _TAKERS[record["v"], record["kind"]](self, timestamp_ms, record)

    def book(self, plan_id: str) -> PlanBook:
        """Records of one plan; empty if the topic has none."""
        return self.plans.setdefault(plan_id, PlanBook())

    def alive(self, now_ms: int) -> Holder | None:
        """Executor at a time of the log."""
        holder = self.holder
        return holder if holder is not None and now_ms - holder.seen_at_ms <= self._away_ms else None

    def _seen(self, at_ms: int, executor: str) -> None:
        if self.holder is not None and self.holder.executor == executor:
            self.holder.seen_at_ms = at_ms

    def _plan(self, _: int, record: Mapping[str, Any]) -> None:
        book = self.book(str(record["plan"]))
        book.of = int(record["of"])
        book.chunks[int(record["part"])] = base64.b64decode(record["data"])

    def _events(self, at_ms: int, record: Mapping[str, Any]) -> None:
        book = self.book(str(record["plan"]))
        book.last_ms = at_ms
        for event in record["events"]:
            book.events.setdefault(event_name(event), dict(event))
        self._seen(at_ms, str(record["executor"]))

    def _claim(self, at_ms: int, record: Mapping[str, Any]) -> None:
        executor, plan_id = str(record["executor"]), str(record["plan"])
        holder = self.alive(at_ms)
        if holder is not None and holder.executor not in {executor, record.get("replaces", "")}:
            return
        self.holder = Holder(executor, plan_id, str(record["host"]), int(record["pid"]), at_ms)
        book = self.book(plan_id)
        request = ExecutionRequest(record.get("wish", ExecutionRequest.GO))
        book.asked = OperatorRequests(request=request, by=executor)

    def _beat(self, at_ms: int, record: Mapping[str, Any]) -> None:
        self._seen(at_ms, str(record["executor"]))

    def _leave(self, _: int, record: Mapping[str, Any]) -> None:
        if self.holder is not None and self.holder.executor == record["executor"]:
            self.holder = None

    def _control(self, _: int, record: Mapping[str, Any]) -> None:
        book = self.book(str(record["plan"]))
        old = book.asked
        changed = "throttle" in record
        book.asked = OperatorRequests(
            request=ExecutionRequest(record["wish"]) if "wish" in record else old.request,
            throttle_changed=changed or old.throttle_changed,
            throttle_bytes_per_s=record["throttle"] if changed else old.throttle_bytes_per_s,
            by=str(record.get("by", "")),
        )


_TAKERS: Final = {
    (VERSION, "plan"): StateBook._plan,  # noqa: SLF001 - of the class above
    (VERSION, "events"): StateBook._events,  # noqa: SLF001
    (VERSION, "claim"): StateBook._claim,  # noqa: SLF001
    (VERSION, "beat"): StateBook._beat,  # noqa: SLF001
    (VERSION, "leave"): StateBook._leave,  # noqa: SLF001
    (VERSION, "control"): StateBook._control,  # noqa: SLF001
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
        began[executor] = min(
            began.get(executor, (number, int(event.get("at_ms", 0)))), (number, int(event.get("at_ms", 0)))
        )
    return sorted(copies, key=lambda event: (began[event_name(event)[1]], event_name(event)[1], event_name(event)[0]))


def merged(here: Iterable[Mapping[str, Any]], there: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Distinct events of journal and topic, in order, as either may have more."""
    by_name: dict[tuple[int, str], dict[str, Any]] = {}
    for event in (*here, *there):
        by_name.setdefault(event_name(event), dict(event))
    return in_order(by_name.values())


class StateTopic:
    """Reader and writer of the topic. A context manager; for one thread, but `append` may be called from any.

    Args:
        away_s: Time without heartbeats after which a holder expires.
    """

    def __init__(self, settings: ClientSettings, name: str, *, away_s: float, timeout_s: float = 20.0) -> None:
        self._settings, self.name, self._timeout_s = settings, name, timeout_s
        self._topic = plans_topic(name)
        self._tail: PartitionTail | None = None
        self._writer: BlockingWriter | None = None
        self._opening = threading.Lock()
        self._next = 0
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
        self._writer.require(self._writer.write((0, plan_id.encode(), value) for value in values))
