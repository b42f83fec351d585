"""Settings of weighted-move."""

from __future__ import annotations

from pydantic import Field

from loaddata.model.broker_load import ResourceWeights
from shedders.model.strategy import StrategySettings
from shedders.weighted_move.loads import LEAST_WEIGHT


class WeightedMoveSettings(StrategySettings):
    """Settings of `weighted-move`, for shedding and placement. Percents are of the level if all were even."""

    max_age_s: float = Field(
        default=1800.0,
        gt=0,
        description="A broker whose report is older is left alone: by then two reports should have come.",
    )
    grace_s: float = Field(
        default=1800.0,
        ge=0,
        description="A bundle is not moved again within this time, and never back to where it was within it: each move "
        "costs its clients a reconnect, and two that undo each other are wasted.",
    )
    gap_percent: float = Field(
        default=5.0,
        gt=0,
        description="So far above the level a broker has too much, if noise allows to tell (twice as far below: too little): "
        "half of the tenth that is to be kept, as loads go on changing.",
    )
    urgent_percent: float = Field(
        default=25.0,
        gt=0,
        description="So far off a broker is relieved or filled at the first sight; in between it takes the fewer hits the "
        "farther it is.",
    )
    hits: int = Field(
        default=8,
        ge=1,
        description="Decisions in a row that have to see a gap of gap_percent, or one that is all new: longer than the usual "
        "burst lasts.",
    )
    hit_s: float = Field(
        default=30.0,
        ge=0,
        description="Hits have to be this far apart, on average: half of the usual time between two decisions; where everything "
        "goes faster (a demo), less.",
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
        description="A load that would go to a broker less than this below its own is not worth a move.",
    )
    move_cost_percent: float = Field(
        default=1.0,
        gt=0,
        description="What any move costs beside its load, in parts of an average broker's traffic: of two ways to the same "
        "balance the one with fewer moves is better.",
    )
    max_moved_percent: float = Field(
        default=65.0,
        gt=0,
        le=100,
        description="Traffic that one decision moves at most, of the cluster's, by bytes or messages, whichever is more: when "
        "brokers double, half of it goes.",
    )
    max_moves: int = Field(
        default=1_000, ge=1, description="Bundles that one decision moves at most: what a minute has room for."
    )
    cpu_weight: float = Field(
        default=1.0,
        ge=0,
        description="What CPU counts, against the others; 0: nothing. For brokers that other work keeps busy.",
    )
    bandwidth_in_weight: float = Field(
        default=1.0, ge=0, description="What bytes received count: less where the network's limit is a guess."
    )
    bandwidth_out_weight: float = Field(default=1.0, ge=0, description="What bytes sent count, likewise.")

    @property
    def weights(self) -> ResourceWeights:
        """What counts, the largest 1, so that a level stays part of a limit; memory never does, as no move makes it smaller."""
        each = self.cpu_weight, self.bandwidth_in_weight, self.bandwidth_out_weight
        most = max(each)
        cpu, inwards, outwards = (weight / most if weight > most * LEAST_WEIGHT else 0.0 for weight in each)
        return ResourceWeights(cpu, 0.0, 0.0, inwards, outwards)
