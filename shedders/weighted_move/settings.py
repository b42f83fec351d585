"""Settings of `weighted-move`."""

from __future__ import annotations

from pydantic import Field

from loaddata.model.broker_load import ResourceWeights
from shedders.model.strategy import StrategySettings
from shedders.weighted_move.loads import LEAST_WEIGHT


class WeightedMoveSettings(StrategySettings):
    """Settings of `weighted-move`, for shedding and placement. Percentages are of the level of perfect balance."""

    max_age_s: float = Field(
        default=1800.0,
        gt=0,
        description="A broker whose report is older is left alone: by then two reports should have come.",
    )
    grace_s: float = Field(
        default=1800.0,
        ge=0,
        description="A bundle is not moved again within this time, and never back to where it was within it: each move "
        "costs its clients a reconnect, and two that undo each other are wasted. Brokers that are found slow are the exception.",
    )
    back_hours: float = Field(
        default=24.0,
        ge=0,
        le=168,
        description="A move back to a broker that a bundle has left costs many times as much; less and less, until after "
        "these hours: load that rises and falls with the day should stay.",
    )
    gap_percent: float = Field(
        default=5.0,
        gt=0,
        description="A broker this far above the level has too much load, unless it is within the noise (twice as far below: too "
        "little). The default is half of a target of 10 %, as loads keep changing.",
    )
    urgent_percent: float = Field(
        default=25.0,
        gt=0,
        description="A broker this far off is relieved or filled at once; in between, the farther off, the fewer hits it needs.",
    )
    hits: int = Field(
        default=8,
        ge=1,
        description="Number of decisions in a row that have to see a gap of gap_percent, or one that is all new; longer than a "
        "typical burst.",
    )
    hit_s: float = Field(
        default=30.0,
        ge=0,
        description="Minimum average time between two hits, in seconds: half of the usual time between two decisions; less where "
        "everything is faster (a demo).",
    )
    noise_factor: float = Field(
        default=3.0,
        ge=0,
        description="A gap counts only beyond this number of standard deviations of the noise measured of a broker: three are "
        "chance once in a few hundred looks.",
    )
    least_gain_percent: float = Field(
        default=4.0,
        gt=0,
        description="A move to a broker less than this below the source is not worth it.",
    )
    move_cost_percent: float = Field(
        default=1.0,
        gt=0,
        description="Fixed cost of a move in addition to its load, in percent of an average broker's traffic: of two plans with "
        "the same balance the one with fewer moves is better.",
    )
    max_moved_percent: float = Field(
        default=65.0,
        gt=0,
        le=100,
        description="Maximum part of the cluster's traffic that one decision moves, by bytes or messages, whichever is more: "
        "when the number of brokers doubles, half of it moves.",
    )
    max_moves: int = Field(
        default=500,
        ge=1,
        description="Maximum number of bundles that one decision moves: as many as may be in flight (budget.moves).",
    )
    cpu_weight: float = Field(
        default=1.0,
        ge=0,
        description="Weight of CPU; 0: not considered, for brokers that share their CPU with other work.",
    )
    bandwidth_in_weight: float = Field(
        default=1.0, ge=0, description="Weight of bytes received: less if the network's limit is a guess."
    )
    bandwidth_out_weight: float = Field(default=1.0, ge=0, description="Weight of bytes sent, likewise.")
    direct_memory_weight: float = Field(
        default=1.0,
        ge=0,
        description="Weight of direct memory, which counts only where it is scarce and follows what moves (decision record 61); "
        "0: never.",
    )

    @property
    def weights(self) -> ResourceWeights:
        """The weights, the largest scaled to 1; memory never counts, as no move makes it smaller."""
        each = self.cpu_weight, self.bandwidth_in_weight, self.bandwidth_out_weight
        most = max(each)
        cpu, inwards, outwards = (weight / most if weight > most * LEAST_WEIGHT else 0.0 for weight in each)
        return ResourceWeights(cpu, 0.0, 0.0, inwards, outwards)

    @property
    def counting(self) -> ResourceWeights:
        """The weights where direct memory counts."""
        most = max(self.cpu_weight, self.bandwidth_in_weight, self.bandwidth_out_weight) or 1.0
        return self.weights._replace(direct_memory=self.direct_memory_weight / most)
