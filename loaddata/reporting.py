"""Whether a report is due (upstream `BrokerLoadDataReporter.needBrokerDataUpdate`). Pure: asked at every tick."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from loaddata.broker_load import BrokerLoad, ResourceWeights


class Cause(StrEnum):
    """Why a report is written."""

    FIRST = "first"
    FORCED = "forced"
    OWNERSHIP = "ownership"
    TOMBSTONED = "tombstoned"
    UNCONFIRMED = "unconfirmed"
    AGE = "age"
    CHANGE = "change"
    SAMPLED = "sampled"


class Due(NamedTuple):
    """A report is due.

    Attributes:
        why: A sentence for people, with the numbers.
    """

    cause: Cause
    why: str


@dataclass(frozen=True, slots=True)
class ReportRules:
    """When load is told.

    Attributes:
        threshold_percent: A change larger than this is told.
        max_age_s: A report older than this is renewed.
        weights: None compares the unweighted maximum, as the extensible manager does; weights compare the weighted one,
            as the modular manager does.
    """

    threshold_percent: float = 10.0
    max_age_s: float = 900.0
    weights: ResourceWeights | None = None


class Held(NamedTuple):
    """The last report that was written: what it said, and when by this broker's monotonic clock."""

    load: BrokerLoad
    at_s: float


def change_percent(before: float, now: float) -> float:
    """Change in percent of what was before; from nothing to something it is infinite (upstream `percentChange`)."""
    if before == 0:
        return 0.0 if now == 0 else math.inf
    return 100 * abs(before - now) / abs(before)


def changes(before: BrokerLoad, now: BrokerLoad, weights: ResourceWeights | None = None) -> dict[str, float]:
    """The four changes that are compared with the threshold; usage in percentage points, the others in percent."""
    if weights is None:
        usage = abs(before.max_resource_usage - now.max_resource_usage)
    else:
        usage = abs(before.weighted_max(weights) - now.weighted_max(weights))
    return {
        "resource usage": 100 * usage,
        "message rate": change_percent(before.msg_rate, now.msg_rate),
        "throughput": change_percent(before.msg_throughput, now.msg_throughput),
        "bundles": change_percent(before.bundles, now.bundles),
    }


def load_due(held: Held | None, now: BrokerLoad, now_s: float, rules: ReportRules) -> Due | None:
    """Whether the broker's load is due by itself; the comparisons are strict, as upstream's.

    Args:
        held: The last report; None before the first.
        now: The load now.
        now_s: Monotonic.
    """
    if held is None:
        return Due(Cause.FIRST, "nothing was reported yet")
    age_s = now_s - held.at_s
    if age_s > rules.max_age_s:
        return Due(Cause.AGE, f"the last report is {age_s:.1f} s old, more than {rules.max_age_s:g} s")
    name, change = max(changes(held.load, now, rules.weights).items(), key=lambda pair: pair[1])
    if change > rules.threshold_percent:
        return Due(Cause.CHANGE, f"{name} changed by {change:.1f}, more than {rules.threshold_percent:g}")
    return None


def top_due(reported: tuple[int, float] | None, reading: int, now_s: float, interval_s: float) -> Due | None:
    """Whether the top bundles are due: when the figures are newer than those of the last report, and some time has passed.

    Args:
        reported: Number of the reading that the last report told, and when; None before the first.
        reading: Number of the newest reading.
        now_s: Monotonic.
        interval_s: Shortest time between two reports; upstream's are as far apart as its statistics, a minute.
    """
    if reported is None:
        return Due(Cause.FIRST, "nothing was reported yet")
    told, at_s = reported
    if reading > told and now_s - at_s >= interval_s:
        return Due(Cause.SAMPLED, f"reading {reading} is newer than the reported {told}")
    return None
