"""Desks of several brokers on one requests topic: one executes, replies are found, lost claimers are replaced."""

from collections.abc import Callable

import pytest

from statechannel.broker.requests import RequestCoordinator
from statechannel.engine.commands import (
    AwaitOperation,
    Command,
    CreateNamespace,
    Done,
    Lookup,
    Outcome,
    PreStop,
    Rejected,
    Shutdown,
    Split,
    Started,
    Transfer,
    UndoPreStop,
    Unknown,
)
from statechannel.engine.inputs import PartitionOpened
from statechannel.operations import request_record
from statechannel.operations.request_record import Reply, decode, encode
from statechannel.operations.table import ANSWER_PART
from statechannel.protocol.log import Topic
from statechannel.settings.groups_engine import RequestSettings
from tests.support.request_world import BUNDLE, World


def test_the_owner_executes_and_the_reply_ends_it_everywhere() -> None:
    world = World("b1", "b2", "b3", leading="b1")
    for around in world.around.values():
        around.owners[BUNDLE] = "b2"
    world.ask("op1", "transfer", name=BUNDLE, destination="b3", to="b3")  # `to` is not for it
    world.turns()
    assert world.executions() == {"b2": [Transfer(BUNDLE, "b3", "op1", 30.0)]}
    world.given["b2"][0][1](Started("op1", BUNDLE, 0, 7))
    command, tell = world.given["b2"][1]
    assert isinstance(command, AwaitOperation)
    assert command.operation == "op1"
    tell(Done("op1", "transferred"))
    world.turns()
    assert [reply.outcome["result"] for reply in world.replies("op1")] == ["transferred"]
    assert world.replies("op1")[0].outcome["answer"] == "accepted"
    assert all(len(desk) == 0 for desk in world.desks.values())
    world.ask("op1", "transfer", name=BUNDLE, destination="b3")  # the same id once more
    world.turns()
    assert len(world.given["b2"]) == 2


def test_what_a_check_refuses_is_answered_and_not_executed() -> None:
    world = World("b1", leading="b1")
    world.refusal = lambda request: Rejected("filtered", "it is pinned") if request.asked == "unload" else None
    world.ask("op1", "unload", name=BUNDLE)
    world.ask("op2", "lookup", name="a/b/t")
    world.turns()
    assert [reply.outcome["reason"] for reply in world.replies("op1")] == ["filtered"]
    assert world.executions() == {"b1": [Lookup("a/b/t", 30.0)]}


def test_unowned_bundles_namespaces_and_lookups_are_the_leaders() -> None:
    world = World("b1", "b2", leading="b2")
    world.ask("op1", "create-namespace", namespace="a/b", bundles=2)
    world.ask("op2", "unload", name=BUNDLE)
    world.ask("op3", "lookup", name="a/b/t")
    world.turns()
    assert list(world.executions()) == ["b2"]
    assert world.given["b2"][0][0] == CreateNamespace("a/b", (0, 0x80000000, 0xFFFFFFFF), "op1", 30.0)
    assert len(world.given["b2"]) == 3


def two_leaders() -> World:
    """Both have read one request, and have written a claim."""
    world = World("b1", "b2")
    for around in world.around.values():
        around.leading = True
    world.ask("op1", "create-namespace", namespace="a/b")
    for broker, desk in world.desks.items():
        desk.read(world.log[0])
        world.read[broker] = 1
    for desk in world.desks.values():
        desk.review(world.now_s)
    assert len(world.log) == 3
    return world


def test_two_that_think_they_lead_the_first_claim_in_the_log_wins() -> None:
    world = two_leaders()
    world.turns(6)
    assert len(world.claims()) == 2
    assert list(world.executions()) == ["b1"]


def test_a_deputy_takes_up_what_a_leader_would_but_nothing_of_extensions() -> None:
    world = World("b1", "b2")
    world.ask("op1", "create-namespace", namespace="a/b")
    world.ask("op2", "unload", name=BUNDLE)
    world.ask("op3", "lookup", name="a/b/t")
    world.ask("op4", "extension", extension="balancer", ask="plan", addressee="leader")
    world.turns()
    assert world.executions() == {}
    world.around["b2"].deputizing = True
    world.turns()
    assert list(world.executions()) == ["b2"]
    assert [type(command).__name__ for command in world.executions()["b2"]] == ["CreateNamespace", "Unload", "Lookup"]


def test_only_the_broker_addressed_shuts_down() -> None:
    world = World("b1", "b2", leading="b1")
    world.ask("op1", "shutdown", broker="b2", budget_s=5)
    world.turns()
    assert world.executions() == {"b2": [Shutdown(5.0)]}


