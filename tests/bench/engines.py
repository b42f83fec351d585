"""The core alone, in processor time: three engines in a storm of lookups, records that do not concern a broker, a join, the fold.

Without Kafka: the engines share a list for each topic. Each figure is measured with the Python code and, where it is installed
and made from these sources, with the accelerator.

`python -m tests.bench.engines BUNDLES` is the worker.
"""

import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from statechannel.engine.commands import CreateNamespace, Lookup
from statechannel.engine.config import EngineConfig, Identity
from statechannel.engine.effects import Append, CallHook, Complete, StandForLeader
from statechannel.engine.engine import Engine
from statechannel.engine.inputs import (
    Appended,
    CommandReceived,
    HookFinished,
    Input,
    LeadershipChanged,
    Now,
    PartitionOpened,
    PositionReached,
    Tick,
)
from statechannel.protocol import bulk_fold
from statechannel.protocol.bundle import bundle_key, namespace_bounds
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from statechannel.protocol.overruling import StrictReader
from statechannel.protocol.view import View
from tests.bench.measure import Figure, Load, median, worker

SWITCH = "STATECHANNEL_ACCELERATOR"
UNITS = {"storm": "us/bundle", "not-concerned": "us/record", "join": "us/record", "fold": "us/record"}
BUNDLES = 5_000
BROKERS = "abc"
BATCH = 64
JOIN_BATCH = 500
STEP_S = 0.1
NAMESPACE = "bench/storm"


class Engines:
    """Three engines on one list of records for each topic, and their processor time."""

    def __init__(self) -> None:
        self.engines = {name: new_engine(name) for name in BROKERS}
        self.logs: dict[Topic, list[RecordRead]] = {Topic.CHANNEL: [], Topic.REGISTRY: []}
        self.now_s, self.cpu_ns, self.completed = 100.0, 0, 0
        self._read = {(name, topic): 0 for name in BROKERS for topic in self.logs}
        self._due: dict[str, list[Input]] = {name: [] for name in BROKERS}
        self._led = False
        for name, topic in self._read:
            self.step(name, PartitionOpened(topic, 0, 0, 0))
            self.step(name, PositionReached(topic, 0, 0, self.now_s))

    def step(self, name: str, given: Input) -> None:
        began_ns = time.thread_time_ns()
        effects = self.engines[name].step(Now(self.now_s, round(self.now_s * 1_000)), given)
        self.cpu_ns += time.thread_time_ns() - began_ns
        due = self._due[name]
        for effect in effects:
            match effect:
                case Append():
                    log = self.logs[effect.topic]
                    log.append(
                        RecordRead(effect.topic, 0, len(log), round(self.now_s * 1_000), effect.key, effect.value)
                    )
                    if effect.topic is Topic.CHANNEL:
                        due.append(Appended(effect.token, len(log) - 1, 1))
                case CallHook() if effect.hook_id:
                    due.append(HookFinished(effect.hook_id))
                case Complete():
                    self.completed += 1
                case StandForLeader() if effect.stand and not self._led:
                    self._led = True
                    due.append(LeadershipChanged(True))

    def run(self, seconds: float, step_s: float = STEP_S) -> Iterator[None]:
        for _ in range(round(seconds / step_s)):
            self.now_s += step_s
            for name, engine in self.engines.items():
                if self.now_s >= engine.wake_at_s:
                    self.step(name, Tick())
            while sum(map(self._deliver, BROKERS)):
                pass
            yield

    def _deliver(self, name: str) -> bool:
        due, self._due[name] = self._due[name], []
        for given in due:
            self.step(name, given)
        found = bool(due)
        for topic, log in self.logs.items():
            position = self._read[name, topic]
            records = log[position : position + BATCH]
            if records:
                found = True
                self._read[name, topic] = end = position + len(records)
                self.step(name, RecordsRead(records, 100))
                self.step(name, PositionReached(topic, 0, end, self.now_s))
        return found


