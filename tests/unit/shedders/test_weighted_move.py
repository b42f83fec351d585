"""The default strategy from outside: a worked example by hand, when it acts, what it moves, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from loaddata.model.broker_load import ResourceUsage, ResourceWeights
from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage
from shedders.balancer.active_strategies import choose
from shedders.balancer.settings import BalancerSettings
from shedders.decision.dry_run import run_cycles
from shedders.decision.placing import Pipeline
from shedders.model.cluster import Broker, Bundle, Cluster, Policies
from shedders.model.plan import BundleMove, Label, Plan, Reason
from shedders.model.strategy import CanTake, shedding_maker
from shedders.weighted_move.strategy import WeightedMove, WeightedMoveSettings
from tests.support.loads import MIB, NOW_MS, broker, bundle, by_bytes, cluster, left, moved

EXAMPLE = by_bytes({"a": 0.7, "b": 0.5, "c": 0.3}, {"a": [40, 20, 10], "b": [30, 20], "c": [20, 10]}, MIB)
ALIKE = [4.0] * 20
MINUTE_MS = 60_000


def shed(cluster: Cluster, memory: Mapping[str, Any] | None = None, can_take: CanTake | None = None, **changes) -> Plan:
    return WeightedMove(WeightedMoveSettings(**changes), can_take).plan(cluster, memory or {})


def later(cluster: Cluster, minutes: float = 1.0) -> Cluster:
    return replace(cluster, now_ms=cluster.now_ms + round(minutes * MINUTE_MS))


def three(high: float) -> Cluster:
    """One broker at this level, and two others that have as much less."""
    low = 0.75 - 0.25 * high
    return by_bytes({"a": 0.5 * high, "b": low, "c": low}, dict.fromkeys("abc", [1.0] * 50))


def carried_out(cluster: Cluster, moves: Sequence[BundleMove]) -> Mapping[str, Bundle]:
    bundles = dict(cluster.bundles)
    for move in moves:
        bundles[move.bundle] = replace(bundles[move.bundle], owner=move.destination)
    return bundles


def with_topics(cluster: Cluster, topics: int = 9) -> Cluster:
    stats = {name: replace(each.stats or BundleStats(), topics=topics) for name, each in cluster.bundles.items()}
    return replace(cluster, bundles={name: replace(cluster.bundles[name], stats=stats[name]) for name in stats})


# --- what moves --------------------------------------------------------------------------------------------------------------


def test_worked_example():
    """Three equal brokers use 70, 50 and 30 % of their CPU, by bundles of as many MB/s; the mean is 50.

    Levels are 1.4, 1.0 and 0.6; the cost is (1.4^4 + 1.0^4 + 0.6^4) / 12 = (3.8416 + 1 + 0.1296) / 12 = 0.4143.

    - 10 MB/s are 0.2 of a broker. From a to c: levels 1.2 and 0.8, and (3.8416 + 0.1296 - 2.0736 - 0.4096) / 12 = 0.1240 is
      saved, for 0.2 + 0.01: 0.590. To b: (3.8416 + 1 - 2.0736 - 2.0736) / 12 = 0.0579 for 0.21: 0.276.
    - 20 to c: 1.0 and 1.0, saved (3.9712 - 2) / 12 = 0.1643 for 0.41: 0.401. 40 would leave c where a is now.
    So 10 go to c first. Levels are 1.2, 1.0 and 0.8, and no bundle fits alone: 20 would only swap the levels of a and c.
    - An exchange does: 20 of a for 10 of c. Levels 1.0 and 1.0, saved (2.0736 + 0.4096 - 2) / 12 = 0.0403 for
      0.4 + 0.2 + 2 * 0.01 = 0.62: 0.065, more than the 0.04 that a move has to gain at least.
    All levels are 1, and the cost is 3 / 12 = 0.25.
    """
    plan = shed(EXAMPLE)
    assert moved(plan, MIB) == [("a", "c", 10.0), ("a", "c", 20.0), ("c", "a", 10.0)]
    assert [move.swap for move in plan.moves] == [False, False, True]
    assert (plan.stats["cost"], plan.stats["cost_after"]) == (pytest.approx(4.9712 / 12), pytest.approx(0.25))
    assert plan.scores == pytest.approx({"a": 0.7, "b": 0.5, "c": 0.3})
    assert (plan.label, plan.reason) == (Label.SUCCESS, Reason.OVERLOADED)
    assert len(moved(shed(EXAMPLE, least_gain_percent=6.4))) == 3
    assert moved(shed(EXAMPLE, least_gain_percent=6.6), MIB) == [("a", "c", 10.0)]
    assert moved(shed(EXAMPLE, least_gain_percent=58), MIB) == [("a", "c", 10.0)]
    assert not shed(EXAMPLE, least_gain_percent=60).moves


def test_the_budget_limits_moves_and_traffic():
    """An exchange is two moves of those that there may be. 10 of 150 MB/s are 7 %."""
    assert [len(shed(EXAMPLE, max_moves=most).moves) for most in (1, 2, 3)] == [1, 1, 3]
    plan = shed(EXAMPLE, max_moved_percent=6)
    assert moved(plan, MIB) == [("a", "c", 10.0)]
    assert left(plan)["a"] == "budget"


def full_apart(names: str, owners: str, kinds: Sequence[tuple[float, float]]) -> Cluster:
    """Brokers with bundles of so many MiB and messages a second: 100 MiB fill the network, 40,000 messages the CPU."""
    served, brokers = [], []
    for owner, (size, rate) in zip(owners, kinds, strict=True):
        served.append(bundle(len(served), owner, bytes_per_s=size * MIB, msg_per_s=rate))
    for name in names:
        mine = [kind for owner, kind in zip(owners, kinds, strict=True) if owner == name]
        size, rate = sum(kind[0] for kind in mine), sum(kind[1] for kind in mine)
        plain = broker(name, rate / 40_000, bytes_per_s=size * MIB, msg_per_s=rate)
        network = ResourceUsage(size * MIB * 8 / 1e3, 100 * MIB * 8 / 1e3)
        brokers.append(replace(plain, load=replace(plain.load, bandwidth_in=network)))
    return cluster(brokers, served)


LARGE, MANY = (20.0, 500.0), (0.5, 8_000.0)
"""Bundles that fill the network, and the CPU."""


def test_brokers_that_are_as_full_by_different_resources_exchange():
    """Until each has two of each kind; four moves are needed."""
    kinds, owners, memory, moves = [LARGE] * 4 + [MANY] * 4, "aaaabbbb", {}, []
    for minute in range(10):
        now = later(full_apart("ab", owners, kinds), minute)
        plan = shed(now, memory)
        owners = "".join(each.owner or "" for each in carried_out(now, plan.moves).values())
        memory, moves = plan.memory, [*moves, *plan.moves]
    assert [owners[:4].count("a"), owners[4:].count("a")] == [2, 2]
    assert [move.swap for move in moves] == [False, True] * 2
    assert not shed(full_apart("ab", "aabbaabb", kinds)).moves
    assert {move.destination for move in shed(now, can_take=only("a")).moves} <= {"a"}


def test_weights_of_policies_decide_what_counts():
    nothing = shed(EXAMPLE, cpu_weight=0.0)
    assert {each.reason for each in nothing.left} == {"no-limits"}
    chosen = choose(BalancerSettings(), common={"cpu_weight": 4.0, "direct_memory_weight": 1.0})
    for kind in ("shedding", "placement"):
        assert chosen.settings[kind].weights == ResourceWeights(1.0, 0.0, 0.0, 0.25, 0.25)


# --- when it acts ------------------------------------------------------------------------------------------------------------


def first_move(high: float, **changes) -> float:
    """The minutes until something moves, if nothing else changes; infinite after an hour."""
    seen, memory = three(high), {}
    for minute in range(60):
        plan = shed(seen, memory, **changes)
        if plan.moves:
            return minute
        memory, seen = plan.memory, later(seen)
    return float("inf")


@pytest.mark.parametrize("gap", [3.0, 5.0, 20.0])
def test_a_gap_below_gap_percent_is_tolerated(gap: float):
    assert first_move(1 + 0.9 * gap / 100, gap_percent=gap) == float("inf")
    assert first_move(1 + 3 * gap / 100, gap_percent=gap) < 60


def test_the_larger_a_gap_and_the_smaller_payback_min_the_sooner_it_acts():
    gaps, paybacks = (1.12, 1.2, 1.4, 1.8), (0, 2, 8, 30)
    waited = [[first_move(gap, payback_min=payback) for gap in gaps] for payback in paybacks]
    assert all(minutes == sorted(minutes, reverse=True) for minutes in waited)
    assert all(list(each) == sorted(each) for each in zip(*waited, strict=True))
    assert waited[0] == [0] * 4
    assert waited[3][0] > waited[3][3] > 0


def test_a_broker_that_flickers_about_the_mean_moves_nothing():
    memory = {}
    for minute in range(120):
        plan = shed(later(three(0.9 if minute % 2 else 1.1), minute), memory)
        assert not plan.moves, minute
        memory = plan.memory


def test_who_waits_is_named_and_who_is_even_is_not():
    assert left(shed(three(1.12))) == {"a": "hit-count"}
    even = shed(three(1.0))
    assert (even.label, left(even)) == (Label.SKIP, {})
    idle = shed(by_bytes({"a": 0.0, "b": 0.0}, {"a": [1], "b": []}))
    assert (idle.label, idle.reason) == (Label.SKIP, Reason.HIT_COUNT)


def test_an_idle_broker_is_filled_though_nobody_has_too_much():
    names = FIFTY[:20]
    plan = shed(by_bytes({**dict.fromkeys(names, 0.5), "z": 0.02}, dict.fromkeys(names, ALIKE), MIB), gap_percent=6)
    assert {move.destination for move in plan.moves} == {"z"}
    assert {move.reason for move in plan.moves} == {Reason.UNDERLOADED}


def test_an_idle_broker_is_filled_though_who_has_too_much_may_not_give_to_it():
    """a is full of what only it may serve; b has less than the mean of all four, and what its idle neighbours could have."""
    base = by_bytes({"a": 0.95, "b": 0.3, "c": 0.02, "d": 0.02}, {"b": [2] * 20}, MIB)
    own = [bundle(number, "a", bytes_per_s=2 * MIB, namespace="only/a") for number in range(100, 140)]
    zone = replace(base, bundles={**base.bundles, **{each.name: each for each in own}})
    plan = shed(zone, can_take=lambda each, _: "isolation: of a" if each.namespace == "only/a" else None)
    assert {(move.source, move.destination) for move in plan.moves} == {("b", "c"), ("b", "d")}


HOT, NEW = [f"h{number:03}" for number in range(100)], [f"n{number:03}" for number in range(100)]
FIFTY = [f"b{number:02}" for number in range(50)]


@pytest.mark.parametrize(
    ("before", "bound"),
    [
        (by_bytes({"a": 0.9, "b": 0.1}, {"a": [4.5] * 20, "b": [0.5] * 20}), 1.06),  # PIP-217: no swap afterwards
        (by_bytes({**dict.fromkeys("abcd", 0.4), "e": 0.69, "f": 0.7}, {name: [2] * 20 for name in "abcdef"}), 1.08),
        (by_bytes({**dict.fromkeys(FIFTY, 0.05), "z": 0.0}, {name: [0.5] * 10 for name in FIFTY}), 1.06),  # PIP-220
        (by_bytes({**dict.fromkeys(HOT, 0.8), **dict.fromkeys(NEW, 0.01)}, {name: [8.0] * 10 for name in HOT}), 1.02),
    ],
)
def test_what_other_policies_leave_uneven(before: Cluster, bound: float):
    """The last is of PIP-364: with a broker a round it takes 100 minutes."""
    settings = WeightedMoveSettings()
    pipeline = Pipeline(WeightedMove(settings))
    decisions = list(run_cycles(before, shedding_maker(WeightedMove, settings), {}, pipeline, cycles=6))
    uses = [each.load.cpu.usage for each in decisions[-1].after(60.0).brokers.values()]
    assert max(uses) * len(uses) / sum(uses) < bound
    assert decisions[0].moves
    assert not any(decision.moves for decision in decisions[2:])


# --- bundles that were moved -------------------------------------------------------------------------------------------------


def only(*names: str) -> CanTake:
    return lambda _bundle, name: None if name in names else "isolation: not there"


def wide(number: int, owner: str, size: float, half: str = "") -> Bundle:
    """A bundle that can be split, or one of its halves."""
    lower, upper = 0x1000 * number + 0x800 * (half == "upper"), 0x1000 * (number + 1) - 0x800 * (half == "lower")
    return replace(bundle(number, owner, bytes_per_s=size * MIB), name=f"t/n/0x{lower:08x}_0x{upper:08x}")


def serving(bundles: Sequence[Bundle], minutes: float, pins: Sequence[Bundle] = ()) -> Cluster:
    """Brokers a and b with these bundles; 100 MiB a second are all that each can do."""
    sizes = {name: sum(each.averages.short.msg_throughput for each in bundles if each.owner == name) for name in "ab"}
    brokers = [broker(name, size / (100 * MIB), bytes_per_s=size) for name, size in sizes.items()]
    return later(cluster(brokers, bundles, policies=Policies(pins={each.name: "b" for each in pins})), minutes)


def gone_and_back(minutes: int, *, halves: bool = False, pinned: bool = True) -> tuple[str, list[str]]:
    """A bundle goes from a to b, where a large one appears so many minutes later: its name, and what goes to a then.

    Args:
        halves: It has been split since.
        pinned: The other bundles of b stay there.
    """
    rules = {"grace_s": 1_200.0, "back_hours": 2.0, "payback_min": 0.0}
    rest = [wide(number, "a" if number < 6 else "b", 10) for number in range(10)]
    first = shed(serving(rest, 0), **rules)
    ((name, target),) = ((move.bundle, move.destination) for move in first.moves)
    assert target == "b"
    (gone,) = (number for number in range(10) if rest[number].name == name)
    rest.pop(gone)
    memory, plan = first.memory, first
    for minute in range(5, minutes, 5):
        plan = shed(serving([*rest, wide(gone, "b", 10)], minute), memory, **rules)
        memory = plan.memory
    rest.append(wide(10, "b", 20))
    parts = [wide(gone, "b", 5, half) for half in ("lower", "upper")] if halves else [wide(gone, "b", 10)]
    for minute in range(minutes, minutes + 4):
        if minute == minutes or not plan.moves:
            plan = shed(serving([*rest, *parts], minute, rest[5:] if pinned else ()), memory, **rules)
            memory = plan.memory
    return name, [move.bundle for move in plan.moves if move.destination == "a"]


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize(("minutes", "back"), [(15, False), (40, False), (180, True)])
def test_a_bundle_goes_back_only_after_hours(minutes: int, halves: bool, back: bool):
    """Within the grace never; then it is too dear for such a gap, and others go. Parts of it count as it does."""
    assert bool(gone_and_back(minutes, halves=halves)[1]) == back
    name, others = gone_and_back(minutes, pinned=False)
    assert others
    assert back or name not in others


def test_a_move_that_was_not_made_is_forgotten():
    first = shed(EXAMPLE)
    again = shed(later(EXAMPLE), first.memory)
    assert moved(again) == moved(first)
    # Given up later: on their way at one decision, and back at the next, where nothing has moved them.
    going = {move.bundle for move in first.moves}
    flying = {name: replace(each, in_flight=name in going) for name, each in EXAMPLE.bundles.items()}
    second = shed(replace(later(EXAMPLE), bundles=flying), first.memory)
    third = shed(later(EXAMPLE, 2), second.memory)
    fourth = shed(later(EXAMPLE, 3), third.memory)
    assert going & {move.bundle for move in [*third.moves, *fourth.moves]}


# --- who takes part ----------------------------------------------------------------------------------------------------------


def test_filters_and_policies_are_obeyed():
    assert {move.destination for move in shed(EXAMPLE, can_take=only("a", "b")).moves} <= {"a", "b"}
    closed = shed(EXAMPLE, can_take=lambda _bundle, _name: "closed")
    assert not closed.moves
    assert "closed" in next(each.why for each in closed.left if each.name == "a")
    ten = moved(shed(EXAMPLE, can_take=only("c")), MIB)
    assert ten == [("a", "c", 10.0)]  # without the exchange
    cordoned = shed(replace(EXAMPLE, policies=Policies(cordons={"c": "disk", "a": "disk"})))
    assert {(move.source, move.destination) for move in cordoned.moves} == {("a", "b")}
    assert moved(shed(replace(EXAMPLE, policies=Policies(cordons={"a": "disk"}))), MIB) == ten
    pins = {name: "a" for name, each in EXAMPLE.bundles.items() if each.stats.msg_throughput == 10 * MIB}
    pinned = shed(replace(EXAMPLE, policies=Policies(pins=pins)))
    assert moved(pinned, MIB) == [("a", "c", 20.0)]


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"accepting": False}, "not-accepting"), ({"load_lapsed": True}, "lapsed"), ({"load": None}, "no-load-data")],
)
def test_brokers_that_drain_or_report_nothing_are_left_alone(changes: Mapping[str, Any], word: str):
    names = "zyx"
    away = {name: replace(EXAMPLE.brokers["a"], name=name, **changes) for name in names}
    served = [bundle(50 + place, name, bytes_per_s=9 * MIB) for place, name in enumerate(names)]
    bundles = {**EXAMPLE.bundles, **{each.name: each for each in served}}
    plan = shed(replace(EXAMPLE, brokers={**EXAMPLE.brokers, **away}, bundles=bundles))
    assert [each.name for each in plan.left if each.reason == word] == sorted(names)
    assert moved(plan, MIB) == moved(shed(EXAMPLE), MIB)


OURS, THEIRS = ("p1", "p2", "p3"), tuple(f"q{number:02d}" for number in range(40))


def test_idle_brokers_that_may_take_nothing_do_not_stand_in_the_way():
    """p1 is busy and p3 idle; forty others are idler still, but closed to all that p1 has."""
    base = by_bytes({"p1": 0.9, "p2": 0.5, "p3": 0.3, **dict.fromkeys(THEIRS, 0.1)}, {"p1": ALIKE, "p2": ALIKE}, MIB)
    plan = shed(base, can_take=only(*OURS))
    assert plan.moves
    assert {move.destination for move in plan.moves} <= {"p2", "p3"}


def test_a_filter_is_asked_a_bounded_number_of_times():
    asked: list[str] = []
    usages = {f"b{number:03d}": 0.9 if number % 2 else 0.1 for number in range(200)}
    base = by_bytes(usages, {name: [1.0] * 30 for name, usage in usages.items() if usage > 0.5}, MIB)
    assert not shed(base, can_take=lambda _bundle, name: asked.append(name) or "no").moves
    assert 0 < len(asked) <= 20_000


def test_a_bundle_too_big_to_place_is_to_be_split_once():
    big = with_topics(by_bytes({"a": 0.9, "b": 0.1, "c": 0.1}, {"a": [80, 5, 5], "b": [10], "c": [10]}, MIB), 2)
    plan = shed(big)
    assert sorted(move.load / MIB for move in plan.moves) == [5.0, 5.0]
    assert [split.bundle for split in plan.splits] == [min(big.bundles)]
    assert not shed(later(big), plan.memory).splits
    assert not shed(with_topics(big, 1)).splits  # nothing to split
    assert not shed(big, can_take=only("a")).splits


ONE_SAMPLE = BundleAverages(MessageAverage(0.0, 0.0, 80 * MIB, 0.0, samples=1))


@pytest.mark.parametrize("changes", [{"estimated": True}, {"averages": ONE_SAMPLE}])
def test_bundles_with_uncertain_figures_are_not_split_and_do_not_come_back_in_exchange(changes: Mapping[str, Any]):
    """They have just been split, for example."""
    base = with_topics(by_bytes({"a": 0.9, "b": 0.1}, {"a": [80]}, MIB))
    young = {name: replace(each, **changes) for name, each in base.bundles.items()}
    assert not shed(replace(base, bundles=young)).splits
    bundles = {name: replace(each, **changes) if each.owner == "c" else each for name, each in EXAMPLE.bundles.items()}
    assert moved(shed(replace(EXAMPLE, bundles=bundles)), MIB) == [("a", "c", 10.0)]


# --- direct memory -----------------------------------------------------------------------------------------------------------

CACHED_S = {"late/n": 20.0, "quick/n": 0.5}
LIMIT_MIB = 1_000.0


def caches(rows: Mapping[str, Sequence[tuple[str, float]]], *, idle: float = 0.0) -> Cluster:
    """Brokers with bundles of these tenants and MiB a second, each cached as long as its tenant's consumers are late."""
    served, brokers = [], []
    for name, bundles in rows.items():
        for tenant, size in bundles:
            served.append(bundle(len(served), name, bytes_per_s=size * MIB, msg_per_s=size, namespace=tenant))
        cached = idle * LIMIT_MIB + sum(size * CACHED_S[tenant] for tenant, size in bundles)
        whole = sum(size for _, size in bundles)
        plain = broker(name, whole / 100, bytes_per_s=whole * MIB, msg_per_s=whole)
        memory = ResourceUsage(min(LIMIT_MIB, cached), LIMIT_MIB)
        brokers.append(replace(plain, load=replace(plain.load, direct_memory=memory)))
    return cluster(brokers, served)


