"""weighted-move under attack: filters that refuse, moves that fail, reports that are next to nothing, the words of its moves."""

from collections import Counter
from dataclasses import replace
from math import isfinite

import pytest

from loaddata.model.broker_load import BrokerLoad, ResourceUsage, ResourceWeights
from shedders.balancer.active_strategies import choose
from shedders.balancer.settings import BalancerSettings
from shedders.model.cluster import Broker, Bundle, Cluster, Policies, RecentMoves
from shedders.model.plan import Plan, Reason
from shedders.weighted_move.loads import BrokerLevel, BundleDemand
from shedders.weighted_move.steps import StepRules, Steps
from shedders.weighted_move.strategy import WeightedMove, WeightedMoveSettings
from tests.support.loads import MIB, NOW_MS, broker, bundle, by_bytes, cluster, moved

ALIKE = [4.0] * 20
OURS, THEIRS = ("p1", "p2", "p3"), tuple(f"q{number:02d}" for number in range(40))


def shed(cluster: Cluster, memory=None, *, can_take=None, **settings) -> Plan:
    return WeightedMove(WeightedMoveSettings(**settings), can_take).plan(cluster, memory or {})


def isolated(bundle: Bundle, name: str) -> str | None:
    """Brokers p are for namespace t/n, which may use no others."""
    return "isolation: not for t/n" if name.startswith("q") else None


def test_idle_brokers_that_may_take_nothing_do_not_stand_in_the_way():
    """p1 is busy and p3 idle; forty others are idler still, but closed to all that p1 has."""
    cluster = by_bytes({"p1": 0.9, "p2": 0.5, "p3": 0.3, **dict.fromkeys(THEIRS, 0.1)}, {"p1": ALIKE, "p2": ALIKE}, MIB)
    plan = shed(cluster, can_take=isolated)
    assert plan.moves
    assert {move.destination for move in plan.moves} <= {"p2", "p3"}


def test_nothing_is_split_because_filters_refuse_it():
    """Its parts would be refused as well."""
    cluster = by_bytes({"p1": 0.9, "p2": 0.88, **dict.fromkeys(THEIRS, 0.1)}, {"p1": [40, 40], "p2": [40, 40]}, MIB)
    bundles = {
        name: replace(bundle, stats=None if bundle.stats is None else replace(bundle.stats, topics=9))
        for name, bundle in cluster.bundles.items()
    }
    changed = replace(cluster, bundles=bundles)
    plan = shed(changed, can_take=isolated)
    assert (list(plan.moves), list(plan.splits)) == ([], [])
    alone = by_bytes({"p1": 0.9, "p2": 0.1}, {"p1": [80]}, MIB)
    alone = replace(
        alone,
        bundles={
            name: replace(bundle, stats=replace(bundle.stats, topics=9)) for name, bundle in alone.bundles.items()
        },
    )
    assert len(shed(alone).splits) == 1
    assert not shed(alone, can_take=lambda _bundle, _name: "no").splits


def test_a_filter_is_asked_a_bounded_number_of_times():
    asked = []

    def never(bundle: Bundle, name: str) -> str:
        asked.append((bundle.name, name))
        return "no"

    usages = {f"b{number:03d}": 0.9 if number % 2 else 0.1 for number in range(200)}
    cluster = by_bytes(usages, {name: [1.0] * 30 for name, usage in usages.items() if usage > 0.5}, MIB)
    assert not shed(cluster, can_take=never).moves
    assert len(asked) <= 20_000


def test_what_fills_an_idle_broker_is_not_said_to_relieve_a_busy_one():
    """e joins; the others have nothing too much by the gap that is set, and it is filled up to the average."""
    each = dict.fromkeys("abcd", 0.5)
    cluster = by_bytes({**each, "e": 0.02}, dict.fromkeys(each, ALIKE), MIB)
    plan = shed(cluster, gap_percent=40.0, urgent_percent=40.0)
    assert plan.moves
    assert {move.destination for move in plan.moves} == {"e"}
    assert {move.reason for move in plan.moves} == {Reason.UNDERLOADED}


