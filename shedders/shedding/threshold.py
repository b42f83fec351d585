"""ThresholdShedder: brokers well above the average give bundles away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum
from typing import Any, ClassVar

from pydantic import Field

from shedders.model.amounts import rate
from shedders.model.cluster import Cluster
from shedders.model.plan import Plan, Reason
from shedders.model.readings import MIB, HistorySettings, SheddingSettings, Smoothed
from shedders.model.strategy import CanTake, StrategySettings
from shedders.shedding.draft import Draft, LoadToGive, Measure, Receivers, bytes_of, greedy, messages_of

MARGIN = 0.05


class ThresholdSettings(HistorySettings, SheddingSettings):
    threshold_percent: float = Field(
        default=10.0,
        ge=0,
        description="A broker this many points above the average gives bundles away "
        "(loadBalancerBrokerThresholdShedderPercentage).",
    )
    min_unload_mib_per_s: float = Field(
        default=10.0,
        ge=0,
        description="Less than this is not worth moving, in MiB a second (loadBalancerBundleUnloadMinThroughputThreshold).",
    )
    min_unload_msg_per_s: float = Field(
        default=1000.0,
        ge=0,
        description="A broker with too few bytes is judged by its messages; fewer than this, in messages a second, "
        "are not worth moving either. Ours: upstream never relieves a broker that is busy with small messages.",
    )
    lower_boundary: bool = Field(
        default=False,
        description="If no broker is above: let the highest one give to those as far below (lowerBoundarySheddingEnabled).",
    )


@dataclass(frozen=True, slots=True)
class SmoothedUsage:
    """A broker's smoothed usage (H) and its present one (r)."""

    smoothed: float
    present: float

    @property
    def least(self) -> float:
        """The lower one: its certain usage."""
        return min(self.smoothed, self.present)

    @property
    def most(self) -> float:
        """The higher one: its possible usage."""
        return max(self.smoothed, self.present)


