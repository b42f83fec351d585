"""What was asked for by commands, as people are told it."""

from __future__ import annotations

from typing import Any

import pytest

from statechannel.broker.request_record import Request, RequestCommand
from statechannel.cli.kit.requests import _asked


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
