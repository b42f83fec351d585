"""ThresholdShedder: brokers well above the average give bundles away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from shedders.cluster import Cluster
from shedders.draft import Draft, Measure, bytes_of, messages_of
from shedders.leveling import Need, Receivers, greedy, level
from shedders.plan import Plan, Reason
from shedders.readings import MIB, GraceSettings, may_receive
from shedders.smoothing import HistorySettings, Smoothed
from shedders.strategy import StrategySettings

MARGIN = 0.05


class ThresholdSettings(HistorySettings, GraceSettings):
    """Settings of `threshold`."""

    threshold_percent: float = Field(
        default=10.0,
        gt=0,
        description="So many points above the average a broker gives bundles away "
        "(loadBalancerBrokerThresholdShedderPercentage).",
    )
    min_unload_mib_per_s: float = Field(
        default=10.0,
        ge=0,
        description="Less than this is not worth moving, in MiB a second (loadBalancerBundleUnloadMinThroughputThreshold).",
    )
    min_unload_msg_per_s: float = Field(
        default=1000.0,
        gt=0,
        description="A broker with too few bytes is judged by its messages; fewer than this, in messages a second, "
        "are not worth moving either. Ours: upstream never relieves a broker that is busy with small messages.",
    )
    lower_boundary: bool = Field(
        default=False,
        description="Where nobody is above: let the highest broker give to those as far below (lowerBoundarySheddingEnabled).",
    )


@dataclass(frozen=True, slots=True)
class Usage:
    """A broker's smoothed usage (H) and its present one (r)."""

    smoothed: float
    present: float


