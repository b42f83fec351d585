"""A dumb Kafka: replica lists, in-sync sets and reassignments that go on at random; calls fail, answers get lost, brokers die.

It follows what Kafka's controller does (KIP-455): targets first in the list while under way, removed ones behind them; done when
all that were added are in sync; a withdrawn one keeps the order that it has got. It also counts what must not happen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from loaddata.samples.partitions import ClusterLayout, KafkaBroker, KafkaPartition, KafkaTopic, LogDir
from shedders.kafka_rebalance.execution.machine import ExecutionMachine
from shedders.kafka_rebalance.execution.moves import concerned
from shedders.kafka_rebalance.execution.runner import Runner
from shedders.kafka_rebalance.execution.throttle import EVERYTHING
from shedders.kafka_rebalance.execution.values import (
    CallAnswer,
    CallOutcome,
    ExecutionEnd,
    ExecutionHistory,
    Key,
    Observation,
    OperatorRequests,
    ReplicaDir,
    ReplicaKey,
    Resource,
)
from shedders.kafka_rebalance.planning.plan import PartitionMove, ReassignmentPlan
from shedders.kafka_rebalance.settings import PaceSettings
from statechannel.errors import StateChannelError

CLUSTER = "twin"
STALE_MAX = 3
"""Looks in a row that may be stale."""


class KilledError(BaseException):
    """The tool is gone, as by kill -9."""


class CallFailedError(StateChannelError):
    """Kafka did not answer a look."""


@dataclass
class Part:
    """One partition of the twin."""

    replicas: list[int]
    isr: set[int]
    leader: int | None
    size_bytes: int = 100
    adding: list[int] = field(default_factory=list)
    removing: list[int] = field(default_factory=list)
    has_bytes: dict[int, int] = field(default_factory=dict)

    @property
    def moving(self) -> bool:
        return bool(self.adding or self.removing)


@dataclass
class Twin:
    """See the module. `faults`: share of calls that end in some fault."""

    parts: dict[Key, Part]
    alive: set[int]
    rng: Random
    min_isr: int = 1
    faults: float = 0.0
    lag: float = 0.0
    speed_bytes: int = 60
    configs: dict[Resource, dict[str, str]] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    now_s: float = 0.0
    set_out: Counter[Key] = field(default_factory=Counter)
    most_of_broker: int = 0
    most_moving: int = 0
    most_bytes: int = 0
    unthrottled: int = 0
    under_min: int = 0
    back: dict[int, float] = field(default_factory=dict)
    dirs: dict[ReplicaKey, str] = field(default_factory=dict)
    futures: dict[ReplicaKey, tuple[str, int]] = field(default_factory=dict)
    remembered: dict[ReplicaKey, str] = field(default_factory=dict)
    shut_dirs: set[str] = field(default_factory=set)
    dir_copies: Counter[ReplicaKey] = field(default_factory=Counter)
    most_dirs_of_broker: int = 0
    dirs_unthrottled: int = 0
    repeated: int = 0
    to_dead: int = 0
    _told_alive: frozenset[int] = frozenset()
    _stale: int = 0
    _old: dict[str, KafkaTopic] | None = None

    # --- the port ---------------------------------------------------------------------------------------------------

    def observe(self, *, full: bool, configs: tuple[Resource, ...], layout: bool = False) -> Observation:
        if self.rng.random() < self.faults / 4:
            raise CallFailedError("no answer")
        topics = self.topics()
        if self._old is not None and self._stale < STALE_MAX and self.rng.random() < self.lag:
            topics = self._old
            self._stale += 1
        else:
            self._stale = 0
        self._old = topics
        self._told_alive = frozenset(self.alive)
        urps = frozenset(key for key, part in self.parts.items() if len(part.isr) < len(part.replicas))
        copied = {(*key, b): part.has_bytes.get(b, 0) for key, part in self.parts.items() for b in part.adding}
        copied |= {
            (*key, part.leader): part.size_bytes for key, part in self.parts.items() if part.adding and part.leader
        }
        return Observation(
            cluster_id=CLUSTER,
            alive=frozenset(self.alive),
            topics=topics,
            urps=urps if full else None,
            copied=copied if full else None,
            dirs=self.dirs_seen() if full and self.dirs else None,
            layout=self.layout() if layout else None,
            configs={config: dict(self.configs.get(config, {})) for config in configs if self._reachable(config)},
        )

    def layout(self, cluster_id: str = CLUSTER) -> ClusterLayout:
        brokers = []
        for broker in sorted({*self.alive, *self.back}):
            held: dict[str, list[tuple[str, int, int]]] = {}
            for (topic, number, holder), path in sorted(self.dirs.items()):
                if holder == broker:
                    held.setdefault(path, []).append((topic, number, 0))
            dirs = tuple(
                LogDir(path=path, cordoned=path in self.shut_dirs, replicas=tuple(held[path])) for path in held
            )
            brokers.append(KafkaBroker(id=broker, alive=broker in self.alive, log_dirs=dirs))
        return ClusterLayout(cluster_id=cluster_id, brokers=tuple(brokers), topics=self.topics())

    def topics(self) -> dict[str, KafkaTopic]:
        topics: dict[str, list[KafkaPartition]] = {}
        for (topic, number), part in sorted(self.parts.items()):
            partition = KafkaPartition(
                partition=number,
                replicas=tuple(part.replicas),
                leader=part.leader,
                isr=tuple(sorted(part.isr)),
                offline=tuple(replica for replica in part.replicas if replica not in self.alive),
                adding=tuple(part.adding),
                removing=tuple(part.removing),
            )
            topics.setdefault(topic, []).append(partition)
        return {
            name: KafkaTopic(
                name=name, partitions=tuple(parts), topic_id=self.topic_ids.get(name, name), min_isr=self.min_isr
            )
            for name, parts in topics.items()
        }

    def set_configs(self, changes: Mapping[Resource, Mapping[str, str | None]]) -> CallAnswer:
        refused: dict[Any, str] = {}
        outcome = self._outcome()
        for resource, settings in changes.items():
            if not self._reachable(resource):
                refused[resource] = "the broker is away"
            elif outcome is not CallOutcome.REJECTED and not (
                outcome is CallOutcome.UNKNOWN and self.rng.random() < 0.5
            ):
                now = self.configs.setdefault(resource, {})
                for name, value in settings.items():
                    if value is None:
                        now.pop(name, None)
                    else:
                        now[name] = value
        return CallAnswer(
            outcome=outcome, refused=refused, reason="a fault" if outcome is not CallOutcome.ACCEPTED else ""
        )

    def submit(self, targets: Mapping[Key, tuple[int, ...]]) -> CallAnswer:
        refused: dict[Any, str] = {}
        outcome = self._outcome()
        if outcome is CallOutcome.REJECTED or (outcome is CallOutcome.UNKNOWN and self.rng.random() < 0.5):
            return CallAnswer(outcome=outcome, reason="a fault")
        for key, target in targets.items():
            if key not in self.parts:
                refused[key] = "UNKNOWN_TOPIC_OR_PARTITION"
                continue
            part = self.parts[key]
            new = [broker for broker in target if broker not in part.replicas]
            wanted = [replica for replica in part.replicas if replica not in part.removing]
            self.repeated += set(wanted) == set(target) and (part.moving or bool(set(part.replicas) ^ set(target)))
            self.repeated += not part.moving and tuple(part.replicas) == target
            if any(broker not in self.alive for broker in new):
                self.to_dead += any(
                    broker not in self._told_alive for broker in new
                )  # one that died since could not be known
                refused[key] = "a broker is away"
                continue
            left = (part.isr & set(target)) | set(new)
            if not part.moving and len(left) < self.min_isr and len(target) >= self.min_isr:
                self.under_min += 1
            if new and not part.moving:
                self.set_out[key] += 1
            current = (
                [replica for replica in part.replicas if replica not in part.adding]
                if part.moving
                else list(part.replicas)
            )
            part.adding = [broker for broker in target if broker not in current]
            part.removing = [broker for broker in current if broker not in target]
            part.replicas = [*target, *part.removing]
            part.isr &= set(part.replicas)
            self._complete(part)
        self._arrive_in_dirs()
        self._measure()
        return CallAnswer(
            outcome=outcome, refused=refused, reason="" if outcome is CallOutcome.ACCEPTED else "no answer"
        )

    def dirs_seen(self) -> dict[ReplicaKey, ReplicaDir]:
        seen = {}
        for key in {*self.dirs, *self.remembered}:
            part = self.parts[key[:2]]
            if key[2] not in self.alive:
                continue
            if key[2] not in part.replicas:
                seen[key] = ReplicaDir()
                continue
            path, has = self.futures.get(key, ("", 0))
            seen[key] = ReplicaDir(path=self.dirs[key], size_bytes=part.size_bytes, future_path=path, future_bytes=has)
        return seen

    def move_dirs(self, targets: Mapping[ReplicaKey, str]) -> CallAnswer:
        refused: dict[Any, str] = {}
        outcome = self._outcome()
        for key, path in targets.items():
            if key[2] not in self.alive or outcome is not CallOutcome.ACCEPTED:
                continue  # as with a lost answer: the next look shows it
            if path in self.shut_dirs:
                refused[key] = "the directory is cordoned"
            elif key[2] not in self.parts[key[:2]].replicas:
                self.remembered[key] = path
            elif path == self.dirs[key]:
                self.futures.pop(key, None)
            elif self.futures.get(key, ("", 0))[0] != path:
                self.futures[key] = (path, 0)
                self.dir_copies[key] += 1
        of = Counter(key[2] for key in self.futures)
        self.most_dirs_of_broker = max(self.most_dirs_of_broker, max(of.values(), default=0))
        return CallAnswer(outcome=CallOutcome.ACCEPTED, refused=refused)

    def _copy_dirs(self) -> None:
        for key, (path, had) in list(self.futures.items()):
            if key[2] not in self.alive:
                continue
            rates = self.configs.get(("broker", str(key[2])), {})
            self.dirs_unthrottled += "replica.alter.log.dirs.io.max.bytes.per.second" not in rates
            has = had + self.rng.randint(0, self.speed_bytes)
            self.futures[key] = (path, has)
            if has >= self.parts[key[:2]].size_bytes:
                self.dirs[key] = path
                del self.futures[key]

    def _arrive_in_dirs(self) -> None:
        """A replica that comes is created where its broker remembers, else in its first directory."""
        for key, part in self.parts.items():
            for broker in part.replicas:
                if self.dirs and (*key, broker) not in self.dirs:
                    self.dirs[*key, broker] = self.remembered.get((*key, broker), "/first")
        for replica in [each for each in self.dirs if each[2] not in self.parts[each[:2]].replicas]:
            del self.dirs[replica]
            self.futures.pop(replica, None)
            self.remembered.setdefault(replica, "")

    def elect(self, keys: tuple[Key, ...]) -> CallAnswer:
        outcome = self._outcome()
        if outcome is not CallOutcome.REJECTED:
            for key in self.parts.keys() & set(keys):
                part = self.parts[key]
                if part.replicas[0] in part.isr & self.alive:
                    part.leader = part.replicas[0]
        return CallAnswer(outcome=outcome)

    def withdraw(self, keys: tuple[Key, ...]) -> CallAnswer:
        outcome = self._outcome()
        if outcome is not CallOutcome.REJECTED:
            for key in self.parts.keys() & set(keys):
                part = self.parts[key]
                part.replicas = [replica for replica in part.replicas if replica not in part.adding]
                part.isr -= set(part.adding)
                part.adding, part.removing = [], []
                self._lead(part)
        return CallAnswer(outcome=outcome)

    # --- time -------------------------------------------------------------------------------------------------------

    def wait(self, length_s: float) -> None:
        self.now_s += length_s
        self.go_on()

    def go_on(self) -> None:
        for broker, at_s in list(self.back.items()):
            if self.now_s >= at_s:
                del self.back[broker]
                self.alive.add(broker)
        self._arrive_in_dirs()
        self._copy_dirs()
        for key, part in self.parts.items():
            source = part.leader
            for broker in [replica for replica in part.replicas if replica in self.alive and replica not in part.isr]:
                if source is None:
                    continue
                if broker not in part.adding:
                    part.isr.add(broker)
                    continue
                if not self._throttled(key, source, broker):
                    self.unthrottled += 1
                has = part.has_bytes.get(broker, 0) + self.rng.randint(0, self.speed_bytes)
                part.has_bytes[broker] = has
                if has >= part.size_bytes:
                    part.isr.add(broker)
            self._lead(part)
            self._complete(part)

    def kill_broker(self, broker: int, *, for_s: float) -> None:
        self.alive.discard(broker)
        self.back[broker] = self.now_s + for_s
        for part in self.parts.values():
            if len(part.isr) > 1:
                part.isr.discard(broker)
            self._lead(part)

    # --- within -----------------------------------------------------------------------------------------------------

    def _outcome(self) -> CallOutcome:
        if self.rng.random() >= self.faults:
            return CallOutcome.ACCEPTED
        return self.rng.choice([CallOutcome.REJECTED, CallOutcome.UNKNOWN])

    def _reachable(self, resource: Resource) -> bool:
        return resource[0] != "broker" or int(resource[1]) in self.alive

    def _complete(self, part: Part) -> None:
        if part.moving and set(part.adding) <= part.isr and part.leader is not None:
            part.replicas = [replica for replica in part.replicas if replica not in part.removing]
            part.isr -= set(part.removing)
            part.has_bytes.clear()
            part.adding, part.removing = [], []
            self._lead(part)

    def _lead(self, part: Part) -> None:
        if part.leader not in part.isr & self.alive & set(part.replicas):
            part.leader = next((replica for replica in part.replicas if replica in part.isr & self.alive), None)

    def _throttled(self, key: Key, source: int, broker: int) -> bool:
        def listed(name: str, member: int) -> bool:
            value = self.configs.get(("topic", key[0]), {}).get(name, "")
            return value == EVERYTHING or f"{key[1]}:{member}" in value.split(",")

        def rated(name: str, member: int) -> bool:
            return name in self.configs.get(("broker", str(member)), {})

        leads = listed("leader.replication.throttled.replicas", source) and rated(
            "leader.replication.throttled.rate", source
        )
        follows = listed("follower.replication.throttled.replicas", broker)
        return leads and follows and rated("follower.replication.throttled.rate", broker)

    def _measure(self) -> None:
        moving = [part for part in self.parts.values() if part.moving]
        self.most_moving = max(self.most_moving, len(moving))
        self.most_bytes = max(self.most_bytes, sum(part.size_bytes * len(part.adding) for part in moving))
        of: Counter[int] = Counter()
        for part in moving:
            now = tuple(replica for replica in part.replicas if replica not in part.adding)
            of.update(
                concerned(part.leader, now, tuple(replica for replica in part.replicas if replica not in part.removing))
            )
        self.most_of_broker = max(self.most_of_broker, max(of.values(), default=0))


@dataclass
class FluidTwin(Twin):
    """A Kafka whose brokers copy with `rate_bytes_per_s` in each direction, shared by their copies, in whole fetches."""

    rate_bytes_per_s: float = 1_000_000.0
    fetch_bytes: int = 1
    _flowed: dict[tuple[Key, int], float] = field(default_factory=dict)

    def wait(self, length_s: float) -> None:
        self.now_s += length_s
        self._flow(length_s)

    def _flow(self, length_s: float) -> None:
        flows = [
            (key, part, broker)
            for key, part in self.parts.items()
            for broker in part.adding
            if broker not in part.isr and part.leader is not None
        ]
        into, out = Counter(broker for *_, broker in flows), Counter(part.leader for _, part, _ in flows)
        for key, part, broker in flows:
            share = self.rate_bytes_per_s / max(into[broker], out[part.leader])
            flowed = self._flowed.get((key, broker), 0.0) + share * length_s
            self._flowed[key, broker] = flowed
            part.has_bytes[broker] = min(part.size_bytes, int(flowed // self.fetch_bytes) * self.fetch_bytes)
            if flowed >= part.size_bytes:
                part.isr.add(broker)
                del self._flowed[key, broker]
        for part in self.parts.values():
            self._lead(part)
            self._complete(part)

    @property
    def done_bytes(self) -> int:
        """Bytes of unfinished copies that have arrived."""
        return sum(part.has_bytes.get(broker, 0) for part in self.parts.values() for broker in part.adding)


@dataclass
class Ledger:
    """A journal in memory. `kill_at`: the tool dies at this write or call, counted over all of its lives."""

    events: list[dict[str, Any]] = field(default_factory=list)
    asked: OperatorRequests = field(default_factory=OperatorRequests)
    kills: list[int] = field(default_factory=list)
    count: int = 0
    runner: Any = None
    now_ms: Callable[[], int] = lambda: 0

    def write(self, event: str, facts: Mapping[str, Any]) -> None:
        self.tick()
        self.events.append({"event": event, "at_ms": self.now_ms(), **facts})
        self.tick()

    def read_requests(self) -> tuple[OperatorRequests, str]:
        return self.asked, ""

    def tick(self) -> None:
        self.count += 1
        if self.kills and self.count >= self.kills[0]:
            self.kills.pop(0)
            raise KilledError

    def recorded(self) -> ExecutionHistory:
        history = ExecutionHistory()
        for event in self.events:
            history.take(event)
        return history


class At(Ledger):
    """Does something to the twin after so many looks."""

    def __init__(self, doing: dict[int, Callable[[], None]]) -> None:
        super().__init__()
        self._doing, self._looks = doing, 0

    def read_requests(self) -> tuple[OperatorRequests, str]:
        self._looks += 1
        if self._looks in self._doing:
            self._doing[self._looks]()
        return self.asked, ""

    def names(self) -> list[str]:
        return [event["event"] for event in self.events]


class Deadly:
    """The twin as a port that may kill the tool before or after a call."""

    def __init__(self, twin: Twin, ledger: Ledger) -> None:
        self._twin, self._ledger = twin, ledger

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._twin, name)

        def called(*args: Any, **named: Any) -> Any:
            self._ledger.tick()
            answer = call(*args, **named)
            self._ledger.tick()
            return answer

        return called


def run(
    twin: Twin, plan: ReassignmentPlan, pace: PaceSettings, ledger: Ledger, *, steps_max: int = 3_000
) -> tuple[ExecutionEnd, ExecutionMachine]:
    """Carry a plan out, with a new executor after each death."""
    waits = 0

    def wait(length_s: float) -> None:
        nonlocal waits
        waits += 1
        assert waits < steps_max, f"no end: {ledger.events[-5:]}"
        twin.wait(length_s)

    while True:
        machine = ExecutionMachine(plan, pace, ledger.recorded())
        runner = Runner(machine, Deadly(twin, ledger), ledger, pace, now_s=lambda: twin.now_s, wait=wait)  # type: ignore[arg-type]
        ledger.runner = runner
        try:
            ledger.write("begun", {"executor": f"e{ledger.count}"})
            return runner.run(), machine
        except KilledError:
            twin.wait(pace.poll_s)


def move(key: Key, before: tuple[int, ...], after: tuple[int, ...], size_bytes: int = 100) -> PartitionMove:
    return PartitionMove(
        topic=key[0],
        partition=key[1],
        before=before,
        after=after,
        leader_before=before[0],
        leader_after=after[0],
        size_bytes=size_bytes,
        goals=(),
    )


def make_plan(moves: list[PartitionMove], **more: Any) -> ReassignmentPlan:
    ids = {step.topic: step.topic for step in moves}
    return ReassignmentPlan(
        id="0123456789abcdef", cluster_id=CLUSTER, layout="", moves=tuple(moves), topic_ids=ids, **more
    )


__all__ = ["CLUSTER", "Ledger", "Part", "Twin", "make_plan", "move", "run"]
