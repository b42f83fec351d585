"""Requests at a coordinator: deadlines to the millisecond, bounds of number and size, and when all are checked again."""

import itertools
from typing import Any

import pytest

from statechannel.broker.exits import ChannelStoppedError, Stopped
from statechannel.broker.next_steps import REJECTED
from statechannel.broker.requests import RequestCoordinator
from statechannel.engine.commands import AwaitOperation, Done, Outcome, PreStop, Started, Unload
from statechannel.engine.inputs import PartitionOpened, PositionReached
from statechannel.operations.request_record import Progress, ProgressStage, Reply, encode
from statechannel.protocol.log import Topic
from tests.support.request_world import BUNDLE, World

FOREVER_S = 1_000.0


def lone(*, leading: bool = True, **settings: float) -> tuple[World, RequestCoordinator]:
    world = World("b1")
    world.around["b1"].leading = leading
    world.desks["b1"] = world.desk("b1", **settings)
    return world, world.desks["b1"]


def read_last(world: World, desk: RequestCoordinator) -> None:
    desk.read(world.log[-1])


# --- for whom a request is ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "executed_by"),
    [
        ({}, "leader"),
        ({"to": "leader", "name": BUNDLE, "broker": "other"}, "leader"),
        ({"to": "owner", "name": BUNDLE, "broker": "other"}, "owner"),
        ({"to": "owner", "name": "a/b/unowned"}, "leader"),
        ({"to": "broker", "name": BUNDLE, "broker": "other"}, "other"),
    ],
)
def test_whom_a_request_to_an_extension_is_for(to: dict[str, Any], executed_by: str) -> None:
    world = World("leader", "owner", "other")
    for around in world.around.values():
        around.owners[BUNDLE] = "owner"
    world.around["leader"].leading = True
    world.ask("op1", "extension", extension="balancer", ask="plan", **to)
    world.turns()
    assert list(world.executions()) == [executed_by]
    world.given[executed_by][0][1](Done("op1", "planned"))
    world.turns()
    assert [reply.outcome["result"] for reply in world.replies("op1")] == ["planned"]


def test_other_requests_neither_wait_for_a_pre_stop_nor_hold_it_up() -> None:
    world, _ = lone()
    world.around["b1"].owners[BUNDLE] = "b1"
    world.ask("op1", "unload", name=BUNDLE)
    world.turn()
    del world.log[1]  # the claim is lost
    world.ask("op2", "pre-stop", broker="b1")
    world.turns(2)
    assert [type(command) for command in world.executions()["b1"]] == [PreStop]
    world.ask("op3", "pre-stop", broker="b1")
    world.turn()
    del world.log[-1]
    world.ask("op4", "unload", name=BUNDLE)
    world.turns(2)
    assert [type(command) for command in world.executions()["b1"]] == [PreStop, Unload]


def test_a_malformed_pre_stop_holds_up_no_other() -> None:
    world, _ = lone(leading=False)  # so that it is not refused yet
    world.ask("op1", "pre-stop", broker="b1", notice_s="soon")
    world.ask("op2", "pre-stop", broker="b1")
    world.turns(2)
    assert [type(command) for command in world.executions()["b1"]] == [PreStop]


# --- executing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("passed_ms", "left_s"), [(0, 30.0), (10_000, 20.0), (29_600, 0.5), (30_000, 0.5)])
def test_a_command_gets_the_time_that_is_left_and_half_a_second_at_least(passed_ms: int, left_s: float) -> None:
    world, desk = lone()
    world.ask("op1", "create-namespace", namespace="a/b")
    world.turn()
    desk.heard(world.time_ms + passed_ms)
    world.turn()
    command, outcome = world.given["b1"][0]
    assert command.timeout_s == left_s  # type: ignore[union-attr]
    outcome(Started("op1", BUNDLE, 0, 7))
    assert world.given["b1"][1][0] == AwaitOperation("op1", left_s)
    assert desk.executed == 1