def test_a_pre_stop_is_for_the_process_that_it_names() -> None:
    world = World("b1", "b2", leading="b1")
    world.around["b2"].acting = False
    world.ask("op1", "pre-stop", broker="b2", incarnation="i0", notice_s=2)
    world.turns()
    assert world.executions() == {}, "the process that it means has ended"
    world.ask("op2", "pre-stop", broker="b2", incarnation="i1", notice_s=2)
    world.turns()
    assert world.executions() == {"b2": [PreStop(30.0 * ANSWER_PART, 2.0)]}, "also one that hands over already"
    world.ask("op3", "pre-stop", broker="b2", incarnation="i1", budget_s=4)
    world.turns()
    assert world.executions()["b2"][1:] == [PreStop(4.0, 0.0)]
    world.ask("op4", "undo-pre-stop", broker="b2", incarnation="i0")
    world.ask("op5", "undo-pre-stop", broker="b2", incarnation="i1")
    world.turns()
    assert world.executions()["b2"][2:] == [UndoPreStop()], "likewise"


@pytest.mark.parametrize("asked", [("pre-stop", "undo-pre-stop"), ("undo-pre-stop", "pre-stop")])
def test_a_lost_claim_of_a_pre_stop_or_its_undo_does_not_change_their_order(asked: tuple[str, str]) -> None:
    world = World("b1")
    world.ask("op1", asked[0], broker="b1", incarnation="i1")
    world.turn()
    assert len(world.log) == 2
    del world.log[1]  # the claim
    world.ask("op2", asked[1], broker="b1", incarnation="i1")
    world.turns(30)
    kinds = {"pre-stop": PreStop, "undo-pre-stop": UndoPreStop}
    assert [type(command) for command in world.executions()["b1"]] == [kinds[command] for command in asked]


def test_a_pre_stop_that_came_to_nothing_holds_up_no_undo() -> None:
    world = World("b1")
    world.ask("op1", "pre-stop", timeout_s=1, broker="b1", incarnation="i1")
    world.turn()
    del world.log[1]
    world.ask("op2", "undo-pre-stop", broker="b1", incarnation="i1")
    world.turns()
    assert world.executions() == {}, "it waits for the first one's claim"
    world.time_ms += 1_500
    world.ask("op3", "lookup", name="a/b/t")
    world.turns()
    assert world.executions() == {"b1": [UndoPreStop()]}


def test_a_lost_claimer_is_replaced_a_restarted_one_too() -> None:
    world = World("b1", "b2", leading="b1")
    world.ask("op1", "create-namespace", namespace="a/b")
    world.turns()
    assert list(world.executions()) == ["b1"]
    world.alive["b1"] = "i2"  # a new process under the same id
    del world.desks["b1"]
    world.around["b2"].leading = True
    world.turns()
    assert list(world.executions()) == ["b1", "b2"]
    # The claim of the lost one, arriving late, changes nothing.
    late = request_record.Progress("op1", request_record.ProgressStage.CLAIMED, "b1", "i1")
    world.append("op1", encode(late))
    world.turns()
    assert len(world.given["b2"]) == 1


def test_who_lost_the_race_for_a_claim_takes_over_at_once_when_the_claimer_is_lost() -> None:
    """Not only after the time in which its own claim would be written again."""
    world = two_leaders()
    world.turn("b2")
    del world.desks["b1"], world.alive["b1"]
    world.turns(3)
    assert list(world.executions()) == ["b2"]
    assert world.now_s < RequestSettings().repeat_s


def test_owner_that_died_the_leader_takes_over_the_question() -> None:
    world = World("b1", "b2", leading="b1")
    for around in world.around.values():
        around.owners[BUNDLE] = "b9"
    world.ask("op1", "unload", name=BUNDLE)
    world.turns()
    assert list(world.executions()) == ["b1"]


def test_ownership_that_changes_before_the_claim_is_looked_at_again() -> None:
    world = World("b1", "b2")
    for around in world.around.values():
        around.owners[BUNDLE] = "b2"
    world.around["b2"].acting = False
    world.ask("op1", "split", name=BUNDLE, parts=4)
    world.turns()
    assert world.executions() == {}
    for around in world.around.values():
        around.owners[BUNDLE] = "b1"
    world.turns()
    assert world.executions() == {"b1": [Split(BUNDLE, "op1", 30.0, (), 4)]}


def test_a_claim_or_a_reply_of_an_unknown_request_changes_nothing() -> None:
    world = World("b1", leading="b1")
    world.append("op0", encode(request_record.Progress("op0", request_record.ProgressStage.CLAIMED, "b1", "i1")))
    world.append("op0", encode(Reply("op0", "b2", "i1", {"outcome": "done", "operation": "op0", "result": "done"})))
    world.ask("op1", "create-namespace", namespace="a/b")
    world.turns()
    assert len(world.executions()["b1"]) == 1