class ThresholdShedder:
    """Keeps brokers within a threshold of the average usage.

    With r the weighted maximum of CPU, direct memory and bandwidths (0 to 1), H its moving average, t the threshold and
    "above" the smaller of H - mean(H) and r - mean(r), a broker gives away if above >= t:

        share of its traffic = min(above - t + 0.05, above) / r

    Largest bundles first that fit in it, each only if the least loaded broker ends below this one's load (`draft.level`).
    Lower boundary: if nothing moves so far, and a broker is more than t below both means, then the highest broker that is
    not, and has more than one bundle, gives t / 2 / r of its traffic to those that are below.

    Example (also a test): A has 0.8 and B 0.42, so the mean is 0.61, and A is 0.19 above, t = 0.1. The share is
    (0.19 - 0.1 + 0.05) / 0.8 = 0.175. A has 320 MiB/s, so 56 MiB/s should go: of bundles with 200, 80, 30 and 10 those with
    30 and 10 fit. 16 are missing, more than the floor of 10; the smallest larger one has 80, which weigh 0.2. B is at
    0.42 + 0.075 + 0.025 = 0.52 and would end at 0.72, A is at 0.7: that lowers nothing, and it stays.
    With `upstream` the share is 0.14 (points taken for a part), so 44.8 MiB/s, and the bundle with 200 goes.

    Words for brokers left alone: `within-threshold`, `sole-bundle` (or none: nothing to spread), `little-traffic`,
    `nothing-fits`; and those of `shedders.shedding.draft`.

    `upstream`: H alone decides (it lags: after a perfect move the source is emptied further), advances by one step a decision,
    and by two if the lower boundary is checked; bundles go largest first until there are enough, at least one of
    any size. Upstream takes brokers and equal bundles in the order of its hash maps, we by name: so the mean may differ
    in its last bit, and of equally heavy bundles another one may go. Source: `ThresholdShedder` of Pulsar 4.2.4, PIP-217,
    pull request 17456; corrections: design/decisions/0024, 0025, 0026.

    Args:
        can_take: Filters; without it every broker may take every bundle.
    """

    name: ClassVar[str] = "threshold"
    Settings: ClassVar[type[StrategySettings]] = ThresholdSettings
    lower_part: ClassVar[float] = 0.5
    """Part of the threshold by which the highest broker is relieved for the lower boundary."""
    lower_always: ClassVar[bool] = False
    """Upstream checks the lower boundary regardless of the settings."""
    lower_needs_bundles: ClassVar[bool] = True
    """Upstream searches the highest broker only among those with more than one bundle."""

    def __init__(self, settings: ThresholdSettings, can_take: CanTake | None = None) -> None:
        self.settings = settings
        self._can_take = can_take

    def plan(self, cluster: Cluster, memory: Mapping[str, Any]) -> Plan:
        """Decide once; remembers smoothed usages."""
        draft = Draft(self.name, cluster, self.settings, memory, self.settings.weights, self._can_take)
        if draft.stopped is not None:
            return draft.stopped
        smoothed = Smoothed.recall(memory, cluster.brokers)
        decide = self._as_upstream if self.settings.upstream else self._corrected
        answer = decide(draft, smoothed)
        draft.scores = {name: smoothed.usage[name] for name in draft.loads}
        draft.memory = smoothed.as_memory()
        return draft.plan(*answer)

    def _corrected(self, draft: Draft, smoothed: Smoothed) -> tuple[str, Reason]:
        settings, usages = self.settings, dict[str, SmoothedUsage]()
        for name, present in draft.usages.items():
            measured_at_ms = draft.loads[name].updated_at_ms or draft.cluster.now_ms
            usages[name] = SmoothedUsage(smoothed.advance(name, present, measured_at_ms, settings), present)
        mean = SmoothedUsage(
            fsum(usage.smoothed for usage in usages.values()) / len(usages),
            fsum(usage.present for usage in usages.values()) / len(usages),
        )
        threshold = settings.threshold_percent / 100.0
        draft.stats.update(average=mean.smoothed, average_present=mean.present, threshold=threshold)
        above = {
            name: min(usage.smoothed - mean.smoothed, usage.present - mean.present) for name, usage in usages.items()
        }
        high = sorted((name for name in usages if above[name] >= threshold), key=lambda name: (-above[name], name))
        for name in usages:
            if above[name] < threshold:
                draft.leave(name, "within-threshold", _usage_text(usages[name], mean, threshold))
        receivers = draft.receivers({name: usage.most for name, usage in usages.items()}, high)
        for name in high:
            part = min(above[name] - threshold + MARGIN, above[name])
            self._relieve(draft, name, usages[name], part, receivers, Reason.OVERLOADED)
        if not draft.moves and settings.lower_boundary:
            self._lower(draft, usages, mean, threshold)
        if high:
            return f"{len(high)} above the average by {threshold:.3f}, none could be relieved", Reason.NO_BUNDLES
        return f"no broker is {threshold:.3f} above the average {mean.smoothed:.3f}", Reason.HIT_COUNT

    def _lower(self, draft: Draft, usages: Mapping[str, SmoothedUsage], mean: SmoothedUsage, threshold: float) -> None:
        lowest = {
            name: usage.most
            for name, usage in usages.items()
            if usage.smoothed < mean.smoothed - threshold and usage.present < mean.present - threshold
        }
        owners = [name for name in usages if draft.size(name) > 1 and name not in lowest]
        if not lowest or not owners:
            return
        top = min(owners, key=lambda name: (-usages[name].least, name))
        receivers = draft.receivers(lowest, [top])
        self._relieve(draft, top, usages[top], threshold * self.lower_part, receivers, Reason.UNDERLOADED)

    def _relieve(
        self, draft: Draft, name: str, usage: SmoothedUsage, part: float, receivers: Receivers, reason: Reason
    ) -> None:
        situation = f"{name} is at {usage.present:.3f} (smoothed {usage.smoothed:.3f})"
        if draft.size(name) <= 1:
            draft.leave(name, "sole-bundle", f"{situation}, but {draft.size(name)} bundles: nothing to spread")
            return
        measure, need = self._need(draft, name, usage, part)
        if need is None:
            draft.leave(name, "little-traffic", f"{situation}; {part:.3f} of it is too little traffic to move")
        else:
            draft.relieve(need, measure, receivers, reason, situation)

    def _need(self, draft: Draft, name: str, usage: SmoothedUsage, part: float) -> tuple[Measure, LoadToGive | None]:
        share = min(part / usage.present, 1.0) if usage.present > 0 else 0.0
        floors: tuple[tuple[Measure, float], ...] = (
            (bytes_of, self.settings.min_unload_mib_per_s * MIB),
            (messages_of, self.settings.min_unload_msg_per_s),
        )
        for measure, floor in floors:
            total = draft.total(name, measure)
            if total > 0 and share > 0 and total * share >= floor:
                return measure, LoadToGive(name, total * share, floor, usage.least, usage.present / total)
        return bytes_of, None

    def _as_upstream(self, draft: Draft, smoothed: Smoothed) -> tuple[str, Reason]:
        threshold = self.settings.threshold_percent / 100.0
        average = self._feed(draft, smoothed)
        draft.stats.update(average=average, threshold=threshold)
        high = 0
        # An average of nothing ends the threshold's part; the range shedder goes on to its own and finds nothing.
        for name, load in draft.loads.items() if average != 0 else ():
            usage = smoothed.usage[name]
            if usage < average + threshold:
                draft.leave(
                    name, "within-threshold", f"usage {usage:.3f}, average {average:.3f}, threshold {threshold:.3f}"
                )
                continue
            high += 1
            need = load.msg_throughput * (usage - average - threshold + MARGIN)
            self._take(draft, name, need, Reason.OVERLOADED, needs_bundles=True)
        if not draft.counted and (self.settings.lower_boundary or self.lower_always) and average != 0:
            self._lower_as_upstream(draft, smoothed)
        if high:
            return f"{high} above the average {average:.3f} by {threshold:.3f}, none relieved", Reason.NO_BUNDLES
        return f"no broker is {threshold:.3f} above the average {average:.3f}", Reason.HIT_COUNT

    def _feed(self, draft: Draft, smoothed: Smoothed) -> float:
        total = 0.0
        for name, usage in draft.usages.items():
            total += smoothed.count(name, usage, self.settings.history_share)
        return total / len(draft.loads)

    def _lower_as_upstream(self, draft: Draft, smoothed: Smoothed) -> None:
        threshold = self.settings.threshold_percent / 100.0
        average = self._feed(draft, smoothed)
        top, highest, low = None, average - threshold if self.lower_needs_bundles else -1.0, False
        for name in draft.loads:
            usage = smoothed.usage[name]
            if usage > highest and (draft.size(name) > 1 or not self.lower_needs_bundles):
                top, highest = name, usage
            low = low or usage < average - threshold
        if top is None or not low or draft.size(top) <= 1:
            return
        need = draft.loads[top].msg_throughput * threshold * self.lower_part
        self._take(draft, top, need, Reason.UNDERLOADED, needs_bundles=False)

    def _take(self, draft: Draft, name: str, need: float, reason: Reason, *, needs_bundles: bool) -> None:
        floor = self.settings.min_unload_mib_per_s * MIB
        if need < floor:
            draft.leave(name, "little-traffic", f"{rate(need)} to give, less than {rate(floor)}")
        elif needs_bundles and draft.size(name) <= 1:
            draft.leave(name, "sole-bundle", f"{draft.size(name)} bundles: nothing to spread")
        else:
            for bundle, weight in greedy(draft.weighed(name, bytes_of), need):
                draft.move(bundle, name, reason, weight, f"{name} should give {rate(need)}; this is {rate(weight)}")