def a_minute_after(now: Cluster, plan: Plan, *, follows: bool) -> Cluster:
    """The cluster with the plan's moves made; if memory does not follow, no broker's becomes less."""
    bundles = carried_out(now, plan.moves)
    rows: dict[str, list[tuple[str, float]]] = {name: [] for name in now.brokers}
    for each in bundles.values():
        rows[each.owner].append((each.namespace, each.stats.msg_throughput_in / MIB))
    brokers = dict(caches(rows).brokers)
    for name, load in () if follows else [(name, each.load) for name, each in brokers.items()]:
        used = max(load.direct_memory, now.brokers[name].load.direct_memory, key=lambda memory: memory.usage)
        brokers[name] = replace(brokers[name], load=replace(load, direct_memory=used))
    return replace(later(now), bundles=bundles, brokers=brokers)


LATE, QUICK = [("late/n", 4.0)], [("quick/n", 10.0)]
APART = caches({"a": LATE * 10 + QUICK, "b": LATE * 2 + QUICK * 4, "c": LATE + QUICK * 4, "d": LATE * 3 + QUICK * 3})
"""Traffic is 50, 48, 44 and 42 MiB a second; of direct memory they use 81, 18, 10 and 26 %."""


def test_a_broker_that_is_full_of_caches_gives_late_bundles_until_memory_is_even():
    now, memory, moves = APART, {}, []
    for _ in range(10):
        plan = shed(now, memory)
        moves += [(move.source, move.bundle.partition("/")[0]) for move in plan.moves if not move.swap]
        memory, now = plan.memory, a_minute_after(now, plan, follows=True)
    assert ("a", "late") in moves
    assert max(each.load.direct_memory.usage for each in now.brokers.values()) < 500
    assert len(moves) < 12


