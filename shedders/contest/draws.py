"""Numbers drawn by a seed: streams by words, so that what one part draws does not depend on what another has drawn.

Only `Generator.random` of PCG64 is used: whole numbers over 2**53, the same on every machine and in every version of numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from shedders.contest.trace import Floats, Ints


def drawn(seed: int, count: int, *words: str | int) -> Floats:
    """So many numbers, each from 0 to below 1, that depend on nothing but the seed, the words and the count."""
    entropy = [seed, *(word if isinstance(word, int) else crc32(word.encode()) for word in words)]
    return np.random.Generator(np.random.PCG64(entropy)).random(count)


def alike(value: float) -> float:
    """The value without its last digits: those of sines and powers differ between machines."""
    return float(f"{value:.12g}")


def shuffled(seed: int, count: int, *words: str | int) -> Ints:
    """0 to count - 1 in an order that depends on nothing but the seed, the words and the count."""
    return np.argsort(drawn(seed, count, *words), kind="stable")
