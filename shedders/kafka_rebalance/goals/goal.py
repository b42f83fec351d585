"""What every goal is: a measure over cells, a range, an excess, and moves that lessen it; and goals whose cells are brokers."""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np

from shedders.kafka_rebalance.planning.limits import FAR
from shedders.kafka_rebalance.planning.plan import GoalSpread
from shedders.kafka_rebalance.planning.search import WITNESS_REPLICAS_MAX
from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn, Measure
from shedders.model.amounts import count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shedders.kafka_rebalance.planning.limits import GoalLimits
    from shedders.kafka_rebalance.planning.request import PlanRequest
    from shedders.kafka_rebalance.planning.scope import Scope
    from shedders.kafka_rebalance.planning.search import Search
    from shedders.kafka_rebalance.planning.virtual_cluster import VirtualCluster

RACKS_NAMED_MAX: Final = 5
_RICHEST: Final = 3
"""Brokers with most to spare whose replicas are checked for a witness."""


class MeasureFacts(NamedTuple):
    """What goals need to know of a measure.

    Attributes:
        by_leader: Whether a leader switch changes it.
        led: Whether only leaders have it.
        needs: Figures of partitions that it is made of.
    """

    unit: str
    by_leader: bool = False
    led: bool = False
    needs: tuple[LoadColumn, ...] = ()


FACTS: Final = {
    Measure.REPLICAS: MeasureFacts("replicas"),
    Measure.LEADERS: MeasureFacts("leaders", by_leader=True, led=True),
    Measure.DISK: MeasureFacts("bytes", needs=(LoadColumn.DISK,)),
    Measure.LEADER_IN: MeasureFacts("bytes/s", by_leader=True, led=True, needs=(LoadColumn.BYTES_IN,)),
    Measure.LEADER_OUT: MeasureFacts("bytes/s", by_leader=True, led=True, needs=(LoadColumn.BYTES_OUT,)),
    Measure.NET_IN: MeasureFacts("bytes/s", needs=(LoadColumn.BYTES_IN,)),
    Measure.NET_OUT: MeasureFacts(
        "bytes/s", by_leader=True, led=True, needs=(LoadColumn.BYTES_OUT, LoadColumn.BYTES_IN)
    ),
    Measure.CPU: MeasureFacts("millionths of CPU", by_leader=True, needs=(LoadColumn.CPU,)),
}
WORDS: Final = {0: "size", 1: "bytes in", 2: "bytes out", 3: "CPU"}
"""Figures of partitions, by their columns."""
TEXT_WIDTH: Final = 126


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalRow:
    """One goal of the table: a name, the shape that works for it, and what people read about it.

    Attributes:
        measure: What is levelled or limited, for shapes that have a measure.
        unit: Unit of its cells, for shapes that have none.
        share: Default range.
        formula: For which cells, and the formula itself, indented.
        note: Paragraph after the formula.
        with_mode: Modes that it belongs to; then it cannot be requested by name.
    """

    name: str
    shape: type[Goal]
    measure: Measure | None = None
    unit: str = ""
    share: float = 0.0
    about: str
    formula: str
    note: str = ""
    moves: str
    example: str
    source: str
    with_mode: tuple[str, ...] = ()

    @property
    def facts(self) -> MeasureFacts:
        return MeasureFacts(self.unit) if self.measure is None else FACTS[self.measure]

    @property
    def hard(self) -> bool:
        return self.shape.hard

    @property
    def kind(self) -> str:
        return "hard" if self.hard else "soft"

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(WORDS[need] for need in self.facts.needs)

    @property
    def needs_text(self) -> str:
        return ", ".join(self.needs) or "nothing"

    @property
    def range_text(self) -> str:
        return f"{self.share:g} {self.shape.share_of}" if self.shape.share_of else "none"

    @property
    def text(self) -> str:
        """All that people read about it; only formulas are indented."""
        parts = (f"Moves: {self.moves}", f"Example: {self.example}", f"Source: {self.source}")
        paragraphs = [self.about, f"Formula, for each {self.formula}", self.note, *parts]
        return "\n\n".join(
            part if "\n" in part else textwrap.fill(part, TEXT_WIDTH, break_on_hyphens=False)
            for part in paragraphs
            if part
        )


