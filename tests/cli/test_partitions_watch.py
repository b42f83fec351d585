"""`partitions watch` without a cluster: options, settings, what it says of a topic, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from shedders.kafka_rebalance.cli import executions
from shedders.kafka_rebalance.cli import watch as command
from shedders.kafka_rebalance.execution import checks
from shedders.kafka_rebalance.execution.session import ExecutionPlace
from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
from shedders.kafka_rebalance.settings import PartitionsSettings, WatchSettings
from shedders.kafka_rebalance.watch import live
from shedders.kafka_rebalance.watch import topic as topics
from shedders.kafka_rebalance.watch.holds import HoldCode
from shedders.kafka_rebalance.watch.topic import WatchBook, WatcherIdentity, claim_record, state_record
from shedders.kafka_rebalance.watch.values import (
    ClusterHealth,
    HoldNote,
    LookForPlan,
    Spending,
    WatchedExecution,
    WatchState,
)
from shedders.kafka_rebalance.watch.watcher import PartitionWatcher, RecordedPlan, WatchEvent, WatchEventKind
from statechannel.errors import ExitCode
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaAccessDeniedError, KafkaUnavailableError
from tests.unit.partitions.plans import PLAN

Run = Callable[..., Result]
NOWHERE = ("-b", "127.0.0.1:9", "--state", "state", "--set", "kafka.command_timeout_s=1")
NOW_MS = 1_767_225_600_000
FIRST = WatcherIdentity(name="first", host="elsewhere", pid=1)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--once", "--dry-run"], 2, "--once and --dry-run are mutually exclusive"),
        (["--dry-run", "--status"], 2, "mutually exclusive"),
        (["--budget", "5Gb"], 2, "--budget 5Gb: not an amount of data"),
        (["--throttle", "fast"], 2, "--throttle fast"),
        (["--goals", "disk=x"], 2, "--goals disk=x"),
        (["--set", "extensions.partitions.watch.hours=8-9"], 8, "is not a span of time"),
        (["--set", "extensions.partitions.watch.time_zone=Mars/Base"], 8, "is not a known time zone"),
        (["--set", "extensions.partitions.watch.mode=heal"], 8, "mode"),
        (["--set", "extensions.partitions.watch.budget_bytes=-1"], 8, "budget_bytes"),
    ],
)
def test_what_it_refuses(run: Run, options: list[str], code: int, words: str) -> None:
    result = run("partitions", "watch", *options, *NOWHERE)
    assert result.exit_code == code, result.output
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("option", ["--once", "--dry-run", "--status"])
def test_a_kafka_that_is_away(run: Run, closed_port: int, option: str) -> None:
    where = ("-b", f"127.0.0.1:{closed_port}", *NOWHERE[2:])
    result = run("partitions", "watch", option, *where)
    assert result.exit_code == ExitCode.KAFKA_AWAY, result.output
    assert "Traceback" not in result.stderr


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> WatchBook:
    """What the topic has; it is empty at first. Kafka's clock says `NOW_MS`."""
    book = WatchBook(60)
    monkeypatch.setattr(live, "open_admin", lambda *_, **__: nullcontext())
    monkeypatch.setattr(live, "read_time_ms", lambda *_, **__: NOW_MS)
    monkeypatch.setattr(topics.WatchTopic, "exists", lambda _: True)
    monkeypatch.setattr(topics.WatchTopic, "read", lambda _: book)
    return book


def fill(book: WatchBook, state: WatchState, *, left: bool = False) -> None:
    for offset, record in enumerate((claim_record(FIRST, None), state_record(FIRST, 1, state, left=left))):
        book.take(offset, NOW_MS, *record)


STATE = WatchState(
    looked_at_ms=NOW_MS,
    spent=(Spending(plan_id="p1", from_ms=NOW_MS, to_ms=None, size_bytes=100_000_000_000),),
    execution=WatchedExecution(plan_id="p1", began_at_ms=NOW_MS, keys=(("t", 0),), paused=True),
    hold=HoldNote(code=HoldCode.QUIET, message="it is a quiet time", since_ms=NOW_MS),
)


