"""OverloadShedder: brokers over a fixed usage give bundles away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from loaddata.broker_load import BrokerLoad
from shedders.cluster import Cluster
from shedders.draft import Draft, Measure, bytes_of, messages_of
from shedders.leveling import Need, Receivers, greedy, level
from shedders.plan import Plan, Reason
from shedders.readings import GraceSettings, UsageSettings, may_receive
from shedders.strategy import StrategySettings

MARGIN = 0.05


class OverloadSettings(UsageSettings, GraceSettings):
    """Settings of `overload`."""

    overloaded_percent: float = Field(
        default=85.0,
        gt=0,
        description="From this usage on a broker gives bundles away (loadBalancerBrokerOverloadedThresholdPercentage).",
    )


class OverloadShedder:
    """Relieves brokers whose usage reaches a fixed limit T.

    With r the weighted maximum of CPU, direct memory and bandwidths, a broker with r >= T gives away

        share of its traffic = min(r - T + 0.05, r) / r

    Largest bundles first that fit in it, each only if the least loaded broker ends below where this one stands (`leveling`).

    Example (also a test): A has 0.9 and B 0.3, T = 0.85. The share is 0.1 / 0.9 = 1/9; A has 900 bytes/s, so 100 should go.
    Of bundles with 600, 200, 60 and 40 those with 60 and 40 go. With `upstream` the share is 0.1 (points taken for a part),
    so 90 bytes/s, and the bundle with 600 goes.

    `upstream`: largest first until there is enough, at least one of whatever size, wherever it may end. Source:
    `OverloadShedder` of Pulsar 4.2.4.
    """

    name: ClassVar[str] = "overload"
    Settings: ClassVar[type[StrategySettings]] = OverloadSettings

    def __init__(self, settings: OverloadSettings) -> None:
        self.settings = settings

    def plan(self, cluster: Cluster, memory: Mapping[str, Any]) -> Plan:
        """Decide once; see the class."""
        draft = Draft(self.name, cluster, self.settings, memory, self.settings.weights)
        if draft.stopped is not None:
            return draft.stopped
        limit = self.settings.overloaded_percent / 100.0
        draft.scores = {name: load.weighted_max(self.settings.weights) for name, load in draft.loads.items()}
        draft.stats.update(limit=limit)
        high = [name for name, usage in draft.scores.items() if usage >= limit]
        for name, usage in draft.scores.items():
            if usage < limit:
                draft.leave(name, "within-limit", f"usage {usage:.3f}, limit {limit:.3f}")
        if not self.settings.upstream:
            high.sort(key=lambda name: (-draft.scores[name], name))
        out = set(high)
        receivers = Receivers(
            {name: usage for name, usage in draft.scores.items() if name not in out and may_receive(cluster, name)}
        )
        for name in high:
            if draft.size(name) <= 1:
                draft.leave(name, "sole-bundle", f"usage {draft.scores[name]:.3f}, but {draft.size(name)} bundles")
            elif self.settings.upstream:
                _take(draft, name, draft.loads[name], draft.scores[name] - limit + MARGIN)
            else:
                _relieve(draft, name, draft.scores[name], limit, receivers)
        if high:
            return draft.plan(f"{len(high)} at {limit:.3f} or more, none could be relieved", Reason.NO_BUNDLES)
        return draft.plan(f"no broker is at {limit:.3f} or more", Reason.HIT_COUNT)


def _take(draft: Draft, name: str, load: BrokerLoad, part: float) -> None:
    need = load.msg_throughput * part
    for bundle, weight in greedy(draft.weighed(name, bytes_of), need):
        draft.move(
            bundle, name, Reason.OVERLOADED, weight, f"{name} should give {need:.0f} bytes/s; this is {weight:.0f}"
        )


def _relieve(draft: Draft, name: str, usage: float, limit: float, receivers: Receivers) -> None:
    measure: Measure = bytes_of if draft.total(name, bytes_of) > 0 else messages_of
    total = draft.total(name, measure)
    if total <= 0:
        draft.leave(name, "little-traffic", f"usage {usage:.3f}, but no traffic to move")
        return
    need = Need(total * min(usage - limit + MARGIN, usage) / usage, 0.0, usage, usage / total)
    chosen = level(draft.weighed(name, measure), need, receivers)
    if not chosen:
        least = f"the least loaded has {receivers.least:.3f}" if receivers else "everybody else is over the limit, too"
        draft.leave(
            name,
            "nothing-fits",
            f"usage {usage:.3f}; no bundle of {need.traffic:.0f} a second levels anything; {least}",
        )
    for bundle, weight, receiver in chosen:
        why = f"{name} at {usage:.3f} should give {need.traffic:.0f} a second; this is {weight:.0f}, {receiver} could take it"
        draft.move(bundle, name, Reason.OVERLOADED, weight, why)
