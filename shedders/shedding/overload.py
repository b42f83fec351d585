"""OverloadShedder: brokers over a fixed usage give bundles away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from shedders.model.amounts import rate
from shedders.model.cluster import Cluster
from shedders.model.plan import Plan, Reason
from shedders.model.readings import SheddingSettings, UsageSettings
from shedders.model.strategy import CanTake, StrategySettings
from shedders.shedding.draft import Draft, LoadToGive, Measure, Receivers, bytes_of, greedy, messages_of

MARGIN = 0.05


class OverloadSettings(UsageSettings, SheddingSettings):
    overloaded_percent: float = Field(
        default=85.0,
        ge=0,
        description="A broker at this usage or more gives bundles away (loadBalancerBrokerOverloadedThresholdPercentage).",
    )


class OverloadShedder:
    """Relieves brokers whose usage reaches a fixed limit T.

    With r the weighted maximum of CPU, direct memory and bandwidths, a broker with r >= T gives away

        share of its traffic = min(r - T + 0.05, r) / r

    Largest bundles first that fit in it, each only if the least loaded broker ends below this one's load (`draft.level`).

    Example (also a test): A has 0.9 and B 0.3, T = 0.85. The share is 0.1 / 0.9 = 1/9; A has 900 bytes/s, so 100 should go.
    Of bundles with 600, 200, 60 and 40 those with 60 and 40 go. With `upstream` the share is 0.1 (points taken for a part),
    so 90 bytes/s, and the bundle with 600 goes.

    Words for brokers left alone: `within-limit`, `sole-bundle` (or none), `little-traffic`, `nothing-fits`; and those of
    `shedders.shedding.draft`.

    `upstream`: largest first until there is enough, at least one of any size, regardless of the destination; ties between
    bundles are broken by its hash map, here by name. Source: `OverloadShedder` of Pulsar 4.2.4; corrections:
    design/decisions/0024, 0026.

    Args:
        can_take: Filters; without it every broker may take every bundle.
    """

    name: ClassVar[str] = "overload"
    Settings: ClassVar[type[StrategySettings]] = OverloadSettings

    def __init__(self, settings: OverloadSettings, can_take: CanTake | None = None) -> None:
        self.settings = settings
        self._can_take = can_take

    def plan(self, cluster: Cluster, memory: Mapping[str, Any]) -> Plan:  # noqa: ARG002  (of the port)
        draft = Draft(self.name, cluster, self.settings, {}, self.settings.weights, self._can_take)
        if draft.stopped is not None:
            return draft.stopped
        limit = self.settings.overloaded_percent / 100.0
        draft.scores = draft.usages
        draft.stats.update(limit=limit)
        high = [name for name, usage in draft.usages.items() if usage >= limit]
        for name, usage in draft.usages.items():
            if usage < limit:
                draft.leave(name, "within-limit", f"usage {usage:.3f}, limit {limit:.3f}")
        if not self.settings.upstream:
            high.sort(key=lambda name: (-draft.usages[name], name))
        receivers = draft.receivers(draft.usages, high)
        for name in high:
            if draft.size(name) <= 1:
                draft.leave(name, "sole-bundle", f"usage {draft.usages[name]:.3f}, but {draft.size(name)} bundles")
            elif self.settings.upstream:
                _take(draft, name, draft.usages[name] - limit + MARGIN)
            else:
                _relieve(draft, name, limit, receivers)
        if high:
            return draft.plan(f"{len(high)} at {limit:.3f} or more, none could be relieved", Reason.NO_BUNDLES)
        return draft.plan(f"no broker is at {limit:.3f} or more", Reason.HIT_COUNT)


def _take(draft: Draft, name: str, part: float) -> None:
    need = draft.loads[name].msg_throughput * part
    for bundle, weight in greedy(draft.weighed(name, bytes_of), need):
        why = f"{name} should give {rate(need)}; this is {rate(weight)}"
        draft.move(bundle, name, Reason.OVERLOADED, weight, why)


def _relieve(draft: Draft, name: str, limit: float, receivers: Receivers) -> None:
    usage = draft.usages[name]
    measure: Measure = bytes_of if draft.total(name, bytes_of) > 0 else messages_of
    total = draft.total(name, measure)
    if total <= 0 or usage <= 0:
        draft.leave(name, "little-traffic", f"usage {usage:.3f}, but no traffic to move")
        return
    need = LoadToGive(name, total * min(usage - limit + MARGIN, usage) / usage, 0.0, usage, usage / total)
    draft.relieve(need, measure, receivers, Reason.OVERLOADED, f"{name} is at {usage:.3f}, limit {limit:.3f}")
