"""Random numbers by seed, in independent streams that are named by words.

Only `Generator.random` of PCG64 is used: whole numbers over 2**53, the same on every machine and in every version of numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from shedders.contest.trace import Floats, Ints


def drawn(seed: int, count: int, *words: str | int) -> Floats:
    """`count` numbers from 0 to below 1, which depend only on the seed, the words and the count."""
    entropy = [seed, *(word if isinstance(word, int) else crc32(word.encode()) for word in words)]
    return np.random.Generator(np.random.PCG64(entropy)).random(count)


def alike(value: float) -> float:
    """The value rounded to 12 digits, as the last digits of sines and powers differ between machines."""
    return float(f"{value:.12g}")


def shuffled(seed: int, count: int, *words: str | int) -> Ints:
    """0 to count - 1 in an order that depends only on the seed, the words and the count."""
    return np.argsort(drawn(seed, count, *words), kind="stable")
