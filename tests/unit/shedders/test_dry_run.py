"""Dry runs: the same as on the cluster itself, bit for bit; memory is carried on; no move that the filters refuse."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from shedders.balancer.active_strategies import choose as in_force_choose
from shedders.balancer.lead import Balance
from shedders.balancer.settings import BalancerSettings
from shedders.decision.booked_moves import Booked, BookedMoves, BudgetSettings, DecisionRules
from shedders.decision.dry_run import Decision, carried_out, decide, place_all, run_cycles, run_splits, split_named
from shedders.decision.placing import Pipeline
from shedders.errors import StrategyFailedError
from shedders.filters.rules import FilterSettings
from shedders.model.cluster import Bundle, Cluster, IsolationPolicy, Policies
from shedders.model.moved_cluster import after_moves, after_splits
from shedders.model.plan import BundleMove, Label, Placed, Plan, Reason, SplitPlan
from shedders.model.strategy import SHEDDING, SheddingMaker, StrategySettings, make
from shedders.snapshots.cluster import booked_of, cluster_of, rules_of, snapshot_of, with_cluster
from shedders.snapshots.file import read_snapshot, write_snapshot
from shedders.snapshots.model import BalancingPart, BudgetPart, Snapshot
from shedders.snapshots.plan_document import cycle_part, split_cycle
from shedders.snapshots.selection import choose, pipeline_of, remembered_by, shedding_of
from shedders.split.algorithms import SplitRange
from shedders.split.triggers import SplitSettings
from tests.support.snapshots import Shape, cluster
from tests.support.strategies import declared

UNEVEN = Shape(brokers=6, bundles_each=12, hot=2, idle=1, topics_each=3)
SHEDDERS = sorted(declared()[SHEDDING])
CYCLES = 5


class Fixed:
    """Plans what it is told to; for tests."""

    name: ClassVar[str] = "fixed"
    Settings: ClassVar[type[StrategySettings]] = StrategySettings

    def __init__(self, moves: Sequence[BundleMove], memory: Mapping[str, Any] | None = None) -> None:
        self.moves = moves
        self.memory = memory or {}

    def plan(self, cluster: Cluster, memory: Mapping[str, Any]) -> Plan:
        label = Label.SUCCESS if self.moves else Label.SKIP
        return Plan(
            self.name, label, Reason.OVERLOADED, "told", self.moves, memory={**self.memory, "before": dict(memory)}
        )


def fixed(*moves: BundleMove, memory: Mapping[str, Any] | None = None) -> SheddingMaker:
    return lambda _can_take: Fixed(moves, memory)


def pipeline(**filters: Any) -> Pipeline:
    return Pipeline(make("placement", "least-resource-usage"), FilterSettings(**filters))


def move(bundle: Bundle, destination: str | None, **fields: Any) -> BundleMove:
    return BundleMove(bundle.name, bundle.owner or "", destination, Reason.OVERLOADED, 1.0, "for a test", **fields)


def decisions(snapshot: Snapshot, strategy: str, cycles: int = CYCLES) -> list[Decision]:
    chosen = choose(snapshot, "shedding", name=strategy)
    cluster = cluster_of(snapshot)
    memory, booked = remembered_by(snapshot, "shedding", strategy), booked_of(snapshot, cluster)
    placing, rules = pipeline_of(snapshot)[1], rules_of(snapshot)
    return list(run_cycles(cluster, shedding_of(chosen), memory, placing, booked=booked, rules=rules, cycles=cycles))


def describe(decisions: Sequence[Decision], first: int = 1) -> list[dict[str, Any]]:
    return [cycle_part(number, decision).model_dump() for number, decision in enumerate(decisions, first)]


# --- bit for bit ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", SHEDDERS)
def test_a_dry_run_is_what_would_be_done(strategy: str, tmp_path: Path) -> None:
    """On the cluster itself, cycle by cycle as the balancer goes, and on the file that was taken of it."""
    live = cluster(7, UNEVEN)
    booked = BookedMoves(expire_s=60, keep_s=600)
    booked.book(live, [move(live.bundles_of[live.broker_names[0]][3], live.broker_names[-1])], 0.0)
    write_snapshot(snapshot_of(live, booked=booked.moves), tmp_path / "taken.json")
    dry = decisions(read_snapshot(tmp_path / "taken.json"), strategy)

    chosen = choose(snapshot_of(live), "shedding", name=strategy)
    pipeline_ = pipeline_of(snapshot_of(live))[1]
    memory: Mapping[str, Any] = {}
    done: list[Decision] = []
    on_their_way: Sequence[Booked] = booked.moves
    for _ in range(CYCLES):
        decision = decide(live, shedding_of(chosen), memory, pipeline_, booked=on_their_way)
        done.append(decision)
        memory, live, on_their_way = decision.memory, decision.after(60.0), ()
    assert describe(dry) == describe(done)
    assert [item.moves for item in dry] == [item.moves for item in done]


@pytest.mark.parametrize("unload_mode", ["transfer", "unload"])
@pytest.mark.parametrize("strategy", SHEDDERS)
def test_a_dry_run_makes_the_moves_that_the_balancer_books(strategy: str, unload_mode: str) -> None:
    """What the budget holds back and what the mode of unloading forbids stays in both."""
    live = cluster(7, UNEVEN)
    booked = BookedMoves(expire_s=60, keep_s=600)
    booked.book(live, [move(live.bundles_of[live.broker_names[0]][3], live.broker_names[-1])], 0.0)
    part = BalancingPart(budget=BudgetPart(moves=3, load_percent=5.0), unload_mode=unload_mode)
    snapshot = snapshot_of(live, booked=booked.moves).model_copy(update={"balancing": part})
    memory = {strategy: {"hits": 9}} if strategy == "transfer" else {}
    snapshot = snapshot.model_copy(update={"memory": snapshot.memory.model_copy(update={"shedding": memory})})
    (dry,) = decisions(snapshot, strategy, 1)

    balance = Balance(booked, memory)
    chosen = in_force_choose(BalancerSettings(shedding=strategy))
    seen, _ = balance.look(live, 0.0)
    decision = balance.question(seen, chosen)()
    rules = DecisionRules(BudgetSettings(moves=3, load_percent=5.0), unload_mode == "unload")
    admitted, moves = balance.commit(seen, chosen, decision, rules, 0.0)
    meant = [replace(move, destination=None) if rules.only_unload else move for move in dry.moves]
    assert meant == list(moves)
    refused = {check.move.bundle: check.refused for check in dry.checked if check.refused is not None}
    assert {bundle.name: f"{bundle.reason}: {bundle.why}" for bundle in admitted.left}.items() <= refused.items()


def test_the_budget_holds_back_in_a_dry_run() -> None:
    live = cluster(7, UNEVEN)
    part = BalancingPart(budget=BudgetPart(moves=1, load_percent=100.0))
    free = decisions(snapshot_of(live), "threshold", 1)[0]
    (held,) = decisions(snapshot_of(live).model_copy(update={"balancing": part}), "threshold", 1)
    assert len(free.moves) > 1 == len(held.moves)
    late = [check for check in held.checked if check.refused is not None]
    assert all((check.refused or "").startswith("budget: ") and check.move.destination is None for check in late)
    assert len(late) == len(free.moves) - 1
    # What is held back has not moved in the next cycle.
    after = held.after(60.0)
    assert {after.bundles[check.move.bundle].owner for check in late} == {check.move.source for check in late}


def test_while_nothing_is_shed_nothing_moves_and_nothing_is_remembered() -> None:
    part = BalancingPart(shedding_off="bob said so")
    snapshot = snapshot_of(cluster(7, UNEVEN)).model_copy(update={"balancing": part})
    result = decisions(snapshot, "threshold", 2)
    assert result[0].checked
    assert {check.refused for check in result[0].checked} == {"shedding-off: bob said so"}
    assert [dict(item.memory) for item in result] == [{}, {}]


def test_in_unload_mode_nothing_is_exchanged() -> None:
    base = cluster(7, UNEVEN)
    first, second = base.broker_names[:2]
    heavy, light = base.bundles_of[first][0], base.bundles_of[second][0]
    plan = fixed(move(heavy, second), move(light, first, swap=True), move(base.bundles_of[first][1], second))
    decision = decide(base, plan, {}, pipeline())
    if decision.moves:
        decided = carried_out(decision, DecisionRules(only_unload=True))
        assert [(check.refused or "").partition(":")[0] for check in decided.checked] == ["unload-mode"] * 3


@pytest.mark.parametrize("strategy", SHEDDERS)
def test_a_snapshot_between_two_cycles_changes_nothing(strategy: str, tmp_path: Path) -> None:
    """Several cycles at once, and each of them on the file that the last one left: as after a change of the leader."""
    snapshot = snapshot_of(cluster(3, UNEVEN))
    at_once = describe(decisions(snapshot, strategy))
    one_by_one = []
    for number in range(1, CYCLES + 1):
        (decision,) = decisions(snapshot, strategy, cycles=1)
        one_by_one += describe([decision], number)
        memory = snapshot.memory.model_copy(update={"shedding": {strategy: dict(decision.memory)}})
        snapshot = with_cluster(snapshot.model_copy(update={"memory": memory}), decision.after(60.0))
        write_snapshot(snapshot, tmp_path / "next.json")
        snapshot = read_snapshot(tmp_path / "next.json")
    assert one_by_one == at_once


@pytest.mark.parametrize("strategy", SHEDDERS)
def test_the_clusters_here_make_every_strategy_move(strategy: str) -> None:
    assert any(decision.moves for decision in decisions(snapshot_of(cluster(7, UNEVEN)), strategy, cycles=12))


# --- what is moved ----------------------------------------------------------------------------------------------------


def test_what_the_strategy_leaves_open_is_placed() -> None:
    base = cluster(1, UNEVEN)
    first, second = base.bundles_of[base.broker_names[0]][:2]
    decision = decide(base, fixed(move(first, None), move(second, None)), {}, pipeline())
    assert [check.planned for check in decision.checked] == [None, None]
    assert [placement.bundle for placement in decision.placed] == [first.name, second.name]
    assert [move.destination for move in decision.moves] == [placement.broker for placement in decision.placed]
    assert all(move.destination not in (None, move.source) for move in decision.moves)


def test_what_a_filter_refuses_stays_and_says_so() -> None:
    base = cluster(1, UNEVEN)
    idle = base.broker_names[-1]
    base = replace(base, policies=Policies(cordons={idle: "to be replaced"}))
    bundle = base.bundles_of[base.broker_names[0]][0]
    decision = decide(base, fixed(move(bundle, idle)), {}, pipeline())
    assert decision.moves == []
    assert decision.checked[0].planned == idle
    assert "cordon" in decision.checked[0].refused
    assert decision.after(60.0).bundles == base.bundles


def test_nobody_but_the_source_may_take_it_so_it_stays() -> None:
    base = cluster(1, UNEVEN)
    source = base.broker_names[0]
    fence = Policies((IsolationPolicy("only", (".*",), (source.partition(":")[0],)),))
    base = replace(base, policies=fence)
    decision = decide(base, fixed(move(base.bundles_of[source][0], None)), {}, pipeline())
    assert decision.moves == []
    assert decision.checked[0].refused is not None


def test_shedders_see_what_is_on_its_way_and_leave_it_alone() -> None:
    base = cluster(1, UNEVEN)
    bundle = base.bundles_of[base.broker_names[0]][0]
    booked = BookedMoves(expire_s=60, keep_s=600)
    booked.book(base, [move(bundle, base.broker_names[-1])], 0.0)
    decision = decide(base, fixed(move(bundle, base.broker_names[1])), {}, pipeline(), booked=booked.moves)
    assert decision.moves == []
    assert str(decision.checked[0].refused).startswith("in-flight: ")
    decision = decide(base, fixed(), {}, pipeline(), booked=booked.moves)
    assert decision.after(60.0).bundles[bundle.name].owner == base.broker_names[-1]


def test_memory_is_carried_on() -> None:
    decisions = list(run_cycles(cluster(), fixed(memory={"a": (1, 2)}), {"start": 0}, pipeline(), cycles=3))
    assert decisions[0].memory == {"a": [1, 2], "before": {"start": 0}}
    assert decisions[2].memory["before"]["before"] == decisions[0].memory


def test_a_strategy_that_sheds_and_places_has_one_memory() -> None:
    snapshot = snapshot_of(cluster(7, UNEVEN))
    chosen = choose(snapshot, "shedding", name="avg")
    both = pipeline_of(snapshot, name="avg")[1]
    decisions = list(run_cycles(cluster_of(snapshot), shedding_of(chosen), {}, both, cycles=8))
    assert any(decision.moves for decision in decisions)
    assert all(decision.placing_memory == decision.memory for decision in decisions)
    kept = snapshot.model_copy(
        update={"memory": snapshot.memory.model_copy(update={"shedding": {"avg": {"plan": {}}}})}
    )
    assert remembered_by(kept, "placement", "avg") == {"plan": {}}


@pytest.mark.parametrize(
    ("wrong", "times", "refused"),
    [
        (lambda item: [replace(item, source="b9:8080")], 0, ["not-owned: "]),
        (lambda item: [replace(item, bundle="t/n/0x00000000_0x00000001")], 0, ["not-owned: "]),
        (lambda item: [replace(item, destination=item.source)], 0, ["same-broker: "]),
        (lambda item: [item, item], 1, ["twice: "]),
    ],
)
def test_nonsense_costs_the_move_and_neither_the_others_nor_the_memory(wrong: Any, times: int, refused: list[str]):
    base = cluster()
    first, second = base.bundles_of[base.broker_names[0]][:2]
    other = move(second, base.broker_names[1])
    moves = [*wrong(move(first, base.broker_names[1])), other]
    decision = decide(base, fixed(*moves, memory={"hits": 3}), {}, pipeline())
    assert [move.bundle for move in decision.moves] == [*[first.name] * times, second.name]
    assert [check.planned for check in decision.checked] == [move.destination for move in moves]
    said = [check.refused for check in decision.checked if check.refused is not None]
    assert [str(item)[: len(start)] for item, start in zip(said, refused, strict=True)] == refused
    assert decision.memory == {"hits": 3, "before": {}}


@pytest.mark.parametrize("upstream", [False, True])
def test_half_of_an_exchange_goes_by_itself_with_upstream_filters_only(upstream: bool) -> None:
    base = cluster()
    here, there = base.broker_names[:2]
    going, back = base.bundles_of[here][0], base.bundles_of[there][0]
    base = replace(base, bundles={**base.bundles, back.name: replace(back, in_flight=True)})
    moves = [move(going, there), replace(move(back, here), swap=True)]
    decision = decide(base, fixed(*moves), {}, pipeline(upstream=upstream), guarded=False)
    assert [move.bundle for move in decision.moves] == ([going.name] if upstream else [])
    words = {check.move.bundle: str(check.refused).partition(":")[0] for check in decision.checked if check.refused}
    assert words == ({back.name: "in-flight"} if upstream else {back.name: "in-flight", going.name: "swap"})


def test_a_cluster_that_is_to_be_left_alone_is() -> None:
    base = replace(cluster(), safe="quorum lost")
    with pytest.raises(StrategyFailedError, match="left alone"):
        decide(base, fixed(move(base.bundles_of[base.broker_names[0]][0], base.broker_names[1])), {}, pipeline())


@pytest.mark.parametrize("memory", [{"x": float("nan")}, {"x": {1}}, {"x": object()}])
def test_a_memory_that_json_cannot_hold_is_refused(memory: dict[str, Any]) -> None:
    with pytest.raises(StrategyFailedError, match="has a memory that cannot be encoded as JSON"):
        decide(cluster(), fixed(memory=memory), {}, pipeline())


def test_a_strategy_that_raises_is_named() -> None:
    class Raising(Fixed):
        def plan(self, cluster: Cluster, memory: Mapping[str, Any]) -> Plan:
            raise ZeroDivisionError("oh")

    with pytest.raises(StrategyFailedError, match=r"shedding strategy `fixed` fails: ZeroDivisionError\('oh'\)"):
        decide(cluster(), lambda _can_take: Raising(()), {}, pipeline())


# --- placing and splitting --------------------------------------------------------------------------------------------


def test_each_placement_counts_for_those_after_it() -> None:
    class Fewest:
        """Takes whom the fewest bundles are on their way to."""

        name = "fewest"
        Settings = StrategySettings

        def place(self, cluster: Cluster, bundle: Bundle, candidates: Any, booked: Any, memory: Any) -> Placed:
            chosen = min(candidates, key=lambda name: (len(booked.get(name, ())), name))
            return Placed(bundle.name, chosen, "fewest", (chosen,), memory={"last": chosen})

    base = cluster(1, UNEVEN)
    open_ = {name: replace(bundle, owner=None) for name, bundle in base.bundles.items()}
    line = Pipeline(Fewest())
    placements = place_all(replace(base, bundles=open_), sorted(open_)[:12], line)
    assert [placement.broker for placement in placements] == base.broker_names * 2
    assert line.memory == {"last": base.broker_names[-1]}


def hot(topics: int = 8) -> Cluster:
    base = cluster(5, Shape(brokers=2, bundles_each=1, topics_each=topics, hot=0))
    return replace(
        base,
        bundles={
            name: replace(bundle, stats=replace(bundle.stats, msg_rate_in=80_000.0)) if bundle.stats else bundle
            for name, bundle in base.bundles.items()
        },
    )


def test_splits_are_made_between_the_cycles() -> None:
    decisions = list(
        run_splits(
            hot(),
            SplitSettings(hit_threshold=1, burst_hit_threshold=1),
            SplitRange(SplitRange.Settings()),
            {},
            cycles=6,
        )
    )
    cut = [[split for split in each.splits if split.positions] for each in decisions]
    assert [len(item) for item in cut[:2]] == [0, 2]
    assert len(decisions[2].cluster.bundles) == 4
    assert all(not bundle.estimated for bundle in decisions[2].cluster.bundles.values())
    part = split_cycle(2, decisions[1])
    assert part.splits[0].children == sorted(
        name for name in decisions[2].cluster.bundles if name in part.splits[0].children
    )
    assert sum(len(split.children) for split in part.splits) == 4


def test_children_stay_where_their_parent_was_and_add_up_to_it() -> None:
    base = hot()
    parent = min(base.bundles)
    after = after_splits(base, [SplitPlan(parent, [0x40000000], "Admin", "asked for")], every_s=60)
    children = [bundle for name, bundle in after.bundles.items() if name not in base.bundles]
    assert len(children) == 2
    assert {child.owner for child in children} == {base.bundles[parent].owner}
    assert sum(child.stats.msg_rate_in for child in children if child.stats) == pytest.approx(80_000.0)
    assert after.now_ms == base.now_ms + 60_000


def test_asked_for_splits_look_at_no_limit() -> None:
    base = cluster(1, UNEVEN)
    names = sorted(base.bundles)[:2]
    decision = split_named(base, names, SplitRange(SplitRange.Settings()))
    assert [(split.bundle, split.reason, len(split.positions)) for split in decision.splits] == [
        (name, "Admin", 1) for name in names
    ]


# --- what is assumed of moves -----------------------------------------------------------------------------------------


def test_after_moves_load_is_neither_made_nor_lost() -> None:
    base = cluster(1, UNEVEN)
    bundles = base.bundles_of[base.broker_names[0]][:3]
    after = after_moves(base, [move(bundle, base.broker_names[-1]) for bundle in bundles])
    for field in ("msg_rate_in", "msg_throughput_out", "bundles", "weighted_max_ema"):
        before_sum = sum(getattr(broker.load, field) for broker in base.brokers.values())
        assert sum(getattr(broker.load, field) for broker in after.brokers.values()) == pytest.approx(before_sum)
    assert {bundle.owner for bundle in after.bundles.values() if bundle.name in {each.name for each in bundles}} == {
        base.broker_names[-1]
    }
    assert after.recent.bundles == {bundle.name: 60.0 for bundle in sorted(bundles, key=lambda bundle: bundle.name)}
    assert set(after.recent.brokers) == {base.broker_names[0], base.broker_names[-1]}
    assert after.brokers[base.broker_names[2]].load_age_s == base.brokers[base.broker_names[2]].load_age_s


def test_top_bundles_are_named_anew_by_who_gave_and_got() -> None:
    base = cluster(1, UNEVEN)
    first, last = base.broker_names[0], base.broker_names[-1]
    top = max(base.bundles_of[first], key=lambda item: -1 if item.rank is None else item.rank)
    after = after_moves(base, [move(top, last)])
    assert [item.rank for item in after.bundles_of[last]] == [0]
    ranks = sorted(item.rank for item in after.bundles_of[first] if item.rank is not None)
    assert ranks == list(range(len(ranks)))
