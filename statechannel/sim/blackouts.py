"""Total outages: everybody dies at once, with debts that nobody has paid, and stays away for any time at all."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statechannel.sim.cluster import SimCluster

Strike = Callable[[Random], None]

BLACKOUTS_MAX = 2
SPANS_S = (0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 8.5, 9.5, 10.5, 13.0, 17.0, 19.5, 20.5, 26.0, 40.0, 60.0)
"""On both sides of half the lag, of the lag, and several lags."""
EARLIEST = 0.3
LOSERS_SPANS_S = (13.0, 17.0, 19.5, 20.5, 26.0, 40.0)
"""Longer than half the lag: where late losers are all that nobody has paid, the log is not to vouch by itself."""
UNPAID = (0, 1, 1, 2, 4)
IN_THE_DARK = (0, 0, 1, 3)
BACK_WITHIN_S = 2.0


class Blackouts:
    """The total outages of a run.

    Attributes:
        total_s: The run takes so much longer.
    """

    def __init__(self, cluster: SimCluster, *, wanted: bool, losers: bool) -> None:
        self._cluster = cluster
        self._until_s = 0.0
        rng = Random(f"{cluster.seed}/blackouts")
        self._spans_s = [rng.choice(SPANS_S) for _ in range(rng.randint(1, BLACKOUTS_MAX))] if wanted else []
        self._rng = rng
        self._late = Random(f"{cluster.seed}/late losers")
        self._losers_s = self._late.choice(LOSERS_SPANS_S) if losers else 0.0
        self.total_s = sum(self._spans_s) + self._losers_s

    def plan(self, strike: Strike, lose: Strike) -> list[tuple[float, Strike]]:
        """When each begins, and what happens then.

        Args:
            strike: Writes a hostile record.
            lose: Writes a late proposal that has lost its race.
        """
        duration_s = self._cluster.options.duration_s
        found = [(self._rng.uniform(EARLIEST * duration_s, duration_s), self._one(s, strike)) for s in self._spans_s]
        if self._losers_s:
            found.append(
                (self._late.uniform(0.9, 1.0) * duration_s, self._one(self._losers_s, lose, in_the_dark=False))
            )
        return found

    def rest(self, span_s: float) -> None:
        """Nobody starts for so long."""
        self._until_s = max(self._until_s, self._cluster.events.now_s + span_s)

    @property
    def rest_s(self) -> float:
        """How long nobody may start yet."""
        return max(0.0, self._until_s - self._cluster.events.now_s)

    def _one(self, span_s: float, strike: Strike, *, in_the_dark: bool = True) -> Strike:
        def begin(rng: Random) -> None:
            cluster = self._cluster
            cluster.note(f"everybody dies, for {span_s:g} s")
            cluster.trace.count("blackouts")
            self.rest(span_s)
            for _ in range(rng.choice(UNPAID)):
                strike(rng)
            for process in cluster.alive():
                process.end("blackout")
            for _ in range(rng.choice(IN_THE_DARK) if in_the_dark else 0):
                cluster.events.after(rng.uniform(0.0, span_s), lambda: strike(rng) if cluster.faulty else None)

        return begin
