"""Targets of our strategies in every scenario, checked on the median and on the worst seed. Pure.

| aim | met if |
|---|---|
| `balance` | max/mean <= 1.10 where bundles are small enough for it (`bound_over_mean` <= 1.05), else max/bound <= 1.05 |
| `returns` | no A-B-A return |
| `steady` | where nothing happens: at most 1 % of the traffic moved an hour |
| `scale-out` | where brokers join: settled in at most 2 rounds |
| `spread` | max/mean no higher than that of the best policy of upstream, the one with the lowest median max/mean |
| `spread-at-moved` | no policy of upstream that moved as little, or less, had a lower max/mean |
| `moved-at-spread` | no policy of upstream with an equal or lower max/mean moved less |

Figures count as equal within `SPREAD_EQUAL` and `MOVED_EQUAL`: smaller differences do not matter in practice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from shedders.contest.figures import FigureSpread, NumericBounds, bounds_of, ratio, share, tell_of

DIVISIBLE: Final = 1.05
MAX_OVER_MEAN: Final = 1.10
MAX_OVER_BOUND: Final = 1.05
MOVED_PER_H: Final = 0.01
ROUNDS: Final = 2
SPREAD_EQUAL: Final = 0.01
"""Share of the mean load."""
MOVED_EQUAL: Final = 0.01
"""Share of the cluster's traffic, over the whole run."""


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """Figures of a contender in a scenario."""

    contender: str
    upstream: bool
    measures: Mapping[str, FigureSpread]

    def bounds(self, measure: str) -> NumericBounds:
        """Median and worst."""
        return bounds_of(self.measures[measure])


class AimResult(BaseModel):
    """Result of one aim of a contender in a scenario."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    aim: str
    met: bool = Field(description="On the median and on the worst seed.")
    met_median: bool
    measure: str
    median: float | None = Field(description="Median of the measure; None: never settled.")
    worst: float | None
    limit: float | None = Field(description="Limit for the median.")
    limit_worst: float | None
    said: str = Field(description="The figure against its limit, in words.")


def best_of(standings: Iterable[TargetStatus], *, other_than: str) -> str | None:
    """Best contender by median max/mean; among equals the one that moved less."""
    others = [status for status in standings if status.contender != other_than]
    ranked = sorted(
        others, key=lambda status: (status.bounds("max_over_mean").median, _moved(status).median, status.contender)
    )
    return ranked[0].contender if ranked else None


def aims_of(own: TargetStatus, standings: Iterable[TargetStatus], *, steady: bool, scale_out: bool) -> list[AimResult]:
    """Aims that apply to a contender in a scenario."""
    results = [_balance(own), _at_most(own, "returns", "returns", 0.0, "A-B-A returns")]
    if steady:
        results.append(_at_most(own, "steady", "moved_share_per_h", MOVED_PER_H, "of the traffic moved an hour"))
    if scale_out:
        results.append(_at_most(own, "scale-out", "rounds_to_settle", float(ROUNDS), "rounds until settled"))
    rivals = _rivals(own, standings)
    if rivals:
        results.extend(_against(own, rivals))
    return results


def _balance(own: TargetStatus) -> AimResult:
    if own.bounds("bound_over_mean").median <= DIVISIBLE:
        return _at_most(own, "balance", "max_over_mean", MAX_OVER_MEAN, "max/mean")
    return _at_most(own, "balance", "max_over_bound", MAX_OVER_BOUND, "max/bound, as bundles are too big for the mean")


def _at_most(own: TargetStatus, aim: str, measure: str, limit: float, words: str) -> AimResult:
    return _aim(
        own,
        aim,
        measure,
        NumericBounds(limit, limit),
        f"{words}; at most {tell_of(measure)(limit)}",
    )


def _rivals(own: TargetStatus, standings: Iterable[TargetStatus]) -> Sequence[TargetStatus]:
    """Contenders of upstream, or all others if none takes part; for a contender of upstream, none."""
    if own.upstream:
        return ()
    others = [status for status in standings if status.contender != own.contender]
    return [status for status in others if status.upstream] or others


def _against(own: TargetStatus, rivals: Sequence[TargetStatus]) -> Iterator[AimResult]:
    spread, moved = own.bounds("max_over_mean"), _moved(own)
    best = min(
        rivals, key=lambda status: (status.bounds("max_over_mean").median, _moved(status).median, status.contender)
    )
    theirs = best.bounds("max_over_mean")
    words = (
        f"max/mean; {best.contender} has {ratio(theirs.median)} ({ratio(theirs.worst)}) "
        f"and moved {share(_moved(best).median)}, this one {share(moved.median)}"
    )
    yield _aim(own, "spread", "max_over_mean", NumericBounds(*(bounds + SPREAD_EQUAL for bounds in theirs)), words)

    def least(of: str, alike: Callable[[TargetStatus, int], bool], room: float) -> tuple[NumericBounds, str]:
        """The lowest figure among the rivals that are alike, for the median and the worst; and whose."""
        limits, names = [], []
        for which in (0, 1):
            fit = sorted((rival.bounds(of)[which], rival.contender) for rival in rivals if alike(rival, which))
            limits.append(fit[0][0] + room if fit else math.inf)
            names.append(fit[0][1] if fit else "")
        return NumericBounds(*limits), names[0]

    limit, name = least("max_over_mean", lambda rival, which: _moved(rival)[which] <= moved[which], SPREAD_EQUAL)
    words = f"max/mean; {name} moved as little" if name else "max/mean; no other moved as little"
    yield _aim(own, "spread-at-moved", "max_over_mean", limit, words)
    limit, name = least(
        "moved_share",
        lambda rival, which: rival.bounds("max_over_mean")[which] <= spread[which] + SPREAD_EQUAL,
        MOVED_EQUAL,
    )
    words = f"of the traffic moved; {name} is as even" if name else "of the traffic moved; no other is as even"
    yield _aim(own, "moved-at-spread", "moved_share", limit, words)


def _aim(own: TargetStatus, aim: str, measure: str, limit: NumericBounds, words: str) -> AimResult:
    bounds = own.bounds(measure)
    met = [_within(figure, most) for figure, most in zip(bounds, limit, strict=True)]
    spread = own.measures[measure]
    text_of = tell_of(measure)
    return AimResult(
        aim=aim,
        met=all(met),
        met_median=met[0],
        measure=measure,
        median=spread.median,
        worst=spread.worst,
        limit=_finite(limit.median),
        limit_worst=_finite(limit.worst),
        said=f"{text_of(bounds.median)} (worst {text_of(bounds.worst)}) {words}",
    )


def _within(number: float, most: float) -> bool:
    return number <= most or (math.isfinite(most) and math.isclose(number, most, rel_tol=1e-9))


def _moved(status: TargetStatus) -> NumericBounds:
    return status.bounds("moved_share")


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
