"""`broker pre-stop`: its options, and what it says without an answer."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.cli import pre_stop as module
from statechannel.cli.kit.requests import RequestAnswer, SentRequest
from statechannel.cli.pre_stop import lengths
from statechannel.engine.commands import Done, Outcome, Rejected
from statechannel.engine.membership import Member
from statechannel.errors import ExitCode, UsageError
from statechannel.kafka.errors import KafkaUnavailableError
from statechannel.operations.table import ANSWER_PART


@pytest.mark.parametrize(
    ("within", "notice", "expected"),
    [("60s", "0s", (60.0, 0.0)), ("1m30s", "5s", (90.0, 5.0)), ("5s", "0", (5.0, 0.0)), ("1h", "3s", (3_600.0, 3.0))],
)
def test_lengths(within: str, notice: str, expected: tuple[float, float]) -> None:
    assert lengths(within, notice) == expected


@pytest.mark.parametrize(
    ("within", "notice"), [("60", "0s"), ("2s", "0s"), ("2h", "0s"), ("60s", "soon"), ("10s", "9s")]
)
def test_lengths_that_cannot_be(within: str, notice: str) -> None:
    with pytest.raises(UsageError):
        lengths(within, notice)


class Around:
    """A broker that is heard, or not, and its answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, outcome: Outcome | None, claimed_by: str | None) -> None:
        self.args: dict[str, Any] = {}
        self.held = [6, 4]
        monkeypatch.setattr(module, "_count_bundles", lambda *_: self.held.pop(0))
        monkeypatch.setattr(module, "send", self.send)
        monkeypatch.setattr(module, "follow", self.follow)
        self.answer = RequestAnswer("1", outcome, claimed_by)
        self.waited_s = 0.0

    def send(self, _: object, command: object, args: dict[str, Any], wait_s: float) -> SentRequest:
        self.args = {"command": str(command), "wait_s": wait_s, **args}
        return SentRequest("1", 7, wait_s)

    def follow(self, _: object, sent: SentRequest, *, grace_s: float) -> RequestAnswer:
        self.waited_s = sent.wait_s + grace_s
        return self.answer

    def ask(self, within_s: float = 30.0, *, undo: bool = False) -> module.PreStopResult:
        member = Member("b1", "b1-7", 0.0, 0, 0, {})
        connection: Any = SimpleNamespace()
        ends_s = module.time.monotonic() + within_s
        return module._undo(connection, member, ends_s) if undo else module._hand_over(connection, member, 2.0, ends_s)


def test_the_request_names_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"began_with": 6, "handed_over": 6, "left": 0, "new": "fact"}
    around = Around(monkeypatch, Done("", "handed-over", facts), "b1")
    handed = around.ask()
    assert (around.args["broker"], around.args["incarnation"], around.args["notice_s"]) == ("b1", "b1-7", 2.0)
    assert 28 < around.args["budget_s"] <= 30 * ANSWER_PART, "it answers while somebody waits"
    assert around.args["wait_s"] > 30, "a broker that is late takes it up nevertheless"
    assert around.args["budget_s"] < around.waited_s < 30
    assert handed.error is None
    assert handed.fields() | {"took_s": 0} == {
        "broker": "b1",
        "operation": "1",
        "answer": "accepted",
        "result": "handed-over",
        "reason": None,
        "began_with": 6,
        "handed_over": 6,
        "left": 0,
        "took_s": 0,
    }


def test_time_that_is_short_is_used_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may use up most of it before the request is written."""
    around = Around(monkeypatch, None, "b1")
    around.ask(2.0)
    assert 1.0 <= around.args["budget_s"] < around.waited_s < 2.0


@pytest.mark.parametrize(
    ("claimed_by", "what", "reason", "code"),
    [
        (None, "b1 has not taken the request up within .* s: 4 of 6 bundles left", "not-taken-up", ExitCode.NO_BROKER),
        ("b1", "b1 has not answered within .* s: 4 of 6 bundles left", "not-answered", ExitCode.UNDETERMINED),
    ],
)
def test_without_an_answer_the_channel_shows_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch, claimed_by: str | None, what: str, reason: str, code: ExitCode
) -> None:
    ended = Around(monkeypatch, None, claimed_by).ask()
    assert re.fullmatch(what, str(ended.error))
    assert ended.error.exit_code == code
    fields = ended.fields()
    assert (fields["answer"], fields["result"], fields["reason"]) == ("unknown", None, reason)
    assert (fields["began_with"], fields["handed_over"], fields["left"]) == (6, 2, 4)


def test_kafka_that_is_away_at_the_end_is_no_end_without_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    around = Around(monkeypatch, None, "b1")

    def held(*_: object) -> int:
        if len(around.held) == 1:
            raise KafkaUnavailableError("no broker answers")
        return around.held.pop(0)

    monkeypatch.setattr(module, "_count_bundles", held)
    fields = around.ask().fields()
    assert (fields["answer"], fields["began_with"], fields["handed_over"], fields["left"]) == ("unknown", 6, None, None)


@pytest.mark.parametrize(
    ("undo", "reason", "hint"),
    [(False, "bad-request", "older than this command"), (True, "shutting-down", "Start it again")],
)
def test_a_refusal(monkeypatch: pytest.MonkeyPatch, undo: bool, reason: str, hint: str) -> None:
    ended = Around(monkeypatch, Rejected(reason, "it says why"), "b2").ask(undo=undo)
    assert (ended.fields()["answer"], ended.fields()["reason"]) == ("rejected", reason)
    assert ended.error.exit_code == ExitCode.REJECTED
    assert hint in ended.error.hint


def test_what_is_taken_back_in_the_middle_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"began_with": 6, "handed_over": 2, "left": 4}
    ended = Around(monkeypatch, Done("", "undone", facts), "b1").ask()
    assert "2 of 6 bundles handed over in" in str(ended.error)
    assert "took that back meanwhile" in str(ended.error)
    assert ended.fields()["result"] == "undone"


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        ("undone", "b1 takes bundles again; it has 6 bundles"),
        ("not-stopping", "b1 was not to be stopped; it has 6 bundles"),
    ],
)
def test_an_undo(monkeypatch: pytest.MonkeyPatch, result: str, sentence: str) -> None:
    around = Around(monkeypatch, Done("", result), "b1")
    ended = around.ask(undo=True)
    assert (ended.error, ended.sentence, ended.fields()["result"]) == (None, sentence, result)
    assert (around.args["command"], around.args["incarnation"]) == ("undo-pre-stop", "b1-7")
