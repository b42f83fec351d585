"""`statechannel split`: what it asks the brokers for."""

from typing import Any

import pytest
from typer.testing import CliRunner

from statechannel.cli.kit import requests
from statechannel.cli.kit.requests import RequestAnswer
from statechannel.cli.split import split_app
from statechannel.engine.commands import Done
from statechannel.errors import UsageError
from statechannel.operations.request_record import Request, command_of, decode, encode
from statechannel.operations.table import ExtensionAsk, RequestCommand

BUNDLE = "t/n/0x00000000_0x80000000"
OPERATION = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[RequestCommand, dict[str, Any]]]:
    """What was asked for; every answer is that it is done."""
    results: list[tuple[RequestCommand, dict[str, Any]]] = []

    def ask(_connection: object, what: RequestCommand, args: dict[str, Any], **_: Any) -> RequestAnswer:
        results.append((what, {name: value for name, value in args.items() if value is not None}))
        return RequestAnswer(OPERATION, Done(OPERATION, "done"), "b1")

    monkeypatch.setattr(requests, "ask", ask)
    return results


def split(*args: str) -> str:
    result = CliRunner().invoke(split_app, [BUNDLE, *args, "-b", "127.0.0.1:9"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_without_an_algorithm_the_channel_alone_is_asked(asked: list[Any]) -> None:
    split()
    split("--parts", "4", "--reason", "hot")
    split("--at", "0x10000000", "--at", "5", "--set", "limits.command_timeout_s=7")
    assert asked == [
        (RequestCommand.SPLIT, {"name": BUNDLE, "parts": 2}),
        (RequestCommand.SPLIT, {"name": BUNDLE, "parts": 4, "reason": "hot"}),
        (RequestCommand.SPLIT, {"name": BUNDLE, "at": [0x10000000, 5]}),
    ]


def test_an_algorithm_is_asked_of_the_owner_with_its_settings(asked: list[Any]) -> None:
    output = split(
        "--algorithm", "flow_or_qps_equally_divide", "--set", "max_msg_rate=5000", "--set", "limits.command_timeout_s=7",
        "--set", "positions=[1, 2]", "--set", "other=none", "--unload-children",
    )  # fmt: skip
    assert output.startswith(f"{BUNDLE} split by flow_or_qps_equally_divide, children unloaded (operation ")
    what, args = asked[0]
    assert what is RequestCommand.EXTENSION
    assert args == {
        "extension": "balancer",
        "ask": "split",
        "to": "owner",
        "name": BUNDLE,
        "algorithm": "flow_or_qps_equally_divide",
        "settings": {"max_msg_rate": "5000", "positions": [1, 2], "other": None},
        "unload_children": True,
    }


@pytest.mark.parametrize(
    ("given", "where"),
    [((), {"parts": 2}), (("--parts", "3"), {"parts": 3}), (("--at", "0x10000000"), {"at": [0x10000000]})],
)
def test_letting_the_children_go_is_the_owners_whatever_the_cuts(
    given: tuple[str, ...], where: dict[str, Any], asked: list[Any]
) -> None:
    split(*given, "--unload-children")
    assert asked[0][0] is RequestCommand.EXTENSION
    assert {name: value for name, value in asked[0][1].items() if name in ("at", "parts", "algorithm")} == where
    assert asked[0][1]["unload_children"] is True


def test_what_is_asked_can_be_executed(asked: list[Any]) -> None:
    split("--algorithm", "range-equally-divide", "--reason", "too hot")
    what, args = asked[0]
    read = decode(encode(Request(OPERATION, what.value, 0, args, "me"), timeout_s=5), 1_000)
    assert isinstance(read, Request)
    command = command_of(read, 5)
    assert isinstance(command, ExtensionAsk)
    assert (command.extension, command.ask, command.args["reason"]) == ("balancer", "split", "too hot")


def test_the_reply_names_the_bundle_that_was_split(monkeypatch: pytest.MonkeyPatch) -> None:
    done = RequestAnswer(OPERATION, Done(OPERATION, "split", {"bundle": BUNDLE}), "b1")
    monkeypatch.setattr(requests, "ask", lambda *_, **__: done)
    for name, named in ((BUNDLE, BUNDLE), ("t/n/orders", f"{BUNDLE}, the bundle of t/n/orders,")):
        result = CliRunner().invoke(split_app, [name, "-b", "127.0.0.1:9"], catch_exceptions=False)
        assert result.output.startswith(f"{named} split into 2 parts (")


@pytest.mark.parametrize(
    "local", ["0x00000000", "0X00000000_0X80000000", "0x0000000_0x80000000", "0x00000000-0x80000000"]
)
def test_a_name_that_looks_like_bounds_is_refused_before_anything_is_asked(asked: list[Any], local: str) -> None:
    result = CliRunner().invoke(split_app, [f"t/n/{local}", "-b", "127.0.0.1:9"])
    assert isinstance(result.exception, UsageError)
    assert "persistent://tenant/namespace/topic" in result.exception.hint
    assert asked == []
    assert CliRunner().invoke(split_app, [f"persistent://t/n/{local}", "-b", "127.0.0.1:9"]).exit_code == 0