class Goal(ABC):
    """Shape of goals: how it is measured, and which moves it makes.

    A goal is made once for a plan, with `prepare`; its ranges follow from totals that no move changes. Then the search
    calls `improve`, and `limit` for what later goals must leave alone.

    Attributes:
        by_leader: Whether a leader switch changes its measure.
        moves_data: False: it may switch leaders only.
        remarks: What was left out or guessed.
    """

    hard: ClassVar[bool] = False
    share_of: ClassVar[str] = ""

    def __init__(
        self, row: GoalRow, cluster: VirtualCluster, scope: Scope, share: float | None, request: PlanRequest
    ) -> None:
        self.name = row.name
        self.measure = Measure.REPLICAS if row.measure is None else row.measure
        self.unit, self.by_leader, self.led, self.needs = row.facts
        self.cluster = cluster
        self.scope = scope
        self.request = request
        self.share = row.share if share is None else share
        self.remarks: list[str] = []
        self.moves_data = True

    def prepare(self) -> str | None:
        """Work out the ranges. Returns why there is no data for the goal; None: it can be worked for."""
        return None

    @abstractmethod
    def measured(self) -> tuple[Any, Any]:
        """Values of all cells, and the distance of each from its range: two arrays of equal length."""

    def limit(self, limits: GoalLimits) -> None:  # noqa: B027 - goals without ranges
        """Set its ranges for later goals. Without ranges: no later goal can undo what this one does."""

    def guard(self, limits: GoalLimits, margin: float) -> None:  # noqa: ARG002 - goals without a mean
        """Set bounds for goals before it: cells may go beyond their ranges by this share of the mean, or stay as far beyond."""
        self.limit(limits)

    @abstractmethod
    def improve(self, search: Search) -> None:
        """Make moves that lessen its excess until there is none left."""

    @abstractmethod
    def witness(self, search: Search) -> str:
        """Where it is not met, and why nothing helps."""

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
            furthest=int(beyond.max()),
        )


class BrokerGoal(Goal):
    """A goal whose cells are brokers, and whose measure is a row of the cluster's sums.

    Attributes:
        low: B. high: B. cells: brokers that count, B.
    """

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    cells: NDArray[np.bool_]

    @property
    def values(self) -> NDArray[np.int64]:
        """What brokers carry now. B."""
        values: NDArray[np.int64] = self.cluster.sums[self.measure]
        return values

    def weight(self, partitions: Any, leads: Any) -> NDArray[np.int64]:
        """What replicas weigh. n."""
        return self.cluster.weight(partitions, leads, self.measure)

    def distance(self, values: Any, brokers: Any = slice(None)) -> NDArray[np.int64]:
        """How far values of brokers are from their ranges."""
        above: NDArray[np.int64] = np.maximum(values - self.high[brokers], 0)
        below: NDArray[np.int64] = np.maximum(self.low[brokers] - values, 0)
        return above + below

    def gain(self, weight: Any, sources: Any, to: Any) -> NDArray[np.int64]:
        """How much less the excess is when this weight goes from brokers to others; n each."""
        values = self.values
        before = self.distance(values[sources], sources) + self.distance(values[to], to)
        return before - self.distance(values[sources] - weight, sources) - self.distance(values[to] + weight, to)

    def worth(self, weight: Any, sources: Any, to: Any) -> NDArray[np.int64]:
        """As `gain` for what has to be copied: 0 where less than half of what moves lessens the excess.

        The rest would push the taker as far out of its range as it helps the giver. It never breaks a limit.
        """
        gain = self.gain(weight, sources, to)
        good = 2 * gain >= weight
        if self.hard:
            good = good & (self.values[to] + weight <= self.high[to])
        worth: NDArray[np.int64] = np.where(good, np.maximum(gain, 0), 0)
        return worth

    def spare(self) -> NDArray[np.int64]:
        """What brokers can give without falling below their range; all that they have, where a broker does not count. B."""
        return np.where(self.cells, self.values - self.low, np.where(self.scope.sources, self.values, 0))

    def relative(self) -> NDArray[np.float64]:
        """Load of brokers in parts of their upper bounds: the one with the most room takes. B."""
        bound = np.where((self.high > 0) & (self.high < FAR), self.high, 1).astype(np.float64)
        return self.values / bound

    def measured(self) -> tuple[Any, Any]:
        return self.values[self.cells], self.distance(self.values)[self.cells]

    def limit(self, limits: GoalLimits) -> None:
        limits.narrow(self.measure, self.low, self.high)

    def guard(self, limits: GoalLimits, margin: float) -> None:
        more = exact(margin) * self.scope.total(self.measure) // max(1, int(np.count_nonzero(self.cells)))
        wide = min(int(more), FAR)
        low = np.where(self.low > -FAR, np.maximum(self.low - wide, -FAR), -FAR)
        high = np.where(self.high < FAR, np.minimum(self.high + wide, FAR), FAR)
        limits.narrow(self.measure, low, high)

    def blocked(self, search: Search, broker: int, *, above: bool) -> str:
        """Why nothing helps a broker that is out of the range."""
        cluster, scope = search.cluster, search.scope
        spare = np.where(np.arange(len(self.cells)) == broker, 0, self.spare())
        sources = [broker] if above else np.argsort(-spare, kind="stable")[:_RICHEST].tolist()
        held = [cluster.on_broker(source)[:WITNESS_REPLICAS_MAX] for source in sources]
        partitions, here = np.concatenate(held), np.repeat(np.array(sources), [len(rows) for rows in held])
        weight = self.weight(partitions, cluster.leader[partitions] == here)
        heavy = weight > 0
        if not heavy.any():
            return "no replica there weighs anything" if above else "no other broker can give anything"
        partitions, here, weight = partitions[heavy], here[heavy], weight[heavy]
        free = scope.movable(partitions, here)
        if not free.any():
            return "none of the replicas that would help may move"
        partitions, here, weight = partitions[free], here[free], weight[free]
        values = self.values
        gain = self.distance(values[here], here) - self.distance(values[here] - weight, here)
        total = gain[:, None] + self.distance(values) - self.distance(values + weight[:, None])
        total[np.arange(len(here)), here] = 0
        useful = (total > 0) & scope.takers
        if not above:
            useful[:, np.arange(useful.shape[1]) != broker] = False
        if not useful.any():
            return f"the smallest replica that would help ({int(weight.min())} {self.unit}) is too large"
        return search.forbidden(partitions, here, useful)