def test_a_topic_that_is_opened_again_holds_only_what_is_read_of_it_from_then_on() -> None:
    world = World("b1")
    world.around["b1"].acting = False
    world.ask("op1", "create-namespace", namespace="a/b")
    world.turns()
    desk = world.desks["b1"]
    assert len(desk) == 1
    desk.opened(PartitionOpened(Topic.REQUESTS, 0, 0, 0))
    assert len(desk) == 0
    world.around["b1"].acting = world.around["b1"].leading = True
    world.ask("op2", "create-namespace", namespace="a/c")
    world.turns()
    assert [command.operation for command in world.executions()["b1"]] == ["op2"]  # type: ignore[union-attr]


def test_what_is_beyond_the_limit_is_refused_once_by_the_leader_and_not_where_it_is_answered() -> None:
    world = World("b1")
    desk = world.desk("b1", open_max=2)
    for number in range(5):
        world.ask(f"op{number}", "create-namespace", namespace=f"a/n{number}")
    world.append("op4", encode(Reply("op4", "b2", "i1", {"outcome": "done", "operation": "op4", "result": "done"})))
    desk.opened(PartitionOpened(Topic.REQUESTS, 0, 0, len(world.log)))
    for record in world.log[:-1]:
        desk.read(record)
    world.around["b1"].leading = True
    desk.look(1.0)
    assert world.replies("op2") == [], "not before the history is read to its end"
    desk.read(world.log[5])
    world.around["b1"].leading = False
    desk.look(2.0)
    assert world.replies("op2") == [], "by the leader alone"
    world.around["b1"].leading = True
    desk.look(3.0)
    desk.look(4.0)
    refused = {name: [reply.outcome["reason"] for reply in world.replies(name)] for name in ("op2", "op3")}
    assert refused == {"op2": ["busy"], "op3": ["busy"]}
    assert [len(world.replies(name)) for name in ("op0", "op1", "op4")] == [0, 0, 1]
    assert (len(desk), desk.refused) == (2, 3)


@pytest.mark.parametrize(("executing", "room"), [(False, True), (True, False)])
def test_requests_past_their_deadline_make_room_unless_they_are_executed(executing: bool, room: bool) -> None:
    world = World("b1")
    world.around["b1"].leading = executing
    desk = world.desk("b1", open_max=1)
    world.desks["b1"] = desk
    world.ask("op1", "create-namespace", timeout_s=5, namespace="a/b")
    world.turns()
    assert ("b1" in world.executions()) is executing
    world.time_ms += 6_000
    world.ask("op2", "create-namespace", namespace="a/c")
    desk.read(world.log[-1])
    assert desk.refused == (not room)
    assert len(desk) == 1


HOUR_MS = 3_600_000


def test_after_kafkas_clock_was_ahead_requests_are_executed_as_ever() -> None:
    world = World("b1", leading="b1")
    desk = world.desks["b1"]
    desk.heard(world.time_ms + 2 * HOUR_MS)
    desk.heard(world.time_ms)
    world.ask("op1", "create-namespace", namespace="a/b", timeout_s=5)
    world.turns()
    assert "op1" in {command.operation for command in world.executions()["b1"] if isinstance(command, CreateNamespace)}


def test_a_request_of_a_time_when_the_clock_was_ahead_is_late_when_it_would_be_by_the_right_time() -> None:
    world = World("b1")
    desk = world.desks["b1"]
    right_ms = world.time_ms
    world.time_ms += 2 * HOUR_MS
    desk.heard(world.time_ms)
    world.ask("op1", "create-namespace", namespace="a/b", timeout_s=5)
    world.turns()
    desk.heard(right_ms)
    world.turns()
    assert len(desk) == 1
    desk.heard(right_ms + 6_000)
    world.turns()
    assert len(desk) == 0
    world.around["b1"].leading = True
    world.turns()
    assert world.executions() == {}


def test_history_is_read_to_its_end_before_anything_is_done() -> None:
    world = World("b1", leading="b1")
    world.ask("op1", "create-namespace", namespace="a/b")
    world.append("op1", encode(Reply("op1", "b0", "i0", {"outcome": "done"})))
    desk = world.desk("b1")
    desk.read(world.log[0])
    desk.review(1.0)
    assert len(world.log) == 2  # no claim
    desk.read(world.log[1])
    desk.review(2.0)
    assert len(desk) == 0


def test_lost_appends_are_written_again_and_not_too_often() -> None:
    world = World("b1", leading="b1")
    desk = world.desk("b1", repeat_s=2.0)
    world.ask("op1", "create-namespace", namespace="a/b")
    desk.read(world.log[0])
    for now_s, written in ((10.0, 1), (11.9, 1), (12.0, 2), (13.9, 2), (14.0, 3)):
        desk.review(now_s)
        assert len(world.claims()) == written


