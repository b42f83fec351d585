"""What was asked for by commands, as people are told it."""

from dataclasses import replace
from typing import Any

import pytest

from statechannel.engine.commands import Done, Outcome, Owned, Rejected
from statechannel.operations import outcomes
from statechannel.operations.request_record import Progress, ProgressStage, Reply, Request
from statechannel.operations.table import RequestCommand
from statechannel.stories.requests import RequestFold
from tests.support.request_world import logged, stories


@pytest.mark.parametrize(
    ("asked", "args", "flow"),
    [
        (RequestCommand.TRANSFER, {"name": "t/n/x"}, "transfer"),
        (RequestCommand.EXTENSION, {"extension": "balancer", "ask": "drain", "broker": "b1"}, "drain"),
        (RequestCommand.EXTENSION, {"extension": "balancer", "ask": "split", "name": "t/n/x"}, "split"),
        (RequestCommand.EXTENSION, {"extension": "balancer"}, "extension"),
        (RequestCommand.EXTENSION, {"extension": "balancer", "ask": 5}, "extension"),
        (RequestCommand.UNLOAD, {"name": "t/n/x", "ask": "drain"}, "unload"),
    ],
)
def test_of_an_extension_it_is_told_what_was_asked_of_it(asked: RequestCommand, args: dict[str, Any], flow: str):
    assert stories(Request("1", asked.value, 0, args, "ann@desk"))["1"].flow == flow


@pytest.mark.parametrize(
    "outcome",
    [
        Done("1", "unloaded", {"bundle": "t/n/0x00000000_0xffffffff"}),
        Rejected("filtered", "no", bundle="t/n/0x00000000_0xffffffff"),
        Owned("t/n/0x00000000_0xffffffff", "b1", 3, {}),
    ],
)
def test_the_bundle_that_was_acted_on_is_named(outcome: Outcome) -> None:
    asked = Request("1", "unload", 0, {"name": "t/n/orders"}, "ann@desk")
    story = stories(asked, Reply("1", "b1", "i1", outcomes.to_json(outcome)))["1"]
    assert (story.name, story.bundle) == ("t/n/orders", "t/n/0x00000000_0xffffffff")


@pytest.mark.parametrize(
    ("items", "status"),
    [
        ((), "asked"),
        ((Progress("1", ProgressStage.CLAIMED, "b1", "i1"),), "running"),
        ((Reply("1", "b1", "i1", {"answer": "accepted"}),), "ended"),
        ((Reply("1", "b1", "i1", {"answer": "rejected"}),), "failed"),
        ((Reply("1", "b1", "i1", {"answer": "unknown"}), Reply("1", "b2", "i2", {"answer": "accepted"})), "unknown"),
        ((Reply("1", "b1", "i1", {"outcome": "undetermined", "reason": "timed-out"}),), "timed-out"),
    ],
)
def test_a_request_ends_with_its_first_reply(items: tuple[Progress | Reply, ...], status: str) -> None:
    asked = Request("1", "unload", 0, {"name": "t/n/orders"}, "ann@desk")
    story = stories(asked, *items, replace(asked, by="eve@desk"))["1"]
    assert (story.status(60_000), story.by) == (status, "ann@desk")
    assert story.executed_by == ("b1" if items else None)
    assert story.status(60_001) == ("expired" if status == "asked" else status)


def test_the_newest_are_remembered_and_a_fold_may_keep_no_arguments() -> None:
    fold = RequestFold(2, keeps_args=False)
    asked = [Request(f"id-{number}", "unload", 0, {"name": f"t/n/{number}"}, "ann@desk") for number in range(3)]
    fold.take(logged(*asked))
    assert list(fold.stories) == ["id-1", "id-2"]
    assert [(story.name, story.args) for story in fold.stories.values()] == [("t/n/1", {}), ("t/n/2", {})]
