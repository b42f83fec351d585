"""Plans with moves between brokers and between log directories: the executor is killed at each of at least 50 points, and broken
in other ways; the end is always the same, nothing is copied twice, throttles are put back."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from shedders.kafka_rebalance.execution.checks import findings
from shedders.kafka_rebalance.execution.overview import reverse
from shedders.kafka_rebalance.execution.values import ExecutionRequest, OperatorRequests, StopKind
from shedders.kafka_rebalance.planning.plan import LogDirMove, ReassignmentPlan
from shedders.kafka_rebalance.settings import PaceSettings
from tests.support.partition_twin import At, Ledger, Part, Twin, make_plan, move, run

BEFORE = {
    ("broker", "1"): {"replica.alter.log.dirs.io.max.bytes.per.second": "7", "leader.replication.throttled.rate": "77"},
    ("topic", "t0"): {"leader.replication.throttled.replicas": "9:9"},
}
PACE = PaceSettings(throttle_bytes_per_s=1_000, moves_per_broker=2, dir_moves_per_broker=2, attempts_max=50)
POINTS_MIN = 50


def world(seed: int = 0, *, faults: float = 0.0, lag: float = 0.0) -> tuple[Twin, ReassignmentPlan]:
    """Twelve partitions on four brokers with two directories each; eight move, most replicas that stay change the directory."""
    rng = Random(seed)
    parts, moves, dirs, dir_moves = {}, [], {}, []
    for number in range(12):
        key = (f"t{number % 3}", number // 3)
        before = tuple(rng.sample([1, 2, 3, 4], 2))
        other = next(broker for broker in (1, 2, 3, 4) if broker not in before)
        after = (before[0], other) if number % 3 else before
        parts[key] = Part(list(before), set(before), before[0], 100)
        if after != before:
            moves.append(move(key, before, after))
        for broker in before:
            dirs[*key, broker] = rng.choice(["/a", "/b"])
        for broker in after:
            now = dirs.get((*key, broker))
            if rng.random() < 0.7:
                to = "/b" if now in {None, "/a"} else "/a"
                place: Any = {"topic": key[0], "partition": key[1], "broker": broker, "replicas": after}
                dir_moves.append(LogDirMove(**place, before=now, after=to, size_bytes=100))
    configs = {key: dict(value) for key, value in BEFORE.items()}
    twin = Twin(parts, {1, 2, 3, 4}, rng, dirs=dirs, configs=configs, faults=faults, lag=lag)
    return twin, make_plan(moves, dir_moves=tuple(sorted(dir_moves, key=lambda each: each.key)))


def end_of(twin: Twin) -> object:
    """All that is to be the same."""
    layout = {key: (part.replicas, part.leader, part.moving) for key, part in twin.parts.items()}
    return layout, twin.dirs, {key: value for key, value in twin.configs.items() if value}


def checked(twin: Twin, plan: ReassignmentPlan) -> None:
    for each in plan.moves:
        assert tuple(twin.parts[each.key].replicas) == each.after
    for dir_move in plan.dir_moves:
        assert twin.dirs[dir_move.key] == dir_move.after
        assert twin.dir_copies[dir_move.key] <= 1, "copied twice"
        if dir_move.before is None:
            assert twin.dir_copies[dir_move.key] == 0, "it was created there"
    assert not twin.futures
    assert all(count <= 1 for count in twin.set_out.values())
    assert twin.most_dirs_of_broker <= PACE.dir_moves_per_broker
    assert twin.unthrottled == twin.dirs_unthrottled == 0
    assert {key: value for key, value in twin.configs.items() if value} == BEFORE


def test_killed_at_each_point_it_ends_the_same() -> None:
    twin, plan = world()
    assert {None} < {each.before for each in plan.dir_moves}
    whole = Ledger()
    end, _ = run(twin, plan, PACE, whole)
    assert end.stop.kind is StopKind.DONE
    checked(twin, plan)
    wanted = end_of(twin)
    points = range(1, whole.count + 1)
    assert len(points) >= POINTS_MIN
    for point in points:
        twin, plan = world()
        ledger = Ledger(kills=[point])
        end, _ = run(twin, plan, PACE, ledger)
        assert end.stop.kind is StopKind.DONE, (point, end.stop)
        assert ledger.kills == [], "it was not killed"
        checked(twin, plan)
        assert end_of(twin) == wanted, point


@pytest.mark.parametrize("seed", range(12))
def test_killed_many_times_on_a_kafka_that_loses_answers(seed: int) -> None:
    twin, plan = world(seed, faults=0.15, lag=0.15)
    rng = Random(seed)
    end, _ = run(twin, plan, PACE, Ledger(kills=sorted(rng.sample(range(1, 400), 8))))
    assert end.stop.kind is StopKind.DONE, end.stop
    for dir_move in plan.dir_moves:
        assert twin.dirs[dir_move.key] == dir_move.after
    assert {key: value for key, value in twin.configs.items() if value} == BEFORE


@pytest.mark.parametrize("at", [1, 5, 9, 14, 20])
def test_a_cancel_takes_back_what_is_in_flight(at: int) -> None:
    twin, plan = world()
    ledger = At({})
    ledger._doing = {at: lambda: setattr(ledger, "asked", OperatorRequests(request=ExecutionRequest.CANCEL))}
    end, _ = run(twin, plan, PACE, ledger)
    assert end.stop.kind is StopKind.CANCELLED
    assert not twin.futures
    assert not any(part.moving for part in twin.parts.values())
    assert {key: value for key, value in twin.configs.items() if value} == BEFORE
    for dir_move in plan.dir_moves:
        if dir_move.before is not None and dir_move.key in twin.dirs:
            assert twin.dirs[dir_move.key] in {dir_move.before, dir_move.after}


def test_a_directory_that_was_cordoned_meanwhile_is_refused_and_the_others_go_on() -> None:
    twin, plan = world()
    twin.shut_dirs.add("/b")
    pace = PACE.model_copy(update={"attempts_max": 2})
    end, _ = run(twin, plan, pace, Ledger())
    assert end.stop.kind is StopKind.REFUSED
    assert "cordoned" in end.stop.reason
    for dir_move in plan.dir_moves:
        if dir_move.after == "/a":
            assert twin.dirs[dir_move.key] == "/a"
    twin.shut_dirs.clear()
    end, _ = run(twin, plan, pace, Ledger())
    assert end.stop.kind is StopKind.DONE


def test_replicas_that_others_move_elsewhere_or_delete_are_dropped_and_the_others_go_on() -> None:
    twin, plan = world()
    moved = {each.key for each in plan.moves}
    taken = next(each for each in plan.dir_moves if each.before is not None and each.key[:2] not in moved)
    twin.futures[taken.key], twin.parts[taken.key[:2]].size_bytes = ("/elsewhere", 0), 10**9

    def delete() -> None:
        for key in [key for key in twin.parts if key[0] == "t1"]:
            del twin.parts[key]
        for replica in [key for key in twin.dirs if key[0] == "t1"]:
            del twin.dirs[replica]
            twin.futures.pop(replica, None)
        twin.remembered = {key: value for key, value in twin.remembered.items() if key[0] != "t1"}

    end, _ = run(twin, plan, PACE, At({4: delete}))
    assert end.stop.kind is StopKind.DONE
    assert "/elsewhere, which is not in the plan" in end.stop.reason
    assert "topic t1 was deleted" in end.stop.reason
    for each in plan.dir_moves:
        assert each.key[0] == "t1" or each.key == taken.key or twin.dirs[each.key] == each.after


def test_what_was_moved_is_not_judged_again_nor_taken_back_from_a_topic_of_the_same_name() -> None:
    twin, plan = world()
    there = {each.key for each in plan.moves}
    own = tuple(each for each in plan.dir_moves if each.key[:2] not in there)
    plan = replace(plan, moves=(), dir_moves=own, topic_ids={"t0": "t0"})
    ledger = Ledger()
    assert run(twin, plan, PACE, ledger)[0].stop.kind is StopKind.DONE
    assert {each.key for each in reverse(plan, twin.layout(), made_at_ms=0, dirs=twin.dirs_seen()).dir_moves}
    twin.topic_ids["t0"] = "new"
    assert not reverse(plan, twin.layout(), made_at_ms=0, dirs=twin.dirs_seen()).dir_moves
    twin.topic_ids.clear()
    twin.kill_broker(plan.dir_moves[0].broker, for_s=1e9)
    found = findings(plan, twin.layout(), ledger.recorded(), begun=True, accept_unmet=False)
    assert not [each for each in found if each.refused]
    assert run(twin, plan, PACE, ledger)[0].stop.kind is StopKind.DONE


@pytest.mark.parametrize("theirs", [None, "55"])
def test_a_rate_between_directories_that_others_remove_comes_back_and_another_one_stays(theirs: str | None) -> None:
    twin, plan = world()
    twin.speed_bytes = 6
    name, seen = "replica.alter.log.dirs.io.max.bytes.per.second", list[str | None]()

    def change() -> None:
        twin.configs["broker", "2"].pop(name)
        twin.configs["broker", "2"] |= {} if theirs is None else {name: theirs}

    ledger = At({20: change, 26: lambda: seen.append(twin.configs["broker", "2"].get(name))})
    end, _ = run(twin, plan, PACE.model_copy(update={"full_look_s": 1.0, "settle_s": 1.0}), ledger)
    assert (end.stop.kind, end.throttles_left, seen) == (StopKind.DONE, (), [theirs or "1000"])
    assert [event for event in ledger.events if event["event"] == "remark"] == [] or theirs is None
