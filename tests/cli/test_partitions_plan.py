"""`partitions plan`: the file, what is printed, exit codes, and that planning a reached target again finds nothing to do."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from loaddata.samples.cluster_files import lines_of, read_layout_file, write_layout
from loaddata.samples.partitions import PartitionLoad
from shedders.kafka_rebalance.planning.plan import GoalStatus, ReassignmentPlan
from shedders.kafka_rebalance.planning.plan_files import read_plan
from tests.docs.generate import ROOT
from tests.twin.partition_state import layout_after

Run = Callable[..., Result]
EXAMPLE = ROOT / "design/examples/partitions/cluster.json"


def planned(run: Run, *options: str, code: int = 0, layout: Path = EXAMPLE) -> ReassignmentPlan:
    result = run("partitions", "plan", "--layout", layout, "--out", "plan.json", "--replace", *options)
    assert result.exit_code == code, result.output
    return read_plan(Path("plan.json"))


def test_the_plan_has_a_name_of_its_own_and_says_what_to_type_next(run: Run) -> None:
    result = run("partitions", "plan", "--layout", EXAMPLE, "--add-brokers", "4")
    assert result.exit_code == 0, result.output
    (file,) = Path().glob("partition-plan-*.json")
    plan = read_plan(file)
    assert file.name == f"partition-plan-{plan.id}.json"
    assert f"statechannel partitions show {file.name} --details" in result.stdout
    assert "apply" not in result.stdout, "a layout is no cluster that it could be carried out on"
    assert f"written: {file.name}" in result.stderr
    assert plan.made_at_ms > 0
    again = run("partitions", "plan", "--layout", EXAMPLE, "--add-brokers", "4")
    assert again.exit_code == 0
    assert "exists already: the same moves were planned before" in again.stderr
    assert read_plan(file) == plan


def test_a_hard_goal_that_cannot_be_met_is_named_and_the_plan_is_written(run: Run) -> None:
    plan = planned(run, "--capacity", "disk=100GB", code=3)
    (goal,) = plan.infeasible
    assert goal.name == "disk-capacity"
    result = run("partitions", "plan", "--layout", EXAMPLE, "--capacity", "disk=100GB", "--out", "other.json")
    assert result.exit_code == 3
    assert f"not met: disk-capacity: {goal.witness}" in result.stderr
    document = run(
        *("partitions", "plan", "--layout", EXAMPLE, "--capacity", "disk=100GB"),
        *("--output", "json", "--out", "third.json"),
    )
    assert document.exit_code == 3
    assert json.loads(document.stdout)["hard_goals_unmet"] == ["disk-capacity"]


def test_a_plan_that_is_not_worth_it_ends_with_a_code_of_its_own(run: Run) -> None:
    plan = planned(run, "--add-brokers", "4", "--min-gain", "1%")
    assert 0 < plan.gain_share <= 1
    assert planned(run, "--add-brokers", "4", "--min-gain", f"{100 * plan.gain_share + 0.001:.3f}%", code=5) == plan
    layout, loads = read_layout_file(EXAMPLE)
    write_layout(Path("target.json"), layout_after(layout, plan), loads)
    target = ("--layout", "target.json", "--add-brokers", "4", "--out", "again.json")
    result = run("partitions", "plan", *target, "--min-gain", "0")
    assert (result.exit_code, "not worth it: the plan removes 0.0% of a goal's excess" in result.stderr) == (5, True)
    planned(run, "--capacity", "disk=100GB", "--min-gain", "100%", code=3)
    assert run("partitions", "plan", *target, "--min-gain", "much").exit_code == 2


@pytest.mark.parametrize("goals", [(), ("--goals", "rack-awareness,disk=20%")])
def test_brokers_that_go_are_emptied_and_nothing_else_moves(run: Run, goals: tuple[str, ...]) -> None:
    for option in ("--remove-brokers", "--offline-brokers"):
        plan = planned(run, option, "2", *goals)
        assert all(2 not in move.after for move in plan.moves)
        changed = {broker.id: broker for broker in plan.brokers}
        assert changed[2].after.replicas == 0
    plan = planned(run, "--remove-brokers", "2", *goals)
    assert {broker for move in plan.moves for broker in move.removed} == {2}


def test_blacklist_and_choice_of_topics(run: Run) -> None:
    assert {
        move.topic for move in planned(run, "--add-brokers", "4", "--exclude", "cl.*", "--exclude", "audit").moves
    } == {"orders"}
    assert {move.topic for move in planned(run, "--add-brokers", "4", "--topics", "clicks").moves} == {"clicks"}
    flag = "extensions.partitions.plan.excluded_topics=clicks"
    assert "clicks" not in {move.topic for move in planned(run, "--add-brokers", "4", "--set", flag).moves}
    flag = 'extensions.partitions.plan.excluded_topics=["clicks", "audit"]'
    assert {move.topic for move in planned(run, "--add-brokers", "4", "--set", flag).moves} == {"orders"}


def test_bounds_of_moves_and_bytes(run: Run) -> None:
    plan = planned(run, "--add-brokers", "4", "--max-moves", "3")
    assert sum(len(move.added) for move in plan.moves) <= 3
    assert any("bound" in remark for remark in plan.remarks)
    plan = planned(run, "--add-brokers", "4", "--max-bytes", "200GB")
    assert 0 < plan.copied_bytes <= 200 * 10**9


def _with_racks(*racks: str | None) -> Path:
    document = json.loads(EXAMPLE.read_text())
    for broker, rack in zip(document["brokers"], racks, strict=True):
        broker["rack"] = rack
    Path("racks.json").write_text(json.dumps(document))
    return Path("racks.json")


def test_mixed_and_missing_racks_are_said(run: Run) -> None:
    plan = planned(run, "--add-brokers", "4", layout=_with_racks("a", "b", None, "a"))
    assert any("without a rack" in remark for remark in plan.remarks), plan.remarks
    plan = planned(run, "--add-brokers", "4", layout=_with_racks(None, None, None, None))
    assert {goal.name: goal.status for goal in plan.goals}["rack-awareness"] is GoalStatus.NO_DATA


def test_a_reassignment_under_way_keeps_its_partitions_and_is_said(run: Run) -> None:
    document = json.loads(EXAMPLE.read_text())
    moving = document["topics"][1]["partitions"][0]
    moving["replicas"] = [*moving["replicas"], 4]
    moving["adding"] = [4]
    Path("moving.json").write_text(json.dumps(document))
    plan = planned(run, "--remove-brokers", "1", layout=Path("moving.json"), code=3)
    assert all((move.topic, move.partition) != ("clicks", 0) for move in plan.moves)
    assert any("a reassignment is in progress" in remark for remark in plan.remarks)


def test_loads_of_the_spark_job_stand_in_place_of_those_of_the_layout(run: Run) -> None:
    _, loads = read_layout_file(EXAMPLE)
    even = [(place, PartitionLoad(disk_bytes=1_000)) for place in loads.of]
    lines = lines_of(even, partitions=len(even), cluster="example", from_ms=0, to_ms=1, source="by hand")
    Path("loads.jsonl").write_bytes(b"".join(lines))
    plan = planned(run, "--add-brokers", "4", "--loads", "loads.jsonl")
    assert {move.size_bytes for move in plan.moves} == {1_000}
    other = lines_of(even, partitions=len(even), cluster="another", from_ms=0, to_ms=1, source="by hand")
    Path("other.jsonl").write_bytes(b"".join(other))
    result = run("partitions", "plan", "--layout", EXAMPLE, "--loads", "other.jsonl")
    assert result.exit_code == 7
    assert "loads of the cluster another, not of example" in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--window", "6h"), "--window applies to samples, and --layout replaces samples"),
        (("--capacity", "disk=1GB", "--capacity", "disk=9TB"), "--capacity: disk is duplicated"),
    ],
)
def test_options_that_would_be_passed_over_are_refused(run: Run, options: tuple[str, ...], said: str) -> None:
    result = run("partitions", "plan", "--layout", EXAMPLE, "--out", "plan.json", *options)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert not Path("plan.json").exists()


def test_a_folder_that_takes_no_plan_is_told_before_the_search(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*_: object, **__: object) -> None:
        raise AssertionError("searched first")

    monkeypatch.setattr("shedders.kafka_rebalance.planning.planner.plan_partitions", search)
    gone = Path("gone").absolute()
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    result = run("partitions", "plan", "--layout", EXAMPLE)
    assert result.exit_code == 7, result.output


HELD = {4: [["pinned", 0, 10], ["orders", 0, 10]]}
PINNED = {
    "format": "kafka-layout/1",
    "brokers": [
        {
            "id": id_,
            "rack": "ab"[id_ % 2],
            "log_dirs": [{"path": "/d1", "replicas": HELD.get(id_, [])}, {"path": "/d2"}],
        }
        for id_ in (1, 2, 3, 4)
    ],
    "topics": [
        {"name": "pinned", "partitions": [{"partition": 0, "replicas": [4, 3, 2, 1], "disk_bytes": 10}]},
        {"name": "orders", "partitions": [{"partition": 0, "replicas": [4, 1], "disk_bytes": 10}]},
    ],
}


@pytest.mark.parametrize(
    "asked", [("--remove-brokers", "4"), ("--offline-brokers", "4"), ("--demote", "4"), ("--remove-log-dirs", "4:/d1")]
)
def test_what_may_stay_does_not_leave_a_plan_unmet(run: Run, asked: tuple[str, ...]) -> None:
    layout = Path("pinned.json")
    layout.write_text(json.dumps(PINNED))
    pinned = planned(run, *asked, "--exclude", "pinned", code=3, layout=layout)
    plan = planned(run, *asked, "--may-stay", "pin.*", layout=layout)
    assert (plan.moves, plan.dir_moves) == (pinned.moves, pinned.dir_moves)
    assert {move.topic for move in (*plan.moves, *plan.dir_moves)} == {"orders"}
    assert plan.request["staying_topics"] == ["pin.*"]
    planned(run, *asked, "--may-stay", "other", "--exclude", "pinned", code=3, layout=layout)
    assert run("partitions", "plan", "--layout", layout, *asked, "--may-stay", "(", "--out", "x.json").exit_code == 2
