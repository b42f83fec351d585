"""How the end of a member is said to those who wait, and which ends of a request may be asked again."""

import time
from typing import Any

import orjson
import pytest

from statechannel.broker import request_writer
from statechannel.broker.endings import GOODBYE_UNCONFIRMED, after_all, log_end, outcome_of_stopping, within_budget
from statechannel.broker.exits import Stopped
from statechannel.broker.request_writer import balancer_args, may_be_asked_again, write_request
from statechannel.engine import commands
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.operations.request_record import Request, decode
from statechannel.operations.table import Addressee
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
def test_hooks_at_the_end_have_what_is_left(limit_s: float, left_s: float | None, grace_s: float, expected_s: float):
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


def test_a_request_is_written_to_the_requests_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def append(*place: Any, **record: Any) -> int:
        seen.append((place, record))
        return 7

    monkeypatch.setattr(request_writer, "append_and_wait", append)
    client, request = ClientSettings("127.0.0.1:1"), Request("op1", "lookup", 0, {"name": "a/b/t"}, "me")
    before_ms = time.time() * 1000
    assert write_request(client, ChannelTopics("c"), request, answer_within_s=5.0, timeout_s=2.0) == 7
    ((place, record),) = seen
    assert place == (client, "c-requests", 0)
    assert (record["key"], record["timeout_s"], record["repeatable"]) == (b"op1", 2.0, True)
    assert decode(record["value"], 1_000) == Request("op1", "lookup", 6_000, {"name": "a/b/t"}, "me")
    assert int(before_ms) <= orjson.loads(record["value"])["written_at_ms"] <= time.time() * 1000
