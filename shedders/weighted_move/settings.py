"""Settings of `weighted-move`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from loaddata.model.broker_load import ResourceWeights
from shedders.model.strategy import StrategySettings
from shedders.weighted_move.loads import TINY


class WeightedMoveSettings(StrategySettings):
    """Settings of `weighted-move`, for shedding and placement. Percentages are of the level of perfect balance."""

    gone: ClassVar[Mapping[str, str]] = {
        "hits": "`payback_min` says how long a gap lasts before it is acted on",
        "hit_s": "`payback_min` says how long a gap lasts before it is acted on",
        "urgent_percent": "the larger a gap, the sooner it is acted on; `payback_min` makes it later or sooner",
        "noise_factor": "noise is measured and allowed for, without a setting",
        "move_cost_percent": "it is a constant; `least_gain_percent` says what a move has to be worth",
    }

    max_age_s: float = Field(
        default=1800.0,
        gt=0,
        description="A broker whose report is older is left alone: by then two reports should have come.",
    )
    grace_s: float = Field(
        default=1800.0,
        ge=0,
        description="A bundle never goes back to where it was within this time, and each further move within it has to gain "
        "more, at first six times as much: a move costs its clients a reconnect, and two that undo each other are wasted.",
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
        description="A broker this far above the level of perfect balance is where it should be, as loads keep changing.",
    )
    payback_min: float = Field(
        default=2.0,
        ge=0,
        description="The dial between evenness and moves: a gap is acted on once it has cost as much as one of 10 % does in "
        "this many minutes. More: fewer moves, and load is less even.",
    )
    least_gain_percent: float = Field(
        default=4.0,
        gt=0,
        description="A move has to gain as much for its traffic as one between two brokers this far apart.",
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
        cpu, inwards, outwards = (weight / most if weight > most * TINY else 0.0 for weight in each)
        return ResourceWeights(cpu, 0.0, 0.0, inwards, outwards)

    @property
    def counting(self) -> ResourceWeights:
        """The weights where direct memory counts."""
        most = max(self.cpu_weight, self.bandwidth_in_weight, self.bandwidth_out_weight) or 1.0
        return self.weights._replace(direct_memory=self.direct_memory_weight / most)
