"""Thirty days of a Kafka cluster in virtual time, with watchers: disks grow and drift, brokers die, answers fail, watchers are
killed and frozen. What must never happen is noted as it happens (`faults`).

Watchers, core and planner are the real ones; Kafka, the topic's log and the execution of a plan are models. The executor of the
model copies one partition at a time, and stops like the real one when a broker is away or something is under-replicated.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field, replace
from random import Random

from loaddata.samples.partitions import (
    ClusterLayout,
    KafkaBroker,
    KafkaPartition,
    KafkaTopic,
    PartitionLoad,
    PartitionLoads,
)
from shedders.kafka_rebalance.execution.values import ExecutionRequest, Key, StopKind
from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.request import GoalChoice, PlanRequest
from shedders.kafka_rebalance.settings import WatchSettings
from shedders.kafka_rebalance.watch.calendar import first_span_at
from shedders.kafka_rebalance.watch.topic import WatchBook, WatcherIdentity
from shedders.kafka_rebalance.watch.values import ClusterHealth, LookForPlan, health_of
from shedders.kafka_rebalance.watch.watcher import PartitionWatcher, RecordedPlan, WatchEvent
from statechannel.errors import StateChannelError

STEP_MS = 300_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BEGIN_MS = 1_767_225_600_000  # a Thursday
GB = 10**9
GOALS = (GoalChoice(name="replicas"), GoalChoice(name="disk"))
SETTINGS = WatchSettings(
    mode="act",
    interval_s=7_200,
    persist_s=14_400,
    budget_bytes=300 * GB,
    budget_window_s=86_400,
    quiet=["Mon-Fri 08:00-10:00"],
    cooldown_s=36 * 3_600,
    calm_s=3_600,
    retry_s=1_800,
    away_s=1_500,
)
COPY_BYTES = 3 * GB
"""Of one partition, in a step."""


class NoAnswerError(StateChannelError):
    """Kafka does not answer."""


class WatcherKilledError(BaseException):
    """As by kill -9."""


class WatcherStalledError(BaseException):
    """The process stands still, as by SIGSTOP, with a record on its way."""


@dataclass
class Replica:
    """One partition of the world."""

    replicas: list[int]
    isr: set[int]
    size_bytes: float
    growth_bytes: float
    adding: list[int] = field(default_factory=list)
    target: tuple[int, ...] = ()
    left_bytes: float = 0.0


@dataclass
class Execution:
    """Plan under way; `executor` None: nobody drives it."""

    plan: ReassignmentPlan
    executor: str | None
    request: ExecutionRequest = ExecutionRequest.GO
    paused: bool = False
    done: set[Key] = field(default_factory=set)
    end: StopKind | None = None


@dataclass
class Log:
    """The topic: records in order, by the world's clock."""

    world: World
    records: list[tuple[int, int, bytes, bytes]] = field(default_factory=list)
    end: int = 0
    on_the_way: list[tuple[int, tuple[bytes, bytes]]] = field(default_factory=list)
    book: WatchBook | None = None

    def append(self, record: tuple[bytes, bytes]) -> None:
        before = self.book.holder if self.book is not None else None
        if self.book is None:
            self.book = WatchBook(self.world.settings.away_s)
        self.book.take(self.end, self.world.now_ms, *record)
        self.records.append((self.end, self.world.now_ms, *record))
        self.end += 1
        now = self.book.holder
        if before is None or now is None or before.watcher.name == now.watcher.name or before.left:
            return
        if self.world.now_ms - before.seen_at_ms <= self.world.settings.away_s * 1_000:
            self.world.fault(f"{now.watcher.name} took over from {before.watcher.name}, which lives")
        if now.generation < before.generation:
            self.world.fault(f"{now.watcher.name} of generation {now.generation} wrote after {before.generation}")

    def deliver(self) -> None:
        """Records of processes that stood still arrive when those go on."""
        for at_ms, record in self.on_the_way[:]:
            if self.world.now_ms >= at_ms:
                self.on_the_way.remove((at_ms, record))
                self.append(record)

    def compact(self) -> None:
        """As Kafka may: of what is older than an hour, the last record of each key in the whole log stays."""
        last = {key: offset for offset, _, key, _ in self.records}
        since_ms = self.world.now_ms - HOUR_MS
        self.records = [each for each in self.records if each[1] > since_ms or last[each[2]] == each[0]]