NEAR: Final = 0.1
"""Share of a range that is left to brokers which have to carry more than their range: they are levelled this closely."""


def range_near(within: tuple[int, int], mean: Fraction, share: float) -> tuple[int, int]:
    """The range of a cell whose range may be out of reach: around the mean that can be reached.

    Args:
        mean: Reachable mean that is nearest to it.
    """
    low, high = within
    if low <= mean <= high:
        return within
    near = whole_range(mean, Fraction(1), share)
    # Above what was asked for nothing is given away: no cell has more than it needs to.
    return near if mean < low else (near[0], whole_range(mean, Fraction(1), share * NEAR)[1])


def exact(share: float) -> Fraction:
    """A share as people write it: 0.1 is one tenth."""
    return Fraction(repr(share))


def whole_range(total: int | Fraction, part: Fraction, share: float) -> tuple[int, int]:
    """The range of a cell, in whole numbers: within the share of its mean, and a fair split is always inside.

    Args:
        part: What of it is this cell's; its product with the total is the mean.
    """
    mean = total * part
    wide = exact(share)
    low = -((-mean * (1 - wide)) // 1)
    high = mean * (1 + wide) // 1
    return max(0, min(int(low), int(mean // 1))), max(int(high), int(-(-mean // 1)))


def out_of_reach(cluster: VirtualCluster, strayed: Mapping[int, Fraction]) -> str:
    """Sentence on brokers that cannot carry the mean.

    Args:
        strayed: Nearest reachable mean of such brokers, in parts of the mean of all.
    """
    lowest, highest = (min(strayed.values()), max(strayed.values()))
    racks = sorted({cluster.racks[rack] for broker in strayed if (rack := int(cluster.rack_of[broker])) >= 0})
    where = f" of {'rack' if len(racks) == 1 else 'racks'} {', '.join(racks[:RACKS_NAMED_MAX])}" if racks else ""
    more = " and others" if len(racks) > RACKS_NAMED_MAX else ""
    span = f"{float(lowest):.2f}" if lowest == highest else f"{float(lowest):.2f} to {float(highest):.2f}"
    return (
        f"{count(len(strayed), 'broker')}{where}{more} cannot carry the mean of all brokers; they are levelled around the "
        f"nearest that can be reached, {span} of it"
    )