@pytest.mark.parametrize(
    ("now", "weight"),
    [
        (
            caches({"a": LATE * 4 + QUICK, "b": LATE * 2 + QUICK * 2, "c": LATE * 2 + QUICK * 2}),
            1.0,
        ),  # at most 33 % of a limit
        (APART, 0.0),
    ],
)
def test_where_direct_memory_is_not_scarce_or_has_no_weight_it_does_not_count(now: Cluster, weight: float):
    without = {
        name: replace(each, load=replace(each.load, direct_memory=ResourceUsage(0.0, LIMIT_MIB)))
        for name, each in now.brokers.items()
    }
    assert shed(now, direct_memory_weight=weight).moves == shed(replace(now, brokers=without)).moves


def test_direct_memory_that_is_the_same_however_much_is_sent_does_not_count():
    """A high-water mark: full everywhere, although a has four times the traffic."""
    plan = shed(caches({"a": QUICK * 8, "b": QUICK * 2, "c": QUICK * 2}, idle=0.9))
    assert {move.source for move in plan.moves} == {"a"}


def test_moves_stop_where_direct_memory_does_not_follow():
    now, memory, moves = APART, {}, []
    for minute in range(60):
        plan = shed(now, memory)
        moves += [(minute, move) for move in plan.moves]
        memory, now = plan.memory, a_minute_after(now, plan, follows=False)
    assert moves[-1][0] < 30
    assert left(plan)["a"] == "memory-does-not-follow"
    assert len({move.bundle for _, move in moves}) == len(moves), "nothing went back and forth"


