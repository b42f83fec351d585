"""Progress of an execution: bytes that the brokers hold, the rate since an earlier mark of the journal, the time left. Pure.

    rate   = bytes copied since the baseline / time since the baseline
    left   = the rest of the plan played through (`forecast`), at the throttle, or at the rate of a broker since a mark

The executor writes a mark now and then, so that its death does not end the measurement: the next status compares what the
brokers hold with the newest mark. A plan with too many open partitions to be played through takes the larger of bytes left / rate
and largest load left of a broker in one direction / rate of a broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from shedders.kafka_rebalance.execution.forecast import forecast_s
from shedders.kafka_rebalance.execution.log_dir_moves import LogDirProgress
from shedders.kafka_rebalance.execution.moves import LOST, MoveState
from shedders.kafka_rebalance.execution.values import ProgressMark
from shedders.kafka_rebalance.settings import PaceSettings

if TYPE_CHECKING:
    from loaddata.samples.partitions import KafkaTopic
    from shedders.kafka_rebalance.execution.moves import MoveStatus
    from shedders.kafka_rebalance.execution.values import Key
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan

MARK_S: Final = 10.0
"""Least time between two marks."""
MARKS_SHARE: Final = 100
"""An older execution writes a mark each hundredth of its age, so that the journal of a long one stays small."""
WINDOW_MS: Final = 600_000
WINDOW_SHARE: Final = 5
"""The rate is that of the last ten minutes, or of the last fifth of the execution if that is more."""
SPAN_MS: Final = 5_000
"""Least time between a baseline and now: replicas arrive in fetches of a megabyte."""
SLOW: Final = 0.6
"""Brokers that reach less than this share of the throttle are slower than it."""
NO_DIRS: Final = LogDirProgress()
_ARRIVED: Final = frozenset({MoveState.DONE, MoveState.ELECT, MoveState.REORDER})
_UNSENT: Final = frozenset({MoveState.WAITING, MoveState.PARTLY})


@dataclass(slots=True)
class CopiedBytes:
    """Bytes of a plan, copied and left; `in_flight_left` is the part of those left that is in flight.

    A replica that is in flight counts with the present size of its leader, all others with the planned size.
    """

    done: int = 0
    total: int = 0
    in_flight_left: int = 0
    disks_left: int = 0
    left_into: Counter[int] = field(default_factory=Counter)
    left_out: Counter[int] = field(default_factory=Counter)

    def take(self, source: int | None, broker: int, done: int, size: int, *, in_flight: bool = False) -> None:
        self.done += done
        self.total += size
        self.left_into[broker] += size - done
        if source is not None:
            self.left_out[source] += size - done
        if in_flight:
            self.in_flight_left += size - done

    @property
    def busiest_left_bytes(self) -> int:
        return max((*self.left_into.values(), *self.left_out.values()), default=0)


def copied_bytes(
    plan: ReassignmentPlan,
    statuses: Mapping[Key, MoveStatus],
    topics: Mapping[str, KafkaTopic],
    copied: Mapping[tuple[str, int, int], int] | None,
    dirs: LogDirProgress,
) -> CopiedBytes:
    """Count the bytes of a plan.

    Args:
        copied: Known bytes of replicas in flight and of their leaders.
    """
    sizes = copied or {}
    result = CopiedBytes(
        done=dirs.bytes_done,
        total=dirs.bytes_total,
        in_flight_left=dirs.in_flight_left,
        disks_left=max(dirs.left_of.values(), default=0),
    )
    for move in plan.moves:
        status, planned = statuses.get(move.key), move.size_bytes or 0
        state = None if status is None else status.state
        if not planned or state in LOST:
            continue
        if state not in {MoveState.MOVING, MoveState.PARTLY}:
            for broker in move.added:
                result.take(move.leader_before, broker, planned if state in _ARRIVED else 0, planned)
            continue
        partition = topics[move.topic].partitions[move.partition]
        leader = move.leader_before if partition.leader is None else partition.leader
        present = sizes.get((*move.key, leader), planned) if leader is not None else planned
        for broker in move.added:
            if broker in partition.adding:
                held = min(present, sizes.get((*move.key, broker), 0))
                result.take(move.leader_before, broker, held, present, in_flight=True)
            else:
                there = broker in partition.replicas
                result.take(move.leader_before, broker, planned if there else 0, planned)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionProgress:
    """Progress of a plan.

    Attributes:
        partitions: Counts by state.
        done: Partitions with the planned replicas and leader.
        bytes_total: Bytes to copy; bytes_done: bytes copied, as the brokers report them for moves in flight.
        elapsed_s: Time since the first start: to the end of a plan that is done, else to now.
        rate_bytes_per_s: Present rate by what the brokers hold; of a plan that is done, the mean; None: nothing is being copied,
            or not measured yet.
        left_s: Time left; None: unknown, or no executor starts the partitions that wait.
        in_flight_left_s: Time until what is in flight has arrived; None: unknown, or nothing is in flight.
    """

    partitions: Mapping[str, int]
    total: int
    done: int
    bytes_total: int
    bytes_done: int
    elapsed_s: float
    rate_bytes_per_s: int | None
    left_s: float | None
    in_flight_left_s: float | None = None

    @property
    def unsent(self) -> int:
        """Partitions that have still to be started, in part or as a whole."""
        return sum(self.partitions.get(str(state), 0) for state in _UNSENT)

    @property
    def in_flight(self) -> int:
        return self.partitions.get(str(MoveState.MOVING), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressTimes:
    """Times of an execution, and its earlier marks.

    Attributes:
        marks: Marks since the last change of the pace, in order.
        first: First mark of the execution; None: it has none.
        driven: Whether an executor starts the partitions that wait.
        outpaced: Partitions that are written faster than they are copied: while one is in flight, no end is known.
    """

    now_ms: int
    elapsed_s: float
    marks: Sequence[ProgressMark] = ()
    first: ProgressMark | None = None
    pace: PaceSettings = field(default_factory=PaceSettings)
    driven: bool = True
    outpaced: frozenset[Key] = frozenset()


def full_rates_in_use(
    statuses: Mapping[Key, MoveStatus], topics: Mapping[str, KafkaTopic], dirs: LogDirProgress
) -> float:
    """How many brokers' rates the copies in flight use together.

    Copies into one broker, or out of one leader, share its rate; so do those between the disks of a broker.
    """
    flows: list[tuple[int | None, int]] = []
    for key, status in statuses.items():
        if status.state is MoveState.MOVING:
            partition = topics[key[0]].partitions[key[1]]
            flows += [(partition.leader, broker) for broker in partition.adding if broker not in partition.isr]
    into, out = Counter(broker for _, broker in flows), Counter(leader for leader, _ in flows)
    return len(dirs.busy) + sum(1 / max(into[broker], 1 if leader is None else out[leader]) for leader, broker in flows)


class ProgressRecorder:
    """Decides when an executor writes a mark, and knows those that it has written; times are monotonic."""

    def __init__(self, plan: ReassignmentPlan) -> None:
        self._plan = plan
        self._began_s: float | None = None
        self._marks: list[ProgressMark] = []
        self._busy_s = 0.0
        self._rates_since: tuple[float, float] | None = None

    def restart(self) -> None:
        """The next observation is a baseline: what was measured before no longer holds."""
        self._marks.clear()

    def due(
        self,
        now_s: float,
        statuses: Mapping[Key, MoveStatus],
        topics: Mapping[str, KafkaTopic],
        copied: Mapping[tuple[str, int, int], int] | None,
        dirs: LogDirProgress,
    ) -> dict[str, Any] | None:
        """Facts of a mark; None: none is due."""
        self._began_s = now_s if self._began_s is None else self._began_s
        if self._rates_since is not None:
            self._busy_s += self._rates_since[1] * (now_s - self._rates_since[0])
        self._rates_since = now_s, full_rates_in_use(statuses, topics, dirs)
        last = self._marks[-1] if self._marks else None
        least_s = max(MARK_S, (now_s - self._began_s) / MARKS_SHARE)
        if copied is None or (last is not None and now_s - last.at_ms / 1_000 < least_s):
            return None
        now = copied_bytes(self._plan, statuses, topics, copied, dirs)
        if last is not None and last.bytes_done == now.done:
            return None
        mark = ProgressMark(at_ms=round(now_s * 1_000), bytes_done=now.done, busy_s=round(self._busy_s, 3))
        self._marks.append(mark)
        return {"bytes_done": mark.bytes_done, "busy_s": mark.busy_s}

    def times(self, now_s: float, pace: PaceSettings, *, driven: bool) -> ProgressTimes:
        return ProgressTimes(
            now_ms=round(now_s * 1_000),
            elapsed_s=now_s - (now_s if self._began_s is None else self._began_s),
            marks=tuple(self._marks),
            first=self._marks[0] if self._marks else None,
            pace=pace,
            driven=driven,
        )


def progress_of(
    plan: ReassignmentPlan,
    statuses: Mapping[Key, MoveStatus],
    topics: Mapping[str, KafkaTopic],
    copied: Mapping[tuple[str, int, int], int] | None,
    times: ProgressTimes,
    dirs: LogDirProgress = NO_DIRS,
) -> ExecutionProgress:
    """Compute the progress; see `copied_bytes` for the arguments."""
    now = copied_bytes(plan, statuses, topics, copied, dirs)
    counts = Counter(str(status.state) for status in statuses.values())
    lost = sum(counts[state] for state in LOST)
    finished = counts[MoveState.DONE] + lost == len(plan.moves) and dirs.done == dirs.total
    in_flight = bool(counts[MoveState.MOVING] or dirs.in_flight)
    waiting = any(counts[state] for state in _UNSENT) or bool(dirs.waiting)
    baseline = _baseline(times)
    full_rates = full_rates_in_use(statuses, topics, dirs)
    rate: float | None = None
    if finished:
        rate = _mean(now.done - (0 if times.first is None else times.first.bytes_done), times.elapsed_s)
    elif in_flight or times.driven:
        rate = _rate(now, baseline, times, full_rates)
    left_s = in_flight_left_s = None
    if now.done == now.total:
        left_s = 0.0
    elif rate and not any(statuses[key].state is MoveState.MOVING for key in times.outpaced if key in statuses):
        if now.in_flight_left:
            in_flight_left_s = now.in_flight_left / rate
        if times.driven or not waiting:
            broker_rate = _broker_rate(now, baseline, times, full_rates)
            left_s = (now.total - now.done) / rate
            if broker_rate:
                forecast = forecast_s(plan, statuses, topics, copied or {}, times.pace, broker_rate)
                left_s = max(left_s, now.busiest_left_bytes / broker_rate) if forecast is None else forecast
                left_s = max(left_s, now.disks_left / broker_rate)
    return ExecutionProgress(
        partitions=dict(sorted(counts.items())),
        total=len(plan.moves),
        done=counts[MoveState.DONE],
        bytes_total=now.total,
        bytes_done=now.done,
        elapsed_s=times.elapsed_s,
        rate_bytes_per_s=None if rate is None else round(rate),
        left_s=left_s,
        in_flight_left_s=in_flight_left_s,
    )


def _baseline(times: ProgressTimes) -> ProgressMark | None:
    """Mark to compare with.

    While it is driven, the oldest of the window, as that evens out fetches; else the newest, as fewer and fewer are in flight.
    """
    old = [mark for mark in times.marks if times.now_ms - mark.at_ms >= SPAN_MS]
    window_ms = max(WINDOW_MS, times.elapsed_s * 1_000 / WINDOW_SHARE)
    within = [mark for mark in old if times.now_ms - mark.at_ms <= window_ms] or old[-1:]
    if not within:
        return None
    return within[0] if times.driven else within[-1]


def _mean(copied: int, length_s: float) -> float | None:
    return copied / length_s if copied > 0 and length_s > 0 else None


def _rate(now: CopiedBytes, baseline: ProgressMark | None, times: ProgressTimes, full_rates: float) -> float | None:
    if baseline is None:
        # An executor of an older version writes no marks.
        rate = None if times.first is not None else _mean(now.done, times.elapsed_s)
    else:
        rate = _mean(now.done - baseline.bytes_done, (times.now_ms - baseline.at_ms) / 1_000)
    if rate is None or times.pace.throttle_bytes_per_s is None or times.driven:
        return rate
    # Fewer are in flight with each that arrives, so that the mean is too high.
    return min(rate, times.pace.throttle_bytes_per_s * full_rates)


def _broker_rate(
    now: CopiedBytes, baseline: ProgressMark | None, times: ProgressTimes, full_rates: float
) -> float | None:
    """Rate of a broker in one direction: what was copied since a mark, by the full rates in use, or the throttle if near it."""
    measured = None
    if baseline is not None:
        last = times.marks[-1]
        busy_s = last.busy_s + full_rates * (times.now_ms - last.at_ms) / 1_000 - baseline.busy_s
        measured = _mean(now.done - baseline.bytes_done, busy_s)
    throttle = times.pace.throttle_bytes_per_s
    if throttle is None or (measured is not None and measured < SLOW * throttle):
        return measured
    return float(throttle)
