"""Fold of the state topic's records: plans, their events, requests of operators, and the executor. Pure.

The order of the log decides who executes: the first claim holds the cluster until its executor leaves or expires.
Times are the log's own, so clocks of hosts do not matter.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from shedders.kafka_rebalance.execution.values import ExecutionRequest, OperatorRequests

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
    first_ms: int = 0
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
        """Events in order."""
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
        self.junk = 0
        self.newest_ms = 0

    def take(self, timestamp_ms: int, value: bytes | None) -> None:
        """Fold a record, in log order; invalid ones are counted."""
        if self.holder is not None and self.holder.seen_at_ms > timestamp_ms:
            # Kafka's clock was set back: else a holder that is gone would seem alive until its last time comes.
            self.holder.seen_at_ms = timestamp_ms
        self.newest_ms = timestamp_ms
        try:
            record = orjson.loads(value or b"")
            _TAKERS[record["v"], record["kind"]](self, timestamp_ms, record)
        except (KeyError, TypeError, ValueError):
            self.junk += 1

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

    def _plan(self, at_ms: int, record: Mapping[str, Any]) -> None:
        book = self.book(str(record["plan"]))
        book.first_ms = book.first_ms or at_ms
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
    """Records of a plan file."""
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
