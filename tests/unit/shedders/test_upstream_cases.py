"""The smallest cases in which profiles and contest once differed from Pulsar 4.2.4, with the answers of its own classes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shedders.contest.contenders import contender
from shedders.contest.manager import Manager, ManagerView
from shedders.decision.dry_run import Decision, decide, place_all, run_splits
from shedders.model.cluster import Bundle, Cluster, Policies, TopicLoad
from shedders.model.profiles import PROFILES
from shedders.model.strategy import SplitAlgorithm
from shedders.snapshots.cluster import cluster_of
from shedders.snapshots.file import read_snapshot
from shedders.snapshots.model import Snapshot
from shedders.snapshots.selection import (
    FILTERS,
    SPLITTING,
    Flags,
    choose,
    part_settings,
    pipeline_of,
    remembered_by,
    shedding_of,
)
from shedders.split.triggers import SplitSettings

CASES = Path(__file__).parent / "upstream_cases"
EXTENSIBLE, MODULAR = "upstream-extensible", "upstream-defaults"


def case(name: str) -> Snapshot:
    return read_snapshot(CASES / f"{name}.json")


def shed(
    snapshot: Snapshot,
    profile: str,
    *flags: str,
    guarded: bool = True,
    memory: dict[str, Any] | None = None,
    cluster: Cluster | None = None,
) -> Decision:
    asked = Flags.parse(flags, ("placement", FILTERS))
    chosen = choose(snapshot, "shedding", profile=profile, values=asked.own)
    _, pipeline = pipeline_of(snapshot, profile=profile, flags=asked)
    before = remembered_by(snapshot, "shedding", chosen.name) if memory is None else memory
    where = cluster_of(snapshot) if cluster is None else cluster
    return decide(where, shedding_of(chosen), before, pipeline, guarded=guarded)


def ways(decision: Decision) -> list[tuple[str, str, str | None]]:
    return [(move.bundle, move.source, move.destination) for move in decision.moves]


# --- a swap that gives back a bundle on its way (TransferShedder looks at the ownership of the source's bundles only) ------


@pytest.mark.parametrize("guarded", [True, False])
def test_a_swap_with_a_bundle_on_its_way_costs_that_half_only(guarded: bool) -> None:
    decision = shed(case("d1-transfer-in-flight"), EXTENSIBLE, "hit_threshold=0", guarded=guarded)
    # Pulsar's plan has both; its channel drops the move of the bundle that is being released.
    expected = [("t/a/0x00000000_0x80000000", "low", "top"), ("t/b/0x00000000_0x80000000", "top", "low")]
    assert [(move.bundle, move.source, move.destination) for move in decision.plan.moves] == expected
    assert ways(decision) == [("t/b/0x00000000_0x80000000", "top", "low")]
    (refused,) = [check for check in decision.checked if check.refused is not None]
    assert (refused.move.bundle, refused.planned) == ("t/a/0x00000000_0x80000000", "top")
    assert str(refused.refused).startswith("in-flight: ")
    assert decision.memory == {"hits": 0, "receivers": []}


def test_hits_before_a_swap_with_a_bundle_on_its_way_are_kept() -> None:
    snapshot = case("d1-transfer-in-flight")
    memory: dict[str, Any] = {}
    hits = []
    for _ in range(4):
        decision = shed(snapshot, EXTENSIBLE, memory=memory)
        memory = dict(decision.memory)
        hits.append((memory["hits"], len(decision.moves)))
    assert hits == [(1, 0), (2, 0), (3, 0), (0, 1)]


# --- anti-affinity of the newer manager counts bundles that are Owned ------------------------------------------------------


def placed(snapshot: Snapshot, profile: str, *bundles: str, cluster: Cluster | None = None) -> list[list[str]]:
    _, pipeline = pipeline_of(snapshot, profile=profile)
    where = cluster_of(snapshot) if cluster is None else cluster
    return [list(placement.best) for placement in place_all(where, bundles, pipeline)]


OTHER, N_LOW, N_HIGH = "t/o/0x00000000_0xffffffff", "t/n/0x00000000_0x80000000", "t/n/0x80000000_0xffffffff"


def test_the_newer_manager_counts_bundles_of_a_group() -> None:
    assert placed(case("d2-affinity"), EXTENSIBLE, OTHER) == [["b:80"]]


def test_the_older_manager_counts_namespaces_of_a_group() -> None:
    snapshot = case("d2-affinity")
    _, pipeline = pipeline_of(snapshot, profile=MODULAR, flags=Flags.parse(["filters.manager=extensible"]))
    cluster = cluster_of(snapshot)
    assert pipeline.filters(cluster).passed(cluster.bundles[OTHER]).names == ["a:80", "b:80"]


def test_the_newer_manager_counts_no_bundle_that_is_on_its_way() -> None:
    snapshot = case("d2-affinity")
    cluster = cluster_of(snapshot)
    bundles = dict(cluster.bundles)
    for name in (N_LOW, N_HIGH):
        bundles[name] = replace(bundles[name], in_flight=True)
    _, pipeline = pipeline_of(snapshot, profile=EXTENSIBLE)
    flying = replace(cluster, bundles=bundles)
    # a: nothing that is Owned, b: one.
    assert pipeline.filters(flying).passed(flying.bundles[OTHER]).names == ["a:80"]
    assert pipeline.filters(flying, {"a:80": [N_LOW, N_HIGH]}).passed(flying.bundles[OTHER]).names == ["a:80"]


# --- what a bundle holds is forgotten when it is shed -----------------------------------------------------------------------

KIND = "t/b/0x00000000_0x80000000"


@pytest.mark.parametrize(
    ("non_persistent", "persistent_taken", "non_persistent_taken", "goes"),
    [
        # Pulsar takes every bundle that it sheds for one of persistent topics.
        (True, False, True, False),
        (True, True, False, True),
        (False, False, True, False),
        (False, True, False, True),
    ],
)
@pytest.mark.parametrize("generation", ["extensible", "modular"])
def test_a_bundle_that_is_shed_counts_as_persistent(
    generation: str, non_persistent: bool, persistent_taken: bool, non_persistent_taken: bool, goes: bool
) -> None:
    snapshot = case("d3-kind")
    cluster = cluster_of(snapshot)
    low = replace(cluster.brokers["low"], persistent=persistent_taken, non_persistent=non_persistent_taken)
    bundle = replace(cluster.bundles[KIND], non_persistent=non_persistent)
    cluster = replace(cluster, brokers={**cluster.brokers, "low": low}, bundles={**cluster.bundles, KIND: bundle})
    flags = Flags.parse([f"filters.generation={generation}", "filters.fewest_bundles=false"])
    _, pipeline = pipeline_of(snapshot, profile=EXTENSIBLE, flags=flags)
    fault = pipeline.can_take(cluster)(bundle, "low")
    assert (fault is None) is goes
    # A placement of the same bundle goes by what it holds.
    fits = non_persistent_taken if non_persistent else persistent_taken
    assert ("low" in pipeline.filters(cluster).passed(bundle).names) is fits
    if generation == "modular":
        assert (pipeline.filters(cluster).cannot_leave(bundle) is None) is goes


def test_the_transfer_of_a_bundle_to_a_broker_without_its_assumed_kind_is_refused() -> None:
    decision = shed(case("d3-kind"), EXTENSIBLE, "hit_threshold=0")
    assert decision.plan.moves == ()


def test_the_older_manager_places_what_it_sheds_as_persistent() -> None:
    snapshot = case("d5-herding")
    cluster = cluster_of(snapshot)
    bundles = {name: replace(bundle, non_persistent=bundle.owner == "a:80") for name, bundle in cluster.bundles.items()}
    # b takes the kind that these bundles really hold, and not the one that Pulsar assumes.
    b = replace(cluster.brokers["b:80"], persistent=False)
    cluster = replace(cluster, brokers={**cluster.brokers, "b:80": b}, bundles=bundles)
    decision = shed(snapshot, MODULAR, "filters.fewest_bundles=false", cluster=cluster)
    assert [move.destination for move in decision.moves] == ["c:80", "c:80", "c:80"]


# --- hits of splits --------------------------------------------------------------------------------------------------------

HOT = "t/n/0x00000000_0x80000000"


def split_hits(snapshot: Snapshot, memory: dict[str, Any]) -> tuple[dict[str, int], list[str]]:
    when = part_settings(snapshot, SPLITTING, SplitSettings)
    chosen = choose(snapshot, "split")
    algorithm: SplitAlgorithm = chosen.strategy(chosen.settings)
    (look,) = run_splits(cluster_of(snapshot), when, algorithm, memory)
    return dict(look.memory["hits"]), [split.bundle for split in look.splits if split.positions]


def test_hits_end_with_a_look_without_figures() -> None:
    before = case("d4-split-hits")
    hits, cut = split_hits(before, dict(before.memory.parts["splitting"]))
    assert (hits, cut) == ({}, [])
    # Pulsar counts from one again, and cuts nothing.
    assert split_hits(case("d4-split-hits-after"), {"hits": hits}) == ({HOT: 1}, [])


def test_hits_of_a_bundle_with_figures_go_on() -> None:
    after = case("d4-split-hits-after")
    assert split_hits(after, dict(after.memory.parts["splitting"])) == ({}, [HOT])
    few = after.model_copy(
        update={
            "bundles": {
                name: bundle.model_copy(
                    update={"stats": bundle.stats and bundle.stats.model_copy(update={"topics": 1})}
                )
                for name, bundle in after.bundles.items()
            }
        }
    )
    # Too few topics to part: passed over, and not forgotten, as its figures are there.
    assert split_hits(few, {"hits": {HOT: 2}}) == ({HOT: 2}, [])


# --- moves of one plan -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarded", [True, False])
def test_bundles_of_one_plan_are_placed_on_the_same_data(guarded: bool) -> None:
    decision = shed(case("d5-herding"), MODULAR, "filters.fewest_bundles=false", guarded=guarded)
    assert ways(decision) == [
        ("t/n/0x00000000_0x40000000", "a:80", "b:80"),
        ("t/n/0x40000000_0x80000000", "a:80", "b:80"),
        ("t/n/0x80000000_0xc0000000", "a:80", "b:80"),
    ]


@pytest.mark.parametrize("flags", [(), ("filters.fewest_bundles=false", "filters.max_topics=1")])
def test_filters_see_nothing_of_the_plan_either(flags: tuple[str, ...]) -> None:
    # b and c have none of the namespace: both are fewest for each of the three bundles, and b has the fewest messages.
    decision = shed(case("d5-herding"), MODULAR, *flags)
    assert [move.destination for move in decision.moves] == ["b:80", "b:80", "b:80"]


def test_what_is_on_its_way_from_before_counts_as_before() -> None:
    snapshot = case("d5-herding")
    _, pipeline = pipeline_of(snapshot, profile=MODULAR, flags=Flags.parse(["filters.fewest_bundles=false"]))
    names = [name for name in snapshot.bundles if name.startswith("t/n/")]
    placed_ = place_all(cluster_of(snapshot), names, pipeline)
    # Assignments are preallocated in Pulsar, too, and 2,000 messages of one bundle are more than c has.
    assert [item.broker for item in placed_] == ["b:80", "c:80", "b:80"]


def test_ours_counts_the_moves_of_a_plan() -> None:
    snapshot = case("d5-herding")
    chosen = choose(snapshot, "shedding", profile=MODULAR)
    _, pipeline = pipeline_of(
        snapshot, profile=MODULAR, flags=Flags.parse(["filters.upstream=false", "filters.fewest_bundles=false"])
    )
    decision = decide(cluster_of(snapshot), shedding_of(chosen), {}, pipeline)
    assert [move.destination for move in decision.moves] == ["b:80", "c:80", "b:80"]


def contest_moves(name: str, snapshot: Snapshot) -> list[str | None]:
    """What a manager of the contest decides on a snapshot's cluster."""
    manager = Manager(
        contender(name), lambda: ManagerView([], [], {}, {}, {}, 0, Policies()), lambda: 0.0, lambda _: ()
    )
    cluster = cluster_of(snapshot)
    manager._cluster = lambda *, arrived=False: cluster  # type: ignore[method-assign]
    return [move.destination for move in manager.decide().moves]