@dataclass
class World:
    """See the module."""

    rng: Random
    brokers: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    now_ms: int = BEGIN_MS
    settings: WatchSettings = SETTINGS
    parts: dict[Key, Replica] = field(default_factory=dict)
    down: dict[int, int] = field(default_factory=dict)
    silent_until_ms: int = 0
    faults: list[str] = field(default_factory=list)
    copied_bytes: float = 0.0
    _window: deque[tuple[int, float]] = field(default_factory=deque)
    _window_bytes: float = 0.0
    departures: dict[tuple[Key, int], int] = field(default_factory=dict)
    moved: int = 0
    starts: int = 0
    resumes: int = 0
    current: Execution | None = None
    recorded: dict[str, Execution] = field(default_factory=dict)
    spreads: list[float] = field(default_factory=list)
    log: Log = field(init=False)

    def __post_init__(self) -> None:
        self.log = Log(self)
        for topic in range(4):
            rate = self.rng.uniform(0.2, 1.0) * GB / 60
            for number in range(9):
                start = self.rng.sample(self.brokers[:4], 2)  # two brokers are new
                self.parts[f"t{topic}", number] = Replica(
                    start, set(start), self.rng.uniform(5, 20) * GB, rate * self.rng.uniform(0.2, 2.0)
                )

    # --- what is there ------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> frozenset[int]:
        return frozenset(self.brokers) - set(self.down)

    def layout(self) -> ClusterLayout:
        topics: dict[str, list[KafkaPartition]] = {}
        for (topic, number), part in sorted(self.parts.items()):
            in_sync = [broker for broker in part.replicas if broker in part.isr]
            partition = KafkaPartition(
                partition=number,
                replicas=tuple(part.replicas),
                leader=next((broker for broker in in_sync if broker in self.alive), None),
                isr=tuple(in_sync),
                offline=tuple(broker for broker in part.replicas if broker in self.down),
                adding=tuple(part.adding),
                removing=tuple(set(part.replicas) - set(part.target)) if part.target else (),
            )
            topics.setdefault(topic, []).append(partition)
        return ClusterLayout(
            cluster_id="world",
            brokers=tuple(KafkaBroker(id=broker, alive=broker in self.alive) for broker in self.brokers),
            topics={name: KafkaTopic(name=name, partitions=tuple(of), topic_id=name) for name, of in topics.items()},
            read_at_ms=self.now_ms,
        )

    def loads(self) -> PartitionLoads:
        return PartitionLoads(
            of={key: PartitionLoad(disk_bytes=int(part.size_bytes)) for key, part in self.parts.items()}
        )

    def spread(self) -> float:
        """Fullest disk, as a multiple of the mean."""
        used = dict.fromkeys(self.brokers, 0.0)
        for part in self.parts.values():
            for broker in part.replicas:
                used[broker] += part.size_bytes
        return max(used.values()) * len(used) / sum(used.values())

    def ill(self) -> bool:
        """Whether a broker is missing, or a partition under-replicated."""
        return bool(self.down) or any(set(part.replicas) - set(part.adding) - part.isr for part in self.parts.values())

    def fault(self, text: str) -> None:
        self.faults.append(f"day {(self.now_ms - BEGIN_MS) / DAY_MS:.2f}: {text}")

    # --- time ---------------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        self.now_ms += STEP_MS
        for broker, until_ms in list(self.down.items()):
            if self.now_ms >= until_ms:
                del self.down[broker]
        alive = self.alive
        for part in self.parts.values():
            part.size_bytes += part.growth_bytes * STEP_MS / 60_000 / 10
            if not self.down and len(part.isr) == len(part.replicas):
                continue
            if part.isr & alive:
                part.isr &= alive
            lagging = [broker for broker in part.replicas if broker not in part.isr and broker not in part.adding]
            if any(broker in alive for broker in lagging) and self.rng.random() < 0.3:
                part.isr |= {broker for broker in lagging if broker in alive}
        if (self.now_ms - BEGIN_MS) % DAY_MS == 0:
            self._drift()
        if (self.now_ms - BEGIN_MS) % HOUR_MS == 0:
            self.spreads.append(self.spread())
            self.log.compact()
        self.log.deliver()
        self._copy()
        self._drive()

    def _drift(self) -> None:
        """Each day other topics are busy; retention empties some partitions."""
        for key, part in self.parts.items():
            part.growth_bytes *= self.rng.uniform(0.6, 1.6)
            part.growth_bytes = min(part.growth_bytes, GB / 15)
            if self.rng.random() < 0.05 or part.size_bytes > 120 * GB:
                part.size_bytes *= self.rng.uniform(0.1, 0.6)
            if key[0] == "t0" and self.rng.random() < 0.1:
                part.growth_bytes *= 3

    def break_brokers(self, number: int, for_ms: int) -> None:
        for broker in self.rng.sample(sorted(self.alive), min(number, len(self.alive) - 1)):
            self.down[broker] = self.now_ms + for_ms

    # --- the execution of a plan --------------------------------------------------------------------------------------

    def _copy(self) -> None:
        """What is in flight goes on, with an executor or without."""
        for key, part in self.parts.items():
            if not part.target or not set(part.adding) <= self.alive or not part.isr & self.alive:
                continue
            amount = min(part.left_bytes, COPY_BYTES)
            part.left_bytes -= amount
            self._spend(amount)
            if part.left_bytes <= 0:
                for broker in set(part.replicas) - set(part.target):
                    self.departures[key, broker] = self.now_ms
                part.replicas, part.isr = list(part.target), (part.isr | set(part.adding)) & set(part.target)
                part.adding, part.target = [], ()
                self.moved += 1

    def _drive(self) -> None:
        run = self.current
        if run is None or run.executor is None:
            return
        moves = {move.key: move for move in run.plan.moves}
        run.done |= {key for key, move in moves.items() if tuple(self.parts[key].replicas) == move.after}
        flying = [key for key in moves if self.parts[key].target]
        if run.request is ExecutionRequest.CANCEL:
            for key in flying:
                part = self.parts[key]
                part.replicas = [broker for broker in part.replicas if broker not in part.adding]
                part.adding, part.target, part.left_bytes = [], (), 0.0
            self._end(run, StopKind.CANCELLED)
        elif self.ill():
            self._end(run, StopKind.BROKER_AWAY if self.down else StopKind.URPS)
        elif not flying and run.done >= set(moves):
            self._end(run, StopKind.DONE)
        elif not flying and not run.paused:
            self._submit(run, next(key for key in moves if key not in run.done))

    def _submit(self, run: Execution, key: Key) -> None:
        move, part = next(move for move in run.plan.moves if move.key == key), self.parts[key]
        if first_span_at(self.settings.quiet, self.now_ms - STEP_MS, "UTC") and first_span_at(
            self.settings.quiet, self.now_ms, "UTC"
        ):
            self.fault(f"{key} was started in a quiet time")
        for broker in move.added:
            left_ms = self.departures.get((key, broker))
            if left_ms is not None and self.now_ms - left_ms < self.settings.cooldown_s * 1_000:
                self.fault(f"{key} returns to {broker} {(self.now_ms - left_ms) / HOUR_MS:.1f} h after it left")
        part.adding, part.target = list(move.added), move.after
        part.replicas = [*move.after, *move.removed]
        part.left_bytes = float(move.copied_bytes)
        if not move.added:
            part.replicas, part.target = list(move.after), ()

    def _end(self, run: Execution, kind: StopKind) -> None:
        run.end, run.executor, self.current = kind, None, None

    def _spend(self, amount: float) -> None:
        """No window of the budget's length may have more bytes than the budget."""
        self.copied_bytes += amount
        self._window.append((self.now_ms, amount))
        self._window_bytes += amount
        while self._window[0][0] <= self.now_ms - self.settings.budget_window_s * 1_000:
            self._window_bytes -= self._window.popleft()[1]
        if self._window_bytes > self.settings.budget_bytes + 1:
            self.fault(f"{self._window_bytes / GB:.1f} GB were copied within a window of the budget")


