"""Estimate of a plan's duration, bound by the busiest broker. Pure.

    broker b:  copying_b = max(bytes into b, bytes out of b) / rate
               turns_b   = ceil(partitions that b takes part in / moves_per_broker) * poll_s
    disks_b    = bytes between log directories of b / rate, at the same time
    in all:    max over b of (copying_b + turns_b) and of disks_b, at least ceil(partitions / moves_max) * poll_s
               + ceil(leader switches / leaders_at_once) * poll_s

A replica is copied from its partition's leader. `rate` is the throttle where there is one (Kafka keeps it per broker and
direction, KIP-73), else an assumption. A turn costs one observation of the cluster, when free slots are reused. So it
is a lower bound for a cluster that copies at `rate`: new data, slower disks and pauses are not included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from shedders.model.amounts import are, count, rate, size

if TYPE_CHECKING:
    from shedders.kafka_rebalance.planning.plan import LogDirMove, PartitionMove
    from shedders.kafka_rebalance.settings import PartitionsSettings


class Bound(StrEnum):
    """Bottleneck of a plan."""

    NOTHING = "nothing"
    IN = "in"
    OUT = "out"
    DISKS = "disks"
    TURNS = "turns"
    SWITCHES = "switches"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Estimate of a duration, with its assumptions.

    Attributes:
        bound: Bottleneck: bytes into or out of a broker or between its disks, turns of small moves, or leader switches.
        broker: Busiest broker; None: nothing is copied.
        broker_bytes: Bytes into it, out of it, or between its disks.
        throttled: Whether the rate is the throttle, or assumed.
        unknown_sizes: Moves of unknown size, counted as 0 bytes.
    """

    duration_s: float
    bound: Bound
    broker: int | None
    broker_bytes: int
    rate_bytes_per_s: int
    throttled: bool
    moves_per_broker: int
    copied_bytes: int
    unknown_sizes: int

    def sentences(self) -> tuple[str, ...]:
        """Assumptions as sentences, for people."""
        texts = [_BOUND[self.bound].format(broker=self.broker, size=size(self.broker_bytes))]
        speed = rate(self.rate_bytes_per_s)
        if self.copied_bytes or self.bound is Bound.DISKS:
            texts.append(
                f"each broker copies {speed}, the throttle"
                if self.throttled
                else f"each broker is assumed to copy {speed} each way (no throttle is set: plan.copy_bytes_per_s)"
            )
        if self.bound is not Bound.NOTHING:
            texts.append(
                f"at most {count(self.moves_per_broker, 'partition')} at a time on each broker; new data not counted"
            )
        if self.unknown_sizes:
            unknown = count(self.unknown_sizes, "move")
            texts.append(f"{unknown} of unknown size {are(self.unknown_sizes)} counted as 0 bytes")
        return tuple(texts)


_BOUND = {
    Bound.NOTHING: "nothing moves",
    Bound.IN: "bottleneck: {size} into broker {broker}",
    Bound.OUT: "bottleneck: {size} out of broker {broker}",
    Bound.DISKS: "bottleneck: {size} between log directories of broker {broker}",
    Bound.TURNS: "bottleneck: the number of small moves",
    Bound.SWITCHES: "leader switches only; no data is copied",
}


def estimate(
    moves: Iterable[PartitionMove], settings: PartitionsSettings, dir_moves: Iterable[LogDirMove] = ()
) -> Estimate:
    pace = settings.pace
    into, out, parts = Counter[int](), Counter[int](), Counter[int]()
    placed = switched = unknown = 0
    for move in moves:
        added, removed = move.added, move.removed
        if not added and not removed:
            switched += 1
            continue
        placed += 1
        parts.update({*added, *removed} | ({move.leader_before} if added and move.leader_before is not None else set()))
        unknown += bool(added) and move.size_bytes is None
        for broker in added:
            into[broker] += move.size_bytes or 0
            if move.leader_before is not None:
                out[move.leader_before] += move.size_bytes or 0
    per_s = pace.throttle_bytes_per_s or settings.plan.copy_bytes_per_s
    switches_s = _turns(switched, pace.leaders_at_once) * pace.poll_s
    longest: tuple[float, float, int | None, bool] = (0.0, 0.0, None, False)
    for broker in sorted({*into, *out, *parts}):
        inward = into[broker] >= out[broker]
        copying_s = max(into[broker], out[broker]) / per_s
        turns_s = _turns(parts[broker], pace.moves_per_broker) * pace.poll_s
        if copying_s + turns_s > longest[0] + longest[1]:
            longest = (copying_s, turns_s, broker, inward)
    copying_s, turns_s, busiest, inward = longest
    turns_s = max(turns_s, _turns(placed, pace.moves_max) * pace.poll_s - copying_s)
    if busiest is None:
        bound = Bound.SWITCHES if switched else Bound.NOTHING
    elif copying_s <= turns_s:
        bound = Bound.TURNS
    else:
        bound = Bound.IN if inward else Bound.OUT
    duration_s = copying_s + turns_s + switches_s
    broker_bytes = 0 if busiest is None else max(into[busiest], out[busiest])
    disks = Counter[int]()
    for each in dir_moves:
        disks[each.broker] += each.copied_bytes
    slowest = max(sorted(disks), key=lambda broker: disks[broker], default=None)
    if slowest is not None and disks[slowest] / per_s > duration_s:
        duration_s, bound, busiest, broker_bytes = disks[slowest] / per_s, Bound.DISKS, slowest, disks[slowest]
    return Estimate(
        duration_s=duration_s,
        bound=bound,
        broker=busiest,
        broker_bytes=broker_bytes,
        rate_bytes_per_s=per_s,
        throttled=pace.throttle_bytes_per_s is not None,
        moves_per_broker=pace.moves_per_broker,
        copied_bytes=sum(into.values()),
        unknown_sizes=unknown,
    )


def _turns(number: int, at_once: int) -> int:
    return -(-number // at_once)
