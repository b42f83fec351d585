"""Prometheus metrics of one broker, built from `statechannel.broker.observe.metric_table`, and its event log.

Labels never contain bundles: there are too many. Query the channel for a bundle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from statechannel.broker.observe.event_log import EventLog
from statechannel.broker.observe.events import Level
from statechannel.broker.observe.handovers import FLOWS
from statechannel.broker.observe.metric_table import METRICS, PREFIX, MetricKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statechannel.broker.observe.handovers import HandoverPhase
    from statechannel.broker.observe.metric_table import Metric
    from statechannel.engine.effects import Emit, Hook


class Metrics:
    """The metrics of one channel member; `registry` may be the embedder's own.

    Every name begins with `statechannel_`; the labels `channel` and `broker` distinguish members of one process.

    Args:
        least: Minimum level of logged events.
    """

    def __init__(
        self,
        channel: str,
        broker: str,
        registry: CollectorRegistry | None = None,
        *,
        least: Level = Level.INFO,
        events_per_second_max: int = 200,
    ) -> None:
        self.registry = registry or CollectorRegistry()
        if registry is None:
            ProcessCollector(registry=self.registry)
        self._own = {"channel": channel, "broker": broker}
        self._families = {name: self._family(metric) for name, metric in METRICS.items()}
        self._children: dict[tuple[str, ...], Any] = {}
        self.log = EventLog(broker, least=least, per_second_max=events_per_second_max, counted=self._counted_event)
        self._seen_mode: str | None = None
        self._counted: dict[str, int] = {}

    def _family(self, metric: Metric) -> Any:
        """The metric family; several members of one process may share one registry."""
        families: Mapping[str, object] = getattr(self.registry, "_names_to_collectors", {})
        name, labels = f"{PREFIX}{metric.name}", [*self._own, *metric.labels]
        existing = families.get(name)
        if existing is not None:
            return existing
        match metric.kind:
            case MetricKind.COUNTER:
                return Counter(f"{name}_total", metric.meaning, labels, registry=self.registry)
            case MetricKind.GAUGE:
                return Gauge(name, metric.meaning, labels, registry=self.registry)
            case MetricKind.HISTOGRAM:
                return Histogram(name, metric.meaning, labels, registry=self.registry, buckets=metric.buckets)

    def _child(self, name: str, *values: str) -> Any:
        """One time series; its label values are bounded by their callers."""
        key = (name, *values)
        child = self._children.get(key)
        if child is None:
            labels = dict(zip(METRICS[name].labels, values, strict=True))
            child = self._children[key] = self._families[name].labels(**self._own, **labels)
        return child

    # --- what happened ----------------------------------------------------------------------------------------------

    def take(self, event: Emit) -> None:
        if event.event == "operation.ended":
            flow, result = str(event.facts.get("flow") or "none"), str(event.facts.get("result") or "none")
            self._child("operations", flow if flow in FLOWS else "other", result).inc()
        self.log.take(event)

    def _counted_event(self, event: str) -> None:
        self._child("events", event).inc()

    def verdicts(self, counts: Mapping[str, int]) -> None:
        """Raise the counters to these totals since the start."""
        for verdict, count in counts.items():
            more = count - self._counted.get(verdict, 0)
            if more > 0:
                self._child("records", verdict).inc(more)
                self._counted[verdict] = count

    def answered(self, command: str, answer: str, took_s: float = 0.0) -> None:
        self._child("commands", command, answer).inc()
        if command == "Lookup":
            self._child("lookups", answer).inc()
            self._child("lookup_wait_seconds", answer).observe(took_s)

    def cached_lookups(self, count: int) -> None:
        """Raise the counters to this total since the start. Such a lookup takes a microsecond, and is not timed."""
        more = count - self._counted.get("lookups", 0)
        if more > 0:
            self._child("commands", "Lookup", "owned").inc(more)
            self._child("lookups", "owned").inc(more)
            self._counted["lookups"] = count

    def landed(self, landing: HandoverPhase) -> None:
        """Observe a phase of a move that a record of this member ended."""
        self._child("handoff_seconds", landing.flow, landing.phase).observe(landing.phase_s)
        if landing.whole_s is not None:
            self._child("handoff_seconds", landing.flow, "whole").observe(landing.whole_s)
        if landing.gap_s is not None:
            self._child("gap_seconds", landing.cause).observe(landing.gap_s)

    def timed(self, name: str, took_s: float, *values: str) -> None:
        self._child(name, *values).observe(took_s)

    def counted(self, name: str, *values: str, by: float = 1) -> None:
        self._child(name, *values).inc(by)

    def hook_failed(self, hook: Hook, _: str) -> None:
        self._child("hook_failures", hook.value).inc()

    def restarted(self, part: str) -> None:
        self._child("part_restarts", part).inc()

    # --- how things are ---------------------------------------------------------------------------------------------

    def set(self, name: str, value: float, *values: str) -> None:
        self._child(name, *values).set(value)

    def mode(self, mode: str) -> None:
        if mode != self._seen_mode:
            if self._seen_mode is not None:
                self.set("mode", 0, self._seen_mode)
            self.set("mode", 1, mode)
            self._seen_mode = mode

    def stuck(self, *, stuck: bool) -> None:
        self.set("loop_stuck", stuck)

    def flush(self) -> None:
        for event, count in self.log.flush().items():
            self.counted("events_suppressed", event, by=count)
