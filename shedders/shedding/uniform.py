"""UniformLoadShedder: the busiest broker gives to the others when it is too far from the idlest."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from shedders.model.amounts import BYTES, MESSAGES, rate
from shedders.model.cluster import Cluster
from shedders.model.plan import Plan, Reason
from shedders.model.readings import SheddingSettings
from shedders.model.strategy import CanTake, StrategySettings
from shedders.shedding.draft import Draft, LoadToGive, Measure, bytes_of, messages_of, unit_of

HALF = 0.5  # the share that levels a pair; more would reverse the difference
_RECEIVERS = 64
"""Number of the least loaded brokers that are considered, in addition to those as idle as the last of them."""

_JAVA_INT_MAX = 2**31 - 1
_NOTHING = 1e-6


class UniformSettings(SheddingSettings):
    max_rate_difference_percent: float = Field(
        default=50.0,
        description="Allowed difference of the message rates of the busiest and the idlest broker, in percent of the lower; 0 or "
        "less: not checked (loadBalancerMsgRateDifferenceShedderThreshold).",
    )
    max_throughput_ratio: float = Field(
        default=4.0,
        description="Allowed ratio of the throughputs of the busiest and the idlest broker; 0 or less: not checked "
        "(loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold).",
    )
    min_unload_msg_per_s: int = Field(
        default=1000, ge=0, description="Fewer messages a second are not worth moving (minUnloadMessage)."
    )
    min_unload_bytes_per_s: int = Field(
        default=1024 * 1024, ge=0, description="Fewer bytes a second are not worth moving (minUnloadMessageThroughput)."
    )
    max_unload_share: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="Part of the difference between the two that is moved; 0.5 would make them equal, and more counts as 0.5 "
        "(maxUnloadPercentage; upstream takes it as it is).",
    )
    max_bundles_per_cycle: int | None = Field(
        default=None, ge=0, description="No more bundles at a time; none: no limit (maxUnloadBundleNumPerShedding, -1)."
    )


@dataclass(frozen=True, slots=True)
class _Gap:
    """The busiest and the idlest broker in one measure.

    Attributes:
        floor: Less is not worth moving.
    """

    measure: Measure
    unit: str
    top: str
    highest: float
    bottom: str
    lowest: float
    wide: bool
    floor: float

    @property
    def text(self) -> str:
        return f"{self.top} has {rate(self.highest, self.unit)}, {self.bottom} {rate(self.lowest, self.unit)}"


class UniformLoadShedder:
    """Lets the busiest broker give part of its excess over the idlest; by messages, else by bytes; usage does not matter.

    - Too far apart: max - min > min * d (messages, d = `max_rate_difference_percent` / 100), max > min * m (bytes).
    - Q = (max - min) * min(`max_unload_share`, 0.5). Less than the floor is left.
    - The busiest gives bundles that fit in Q, the heaviest first, each only if the idlest broker ends below its load.

    A broker's traffic is taken from its report and from the averages of its bundles: the lower one if it is to give, the
    higher one if it is to receive. If both measures are too far apart, messages are tried first, then bytes.

    Example (also a test): A has 10,000 messages/s and B 2,000, a difference of 400 %. Q = 8,000 * 0.2 = 1,600. Of bundles with
    6,000, 2,500, 900 and 600 those with 900 and 600 go; the missing 100 are less than the floor of 1,000. With `upstream`
    likewise. If B has 0, upstream assumes 1: Q = 9,999 * 0.2, cut to 1,999.

    Words for brokers left alone: `within-range`, `below-floor`, `sole-bundle` (or none), `nothing-fits`; and those of
    `shedders.shedding.draft`.

    `upstream`: reports alone; Q is cut to a whole number of at most 2^31 - 1, as is each bundle where it is subtracted;
    a minimum of nothing counts as 1, one of 2^31 - 1 or more is not found; idle bundles fit as well; if messages are too far
    apart bytes are not checked. Ties between brokers and between bundles are broken by upstream's hash map, here by name.
    Source: `UniformLoadShedder` of Pulsar 4.2.4, pull request 19890; corrections: design/decisions/0027.

    Args:
        can_take: Filters; without it every broker may take every bundle.
    """

    name: ClassVar[str] = "uniform"
    Settings: ClassVar[type[StrategySettings]] = UniformSettings

    def __init__(self, settings: UniformSettings, can_take: CanTake | None = None) -> None:
        self.settings = settings
        self._can_take = can_take

    def plan(self, cluster: Cluster, memory: Mapping[str, Any]) -> Plan:  # noqa: ARG002  (of the port)
        draft = Draft(self.name, cluster, self.settings, {}, None, self._can_take)
        if draft.stopped is not None:
            return draft.stopped
        draft.scores = {name: load.msg_throughput for name, load in draft.loads.items()}
        why, reason = self._as_upstream(draft) if self.settings.upstream else self._corrected(draft)
        return draft.plan(why, reason)

    def _corrected(self, draft: Draft) -> tuple[str, Reason]:
        seen: list[str] = []
        wide = False
        for gap, receivers in (self._gap(draft, messages_of), self._gap(draft, bytes_of)):
            seen.append(gap.text)
            if not gap.wide:
                continue
            wide = True
            quota = (gap.highest - gap.lowest) * min(self.settings.max_unload_share, HALF)
            if draft.size(gap.top) <= 1:
                draft.leave(gap.top, "sole-bundle", f"{gap.text}, but {draft.size(gap.top)} bundles")
            elif quota < gap.floor or quota <= 0:
                draft.leave(
                    gap.top,
                    "below-floor",
                    f"{gap.text}; {rate(quota, gap.unit)} is less than {rate(gap.floor, gap.unit)}",
                )
            else:
                need = LoadToGive(gap.top, quota, gap.floor, gap.highest, 1.0)
                takers = draft.receivers(receivers, [gap.top])
                most = self.settings.max_bundles_per_cycle
                if draft.relieve(need, gap.measure, takers, Reason.OVERLOADED, gap.text, most):
                    break
        why = "; ".join(seen)
        return (f"too far apart, but nothing can go: {why}", Reason.NO_BUNDLES) if wide else self._within(draft, why)

    def _gap(self, draft: Draft, measure: Measure) -> tuple[_Gap, Mapping[str, float]]:
        """The busiest and the idlest broker, and the least loaded brokers with their possible loads.

        Averages are summed only if they may matter after the report: a broker never gives more than it reports, and never has
        less.
        """
        reported = {name: measure(load) for name, load in draft.loads.items()}
        names = sorted(reported, key=lambda name: (reported[name], name))
        top, highest = "", -1.0
        for name in reversed(names):
            if reported[name] < highest:
                break
            giving = min(reported[name], draft.averaged(name, measure))
            if (-giving, name) < (-highest, top):
                top, highest = name, giving
        taking: list[tuple[float, str]] = []
        for name in names:
            if len(taking) >= _RECEIVERS and reported[name] > taking[_RECEIVERS - 1][0]:
                break
            if name != top:
                insort(taking, (max(reported[name], draft.averaged(name, measure)), name))
        bottom = (taking[0][1], taking[0][0])
        return self._between(draft, measure, (top, highest), bottom), {name: load for load, name in taking}

    def _between(self, draft: Draft, measure: Measure, top: tuple[str, float], bottom: tuple[str, float]) -> _Gap:
        settings, highest, lowest = self.settings, top[1], bottom[1]
        if measure is messages_of:
            limit, word, unit = settings.max_rate_difference_percent, "rate", MESSAGES
            wide = limit > 0 and highest - lowest > lowest * limit / 100
            floor = settings.min_unload_msg_per_s
        else:
            limit, word, unit = settings.max_throughput_ratio, "throughput", BYTES
            wide = limit > 0 and highest > max(lowest * limit, lowest)
            floor = settings.min_unload_bytes_per_s
        draft.stats.update({f"{word}_max": highest, f"{word}_min": lowest})
        return _Gap(measure, unit, top[0], highest, bottom[0], lowest, wide, floor)

    def _as_upstream(self, draft: Draft) -> tuple[str, Reason]:
        settings = self.settings
        rate, throughput = _extremes(draft, messages_of), _extremes(draft, bytes_of)
        draft.stats.update(
            rate_max=rate.highest,
            rate_min=rate.lowest,
            throughput_max=throughput.highest,
            throughput_min=throughput.lowest,
        )
        percent = settings.max_rate_difference_percent
        if percent > 0 and (rate.highest - rate.lowest) * 100 / rate.lowest > percent:
            gap, floor = rate, settings.min_unload_msg_per_s
        elif (
            settings.max_throughput_ratio > 0 and throughput.highest / throughput.lowest > settings.max_throughput_ratio
        ):
            gap, floor = throughput, settings.min_unload_bytes_per_s
        else:
            return self._within(draft, f"{rate.text}; {throughput.text}")
        quota = _as_int((gap.highest - gap.lowest) * settings.max_unload_share)
        if draft.size(gap.top) <= 1:
            draft.leave(gap.top, "sole-bundle", f"{gap.text}, but {draft.size(gap.top)} bundles")
        elif quota < floor:
            draft.leave(gap.top, "below-floor", f"{gap.text}; {quota} is less than {floor}")
        else:
            self._take(draft, gap, quota)
        return f"too far apart, but nothing can go: {gap.text}", Reason.NO_BUNDLES

    def _take(self, draft: Draft, gap: _Gap, quota: int) -> None:
        most = self.settings.max_bundles_per_cycle
        for bundle, weight in draft.weighed(gap.top, gap.measure):
            if most is not None and draft.counted >= most:
                return
            if weight <= quota:
                why = f"{gap.text}; this is {weight:.0f} of {quota} that are left to give"
                draft.move(bundle, gap.top, Reason.OVERLOADED, weight, why, unit=unit_of(gap.measure))
                quota -= _as_int(weight)

    def _within(self, draft: Draft, why: str) -> tuple[str, Reason]:
        for name, load in draft.loads.items():
            draft.leave(name, "within-range", f"{rate(load.msg_rate, MESSAGES)}, {rate(load.msg_throughput)}")
        return f"not too far apart: {why}", Reason.HIT_COUNT


def _extremes(draft: Draft, measure: Measure) -> _Gap:
    """The busiest and the idlest broker by the reports, as in upstream."""
    top = bottom = "no broker"
    highest, lowest = -1.0, float(_JAVA_INT_MAX)
    for name, load in draft.loads.items():
        traffic = measure(load)
        if traffic > highest:
            top, highest = name, traffic
        if traffic < lowest:
            bottom, lowest = name, traffic
    if lowest <= _NOTHING:
        lowest = 1.0
    unit = unit_of(measure)
    return _Gap(measure, unit, top, highest, bottom, lowest, wide=False, floor=0.0)


def _as_int(value: float) -> int:
    """A Java cast: truncated towards zero, within the range of an `int`."""
    return max(-_JAVA_INT_MAX - 1, min(_JAVA_INT_MAX, int(value)))