def test_a_start_is_written_with_its_place() -> None:
    world, _ = lone()
    world.ask("op1", "create-namespace", namespace="a/b")
    world.turns(2)
    world.given["b1"][0][1](Started("op1", BUNDLE, 0, 7))
    started = encode(
        Progress(
            "op1",
            ProgressStage.STARTED,
            "b1",
            "i1",
            facts={"outcome": "started", "operation": "op1", "bundle": BUNDLE, "partition": 0, "offset": 7},
        )
    )
    assert world.log[-1].value == started


@pytest.mark.parametrize(("reason", "replied"), [("busy", "busy"), ("closed", "draining")])
def test_a_member_that_takes_no_commands_says_so(reason: str, replied: str) -> None:
    world = World("b1", leading="b1")

    def refuse(_: object, __: object) -> None:
        raise ChannelStoppedError(Stopped(reason, "its detail"))  # type: ignore[arg-type]

    desk = RequestCoordinator(world.around["b1"], append=world.append, submit=refuse, ask_extension=refuse)
    desk.opened(PartitionOpened(Topic.REQUESTS, 0, 0, 0))
    world.desks["b1"] = desk
    world.ask("op1", "create-namespace", namespace="a/b")
    world.turns()
    (reply,) = world.replies("op1")
    assert (reply.outcome["reason"], reply.outcome["message"]) == (replied, "its detail")
    assert replied in REJECTED


def test_a_request_that_is_read_twice_is_executed_once() -> None:
    world, desk = lone()
    for _ in range(3):
        world.ask("op1", "create-namespace", namespace="a/b")
        world.turns(2)
    assert (len(world.executions()["b1"]), len(desk)) == (1, 1)


# --- deadlines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("passed_ms", "kept"), [(5_000, True), (5_001, False)])
@pytest.mark.parametrize("acting", [True, False])
def test_a_request_is_in_time_up_to_its_deadline(passed_ms: int, kept: bool, acting: bool) -> None:
    world, desk = lone(leading=False)
    world.around["b1"].acting = acting
    world.ask("op1", "create-namespace", timeout_s=5, namespace="a/b")
    read_last(world, desk)
    desk.heard(world.time_ms + passed_ms)
    desk.review(1.0)
    assert (len(desk) == 1) is kept


@pytest.mark.parametrize(("passed_ms", "kept"), [(5_100, True), (5_101, False)])
def test_an_executed_request_is_kept_a_while_beyond_its_deadline(passed_ms: int, kept: bool) -> None:
    world, desk = lone(linger_s=0.1)
    world.ask("op1", "create-namespace", timeout_s=5, namespace="a/b")
    world.turns(2)
    desk.heard(world.time_ms + passed_ms)
    desk.review(FOREVER_S)
    assert (len(desk) == 1) is kept


@pytest.mark.parametrize(
    ("ahead_ms", "acting", "kept"), [(2_000, True, True), (2_001, True, False), (2_001, False, True)]
)
def test_a_deadline_that_is_ahead_by_more_than_two_seconds_is_put_right_by_who_acts(
    ahead_ms: int, acting: bool, kept: bool
) -> None:
    world, desk = lone(leading=False)
    world.around["b1"].acting = acting
    desk.heard(world.time_ms)
    right_ms = world.time_ms
    world.time_ms += ahead_ms
    world.ask("op1", "create-namespace", timeout_s=5, namespace="a/b")
    read_last(world, desk)
    desk.review(1.0)
    desk.heard(right_ms + 5_001)
    desk.review(2.0)
    assert (len(desk) == 1) is kept