@dataclass
class SimCluster:
    """`WatchedCluster` of the world."""

    world: World
    _layout: ClusterLayout | None = None

    def look(self) -> ClusterHealth:
        self._answer()
        self._layout = self.world.layout()
        return health_of(self._layout)

    def plan(self, bounds: LookForPlan) -> ReassignmentPlan:
        self._answer()
        if self.world.ill():
            self.world.fault("a plan was made while the cluster was not well")
        assert self._layout is not None
        request = PlanRequest(goals=GOALS, bytes_max=bounds.bytes_max, moves_max=bounds.moves_max)
        return plan_partitions(self._layout, self.world.loads(), request, resting=bounds.resting, now_s=time.monotonic)

    def _answer(self) -> None:
        if self.world.now_ms < self.world.silent_until_ms:
            raise NoAnswerError("Kafka does not answer")


@dataclass
class SimPlans:
    """`PlanDriver` of one watcher."""

    world: World
    name: str
    files: dict[str, ReassignmentPlan] = field(default_factory=dict)
    die_at_start: bool = False
    mine: Execution | None = None

    @property
    def running(self) -> bool:
        return self.mine is not None and self.mine.executor == self.name

    @property
    def paused(self) -> bool:
        return self.mine is not None and self.mine.paused

    @property
    def end(self) -> tuple[StopKind, str] | None:
        return None if self.mine is None or self.mine.end is None else (self.mine.end, "in the world")

    def recorded(self, plan_id: str) -> RecordedPlan:
        current = self.world.current
        foreign = "" if current is None or current.executor in {None, self.name} else f"{current.executor} executes"
        run = self.world.recorded.get(plan_id)
        ended = None if run is None or run.end not in {StopKind.DONE, StopKind.CANCELLED} else run.end
        return RecordedPlan(known=run is not None or plan_id in self.files, end=ended, foreign=foreign)

    def publish(self, plan: ReassignmentPlan) -> str:
        self.files[plan.id] = plan
        return f"{plan.id}.json"

    def share(self, plan_id: str) -> None:
        self.world.recorded[plan_id] = Execution(self.files[plan_id], None)

    def start(self, plan_id: str, request: ExecutionRequest) -> None:
        world = self.world
        if self.die_at_start:
            raise WatcherKilledError
        if world.ill() and request is ExecutionRequest.GO:
            world.fault(f"{plan_id} was started while the cluster was not well")
        if first_span_at(world.settings.quiet, world.now_ms, "UTC") and request is ExecutionRequest.GO:
            world.fault(f"{plan_id} was started in a quiet time")
        if world.current is not None and world.current.executor not in {None, self.name}:
            world.fault(f"{self.name} starts {plan_id} beside {world.current.executor}")
            self.mine = Execution(world.recorded[plan_id].plan, None, end=StopKind.HELD)
            return
        run = world.recorded[plan_id]
        world.starts += run.end is None and not run.done
        world.resumes += bool(run.done) or run.end is not None
        run.executor, run.request, run.end, run.paused = self.name, request, None, False
        world.current = self.mine = run

    def ask(self, plan_id: str, request: ExecutionRequest) -> None:
        assert self.mine is not None
        assert self.mine.plan.id == plan_id
        self.mine.paused = request is ExecutionRequest.PAUSE

    def interrupt(self, reason: str) -> None:
        del reason
        if self.mine is not None and self.mine.executor == self.name:
            self.world._end(self.mine, StopKind.INTERRUPTED)