class ThresholdShedder:
    """Keeps brokers within a threshold of the average usage.

    With r the weighted maximum of CPU, direct memory and bandwidths (0 to 1), H its moving average, t the threshold and
    "above" the smaller of H - mean(H) and r - mean(r), a broker gives away if above >= t:

        share of its traffic = min(above - t + 0.05, above) / r

    Largest bundles first that fit in it, each only if the least loaded broker ends below where this one stands (`leveling`).

    Example (also a test): A has 0.8 and B 0.4, so the mean is 0.6, and A is 0.2 above, t = 0.1. The share is
    (0.2 - 0.1 + 0.05) / 0.8 = 3/16. A has 320 MiB/s, so 60 MiB/s should go: of bundles with 200, 80, 30 and 10 those with
    30 and 10 fit. 20 are missing, more than the floor of 10; the smallest larger one has 80, which weigh 0.2. B stands at
    0.4 + 0.075 + 0.025 = 0.5 and would end at 0.7, A stands at 0.7: that lowers nothing, and it stays.
    With `upstream` the share is 0.15 (points taken for a part), so 48 MiB/s, and the bundle with 200 goes.

    `upstream`: H alone decides (it lags: after a perfect move the source is emptied further), advances by one step a decision,
    and by two where the lower boundary is looked at; bundles go largest first until there are enough, at least one of
    whatever size. Source: `ThresholdShedder` of Pulsar 4.2.4, PIP-217, pull request 17456.
    """

    name: ClassVar[str] = "threshold"
    Settings: ClassVar[type[StrategySettings]] = ThresholdSettings

    def __init__(self, settings: ThresholdSettings) -> None:
        self.settings = settings

    @property
    def lower_boundary(self) -> bool:
        """Whether the lower boundary is looked at."""
        return self.settings.lower_boundary

    lower_part: ClassVar[float] = 0.5
    """Part of the threshold by which the highest broker is relieved for the lower boundary."""
    lower_needs_bundles: ClassVar[bool] = True
    """The highest broker is looked for only among those with more than one bundle (upstream)."""

    def plan(self, cluster: Cluster, memory: Mapping[str, Any]) -> Plan:
        """Decide once; see the class."""
        draft = Draft(self.name, cluster, self.settings, memory, self.settings.weights)
        if draft.stopped is not None:
            return draft.stopped
        smoothed = Smoothed.recall(memory, cluster.brokers)
        if self.settings.upstream:
            answer = self._as_upstream(draft, smoothed)
        else:
            answer = self._mended(draft, smoothed)
        draft.scores = {name: smoothed.usage[name] for name in draft.loads}
        draft.memory = smoothed.as_memory()
        return draft.plan(*answer)

    def _mended(self, draft: Draft, smoothed: Smoothed) -> tuple[str, Reason]:
        settings, usages = self.settings, dict[str, Usage]()
        for name, load in draft.loads.items():
            present = load.weighted_max(settings.weights)
            measured_at_ms = load.updated_at_ms or draft.cluster.now_ms
            usages[name] = Usage(smoothed.advance(name, present, measured_at_ms, settings), present)
        mean = Usage(
            sum(usage.smoothed for usage in usages.values()) / len(usages),
            sum(usage.present for usage in usages.values()) / len(usages),
        )
        threshold = settings.threshold_percent / 100.0
        draft.stats.update(average=mean.smoothed, average_present=mean.present, threshold=threshold)
        above = {
            name: min(usage.smoothed - mean.smoothed, usage.present - mean.present) for name, usage in usages.items()
        }
        high = sorted((name for name in usages if above[name] >= threshold), key=lambda name: (-above[name], name))
        for name in usages:
            if above[name] < threshold:
                draft.leave(name, "within-threshold", _standing(usages[name], mean, threshold))
        receivers = _receivers(draft, usages, excluding=high)
        for name in high:
            part = min(above[name] - threshold + MARGIN, above[name])
            self._relieve(draft, name, usages[name], part, receivers, Reason.OVERLOADED)
        if not draft.moves and self.lower_boundary:
            self._lower(draft, usages, mean, threshold)
        if high:
            return f"{len(high)} above the average by {threshold:.3f}, none could be relieved", Reason.NO_BUNDLES
        return f"no broker is {threshold:.3f} above the average {mean.smoothed:.3f}", Reason.HIT_COUNT

    def _lower(self, draft: Draft, usages: Mapping[str, Usage], mean: Usage, threshold: float) -> None:
        lowest = {
            name: usage
            for name, usage in usages.items()
            if usage.smoothed < mean.smoothed - threshold and usage.present < mean.present - threshold
        }
        owners = [name for name in usages if draft.size(name) > 1 and name not in lowest]
        if not lowest or not owners:
            return
        top = min(owners, key=lambda name: (-min(usages[name].smoothed, usages[name].present), name))
        receivers = _receivers(draft, lowest, excluding=[top])
        self._relieve(draft, top, usages[top], threshold * self.lower_part, receivers, Reason.UNDERLOADED)

    def _relieve(
        self, draft: Draft, name: str, usage: Usage, part: float, receivers: Receivers, reason: Reason
    ) -> None:
        """Choose what of a broker goes, so that its usage falls by `part` points."""
        if draft.size(name) <= 1:
            draft.leave(
                name, "sole-bundle", f"usage {usage.present:.3f}, but {draft.size(name)} bundles: nothing to spread"
            )
            return
        measure, unit, need = self._need(draft, name, usage, part)
        if need is None:
            draft.leave(
                name, "little-traffic", f"{part:.3f} of usage {usage.present:.3f} is too little traffic to move"
            )
            return
        chosen = level(draft.weighed(name, measure), need, receivers)
        if not chosen:
            least = f"the least loaded has {receivers.least:.3f}" if receivers else "nobody takes any"
            draft.leave(
                name, "nothing-fits", f"no bundle fits into {need.traffic:.0f} {unit} and levels anything; {least}"
            )
        for bundle, weight, receiver in chosen:
            why = (
                f"{name} at {usage.present:.3f} (smoothed {usage.smoothed:.3f}) should give {need.traffic:.0f} {unit}; "
                f"this is {weight:.0f}, and {receiver} could take it"
            )
            draft.move(bundle, name, reason, weight, why)

    def _need(self, draft: Draft, name: str, usage: Usage, part: float) -> tuple[Measure, str, Need | None]:
        share = min(part / usage.present, 1.0) if usage.present > 0 else 0.0
        floors: tuple[tuple[Measure, str, float], ...] = (
            (bytes_of, "bytes/s", self.settings.min_unload_mib_per_s * MIB),
            (messages_of, "messages/s", self.settings.min_unload_msg_per_s),
        )
        for measure, unit, floor in floors:
            total = draft.total(name, measure)
            if total > 0 and share > 0 and total * share >= floor:
                return (
                    measure,
                    unit,
                    Need(total * share, floor, min(usage.smoothed, usage.present), usage.present / total),
                )
        return bytes_of, "", None

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
        if not draft.moves and self.lower_boundary and average != 0:
            self._lower_as_upstream(draft, smoothed)
        if high:
            return f"{high} above the average {average:.3f} by {threshold:.3f}, none relieved", Reason.NO_BUNDLES
        return f"no broker is {threshold:.3f} above the average {average:.3f}", Reason.HIT_COUNT

    def _feed(self, draft: Draft, smoothed: Smoothed) -> float:
        total = 0.0
        for name, load in draft.loads.items():
            total += smoothed.count(name, load.weighted_max(self.settings.weights), self.settings.history)
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
            draft.leave(name, "little-traffic", f"{need:.0f} bytes/s to give, less than {floor:.0f}")
        elif needs_bundles and draft.size(name) <= 1:
            draft.leave(name, "sole-bundle", f"{draft.size(name)} bundles: nothing to spread")
        else:
            for bundle, weight in greedy(draft.weighed(name, bytes_of), need):
                draft.move(bundle, name, reason, weight, f"{name} should give {need:.0f} bytes/s; this is {weight:.0f}")


def _receivers(draft: Draft, usages: Mapping[str, Usage], excluding: list[str]) -> Receivers:
    out = set(excluding)
    return Receivers(
        {
            name: max(usage.smoothed, usage.present)
            for name, usage in usages.items()
            if name not in out and may_receive(draft.cluster, name)
        }
    )


def _standing(usage: Usage, mean: Usage, threshold: float) -> str:
    return (
        f"usage {usage.present:.3f} (smoothed {usage.smoothed:.3f}), average {mean.present:.3f} ({mean.smoothed:.3f}), "
        f"threshold {threshold:.3f}"
    )
