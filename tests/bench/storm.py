"""Storms of assignments, splits, and lookups from memory, in the shape of Pulsar's figures."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from statechannel.protocol.bundle import bundle_key, children_of, even_bounds, namespace_bounds
from tests.bench.cluster import BrokerProcess, brokers, processor_s
from tests.bench.lane import kafka
from tests.bench.measure import Figure, Load, median

CHANNEL = "bench-storm"
SIZES = {
    64: "195-540 in Pulsar",
    256: "589-1,094 in Pulsar",
    1024: "<= 1,500; 2,552-3,313 in Pulsar",
    10_000: "<= 10,000",
}
SPLITS = 30
LOOKUP_S = 2.0
GATE_CALLS = 200_000


def run(rounds: int = 3) -> Sequence[Figure]:
    """Everything on one cluster of three brokers."""
    with kafka() as bootstrap, brokers(bootstrap, CHANNEL) as running:
        figures = [figure for size, aim in SIZES.items() for figure in _storm(running, size, aim, rounds)]
        figures += _splits(running)
    return figures


def _namespace(running: dict[str, BrokerProcess], name: str, bundles: int) -> list[str]:
    """Create a namespace and wait until each broker knows it; its bundles."""
    if running["b1"].ask("create", name, bundles) != "Done":
        raise RuntimeError(f"{name} was not created")
    bounds = namespace_bounds(bundles)
    names = [bundle_key(name, bounds[index], bounds[index + 1]) for index in range(bundles)]
    time.sleep(0.2)
    return names


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a storm of assignments took.

    Attributes:
        ms: From the first question until the last broker had its last answer.
        cpu_us: Processor time of all brokers, for each bundle.
        again_ms: The same questions to one broker once more.
        owners: Owner of each bundle.
    """

    ms: float
    cpu_us: float
    again_ms: float
    owners: Sequence[str]

    @property
    def spread(self) -> str:
        """Bundles of each owner."""
        return spread_of(self.owners)


def spread_of(owners: Iterable[str]) -> str:
    return "/".join(str(count) for count in sorted(Counter(owners).values()))


def assign_all(running: dict[str, BrokerProcess], namespace: str, size: int) -> Assignment:
    """Create a namespace, ask all brokers for all of its bundles at once, and then one of them again."""
    bundles = _namespace(running, namespace, size)
    used_s, began_ns = processor_s(running.values()), time.monotonic_ns()
    for process in running.values():
        process.tell("owners", bundles)
    answers = [process.answer() for process in running.values()]
    cpu_us = (processor_s(running.values()) - used_s) / size * 1e6
    ms = (max(answer["at_ns"] for answer in answers) - began_ns) / 1e6
    owners = answers[0]["owners"]
    if None in owners or any(answer["owners"] != owners for answer in answers):
        raise RuntimeError("the brokers do not agree on the owners")
    return Assignment(ms, cpu_us, running["b1"].ask("owners", bundles)["ms"], owners)


def _storm(running: dict[str, BrokerProcess], size: int, aim: str, rounds: int) -> list[Figure]:
    """All brokers are asked for all bundles at once; until the last has its last answer. Then once more."""
    load = Load()
    storms = [assign_all(running, f"storm/n{size}-{number}", size) for number in range(rounds)]
    taken_ms, again_ms = [storm.ms for storm in storms], [storm.again_ms for storm in storms]
    cpu_us, spread = [storm.cpu_us for storm in storms], storms[-1].spread
    print(f"storm: {size} bundles, owners {spread}", file=sys.stderr)
    notes = {"owners": spread}
    return [
        Figure(f"storm.{size}", median(taken_ms), "ms", aim=aim, rounds=taken_ms, load=str(load), notes=notes),
        Figure(f"storm.{size}.cpu", median(cpu_us), "us/bundle", aim="450", rounds=cpu_us, load=str(load)),
        Figure(f"storm.{size}.owned-already", median(again_ms), "ms", rounds=again_ms, load=str(load)),
    ]


def _splits(running: dict[str, BrokerProcess]) -> list[Figure]:
    """The call, and until three brokers have answered for both children."""
    load = Load()
    bundles = _namespace(running, "storm/splits", SPLITS)
    running["b1"].ask("owners", bundles)
    calls_ms, answers_ms = [], []
    for bundle in bundles:
        namespace, _, whole = bundle.rpartition("/")
        lower, upper = (int(part, 16) for part in whole.split("_"))
        children = [f"{namespace}/{child}" for child in children_of(even_bounds(2, lower, upper))]
        began_ns = time.monotonic_ns()
        facts = running["b2"].ask("split", bundle)
        if not facts["done"]:
            raise RuntimeError(f"split of {bundle}: {facts['outcome']}")
        for process in running.values():
            process.tell("owners", children)
        last_ns = max(process.answer()["at_ns"] for process in running.values())
        calls_ms.append(facts["ms"])
        answers_ms.append((last_ns - began_ns) / 1e6)
    aims = ("92-112 in Pulsar", "121-142 in Pulsar")
    return [
        Figure("split.call.p50", median(calls_ms), "ms", aim=aims[0], load=str(load)),
        Figure("split.children-answered.p50", median(answers_ms), "ms", aim=aims[1], load=str(load)),
        Figure("split.children-answered.max", max(answers_ms), "ms", aim="968 in Pulsar", load=str(load)),
    ]


def lookups() -> Sequence[Figure]:
    """What a broker pays that looks its clients' topics up: one broker, which serves all of them."""
    with kafka() as bootstrap, brokers(bootstrap, f"{CHANNEL}-lookups", ("b1",)) as running:
        load, process = Load(), running["b1"]
        bundles = _namespace(running, "storm/lookups", 64)
        process.ask("owners", bundles)
        facts = process.ask("lookups", "storm/lookups/a-topic", LOOKUP_S)
        cached = process.ask("cached_lookups", "storm/lookups/a-topic", LOOKUP_S)
        gate_us = process.ask("gate", "storm/lookups/a-topic", GATE_CALLS)
    notes = {"steps of the engine for each": round(facts["steps_per_lookup"], 3)}
    return [
        Figure("lookup", facts["rate"], "answers/s", load=str(load)),
        Figure("lookup.p50", facts["p50_us"], "us", load=str(load), notes=notes),
        Figure("lookup.p99", facts["p99_us"], "us", load=str(load)),
        Figure("lookup.new-topic.p50", facts["others_us"], "us", load=str(load)),
        Figure("lookup.cached", cached["rate"], "answers/s", aim="300,000", load=str(load)),
        Figure("lookup.cached.thread", cached["thread_rate"], "answers/s", aim="100,000", load=str(load)),
        Figure("lookup.accepts-writes", gate_us, "us", load=str(load)),
    ]
