"""What all streaming jobs are told, and what becomes of it in Spark's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Streaming:
    """Options of a streaming job.

    Attributes:
        bootstrap_servers: Kafka's addresses.
        channel: Name of the channel; the load topics' names begin with it.
        properties: Client properties by their Java names, for everything that speaks to Kafka.
        checkpoint: Folder or URI where Spark keeps how far it is.
        trigger_s: Time from the beginning of a batch to that of the next.
        max_offsets_per_trigger: Most records of a batch; None is no bound.
        available_now: End when all is read that was there at the start.
        conf: Settings of Spark.
        metrics_port: Port on loopback for Prometheus; None serves nothing.
        stop_timeout_s: How long a running batch may take to end after a stop.
        retries: How often a query is started again because Kafka is away.
    """

    bootstrap_servers: str
    channel: str
    checkpoint: str
    properties: Mapping[str, str] = field(default_factory=dict)
    trigger_s: float = 1.0
    max_offsets_per_trigger: int | None = None
    available_now: bool = False
    conf: Mapping[str, str] = field(default_factory=dict)
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
        return kafka_options(self.bootstrap_servers, self.properties)

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


def kafka_options(bootstrap_servers: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Options of Spark's Kafka source and sink, from addresses and client properties."""
    given = {f"kafka.{name}": value for name, value in properties.items()}
    return given | {"kafka.bootstrap.servers": bootstrap_servers}
