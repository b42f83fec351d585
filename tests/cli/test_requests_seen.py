"""What was asked for by commands, as people are told it."""

from __future__ import annotations

from typing import Any

import pytest

from statechannel.cli.requests_seen import _asked
from statechannel.runtime.request_record import Asked, Request


@pytest.mark.parametrize(
    ("asked", "args", "flow"),
    [
        (Asked.TRANSFER, {"name": "t/n/x"}, "transfer"),
        (Asked.EXTENSION, {"extension": "balancer", "ask": "drain", "broker": "b1"}, "drain"),
        (Asked.EXTENSION, {"extension": "balancer", "ask": "split", "name": "t/n/x"}, "split"),
        (Asked.EXTENSION, {"extension": "balancer"}, "extension"),
        (Asked.EXTENSION, {"extension": "balancer", "ask": 5}, "extension"),
        (Asked.UNLOAD, {"name": "t/n/x", "ask": "drain"}, "unload"),
    ],
)
def test_of_an_extension_it_is_told_what_was_asked_of_it(asked: Asked, args: dict[str, Any], flow: str) -> None:
    assert _asked(Request("1", asked.value, 0, args, "ann@desk"), 0)["flow"] == flow
