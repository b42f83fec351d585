"""What the job load-views is told, and what it tells of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from loaddata.expiry import ExpiryRules
from loaddata.table_view import ViewRules
from statechannel.kafka.client_settings import ClientSettings

if TYPE_CHECKING:
    from spark.load_fold import Judged

JOB = "load-views"
OFFSETS_MAX = 100_000
"""Offsets of one batch where nobody says otherwise: the headers of its records pass through this process."""


@dataclass(frozen=True, slots=True)
class LoadViewsOptions:
    """What the job is told.

    Attributes:
        client: How this process reaches Kafka.
        spark_kafka: How Spark reaches it: options of its source and sink, `kafka.bootstrap.servers` among them.
        trigger: Arguments of `DataStreamWriter.trigger`.
        trigger_s: Time from the beginning of a batch to that of the next.
        max_offsets_per_trigger: Most offsets of both topics in one batch.
        available_now: Take in what is there, then end; nobody is judged.
        tombstones: Whether to bury; without it suspects are only shown.
        accept_new_topic: Go on with a topic that was re-created.
        compacts: Put the history's batches of days that are over into one.
        keep: Snapshots that are kept.
    """

    channel: str
    table: str
    checkpoint: str
    client: ClientSettings
    spark_kafka: Mapping[str, str] = field(repr=False)  # passwords are in it
    trigger: Mapping[str, Any] = field(default_factory=dict)
    trigger_s: float = 5.0
    max_offsets_per_trigger: int = OFFSETS_MAX
    available_now: bool = False
    tombstones: bool = True
    accept_new_topic: bool = False
    view: ViewRules = field(default_factory=ViewRules)
    expiry: ExpiryRules = field(default_factory=ExpiryRules)
    keep: int = 10
    compacts: bool = True
    answer_s: float = 10.0


class TopicTaken(NamedTuple):
    """How a topic stands after a batch.

    Attributes:
        buried: Tombstones written.
        unjudged_s: How long ago the moment was as of which was judged last; None before the first.
    """

    brokers: int
    suspects: int
    buried: int
    unjudged_s: float | None


class Taken(NamedTuple):
    """What a batch did."""

    judged: list[Judged]
    topics: Mapping[str, TopicTaken]
