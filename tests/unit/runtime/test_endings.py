"""How the end of a member is said to those who wait, and which ends of a request may be asked again."""

import pytest

from statechannel.broker.endings import GOODBYE_UNCONFIRMED, after_all, log_end, outcome_of_stopping, within_budget
from statechannel.broker.exits import Stopped
from statechannel.broker.request_record import Addressee
from statechannel.broker.request_writer import balancer_args, may_be_asked_again
from statechannel.engine import commands
from tests.support.log_lines import capture_logs

AWAY = Stopped("log-away", "Kafka did not answer")


@pytest.mark.parametrize(
    ("registered", "left", "reason"),
    [
        (False, "", "log-away"),
        (False, "3 bundles", "log-away"),
        (True, "", "closed"),
        (True, "3 bundles", "shutdown-late"),
    ],
)
def test_a_goodbye_that_arrived_at_the_last_moment_counts(registered: bool, left: str, reason: str) -> None:
    ended = after_all(AWAY, registered=registered, left=left)
    assert ended.reason == reason
    assert (ended.detail == GOODBYE_UNCONFIRMED) is not registered
    assert left in ended.detail or not registered


@pytest.mark.parametrize(("reason", "level"), [("closed", "info"), ("shutdown-late", "error")])
def test_the_end_is_logged_by_its_kind(reason: str, level: str) -> None:
    with capture_logs() as lines:
        log_end(Stopped(reason, "so it was"), "b1", 3)
    assert [(line["event"], line["log_level"], line["reason"], line["serving"]) for line in lines] == [
        ("stopped", level, reason, 3)
    ]


def test_a_command_without_an_answer_is_unknown_where_it_may_have_begun() -> None:
    unknown = outcome_of_stopping(commands.Unload("a/b/t", "op1", 1.0), AWAY)
    assert isinstance(unknown, commands.Unknown)
    assert unknown.operation == "op1"
    undetermined = outcome_of_stopping(commands.Lookup("a/b/t", 1.0), AWAY)
    assert isinstance(undetermined, commands.Undetermined)
    assert undetermined.reason == "stopped"


@pytest.mark.parametrize(
    ("limit_s", "left_s", "grace_s", "expected_s"),
    [(9.0, None, 1.0, 9.0), (9.0, 5.0, 1.0, 6.0), (3.0, 5.0, 1.0, 3.0), (9.0, -5.0, 1.0, 1.0), (9.0, 0.0, 0.0, 0.0)],
)
def test_hooks_at_the_end_have_what_is_left(
    limit_s: float, left_s: float | None, grace_s: float, expected_s: float
) -> None:
    assert within_budget(limit_s, left_s, grace_s) == expected_s


@pytest.mark.parametrize(
    ("outcome", "again"),
    [
        (None, True),
        (commands.Unknown("op1", ""), True),
        (commands.Undetermined("timed-out", ""), True),
        (commands.Rejected("busy", ""), True),
        (commands.Rejected("not-leader", ""), True),
        (commands.Rejected("bad-request", ""), False),
        (commands.NotFound("unknown-bundle", ""), False),
        (commands.Done("op1", "moved"), False),
    ],
)
def test_a_request_without_a_result_may_be_asked_again(outcome: commands.Outcome | None, again: bool) -> None:
    assert may_be_asked_again(outcome) is again


def test_a_request_to_the_balancer() -> None:
    args = balancer_args("split", Addressee.OWNER, {"name": "a/b/t"})
    assert args == {"extension": "balancer", "ask": "split", "to": "owner", "name": "a/b/t"}
