"""Metrics of the job load-views beyond those that every job has, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge

from loaddata.view.table_view import ExpiryRules, ViewRules
from spark.cli.job import AcceptNewTopic, CompactHistory, Option

if TYPE_CHECKING:
    from spark.load.fold import JudgedRecord


class LoadFigures:
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
    """The options of this job alone."""

    table: Annotated[
        str, Option("--table", metavar="DIR", help="Where views and history are written: a folder, or a URI.")
    ]
    tombstones: Annotated[
        bool,
        Option(
            help="Write tombstones for reports of brokers that are gone; the brokers' setting load.tombstones "
            "is to be `spark` then."
        ),
    ] = True
    ttl_s: Annotated[
        float, Option("--ttl-s", min=0.2, help="Age beyond which a report makes its broker suspect; as load.ttl_s.")
    ] = 1_800.0
    grace_s: Annotated[
        float, Option("--grace-s", min=0, help="How long a suspect may still renew it; as load.grace_s.")
    ] = 30.0
    repeat_s: Annotated[
        float, Option("--repeat-s", min=0.1, help="When a tombstone that had no effect is written again.")
    ] = 60.0
    brokers_max: Annotated[int, Option("--brokers-max", min=1, help="Brokers held of each topic.")] = 10_000
    held_bytes: Annotated[int, Option("--held-bytes", min=900_000, help="Bytes of all reports held of each topic.")] = (
        512 * 2**20
    )
    keep: Annotated[int, Option("--keep", min=2, help="Snapshots of the views that are kept.")] = 10
    compacts: CompactHistory = True
    accept_new_topic: AcceptNewTopic = False

    @property
    def view(self) -> ViewRules:
        return ViewRules(ttl_s=self.ttl_s, brokers_max=self.brokers_max, held_bytes=self.held_bytes)

    @property
    def expiry(self) -> ExpiryRules:
        return ExpiryRules(ttl_s=self.ttl_s, grace_s=self.grace_s, repeat_s=self.repeat_s)


class TopicTaken(NamedTuple):
    """The state of a topic after a batch.

    Attributes:
        unjudged_s: How long ago the moment was as of which was judged last; None before the first.
    """

    brokers: int
    suspects: int
    tombstoned: int
    unjudged_s: float | None


class LoadBatchResult(NamedTuple):
    judged: list[JudgedRecord]
    topics: Mapping[str, TopicTaken]