def test_the_contest_herds_as_pulsar_does() -> None:
    name = "modular/threshold+least-long-term-rate@upstream"
    assert contest_moves(name, case("d5-herding")) == ["b:80", "b:80", "b:80"]


def test_the_contest_keeps_the_other_half_of_a_swap_and_its_hits() -> None:
    name = "extensible/transfer+least-resource-usage@upstream,hit_threshold=0"
    name = name.replace(",hit_threshold", ",shedding.transfer.hit_threshold")
    manager = Manager(
        contender(name), lambda: ManagerView([], [], {}, {}, {}, 0, Policies()), lambda: 0.0, lambda _: ()
    )
    cluster = cluster_of(case("d1-transfer-in-flight"))
    manager._cluster = lambda *, arrived=False: cluster  # type: ignore[method-assign]
    assert [move.bundle for move in manager.decide().moves] == ["t/b/0x00000000_0x80000000"]
    assert manager.remarks == {}
    assert manager._memory == {"hits": 0, "receivers": []}


# --- the second choice of the older manager ---------------------------------------------------------------------------------

SECOND = "t/n/0x80000000_0xffffffff"


def test_a_hot_choice_is_chosen_again_among_all_that_policies_allow() -> None:
    assert placed(case("d6-second-choice"), MODULAR, SECOND) == [["a:80"]]


