"""Metrics of the balancer for Prometheus, and the log of scores (design/decisions-topic.md says how to read them).

Bundles never stand in a label: there are too many. `statechannel why BUNDLE` tells about one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from math import hypot, isfinite, sqrt
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shedders.decisions.record import DecisionRecord

if TYPE_CHECKING:
    from shedders.decisions.topic import WriteCounts

_log = structlog.get_logger("shedders")

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
WORDS_MAX = 64
"""Different values of one label; strategies and filters of third parties may have words of their own."""
OTHER = "other"

MOVE_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
DECISION_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0)


class Words:
    """Keeps the values of a label few: what is no word, or one too many, is `other`."""

    def __init__(self, words_max: int = WORDS_MAX) -> None:
        self._max = words_max
        self._seen: set[str] = set()

    def __call__(self, text: str | None) -> str:
        """The value for a label; `none` where there is no word."""
        if text is None:
            return "none"
        if text in self._seen:
            return text
        if len(self._seen) >= self._max or _WORD.fullmatch(text) is None:
            return OTHER
        self._seen.add(text)
        return text


class BalancerMetrics:
    """What the balancer of one broker does; `registry` may be the member's own.

    Args:
        broker: This broker; scores of all brokers are told by the leader alone.
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
                "assign", "Places that this broker chose, by how, and by whom or why not", "result", "reason"
            ),
            "split": self._counter("split", "Splits that ended, by result and upstream's reason", "result", "reason"),
        }
        ended = ("result", "reason")
        self._times = {
            "shed": self._histogram("shed_seconds", "From the beginning of a move to its end", MOVE_S, *ended),
            "assign": self._histogram(
                "assign_seconds",
                "From the first time that this broker looked for a place to the bundle's being served there",
                MOVE_S,
                *ended,
            ),
            "split": self._histogram("split_seconds", "From the beginning of a split to its end", MOVE_S, *ended),
        }
        self._cycles = self._counter(
            "balancer_cycles",
            "Decisions, by subject, upstream's label, and reason (why skipped, or upstream's)",
            *("subject", "outcome", "reason"),
        )
        self._took = self._histogram("balancer_decision_seconds", "Time that a decision took", DECISION_S, "subject")
        self._left = self._counter("balancer_left_alone", "Brokers and bundles left alone, by reason", "reason")
        self._records = self._counter("balancer_decision_records", "Decision records, by what became of them", "result")
        self._score = self._gauge("balancer_broker_score", "Score of each broker in the newest decision")
        self._mean = self._gauge("balancer_score_mean", "Mean of the scores")
        self._std = self._gauge("balancer_score_std", "Standard deviation of the scores")
        self._spread = self._gauge("balancer_score_max_over_mean", "Highest score by the mean: 1 is even")
        self._scored: set[str] = set()
        self._written: dict[str, int] = {}

    # --- what happened ----------------------------------------------------------------------------------------------

    def shed(self, result: str, reason: str | None, took_s: float | None = None) -> None:
        """A move ended.

        Args:
            result: As in outcome records.
            reason: Upstream's, as the move has it.
        """
        self._ended("shed", result, reason, took_s)

    def assigned(self, result: str, reason: str | None) -> None:
        """A place was chosen, or nobody was found.

        Args:
            result: How: `shedders.balancer.placement.PlacedNote.how`.
        """
        self._counts["assign"].labels(**self._labels("assign", result, reason)).inc()

    def assigned_after(self, result: str, reason: str | None, took_s: float) -> None:
        """A bundle is served where it was placed."""
        self._times["assign"].labels(**self._labels("assign", result, reason)).observe(max(0.0, took_s))

    def split(self, result: str, reason: str | None, took_s: float | None = None) -> None:
        """A split ended."""
        self._ended("split", result, reason, took_s)

    def decided(self, record: DecisionRecord, scores: Mapping[str, float] | None = None) -> None:
        """A decision was made, or skipped.

        Args:
            scores: All of them, where the record had no room for some.
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
        found = dict(record.scores if scores is None else scores)
        if record.skipped is None and record.subject == "shed":
            self._scores({name: value for name, value in found.items() if value is not None and isfinite(value)})
            if self.log_scores:
                self._tell(record, found)

    def written(self, counts: WriteCounts) -> None:
        """Bring the counters of records up to these totals since the start."""
        for result in ("written", "dropped", "failed", "unwritable"):
            total = int(getattr(counts, result))
            more = total - self._written.get(result, 0)
            if more > 0:
                self._records.labels(**self._own, result=result).inc(more)
                self._written[result] = total

    def stopped(self) -> None:
        """This broker decides no more: what it said of scores is taken back."""
        self._scores({})

    # --- parts ------------------------------------------------------------------------------------------------------

    def _ended(self, what: str, result: str, reason: str | None, took_s: float | None) -> None:
        labels = self._labels(what, result, reason)
        self._counts[what].labels(**labels).inc()
        if took_s is not None and isfinite(took_s):
            self._times[what].labels(**labels).observe(max(0.0, took_s))

    def _labels(self, what: str, result: str, reason: str | None) -> dict[str, str]:
        # Each has its own words: what third parties call their filters must not crowd out the reasons of moves.
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

    def _tell(self, record: DecisionRecord, scores: Mapping[str, float | None]) -> None:
        facts: dict[str, Any] = {"decision": record.id, "cycle": record.cycle, "strategy": record.strategy}
        for name, value in sorted(scores.items()):
            _log.info("balancer.score", **facts, scored=name, score=value)
        _log.info("balancer.stats", **facts, label=record.label, reason=record.reason, why=record.why, **_stats(record))

    def _word(self, label: str, text: str | None) -> str:
        return self._words[label](text)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        found = self._existing(f"statechannel_{name}")
        if isinstance(found, Counter):
            return found
        return Counter(f"statechannel_{name}_total", meaning, [*self._own, *labels], registry=self.registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        found = self._existing(f"statechannel_{name}")
        if isinstance(found, Gauge):
            return found
        return Gauge(f"statechannel_{name}", meaning, [*self._own], registry=self.registry)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        found = self._existing(f"statechannel_{name}")
        if isinstance(found, Histogram):
            return found
        names = [*self._own, *labels]
        return Histogram(f"statechannel_{name}", meaning, names, buckets=buckets, registry=self.registry)

    def _existing(self, name: str) -> object | None:
        """Several members of one process may share one registry."""
        found: Mapping[str, object] = getattr(self.registry, "_names_to_collectors", {})
        return found.get(name)


def _stats(record: DecisionRecord) -> dict[str, Any]:
    return {f"stat_{name}": value for name, value in record.stats.items()}
