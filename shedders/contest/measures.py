"""Measurement of a run, step by step (`outcome.Measures` explains each figure)."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import TYPE_CHECKING

import numpy as np

from shedders.contest.bundles import BYTES_IN, BYTES_OUT, CPU, MEMORY
from shedders.contest.outcome import POINTS_MAX, Measures, MoveMade, PlotSeries
from shedders.contest.trace import CORE

if TYPE_CHECKING:
    from shedders.contest.trace import Floats, Ints, Trace, TraceMachine

RETURN_S = 1_800.0
WINDOWS_H = (1, 6, 24)
"""Windows of `returned_share_1h` and its like, in hours."""
SETTLED = 1.10
SETTLED_S = 300.0
USUAL_START_S = 900.0
_TINY = 1e-12


RESOURCE_ROWS = {"cpu": 0, "bandwidth-in": 1, "bandwidth-out": 2, "direct-memory": 3}
"""Rows of what counts as load."""
RATE_ROWS = ("cpu", "bandwidth-in", "bandwidth-out")
"""Resources that a slow broker has less of, unless others are named."""


class MachineCapacity:
    """What machines can do: four rows (CPU in percent of a core, bytes in, bytes out, direct memory in MiB), a column a broker.

    Attributes:
        factor: Part of the rows that a broker really has.
    """

    def __init__(self, machines: Sequence[TraceMachine]) -> None:
        self.rows: Floats = np.array(
            [
                [CORE * machine.cores for machine in machines],
                [machine.bandwidth_in_kbit * 1e3 / 8 for machine in machines],
                [machine.bandwidth_out_kbit * 1e3 / 8 for machine in machines],
                [machine.direct_memory_mib for machine in machines],
            ]
        )
        self.idle_cpu: Floats = np.array([machine.cores * machine.idle_percent for machine in machines])
        self.factor: Floats = np.ones(self.rows.shape)

    def slow_down(self, broker: int, factor: float, resources: Sequence[str] = ()) -> None:
        """From now on a broker has this part of its reported capacity; 1: all of it."""
        for name in resources or RATE_ROWS:
            self.factor[RESOURCE_ROWS[name], broker] = factor

    def loads(self, use: Floats) -> Floats:
        """Load of each broker by what it is asked for (its idle CPU among it)."""
        return np.asarray((self.real_use(use) / (self.rows * self.factor)).max(axis=0))

    def real_use(self, use: Floats) -> Floats:
        rows = use[[CPU, BYTES_IN, BYTES_OUT, MEMORY]].copy()
        rows[0] += self.idle_cpu
        return rows

    def even_load(self, demand: Floats, brokers: Ints) -> float:
        """Load if these brokers were equally full in the resource that is the scarcest: no placement has less.

        Args:
            demand: The six rows, a column a bundle; all of them can only be on these brokers.
        """
        rows, factor = self.rows[:, brokers], self.factor[:, brokers]
        total = demand[[CPU, BYTES_IN, BYTES_OUT, MEMORY]].sum(axis=1)
        total[0] += self.idle_cpu[brokers].sum()
        return float((total / (rows * factor).sum(axis=1)).max())

    def single_loads(self, demand: Floats, brokers: Ints) -> Floats:
        """Load of each column of the demand on the one of these brokers that fits it best, without anything else there."""
        rows, factor, idle = self.rows[:, brokers], self.factor[:, brokers], self.idle_cpu[brokers]
        wanted = demand[[CPU, BYTES_IN, BYTES_OUT, MEMORY]]
        least = np.full(wanted.shape[1], np.inf)
        for kind in np.unique(np.vstack([rows * factor, idle]), axis=1).T:
            need = wanted / kind[:-1, None]
            need[0] += kind[-1] / kind[0]
            least = np.minimum(least, need.max(axis=0))
        return least


def worst_points(ratios: Sequence[float], most: int) -> list[int]:
    """At most this many steps of a series: of each stretch the first one with the largest ratio."""
    stride = max(1, -(-len(ratios) // most))
    stretches = [range(first, min(first + stride, len(ratios))) for first in range(0, len(ratios), stride)]
    return [max(stretch, key=ratios.__getitem__) for stretch in stretches]


class Meter:
    """Collects the measures of a run, step by step."""

    def __init__(self, trace: Trace, names: Sequence[str]) -> None:
        self._trace = trace
        self._names = names
        self._loads: list[Floats] = []
        self._ratio: list[float] = []
        self._bound: list[float] = []
        self._std: list[float] = []
        self.moves: list[MoveMade] = []
        self.rounds_s: list[float] = []
        self.splits = self.reconnects = self.returns = 0
        self._left: dict[str, list[tuple[float, str]]] = {}
        self._split_shares: list[float] = []
        self._returned: dict[int, list[float]] = {hours: [] for hours in WINDOWS_H}
        self._misplaced = 0
        self._gap_s: list[float] = []
        self._gap_traffic: list[float] = []
        self._refused: list[float] = []
        self._requested: list[float] = []
        self._overloaded = 0

    def step(
        self,
        loads: Floats,
        parts: Sequence[tuple[Ints, float]],
        requested: float,
        refused: float,
        unserved: float,
        unowned: int,
        misplaced: int = 0,
    ) -> None:
        """Record one step.

        Args:
            loads: Of all brokers; those in none of the parts are left out.
            parts: Brokers among which load can be moved, and the bound of their largest load: all that are alive, unless
                policies divide them.
            requested: Bytes that clients requested in it; `refused`: that machines could not do.
            unserved: Bytes requested of bundles without owner.
            unowned: Bundles without owner; `misplaced`: on brokers that policies forbid.
        """
        row = np.full(len(self._names), np.nan)
        ratio = over_bound = 1.0
        for brokers, bound in parts:
            here = loads[brokers]
            row[brokers] = here
            top, mean = float(here.max(initial=0.0)), float(here.mean()) if len(here) else 0.0
            # Without brokers, or without any load, there is nothing to balance: as even as can be.
            if top > 0:
                ratio, over_bound = max(ratio, top / mean), max(over_bound, top / max(bound, _TINY))
        here = row[~np.isnan(row)]
        self._loads.append(row)
        self._ratio.append(ratio)
        self._bound.append(over_bound)
        self._std.append(float(here.std()) if len(here) else 0.0)
        self._overloaded += int((here > self._trace.costs.overloaded).sum())
        self._requested.append(requested)
        self._refused.append(refused)
        self._misplaced += misplaced
        self.record_gap(self._trace.step_s * unowned, unserved)

    def record_gap(self, bundle_s: float, traffic: float) -> None:
        """Record bundle seconds without an owner, and the bytes requested in that time."""
        self._gap_s.append(bundle_s)
        self._gap_traffic.append(traffic)

    def record_move(self, at_s: float, bundle: str, source: str, destination: str, share: float, why: str) -> None:
        longest_s = 3_600.0 * WINDOWS_H[-1]
        past = self._left[bundle] = [left for left in self._left.get(bundle, ()) if at_s - left[0] <= longest_s]
        away_s = min((at_s - left_s for left_s, name in past if name == destination), default=float("inf"))
        self.returns += away_s <= RETURN_S
        for hours, shares in self._returned.items():
            if away_s <= 3_600.0 * hours:
                shares.append(share)
        past.append((at_s, source))
        self.moves.append(
            MoveMade(at_s=at_s, bundle=bundle, source=source, destination=destination, share=share, why=why)
        )

    def record_split(self, parent: str, children: Sequence[str]) -> None:
        self.splits += 1
        for child in children:
            self._left[child] = list(self._left.get(parent, ()))

    def record_split_off(self, share: float, sessions: int) -> None:
        """Record children that stay with their broker: clients look them up and connect again.

        Args:
            share: Part of the cluster's traffic.
        """
        self.reconnects += sessions
        self._split_shares.append(share)

    def measures(self) -> Measures:
        trace = self._trace
        judged = self._judged()
        ratio, bound, std = (np.array(values) for values in (self._ratio, self._bound, self._std))
        settle = self._settled(bound)
        hours = max(float(judged.sum()) * trace.step_s / 3_600, _TINY)
        moved_in_judged = fsum(
            move.share for move in self.moves if judged[min(int(move.at_s / trace.step_s), len(judged) - 1)]
        )
        requested = max(fsum(self._requested), _TINY)
        moved, split = fsum(move.share for move in self.moves), fsum(self._split_shares)
        returned = {hours: fsum(shares) / max(moved, _TINY) for hours, shares in self._returned.items()}
        return Measures(
            max_over_mean=float(ratio[judged].mean()),
            max_over_mean_worst=float(np.quantile(ratio[judged], 0.99)),
            max_over_bound=float(bound[judged].mean()),
            std=float(std[judged].mean()),
            bound_over_mean=float((ratio[judged] / bound[judged]).mean()),
            overloaded_broker_s=self._overloaded * trace.step_s,
            moved_share=moved,
            moved_share_per_h=moved_in_judged / hours,
            split_share=split,
            churn_share=moved + split,
            returned_share_1h=returned[1],
            returned_share_6h=returned[6],
            returned_share_24h=returned[24],
            returned_moves_1h=len(self._returned[1]),
            returned_moves_6h=len(self._returned[6]),
            returned_moves_24h=len(self._returned[24]),
            moves=len(self.moves),
            returns=self.returns,
            rounds=len(self.rounds_s),
            rounds_to_settle=None if settle is None else settle[0],
            settle_s=None if settle is None else settle[1],
            splits=self.splits,
            unavailable_bundle_s=fsum(self._gap_s),
            unavailable_share=fsum(self._gap_traffic) / requested,
            refused_share=fsum(self._refused) / requested,
            reconnects=self.reconnects,
            misplaced_bundle_s=self._misplaced * trace.step_s,
        )

    def series(self) -> PlotSeries:
        """Series for plots: of each stretch the step with the largest max/mean."""
        points = worst_points(self._ratio, POINTS_MAX)
        return PlotSeries(
            at_s=[step * self._trace.step_s for step in points],
            loads={
                name: [
                    None if np.isnan(self._loads[step][number]) else float(self._loads[step][number]) for step in points
                ]
                for number, name in enumerate(self._names)
            },
            max_over_mean=[self._ratio[step] for step in points],
            max_over_bound=[self._bound[step] for step in points],
        )

    def _judged(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        at_s = np.arange(len(self._ratio)) * self._trace.step_s
        judged = np.zeros(len(self._ratio), dtype=np.bool_)
        for from_s, to_s in self._trace.judged:
            judged |= (at_s >= from_s) & (at_s < to_s)
        if not judged.any():
            judged = at_s >= min(USUAL_START_S, float(at_s[-1]))
        return judged

    def _settled(self, bound: Floats) -> tuple[float, float] | None:
        """Rounds and seconds from a disturbance until it stays good, the worst of all; None if one never was."""
        step_s, end_s = self._trace.step_s, len(bound) * self._trace.step_s
        starts = sorted(disturbance for disturbance in set(self._trace.disturbances) if disturbance < end_s)
        worst = (0.0, 0.0)
        for start_s, until_s in zip(starts, [*starts[1:], end_s], strict=True):
            first, last = int(start_s / step_s), int(until_s / step_s)
            window = max(1, int(SETTLED_S / step_s))
            if last - first < window:
                continue
            good = bound[first:last] <= SETTLED
            runs = np.convolve(good.astype(np.int64), np.ones(window, dtype=np.int64), mode="valid") == window
            if not runs.any():
                return None
            done_s = (first + int(np.argmax(runs))) * step_s
            rounds = sum(start_s <= at_s <= done_s for at_s in self.rounds_s)
            worst = max(worst[0], float(rounds)), max(worst[1], done_s - start_s)
        return worst