@pytest.mark.parametrize(("percent", "broker"), [(94.0, "a:80"), (95.0, "b:80"), (96.0, "b:80")])
@pytest.mark.parametrize(
    ("placement", "setting"),
    [
        # One setting in Pulsar: that of a placement which has it decides, else the filters'.
        ("least-long-term-rate", "placement.overloaded_percent"),
        ("least-resource-usage-modular", "filters.overloaded_percent"),
    ],
)
def test_hot_is_strictly_above_the_limit(placement: str, setting: str, percent: float, broker: str) -> None:
    snapshot = case("d6-second-choice")
    flags = Flags.parse([f"{setting}={percent}", "placement.upstream=true"])
    _, pipeline = pipeline_of(snapshot, name=placement, profile=MODULAR, flags=flags)
    (result,) = place_all(cluster_of(snapshot), [SECOND], pipeline)
    assert result.broker == broker


def test_the_newer_manager_chooses_once() -> None:
    flags = Flags.parse(["filters.generation=extensible", "filters.max_topics=1"])
    snapshot = case("d6-second-choice")
    cluster = cluster_of(snapshot)
    load = cluster.brokers["a:80"].load
    full = replace(cluster.brokers["a:80"], load=replace(load, topics=1))
    _, pipeline = pipeline_of(snapshot, profile=MODULAR, flags=flags)
    (placement,) = place_all(replace(cluster, brokers={**cluster.brokers, "a:80": full}), [SECOND], pipeline)
    assert placement.broker == "b:80"


