"""What the usual configurations of the JMX exporter call Kafka's metrics. Data: design/partitions-samples.md has the table.

Names differ in upper and lower case from one configuration to the next, so they are compared without. For each figure the
first rule counts that a broker has a series for: one-minute rates, as the document has them, before counters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Figure(StrEnum):
    """What is looked for."""

    BYTES_IN = "bytes in"
    BYTES_OUT = "bytes out"
    REPLICATION_IN = "replication in"
    LOG_SIZE = "log size"
    CPU = "cpu"
    PROCESSORS = "processors"


class Kind(StrEnum):
    """What a series says."""

    VALUE = "value"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class NameRule:
    """One name of one figure.

    Attributes:
        figure: What it is.
        name: Of the series, in lower case.
        kind: A value (a rate, a size, a share), or a total whose growth per second is the value.
        mbean: What the label `name` has to say; empty: anything.
        per_processor: The value is in processors: divided by how many the machine has.
    """

    figure: Figure
    name: str
    kind: Kind
    mbean: str = ""
    per_processor: bool = False


_TRAFFIC: Final = "kafka_server_brokertopicmetrics"


def _traffic(figure: Figure, mbean: str) -> tuple[NameRule, ...]:
    short = mbean.lower().removesuffix("persec")
    return (
        NameRule(figure, f"{_TRAFFIC}_{short}persec_oneminuterate", Kind.VALUE),
        NameRule(figure, f"{_TRAFFIC}_{short}_oneminuterate", Kind.VALUE),
        NameRule(figure, f"{_TRAFFIC}_oneminuterate", Kind.VALUE, mbean),
        NameRule(figure, f"{_TRAFFIC}_{short}_total", Kind.TOTAL),
        NameRule(figure, f"{_TRAFFIC}_{short}persec_total", Kind.TOTAL),
        NameRule(figure, f"{_TRAFFIC}_{short}persec_count", Kind.TOTAL),
        NameRule(figure, f"{_TRAFFIC}_{short}_count", Kind.TOTAL),
        NameRule(figure, f"{_TRAFFIC}_count", Kind.TOTAL, mbean),
    )


RULES: Final[Sequence[NameRule]] = (
    *_traffic(Figure.BYTES_IN, "BytesInPerSec"),
    *_traffic(Figure.BYTES_OUT, "BytesOutPerSec"),
    *_traffic(Figure.REPLICATION_IN, "ReplicationBytesInPerSec"),
    NameRule(Figure.LOG_SIZE, "kafka_log_log_size", Kind.VALUE),
    NameRule(Figure.LOG_SIZE, "kafka_log_log_size_value", Kind.VALUE),
    NameRule(Figure.LOG_SIZE, "kafka_log_log_value", Kind.VALUE, "Size"),
    NameRule(Figure.CPU, "java_lang_operatingsystem_processcpuload", Kind.VALUE),
    NameRule(Figure.CPU, "process_cpu_usage", Kind.VALUE),
    NameRule(Figure.CPU, "process_cpu_seconds_total", Kind.TOTAL, per_processor=True),
    NameRule(Figure.PROCESSORS, "java_lang_operatingsystem_availableprocessors", Kind.VALUE),
    NameRule(Figure.PROCESSORS, "system_cpu_count", Kind.VALUE),
)
"""In order of preference for each figure."""

TOPIC: Final = "topic"
PARTITION: Final = "partition"
MBEAN: Final = "name"


def rules_of(figure: Figure) -> tuple[NameRule, ...]:
    """The rules of one figure, in order."""
    return tuple(rule for rule in RULES if rule.figure is figure)
