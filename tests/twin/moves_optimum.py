"""The best that moves of whole bundles can reach: integer programs that decisions and their bounds are held against.

A variable says whether a bundle ends on a broker. Either the largest use is the least for at most a given load, or the load is
the least for at most a given largest use. Nothing of the bound is used here but the form of its input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import NamedTuple

from shedders.decision.relaxed_bound import BrokerUse, BundleUse
from tests.twin.partition_optimum import Program

Bundles = Sequence[Sequence[BundleUse]]
"""Of each broker, by its place."""


class Moved(NamedTuple):
    """A bundle that moves: its number on its broker, and the two brokers' places."""

    bundle: int
    source: int
    destination: int


class Optimum(NamedTuple):
    """A solution.

    Attributes:
        moved: Its moves.
        largest_use, load: What these moves come to, added up again without the solver.
        proven: No solution is better than this, according to the solver.
    """

    moved: Sequence[Moved]
    largest_use: float
    load: float
    proven: float


def least_use(
    brokers: Sequence[BrokerUse], bundles: Bundles, load: float, *, time_limit_s: float = 10.0, gap: float = 1e-6
) -> Optimum:
    """The least largest use for moves of at most this load."""
    program = Program()
    level = program.column(1.0, float("inf"), whole=False)
    columns = _columns(program, brokers, bundles, None)
    if isfinite(load):
        costs = {column: bundles[source][number][1] for (number, source, _), column in columns.items()}
        program.row(costs, -float("inf"), load)
    for place, broker in enumerate(brokers):
        for resource, limit in enumerate(broker.limits):
            if limit > 0:
                row = _use(place, resource, columns, bundles)
                program.row(
                    {level: limit, **{column: -use for column, use in row.items()}}, broker.use[resource], float("inf")
                )
    return _solved(program, columns, brokers, bundles, time_limit_s, gap)


def least_load(
    brokers: Sequence[BrokerUse], bundles: Bundles, largest_use: float, *, time_limit_s: float = 10.0, gap: float = 1e-6
) -> Optimum:
    """The least load of moves after which no use is larger."""
    program = Program()
    unit = max(1e-9, sum(load for own in bundles for _, load in own))  # so that costs are neither large nor tiny
    columns = _columns(program, brokers, bundles, unit)
    for place, broker in enumerate(brokers):
        for resource, limit in enumerate(broker.limits):
            if limit > 0:
                row = _use(place, resource, columns, bundles)
                program.row(row, -float("inf"), largest_use * limit - broker.use[resource])
    optimum = _solved(program, columns, brokers, bundles, time_limit_s, gap)
    return optimum._replace(proven=optimum.proven * unit)


def after(brokers: Sequence[BrokerUse], bundles: Bundles, moved: Sequence[Moved]) -> tuple[float, float]:
    """Largest use, and load, of moves; a broker whose bundles claim more than it uses is left with nothing, never with less."""
    uses = [list(broker.use) for broker in brokers]
    for number, source, _ in moved:
        for resource, own in enumerate(bundles[source][number][0]):
            uses[source][resource] -= own
    uses = [[max(0.0, own) for own in use] for use in uses]
    load = 0.0
    for number, source, destination in moved:
        use, cost = bundles[source][number]
        load += cost
        for resource, own in enumerate(use):
            uses[destination][resource] += own
    levels = [
        own / limit
        for use, broker in zip(uses, brokers, strict=True)
        for own, limit in zip(use, broker.limits, strict=True)
        if limit > 0
    ]
    return max(levels, default=0.0), load


def _columns(program: Program, brokers: Sequence[BrokerUse], bundles: Bundles, unit: float | None) -> dict[Moved, int]:
    """A column for each bundle and broker that it can go to; it goes to at most one.

    Args:
        unit: Of the load that the columns cost; None: they cost nothing.
    """
    takers = [place for place, broker in enumerate(brokers) if broker.takes]
    columns: dict[Moved, int] = {}
    for source, own in enumerate(bundles):
        for number, (_, load) in enumerate(own):
            cost = 0.0 if unit is None else load / unit
            mine = {Moved(number, source, place): program.column(cost) for place in takers if place != source}
            program.row(dict.fromkeys(mine.values(), 1.0), 0, 1)
            columns |= mine
    return columns


def _use(place: int, resource: int, columns: dict[Moved, int], bundles: Bundles) -> dict[int, float]:
    """What each column adds to a broker."""
    return dict(_added(place, resource, columns, bundles))


def _added(place: int, resource: int, columns: dict[Moved, int], bundles: Bundles) -> Iterator[tuple[int, float]]:
    for (number, source, destination), column in columns.items():
        if place in (source, destination):
            use = bundles[source][number][0][resource]
            yield column, use if place == destination else -use


def _solved(
    program: Program,
    columns: dict[Moved, int],
    brokers: Sequence[BrokerUse],
    bundles: Bundles,
    time_limit_s: float,
    gap: float,
) -> Optimum:
    solver = program.solved(time_limit_s, gap)
    values = solver.getSolution().col_value
    chosen = [move for move, column in columns.items() if values and values[column] > 0.5]
    proven = max(0.0, float(solver.getInfo().mip_dual_bound))
    if not isfinite(proven) or not columns:
        proven = 0.0
    return Optimum(chosen, *after(brokers, bundles, chosen), proven)