def test_a_policy_holds_for_the_second_choice_too() -> None:
    snapshot = case("d6-second-choice")
    cluster = cluster_of(snapshot)
    cordoned = replace(cluster, policies=replace(cluster.policies, cordons={"a:80": "repair"}))
    assert placed(snapshot, MODULAR, SECOND, cluster=cordoned) == [["b:80"]]


def test_what_filters_leave_to_its_own_hot_broker_is_chosen_again() -> None:
    """Anti-affinity leaves the bundle's own broker only, which is hot: isolation allows the other one, and the bundle moves."""
    decision = shed(case("d9-second-choice-of-its-own"), MODULAR, "min_unload_mib_per_s=0", guarded=False)
    assert ways(decision) == [("t/n/0x00000000_0xffffffff", "b00cb:8080", "b01a:8080")]


def test_what_filters_leave_to_its_own_broker_stays_there_unless_it_is_hot() -> None:
    flags = ("min_unload_mib_per_s=0", "placement.overloaded_percent=95")
    decision = shed(case("d9-second-choice-of-its-own"), MODULAR, *flags, guarded=False)
    assert ways(decision) == []
    assert [str(check.refused).partition(":")[0] for check in decision.checked] == ["the placement would put it back"]


# --- splits in the middle --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", [EXTENSIBLE, MODULAR])
def test_upstream_profiles_cut_where_pulsar_does(profile: str) -> None:
    chosen = choose(case("d7-split-profile"), "split", profile=profile)
    whole = Bundle("t/n/0x00000000_0xffffffff", "a", topics=(TopicLoad("persistent://t/n/x", 1, 1, 1, 1, 1),))
    assert list(chosen.strategy(chosen.settings).positions(whole)) == [0x7FFFFFFF]
    assert chosen.settings_fields["upstream"] is True


@pytest.mark.parametrize(
    "name", ["extensible/transfer+least-resource-usage@upstream", "modular/threshold+least-long-term-rate@upstream"]
)
def test_contenders_of_upstream_cut_where_pulsar_does(name: str) -> None:
    manager = Manager(
        contender(name), lambda: ManagerView([], [], {}, {}, {}, 0, Policies()), lambda: 0.0, lambda _: ()
    )
    assert manager.split_positions(Bundle("t/n/0x00000000_0xffffffff", "a")) == [0x7FFFFFFF]


@pytest.mark.parametrize("name", [EXTENSIBLE, MODULAR])
def test_departures_are_told_by_the_profile(name: str) -> None:
    assert set(PROFILES[name].departures) >= {"blank-topic-name", "takers"}
    assert all(reason for reason in PROFILES[name].departures.values())
