"""Moves of replicas between log directories of their brokers, as a part of the state machine. Pure.

The broker copies a replica into a future one in the other directory, and swaps the two (KIP-113). Where a replica is, and where
it goes, is read from the broker, so that it survives a crash of the tool. A replica moves when its partition is where the plan
wants it. One that comes from another broker gets its directory before that: the broker remembers it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from shedders.kafka_rebalance.execution.moves import LOST, MoveState, MoveStatus, gone_reason, open_ones
from shedders.kafka_rebalance.execution.values import (
    CallAnswer,
    CallOutcome,
    Effect,
    ExecutionEvent,
    JournalWrite,
    MoveDirs,
    replica_text,
)

if TYPE_CHECKING:
    from loaddata.samples.partitions import KafkaTopic
    from shedders.kafka_rebalance.execution.moves import PartitionStep
    from shedders.kafka_rebalance.execution.values import ExecutionHistory, Key, Observation, ReplicaDir, ReplicaKey
    from shedders.kafka_rebalance.planning.plan import LogDirMove, ReassignmentPlan
    from shedders.kafka_rebalance.settings import PaceSettings

_READY: Final = frozenset({MoveState.DONE, MoveState.ELECT})
_DONE, _WAITING, _MOVING = MoveStatus(MoveState.DONE), MoveStatus(MoveState.WAITING), MoveStatus(MoveState.MOVING)


def dir_statuses_of(
    plan: ReassignmentPlan,
    topics: Mapping[str, KafkaTopic],
    dirs: Mapping[ReplicaKey, ReplicaDir],
    statuses: Mapping[Key, MoveStatus],
    moved: Collection[ReplicaKey] = frozenset(),
) -> dict[ReplicaKey, MoveStatus]:
    """State of each replica that changes its directory; of brokers that do not answer only those that were moved.

    Args:
        topics, moved: See `statuses_of`.
        statuses: States of partitions that the plan moves as well.
    """
    result: dict[ReplicaKey, MoveStatus] = {}
    for move in plan.dir_moves:
        now, first = dirs.get(move.key), statuses.get(move.key[:2])
        gone = gone_reason(topics.get(move.topic), move.key[:2], plan.topic_ids.get(move.topic, ""))
        if gone or (first is not None and first.state in LOST):
            result[move.key] = MoveStatus(MoveState.GONE, gone) if gone or first is None else first
        elif not _first_done(statuses, move.key):
            result[move.key] = _WAITING
        elif now is not None:
            result[move.key] = _dir_status(move, now)
        if move.key in moved and (move.key not in result or result[move.key].state in LOST):
            result[move.key] = _DONE
    return result


def _first_done(statuses: Mapping[Key, MoveStatus], key: ReplicaKey) -> bool:
    """Whether the replica's partition is where the plan wants it; a directory is changed only then."""
    status = statuses.get(key[:2])
    return status is None or status.state in _READY


def _dir_status(move: LogDirMove, now: ReplicaDir) -> MoveStatus:
    name = replica_text(move.key)
    if not now.path:
        return MoveStatus(MoveState.CHANGED, f"{name} is not on its broker any more")
    if now.future_path:
        if now.future_path == move.after:
            return _MOVING
        return MoveStatus(MoveState.CHANGED, f"{name} is on the way to {now.future_path}, which is not in the plan")
    if now.path == move.after:
        return _DONE
    if move.before is not None and now.path != move.before:
        return MoveStatus(
            MoveState.CHANGED, f"{name} is in {now.path}; the plan moves it from {move.before} to {move.after}"
        )
    return _WAITING


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirProgress:
    """Progress of moves between log directories of the same broker.

    Attributes:
        total: Replicas that the plan wants in another directory, or in a chosen one.
        done: Those that are there. in_flight: those that are being copied. waiting: those that no executor has started.
        bytes_total: Bytes to copy between directories; bytes_done: bytes copied.
        in_flight_left: Bytes left of those in flight.
        left_of: Bytes left, by broker.
        busy: Brokers that copy now.
    """

    total: int = 0
    done: int = 0
    in_flight: int = 0
    waiting: int = 0
    bytes_total: int = 0
    bytes_done: int = 0
    in_flight_left: int = 0
    left_of: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    busy: frozenset[int] = frozenset()


