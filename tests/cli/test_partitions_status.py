"""`status` of plans whose executor is dead, has stopped, or has not begun: since when, what waits, who must do what."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import Result

from shedders.kafka_rebalance.cli import execution
from shedders.kafka_rebalance.execution import overview
from shedders.kafka_rebalance.execution.journal import Journal, write_durable
from shedders.kafka_rebalance.execution.session import ExecutionPlace, known
from shedders.kafka_rebalance.execution.state_topic import StateBook, record
from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
from shedders.kafka_rebalance.planning.plan_files import plan_bytes
from shedders.kafka_rebalance.settings import PartitionsSettings
from statechannel.errors import ExitCode
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaUnavailableError
from tests.support.partition_twin import Part, Twin, make_plan, move

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
NOW_MS = 1_790_000_100_000
MB = 1_000_000


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> Twin:
    """Three partitions: one has arrived, one is in flight with half of its bytes, one waits."""
    parts = {
        ("t", 0): Part([3, 2], {3, 2}, 3, 10 * MB),
        ("t", 1): Part([3, 2, 1], {1, 2}, 1, 10 * MB, adding=[3], removing=[1], has_bytes={3: 5 * MB}),
        ("t", 2): Part([1, 2], {1, 2}, 1, 10 * MB),
    }
    twin = Twin(parts, {1, 2, 3}, Random(0), configs={("broker", "3"): dict.fromkeys(RATES, "250000")})

    class Here:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def observe(self, **asked: Any) -> Any:
            return twin.observe(**asked)

    monkeypatch.setattr(overview, "open_admin", lambda *_, **__: nullcontext())
    monkeypatch.setattr(overview, "ClusterPort", Here)
    monkeypatch.setattr(execution, "now_ms", lambda: NOW_MS)
    return twin


PLAN = make_plan([move(("t", number), (1, 2), (3, 2), 10 * MB) for number in range(3)])


def begun(*events: dict[str, Any], plan: ReassignmentPlan = PLAN, root: Path = Path("state")) -> None:
    """A journal of an executor that began 100 s ago."""
    write_durable(root / plan.id / "plan.json", plan_bytes(plan))
    all_events = [
        {"event": "begun", "at_ms": NOW_MS - 100_000, "pace": {"throttle_bytes_per_s": 250_000}},
        {"event": "throttle", "at_ms": NOW_MS - 99_000, "rate": 250_000, "before": {"broker/3": dict.fromkeys(RATES)}},
        *events,
    ]
    with Journal(root / plan.id) as journal:
        for number, event in enumerate(all_events, 1):
            journal.append({"n": number, "executor": "host-7", **event})


def status_of(book: StateBook | None = None, root: Path = Path("state")) -> overview.ExecutionStatus:
    place = ExecutionPlace(client=ClientSettings("127.0.0.1:9"), settings=PartitionsSettings(), root=root)
    return overview.status_of(place, known(place, PLAN.id, book), now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("removed", "set_", "expected"),
    [([], {}, "250.0 kB/s"), (RATES[1:], {}, "none"), ([], {RATES[0]: "60000"}, "60.0 kB/s"), (RATES, {}, "none")],
)
def test_the_throttle_is_what_kafka_has(
    twin: Twin, tmp_path: Path, removed: list[str], set_: dict[str, str], expected: str
) -> None:
    begun({"event": "remark", "at_ms": NOW_MS, "text": "another tool removed it"}, root=tmp_path)
    for name in removed:
        del twin.configs["broker", "3"][name]
    twin.configs["broker", "3"].update(set_)
    rows = execution._rows(status_of(root=tmp_path))
    shown = dict(rows)
    assert shown["throttle"] == f"{expected}; topic t does not list what is in flight"
    assert ("remark", "another tool removed it") in rows


def test_a_dead_executor(twin: Twin, tmp_path: Path) -> None:
    begun(
        {"event": "progress", "at_ms": NOW_MS - 90_000, "bytes_done": 0, "busy_s": 0.0},
        {"event": "progress", "at_ms": NOW_MS - 50_000, "bytes_done": 10 * MB, "busy_s": 40.0},
        root=tmp_path,
    )
    status = status_of(root=tmp_path)
    assert (status.state, status.running, status.last_executor, status.unsent) == ("dead", False, "host-7", 1)
    assert status.undriven_since_ms == NOW_MS - 50_000
    assert f"statechannel partitions resume {PLAN.id}" in status.next_step
    assert f"cancel {PLAN.id}" in status.next_step
    figures = status.progress
    assert (figures.bytes_done, figures.bytes_total) == (15 * MB, 30 * MB)
    assert figures.elapsed_s == 100.0, "Kafka goes on"
    assert figures.rate_bytes_per_s == 100_000, "what came since the last mark"
    assert figures.left_s is None, "no executor starts the third"
    assert figures.in_flight_left_s == 50.0
    twin.parts["t", 1].has_bytes[3] = 10 * MB
    assert status_of(root=tmp_path).progress.rate_bytes_per_s == 200_000


def test_a_rate_above_the_throttle_is_not_believed(twin: Twin, tmp_path: Path) -> None:
    begun({"event": "progress", "at_ms": NOW_MS - 6_000, "bytes_done": 0, "busy_s": 0.0}, root=tmp_path)
    assert twin.parts["t", 1].moving
    assert status_of(root=tmp_path).progress.rate_bytes_per_s == 250_000


def test_the_last_heartbeat_is_the_last_sign_of_life(twin: Twin, tmp_path: Path) -> None:
    begun(root=tmp_path)
    book = StateBook(15_000)
    book.take(NOW_MS - 95_000, record("claim", PLAN.id, executor="host-7", host="elsewhere", pid=1, wish="go"))
    book.take(NOW_MS - 40_000, record("beat", PLAN.id, executor="host-7"))
    book.newest_ms = NOW_MS
    assert len(twin.parts) == len(PLAN.moves)
    status = status_of(book, root=tmp_path)
    assert (status.state, status.undriven_since_ms) == ("dead", NOW_MS - 40_000)


def test_a_running_executor_is_not_missed(twin: Twin, tmp_path: Path) -> None:
    begun({"event": "progress", "at_ms": NOW_MS - 60_000, "bytes_done": 0, "busy_s": 0.0}, root=tmp_path)
    book = StateBook(10**9)
    book.take(10**15, record("claim", PLAN.id, executor="host-7", host="elsewhere", pid=1, wish="go"))
    status = status_of(book, root=tmp_path)
    assert (status.state, status.undriven_since_ms, status.unsent, status.next_step) == ("running", None, 0, "")
    assert status.progress.rate_bytes_per_s == 250_000
    assert status.progress.left_s == pytest.approx(60.0, abs=1.0)
    for part in twin.parts.values():
        part.replicas, part.adding, part.removing, part.isr, part.leader = [3, 2], [], [], {3, 2}, 3
    assert status_of(book, root=tmp_path).progress.left_s == 0


def test_of_an_end_in_order_the_hint_is_the_next_step(twin: Twin, tmp_path: Path) -> None:
    end = {"event": "ended", "at_ms": NOW_MS - 30_000, "kind": "interrupted", "reason": "r", "hint": "Do resume."}
    begun(end, root=tmp_path)
    status = status_of(root=tmp_path)
    assert (status.state, status.next_step, status.unsent) == ("stopped", "Do resume.", 1)
    assert status.progress.elapsed_s == 100.0, "what is in flight goes on"
    part = twin.parts["t", 1]
    part.replicas, part.adding, part.removing, part.isr, part.leader = [3, 2], [], [], {3, 2}, 3
    assert status_of(root=tmp_path).progress.elapsed_s == 70.0


def test_what_people_read(twin: Twin, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    begun({"event": "progress", "at_ms": NOW_MS - 50_000, "bytes_done": 10 * MB, "busy_s": 40.0})
    monkeypatch.setattr(execution, "read_book", lambda _: (None, None))
    where = ("-b", "127.0.0.1:9", "--state", "state")
    assert twin.alive
    result = run("partitions", "status", *where)
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stdout.split())
    assert "state dead" in text
    assert "no executor since 2026-09-21" in text
    assert "(last executor: host-7); no executor starts the 1 move left" in text
    assert "elapsed 100.00 s" in text
    assert "rate 100.0 kB/s" in text
    assert "left unknown; 1 move in flight, there in 50.00 s" in text
    assert f"statechannel partitions resume {PLAN.id}" in text
    document = json.loads(run("partitions", "status", *where, "--output", "json").stdout)
    assert (document["unsent"], document["progress"]["left_s"]) == (1, None)
    assert replace(PLAN, id=document["plan_id"]) == PLAN


def test_nothing_was_ever_executed(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    book = StateBook(15_000)
    monkeypatch.setattr(execution, "read_book", lambda _: (book, None))
    where = ("-b", "127.0.0.1:9", "--state", "state")
    result = run("partitions", "status", *where)
    assert (result.exit_code, result.stderr) == (0, "")
    book.take(1, b"{")
    text = " ".join(result.stdout.split())
    assert "state idle: nothing is being executed" in text
    assert "statechannel partitions apply PLAN --execute" in text
    result = run("partitions", "status", *where, "--output", "json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (document["plan_id"], document["state"], document["running"]) == (None, "idle", False)
    assert (document["progress"], document["topic_trouble"], document["junk"]) == (None, None, {"not JSON": 1})
    assert "1 record: not JSON" in result.stderr
    assert "apply PLAN --execute" in document["next_step"]
    begun()
    assert run("partitions", "status", *where, "f" * 16).exit_code == ExitCode.NOT_FOUND


def test_a_topic_that_cannot_be_read_may_have_a_plan(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "read_book", lambda _: (None, KafkaUnavailableError("no answer")))
    result = run("partitions", "status", "-b", "127.0.0.1:9", "--state", "state")
    assert result.exit_code == ExitCode.KAFKA_AWAY
    assert "no answer" in result.stderr