def new_engine(name: str) -> Engine:
    return Engine(Identity(name, f"{name}-inc-0123456789", (name * 10).encode(), 1_000), EngineConfig())


def storm(bundles: int) -> tuple[float, list[RecordRead]]:
    """Every broker is asked for every bundle of a new namespace: microseconds of the engines a bundle, and the log."""
    engines = Engines()
    for _ in engines.run(20):
        pass
    bounds = namespace_bounds(bundles)
    engines.step("a", CommandReceived(1, CreateNamespace(NAMESPACE, tuple(bounds), "o-1", 60.0)))
    for _ in engines.run(1):
        pass
    engines.cpu_ns = engines.completed = 0
    for index in range(bundles):
        for number, name in enumerate(BROKERS):
            key = bundle_key(NAMESPACE, bounds[index], bounds[index + 1])
            engines.step(name, CommandReceived(2 + index * len(BROKERS) + number, Lookup(key, 300.0)))
    for _ in engines.run(60, 0.01):
        if engines.completed >= len(BROKERS) * bundles:
            return engines.cpu_ns / 1_000 / bundles, engines.logs[Topic.CHANNEL]
    raise RuntimeError(f"{engines.completed} of {len(BROKERS) * bundles} lookups were answered")


def read_all(records: list[RecordRead], end: int, batch: int) -> float:
    """Another broker reads the log, which ends for it at `end` when it begins: microseconds a record."""
    engine, now = new_engine("d"), Now(1_000.0, 1_000_000)
    for topic, end_of in ((Topic.REGISTRY, 0), (Topic.CHANNEL, end)):
        engine.step(now, PartitionOpened(topic, 0, 0, end_of))
        if not end_of:
            engine.step(now, PositionReached(topic, 0, 0, now.mono_s))
    batches = [RecordsRead(records[start : start + batch], 100) for start in range(0, len(records), batch)]
    began_ns = time.thread_time_ns()
    for given in batches:
        engine.step(now, given)
    return (time.thread_time_ns() - began_ns) / 1_000 / len(records)


def fold(records: list[RecordRead]) -> float:
    """Microseconds a record of the bulk of a replay."""
    began_ns = time.thread_time_ns()
    bulk_fold.judge_many(StrictReader(View(0, 1)), records, Counter())
    return (time.thread_time_ns() - began_ns) / 1_000 / len(records)


def measured(bundles: int) -> dict[str, Any]:
    """All figures of this process, and whether its core is compiled."""
    per_bundle, records = storm(bundles)
    gc.collect()
    gc.freeze()
    return {
        "compiled": not str(bulk_fold.__file__).endswith(".py"),
        "storm": per_bundle,
        "not-concerned": min(read_all(records, 0, BATCH) for _ in range(3)),
        "join": min(read_all(records, len(records), JOIN_BATCH) for _ in range(3)),
        "fold": min(fold(records) for _ in range(5)),
    }


def run(rounds: int = 5) -> Sequence[Figure]:
    """The figures of both cores, taken in turn."""
    switches = {"python": "off"} | ({"accelerator": "on"} if find_spec("statechannel_accelerator") else {})
    taken: dict[str, list[dict[str, Any]]] = {core: [] for core in switches}
    load = Load()
    for _ in range(rounds):
        for core, switch in switches.items():
            with patch.dict("os.environ", {SWITCH: switch}):
                facts = worker("tests.bench.engines", BUNDLES)
            if facts["compiled"] is (core == "accelerator"):
                taken[core].append(facts)
    if not taken.get("accelerator"):
        print("engines: no accelerator of these sources is installed (make accelerator)", file=sys.stderr)
    return [
        Figure(
            f"engines.{what}.{core}",
            median([facts[what] for facts in of_core]),
            unit,
            rounds=[facts[what] for facts in of_core],
            load=str(load),
        )
        for what, unit in UNITS.items()
        for core, of_core in taken.items()
        if of_core
    ]


if __name__ == "__main__":
    print(json.dumps(measured(int(sys.argv[1]))))