def test_an_exchange_is_two_moves_of_the_most_there_may_be():
    cluster = by_bytes({"a": 0.8, "b": 0.4, "c": 0.3}, {"a": [40, 25, 10, 5], "b": [20, 20], "c": [20, 10]}, MIB)
    assert [len(shed(cluster, max_moves=most).moves) for most in (1, 2, 3, 4)] == [1, 2, 2, 4]


def side(name: str, level: float, *, over: bool, aim: float = 1.02) -> BrokerLevel:
    return BrokerLevel(name, (level, 0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0), over=over, aim=aim)


def test_one_that_gives_more_than_it_had_to_does_not_stand_for_another():
    """a is at its aim after one bundle and then fills d, which must not end the relief of b and c."""
    sides = [
        side("a", 1.62, over=True, aim=1.61),
        side("b", 1.3, over=True),
        side("c", 1.25, over=True),
        side("d", 0.6, over=False),
        side("e", 0.6, over=False),
    ]
    sides[3].under = True
    cargo = {
        side.name: [
            BundleDemand(0.02, bundle(100 * place + number, side.name), (0.02, 0.0, 0.0, 0.0), 0.02, 1.0)
            for number in range(40)
        ]
        for place, side in enumerate(sides)
    }
    steps = Steps(
        sides, StepRules(0.02, 0.01, 0.01, 100.0, 1_000), lambda item: cargo[item.name], lambda _bundle, _side: None
    )
    steps.run()
    assert all(
        side.level <= 1.02 + 1e-9 or side.name in steps.stuck for side in sides if side.over and side.name != "a"
    )


def test_of_equal_moves_the_one_that_spreads_a_namespace_goes_first():
    """a has ten bundles of t/x and two of t/y, b none of t/x: after each step as they are then."""
    sides = [side("a", 1.3, over=True), side("b", 0.7, over=False)]
    spaces = ["t/x"] * 10 + ["t/y"] * 2
    demands = [
        BundleDemand(0.02, bundle(100 - number, "a", namespace=name), (0.02, 0.0, 0.0, 0.0), 0.02, 1.0)
        for number, name in enumerate(spaces)
    ]
    served = {"a": Counter(spaces), "b": Counter({"t/y": 4})}
    rules = StepRules(0.02, 0.08, 0.01, 9.0, 6)
    steps = Steps(
        sides,
        rules,
        lambda item: demands if item.name == "a" else [],
        lambda _bundle, _side: None,
        count=served.__getitem__,
    )
    assert [step.cargo.bundle.namespace for step in steps.run()] == ["t/x"] * 6
    assert served == {"a": Counter({"t/x": 4, "t/y": 2}), "b": Counter({"t/x": 6, "t/y": 4})}


def test_a_probe_takes_no_more_than_it_needs_though_a_broker_is_idle():
    for sizes, gone in (([0.02] * 40, 0.3), ([0.7, 0.7], 0.0)):
        sides = [side("a", 1.5, over=True, aim=1.21), side("n", 0.0, over=False)]
        sides[0].probed, sides[0].urgent, sides[1].under = True, True, True
        demands = [
            BundleDemand(size, bundle(number, "a"), (size, 0.0, 0.0, 0.0), size, size)
            for number, size in enumerate(sizes)
        ]
        steps = Steps(
            sides,
            StepRules(0.0, 0.01, 0.01, 9.0, 100),
            lambda item, demands=demands: demands if item.name == "a" else [],
            lambda _bundle, _side: None,
        )
        steps.run()
        assert 1.5 - sides[0].level == pytest.approx(gone, abs=0.03)


