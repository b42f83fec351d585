"""`range-equally-divide`: in the middle of the range, whatever lies there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from shedders.cluster import Bundle
from shedders.cuts import ends, inside
from shedders.strategy import StrategySettings
from statechannel.core.bundle import FULL_UPPER


class SplitRangeSettings(StrategySettings):
    """What `range-equally-divide` can be told."""

    upstream: bool = Field(
        default=False,
        description="Take the end of the ring for 0xffffffff, as Pulsar does, so that its last half is short.",
    )


class SplitRange:
    """Cuts at `lower + (upper - lower) div 2`.

    The last bundle of a ring includes 0xffffffff, so its upper end counts as 2^32: halves are halves, and a namespace of one
    bundle is cut where one of two bundles would be. Upstream takes 0xffffffff: one short (decision record 43).

    Worked example: 0x40000000_0x80000000 is cut at 0x60000000; 0x00000000_0xffffffff at 0x80000000 (upstream: 0x7fffffff).
    A bundle of one hash (0x00000005_0x00000006) is not cut.

    Source: upstream `RangeEquallyDivideBundleSplitAlgorithm`.
    """

    name: ClassVar[str] = "range-equally-divide"
    Settings: ClassVar[type[StrategySettings]] = SplitRangeSettings

    def __init__(self, settings: SplitRangeSettings) -> None:
        self.settings = settings

    def positions(self, bundle: Bundle) -> Sequence[int]:
        """Where to cut; empty where the range is too narrow.

        Raises:
            CannotSplitError: The bundle's name is none.
        """
        lower, upper = ends(bundle)
        end = upper + 1 if upper == FULL_UPPER and not self.settings.upstream else upper
        return inside([lower + (end - lower) // 2], lower, upper)
