"""Metrics of the balancer for Prometheus, and the log of scores (explained in design/reference/decisions-topic.md).

Bundles are never in labels: there are too many. `statechannel why BUNDLE` explains a single one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from math import hypot, isfinite, sqrt
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from shedders.decisions.record import DecisionRecord, DistancePart
from statechannel.logger import SafeLogger

if TYPE_CHECKING:
    from shedders.decisions.topic import WriteCounts

_log = SafeLogger("shedders")

Metric = TypeVar("Metric", bound=MetricWrapperBase)

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
WORDS_MAX = 64
"""Maximum number of values of one label; strategies and filters of third parties may have their own words."""
OTHER = "other"

MOVE_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
DECISION_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0)


class Words:
    """Limit on the values of a label: invalid words, and those beyond the limit, become `other`."""

    def __init__(self, words_max: int = WORDS_MAX) -> None:
        self._max = words_max
        self._seen: set[str] = set()

    def __call__(self, text: str | None) -> str:
        if text is None:
            return "none"
        if text in self._seen:
            return text
        if len(self._seen) >= self._max or _WORD.fullmatch(text) is None:
            return OTHER
        self._seen.add(text)
        return text


class BalancerMetrics:
    """Metrics of one broker's balancer; `registry` may be the member's own.

    Args:
        broker: This broker; only the leader exports the scores of all brokers.
        log_scores: Log every score of every decision (upstream's debug mode).
    """

    def __init__(
        self, channel: str, broker: str, registry: CollectorRegistry | None = None, *, log_scores: bool = False
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self._own = {"channel": channel, "broker": broker}
        self._channel = channel
        self.log_scores = log_scores
        self._words: defaultdict[str, Words] = defaultdict(Words)
        self._counts = {
            "shed": self._counter("shed", "Moves that ended, by result and upstream's reason", "result", "reason"),
            "assign": self._counter(
                "assign", "Placements by this broker, by how, and by strategy or failure", "result", "reason"
            ),
            "split": self._counter("split", "Splits that ended, by result and upstream's reason", "result", "reason"),
        }
        ended = ("result", "reason")
        self._times = {
            "shed": self._histogram("shed_seconds", "From the start of a move to its end", MOVE_S, *ended),
            "assign": self._histogram(
                "assign_seconds",
                "From the first attempt of this broker to place a bundle until it is served",
                MOVE_S,
                *ended,
            ),
            "split": self._histogram("split_seconds", "From the start of a split to its end", MOVE_S, *ended),
        }
        self._cycles = self._counter(
            "balancer_cycles",
            "Decisions, by subject, upstream's label, and reason (why skipped, or upstream's)",
            *("subject", "outcome", "reason"),
        )
        self._took = self._histogram("balancer_decision_seconds", "Time that a decision took", DECISION_S, "subject")
        self._left = self._counter("balancer_left_alone", "Brokers and bundles left alone, by reason", "reason")
        self._records = self._counter("balancer_decision_records", "Decision records, by result", "result")
        self._score = self._gauge("balancer_broker_score", "Score of each broker in the newest decision")
        self._mean = self._gauge("balancer_score_mean", "Mean of the scores")
        self._std = self._gauge("balancer_score_std", "Standard deviation of the scores")
        self._spread = self._gauge("balancer_score_max_over_mean", "Highest score over the mean: 1 is balanced")
        self._largest = self._gauge("balancer_largest_use", "Largest use of a resource after the newest decision")
        self._bound = self._gauge("balancer_largest_use_bound", "No decision that moves as much gets below it")
        self._any_load_bound = self._gauge("balancer_largest_use_any_load_bound", "No decision gets below it")
        self._scored: set[str] = set()
        self._written: dict[str, int] = {}

    # --- events ------------------------------------------------------------------------------------------------------

    def shed(self, result: str, reason: str | None, took_s: float | None = None) -> None:
        """Count the end of a move.

        Args:
            result: As in outcome records.
            reason: Upstream's, as the move has it.
        """
        self._ended("shed", result, reason, took_s)

    def assigned(self, result: str, reason: str | None) -> None:
        """Count a placement, or a failed one.

        Args:
            result: How: `shedders.balancer.placement.PlacedNote.how`.
        """
        self._counts["assign"].labels(**self._labels("assign", result, reason)).inc()

    def assigned_after(self, result: str, reason: str | None, took_s: float) -> None:
        """Record the time until a bundle is served where it was placed."""
        self._times["assign"].labels(**self._labels("assign", result, reason)).observe(max(0.0, took_s))

    def split(self, result: str, reason: str | None, took_s: float | None = None) -> None:
        self._ended("split", result, reason, took_s)

    def decided(self, record: DecisionRecord, scores: Mapping[str, float] | None = None) -> None:
        """Count a decision that was made or skipped.

        Args:
            scores: All scores, if the record had no room for some.
        """
        subject = self._word("subject", record.subject)
        reason = self._word("reason", record.skipped or record.reason)
        self._cycles.labels(
            **self._own, subject=subject, outcome=self._word("outcome", record.label), reason=reason
        ).inc()
        if record.took_ms is not None:
            self._took.labels(**self._own, subject=subject).observe(record.took_ms / 1_000)
        for word, count in record.left_counts.items():
            self._left.labels(**self._own, reason=self._word("reason", word)).inc(count)
        all_scores = dict(record.scores if scores is None else scores)
        if record.skipped is None and record.subject == "shed":
            self._scores({name: value for name, value in all_scores.items() if value is not None and isfinite(value)})
            self._distance(record.distance)
            if self.log_scores:
                self._log(record, all_scores)

    def written(self, counts: WriteCounts) -> None:
        """Raise the counters of records to these totals since the start."""
        for result in ("written", "dropped", "failed", "unwritable"):
            total = int(getattr(counts, result))
            more = total - self._written.get(result, 0)
            if more > 0:
                self._records.labels(**self._own, result=result).inc(more)
                self._written[result] = total

    def stopped(self) -> None:
        """Clear the scores: this broker no longer decides."""
        self._scores({})
        self._distance(None)

    # --- parts ------------------------------------------------------------------------------------------------------

    def _ended(self, what: str, result: str, reason: str | None, took_s: float | None) -> None:
        labels = self._labels(what, result, reason)
        self._counts[what].labels(**labels).inc()
        if took_s is not None and isfinite(took_s):
            self._times[what].labels(**labels).observe(max(0.0, took_s))

    def _labels(self, what: str, result: str, reason: str | None) -> dict[str, str]:
        # Each metric has its own words: names of third-party filters must not crowd out the reasons of moves.
        return {
            **self._own,
            "result": self._word(f"{what} result", result),
            "reason": self._word(f"{what} reason", reason),
        }

    def _scores(self, scores: Mapping[str, float]) -> None:
        for gone in self._scored - scores.keys():
            self._score.remove(self._channel, gone)
        for name, value in scores.items():
            self._score.labels(channel=self._channel, broker=name).set(value)
        self._scored = set(scores)
        mean = sum(scores.values()) / len(scores) if scores else 0.0
        std = hypot(*(value - mean for value in scores.values())) / sqrt(len(scores)) if scores else 0.0
        self._mean.labels(**self._own).set(mean)
        self._std.labels(**self._own).set(std)
        self._spread.labels(**self._own).set(max(scores.values()) / mean if scores and mean > 0 else 0.0)

    def _distance(self, distance: DistancePart | None) -> None:
        self._largest.labels(**self._own).set(0.0 if distance is None else distance.largest_use)
        self._bound.labels(**self._own).set(0.0 if distance is None else distance.bound)
        self._any_load_bound.labels(**self._own).set(0.0 if distance is None else distance.any_load_bound)

    def _log(self, record: DecisionRecord, scores: Mapping[str, float | None]) -> None:
        me = self._own["broker"]
        facts: dict[str, Any] = {
            "broker": me,
            "decision": record.id,
            "cycle": record.cycle,
            "strategy": record.strategy,
        }
        for name, value in sorted(scores.items()):
            _log.info("balancer.score", **facts, scored=name, score=value)
        _log.info("balancer.stats", **facts, label=record.label, reason=record.reason, why=record.why, **_stats(record))

    def _word(self, label: str, text: str | None) -> str:
        return self._words[label](text)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return self._metric(Counter, f"{name}_total", meaning, labels)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return self._metric(Gauge, name, meaning, ())

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return self._metric(Histogram, name, meaning, labels, buckets=buckets)

    def _metric(self, kind: type[Metric], name: str, meaning: str, labels: tuple[str, ...], **options: Any) -> Metric:
        """The metric; the registered one of that name, as several members of one process may share a registry."""
        collectors: Mapping[str, object] = getattr(self.registry, "_names_to_collectors", {})
        existing = collectors.get(f"statechannel_{name}")
        if isinstance(existing, kind):
            return existing
        return kind(f"statechannel_{name}", meaning, [*self._own, *labels], registry=self.registry, **options)


def _stats(record: DecisionRecord) -> dict[str, Any]:
    return {f"stat_{name}": value for name, value in record.stats.items()}