@dataclass
class SimLog:
    """`WatchLog` of one watcher."""

    world: World
    book: WatchBook
    at: int = 0
    dies_before: bool = False
    dies_after: bool = False
    stalls_ms: int = 0

    def read(self) -> WatchBook:
        self._answer()
        records = self.world.log.records
        for record in records[bisect_left(records, self.at, key=lambda each: each[0]) :]:
            self.book.take(*record)
        self.at = self.world.log.end
        return self.book

    def append(self, record: tuple[bytes, bytes]) -> None:
        self._answer()
        if self.dies_before:
            raise WatcherKilledError
        if self.stalls_ms:
            self.world.log.on_the_way.append((self.world.now_ms + self.stalls_ms, record))
            raise WatcherStalledError
        self.world.log.append(record)
        if self.dies_after:
            raise WatcherKilledError

    def _answer(self) -> None:
        if self.world.now_ms < self.world.silent_until_ms:
            raise NoAnswerError("Kafka does not answer")


@dataclass
class Life:
    """One watcher process; `back_ms`: when it is started again after a death, or wakes up."""

    world: World
    host: str
    number: int = 0
    back_ms: int = 0
    frozen: bool = False
    watcher: PartitionWatcher | None = None
    plans: SimPlans | None = None
    log: SimLog | None = None
    events: list[WatchEvent] = field(default_factory=list)

    def tick(self) -> None:
        world = self.world
        if world.now_ms < self.back_ms:
            return
        if self.frozen:
            self.frozen = False
            if self.plans is not None and self.plans.mine is not None and self.plans.mine.executor is None:
                if self.plans.mine.end is None:
                    self.plans.mine = replace(self.plans.mine, end=StopKind.REPLACED)
        if self.watcher is None:
            self.number += 1
            name = f"{self.host}-{self.number}"
            self.plans = SimPlans(world, name)
            self.log = SimLog(world, WatchBook(world.settings.away_s))
            identity = WatcherIdentity(name=name, host=self.host, pid=self.number)
            self.watcher = PartitionWatcher(
                identity, world.settings, self.log, SimCluster(world), self.plans, self.events.append
            )
        try:
            self.watcher.tick(world.now_ms)
        except NoAnswerError:
            return
        except WatcherKilledError:
            self.kill(STEP_MS)
        except WatcherStalledError:
            assert self.log is not None
            self.freeze(self.log.stalls_ms)
            self.log.stalls_ms = 0

    def kill(self, for_ms: int) -> None:
        self._let_go()
        self.watcher = self.plans = self.log = None
        self.back_ms = self.world.now_ms + for_ms

    def freeze(self, for_ms: int) -> None:
        """As by a stopped process: its executor is silent too."""
        if self.watcher is not None:
            self._let_go()
            self.frozen, self.back_ms = True, self.world.now_ms + for_ms

    def _let_go(self) -> None:
        if self.plans is not None and self.plans.running:
            assert self.plans.mine is not None
            self.plans.mine.executor = None
            if self.world.current is self.plans.mine:
                self.world.current = None


