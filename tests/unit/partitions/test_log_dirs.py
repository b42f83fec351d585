"""Log directories of brokers in plans: cordoned ones get nothing, and replicas are spread over the disks of a broker."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from loaddata.samples.cluster_files import read_layout_file, write_layout
from loaddata.samples.partitions import (
    ClusterLayout,
    KafkaBroker,
    KafkaPartition,
    KafkaTopic,
    LogDir,
    PartitionLoad,
    PartitionLoads,
)
from shedders.kafka_rebalance.errors import PlanUnusableError, RequestRefusedError
from shedders.kafka_rebalance.goals.log_dir_goal import DiskBudget, OpenDirectory, level, place_leaving, set_ranges
from shedders.kafka_rebalance.planning.plan import GoalOutcome, GoalStatus, ReassignmentPlan
from shedders.kafka_rebalance.planning.plan_files import parse_plan, parse_reassignment, plan_bytes, to_json
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.request import GoalChoice, PlanMode, PlanRequest

GB = 10**9


def jbod(
    disks: dict[int, dict[str, dict[int, int]]], *, cordoned: tuple[str, ...] = (), offline: tuple[str, ...] = ()
) -> tuple[ClusterLayout, PartitionLoads]:
    """A cluster by brokers, paths, and partitions of one topic with their sizes in GB."""
    holders: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for broker, paths in disks.items():
        for held in paths.values():
            for number, size in held.items():
                holders.setdefault(number, []).append(broker)
                sizes[number] = size * GB
    brokers = tuple(
        KafkaBroker(
            id=broker,
            log_dirs=tuple(
                LogDir(
                    path=path,
                    total_bytes=1_000 * GB,
                    cordoned=path in cordoned,
                    offline=path in offline,
                    replicas=tuple(("t", number, size * GB) for number, size in sorted(held.items())),
                )
                for path, held in paths.items()
            ),
        )
        for broker, paths in disks.items()
    )
    partitions = tuple(
        KafkaPartition(partition=n, replicas=tuple(holders[n]), leader=holders[n][0], isr=tuple(holders[n]))
        for n in range(len(holders))
    )
    topic = KafkaTopic(name="t", partitions=partitions, topic_id="T")
    loads = {("t", number): PartitionLoad(disk_bytes=size) for number, size in sizes.items()}
    return ClusterLayout(cluster_id="c", brokers=brokers, topics={"t": topic}), PartitionLoads(of=loads)


SKEWED = {1: {"/a": {0: 40, 1: 30, 2: 10}, "/b": {3: 30}, "/c": {4: 10}}}
ONLY_DISKS = PlanRequest(goals=(GoalChoice(name="log-dirs"),))


def used(layout: ClusterLayout, plan: ReassignmentPlan) -> dict[tuple[int, str], int]:
    """GB in each directory after the plan."""
    result = {(broker.id, each.path): 0 for broker in layout.brokers for each in broker.log_dirs}
    to = {move.key: move.after for move in plan.dir_moves}
    for broker in layout.brokers:
        for directory in broker.log_dirs:
            for topic, number, size in directory.replicas:
                result[broker.id, to.get((topic, number, broker.id), directory.path)] += size // GB
    return result


def test_disks_of_a_broker_are_leveled_with_few_bytes() -> None:
    layout, loads = jbod(SKEWED)
    plan = plan_partitions(layout, loads, PlanRequest())
    assert plan.moves == ()
    assert not plan.empty
    assert used(layout, plan) == {(1, "/a"): 40, (1, "/b"): 40, (1, "/c"): 40}
    assert plan.dir_bytes == 40 * GB
    assert plan.copied_bytes == 0, "nothing crosses the network"
    goal = next(each for each in plan.goals if each.name == "log-dirs")
    assert (goal.status, goal.moves) == (GoalStatus.MET, 2)
    assert goal.before is not None
    assert goal.before.high == 80 * GB
    assert plan_partitions(layout, loads, PlanRequest()).id == plan.id


def test_without_several_disks_the_goal_is_left_out_unless_it_is_asked_for() -> None:
    layout, loads = jbod({1: {"/a": {0: 40, 1: 30}}})
    assert all(goal.name != "log-dirs" for goal in plan_partitions(layout, loads, PlanRequest()).goals)
    asked = plan_partitions(layout, loads, ONLY_DISKS)
    assert [(goal.name, goal.status) for goal in asked.goals] == [("log-dirs", GoalStatus.NO_DATA)]
    layout, loads = jbod(SKEWED)
    assert plan_partitions(layout, loads, PlanRequest(goals=(GoalChoice(name="disk"),))).empty
    two, loads = jbod({**SKEWED, 2: {"/x": {5: 10}, "/y": {}}})
    assert plan_partitions(two, loads, PlanRequest(mode=PlanMode.DEMOTE, subjects=(2,))).dir_moves == ()


def test_a_cordoned_directory_gets_nothing_and_keeps_what_it_has() -> None:
    layout, loads = jbod(SKEWED, cordoned=("/c",))
    plan = plan_partitions(layout, loads, ONLY_DISKS)
    assert used(layout, plan) == {(1, "/a"): 50, (1, "/b"): 60, (1, "/c"): 10}
    assert any("cordoned" in remark and "1:/c" in remark for remark in plan.remarks)


def test_an_offline_directory_is_left_alone() -> None:
    layout, loads = jbod(SKEWED, offline=("/b",))
    plan = plan_partitions(layout, loads, ONLY_DISKS)
    assert all("/b" not in {move.before, move.after} for move in plan.dir_moves)


def test_excluded_topics_and_budgets_hold() -> None:
    layout, loads = jbod(SKEWED)
    assert plan_partitions(layout, loads, replace(ONLY_DISKS, bytes_max=39 * GB)).dir_bytes <= 39 * GB
    bounded = plan_partitions(layout, loads, replace(ONLY_DISKS, moves_max=1))
    assert len(bounded.dir_moves) == 1
    assert not bounded.complete
    other = KafkaTopic(name="u", partitions=(KafkaPartition(partition=0, replicas=(1,), leader=1, isr=(1,)),))
    more = replace(layout, topics={**layout.topics, "u": other})
    assert plan_partitions(more, loads, replace(ONLY_DISKS, excluded_topics=("t",))).empty


def test_a_replica_that_comes_gets_its_directory_in_advance() -> None:
    layout, loads = jbod({1: {"/a": {0: 40, 1: 40}, "/b": {2: 40, 4: 40}}, 2: {"/x": {3: 40, 5: 40}, "/y": {}}})
    plan = plan_partitions(layout, loads, PlanRequest(goals=(GoalChoice(name="disk"), GoalChoice(name="log-dirs"))))
    (move,) = plan.moves
    assert move.added == (2,)
    (placed,) = plan.dir_moves
    assert (placed.key, placed.before, placed.after) == ((*move.key, 2), None, "/y")
    assert (placed.copied_bytes, placed.size_bytes) == (0, 40 * GB)


def test_a_broker_whose_directories_are_all_cordoned_gets_no_replica() -> None:
    disks = {1: {"/a": {0: 40, 1: 40, 2: 40, 3: 40}}, 2: {"/x": {}}, 3: {"/z": {}}}
    layout, loads = jbod(disks, cordoned=("/x",))
    plan = plan_partitions(layout, loads, PlanRequest(goals=(GoalChoice(name="disk"),)))
    assert plan.moves
    assert {broker for move in plan.moves for broker in move.added} == {3}
    assert any("broker 2" in remark and "cordoned" in remark for remark in plan.remarks)
    with pytest.raises(RequestRefusedError, match="all log directories of new broker 2 are cordoned"):
        plan_partitions(layout, loads, PlanRequest(mode=PlanMode.ADD_BROKERS, subjects=(2,)))
    every, loads = jbod(disks, cordoned=("/a", "/x", "/z"))
    with pytest.raises(RequestRefusedError, match="no broker is left"):
        plan_partitions(every, loads, PlanRequest())


def test_files_keep_directories(tmp_path: Path) -> None:
    layout, loads = jbod(SKEWED, cordoned=("/c",))
    write_layout(tmp_path / "layout.json", layout, loads)
    assert read_layout_file(tmp_path / "layout.json") == (layout, loads)
    plan = plan_partitions(layout, loads, ONLY_DISKS)
    assert parse_plan(plan_bytes(plan)) == plan
    (move, *_) = plan.dir_moves
    for wrong in (
        (move, move),
        (replace(move, after=move.before),),
        (replace(move, before=None),),
        (replace(move, broker=9),),
        (replace(move, size_bytes=-1),),
        (replace(move, topic="u"),),
    ):
        with pytest.raises(PlanUnusableError, match="move"):
            parse_plan(plan_bytes(replace(plan, dir_moves=wrong)))
    replicas = {("t", each.partition): each.replicas for each in layout.topics["t"].partitions}
    raw = to_json(plan.moves, "after", plan.dir_moves)
    assert b'"log_dirs":["/b"]' in raw
    wanted = {key: each.replicas for key, each in parse_reassignment(raw).items()}
    assert wanted == {key: replicas[key] for key in {m.key[:2] for m in plan.dir_moves}}


@pytest.mark.parametrize("seed", range(15))
def test_leveling_always_ends_better_and_planned_again_it_finds_nothing(seed: int) -> None:
    rng = Random(seed)
    disks = [OpenDirectory(f"/{n}") for n in range(rng.randint(2, 6))]
    for number in range(rng.randint(1, 60)):
        rng.choice(disks[: rng.randint(1, len(disks))]).put(("t", number), round(rng.paretovariate(1.1) * 1_000))
    total = sum(disk.used for disk in disks)
    set_ranges(disks, dict.fromkeys((disk.path for disk in disks), None), total, 0.1)
    before = sum(disk.excess for disk in disks)
    moved = level(disks, DiskBudget())
    assert sum(disk.used for disk in disks) == total
    assert sum(disk.excess for disk in disks) <= before
    assert bool(moved) == (sum(disk.excess for disk in disks) < before)
    assert level(disks, DiskBudget()) == {}
    largest = max(size for disk in disks for size in disk.free.values())
    assert max(disk.used for disk in disks) <= max(disks[0].high, disks[0].mean + largest)


# --- directories that are emptied ---------------------------------------------------------------------------------------


def emptying(*dirs: tuple[int, str], **more: object) -> PlanRequest:
    return PlanRequest(mode=PlanMode.REMOVE_LOG_DIRS, log_dirs=dirs, **more)


def leave_goal(plan: ReassignmentPlan) -> GoalOutcome:
    return next(goal for goal in plan.goals if goal.name == "log-dirs-leave")


@pytest.mark.parametrize("cordoned", [(), ("/a",)])
def test_a_directory_is_emptied_into_the_others(cordoned: tuple[str, ...]) -> None:
    layout, loads = jbod({**SKEWED, 2: {"/x": {0: 40}, "/y": {}}}, cordoned=cordoned)
    plan = plan_partitions(layout, loads, emptying((1, "/a")))
    assert plan.moves == ()
    assert used(layout, plan) == {(1, "/a"): 0, (1, "/b"): 60, (1, "/c"): 60, (2, "/x"): 40, (2, "/y"): 0}
    assert (plan.dir_bytes, plan.copied_bytes, plan.complete) == (80 * GB, 0, True)
    goal = leave_goal(plan)
    assert (goal.status, goal.moves) == (GoalStatus.MET, 3)
    assert goal.before is not None
    assert goal.before.excess == 3
    assert not plan.infeasible
    assert any("1:/a are not cordoned" in remark for remark in plan.remarks) == (not cordoned)
    assert parse_plan(plan_bytes(plan)) == plan


def test_two_directories_are_emptied_together_and_those_that_get_none_get_none() -> None:
    disks = {1: {"/a": {0: 40}, "/b": {1: 30}, "/c": {}, "/d": {}, "/e": {}}}
    layout, loads = jbod(disks, cordoned=("/d",), offline=("/e",))
    plan = plan_partitions(layout, loads, emptying((1, "/a"), (1, "/b")))
    assert {move.after for move in plan.dir_moves} == {"/c"}
    assert used(layout, plan)[1, "/c"] == 70


@pytest.mark.parametrize(
    ("total_gb", "usable_gb", "left", "room"),
    [
        (40, None, {0, 2}, "than 2.0 GB"),
        (1_000, 30, {0, 2}, "than 0 B"),
        (1_000, 5, {0, 1, 2}, "than 5.0 GB"),
        (None, None, set(), ""),
    ],
)
def test_what_does_not_fit_is_left_and_named(
    total_gb: int | None, usable_gb: int | None, left: set[int], room: str
) -> None:
    """Of 20, 30 and 10 GB; a directory may be used up to 0.8 of its size, and to what is free of its volume."""
    disks = {1: {"/a": {0: 20, 1: 30, 2: 10}, "/b": {}}}
    layout, loads = jbod(disks)
    to = replace(
        layout.brokers[0].log_dirs[1],
        total_bytes=None if total_gb is None else total_gb * GB,
        usable_bytes=None if usable_gb is None else usable_gb * GB,
    )
    (broker,) = layout.brokers
    layout = replace(layout, brokers=(replace(broker, log_dirs=(broker.log_dirs[0], to)),))
    plan = plan_partitions(layout, loads, emptying((1, "/a")))
    goal = leave_goal(plan)
    assert {move.partition for move in plan.dir_moves} == {0, 1, 2} - left
    assert goal.status is (GoalStatus.INFEASIBLE if left else GoalStatus.MET)
    assert bool(plan.infeasible) == bool(left)
    assert goal.witness.endswith(room)


def test_where_the_emptiest_first_leaves_something_the_fullest_is_filled() -> None:
    targets = [OpenDirectory("/b", mean=10, high=10), OpenDirectory("/c", mean=10, high=7)]
    leaving = {("t", 0): 6, ("t", 1): 4, ("t", 2): 4, ("t", 3): 3}
    placed = place_leaving(targets, leaving, DiskBudget())
    assert set(placed) == set(leaving)
    assert {disk.path: disk.used for disk in targets} == {"/b": 10, "/c": 7}


def test_bounds_and_excluded_topics_hold_when_a_directory_is_emptied() -> None:
    layout, loads = jbod(SKEWED)
    plan = plan_partitions(layout, loads, emptying((1, "/a"), moves_max=1))
    assert (len(plan.dir_moves), plan.complete) == (1, False)
    with pytest.raises(RequestRefusedError, match="no topic"):
        plan_partitions(layout, loads, emptying((1, "/a"), excluded_topics=("t",)))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (emptying((1, "/z")), "log directory /z of broker 1 not found"),
        (emptying((7, "/a")), "log directory /a of broker 7 not found"),
        (emptying((1, "/c")), "/c of broker 1 is offline"),
        (emptying((1, "/a"), (1, "/b")), "no other one of the broker may get replicas"),
        (emptying((1, "/a"), goals=(GoalChoice(name="log-dirs"),)), "only moves replicas out of"),
        (emptying((1, "/a"), offline_brokers=(2,)), "only moves replicas out of"),
        (emptying((2, "/x")), "replicas in log directory /x of broker 2 are not known"),
    ],
)
def test_directories_that_cannot_be_emptied_are_refused(request_: PlanRequest, words: str) -> None:
    layout, loads = jbod({**SKEWED, 2: {"/x": {}, "/y": {}}}, offline=("/c",))
    with pytest.raises(RequestRefusedError, match=words):
        plan_partitions(layout, loads, request_)
