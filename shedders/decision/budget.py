"""How much may be on its way at once: by number and by share of the cluster's load."""

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
        description="So many bundles may be on their way at once: with eight at a time, seconds of work.",
    )
    load_percent: float = Field(
        default=60.0,
        gt=0,
        le=100,
        description="So much of the cluster's traffic may be on its way at once, in percent of its bytes or of its messages, "
        "whichever is more. A single move may be larger, but then it goes alone. When twice as many brokers take over half of "
        "it, that is one decision.",
    )


@dataclass(frozen=True, slots=True)
class DecisionRules:
    """What stands around the strategies when their plans are carried out.

    Attributes:
        budget: How much may be on its way at once; None: all that is planned.
        only_unload: Bundles are let go without naming a destination.
        off: Why nothing is shed at all; None while it is.
    """

    budget: BudgetSettings | None = None
    only_unload: bool = False
    off: str | None = None


NO_RULES = DecisionRules()


@dataclass(frozen=True, slots=True)
class Budget:
    """What is left.

    Attributes:
        moves: Bundles that may still set out.
        load_percent: Traffic that may still set out, in percent of the cluster's.
    """

    moves: int
    load_percent: float


@dataclass(frozen=True, slots=True)
class Admitted:
    """The part of a plan that the budget allows.

    Attributes:
        left: What has to wait, with the reason `budget`, or does not set out at all: `unload-mode`, `shedding-off`.
        budget: What is left after these moves.
    """

    moves: Sequence[BundleMove]
    left: Sequence[Left]
    budget: Budget


def allowed(
    cluster: Cluster, moves: Sequence[BundleMove], on_the_way: Sequence[Booked], rules: DecisionRules
) -> Admitted:
    """The moves of a plan that set out under the rules; the balancer and a dry run go by this."""
    if rules.off is not None:
        return Admitted([], [Left(move.bundle, "shedding-off", rules.off) for move in moves], Budget(0, 0.0))
    swaps = [group for group in together(moves) if rules.only_unload and any(move.swap for move in group)]
    why = "it is part of an exchange, and nothing can be exchanged without naming destinations"
    halves = [Left(move.bundle, "unload-mode", why) for group in swaps for move in group]
    out = {one.name for one in halves}
    rest = [move for move in moves if move.bundle not in out]
    if rules.budget is None:
        return Admitted(rest, halves, Budget(len(rest), 100.0))
    found = admit(cluster, rest, on_the_way, rules.budget)
    return Admitted(found.moves, [*halves, *found.left], found.budget)


def admit(
    cluster: Cluster, moves: Sequence[BundleMove], on_the_way: Sequence[Booked], settings: BudgetSettings
) -> Admitted:
    """Let the plan's moves set out in their order as far as the budget goes.

    Bundles that two brokers exchange go together or not at all: half an exchange may be worse than none.
    """
    shares = _Shares(cluster)
    moves_left = settings.moves - len(on_the_way)
    load_left = settings.load_percent - sum(
        shares.of(
            one.cargo.msg_throughput_in + one.cargo.msg_throughput_out, one.cargo.msg_rate_in + one.cargo.msg_rate_out
        )
        for one in on_the_way
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
        room = f"{max(0, moves_left)} moves and {max(0.0, load_left):.1f} % may set out"
        what = "it has" if len(group) == 1 else f"it and {len(group) - 1} that belong to it have"
        why = f"{what} {need:.1f} % of the load; {room}"
        left += [Left(move.bundle, "budget", why) for move in group]
    order = {move.bundle: number for number, move in enumerate(moves)}
    going.sort(key=lambda move: order[move.bundle])
    return Admitted(going, left, Budget(max(0, moves_left), max(0.0, load_left)))


class _Shares:
    """Traffic in percent of the whole cluster's.

    That is what its brokers report, as the leader may know the heaviest bundles only, or what its bundles add up to, if more.
    """

    def __init__(self, cluster: Cluster) -> None:
        traffic = [traffic_of(one) for one in cluster.bundles.values()]
        loads = [
            one.load
            for one in cluster.brokers.values()
            if one.load is not None and is_amount(one.load.msg_throughput) and is_amount(one.load.msg_rate)
        ]
        self._bytes = max(fsum(one.msg_throughput for one in traffic), fsum(one.msg_throughput for one in loads))
        self._messages = max(fsum(one.msg_rate for one in traffic), fsum(one.msg_rate for one in loads))

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