def test_a_move_that_was_given_up_later_may_be_tried_again():
    """The bundles were on their way at one decision, and back at the next: nothing has moved them."""
    cluster = by_bytes({"a": 0.9, "b": 0.1}, {"a": ALIKE}, MIB)
    first = shed(cluster)
    assert first.moves
    going = {move.bundle for move in first.moves}
    flying = {name: replace(bundle, in_flight=name in going) for name, bundle in cluster.bundles.items()}
    coming = {"a": broker("a", 0.5, bytes_per_s=40 * MIB), "b": broker("b", 0.5, bytes_per_s=40 * MIB)}  # as booked
    second = shed(replace(cluster, brokers=coming, bundles=flying, now_ms=NOW_MS + 60_000), first.memory)
    third = shed(replace(cluster, now_ms=NOW_MS + 120_000), second.memory)
    fourth = shed(replace(cluster, now_ms=NOW_MS + 180_000), third.memory)
    assert going & {move.bundle for move in [*third.moves, *fourth.moves]}
    # One that somebody has brought back was moved all the same.
    back = RecentMoves(dict.fromkeys(going, 30.0), {})
    third = shed(replace(cluster, recent=back, now_ms=NOW_MS + 120_000), second.memory)
    assert going <= set(third.memory["came"])
    assert not going & {move.bundle for move in third.moves}


def test_a_cluster_with_next_to_no_traffic_is_placed_by_numbers():
    """What a byte costs is bounded: an endless cost of no traffic is no number, and nobody would be the best."""
    base = cluster(
        [broker(name, 0.5, bytes_per_s=1e-320, msg_per_s=1e-320) for name in "ab"],
        [bundle(1, "a", bytes_per_s=MIB), bundle(2, "b")],
    )
    placer = WeightedMove(WeightedMoveSettings())
    for item in (bundle(3, None), bundle(4, None, bytes_per_s=1e30, msg_per_s=1e30)):
        placed = placer.place(base, item, ["a", "b"], {"a": [bundle(1, "a").name]}, {})
        assert placed.broker in ("a", "b")
        assert all(isfinite(score) for score in placed.scores.values())


def test_words_of_moves_are_true():
    """Levels told are those that the moves so far leave, by the strategy's own reckoning."""
    cluster = by_bytes({"a": 0.8, "b": 0.4, "c": 0.3}, {"a": [40, 25, 10, 5], "b": [20, 20], "c": [20, 10]}, MIB)
    plan = shed(cluster)
    use = {"a": 1.6, "b": 0.8, "c": 0.6}
    for move, load in zip(plan.moves, [item[2] for item in moved(plan, MIB)], strict=True):
        use[move.source] -= load / 50
        use[move.destination or ""] += load / 50
        if not move.swap and load < 25:
            assert f"to {use[move.source] * 100:.0f} % of the average" in move.why
            assert f"to {use[move.destination or ''] * 100:.0f} %; gain per load moved" in move.why
    assert use == {"a": 1.2, "b": 0.9, "c": 0.9} or max(use.values()) < 1.2 + 1e-9


def test_nobody_is_doubted_for_what_went_elsewhere():
    """In unload mode the placement chooses: what c was to get went to b and d, so nothing of it has to show on c."""
    usages = {"a": 0.9, "b": 0.3, "c": 0.1, "d": 0.3}
    cluster = by_bytes(usages, {"a": ALIKE, "b": [4.0] * 6, "d": [4.0] * 6}, MIB)
    first = shed(cluster)
    goes = {move.bundle: move.destination for move in first.moves}
    for_c = {move.bundle for move in first.moves if move.destination == "c"}
    assert for_c
    after = replace(
        cluster,
        brokers={name: broker(name, usage) for name, usage in {"a": 0.4, "b": 0.55, "c": 0.1, "d": 0.55}.items()},
        bundles={
            name: replace(bundle, owner="b" if name in for_c else goes.get(name, bundle.owner))
            for name, bundle in cluster.bundles.items()
        },
        now_ms=NOW_MS + 60_000,
    )
    assert first.memory["doubts"]["sent"]["c"]
    plan = shed(after, first.memory)
    assert "doubts" not in plan.memory or "c" not in plan.memory["doubts"].get("kinds", {})
    there = {name: replace(bundle, owner=goes.get(name, bundle.owner)) for name, bundle in cluster.bundles.items()}
    plan = shed(replace(after, bundles=there), first.memory)
    assert plan.memory["doubts"]["kinds"]["c"] == "unmoved"


def networked(usage: float, bandwidth: float, name: str) -> Broker:
    result = broker(name, usage, bytes_per_s=40 * MIB)
    return replace(result, load=replace(result.load or BrokerLoad(), bandwidth_in=ResourceUsage(bandwidth, 100.0)))


