"""RangeThresholdShedder: the threshold with a lower boundary, always looked at."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from shedders.strategy import StrategySettings
from shedders.threshold import ThresholdSettings, ThresholdShedder


class RangeThresholdSettings(ThresholdSettings):
    """Settings of `range-threshold`."""

    lower_boundary: bool = Field(default=True, description="Look at the lower boundary; with upstream always so.")


class RangeThresholdShedder(ThresholdShedder):
    """As `ThresholdShedder`; where nobody is above the range, the highest broker gives to those below it.

        share of its traffic = t / r          (`upstream`: t)

    which is twice what the threshold shedder's lower boundary gives.

    Example (also a test): ten brokers at 0.8 and one at 0, so the mean is 0.727; nobody reaches 0.827, one is below 0.627.
    The highest (the first by name) has 400 MiB/s and gives 0.1 / 0.8 = 1/8 of it, 50 MiB/s: of bundles with 300, 60, 30 and
    10 those with 30 and 10. 10 are missing, as much as the floor, and the smallest larger one has 60, which weigh 0.12: the
    idle broker stands at 0.08 and ends at 0.2, the highest one stands at 0.72, so it goes, too. With `upstream` it should be
    40 MiB/s, and the bundle with 300 goes.

    `upstream`: the highest broker is the highest of all, and if it has a single bundle nothing happens. Pulsar 4.2.4 has no
    such class any more. Source: `RangeThresholdShedder` (pull request 17456), later folded into the threshold shedder.
    """

    name: ClassVar[str] = "range-threshold"
    Settings: ClassVar[type[StrategySettings]] = RangeThresholdSettings
    lower_part: ClassVar[float] = 1.0
    lower_always: ClassVar[bool] = True
    lower_needs_bundles: ClassVar[bool] = False
