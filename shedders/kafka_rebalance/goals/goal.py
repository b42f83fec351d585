"""What every goal is: a measure over cells, a range, an excess, and moves that lessen it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shedders.kafka_rebalance.planning.plan import GoalSpread

if TYPE_CHECKING:
    from shedders.kafka_rebalance.planning.limits import GoalLimits
    from shedders.kafka_rebalance.planning.request import PlanRequest
    from shedders.kafka_rebalance.planning.scope import Scope
    from shedders.kafka_rebalance.planning.search import Search
    from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn, VirtualCluster


class Goal(ABC):
    """One goal of a plan. Its docstring says what it wants, with formula and moves; `Source:` is where it is from.

    A goal is made once for a plan, with `prepare`; its ranges follow from totals that no move changes. Then the search
    calls `improve`, and `limit` for what later goals must leave alone.

    Attributes:
        moves_data: False: it may switch leaders only.
        remarks: What was left out or guessed.
    """

    name: ClassVar[str]
    hard: ClassVar[bool] = False
    unit: ClassVar[str]
    default_share: ClassVar[float] = 0.0
    share_of: ClassVar[str] = ""
    needs: ClassVar[tuple[LoadColumn, ...]] = ()

    def __init__(self, cluster: VirtualCluster, scope: Scope, share: float | None, request: PlanRequest) -> None:
        """Bind it to a plan.

        Args:
            cluster: It changes under it.
            scope: What may be changed.
            share: Its range as asked for; None: its own.
            request: All of what is asked for.
        """
        self.cluster = cluster
        self.scope = scope
        self.request = request
        self.share = self.default_share if share is None else share
        self.remarks: list[str] = []
        self.moves_data = True

    @abstractmethod
    def prepare(self) -> str | None:
        """Work out the ranges. Returns why there is nothing to go by; None: it can be worked for."""

    @abstractmethod
    def measured(self) -> tuple[Any, Any]:
        """Values of all cells, and the distance of each from its range: two arrays of equal length."""

    @abstractmethod
    def limit(self, limits: GoalLimits) -> None:
        """Lay its ranges down for later goals."""

    @abstractmethod
    def improve(self, search: Search) -> int:
        """Make moves that lessen its excess until none is found; how many it made."""

    @abstractmethod
    def witness(self, search: Search) -> str:
        """Where it is not met, and why nothing helps."""

    def impossible(self) -> str:
        """Why no placement at all can meet it; empty where that is not known."""
        return ""

    def excess(self) -> int:
        """Sum of the distances of all cells from their ranges."""
        return int(self.measured()[1].sum())

    def spread(self) -> GoalSpread:
        """The measure as people read it."""
        values, beyond = self.measured()
        if not len(values):
            return GoalSpread(violations=0, excess=0, low=0.0, high=0.0, mean=0.0, std=0.0)
        return GoalSpread(
            violations=int(np.count_nonzero(beyond)),
            excess=int(beyond.sum()),
            low=float(values.min()),
            high=float(values.max()),
            mean=float(values.mean()),
            std=float(values.std()),
        )


def exact(share: float) -> Fraction:
    """A share as people write it: 0.1 is one tenth."""
    return Fraction(repr(share))


def whole_range(total: int, part: Fraction, share: float) -> tuple[int, int]:
    """The range of a cell, in whole numbers: within the share of its mean, and a fair split is always inside.

    Args:
        total: What all cells hold together.
        part: What of it is this cell's; its product with the total is the mean.
        share: How far from the mean.
    """
    mean = total * part
    wide = exact(share)
    low = -((-mean * (1 - wide)) // 1)
    high = mean * (1 + wide) // 1
    return max(0, min(int(low), int(mean // 1))), max(int(high), int(-(-mean // 1)))