# --- figures that are wrong, and brokers that are full -----------------------------------------------------------------------


@dataclass
class Lab:
    """A small cluster that carries out what is planned, a minute after the other: 8 brokers, each about half full.

    Attributes:
        demand: MiB a second that clients send to each bundle.
        figures: Brokers that report only so much of the truth; `able`: those that serve only so many MiB a second.
        rates: Messages a second of each bundle: 40,000 keep all of a broker's CPU busy, as 100 MiB a second do.
        jump: Long-term averages are by such figures as well, as after a restart that has changed them.
    """

    demand: list[float] = field(default_factory=lambda: [4.0 + number % 3 for number in range(80)])
    owners: list[str] = field(default_factory=lambda: [name for name in "abcdefgh" for _ in range(10)])
    figures: dict[str, float] = field(default_factory=dict)
    able: dict[str, float] = field(default_factory=dict)
    rates: list[float] = field(default_factory=lambda: [0.0] * 80)
    jump: bool = False
    memory: Mapping[str, Any] = field(default_factory=dict)
    minute: int = 0
    moves: list[BundleMove] = field(default_factory=list)
    words: list[dict[str, set[str]]] = field(default_factory=list)

    def asked(self, name: str) -> float:
        return sum(demand for demand, owner in zip(self.demand, self.owners, strict=True) if owner == name)

    def seen(self) -> Cluster:
        served, brokers = [], []
        for number, (demand, owner) in enumerate(zip(self.demand, self.owners, strict=True)):
            shown = demand * MIB * self.figures.get(owner, 1.0)
            size = shown * min(1.0, self.able.get(owner, 1_000.0) / self.asked(owner))
            rate = self.rates[number] * size / (demand * MIB)
            usual = (4.0 + number % 3) * MIB * (self.figures.get(owner, 1.0) if self.jump else 1.0)
            averages = [MessageAverage(rate, 0.0, each, 0.0, samples=1_000) for each in (size, usual)]
            plain = bundle(number, owner, bytes_per_s=size, msg_per_s=rate, namespace=f"t/n{number % 4}")
            served.append(replace(plain, averages=BundleAverages(*averages)))
        for name in "abcdefgh":
            mine = [each.stats for each in served if each.owner == name]
            use, rate = sum(each.msg_throughput for each in mine), sum(each.msg_rate for each in mine)
            plain = broker(name, use / (100 * MIB) + rate / 40_000, bytes_per_s=use, msg_per_s=rate)
            network = ResourceUsage(use * 8 / 1e3, 200 * MIB * 8 / 1e3)
            brokers.append(replace(plain, load=replace(plain.load, bandwidth_in=network)))
        return replace(cluster(brokers, served), now_ms=NOW_MS + self.minute * MINUTE_MS)

    def run(self, minutes: int) -> Lab:
        for _ in range(minutes):
            now = self.seen()
            plan = shed(now, self.memory)
            self.owners = [each.owner for each in carried_out(now, plan.moves).values()]
            self.memory, self.minute = plan.memory, self.minute + 1
            self.moves += plan.moves
            doubts = {"doubted", "corrected", "slow"}
            rows = [(each.name, each.reason) for each in plan.left if each.reason in doubts]
            self.words.append({name: {word for other, word in rows if other == name} for name, _ in rows})
            assert not [move for move in plan.moves if (move.destination, "doubted") in rows], "a suspect gets nothing"
        return self


