"""How far an execution is, in figures; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shedders.partitions.execution.standing import Standing

if TYPE_CHECKING:
    from loaddata.partitions.layout import KafkaTopic
    from shedders.partitions.execution.seen import Key
    from shedders.partitions.execution.standing import Stand
    from shedders.partitions.plan import Plan

_ARRIVED = frozenset({Standing.DONE, Standing.ELECT, Standing.REORDER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """See the module.

    Attributes:
        partitions: By where they stand.
        total: Partitions of the plan.
        done: Those that are where they are to be, led by whom they are to be.
        bytes_total: To be copied; bytes_done: copied, those under way as far as known.
        elapsed_s: Since the first beginning.
        rate_bytes_per_s: Over that time; None: nothing copied yet.
        left_s: At that rate; None: not known.
    """

    partitions: Mapping[str, int]
    total: int
    done: int
    bytes_total: int
    bytes_done: int
    elapsed_s: float
    rate_bytes_per_s: int | None
    left_s: float | None

    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        return {name: getattr(self, name) for name in self.__slots__} | {"partitions": dict(self.partitions)}


def progress_of(
    plan: Plan,
    stands: Mapping[Key, Stand],
    topics: Mapping[str, KafkaTopic],
    copied: Mapping[tuple[str, int, int], int] | None,
    *,
    elapsed_s: float,
) -> Progress:
    """The figures.

    Args:
        stands: Of each planned partition.
        topics: For what one replica at a time has brought.
        copied: Of replicas under way, as far as known.
        elapsed_s: Since the first beginning.
    """
    done_bytes = 0
    for move in plan.moves:
        key = (move.topic, move.partition)
        size = move.size_bytes or 0
        stand = stands.get(key)
        if stand is None or not size or not move.added:
            continue
        if stand.standing in _ARRIVED:
            done_bytes += move.copied_bytes
        elif stand.standing in {Standing.MOVING, Standing.PARTLY}:
            partition = topics[move.topic].partitions[move.partition]
            there = [one for one in move.added if one in partition.replicas and one not in partition.adding]
            done_bytes += size * len(there)
            done_bytes += sum(min(size, (copied or {}).get((*key, one), 0)) for one in partition.adding)
    total = plan.copied_bytes
    rate = done_bytes / elapsed_s if done_bytes and elapsed_s > 0 else None
    counts = Counter(str(stand.standing) for stand in stands.values())
    return Progress(
        partitions=dict(sorted(counts.items())),
        total=len(plan.moves),
        done=counts[Standing.DONE],
        bytes_total=total,
        bytes_done=done_bytes,
        elapsed_s=elapsed_s,
        rate_bytes_per_s=None if rate is None else round(rate),
        left_s=0.0 if total == done_bytes else (None if rate is None else (total - done_bytes) / rate),
    )
