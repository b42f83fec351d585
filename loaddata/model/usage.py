"""Usage of one resource against its limit (upstream `ResourceUsage`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from struct import Struct

_SINGLE = Struct("<f")


def single(value: float) -> float:
    """The value rounded to single precision, in which upstream computes percentages."""
    try:
        return float(_SINGLE.unpack(_SINGLE.pack(value))[0])
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """How much of a resource is used.

    Attributes:
        usage: In the resource's own unit (CPU: percent of one core, memory: MiB, bandwidth: kbit/s).
        limit: The most there is, in the same unit; 0 where it is not known.
    """

    usage: float = 0.0
    limit: float = 0.0

    @property
    def percent(self) -> float:
        """Usage in percent of the limit, in single precision as upstream; 0 without a limit; may exceed 100."""
        if not self.limit > 0:
            return 0.0
        limit = single(self.limit)
        if limit == 0:  # too small for single precision, where Java divides by zero without a word
            return math.inf if self.usage > 0 else 0.0
        return single(single(single(self.usage) / limit) * 100)
