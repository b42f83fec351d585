"""Metrics of the job load-views beyond those that every job has, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge

from loaddata.view.table_view import ExpiryRules, ViewRules

if TYPE_CHECKING:
    from spark.load.fold import JudgedRecord


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

    def took(self, taken: LoadBatchResult) -> None:
        """A batch is done."""
        for record in taken.judged:
            self.records.labels(record.kind, record.fate, record.reason).inc()
        for kind, topic in taken.topics.items():
            self.brokers.labels(kind).set(topic.brokers)
            self.suspects.labels(kind).set(topic.suspects)
            self.tombstones.labels(kind).inc(topic.tombstoned)
            if topic.unjudged_s is not None:
                self.judged_s.labels(kind).set(topic.unjudged_s)


JOB = "load-views"
OFFSETS_MAX = 100_000
"""Default bound of the offsets of one batch: the headers of its records pass through this process."""


@dataclass(frozen=True, slots=True)
class LoadViewsOptions:
    """The options of this job alone.

    Attributes:
        table: Folder or URI of what it writes.
        tombstones: Whether to write tombstones; without it suspects are only shown.
        accept_new_topic: Go on with a topic that was re-created.
        keep: Snapshots that are kept.
        compacts: Put the history's batches of days that are over into one.
    """

    table: str
    tombstones: bool = True
    accept_new_topic: bool = False
    view: ViewRules = field(default_factory=ViewRules)
    expiry: ExpiryRules = field(default_factory=ExpiryRules)
    keep: int = 10
    compacts: bool = True


class TopicTaken(NamedTuple):
    """The state of a topic after a batch.

    Attributes:
        tombstoned: Tombstones written.
        unjudged_s: How long ago the moment was as of which was judged last; None before the first.
    """

    brokers: int
    suspects: int
    tombstoned: int
    unjudged_s: float | None


class LoadBatchResult(NamedTuple):
    """What a batch did."""

    judged: list[JudgedRecord]
    topics: Mapping[str, TopicTaken]