def test_weights_that_operators_lay_down_decide_what_counts():
    """CPU says that a has too much, the network that b has."""
    bundles = [bundle(number, "ab"[number // 10], bytes_per_s=4 * MIB, msg_per_s=100) for number in range(20)]
    base = cluster([networked(0.8, 10.0, "a"), networked(0.2, 40.0, "b")], bundles)
    assert {move.source for move in shed(base).moves} == {"a"}
    assert {move.source for move in shed(base, cpu_weight=0.0).moves} == {"b"}
    assert {move.source for move in shed(base, cpu_weight=0.1).moves} == {"b"}
    assert shed(base, cpu_weight=7.0, bandwidth_in_weight=7.0, bandwidth_out_weight=7.0) == shed(base)
    nothing = shed(base, cpu_weight=0.0, bandwidth_in_weight=0.0, bandwidth_out_weight=0.0)
    assert {bundle.reason for bundle in nothing.left} == {"no-limits"}
    for weight, best in ((1.0, "b"), (0.0, "a")):
        placer = WeightedMove(WeightedMoveSettings(cpu_weight=weight))
        assert placer.place(base, bundle(30, None), ["a", "b"], {}, {}).broker == best


def test_a_policy_about_weights_reaches_the_default():
    chosen = choose(BalancerSettings(), common={"cpu_weight": 4.0, "direct_memory_weight": 1.0})
    for kind in ("shedding", "placement"):
        settings = chosen.settings[kind]
        assert isinstance(settings, WeightedMoveSettings)
        assert settings.weights == ResourceWeights(1.0, 0.0, 0.0, 0.25, 0.25)


def test_nothing_comes_back_to_a_broker_that_takes_nothing():
    """Two of three moves are an exchange; a cordoned broker gives, and gets nothing for it."""
    cluster = by_bytes({"a": 0.8, "b": 0.4, "c": 0.3}, {"a": [40, 25, 10, 5], "b": [20, 20], "c": [20, 10]}, MIB)
    assert any(move.destination == "a" for move in shed(cluster).moves)
    plan = shed(replace(cluster, policies=Policies(cordons={"a": ""})))
    assert plan.moves
    assert all(move.destination != "a" for move in plan.moves)


def test_a_bundle_is_split_although_all_are_above_an_average_that_has_not_risen_yet():
    """Those who may take parts of it stand lower than its broker: that is what counts, not the average."""
    sides = [side("a", 1.6, over=True), side("b", 1.1, over=False), side("c", 1.58, over=False)]
    steps = Steps(sides, StepRules(0.02, 0.08, 0.01, 9.0, 9), lambda _side: [], lambda _bundle, _side: None)
    assert steps.has_room(sides[0], bundle(1, "a"), 0.05)
    shut = Steps(
        sides,
        StepRules(0.02, 0.08, 0.01, 9.0, 9),
        lambda _side: [],
        lambda _bundle, item: "no" if item.name == "b" else None,
    )
    assert not shut.has_room(sides[0], bundle(1, "a"), 0.05)  # c is level with it


def test_an_idle_broker_is_filled_by_one_that_is_only_to_be_relieved():
    """The best step from a takes far too much for its relief, and n may not have it; small bundles are for n."""
    sides = [side("a", 1.4, over=True), side("c", 0.6, over=False), side("n", 0.0, over=False)]
    sides[0].aim, sides[0].relieved, sides[2].under = 1.33, True, True
    shapes = [(0.2, "t/large")] * 4 + [(0.0018, "t/small")] * 300
    demands = sorted(
        (
            BundleDemand(size, bundle(number, "a", namespace=namespace), (size, 0.0, 0.0, 0.0), size, size)
            for number, (size, namespace) in enumerate(shapes)
        ),
        key=lambda demand: (demand.size, demand.bundle.name),
    )
    steps = Steps(
        sides,
        StepRules(0.02, 0.08, 0.01, 10.0, 1_000),
        lambda item: demands if item.name == "a" else [],
        lambda bundle, item: "policy" if item.name == "n" and bundle.namespace == "t/large" else None,
    )
    steps.run()
    assert sides[0].level < 1.1
    assert sides[2].came
