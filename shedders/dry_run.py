"""Runs decisions without doing them: which strategy with which settings, and one cycle after the other.

The balancer makes its decisions by the same two functions, `decide` and `after_moves`: a dry run of a snapshot is what would have
been done on the cluster that it was taken from, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from shedders.cluster import Bundle, Cluster
from shedders.errors import StrategyFailedError
from shedders.moved import EVERY_S, after_moves
from shedders.plan import Move, Placed, Plan
from shedders.strategy import Shedding


class Placer(Protocol):
    """Chooses a broker for a bundle, filters first; keeps what the strategy behind it remembers."""

    def __call__(self, cluster: Cluster, bundle: Bundle, booked: Mapping[str, Sequence[str]]) -> Placed:
        """Choose.

        Args:
            booked: Bundles on their way to a broker that its report does not count yet.
        """
        ...


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision with all destinations.

    Attributes:
        cluster: What it was made from.
        plan: As the strategy gave it.
        moves: The plan's moves in order; those that the strategy left open have the destination that placement chose, or
            None where nobody else takes the bundle, which then stays.
        placed: What placement answered, in the order of those moves.
        memory: What the strategy is given next time, as it comes back out of JSON.
    """

    cluster: Cluster
    plan: Plan
    moves: Sequence[Move]
    placed: Sequence[Placed]
    memory: Mapping[str, Any]


def decide(cluster: Cluster, shedding: Shedding, memory: Mapping[str, Any], placer: Placer | None) -> Decision:
    """Decide once.

    Args:
        memory: What the strategy gave last time; empty at first.
        placer: Chooses where bundles go that the strategy only unloads; None leaves their destination open.

    Raises:
        StrategyFailedError: The strategy raises, or remembers what JSON cannot hold.
    """
    try:
        plan = shedding.plan(cluster, memory)
    except Exception as error:
        raise StrategyFailedError("shedding", shedding.name, f"fails: {error!r}") from error
    moves, placed = _with_destinations(cluster, plan.moves, placer)
    return Decision(cluster, plan, moves, placed, carried(shedding.name, plan.memory))


def run_cycles(
    cluster: Cluster,
    shedding: Shedding,
    memory: Mapping[str, Any],
    placer: Placer | None,
    *,
    cycles: int = 1,
    every_s: float = EVERY_S,
) -> Iterator[Decision]:
    """Decide again and again: memory is carried on, and each decision's moves are made before the next (`after_moves`)."""
    for _ in range(cycles):
        decision = decide(cluster, shedding, memory, placer)
        yield decision
        memory = decision.memory
        cluster = after_moves(cluster, decision.moves, every_s=every_s)


def carried(strategy: str, memory: Mapping[str, Any]) -> dict[str, Any]:
    """A strategy's memory as it comes back out of JSON, in which a snapshot and a new leader get it.

    Raises:
        StrategyFailedError: JSON cannot hold it.
    """
    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(memory), allow_nan=False, sort_keys=True))
    except (TypeError, ValueError, RecursionError) as error:
        raise StrategyFailedError("shedding", strategy, f"remembers what JSON cannot hold: {error}") from error
    return found


def _with_destinations(
    cluster: Cluster, moves: Sequence[Move], placer: Placer | None
) -> tuple[Sequence[Move], Sequence[Placed]]:
    found: list[Move] = []
    placed: list[Placed] = []
    booked: dict[str, list[str]] = {}
    for move in moves:
        bundle = cluster.bundles.get(move.bundle)
        one = move
        if move.destination is None and placer is not None and bundle is not None:
            answer = placer(cluster, bundle, booked)
            placed.append(answer)
            # Back to where it came from is no move.
            one = replace(move, destination=answer.broker if answer.broker != move.source else None)
        if one.destination is not None:
            booked.setdefault(one.destination, []).append(one.bundle)
        found.append(one)
    return found, placed