def _usage_text(usage: SmoothedUsage, mean: SmoothedUsage, threshold: float) -> str:
    return (
        f"usage {usage.present:.3f} (smoothed {usage.smoothed:.3f}), average {mean.present:.3f} ({mean.smoothed:.3f}), "
        f"threshold {threshold:.3f}"
    )


class RangeThresholdSettings(ThresholdSettings):
    lower_boundary: bool = Field(default=True, description="Check the lower boundary; with upstream always.")


class RangeThresholdShedder(ThresholdShedder):
    """Like `ThresholdShedder`; if no broker is above the range, the highest one gives to those below it.

        share of its traffic = t / r          (`upstream`: t)

    which is twice what the threshold shedder's lower boundary gives.

    Example (also a test): ten brokers at 0.8 and one at 0, so the mean is 0.727; none reaches 0.827, one is below 0.627.
    The highest (the first by name) has 400 MiB/s and gives 0.1 / 0.8 = 1/8 of it, 50 MiB/s: of bundles with 300, 60, 30 and
    10 those with 30 and 10. 10 are missing, as much as the floor, and the smallest larger one has 60, which weigh 0.12: the
    idle broker is at 0.08 and ends at 0.2, the highest one is at 0.72, so it goes as well. With `upstream` it should be
    40 MiB/s, and the bundle with 300 goes.

    `upstream`: the highest broker is the highest of all, and if it has a single bundle nothing happens. Pulsar 4.2.4 no
    longer has this class. Source: `RangeThresholdShedder` (pull request 17456), later folded into the threshold shedder.
    """

    name: ClassVar[str] = "range-threshold"
    Settings: ClassVar[type[StrategySettings]] = RangeThresholdSettings
    lower_part: ClassVar[float] = 1.0
    lower_always: ClassVar[bool] = True
    lower_needs_bundles: ClassVar[bool] = False
