"""Figures of the job load-views beside those that every job has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge

if TYPE_CHECKING:
    from spark.load_options import Taken


class LoadFigures:
    """What the batches say."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.records = Counter(
            "statechannel_spark_load_records_total",
            "Records of the load topics, by what became of them and, if they were dropped, why.",
            ["kind", "fate", "reason"],
            registry=registry,
        )
        self.tombstones = Counter(
            "statechannel_spark_load_tombstones_total", "Tombstones written.", ["kind"], registry=registry
        )
        self.brokers = Gauge(
            "statechannel_spark_load_brokers", "Brokers whose report is held.", ["kind"], registry=registry
        )
        self.suspects = Gauge(
            "statechannel_spark_load_suspects", "Those of them that are suspect.", ["kind"], registry=registry
        )
        self.judged_s = Gauge(
            "statechannel_spark_load_unjudged_seconds",
            "How long ago the moment was as of which suspects were looked for: it grows while the job is behind.",
            ["kind"],
            registry=registry,
        )

    def took(self, taken: Taken) -> None:
        """A batch is done."""
        for one in taken.judged:
            self.records.labels(one.kind, one.fate, one.reason).inc()
        for kind, topic in taken.topics.items():
            self.brokers.labels(kind).set(topic.brokers)
            self.suspects.labels(kind).set(topic.suspects)
            self.tombstones.labels(kind).inc(topic.buried)
            if topic.unjudged_s is not None:
                self.judged_s.labels(kind).set(topic.unjudged_s)