def live(
    seed: int,
    *,
    days: int = 30,
    watchers: int = 2,
    settings: WatchSettings = SETTINGS,
    broken: bool = True,
    until_fault: bool = False,
) -> tuple[World, list[Life]]:
    """Live for some days.

    Args:
        broken: With deaths and outages.
        until_fault: End at the first fault.
    """
    world, fate = World(Random(seed), settings=settings), Random(seed + 1_000_000)
    lives = [Life(world, f"host{number}") for number in range(watchers)]
    while world.now_ms < BEGIN_MS + days * DAY_MS:
        world.go_on()
        if broken:
            _strike(world, lives, fate)
        for one in lives:
            one.tick()
        if until_fault and world.faults:
            break
    return world, lives


def _strike(world: World, lives: list[Life], fate: Random) -> None:
    per_day = DAY_MS / STEP_MS
    if fate.random() < 0.35 / per_day:
        world.break_brokers(1, round(fate.uniform(0.2, 6) * HOUR_MS))
    if fate.random() < 0.08 / per_day:
        world.break_brokers(fate.choice((2, 3)), round(fate.uniform(0.5, 5) * HOUR_MS))
    if fate.random() < 0.15 / per_day:
        world.silent_until_ms = world.now_ms + round(fate.uniform(0.1, 3) * HOUR_MS)
    if lives and fate.random() < 0.7 / per_day:
        fate.choice(lives).kill(round(fate.uniform(0.05, 4) * HOUR_MS))
    if lives and fate.random() < 0.4 / per_day:
        fate.choice(lives).freeze(round(fate.uniform(0.05, 2) * HOUR_MS))
    busy = [one for one in lives if one.plans is not None and one.plans.running]
    if busy and fate.random() < 4 / per_day:  # while a plan is executed
        fate.choice(busy).kill(round(fate.uniform(0.05, 1) * HOUR_MS))
    for one in lives:
        if one.plans is not None and one.log is not None and fate.random() < 10 / per_day:
            one.plans.die_at_start, one.log.dies_before, one.log.dies_after = (
                fate.random() < 0.5,
                fate.random() < 0.1,
                fate.random() < 0.1,
            )
            one.log.stalls_ms = round(fate.uniform(0.5, 3) * HOUR_MS) if fate.random() < 0.1 else 0
