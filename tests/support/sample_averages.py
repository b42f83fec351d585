"""Loads of samples that are at hand, for tests."""

from collections.abc import Iterable

from loaddata.samples.averages import Averager, Window
from loaddata.samples.partitions import PartitionLoads, PartitionSample


def average(
    samples: Iterable[PartitionSample], *, from_ms: int, to_ms: int, interval_s: float, completeness_min: float = 0.0
) -> PartitionLoads:
    """Loads of all partitions that have samples in a window, in bounded memory.

    Args:
        samples: In the order in which they were written; they may be of any time.
        from_ms: Start of the window, wall clock; within an interval, that interval counts whole.
        to_ms: Its end, likewise; a sample of that moment does not count where it begins an interval.
        interval_s: Time between two samples of a partition.
        completeness_min: Partitions with a smaller part of the window measured are left out: not known.

    Raises:
        TooManySamplesError: More partitions than may be held.
    """
    averager = Averager(Window(from_ms, to_ms, max(1, round(interval_s * 1_000))))
    for sample in samples:
        averager.add(sample)
    return averager.loads(completeness_min=completeness_min)