def test_figures_that_jump_together_with_averages_that_cannot_are_corrected_at_once():
    lab = Lab(jump=True).run(5)
    lab.figures = {"a": 1 / 3}
    lab.run(10)
    assert lab.words[5:] == [{"a": {"corrected"}}] * 10
    assert not lab.moves


@pytest.mark.parametrize("part", [0.4, 0.6, 1.5])
def test_figures_that_are_wrong_are_corrected_whatever_averages_say(part: float):
    """If they are too small, the broker may as well be full: its usage has to follow what is taken from it."""
    lab = Lab().run(5)
    lab.figures = {"a": part}
    lab.run(40)
    assert ({"a": {"doubted"}} in lab.words) == (part < 1)
    assert lab.words[-1] == {"a": {"corrected"}}
    asked = [lab.asked(name) for name in "abcdefgh"]
    assert max(asked) < 1.15 * sum(asked) / 8 < 1.3 * min(asked)
    lab.figures = {}
    assert not lab.run(40).words[-1]


def test_a_broker_whose_usage_does_not_fall_is_full_and_gives_load():
    lab = Lab().run(5)
    lab.able = {"a": 30.0}
    lab.run(25)
    assert {"a": {"doubted"}} in lab.words
    assert lab.words[-1] == {"a": {"slow"}}
    assert not [move for move in lab.moves if move.destination == "a"]
    assert lab.asked("a") < 0.75 * min(map(lab.asked, "bcdefgh"))