def test_before_the_registry_is_heard_the_time_of_the_requests_counts_and_never_after() -> None:
    world, desk = lone(leading=False)
    world.ask("op1", "create-namespace", timeout_s=5, namespace="a/b")
    read_last(world, desk)
    world.time_ms += 5_001
    world.ask("op2", "create-namespace", timeout_s=5, namespace="a/b")
    read_last(world, desk)
    desk.review(1.0)
    assert len(desk) == 1
    desk.heard(world.time_ms)
    world.time_ms += 5_001
    world.ask("op3", "create-namespace", timeout_s=60, namespace="a/b")
    read_last(world, desk)
    desk.review(2.0)
    assert len(desk) == 2


def test_a_reply_is_heard_in_time_only() -> None:
    world, desk = lone(leading=False)
    heard: list[Outcome] = []
    for name in ("op1", "op2"):
        desk.hear(name, heard.append)
        world.ask(name, "create-namespace", timeout_s=5 if name == "op1" else 60, namespace="a/b")
        read_last(world, desk)
    desk.heard(world.time_ms + 5_001)
    desk.review(1.0)
    for name in ("op1", "op2"):
        world.append(name, encode(Reply(name, "b2", "i1", {"outcome": "done", "operation": name, "result": "x"})))
        read_last(world, desk)
    assert heard == [Done("op2", "x")]


# --- number and size ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("passed_ms", "room"), [(5_000, False), (5_001, True)])
def test_a_request_makes_room_once_it_is_past_its_deadline(passed_ms: int, room: bool) -> None:
    world, desk = lone(leading=False, open_max=1)
    world.ask("op1", "create-namespace", timeout_s=5, namespace="a/b")
    read_last(world, desk)
    world.time_ms += passed_ms
    world.ask("op2", "create-namespace", timeout_s=5, namespace="a/c")
    read_last(world, desk)
    assert (desk.refused, len(desk)) == (0 if room else 1, 1)


@pytest.mark.parametrize(("passed_ms", "replies"), [(5_000, 1), (5_001, 0)])
def test_a_refusal_is_written_up_to_the_deadline(passed_ms: int, replies: int) -> None:
    world, desk = lone(open_max=0)
    world.ask("op1", "create-namespace", timeout_s=5, namespace="a/b")
    read_last(world, desk)
    desk.heard(world.time_ms + passed_ms)
    desk.look(1.0)
    assert len(world.replies("op1")) == replies


def test_open_requests_and_their_replies_are_bounded_by_size() -> None:
    world, _ = lone()
    world.ask("op1", "create-namespace", namespace="a/b")
    size_bytes = len(world.log[0].value or b"")
    desk = world.desks["b1"] = world.desk("b1", open_max_mib=2 * size_bytes / 2**20, repeat_s=FOREVER_S)
    for again in range(3):  # a topic that is opened again is read again
        desk.opened(PartitionOpened(Topic.REQUESTS, 0, 0, 0))
        for name in ("op1", "op2", "op3"):
            world.ask(name, "create-namespace", namespace="a/b")
            read_last(world, desk)
        assert (len(desk), desk.refused) == (2, again + 1)


def test_a_reply_takes_room_until_it_is_read() -> None:
    def attempt(open_max_bytes: int, *, read: bool = False) -> tuple[int, int]:
        world, desk = lone(open_max_mib=open_max_bytes / 2**20)
        world.ask("op1", "create-namespace", namespace="a/b")
        world.turns(2)
        world.given["b1"][0][1](Done("op1", "created"))
        size_bytes = 2 * len(world.log[0].value or b"") + len(world.log[-1].value or b"")
        if read:
            world.turn()
        world.ask("op2", "create-namespace", namespace="a/b")
        read_last(world, desk)
        return desk.refused, size_bytes

    size_bytes = attempt(10_000)[1]
    assert [attempt(size_bytes)[0], attempt(size_bytes - 1)[0], attempt(size_bytes - 1, read=True)[0]] == [0, 1, 0]


