"""From series of metrics to what a broker tells: names to figures, and totals to rates over two looks. No clock, no I/O."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from loaddata.partitions.formulas import BrokerReading, Hole, Told, sound
from loaddata.partitions.metric_names import MBEAN, PARTITION, RULES, TOPIC, Figure, Kind, NameRule, rules_of

Part = tuple[str, int]
"""Topic and partition; "" and -1 where a series is of the whole broker, -1 where it is of a topic."""
BROKER: Part = ("", -1)
_NUMBER: Final = re.compile(r"[0-9]{1,10}", re.ASCII)

_BY_NAME: Mapping[str, tuple[NameRule, ...]] = {
    name: tuple(rule for rule in RULES if rule.name == name) for name in {rule.name for rule in RULES}
}


class Point(NamedTuple):
    """One series at one moment."""

    name: str
    labels: Mapping[str, str]
    value: float


def rule_of(point: Point) -> NameRule | None:
    """What a series is; None where it is nothing that is asked for."""
    for rule in _BY_NAME.get(point.name.lower(), ()):
        if not rule.mbean or point.labels.get(MBEAN, "").lower() == rule.mbean.lower():
            return rule
    return None


def part_of(labels: Mapping[str, str]) -> Part | None:
    """Which topic and partition a series is of; None where its partition is no number."""
    topic = labels.get(TOPIC, "").strip('"')
    number = labels.get(PARTITION, "")
    if not number:
        return topic, -1
    return (topic, int(number)) if _NUMBER.fullmatch(number) else None


def grouped(points: Iterable[Point]) -> dict[NameRule, dict[Part, float]]:
    """All series that are asked for, by rule; of two with the same labels the last one counts."""
    found: dict[NameRule, dict[Part, float]] = defaultdict(dict)
    for point in points:
        rule = rule_of(point)
        part = part_of(point.labels) if rule is not None else None
        if rule is not None and part is not None:
            found[rule][part] = point.value
    return found


@dataclass(slots=True)
class TotalsBefore:
    """Totals of the look before, of one broker."""

    seen: dict[tuple[NameRule, Part], tuple[float, float]] = field(default_factory=dict)

    def rate(self, rule: NameRule, part: Part, total: float, at_s: float) -> Told:
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


def reading_of(points: Iterable[Point], before: TotalsBefore, at_s: float) -> BrokerReading:
    """What a broker tells by its series.

    Args:
        points: All that it exports; what is not asked for is left out.
        before: Its totals of the look before; this look's take their place.
        at_s: Monotonic time.
    """
    found = grouped(points)
    told = {figure: _told(figure, found, before, at_s) for figure in Figure}
    return assembled(told)


def _told(
    figure: Figure, found: Mapping[NameRule, Mapping[Part, float]], before: TotalsBefore, at_s: float
) -> dict[Part, Told]:
    for rule in rules_of(figure):
        series = found.get(rule)
        if not series:
            continue
        if rule.kind is Kind.VALUE:
            return dict(series)
        rates = {part: before.rate(rule, part, total, at_s) for part, total in series.items()}
        if rule.per_processor:
            processors = _told(Figure.PROCESSORS, found, before, at_s).get(BROKER, Hole.NOT_TOLD)
            return {part: by_processor(rate, processors) for part, rate in rates.items()}
        return rates
    return {}


def by_processor(used: Told, processors: Told) -> Told:
    """Part of all processors that so many of them are."""
    if isinstance(used, Hole) or isinstance(processors, Hole):
        return used if isinstance(used, Hole) else Hole.NOT_TOLD
    return used / processors if processors > 0 else Hole.ZERO_DENOMINATOR


def assembled(told: Mapping[Figure, Mapping[Part, Told]]) -> BrokerReading:
    """A reading from figures by topic and partition."""

    def of_topics(figure: Figure) -> dict[str, Told]:
        return {topic: value for (topic, number), value in told.get(figure, {}).items() if topic and number < 0}

    def of_broker(figure: Figure) -> Told:
        return told.get(figure, {}).get(BROKER, Hole.NOT_TOLD)

    return BrokerReading(
        bytes_in=of_broker(Figure.BYTES_IN),
        replication_in=of_broker(Figure.REPLICATION_IN),
        cpu=of_broker(Figure.CPU),
        topic_in=of_topics(Figure.BYTES_IN),
        topic_out=of_topics(Figure.BYTES_OUT),
        log_bytes={part: value for part, value in told.get(Figure.LOG_SIZE, {}).items() if part[0] and part[1] >= 0},
    )
