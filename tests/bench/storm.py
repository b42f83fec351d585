"""Storms of assignments, recovery from a killed broker, splits, and lookups from memory, in the shape of Pulsar's figures."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence

from statechannel.core.bundle import bundle_key, children_of, even_bounds, namespace_bounds
from statechannel.settings import load as load_settings
from tests.bench.cluster import BrokerProcess, brokers
from tests.bench.lane import kafka
from tests.bench.measure import Figure, Load, median, percentile

CHANNEL = "bench-storm"
SIZES = {64: "195-540 in Pulsar", 256: "589-1,094 in Pulsar", 1024: "2,552-3,313 in Pulsar"}
SPLITS = 30
LOOKUP_S = 2.0


def run(rounds: int = 3) -> Sequence[Figure]:
    """Everything on one cluster of three brokers; the killed broker comes last."""
    with kafka() as bootstrap, brokers(bootstrap, CHANNEL) as running:
        figures = [_storm(running, size, aim, rounds) for size, aim in SIZES.items()]
        figures += _splits(running)
        figures.append(_lookups(running))
        figures += _kill(running)
    return figures


def _namespace(running: dict[str, BrokerProcess], name: str, bundles: int) -> list[str]:
    """Create a namespace and wait until each broker knows it; its bundles."""
    if running["b1"].ask("create", name, bundles) != "Done":
        raise RuntimeError(f"{name} was not created")
    bounds = namespace_bounds(bundles)
    names = [bundle_key(name, bounds[index], bounds[index + 1]) for index in range(bundles)]
    time.sleep(0.2)
    return names


def _storm(running: dict[str, BrokerProcess], size: int, aim: str, rounds: int) -> Figure:
    """All brokers are asked for all bundles at once; until the last has its last answer."""
    load = Load()
    taken_ms, spread = [], ""
    for number in range(rounds):
        bundles = _namespace(running, f"storm/n{size}-{number}", size)
        began_ns = time.monotonic_ns()
        for process in running.values():
            process.tell("owners", bundles)
        answers = [process.answer() for process in running.values()]
        taken_ms.append((max(answer["at_ns"] for answer in answers) - began_ns) / 1e6)
        first = answers[0]["owners"]
        if None in first or any(answer["owners"] != first for answer in answers):
            raise RuntimeError("the brokers do not agree on the owners")
        spread = "/".join(str(count) for count in sorted(Counter(first).values()))
    print(f"storm: {size} bundles, owners {spread}", file=sys.stderr)
    notes = {"owners": spread}
    return Figure(f"storm.{size}", median(taken_ms), "ms", aim=aim, rounds=taken_ms, load=str(load), notes=notes)


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


def _lookups(running: dict[str, BrokerProcess]) -> Figure:
    load = Load()
    topic = "storm/n64-0/a-topic"
    return Figure("lookups", running["b1"].ask("lookups", topic, LOOKUP_S), "answers/s", load=str(load))


def _kill(running: dict[str, BrokerProcess]) -> list[Figure]:
    """SIGKILL of a follower: until the others name a living owner for each of its bundles, net of the expiry.

    The expiry counts from the last heartbeat before the kill, so the net figure may be below zero by one interval.
    """
    load = Load()
    bundles = _namespace(running, "storm/kill", 300)
    owners = running["b1"].ask("owners", bundles)["owners"]
    victim = next(name for name, process in running.items() if name != "b1" and not process.ask("leading"))
    lost = [bundle for bundle, owner in zip(bundles, owners, strict=True) if owner == victim]
    expiry_s = load_settings().membership.expiry_s
    killed_ns = time.monotonic_ns()
    running[victim].kill()
    waiting, answered_ms = dict.fromkeys(lost), []
    while waiting:
        facts = running["b1"].ask("owners", list(waiting))
        now_ms = (facts["at_ns"] - killed_ns) / 1e6
        for bundle, owner in zip(list(waiting), facts["owners"], strict=True):
            if owner not in (None, victim):
                del waiting[bundle]
                answered_ms.append(now_ms - expiry_s * 1000)
        if now_ms > 120_000:
            raise RuntimeError(f"{len(waiting)} bundles of {victim} have no living owner after two minutes")
        time.sleep(0.02)
    notes = {"bundles": len(lost), "expiry_s": expiry_s}
    return [
        Figure(
            "kill.net-of-expiry.p50",
            percentile(answered_ms, 0.5),
            "ms",
            aim="660 in Pulsar",
            load=str(load),
            notes=notes,
        ),
        Figure("kill.net-of-expiry.max", max(answered_ms), "ms", aim="786 in Pulsar", load=str(load), notes=notes),
    ]
