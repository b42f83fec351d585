"""Events of the journal and the state that they fold to: all that the cluster itself does not show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from shedders.kafka_rebalance.execution.values import Key, Resource

BEGUN: Final = "begun"
BATCH: Final = "batch"
MOVED: Final = "moved"
REFUSED: Final = "refused"
THROTTLE: Final = "throttle"
UNTHROTTLED: Final = "unthrottled"
PAUSED: Final = "paused"
RESUMED: Final = "resumed"
CANCELLING: Final = "cancelling"
PACE: Final = "pace"
REMARK: Final = "remark"
STOPPING: Final = "stopping"
ENDED: Final = "ended"


def resource_text(resource: Resource) -> str:
    """A broker or topic as one word of JSON."""
    return f"{resource[0]}/{resource[1]}"


def resource_of(text: str) -> Resource:
    """The inverse."""
    kind, _, name = text.partition("/")
    return kind, name


@dataclass(slots=True)
class ExecutionHistory:
    """State folded from events; `take` adds one. Events of an unknown name, from a newer version, are ignored.

    Attributes:
        begun: How often an executor has started or continued.
        executor: Newest executor.
        began_at_ms: Time of the first start.
        batches: Number of requested batches.
        moved: Finished partitions, with the time.
        refused: Partitions that Kafka refused, with the reason.
        throttle_before: Throttle settings of brokers and topics before the execution, until they are restored.
        rates: All rates that were set.
        rate: Rate in force; None: no throttle.
        pace: Newest requested value of each setting of the pace.
        paused: Whether the plan is paused.
        state: Newest of begun, paused, cancelling, stopping, ended.
        stop: Kind, reason and hint of the end, if it has ended.
        ended_at_ms: Time of the end.
        remarks: Sentences.
    """

    begun: int = 0
    executor: str = ""
    began_at_ms: int = 0
    batches: int = 0
    moved: dict[Key, int] = field(default_factory=dict)
    refused: dict[Key, str] = field(default_factory=dict)
    throttle_before: dict[Resource, dict[str, str | None]] = field(default_factory=dict)
    rates: set[str] = field(default_factory=set)
    rate: int | None = None
    pace: dict[str, Any] = field(default_factory=dict)
    state: str = ""
    stop: Mapping[str, str] | None = None
    ended_at_ms: int = 0
    newest_at_ms: int = 0
    remarks: list[str] = field(default_factory=list)

    @property
    def unfinished(self) -> bool:
        """Whether it has begun and not ended, or ended before the plan was done."""
        return bool(self.begun) and (self.stop is None or self.stop.get("kind") not in {"done", "cancelled"})

    def take(self, event: Mapping[str, Any]) -> None:
        """One event, in order."""
        at_ms = int(event.get("at_ms", 0))
        self.newest_at_ms = max(self.newest_at_ms, at_ms)
        taker = _TAKERS.get(str(event.get("event")))
        if taker is not None:
            taker(self, event, at_ms)


def recorded(events: Iterable[Mapping[str, Any]]) -> ExecutionHistory:
    """Fold events."""
    history = ExecutionHistory()
    for event in events:
        history.take(event)
    return history


def _begun(to: ExecutionHistory, event: Mapping[str, Any], at_ms: int) -> None:
    to.begun += 1
    to.executor = str(event.get("executor", ""))
    to.began_at_ms = to.began_at_ms or at_ms
    to.state, to.stop, to.ended_at_ms = BEGUN, None, 0
    to.refused.clear()
    to.pace.update(event.get("pace") or {})


def _batch(to: ExecutionHistory, event: Mapping[str, Any], _: int) -> None:
    to.batches = max(to.batches, int(event["batch"]))


def _moved(to: ExecutionHistory, event: Mapping[str, Any], at_ms: int) -> None:
    to.moved.update({(str(topic), int(partition)): at_ms for topic, partition in event["partitions"]})


def _refused(to: ExecutionHistory, event: Mapping[str, Any], _: int) -> None:
    to.refused[str(event["topic"]), int(event["partition"])] = str(event["reason"])


def _throttle(to: ExecutionHistory, event: Mapping[str, Any], _: int) -> None:
    for text, settings in event["before"].items():
        # The first are the settings of others; later ones may be those of an executor that crashed.
        to.throttle_before.setdefault(resource_of(text), dict(settings))
    to.rate = event["rate"]
    to.rates.add(str(event["rate"]))


def _unthrottled(to: ExecutionHistory, event: Mapping[str, Any], _: int) -> None:
    for text in event["resources"]:
        to.throttle_before.pop(resource_of(text), None)
    if not to.throttle_before:
        to.rate = None


def _pace(to: ExecutionHistory, event: Mapping[str, Any], _: int) -> None:
    to.pace.update(event["pace"])


def _state(to: ExecutionHistory, event: Mapping[str, Any], _: int) -> None:
    to.state = BEGUN if event["event"] == RESUMED else str(event["event"])


def _remark(to: ExecutionHistory, event: Mapping[str, Any], _: int) -> None:
    to.remarks.append(str(event["text"]))


def _ended(to: ExecutionHistory, event: Mapping[str, Any], at_ms: int) -> None:
    to.state = ENDED
    to.stop = {name: str(event.get(name, "")) for name in ("kind", "reason", "hint")}
    to.ended_at_ms = at_ms


_TAKERS: Final = {
    BEGUN: _begun,
    BATCH: _batch,
    MOVED: _moved,
    REFUSED: _refused,
    THROTTLE: _throttle,
    UNTHROTTLED: _unthrottled,
    PAUSED: _state,
    RESUMED: _state,
    CANCELLING: _state,
    STOPPING: _state,
    PACE: _pace,
    REMARK: _remark,
    ENDED: _ended,
}
