"""kill -9 of a broker, follower or leader: until the others name a living owner for each of its bundles, net of the expiry.

The expiry counts from the last heartbeat before the kill, so that the net figure may be below zero by one interval.
"""

import sys
import time
from collections.abc import Sequence
from itertools import cycle

from statechannel.protocol.bundle import bundle_key, namespace_bounds
from statechannel.settings import load as load_settings
from tests.bench.cluster import BrokerProcess, brokers
from tests.bench.lane import kafka
from tests.bench.measure import Figure, Load, median

CHANNEL = "bench-deaths"
LOOK_S = 0.02
LONGEST_S = 120.0
SHAPES = (
    # brokers, bundles of each, who is killed, rounds, aim
    (3, 100, "follower", 3, "<= 500; 660 in Pulsar"),
    (3, 780, "follower", 3, "<= 500; 760-1,263 in Pulsar"),
    (3, 250, "leader", 3, "<= 1,000; 6,038-6,214 in Pulsar"),
    (3, 1_300, "leader", 3, "<= 1,000; 6,516-8,480 in Pulsar"),
    (4, 1_000, "follower", 3, "<= 2,000"),
)


def run() -> Sequence[Figure]:
    """A cluster of its own for each shape; the killed broker comes back for the next round."""
    expiry_s = load_settings().membership.expiry_s
    return [figure for shape in SHAPES for figure in _shape(*shape, expiry_s)]


def _shape(members: int, each: int, role: str, rounds: int, aim: str, expiry_s: float) -> list[Figure]:
    names = [f"b{number}" for number in range(1, members + 1)]
    load, nets, middles, lost = Load(), [], [], 0
    with kafka() as bootstrap, brokers(bootstrap, CHANNEL, names) as running:
        bundles = own_bundles(running, members * each)
        for number in range(rounds):
            victim, answered_ms = lose_broker(running, bundles, each, role)
            lost = len(answered_ms)
            nets.append(max(answered_ms) - expiry_s * 1_000)
            middles.append(median(answered_ms) - expiry_s * 1_000)
            print(f"deaths: {role} of {members} with {lost}: {nets[-1]:.0f} ms net", file=sys.stderr)
            if number + 1 < rounds:
                running[victim] = BrokerProcess(victim, bootstrap, CHANNEL)
                running[victim].wait_ready()
    name = f"deaths.{role}-of-{members}.{each}-bundles"
    notes = {"bundles": lost, "expiry_s": expiry_s}
    return [
        Figure(f"{name}.p50", median(middles), "ms net", aim=aim, rounds=middles, load=str(load), notes=notes),
        Figure(f"{name}.last", median(nets), "ms net", aim=aim, rounds=nets, load=str(load), notes=notes),
    ]


def own_bundles(running: dict[str, BrokerProcess], bundles: int) -> list[str]:
    """Create a namespace of so many bundles and have each of them owned."""
    if running["b1"].ask("create", "deaths/all", bundles) != "Done":
        raise RuntimeError("the namespace was not created")
    bounds = namespace_bounds(bundles)
    names = [bundle_key("deaths/all", bounds[index], bounds[index + 1]) for index in range(bundles)]
    running["b1"].ask("owners", names)
    return names


def lose_broker(
    running: dict[str, BrokerProcess], bundles: Sequence[str], each: int, role: str
) -> tuple[str, list[float]]:
    """Give each broker so many bundles and kill one of this role; its name, and what `kill_and_wait` gives."""
    _even_out(running, bundles, each)
    victim = victim_of(running, role)
    return victim, kill_and_wait(running, victim, bundles)


def _even_out(running: dict[str, BrokerProcess], bundles: Sequence[str], each: int) -> None:
    """So many bundles for each broker."""
    owners = running["b1"].ask("owners", bundles)["owners"]
    held = {name: [bundle for bundle, owner in zip(bundles, owners, strict=True) if owner == name] for name in running}
    room = cycle([name for name in running for _ in range(max(0, each - len(held[name])))])
    moves = [(bundle, next(room)) for name in running for bundle in held[name][each:]]
    if moves and not running["b1"].ask("transfers", moves)["done"]:
        raise RuntimeError("the bundles could not be evened out")


def victim_of(running: dict[str, BrokerProcess], role: str) -> str:
    until_s = time.monotonic() + LONGEST_S
    while time.monotonic() < until_s:
        leading = {name: process.ask("leading") for name, process in running.items()}
        if sum(leading.values()) == 1:
            wanted = role == "leader"
            return next(name for name in reversed(leading) if leading[name] is wanted)
        time.sleep(LOOK_S)
    raise RuntimeError("nobody leads")


def kill_and_wait(running: dict[str, BrokerProcess], victim: str, bundles: Sequence[str]) -> list[float]:
    """Milliseconds after the kill at which a survivor named another owner, for each bundle lost."""
    asked = next(process for name, process in running.items() if name != victim)
    owners = asked.ask("owners", bundles)["owners"]
    waiting = dict.fromkeys(bundle for bundle, owner in zip(bundles, owners, strict=True) if owner == victim)
    killed_ns = time.monotonic_ns()
    running.pop(victim).kill()
    answered_ms: list[float] = []
    while waiting:
        facts = asked.ask("owners", list(waiting))
        now_ms = (facts["at_ns"] - killed_ns) / 1e6
        for bundle, owner in zip(list(waiting), facts["owners"], strict=True):
            if owner not in (None, victim):
                del waiting[bundle]
                answered_ms.append(now_ms)
        if now_ms > LONGEST_S * 1_000:
            raise RuntimeError(f"{len(waiting)} bundles of {victim} have no living owner after {LONGEST_S:g} s")
        time.sleep(LOOK_S)
    return answered_ms