def test_a_broker_whose_network_is_full_is_full_though_its_cpu_is_busier_and_falls():
    """Most of its CPU is spent on small messages, which are taken first."""
    lab = Lab(rates=[2_500.0 if number % 2 else 5.0 for number in range(80)])
    lab.demand = [0.05 if number % 2 else 8.0 for number in range(80)]
    lab.run(5)
    lab.able = {"a": 20.0}
    lab.run(25)
    assert {"a": {"doubted"}} in lab.words
    assert lab.words[-1] == {"a": {"slow"}}
    assert {"a": {"corrected"}} not in lab.words


def test_a_slow_broker_that_was_filled_and_recovers_was_full():
    """Its first bundles have never been seen elsewhere: they grow when it is relieved, which is no exaggeration."""
    lab = Lab(able={"a": 20.0}, owners=[name for name in "bcdefgh" for _ in range(11)] + ["a"] * 3)
    lab.run(40)
    assert {"a": {"doubted"}} in lab.words
    assert lab.words[-1] == {"a": {"slow"}}
    assert {"a": {"corrected"}} not in lab.words


@pytest.mark.parametrize("grown", [range(80), range(0, 80, 4)])
@pytest.mark.parametrize("times", [0.4, 1.8])
def test_load_that_changes_everywhere_or_of_a_tenant_says_nothing_about_brokers(grown: range, times: float):
    lab = Lab().run(5)
    lab.demand = [demand * times if number in grown else demand for number, demand in enumerate(lab.demand)]
    lab.run(10)
    assert not any(lab.words)