def test_bad_requests_get_a_reason_junk_gets_nothing() -> None:
    world = World("b1", leading="b1")
    world.append("x", b"\xff")
    world.append("x", None)
    world.append("x", b'{"format":1,"kind":"request"}')
    world.ask("op1", "dance")
    world.ask("op2", "transfer", name=BUNDLE)
    world.turns()
    assert world.executions() == {}
    assert "dance" in world.replies("op1")[0].outcome["message"]
    assert "destination" in world.replies("op2")[0].outcome["message"]
    assert world.replies("op2")[0].outcome["answer"] == "rejected"


def test_a_command_that_cannot_be_given_is_answered_and_the_desk_goes_on() -> None:
    world = World("b1", leading="b1")

    def refuse(command: Command, tell: Callable[[Outcome], None]) -> None:
        raise RuntimeError("no room")

    desk = RequestCoordinator(world.around["b1"], append=world.append, submit=refuse, ask_extension=refuse)
    desk.opened(PartitionOpened(Topic.REQUESTS, 0, 0, 0))
    world.desks["b1"] = desk
    world.ask("op1", "create-namespace", namespace="a/b")
    world.turns()
    assert world.replies("op1")[0].outcome["reason"] == "internal-error"
    assert len(desk) == 0


def nested(levels: int) -> object:
    results: object = "x"
    for _ in range(levels):
        results = [results]
    return results


@pytest.mark.parametrize("facts", [{"deep": nested(900)}, {"long": "x" * 600_000}], ids=["deep", "long"])
def test_an_outcome_that_no_reply_can_hold_is_told_as_unknown(facts: dict) -> None:
    world = World("b1", leading="b1")
    world.ask("op1", "create-namespace", namespace="a/b", bundles=1)
    world.turns()
    world.given["b1"][0][1](Done("op1", "created", facts))
    world.turns()
    assert world.replies("op1")[0].outcome["answer"] == "unknown"
    assert len(world.desks["b1"]) == 0


def test_a_request_that_nobody_can_answer_is_forgotten_some_time_after_its_deadline() -> None:
    world = World("b1", leading="b1")
    world.ask("op1", "create-namespace", namespace="a/b", bundles=1)
    world.turns()
    world.desks["b1"]._append = lambda _identifier, _value: None  # Kafka refuses the reply, again and again
    world.given["b1"][0][1](Done("op1", "created"))
    world.turns()
    assert len(world.desks["b1"]) == 1
    world.time_ms += 30_000 + 1_000 * RequestSettings().linger_s + 1
    world.append("other", b"junk")
    world.turns()
    assert len(world.desks["b1"]) == 0


def test_a_reply_that_kafka_did_not_take_is_written_again_also_after_the_deadline() -> None:
    world = World("b1", leading="b1")
    world.ask("op1", "create-namespace", timeout_s=5, namespace="a/b", bundles=1)
    world.turns()
    world.time_ms += 5_500
    world.append("other", b"junk")
    world.turn()
    world.given["b1"][0][1](Done("op1", "created"))
    assert isinstance(decode(world.log.pop().value, 0), Reply), "Kafka refuses it"
    world.turns(30)
    assert [reply.outcome["result"] for reply in world.replies("op1")] == ["created"]


def test_who_wants_to_hear_a_reply_is_told_it_once() -> None:
    world = World("b1", "b2", leading="b2")
    heard: list[Outcome] = []
    desk = world.desks["b1"]
    desk.hear("op1", heard.append)
    desk.hear("op2", heard.append)
    world.ask("op1", "create-namespace", namespace="a/b")
    world.turns()
    assert heard == []
    world.given["b2"][0][1](Done("op1", "created"))
    world.turns()
    assert heard == [Done("op1", "created")]
    world.append("op1", encode(Reply("op1", "b2", "i1", {"outcome": "done", "operation": "op1", "result": "again"})))
    world.append("op2", encode(Reply("op2", "b2", "i1", {"outcome": "no such thing"})))  # anybody may write there
    world.turns()
    assert [type(outcome) for outcome in heard] == [Done, Unknown]


def test_of_too_many_who_want_to_hear_a_reply_the_oldest_is_forgotten() -> None:
    world = World("b1")
    desk = world.desk("b1", remembered_max=2)
    heard: list[Outcome] = []
    for number in range(3):
        desk.hear(f"op{number}", heard.append)
    for number in range(3):
        facts = {"outcome": "done", "operation": f"op{number}", "result": "done"}
        world.append(f"op{number}", encode(Reply(f"op{number}", "b2", "i1", facts)))
        desk.read(world.log[-1])
    assert heard == [Done("op1", "done"), Done("op2", "done")]