def dir_progress_of(
    plan: ReassignmentPlan, statuses: Mapping[ReplicaKey, MoveStatus], dirs: Mapping[ReplicaKey, ReplicaDir]
) -> LogDirProgress:
    counts, left, total, done, flying, busy = Counter[MoveState](), Counter[int](), 0, 0, 0, set[int]()
    for move in plan.dir_moves:
        state = statuses.get(move.key, _WAITING).state
        if state in LOST:
            continue
        counts[state] += 1
        total += move.copied_bytes
        copied = move.copied_bytes if state is MoveState.DONE else 0
        if state is MoveState.MOVING:
            busy.add(move.broker)
            copied = min(move.copied_bytes, dirs[move.key].future_bytes)
            flying += move.copied_bytes - copied
        done += copied
        left[move.broker] += move.copied_bytes - copied
    return LogDirProgress(
        total=counts.total(),
        done=counts[MoveState.DONE],
        in_flight=counts[MoveState.MOVING],
        waiting=counts[MoveState.WAITING],
        bytes_total=total,
        bytes_done=done,
        in_flight_left=flying,
        left_of=+left,
        busy=frozenset(busy),
    )


class LogDirMoves:
    """All moves between log directories of one execution.

    Attributes:
        statuses: State of each by the last observation that had it.
        refused: Replicas that their broker refused too often, with the reason.
    """

    def __init__(
        self, plan: ReassignmentPlan, pace: PaceSettings, recorded: ExecutionHistory, dropped: Container[object]
    ) -> None:
        self._plan, self._pace, self._recorded, self._dropped = plan, pace, recorded, dropped
        self._moves = {move.key: move for move in plan.dir_moves}
        self._placed: dict[Key, list[LogDirMove]] = {}
        for move in plan.dir_moves:
            if move.before is None:
                self._placed.setdefault((move.topic, move.partition), []).append(move)
        self._asked_s: dict[ReplicaKey, float] = {}
        self._attempts: Counter[ReplicaKey] = Counter()
        self._withdrawn_s: dict[ReplicaKey, float] = {}
        self._dirs: Mapping[ReplicaKey, ReplicaDir] = {}
        self._partitions: Mapping[Key, MoveStatus] = {}
        self.statuses: dict[ReplicaKey, MoveStatus] = {}
        self.refused: dict[ReplicaKey, str] = {}

    @property
    def over(self) -> bool:
        return not self.open

    @property
    def settled(self) -> bool:
        return self.open <= set(self.refused)

    @property
    def moving(self) -> tuple[ReplicaKey, ...]:
        return tuple(key for key, status in self.statuses.items() if status.state is MoveState.MOVING)

    @property
    def progress(self) -> LogDirProgress:
        return dir_progress_of(self._plan, self.statuses, self._dirs)

    @property
    def in_flight(self) -> dict[ReplicaKey, int]:
        """Bytes in the new directory of each replica that is being copied, where they are known."""
        return {key: self._dirs[key].future_bytes for key in self.moving if key in self._dirs}

    @property
    def open(self) -> set[ReplicaKey]:
        """Replicas that are not in their planned directories, and are not dropped."""
        return open_ones({key: self.statuses.get(key, _WAITING) for key in self._moves}, self._dropped)

    def pending(self, now_s: float) -> bool:
        """Whether a request is not visible yet."""
        return any(self._just_asked(key, now_s) for key in self.open)

    def busy(self, now_s: float) -> set[int]:
        """Brokers that copy between their directories, or were asked to."""
        return {key[2] for key in self._moves if key in self.moving or self._just_asked(key, now_s)}

    def held(self, now_s: float) -> dict[Key, str]:
        """Partitions with a replica that does not move though nothing is under way, with the reason."""
        return {
            key[:2]: f"{replica_text(key)} does not go to {self._moves[key].after}"
            for key in sorted(self.open - set(self.refused) - set(self.moving))
            if not self._just_asked(key, now_s)
        }

    def take_observation(self, seen: Observation, statuses: Mapping[Key, MoveStatus]) -> Iterable[Effect]:
        """Take in an observation; one without directories changes nothing."""
        if seen.dirs is None or not self._moves:
            return
        self._dirs, self._partitions = seen.dirs, statuses
        moved = self._recorded.dirs_moved
        for key, status in dir_statuses_of(self._plan, seen.topics, seen.dirs, statuses, moved).items():
            was = self.statuses.get(key)
            if (was is not None and was.state is MoveState.DONE) or key in self._dropped:
                continue  # later changes by others are left alone
            self.statuses[key] = status
            if was is not None and was != status:
                self._asked_s.pop(key, None)
        done = [
            key
            for key, status in self.statuses.items()
            if status.state is MoveState.DONE and key not in self._recorded.dirs_moved
        ]
        if done:
            facts = {"partitions": [], "dirs": [list(key) for key in sorted(done)]}
            yield JournalWrite(event=ExecutionEvent.MOVED, facts=facts)

    def choose(self, now_s: float, seen: Observation) -> dict[ReplicaKey, str]:
        """Directories of the replicas to move now, within the bound of each broker."""
        flight = Counter(key[2] for key in self.moving)
        flight.update(key[2] for key in self._moves if self._just_asked(key, now_s) and key not in self.moving)
        chosen: dict[ReplicaKey, str] = {}
        for key, move in self._moves.items():
            broker, status = key[2], self.statuses.get(key)
            if status is None or status.state is not MoveState.WAITING or key in self.refused:
                continue
            if self._just_asked(key, now_s) or broker not in seen.alive or not self._ready(key, seen):
                continue
            if flight[broker] < self._pace.dir_moves_per_broker:
                flight[broker] += 1
                chosen[key] = move.after
        return chosen

    def _ready(self, key: ReplicaKey, seen: Observation) -> bool:
        """Whether the replica is there, and its partition at rest."""
        partition, now = seen.partition(key[:2]), self._dirs.get(key)
        if not _first_done(self._partitions, key):
            return False
        return (
            partition is not None
            and not partition.in_motion
            and key[2] in partition.replicas
            and bool(now and now.path)
        )

    def start(self, chosen: Mapping[ReplicaKey, str], batch: int) -> Iterable[Effect]:
        if not chosen:
            return
        facts = {
            "batch": batch,
            "partitions": [],
            "dirs": [[*key, path] for key, path in chosen.items()],
            "size_bytes": sum(self._moves[key].size_bytes for key in chosen),
        }
        yield JournalWrite(event=ExecutionEvent.BATCH, facts=facts)
        yield MoveDirs(targets=dict(chosen))

    def place(self, steps: Iterable[PartitionStep], seen: Observation) -> Iterable[Effect]:
        """Choose the directories of replicas that these moves bring to their brokers."""
        targets = {
            move.key: move.after
            for step in steps
            for move in self._placed.get(step.key, ())
            if move.broker in step.target
            and move.broker not in seen.at(step.key).replicas
            and move.broker in seen.alive
        }
        if targets:
            yield MoveDirs(targets=targets, arriving=True)

    def withdraw(self, now_s: float) -> Iterable[Effect]:
        """Effects that take back moves in flight: the replica is asked to stay in the directory that it is in."""
        back = {
            key: self._dirs[key].path
            for key in self.moving
            if key in self._dirs and now_s - self._withdrawn_s.get(key, -self._pace.settle_s) >= self._pace.settle_s
        }
        if back:
            self._withdrawn_s.update(dict.fromkeys(back, now_s))
            yield MoveDirs(targets=back)

    def take_result(self, effect: MoveDirs, answer: CallAnswer, now_s: float) -> None:
        if effect.arriving:
            return  # a directory that the broker does not remember is a move of its own later
        for key in effect.targets:
            if key in self._withdrawn_s:
                continue
            self._asked_s[key] = now_s
            reason = answer.refused.get(key, answer.reason if answer.outcome is CallOutcome.REJECTED else "")
            if reason:
                self._attempts[key] += 1
                if self._attempts[key] >= self._pace.attempts_max:
                    self.refused[key] = reason

    def _just_asked(self, key: ReplicaKey, now_s: float) -> bool:
        return now_s - self._asked_s.get(key, -self._pace.settle_s) < self._pace.settle_s
