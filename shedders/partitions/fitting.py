"""In which order replicas are tried, so that an amount is moved with the fewest bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECES_MAX: Final = 48
"""Pieces that are thought ahead."""


def preferred(
    partitions: NDArray[np.int64], weight: NDArray[np.int64], amount: int, copied: NDArray[np.int64] | None
) -> tuple[NDArray[np.int64], int]:
    """The order, as places in the arrays, and how many of the first belong together: they make up the amount.

    Args:
        partitions: Numbers, the last tie-breaker.
        weight: What each takes away.
        amount: What is to be taken away.
        copied: Bytes of each; None: the weight is in bytes itself.

    Where weights are bytes, pieces are chosen so that together they hold little more than the amount. Otherwise those
    come first that copy the fewest bytes for what they take away; among equals the largest.
    """
    if copied is None:
        return _fit(partitions, weight, amount)
    useful = np.minimum(weight, amount)
    order = np.lexsort((partitions, weight, -useful, copied / useful))
    enough = int(np.searchsorted(np.cumsum(weight[order]), amount)) + 1
    return order, min(enough, len(order))


def _fit(partitions: NDArray[np.int64], weight: NDArray[np.int64], amount: int) -> tuple[NDArray[np.int64], int]:
    rising = np.lexsort((partitions, weight))
    sizes = weight[rising]
    chosen = _pieces(sizes, amount)
    split = int(np.searchsorted(sizes, amount, side="right"))
    rest = np.concatenate((np.arange(split - 1, -1, -1), np.arange(split, len(sizes))))
    if chosen:
        rest = np.concatenate((np.array(chosen), rest[~np.isin(rest, chosen)]))
    found: NDArray[np.int64] = rising[rest]
    return found, max(1, len(chosen))


def _pieces(sizes: NDArray[np.int64], amount: int) -> list[int]:
    """Large pieces that fit, then the smallest that covers what is left: at the point where that is the least in all."""
    taken: list[int] = []
    best: list[int] = []
    best_sum = None
    total, end = 0, len(sizes)
    while len(taken) < PIECES_MAX:
        rest = amount - total
        cover = int(np.searchsorted(sizes, rest))
        if cover < len(sizes) and cover not in taken:
            whole = total + int(sizes[cover])
            if best_sum is None or whole < best_sum:
                best_sum, best = whole, [*taken, cover]
        fitting = min(end, int(np.searchsorted(sizes, rest, side="right"))) - 1
        if rest <= 0 or fitting < 0:
            break
        taken.append(fitting)
        total += int(sizes[fitting])
        end = fitting
    return best or taken
