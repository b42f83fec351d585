"""What was asked for by commands, as people are told it."""

from __future__ import annotations

from typing import Any

import pytest

from statechannel.broker import outcomes
from statechannel.broker.request_record import Reply, Request, RequestCommand
from statechannel.cli.kit.requests import _asked, requests_of
from statechannel.engine.commands import Done, Outcome, Owned, Rejected
from statechannel.protocol.log import RecordRead, Topic


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
def test_of_an_extension_it_is_told_what_was_asked_of_it(
    asked: RequestCommand, args: dict[str, Any], flow: str
) -> None:
    assert _asked(Request("1", asked.value, 0, args, "ann@desk"), 0)["flow"] == flow


@pytest.mark.parametrize(
    "outcome",
    [
        Done("1", "unloaded", {"bundle": "t/n/0x00000000_0xffffffff"}),
        Rejected("filtered", "no", bundle="t/n/0x00000000_0xffffffff"),
        Owned("t/n/0x00000000_0xffffffff", "b1", 3, {}),
    ],
)
def test_the_bundle_that_was_acted_on_is_named(outcome: Outcome) -> None:
    record = RecordRead(Topic.REQUESTS, 0, 0, 0, b"1", b"")
    asked = Request("1", "unload", 0, {"name": "t/n/orders"}, "ann@desk")
    rows = requests_of([(record, asked), (record, Reply("1", "b1", "i1", outcomes.to_json(outcome)))])
    assert rows["1"]["name"] == "t/n/0x00000000_0xffffffff"