def test_the_reply_to_a_forgotten_request_takes_none() -> None:
    world, desk = lone(linger_s=0, open_max_mib=300 / 2**20)
    for number in range(5):
        world.ask(f"op{number}", "create-namespace", timeout_s=5, namespace="a/b")
        world.turns(2)
        world.time_ms += 5_001
        world.append("other", b"junk")
        world.turn()
        assert len(desk) == 0
        world.given["b1"][-1][1](Done(f"op{number}", "created"))
        world.log.pop()  # never written
    assert desk.refused == 0


def test_the_last_ended_requests_are_remembered() -> None:
    world, desk = lone(remembered_max=2)
    for number in range(3):
        world.ask(f"op{number}", "create-namespace", namespace="a/b")
        world.append(
            f"op{number}",
            encode(Reply(f"op{number}", "b2", "i1", {"outcome": "done", "operation": "x", "result": "y"})),
        )
        world.turn()
    for number in (2, 1, 0):
        assert len(desk) == 0
        world.ask(f"op{number}", "create-namespace", namespace="a/b")
        read_last(world, desk)
    assert len(desk) == 1


def test_a_reply_of_the_greatest_size_is_written() -> None:
    def answer(reply_max_bytes: int) -> tuple[str, int]:
        world, _ = lone(reply_max_bytes=reply_max_bytes)
        world.ask("op1", "create-namespace", namespace="a/b")
        world.turns(2)
        world.given["b1"][0][1](Done("op1", "created", {"long": "x" * 500}))
        return world.replies("op1")[0].outcome["answer"], len(world.log[-1].value or b"")

    size_bytes = answer(10_000)[1]
    assert answer(size_bytes) == ("accepted", size_bytes)
    assert answer(size_bytes - 1)[0] == "unknown"


# --- when requests are looked at ------------------------------------------------------------------------------------


def test_new_requests_are_checked_at_once_and_all_of_them_once_a_period() -> None:
    world, desk = lone(leading=False, review_s=10.0, repeat_s=FOREVER_S)
    around = world.around["b1"]
    names = itertools.count(1)

    def ask() -> None:
        world.ask(f"op{next(names)}", "create-namespace", timeout_s=600, namespace="a/b")
        read_last(world, desk)

    ask()
    desk.look(100.0)
    around.leading = True
    for now_s, new, claimed in ((109.9, False, []), (109.9, True, ["op2"]), (110.0, False, ["op2", "op1"])):
        if new:
            ask()
        desk.look(now_s)
        assert world.claims() == claimed
    around.leading = False
    ask()
    desk.look(110.5)
    around.leading = True
    for now_s, claims in ((119.9, 2), (120.0, 3)):
        desk.look(now_s)
        assert len(world.claims()) == claims


def test_who_has_read_to_the_end_checks_all_at_once() -> None:
    world, desk = lone(review_s=FOREVER_S)
    desk.opened(PartitionOpened(Topic.REQUESTS, 0, 0, 5))
    desk.look(2 * FOREVER_S)
    world.ask("op1", "create-namespace", namespace="a/b")
    read_last(world, desk)
    for position, claims in ((4, 0), (5, 1)):
        desk.reached(PositionReached(Topic.REQUESTS, 0, position, 0.0))
        desk.look(2 * FOREVER_S + 1)
        assert len(world.claims()) == claims
    desk.reached(PositionReached(Topic.REQUESTS, 0, 3, 0.0))  # a late report
    desk.read(world.log[0]._replace(offset=6, value=world.log[0].value.replace(b"op1", b"op2")))  # type: ignore[union-attr]
    desk.look(2 * FOREVER_S + 2)
    assert world.claims() == ["op1", "op2"]


def test_of_many_requests_some_are_claimed_at_a_time() -> None:
    world, desk = lone(repeat_s=FOREVER_S, review_s=FOREVER_S)
    for number in range(450):
        world.ask(f"op{number}", "create-namespace", namespace="a/b")
        read_last(world, desk)
    for claimed in (200, 400, 450, 450):
        desk.look(1.0)
        assert len(world.claims()) == claimed
