"""`broker pre-stop`: its options, and what it says without an answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.cli import pre_stop as module
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.requests import RequestAnswer, SentRequest
from statechannel.cli.pre_stop import lengths
from statechannel.engine.commands import Done, Outcome, Rejected
from statechannel.engine.membership import Member
from statechannel.errors import ExitCode


@pytest.mark.parametrize(
    ("within", "notice", "expected"),
    [("60s", "0s", (60.0, 0.0)), ("1m30s", "5s", (90.0, 5.0)), ("5s", "0", (5.0, 0.0)), ("1h", "3s", (3_600.0, 3.0))],
)
def test_lengths(within: str, notice: str, expected: tuple[float, float]) -> None:
    assert lengths(within, notice) == expected


@pytest.mark.parametrize(
    ("within", "notice", "what"),
    [
        ("60", "0s", "--within 60: not a duration"),
        ("2s", "0s", "--within 2s: must be between 5 s and 3600 s"),
        ("2h", "0s", "--within 2h: must be between 5 s and 3600 s"),
        ("60s", "soon", "--notice soon: not a duration"),
        ("10s", "9s", "--notice 9s leaves no time to hand over within 10s"),
    ],
)
def test_lengths_that_cannot_be(within: str, notice: str, what: str) -> None:
    with pytest.raises(CommandError, match=what) as result:
        lengths(within, notice)
    assert result.value.exit_code == ExitCode.USAGE


class Around:
    """A broker that is heard, or not, and its answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, outcome: Outcome | None, claimed_by: str | None) -> None:
        self.args: dict[str, Any] = {}
        self.held = [6, 4]
        monkeypatch.setattr(module, "_held", lambda *_: self.held.pop(0))
        monkeypatch.setattr(module, "send", self.send)
        monkeypatch.setattr(module, "follow", lambda *_: RequestAnswer("1", outcome, claimed_by))

    def send(self, _: object, command: object, args: dict[str, Any], wait_s: float) -> SentRequest:
        self.args = {"command": str(command), "wait_s": wait_s, **args}
        return SentRequest("1", 7, wait_s)

    def ask(self) -> module.HandedOver:
        member = Member("b1", "b1-7", 0.0, 0, 0, {})
        connection: Any = SimpleNamespace()
        return module._hand_over(connection, member, 2.0, module.time.monotonic() + 30)


def test_the_request_names_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"began_with": 6, "handed_over": 6, "left": 0, "new": "fact"}
    around = Around(monkeypatch, Done("", "handed-over", facts), "b1")
    handed = around.ask()
    assert (around.args["broker"], around.args["incarnation"], around.args["notice_s"]) == ("b1", "b1-7", 2.0)
    assert 0 < around.args["wait_s"] <= 29
    assert handed.fields() | {"took_s": 0} == {
        "broker": "b1",
        "operation": "1",
        "answer": "accepted",
        "result": "handed-over",
        "began_with": 6,
        "handed_over": 6,
        "left": 0,
        "took_s": 0,
    }


@pytest.mark.parametrize(
    ("claimed_by", "what", "code"),
    [
        (None, "b1 has not taken the request up within .* s: 4 of 6 bundles left", ExitCode.NO_BROKER),
        ("b1", "b1 has not answered within .* s: 4 of 6 bundles left", ExitCode.UNDETERMINED),
    ],
)
def test_without_an_answer_the_channel_shows_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch, claimed_by: str | None, what: str, code: ExitCode
) -> None:
    with pytest.raises(CommandError, match=what) as result:
        Around(monkeypatch, None, claimed_by).ask()
    assert result.value.exit_code == code


def test_a_refusal_of_an_older_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match=r"rejected \(bad-request\)") as result:
        Around(monkeypatch, Rejected("bad-request", "unknown command"), "b2").ask()
    assert result.value.exit_code == ExitCode.REJECTED
    assert "older than this command" in result.value.hint
