"""What partitions of the channel bring: the same work on a channel of one partition and on one of eight.

Three brokers. Idle; then a storm over namespaces that lie in all partitions; then a follower is killed and its bundles are
repaired; then a broker joins what was written. Times by the wall depend on the cores that are there; processor time does not.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from statechannel.protocol.bundle import bundle_key, namespace_bounds, partition_of
from statechannel.settings import load as load_settings
from tests.bench.cluster import BrokerProcess, brokers, processor_s
from tests.bench.deaths import kill_and_wait, victim_of
from tests.bench.lane import kafka
from tests.bench.measure import Figure, Load, median

PARTITIONS = (1, 8)
NAMESPACES = 32
BUNDLES = 128
"""Of each namespace: 4,096 in all."""
IDLE_S = 20.0
SETTLE_S = 5.0
_SETTING = "STATECHANNEL_CHANNEL__PARTITIONS"


def run(rounds: int = 3) -> Sequence[Figure]:
    """A cluster of its own for each number of partitions and each round."""
    figures: list[Figure] = []
    for partitions in PARTITIONS:
        load, measured = Load(), [_measure(partitions, number) for number in range(rounds)]
        for name, unit in UNITS.items():
            values = [facts[name] for facts in measured]
            figures.append(
                Figure(f"channel-partitions.{partitions}.{name}", median(values), unit, rounds=values, load=str(load))
            )
    return figures


UNITS = {
    "idle": "% of a core",
    "storm": "ms",
    "storm.cpu": "us/bundle",
    "repair": "ms net",
    "repair.cpu": "us/bundle",
    "join": "ms",
    "join.cpu": "ms",
}


def _measure(partitions: int, number: int) -> dict[str, float]:
    channel = f"bench-partitions-{partitions}-{number}"
    with kafka() as bootstrap, _partitions(partitions), brokers(bootstrap, channel) as running:
        facts = {"idle": _idle(running)}
        bundles = _namespaces(running, partitions)
        facts |= _storm(running, bundles)
        time.sleep(SETTLE_S)
        facts |= _repair(running, bundles)
        time.sleep(SETTLE_S)
        facts |= _join(running, bootstrap, channel)
    print(f"channel-partitions: {partitions}: {facts}", file=sys.stderr)
    return facts


@contextmanager
def _partitions(count: int) -> Iterator[None]:
    """Brokers that start in this block create a channel of so many partitions."""
    before = os.environ.get(_SETTING)
    os.environ[_SETTING] = str(count)
    try:
        yield
    finally:
        del os.environ[_SETTING]
        if before is not None:
            os.environ[_SETTING] = before


def _idle(running: dict[str, BrokerProcess]) -> float:
    """Per broker, leader and followers together."""
    time.sleep(SETTLE_S)
    used_s, began_s = processor_s(running.values()), time.monotonic()
    time.sleep(IDLE_S)
    return 100 * (processor_s(running.values()) - used_s) / (time.monotonic() - began_s) / len(running)


def _namespaces(running: dict[str, BrokerProcess], partitions: int) -> list[str]:
    names = [f"partitions/n{number}" for number in range(NAMESPACES)]
    spread = Counter(partition_of(name, partitions) for name in names)
    if len(spread) != partitions:
        raise RuntimeError(f"the namespaces lie in {len(spread)} of {partitions} partitions")
    bounds = namespace_bounds(BUNDLES)
    for name in names:
        if running["b1"].ask("create", name, BUNDLES) != "Done":
            raise RuntimeError(f"{name} was not created")
    time.sleep(SETTLE_S)
    return [bundle_key(name, bounds[index], bounds[index + 1]) for name in names for index in range(BUNDLES)]


def _storm(running: dict[str, BrokerProcess], bundles: Sequence[str]) -> dict[str, float]:
    """All brokers are asked for all bundles at once; until the last has its last answer."""
    used_s, began_ns = processor_s(running.values()), time.monotonic_ns()
    for process in running.values():
        process.tell("owners", bundles)
    answers = [process.answer() for process in running.values()]
    first = answers[0]["owners"]
    if None in first or any(answer["owners"] != first for answer in answers):
        raise RuntimeError("the brokers do not agree on the owners")
    return {
        "storm": (max(answer["at_ns"] for answer in answers) - began_ns) / 1e6,
        "storm.cpu": (processor_s(running.values()) - used_s) / len(bundles) * 1e6,
    }


def _repair(running: dict[str, BrokerProcess], bundles: Sequence[str]) -> dict[str, float]:
    """A follower is killed; until each of its bundles has a living owner, net of the expiry, in which the others idle."""
    victim = victim_of(running, "follower")
    left = [process for name, process in running.items() if name != victim]
    used_s = processor_s(left)
    answered_ms = kill_and_wait(running, victim, bundles)
    spent_s = processor_s(left) - used_s
    return {
        "repair": max(answered_ms) - load_settings().membership.expiry_s * 1_000,
        "repair.cpu": spent_s / len(answered_ms) * 1e6,
    }


def _join(running: dict[str, BrokerProcess], bootstrap: str, channel: str) -> dict[str, float]:
    """A further process, from its start until it has caught up."""
    began_s = time.monotonic()
    running["b4"] = BrokerProcess("b4", bootstrap, channel)
    running["b4"].wait_ready()
    took_s = time.monotonic() - began_s
    return {"join": took_s * 1e3, "join.cpu": processor_s([running["b4"]]) * 1e3}
