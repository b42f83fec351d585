"""An execution ends by itself, says why, and leaves throttles to what is in flight; pause, cancel and the way back."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from loaddata.samples.partitions import PartitionLoad, PartitionLoads
from shedders.kafka_rebalance.errors import ExecutionRefusedError
from shedders.kafka_rebalance.execution.checks import findings, require_not_refused
from shedders.kafka_rebalance.execution.journal import StateFolderError
from shedders.kafka_rebalance.execution.overview import reverse
from shedders.kafka_rebalance.execution.progress import progress_of
from shedders.kafka_rebalance.execution.values import (
    CallAnswer,
    CallOutcome,
    ExecutionEnd,
    ExecutionHistory,
    ExecutionRequest,
    Key,
    OperatorRequests,
    StopKind,
)
from shedders.kafka_rebalance.planning.plan import (
    BrokerChange,
    BrokerFigures,
    GoalOutcome,
    GoalSpread,
    GoalStatus,
    ReassignmentPlan,
)
from shedders.kafka_rebalance.settings import PaceSettings
from tests.support.partition_twin import At, Ledger, Part, Twin, make_plan, move, run

PACE = PaceSettings(
    throttle_bytes_per_s=1_000,
    moves_per_broker=2,
    broker_grace_s=20,
    urp_grace_s=20,
    stalled_s=100,
    settle_s=3,
    full_look_s=2,
    attempts_max=3,
)


def world(*, speed: int = 20, count: int = 6, brokers: int = 5) -> tuple[Twin, ReassignmentPlan]:
    parts = {(f"t{n % 2}", n // 2): Part([1, 2], {1, 2}, 1) for n in range(count)}
    twin = Twin(parts, set(range(1, brokers + 1)), Random(1), speed_bytes=speed, min_isr=1)
    return twin, make_plan([move(key, (1, 2), (3, 2)) for key in parts])


def delete(twin: Twin) -> None:
    for key in [part for part in twin.parts if part[0] == "t1"]:
        del twin.parts[key]


def change(twin: Twin) -> None:
    part = twin.parts["t0", 2]
    part.replicas, part.isr = [4, 5], {4, 5}


def change_third(twin: Twin) -> None:
    change(twin)
    part = twin.parts["t1", 2]
    part.replicas, part.isr = [4, 5], {4, 5}


def move_elsewhere(twin: Twin) -> None:
    part = twin.parts["t0", 2]
    part.adding, part.removing, part.replicas, part.size_bytes = [4], [1], [4, 2, 1], 10**9


def recreate(twin: Twin) -> None:
    twin.topic_ids["t1"] = "new"
    for key in [("t1", 1), ("t1", 2)]:
        del twin.parts[key]


DROPS: list[tuple[str, Callable[[Twin], Any], str, set[Key]]] = [
    ("deleted", delete, "topic t1 was deleted", {("t1", n) for n in range(3)}),
    ("created again, smaller", recreate, "created again", {("t1", n) for n in range(3)}),
    ("changed", change, "t0-2 has replicas [4, 5]", {("t0", 2)}),
    ("moved by others", move_elsewhere, "t0-2 is being reassigned to [4, 2]", {("t0", 2)}),
]


@pytest.mark.parametrize("at", [1, 4, 8])
@pytest.mark.parametrize(("name", "doing", "expected", "lost"), DROPS, ids=[item[0] for item in DROPS])
def test_what_can_no_longer_be_moved_is_dropped_and_the_rest_goes_on(
    name: str, doing: Callable[[Twin], Any], expected: str, lost: set[Key], at: int
) -> None:
    """At any moment, also for whoever continues; the plan may be begun afterwards."""
    twin, plan = world(speed=15)
    ledger = At({at: lambda: doing(twin)})
    ledger.kills = [40]
    end, _ = run(twin, plan, PACE, ledger)
    assert end.stop.kind is StopKind.DONE, end.stop
    assert expected in end.stop.reason
    assert any(expected in text for text in ledger.recorded().remarks)
    for step in plan.moves:
        assert step.key in lost or tuple(twin.parts[step.key].replicas) == step.after
    assert not any(twin.configs.values())
    require_not_refused(findings(plan, twin.layout(), ledger.recorded(), begun=True, accept_unmet=False))
    assert run(twin, plan, PACE, ledger)[0].stop.kind is StopKind.DONE


def test_what_was_moved_is_not_judged_again() -> None:
    twin, plan = world(speed=60)
    ledger = At({})
    assert run(twin, plan, PACE, ledger)[0].stop.kind is StopKind.DONE
    for part in twin.parts.values():
        part.replicas, part.isr, part.leader = [4, 5], {4, 5}, 4
    past = ledger.recorded()
    assert not [each for each in findings(plan, twin.layout(), past, begun=True, accept_unmet=False) if each.refused]
    end, _ = run(twin, plan, PACE, ledger)
    assert (end.stop.kind, end.stop.reason, len(twin.set_out)) == (StopKind.DONE, "", len(plan.moves))


def stall(twin: Twin) -> None:
    twin.speed_bytes = 0


def grow_urps(twin: Twin) -> None:
    twin.parts["other", 0] = Part([1, 9], {1}, 1)


STOPS: list[tuple[str, Callable[[Twin], Any], StopKind, str]] = [
    ("a broker away", lambda twin: twin.kill_broker(3, for_s=1_000), StopKind.BROKER_AWAY, "broker 3"),
    (
        "brokers vanish",
        lambda twin: [twin.kill_broker(4, for_s=1_000), twin.kill_broker(5, for_s=1_000)],
        StopKind.BROKERS_VANISHED,
        "brokers [4, 5] of 5",
    ),
    ("a third is changed", change_third, StopKind.CHANGED, "t0-2 has replicas [4, 5]"),
    ("no progress", stall, StopKind.STALLED, "without progress"),
    ("others fall behind", grow_urps, StopKind.URPS, "other-0"),
]


@pytest.mark.parametrize(("name", "doing", "kind", "expected"), STOPS, ids=[item[0] for item in STOPS])
def test_it_stops_by_itself_and_says_why(
    name: str, doing: Callable[[Twin], Any], kind: StopKind, expected: str
) -> None:
    twin, plan = world(speed=3)
    repairs = kind is StopKind.URPS
    plan = replace(plan, request={"mode": "fix-offline" if repairs else "rebalance"})
    ledger = At({4: lambda: doing(twin)})
    end, _ = run(twin, plan, PACE, ledger)
    assert end.stop.kind is kind, end.stop
    assert expected in end.stop.reason
    assert (end.stop.hint != "", "plan --fix-offline" in end.stop.hint) == (True, repairs)
    assert ledger.events[-1]["kind"] == str(kind)
    keeps_throttles_of_what_is_in_flight(twin, ledger, plan, end)


def keeps_throttles_of_what_is_in_flight(twin: Twin, ledger: Ledger, plan: ReassignmentPlan, end: ExecutionEnd) -> None:
    """Of nothing else, but for a broker that is away and cannot be asked; whoever continues or cancels removes them."""
    going = {key for key, part in twin.parts.items() if part.moving and key[0] != "other"}
    users = {("broker", str(broker)) for key in going for broker in twin.parts[key].replicas}
    users |= {("topic", key[0]) for key in going} | {("broker", str(entry)) for entry in twin.back}
    left = {key for key, value in twin.configs.items() if value}
    assert going
    assert left == set(end.throttles_left) <= users
    assert ledger.recorded().throttle_before.keys() == left
    speed, twin.speed_bytes, twin.unthrottled = twin.speed_bytes, 1, 0
    twin.wait(1.0)
    assert twin.unthrottled == 0
    twin.speed_bytes = max(speed, 15)
    twin.parts.pop(("other", 0), None)
    twin.wait(1_000)
    ledger.asked = OperatorRequests(request=ExecutionRequest.CANCEL)
    assert run(twin, plan, PACE, ledger)[0].stop.kind is StopKind.CANCELLED
    assert not any(twin.configs.values())


@pytest.mark.parametrize(("written", "outpaced"), [(2, False), (60, True)])
def test_what_is_written_faster_than_it_is_copied_is_remarked_and_no_end_is_forecast(
    written: int, outpaced: bool
) -> None:
    twin, plan = world(speed=40, count=1)
    twin.parts["t0", 0].size_bytes = 2_500
    ledger, wait = At({}), twin.wait
    left: list[float | None] = []

    def write(length_s: float) -> None:
        twin.parts["t0", 0].size_bytes += written
        wait(length_s)

    def look() -> None:
        machine, seen = ledger.runner._machine, twin.observe(full=True, configs=())
        times = machine.times(twin.now_s)
        left.append(progress_of(plan, machine.statuses, seen.topics, seen.copied, times).left_s)

    def ask() -> None:
        look()
        twin.speed_bytes = 400
        ledger.asked = OperatorRequests(throttle_changed=True, throttle_bytes_per_s=5_000)

    twin.wait = write  # type: ignore[method-assign]
    ledger._doing.update({50: look, 75: ask, 82: look})
    end, _ = run(twin, plan, PACE, ledger)
    past = ledger.recorded()
    assert (end.stop.kind, past.outpaced) == (StopKind.DONE, set())
    assert left[0] is not None
    assert (left[1] is None, len(past.remarks)) == (outpaced, outpaced)
    assert all("t0-0" in text and "resume --throttle" in text for text in past.remarks)
    assert left[2] is not None


def test_a_throttle_below_what_is_written_is_noted_before() -> None:
    twin, plan = world(count=2)
    loads = PartitionLoads(
        of={("t0", 0): PartitionLoad(bytes_in_per_s=300), ("t1", 0): PartitionLoad(bytes_in_per_s=200)}
    )

    def noted(bytes_per_s: int | None, together: int = 2) -> list[str]:
        pace = PaceSettings(throttle_bytes_per_s=bytes_per_s, moves_per_broker=together)
        past = ExecutionHistory()
        every = findings(plan, twin.layout(), past, begun=True, accept_unmet=False, pace=pace, loads=loads)
        return [each.text for each in every if each.check == "throttle" and not each.refused]

    assert [len(noted(rate)) for rate in (None, 1_001, 1_000, 500)] == [0, 0, 1, 2]
    assert len(noted(601, 1)) == 0
    assert "broker 1" in noted(1_000)[0]


def test_a_broker_that_comes_back_in_time_is_waited_for() -> None:
    twin, plan = world()
    ledger = At({4: lambda: twin.kill_broker(3, for_s=8)})
    end, _ = run(twin, plan, PACE, ledger)
    assert end.stop.kind is StopKind.DONE
    assert not any(twin.configs.values())


def test_nothing_sets_out_for_a_broker_that_is_not_there_yet() -> None:
    twin, plan = world()
    twin.kill_broker(3, for_s=8)  # it holds nothing, so nothing falls behind either
    end, _ = run(twin, plan, PACE, Ledger())
    assert end.stop.kind is StopKind.DONE
    assert twin.to_dead == 0


def test_nothing_new_sets_out_while_others_have_fallen_behind() -> None:
    twin, plan = world(speed=60, count=8)
    twin.parts["other", 0] = Part([4, 5], {4, 5}, 4)
    out: list[int] = []

    def note() -> None:
        out.append(sum(twin.set_out.values()))

    ledger = At({4: lambda: twin.kill_broker(5, for_s=12), 7: note, 14: note})
    end, _ = run(twin, plan, PACE, ledger)
    assert end.stop.kind is StopKind.DONE
    assert out[0] == out[1] < len(plan.moves)
    assert sum(twin.set_out.values()) == len(plan.moves)


def test_nothing_sets_out_as_long_as_its_throttle_is_refused() -> None:
    twin, plan = world(speed=60)
    set_configs, tries = twin.set_configs, []

    def refusing(changes: Any) -> Any:
        tries.append(changes)
        if len(tries) > 2:
            return set_configs(changes)
        assert not twin.set_out
        return CallAnswer(outcome=CallOutcome.ACCEPTED, refused=dict.fromkeys(changes, "TIMED_OUT"))

    twin.set_configs = refusing  # type: ignore[method-assign]
    end, _ = run(twin, plan, PACE, Ledger())
    assert end.stop.kind is StopKind.DONE
    assert twin.unthrottled == 0
    tries.clear()
    twin, plan = world(speed=60)
    twin.set_configs = lambda _: CallAnswer(outcome=CallOutcome.ACCEPTED, refused={("broker", "3"): "NOT_ALLOWED"})  # type: ignore[method-assign]
    end, _ = run(twin, plan, PACE, Ledger())
    assert (end.stop.kind, end.stop.reason) == (StopKind.FAILED, "the throttle cannot be set: NOT_ALLOWED")
    assert not twin.set_out


def test_a_topic_that_grows_is_remarked() -> None:
    twin, plan = world()
    ledger = At({3: lambda: twin.parts.update({("t0", 3): Part([1, 2], {1, 2}, 1)})})
    end, _ = run(twin, plan, PACE, ledger)
    assert end.stop.kind is StopKind.DONE
    assert [event["text"] for event in ledger.events if event["event"] == "remark"] == [
        "topic t0 has grown from 3 to 4 partitions; the plan does not move the new partitions"
    ]


def test_a_partition_that_would_fall_below_its_minimum_waits_and_then_it_says_so() -> None:
    twin, plan = world(count=2)
    twin.min_isr = 2
    for part in twin.parts.values():
        part.replicas, part.isr = [1, 2], {1}
    twin.alive.discard(2)
    end, _ = run(twin, plan, PACE, Ledger())
    assert end.stop.kind in {StopKind.BROKER_AWAY, StopKind.HELD}
    assert twin.set_out == {}
    twin.alive.add(2)
    end, _ = run(twin, plan, PACE, Ledger())
    assert end.stop.kind is StopKind.DONE


def test_what_kafka_refuses_is_told_and_all_else_is_moved() -> None:
    twin, plan = world()
    submit = twin.submit

    def refusing(targets: Any) -> Any:
        answer = submit({key: to for key, to in targets.items() if key != ("t0", 0)})
        no = {("t0", 0): "NOT_ALLOWED"} if ("t0", 0) in targets else {}
        return type(answer)(outcome=answer.outcome, refused=no)

    twin.submit = refusing  # type: ignore[method-assign]
    end, _ = run(twin, plan, PACE, Ledger())
    assert end.stop.kind is StopKind.REFUSED
    assert "t0-0: NOT_ALLOWED" in end.stop.reason
    assert sum(part.replicas == [3, 2] for part in twin.parts.values()) == 5


def test_pause_lets_nothing_new_set_out_and_resume_goes_on() -> None:
    twin, plan = world(speed=60)
    ledger = At({})
    moving: list[int] = []

    def ask(request: ExecutionRequest) -> Callable[[], None]:
        def doing() -> None:
            moving.append(sum(twin.set_out.values()))
            ledger.asked = OperatorRequests(request=request)

        return doing

    ledger._doing.update({3: ask(ExecutionRequest.PAUSE), 40: ask(ExecutionRequest.GO)})
    end, _ = run(twin, plan, PACE, ledger)
    assert end.stop.kind is StopKind.DONE
    assert moving[0] == moving[1] < len(plan.moves)
    names = ledger.names()
    paused, resumed = names.index("paused"), names.index("resumed")
    assert "unthrottled" in names[paused:resumed]
    assert "batch" not in names[paused:resumed]


def test_cancel_takes_back_what_is_under_way_in_its_old_order_and_rollback_undoes_the_rest() -> None:
    twin, plan = world(speed=30, count=8)
    ledger = At({})
    ledger._doing[12] = lambda: setattr(ledger, "asked", OperatorRequests(request=ExecutionRequest.CANCEL))
    end, _ = run(twin, plan, PACE, ledger)
    assert end.stop.kind is StopKind.CANCELLED
    lists = [part.replicas for part in twin.parts.values()]
    assert set(map(tuple, lists)) == {(1, 2), (3, 2)}, "both have to be seen, and no other order"
    assert not any(part.moving for part in twin.parts.values())
    assert not any(twin.configs.values())
    back = reverse(plan, twin.layout(), made_at_ms=1)
    assert len(back.moves) == lists.count([3, 2])
    end, _ = run(twin, back, PACE, Ledger())
    assert end.stop.kind is StopKind.DONE
    assert {tuple(part.replicas) for part in twin.parts.values()} == {(1, 2)}
    assert {part.leader for part in twin.parts.values()} == {1}
    twin.parts = {key: part for key, part in twin.parts.items() if key[0] != "t0"}
    nothing = reverse(plan, twin.layout(), made_at_ms=1)
    assert (nothing.moves, nothing.remarks) == ((), ("4 moves dropped: topic t0 was deleted",))


def test_the_throttle_can_be_changed_and_removed_while_running() -> None:
    twin, plan = world(speed=20)
    seen: list[set[str]] = []
    ledger = At({})

    def ask(rate: int | None) -> Callable[[], None]:
        def doing() -> None:
            seen.append(
                {value for configs in twin.configs.values() for name, value in configs.items() if "rate" in name}
            )
            ledger.asked = OperatorRequests(throttle_changed=True, throttle_bytes_per_s=rate)

        return doing

    ledger._doing.update({3: ask(500), 6: ask(None), 9: ask(None)})
    end, _ = run(twin, plan, PACE, ledger)
    assert end.stop.kind is StopKind.DONE
    assert seen == [{"1000"}, {"500"}, set()]
    assert ledger.recorded().pace == {"throttle_bytes_per_s": None}, "which holds for whoever goes on"


REFUSED: list[tuple[str, Callable[[Twin], Any], str]] = [
    ("a broker away", lambda twin: twin.kill_broker(3, for_s=9), "brokers that the plan needs are not alive: 3"),
    ("replicas changed", change_third, "t0-2 has replicas [4, 5]"),
    (
        "another reassignment",
        lambda twin: twin.parts.update({("x", 0): Part([4, 1], {1}, 1, adding=[4])}),
        "another reassignment is in progress: x-0 to [4, 1]",
    ),
]


@pytest.mark.parametrize(("name", "doing", "expected"), REFUSED, ids=[item[0] for item in REFUSED])
def test_a_plan_that_does_not_fit_any_more_is_refused(name: str, doing: Callable[[Twin], Any], expected: str) -> None:
    twin, plan = world()
    past = ExecutionHistory()
    require_not_refused(findings(plan, twin.layout(), past, begun=False, accept_unmet=False))
    doing(twin)
    with pytest.raises(ExecutionRefusedError) as refused:
        require_not_refused(findings(plan, twin.layout(), past, begun=False, accept_unmet=False))
    assert expected in str(refused.value)
    assert refused.value.hint
    assert refused.value.exit_code == 3


def test_a_journal_that_cannot_be_written_ends_it_and_what_is_in_flight_keeps_its_throttle() -> None:
    twin, plan = world(speed=10)
    twin.parts["t1", 0].size_bytes = 1_000
    ledger = At({})
    write = ledger.write

    def full(event: str, facts: Any) -> None:
        if "moved" in ledger.names() or event == "moved":
            raise StateFolderError("cannot write journal.jsonl: No space left on device")
        write(event, facts)

    ledger.write = full  # type: ignore[method-assign]
    with pytest.raises(StateFolderError, match="No space left"):
        run(twin, plan, PACE, ledger)
    ledger.write = write  # type: ignore[method-assign]
    assert ledger.recorded().throttle_before
    assert any(part.moving for part in twin.parts.values())
    twin.wait(1.0)
    assert twin.unthrottled == 0
    assert run(twin, plan, PACE, ledger)[0].stop.kind is StopKind.DONE
    assert not any(twin.configs.values())


@pytest.mark.parametrize("unthrottle", [False, True])
def test_an_interrupt_leaves_what_is_in_flight_its_throttle_unless_asked_to_remove_it(unthrottle: bool) -> None:
    twin, plan = world(speed=10)
    ledger = At({})
    ledger._doing[5] = lambda: ledger.runner.interrupt("ended by SIGTERM")
    end, _ = run(twin, plan, PACE.model_copy(update={"unthrottle": unthrottle}), ledger)
    assert (end.stop.kind, end.stop.reason) == (StopKind.INTERRUPTED, "ended by SIGTERM")
    assert any(part.moving for part in twin.parts.values())
    if unthrottle:
        assert (end.throttles_left, any(twin.configs.values())) == ((), False)
    else:
        keeps_throttles_of_what_is_in_flight(twin, ledger, plan, end)


def test_a_kafka_that_does_not_answer_is_borne_for_a_while_and_then_it_says_what_it_leaves() -> None:
    twin, plan = world(speed=10)
    ledger = At({5: lambda: setattr(twin, "faults", 4.0)})
    end, _ = run(twin, plan, PACE, ledger)
    assert end.stop.kind is StopKind.KAFKA_AWAY
    assert end.throttles_left
    twin.faults = 0.0
    end, _ = run(twin, plan, PACE, ledger)
    assert end.stop.kind is StopKind.DONE
    assert not any(twin.configs.values())


def test_a_plan_for_another_cluster_is_refused() -> None:
    twin, plan = world()
    other = twin.layout("other")
    with pytest.raises(ExecutionRefusedError, match="for cluster twin, this is other"):
        require_not_refused(findings(plan, other, ExecutionHistory(), begun=True, accept_unmet=True))


PURPOSES: list[tuple[str, dict[str, Any], Callable[[Twin], Any], str]] = [
    ("new topic", {"mode": "remove-brokers", "subjects": [1]}, lambda twin: add(twin, "late"), "broker 1 still has"),
    ("new partition", {"mode": "remove-brokers", "subjects": [1]}, lambda twin: add(twin, "t0", 3), "t0-3"),
    ("in any mode", {"mode": "rebalance", "offline_brokers": [1]}, lambda twin: add(twin, "late"), "late-0"),
    ("demoted", {"mode": "demote", "subjects": [1]}, lambda twin: add(twin, "late"), "broker 1 still leads"),
    ("offline", {"mode": "fix-offline"}, lambda twin: add(twin, "late", dead=True), "late-0"),
    (
        "a directory",
        {"mode": "remove-log-dirs", "log_dirs": [[1, "/a"]]},
        lambda twin: add(twin, "late"),
        "/a of broker 1",
    ),
    ("no purpose", {"mode": "rebalance"}, lambda twin: add(twin, "late"), ""),
    ("nothing came", {"mode": "remove-brokers", "subjects": [1]}, lambda twin: None, ""),
]


def add(twin: Twin, topic: str, number: int = 0, *, dead: bool = False) -> None:
    twin.parts[topic, number] = Part([9], {9}, None) if dead else Part([1, 2], {1, 2}, 1)
    if twin.dirs:
        twin.dirs |= {(topic, number, broker): "/a" for broker in twin.parts[topic, number].replicas}


@pytest.mark.parametrize(("name", "request_", "doing", "expected"), PURPOSES, ids=[item[0] for item in PURPOSES])
def test_the_end_looks_at_the_purpose_again(
    name: str, request_: dict[str, Any], doing: Callable[[Twin], Any], expected: str
) -> None:
    twin, plan = world(speed=60)
    plan = replace(plan, request=request_)
    if name == "a directory":
        twin.dirs = {(*key, broker): "/b" for key, part in twin.parts.items() for broker in part.replicas}
    ledger = At({4: lambda: doing(twin)})
    end, _ = run(twin, plan, PACE, ledger)
    assert (end.stop.kind is StopKind.UNMET, end.throttles_left) == (bool(expected), ()), end.stop
    assert expected in end.stop.reason
    assert not expected or f"--{request_['mode'].replace('rebalance', 'offline-brokers')}" in end.stop.hint
    assert ("--entity-name 1 --add-config 'cordoned.log.dirs=[/a]'" in end.stop.hint) == (name == "a directory")
    if expected:
        twin.parts = {key: part for key, part in twin.parts.items() if key in {move.key for move in plan.moves}}
        twin.dirs.clear()
        assert run(twin, plan, PACE, ledger)[0].stop.kind is StopKind.DONE


@pytest.mark.parametrize("mode", ["remove-brokers", "demote", "fix-offline"])
@pytest.mark.parametrize("name", ["canary-1", "late"])
def test_what_may_stay_is_not_unmet(mode: str, name: str) -> None:
    twin, plan = world(speed=60)
    plan = replace(plan, request={"mode": mode, "subjects": [1], "staying_topics": ["canary.*"]})
    add(twin, name, dead=mode == "fix-offline")
    stop = run(twin, plan, PACE, Ledger())[0].stop
    assert stop.kind is (StopKind.UNMET if name == "late" else StopKind.DONE)
    assert ("--may-stay 'canary.*'" in stop.hint) == (name == "late")


@pytest.mark.parametrize("mode", ["remove-brokers", "demote", "fix-offline", "remove-log-dirs"])
def test_what_a_plan_was_to_leave_is_not_unmet_but_what_came_since_is(mode: str) -> None:
    twin, plan = world(speed=60)
    if mode == "remove-log-dirs":
        twin.dirs = {(*key, broker): "/b" for key, part in twin.parts.items() for broker in part.replicas}
    add(twin, "canary", dead=mode == "fix-offline")
    after = BrokerFigures(replicas=1, leaders=1, disk_bytes=None, bytes_in_per_s=None, bytes_out_per_s=None, cpu=None)
    change = BrokerChange(
        id=1, rack=None, alive=True, before=after, after=after, replicas_in=0, replicas_out=0, bytes_in=0, bytes_out=0
    )
    spread = GoalSpread(violations=1, excess=1, low=0, high=1, mean=0, std=0, furthest=1)
    outcome = GoalOutcome(
        name="", hard=True, unit="replicas", range_share=0, status=GoalStatus.INFEASIBLE, after=spread
    )
    goals = tuple(replace(outcome, name=name) for name in ("offline-replicas", "log-dirs-leave", "rack-awareness"))
    request = {"mode": mode, "subjects": [1], "log_dirs": [[1, "/a"]] if mode == "remove-log-dirs" else []}
    plan = replace(plan, request=request, brokers=(change,), goals=goals)
    assert run(twin, plan, PACE, Ledger())[0].stop.kind is StopKind.DONE
    add(twin, "late", dead=mode == "fix-offline")
    stop = run(twin, plan, PACE, Ledger())[0].stop
    assert (stop.kind, "late-0" in stop.reason) == (StopKind.UNMET, True)