# --- placement ---------------------------------------------------------------------------------------------------------------


def place(brokers: Sequence[Broker], bundles: Sequence[Bundle], booked: Mapping[str, Sequence[str]] | None = None):
    """Where the last of these bundles goes."""
    base = cluster(brokers, bundles)
    return WeightedMove(WeightedMoveSettings()).place(base, bundles[-1], base.broker_names, booked or {}, {})


def test_placement_goes_by_what_is_left_afterwards():
    """The smaller machine is idler now, but with 60 MiB/s of 100 it would be fuller: 0.1 + 0.6 against 0.2 + 0.3."""
    large = broker("b", 0.2, bytes_per_s=40 * MIB)
    large = replace(large, load=replace(large.load, cpu=ResourceUsage(40, 200)))
    placed = place([broker("a", 0.1, bytes_per_s=10 * MIB), large], [bundle(1, None, bytes_per_s=60 * MIB)])
    assert placed.broker == "b"
    assert placed.scores == pytest.approx({"a": 0.1, "b": 0.2})


def test_placement_counts_what_is_on_its_way():
    brokers = [broker("a", 0.2, bytes_per_s=20 * MIB), broker("b", 0.3, bytes_per_s=30 * MIB)]
    bundles = [bundle(number, None, bytes_per_s=10 * MIB) for number in range(4)]
    assert place(brokers, bundles).broker == "a"
    placed = place(brokers, bundles, {"a": [bundles[1].name, bundles[2].name]})
    assert placed.broker == "b"
    assert placed.scores["a"] == pytest.approx(0.4)
