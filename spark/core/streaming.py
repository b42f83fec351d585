"""The options that all streaming jobs have, and their translation to Spark's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark.core.client_properties import kafka_options
from statechannel.kafka.client_settings import ClientSettings


@dataclass(frozen=True, slots=True)
class Streaming:
    """Options of a streaming job.

    Attributes:
        client: How Kafka is reached.
        channel: Name of the channel; the load topics' names begin with it.
        kafka_properties: Properties of Spark's own client only, by Java's names.
        checkpoint: Folder or URI where Spark keeps how far it is.
        trigger_s: Time from the beginning of a batch to that of the next.
        max_offsets_per_trigger: Most records of a batch; None is no bound.
        available_now: End when all is read that was there at the start.
        conf: Settings of Spark.
        metrics_port: Port on loopback for Prometheus; None serves nothing.
        stop_timeout_s: How long a running batch may take to end after a stop.
        retries: How often a query is started again because Kafka is away.
    """

    client: ClientSettings
    channel: str
    checkpoint: str
    kafka_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    trigger_s: float = 1.0
    max_offsets_per_trigger: int | None = None
    available_now: bool = False
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)  # object stores have secrets in it
    metrics_port: int | None = None
    stop_timeout_s: float = 30.0
    retries: int = 5

    def trigger(self) -> dict[str, Any]:
        """Arguments of `DataStreamWriter.trigger`."""
        if self.available_now:
            return {"availableNow": True}
        return {"processingTime": f"{round(self.trigger_s * 1_000)} milliseconds"}

    def kafka(self) -> dict[str, str]:
        """Options by which the source and the sink reach Kafka."""
        return kafka_options(self.client, self.kafka_properties, read_text=lambda path: Path(path).read_text("utf-8"))

    def source(self, *topics: str) -> dict[str, str]:
        """Options of a source that reads these topics from their beginning; a checkpoint knows better.

        What is gone from the log is an error, never passed over in silence.
        """
        options = self.kafka() | {
            "subscribe": ",".join(topics),
            "startingOffsets": "earliest",
            "failOnDataLoss": "true",
            "includeHeaders": "true",
        }
        if self.max_offsets_per_trigger is not None:
            options["maxOffsetsPerTrigger"] = str(self.max_offsets_per_trigger)
        return options