def test_the_status_of_a_topic_without_a_watcher(run: Run, book: WatchBook) -> None:
    assert book.holder is None
    result = run("partitions", "watch", "--status", *NOWHERE)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "has never run" in result.stdout
    assert "Start it with `statechannel partitions watch`" in result.stdout
    shown = json.loads(run("partitions", "watch", "--status", *NOWHERE, "--output", "json").stdout)
    assert (shown["watcher"], shown["budget_left_bytes"]) == (None, shown["budget_bytes"])


def test_the_status_of_a_plan_under_way(run: Run, book: WatchBook) -> None:
    fill(book, STATE, left=True)
    result = run("partitions", "watch", "--status", *NOWHERE, "--budget", "300GB")
    assert result.exit_code == 0, result.output
    for words in ("first", "no, last seen", "has paused plan p1", "it is a quiet time (quiet", "200.0 GB of 300.0 GB"):
        assert words in result.stdout, result.stdout


@pytest.mark.parametrize("ahead_s", [-3_600, 0, 3_600])
@pytest.mark.parametrize("mode", ["watch --status", "watch --dry-run", "status"])
def test_a_wrong_clock_changes_neither_budget_nor_hours(
    run: Run, book: WatchBook, monkeypatch: pytest.MonkeyPatch, ahead_s: int, mode: str
) -> None:
    """Bytes that leave the budget's window in half an hour, and hours that end in half an hour, by Kafka's clock."""
    monkeypatch.setattr(live, "now_ms", lambda: NOW_MS + ahead_s * 1_000)
    monkeypatch.setattr(checks, "now_ms", lambda: NOW_MS + ahead_s * 1_000)
    monkeypatch.setattr(executions, "read_book", lambda _: (None, None))
    settings = WatchSettings()
    ended_ms = NOW_MS - round(settings.budget_window_s * 1_000) + 1_800_000
    spent = (Spending(plan_id="p1", from_ms=ended_ms - 1, to_ms=ended_ms, size_bytes=499_999_999_999),)
    old_ms = NOW_MS - 86_400_000
    fill(book, WatchState(spent=spent, imbalanced_since_ms=old_ms, imbalance_seen_ms=NOW_MS - 1))
    health = ClusterHealth(cluster_id=PLAN.cluster_id, alive=frozenset({1, 2, 3}), holders=frozenset({1, 2, 3}))
    budgets: list[int] = []

    def plan(_: Any, bounds: LookForPlan) -> ReassignmentPlan:
        budgets.append(bounds.bytes_max)
        return PLAN

    monkeypatch.setattr(live.LiveCluster, "look", lambda _: health)
    monkeypatch.setattr(live.LiveCluster, "plan", plan)
    monkeypatch.setattr(live.LivePlans, "recorded", lambda *_: RecordedPlan())
    hours = ("--set", "extensions.partitions.watch.hours=23:30-00:30")
    acts = [] if mode == "status" else ["--act"]
    result = run("partitions", *mode.split(), *acts, *NOWHERE, *hours, "--output", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    if mode == "watch --dry-run":
        assert budgets == [1]
        assert [event["code"] for event in document["events"]] == [None, "budget"]
        return
    facts = document["autopilot"] if mode == "status" else document
    assert (facts["alive"], facts["budget_left_bytes"], facts["read_at_ms"]) == (True, 1, NOW_MS)


def test_without_kafkas_clock_the_own_one_counts_and_says_so(
    run: Run, book: WatchBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise KafkaAccessDeniedError("Kafka refused this client")

    monkeypatch.setattr(live, "read_time_ms", refuse)
    monkeypatch.setattr(live, "now_ms", lambda: NOW_MS - 3_600_000)
    fill(book, STATE)
    result = run("partitions", "watch", "--status", *NOWHERE)
    assert result.exit_code == 0
    assert "this machine's clock" in result.stderr
    assert "Kafka refused this client" in result.stderr
    shown = json.loads(run("partitions", "watch", "--status", *NOWHERE, "--output", "json").stdout)
    assert shown["read_at_ms"] == NOW_MS, "it is not earlier than the newest record"
    assert shown["clock_trouble"] == "Kafka refused this client"
    monkeypatch.setattr(live, "now_ms", lambda: NOW_MS + 1)
    shown = json.loads(run("partitions", "watch", "--status", *NOWHERE, "--output", "json").stdout)
    assert shown["read_at_ms"] == NOW_MS + 1


def test_the_fields_of_the_status() -> None:
    book = WatchBook(60)
    fill(book, STATE)
    facts = command.status_fields(book, WatchSettings(), NOW_MS)
    assert (facts["watcher"], facts["alive"], facts["generation"]) == ("first", True, 1)
    assert facts["execution"]["plan_id"] == "p1"
    assert facts["hold"] == {"code": "quiet", "message": "it is a quiet time", "since_ms": NOW_MS, "alerted": False}
    assert not command.status_fields(book, WatchSettings(), NOW_MS + 60_001)["alive"]
    fill(gone := WatchBook(60), STATE, left=True)
    assert not command.status_fields(gone, WatchSettings(), NOW_MS)["alive"]


def test_the_line_in_the_status_of_a_plan() -> None:
    book = WatchBook(60)
    fill(book, STATE)
    line = command.autopilot_line(command.status_fields(book, WatchSettings(budget_bytes=300_000_000_000), NOW_MS))
    for words in (
        "first acts",
        "last look 2026-01-01",
        "has paused plan p1",
        "it is a quiet time (quiet",
        "200.0 GB of",
    ):
        assert words in line
    gone = command.status_fields(book, WatchSettings(), NOW_MS + 60_001)
    assert command.autopilot_line(gone).startswith("none acts, first was last seen 2026-01-01")


def test_what_the_status_of_a_plan_has_of_the_autopilot(
    book: WatchBook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = ExecutionPlace(client=ClientSettings("127.0.0.1:9"), settings=PartitionsSettings(), root=tmp_path)
    assert command.autopilot_of(place) == (None, "")
    fill(book, STATE)
    facts, trouble = command.autopilot_of(place)
    assert facts is not None
    assert (facts["watcher"], trouble) == ("first", "")
    book._packed = "eA=="
    facts, trouble = command.autopilot_of(place)
    assert facts is None
    assert "cannot be parsed" in trouble

    def fail(_: Any) -> bool:
        raise KafkaUnavailableError("no answer")

    monkeypatch.setattr(topics.WatchTopic, "exists", fail)
    assert command.autopilot_of(place) == (None, "no answer")


def test_a_topic_of_another_program_ends_it_with_a_hint(
    run: Run, book: WatchBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def created(_: Any, __: int) -> None:
        return

    monkeypatch.setattr(topics.WatchTopic, "create", created)
    fill(book, STATE)
    book._packed = "eA=="
    result = run("partitions", "watch", "--status", *NOWHERE)
    assert result.exit_code == ExitCode.REJECTED
    assert "cannot be parsed" in result.stderr
    assert "extensions.partitions.watch.topic" in result.stderr
    assert not Path("state").exists()


@pytest.mark.parametrize(
    ("kind", "code"), [(WatchEventKind.ALERT, ExitCode.REJECTED), (WatchEventKind.HELD, ExitCode.OK)]
)
def test_an_alert_is_an_exit_code_of_one_look(
    run: Run, book: WatchBook, monkeypatch: pytest.MonkeyPatch, kind: WatchEventKind, code: ExitCode
) -> None:
    def report(watcher: PartitionWatcher, *_: Any, once: bool) -> None:
        assert once
        watcher._report(WatchEvent(kind=kind, message="what it is", code="a-code", hint="what to do"))

    monkeypatch.setattr(topics.WatchTopic, "create", lambda *_: None)
    monkeypatch.setattr(command, "_go_on", report)
    result = run("partitions", "watch", "--once", *NOWHERE, "--output", "json")
    assert result.exit_code == code, result.output
    (line,) = [json.loads(text) for text in result.stdout.splitlines()]
    assert (line["event"], line["code"], line["hint"], line["plan"]) == (str(kind), "a-code", "what to do", None)
    assert book.holder is None
    text = run("partitions", "watch", "--once", *NOWHERE).stdout
    assert "what it is (a-code)" in text
    assert "what to do" in text
