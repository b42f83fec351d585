"""The conversion of metric series into a broker's reading: names to figures, totals to rates over two scrapes. No I/O."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from loaddata.samples.formulas import BrokerReading, FigureOrHole, Hole, sound


class Figure(StrEnum):
    """A figure that is looked for in the series."""

    BYTES_IN = "bytes in"
    BYTES_OUT = "bytes out"
    REPLICATION_IN = "replication in"
    LOG_SIZE = "log size"
    CPU = "cpu"
    PROCESSORS = "processors"


class SeriesKind(StrEnum):
    """Whether a series is a value or a running total."""

    VALUE = "value"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class NameRule:
    """One name of one figure.

    Attributes:
        figure: What it is.
        name: Of the series, in lower case.
        kind: A value (a rate, a size, a share), or a total whose growth per second is the value.
        mbean: The value that the label `name` must have; empty: any.
        per_processor: The value is in processors: divided by how many the machine has.
    """

    figure: Figure
    name: str
    kind: SeriesKind
    mbean: str = ""
    per_processor: bool = False


_TRAFFIC: Final = "kafka_server_brokertopicmetrics"


def _traffic(figure: Figure, mbean: str) -> tuple[NameRule, ...]:
    short = mbean.lower().removesuffix("persec")
    return (
        NameRule(figure, f"{_TRAFFIC}_{short}persec_oneminuterate", SeriesKind.VALUE),
        NameRule(figure, f"{_TRAFFIC}_{short}_oneminuterate", SeriesKind.VALUE),
        NameRule(figure, f"{_TRAFFIC}_oneminuterate", SeriesKind.VALUE, mbean),
        NameRule(figure, f"{_TRAFFIC}_{short}_total", SeriesKind.TOTAL),
        NameRule(figure, f"{_TRAFFIC}_{short}persec_total", SeriesKind.TOTAL),
        NameRule(figure, f"{_TRAFFIC}_{short}persec_count", SeriesKind.TOTAL),
        NameRule(figure, f"{_TRAFFIC}_{short}_count", SeriesKind.TOTAL),
        NameRule(figure, f"{_TRAFFIC}_count", SeriesKind.TOTAL, mbean),
    )


RULES: Final[Sequence[NameRule]] = (
    *_traffic(Figure.BYTES_IN, "BytesInPerSec"),
    *_traffic(Figure.BYTES_OUT, "BytesOutPerSec"),
    *_traffic(Figure.REPLICATION_IN, "ReplicationBytesInPerSec"),
    NameRule(Figure.LOG_SIZE, "kafka_log_log_size", SeriesKind.VALUE),
    NameRule(Figure.LOG_SIZE, "kafka_log_log_size_value", SeriesKind.VALUE),
    NameRule(Figure.LOG_SIZE, "kafka_log_log_value", SeriesKind.VALUE, "Size"),
    NameRule(Figure.CPU, "java_lang_operatingsystem_processcpuload", SeriesKind.VALUE),
    NameRule(Figure.CPU, "process_cpu_usage", SeriesKind.VALUE),
    NameRule(Figure.CPU, "process_cpu_seconds_total", SeriesKind.TOTAL, per_processor=True),
    NameRule(Figure.PROCESSORS, "java_lang_operatingsystem_availableprocessors", SeriesKind.VALUE),
    NameRule(Figure.PROCESSORS, "system_cpu_count", SeriesKind.VALUE),
)
"""In order of preference for each figure."""

TOPIC: Final = "topic"
PARTITION: Final = "partition"
MBEAN: Final = "name"


def rules_of(figure: Figure) -> tuple[NameRule, ...]:
    """The rules of one figure, in order."""
    return tuple(rule for rule in RULES if rule.figure is figure)


Part = tuple[str, int]
"""Topic and partition; "" and -1 where a series is of the whole broker, -1 where it is of a topic."""
BROKER: Part = ("", -1)
_NUMBER: Final = re.compile(r"[0-9]{1,10}", re.ASCII)

_BY_NAME: Mapping[str, tuple[NameRule, ...]] = {
    name: tuple(rule for rule in RULES if rule.name == name) for name in {rule.name for rule in RULES}
}


class SeriesPoint(NamedTuple):
    """One series at one moment."""

    name: str
    labels: Mapping[str, str]
    value: float


def rule_of(point: SeriesPoint) -> NameRule | None:
    """What a series is; None where it is nothing that is asked for."""
    for rule in _BY_NAME.get(point.name.lower(), ()):
        if not rule.mbean or point.labels.get(MBEAN, "").lower() == rule.mbean.lower():
            return rule
    return None


def part_of(labels: Mapping[str, str]) -> Part | None:
    """Which topic and partition a series is of; None where its partition is not a number."""
    topic = labels.get(TOPIC, "").strip('"')
    number = labels.get(PARTITION, "")
    if not number:
        return topic, -1
    return (topic, int(number)) if _NUMBER.fullmatch(number) else None


def grouped(points: Iterable[SeriesPoint]) -> dict[NameRule, dict[Part, float]]:
    """All series that are asked for, by rule; of two with the same labels the last one counts."""
    by_rule: dict[NameRule, dict[Part, float]] = defaultdict(dict)
    for point in points:
        rule = rule_of(point)
        part = part_of(point.labels) if rule is not None else None
        if rule is not None and part is not None:
            by_rule[rule][part] = point.value
    return by_rule


@dataclass(slots=True)
class TotalsBefore:
    """Totals of the look before, of one broker."""

    seen: dict[tuple[NameRule, Part], tuple[float, float]] = field(default_factory=dict)

    def rate(self, rule: NameRule, part: Part, total: float, at_s: float) -> FigureOrHole:
        """Growth per second since the look before; a hole where there was none, or where it went back (a restart).

        Args:
            at_s: Monotonic time of this look.
        """
        checked = sound(total)
        if isinstance(checked, Hole):
            return checked
        before = self.seen.get((rule, part))
        self.seen[rule, part] = total, at_s
        if before is None or at_s <= before[1]:
            return Hole.FIRST_LOOK
        return (total - before[0]) / (at_s - before[1]) if total >= before[0] else Hole.WENT_BACK


def reading_of(points: Iterable[SeriesPoint], before: TotalsBefore, at_s: float) -> BrokerReading:
    """The reading of a broker from its series.

    Args:
        points: All that it exports; what is not asked for is left out.
        before: Its totals of the look before; this look's take their place.
        at_s: Monotonic time.
    """
    series = grouped(points)
    return assembled({figure: _figures(figure, series, before, at_s) for figure in Figure})


def _figures(
    figure: Figure, by_rule: Mapping[NameRule, Mapping[Part, float]], before: TotalsBefore, at_s: float
) -> dict[Part, FigureOrHole]:
    for rule in rules_of(figure):
        series = by_rule.get(rule)
        if not series:
            continue
        if rule.kind is SeriesKind.VALUE:
            return dict(series)
        rates = {part: before.rate(rule, part, total, at_s) for part, total in series.items()}
        if rule.per_processor:
            processors = _figures(Figure.PROCESSORS, by_rule, before, at_s).get(BROKER, Hole.NOT_TOLD)
            return {part: by_processor(rate, processors) for part, rate in rates.items()}
        return rates
    return {}


def by_processor(used: FigureOrHole, processors: FigureOrHole) -> FigureOrHole:
    """The share of all processors for a number of used ones."""
    if isinstance(used, Hole) or isinstance(processors, Hole):
        return used if isinstance(used, Hole) else Hole.NOT_TOLD
    return used / processors if processors > 0 else Hole.ZERO_DENOMINATOR


def assembled(figures: Mapping[Figure, Mapping[Part, FigureOrHole]]) -> BrokerReading:
    """A reading from figures by topic and partition."""

    def of_topics(figure: Figure) -> dict[str, FigureOrHole]:
        return {topic: value for (topic, number), value in figures.get(figure, {}).items() if topic and number < 0}

    def of_broker(figure: Figure) -> FigureOrHole:
        return figures.get(figure, {}).get(BROKER, Hole.NOT_TOLD)

    return BrokerReading(
        bytes_in=of_broker(Figure.BYTES_IN),
        replication_in=of_broker(Figure.REPLICATION_IN),
        cpu=of_broker(Figure.CPU),
        topic_in=of_topics(Figure.BYTES_IN),
        topic_out=of_topics(Figure.BYTES_OUT),
        log_bytes={part: value for part, value in figures.get(Figure.LOG_SIZE, {}).items() if part[0] and part[1] >= 0},
    )
