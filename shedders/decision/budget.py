"""Limits on the moves in flight: by number and by share of the cluster's load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from pydantic import Field

from shedders.decision.booked_moves import Booked
from shedders.model.cluster import Cluster
from shedders.model.exchanges import together
from shedders.model.moved_cluster import traffic_of
from shedders.model.plan import BundleMove, Left
from shedders.model.readings import is_amount
from shedders.model.strategy import StrategySettings


class BudgetSettings(StrategySettings):
    """Limits of the balancer; upstream has none but the strategies' own."""

    moves: int = Field(
        default=500,
        ge=1,
        le=100_000,
        description="Maximum number of bundles in flight; at eight concurrent transfers, a few seconds of work.",
    )
    load_percent: float = Field(
        default=60.0,
        gt=0,
        le=100,
        description="Maximum share of the cluster's traffic in flight, in percent of its bytes or of its messages, whichever is "
        "larger. A single move may exceed it, but then moves alone. The default allows the number of brokers to be doubled "
        "in one decision.",
    )


@dataclass(frozen=True, slots=True)
class DecisionRules:
    """Rules that apply to every strategy's plan when it is carried out.

    Attributes:
        budget: Limits on the moves in flight; None: no limits.
        only_unload: Bundles are unloaded without naming a destination.
        off: Why shedding is off; None while it is on.
    """

    budget: BudgetSettings | None = None
    only_unload: bool = False
    off: str | None = None


NO_RULES = DecisionRules()


@dataclass(frozen=True, slots=True)
class Budget:
    """The remaining budget.

    Attributes:
        moves: Bundles that may still start to move.
        load_percent: Traffic that may still start to move, in percent of the cluster's.
    """

    moves: int
    load_percent: float


@dataclass(frozen=True, slots=True)
class Admitted:
    """The part of a plan that the budget allows.

    Attributes:
        left: Moves that have to wait, with the reason `budget`, or that are refused: `unload-mode`, `shedding-off`.
        budget: What is left after these moves.
    """

    moves: Sequence[BundleMove]
    left: Sequence[Left]
    budget: Budget


def allowed(
    cluster: Cluster, moves: Sequence[BundleMove], on_the_way: Sequence[Booked], rules: DecisionRules
) -> Admitted:
    """The moves of a plan that the rules allow; the balancer and a dry run use this."""
    if rules.off is not None:
        return Admitted([], [Left(move.bundle, "shedding-off", rules.off) for move in moves], Budget(0, 0.0))
    swaps = [group for group in together(moves) if rules.only_unload and any(move.swap for move in group)]
    why = "it is part of an exchange, and nothing can be exchanged without naming destinations"
    halves = [Left(move.bundle, "unload-mode", why) for group in swaps for move in group]
    out = {half.name for half in halves}
    rest = [move for move in moves if move.bundle not in out]
    if rules.budget is None:
        return Admitted(rest, halves, Budget(len(rest), 100.0))
    admitted = admit(cluster, rest, on_the_way, rules.budget)
    return Admitted(admitted.moves, [*halves, *admitted.left], admitted.budget)


def admit(
    cluster: Cluster, moves: Sequence[BundleMove], on_the_way: Sequence[Booked], settings: BudgetSettings
) -> Admitted:
    """Admit the plan's moves in their order as far as the budget allows.

    Bundles that two brokers exchange go together or not at all: half an exchange may be worse than none.
    """
    shares = _Shares(cluster)
    moves_left = settings.moves - len(on_the_way)
    load_left = settings.load_percent - sum(
        shares.of(
            move.cargo.msg_throughput_in + move.cargo.msg_throughput_out,
            move.cargo.msg_rate_in + move.cargo.msg_rate_out,
        )
        for move in on_the_way
    )
    going: list[BundleMove] = []
    left: list[Left] = []
    for group in together(moves):
        need = sum(shares.of_bundle(cluster, move.bundle) for move in group)
        alone = not going and not on_the_way
        if len(group) <= moves_left and (need <= load_left or alone):
            going += group
            moves_left -= len(group)
            load_left -= need
            continue
        room = f"{max(0, moves_left)} moves and {max(0.0, load_left):.1f} % of the load may still start"
        what = "it has" if len(group) == 1 else f"it and the {len(group) - 1} others of its exchange have"
        why = f"{what} {need:.1f} % of the load; {room}"
        left += [Left(move.bundle, "budget", why) for move in group]
    order = {move.bundle: number for number, move in enumerate(moves)}
    going.sort(key=lambda move: order[move.bundle])
    return Admitted(going, left, Budget(max(0, moves_left), max(0.0, load_left)))


class _Shares:
    """Traffic in percent of the whole cluster's.

    The whole is the sum of the brokers' reports or of the bundles, whichever is larger: the leader may know only the heaviest.
    """

    def __init__(self, cluster: Cluster) -> None:
        traffic = [traffic_of(bundle) for bundle in cluster.bundles.values()]
        loads = [
            broker.load
            for broker in cluster.brokers.values()
            if broker.load is not None and is_amount(broker.load.msg_throughput) and is_amount(broker.load.msg_rate)
        ]
        self._bytes = max(
            fsum(bundle.msg_throughput for bundle in traffic), fsum(load.msg_throughput for load in loads)
        )
        self._messages = max(fsum(bundle.msg_rate for bundle in traffic), fsum(load.msg_rate for load in loads))

    def of(self, throughput: float, rate: float) -> float:
        by_bytes = throughput / self._bytes if self._bytes > 0 else 0.0
        by_messages = rate / self._messages if self._messages > 0 else 0.0
        return 100 * max(by_bytes, by_messages)

    def of_bundle(self, cluster: Cluster, name: str) -> float:
        bundle = cluster.bundles.get(name)
        if bundle is None:
            return 0.0
        traffic = traffic_of(bundle)
        return self.of(traffic.msg_throughput, traffic.msg_rate)
