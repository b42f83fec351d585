"""`partitions apply|status|pause|resume|cancel|rollback` without a Kafka: what they refuse, with which exit code, as JSON too."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from shedders.kafka_rebalance.cli import arguments, execution
from shedders.kafka_rebalance.errors import ExecutionRefusedError
from shedders.kafka_rebalance.execution import journal, session
from shedders.kafka_rebalance.execution.state_topic import StateBook, record
from shedders.kafka_rebalance.execution.values import ExecutionEnd, ExecutionStop, StopKind
from shedders.kafka_rebalance.planning.plan_files import plan_bytes, write_plan
from statechannel.cli.kit import failures
from statechannel.cli.kit.output import Output
from statechannel.errors import ExitCode
from statechannel.kafka.errors import KafkaAccessDeniedError
from tests.unit.partitions.plans import PLAN

Run = Callable[..., Result]
WITH_ID = ("status", "pause", "resume", "cancel", "rollback")
NOWHERE = ("-b", "127.0.0.1:9", "--state", "state")


@pytest.fixture
def plan_file(run: Run) -> Path:
    """In the folder that `run` has gone to."""
    write_plan(Path("plan.json"), PLAN)
    return Path("plan.json")


def refused(result: Result, code: int, *words: str) -> None:
    assert result.exit_code == code, result.output
    error, *more = result.stderr.splitlines()
    assert error.startswith("error: ")
    assert "Traceback" not in result.stderr
    assert len(more) <= 1
    assert all(word in result.stderr for word in words), result.stderr


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> StateBook:
    """What the state topic has; it is empty at first."""
    book = StateBook(15_000)
    monkeypatch.setattr(execution, "read_book", lambda _: (book, None))
    return book


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--throttle", "fast"], "--throttle fast"),
        (["--throttle", "0"], "--throttle 0"),
        (["--order", "random"], "--order random"),
        (["--moves-per-broker", "0"], "--moves-per-broker"),
        (["--moves-max", "x"], "--moves-max"),
        (["--bytes-in-flight", "-1"], "--bytes-in-flight -1"),
        (["--output", "xml"], "--output"),
    ],
)
def test_arguments_that_are_none(run: Run, plan_file: Path, options: list[str], words: str) -> None:
    refused(run("partitions", "apply", plan_file, *NOWHERE, *options), ExitCode.USAGE, words)


def test_arguments_that_are_missing(run: Run) -> None:
    refused(run("partitions", "apply"), ExitCode.USAGE, "PLAN")
    refused(run("partitions", "rollback"), ExitCode.USAGE, "PLAN-ID")
    refused(run("partitions", "resume", *NOWHERE, "--throttle", "fast"), ExitCode.USAGE, "--throttle fast")


def test_the_extra_is_missing(run: Run, plan_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda _: None)
    for name, given in (("apply", str(plan_file)), *((item, PLAN.id) for item in WITH_ID)):
        refused(run("partitions", name, given, *NOWHERE), ExitCode.EXTRA_MISSING, "kafka-python", "[partitions]")


def test_files_that_are_no_plan(run: Run, plan_file: Path) -> None:
    refused(run("partitions", "apply", "none.json", *NOWHERE), ExitCode.BAD_EXPORT, "none.json")
    document = json.loads(plan_file.read_bytes())
    for change in ({"moves": "all"}, {"id": "../x"}, {"format": "partition-plan/9"}, {"more": 1}):
        Path("bad.json").write_text(json.dumps(document | change))
        refused(
            run("partitions", "apply", "bad.json", *NOWHERE, "--execute"), ExitCode.BAD_EXPORT, "bad.json", "hint: "
        )
    Path("cut.json").write_bytes(plan_file.read_bytes()[:-9])
    refused(run("partitions", "apply", "cut.json", *NOWHERE), ExitCode.BAD_EXPORT, "cut.json")
    assert not Path("state").exists()


@pytest.mark.parametrize("name", [*WITH_ID, "apply"])
def test_a_kafka_that_is_away_is_not_taken_for_nobody_at_work(
    run: Run, plan_file: Path, closed_port: int, name: str
) -> None:
    where = ["-b", f"127.0.0.1:{closed_port}", "--set", "kafka.command_timeout_s=0.5", "--state", "state"]
    given = str(plan_file) if name == "apply" else PLAN.id
    result = run("partitions", name, given, *where, "--output", "json")
    refused(result, ExitCode.KAFKA_AWAY, "hint: ")
    assert json.loads(result.stdout)["exit_code"] == ExitCode.KAFKA_AWAY
    assert not Path("state").exists()


def test_a_topic_that_may_not_be_read_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    error = KafkaAccessDeniedError("Kafka refused this client", hint="Ask for Read.")
    monkeypatch.setattr(execution, "read_book", lambda _: (None, error))
    for name in WITH_ID:
        refused(
            run("partitions", name, PLAN.id, *NOWHERE), ExitCode.KAFKA_DENIED, "refused this client", "Ask for Read"
        )


@pytest.mark.parametrize("name", ["status", "resume", "cancel", "rollback"])
def test_ids_that_nobody_knows(run: Run, book: StateBook, name: str) -> None:
    for unknown in ("ffffffffffffffff", PLAN.id[:6], "../etc", "x" * 300):
        refused(run("partitions", name, unknown, *NOWHERE), ExitCode.NOT_FOUND, unknown[:50], "hint: ")
    assert book.plans == {}


def test_nothing_was_ever_carried_out(run: Run, book: StateBook) -> None:
    for name in ("pause", "resume", "cancel"):
        result = run("partitions", name, *NOWHERE, "--output", "json")
        refused(result, ExitCode.NOT_FOUND, "no plan has been executed here", "--state DIR")
        assert json.loads(result.stdout)["error"] == "no plan has been executed here"
    assert book.plans == {}


def test_a_pause_of_what_nobody_carries_out(run: Run, book: StateBook) -> None:
    refused(run("partitions", "pause", PLAN.id, *NOWHERE), ExitCode.NOT_FOUND, "is not being executed")
    book.take(10**15, record("claim", "f" * 16, executor="a", host="elsewhere", pid=1, wish="go"))
    refused(run("partitions", "pause", PLAN.id, *NOWHERE), ExitCode.NOT_FOUND, f"plan {PLAN.id} is not")


def test_a_plan_under_way_is_not_undone(run: Run, book: StateBook) -> None:
    book.take(10**15, record("claim", PLAN.id, executor="a", host="elsewhere", pid=1, wish="go"))
    refused(run("partitions", "rollback", PLAN.id, *NOWHERE), ExitCode.REJECTED, "is being executed", "cancel")


def test_state_folders_that_are_none(run: Run, book: StateBook) -> None:
    Path("file").touch()
    for root in ("file", "x" * 300):
        result = run("partitions", "status", "-b", "127.0.0.1:9", "--state", root)
        refused(result, ExitCode.FAILED, "cannot read", "--state DIR")
    folder = Path("state") / PLAN.id
    folder.mkdir(parents=True)
    (folder / "plan.json").write_bytes(plan_bytes(PLAN))
    (folder / "journal.jsonl").write_bytes(b'{"n":1}\nnonsense\n')
    refused(run("partitions", "status", *NOWHERE), ExitCode.FAILED, "corrupt at byte 8", "state topic")
    assert book.holder is None


ENDS = [
    (ExecutionStop(kind=StopKind.DONE), (), ExitCode.OK),
    (ExecutionStop(kind=StopKind.CANCELLED), (), ExitCode.OK),
    (ExecutionStop(kind=StopKind.DONE), (("broker", "3"),), ExitCode.OK),
    (ExecutionStop(kind=StopKind.BROKER_AWAY, reason="r", hint="h"), (("broker", "3"),), ExitCode.REJECTED),
    (ExecutionStop(kind=StopKind.KAFKA_AWAY, reason="r", hint="h"), (), ExitCode.UNKNOWN),
    (ExecutionStop(kind=StopKind.FAILED, reason="r", hint="h"), (), ExitCode.UNKNOWN),
    (ExecutionStop(kind=StopKind.INTERRUPTED, reason="r", hint="h"), (), ExitCode.INTERRUPTED),
]


@pytest.mark.parametrize(("stop", "left", "code"), ENDS)
def test_how_it_ended(
    run: Run,
    plan_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop: ExecutionStop,
    left: tuple[tuple[str, str], ...],
    code: ExitCode,
) -> None:
    monkeypatch.setattr(session, "execute", lambda *_, **__: ExecutionEnd(stop=stop, throttles_left=left))
    result = run("partitions", "apply", plan_file, "--execute", *NOWHERE, "--output", "json")
    assert result.exit_code == code, result.stderr
    document = json.loads(result.stdout)
    assert (document["plan"], document["ended"], document["reason"]) == (PLAN.id, str(stop.kind), stop.reason or None)
    assert document["throttles_left"] == [" ".join(bundle) for bundle in left]
    command = "resume" if stop.kind is StopKind.DONE else "cancel"
    assert (f"statechannel partitions {command} {PLAN.id}` removes them" in result.stderr) == bool(left)


def test_an_end_that_nobody_reads_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(execution, "print_json", gone)
    monkeypatch.setattr(execution, "silence_stdout", lambda: None)
    monkeypatch.setattr(failures, "_silence_stdout", lambda: None)
    for stop, left, code in ENDS:
        end = ExecutionEnd(stop=stop, throttles_left=left)
        result = partial(execution.tell_end, PLAN, end, Output.JSON)
        assert failures.guarded(result, debug=False) == code


def test_resume_keeps_the_pace_that_the_plan_was_begun_with(
    run: Run, book: StateBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the first executor ended in order and has put the throttles back."""
    with journal.Journal(Path("state") / PLAN.id) as kept:
        journal.write_durable(Path("state") / PLAN.id / "plan.json", plan_bytes(replace(PLAN, goals=())))
        pace = {"throttle_bytes_per_s": 5_000_000, "moves_per_broker": 1, "one_replica": True}
        kept.append({"n": 1, "event": "begun", "executor": "a", "pace": pace})
        kept.append({"n": 2, "event": "ended", "executor": "a", "kind": "interrupted"})
    paces: list[Any] = []

    def execute(place: session.ExecutionPlace, *_: object, **more: Any) -> ExecutionEnd:
        paces.append(place.settings.pace)
        if len(paces) == 1:
            raise ExecutionRefusedError("not now")
        more["runs"](None)
        return ExecutionEnd(stop=ExecutionStop(kind=StopKind.DONE))

    monkeypatch.setattr(session, "execute", execute)
    assert "throttle" not in run("partitions", "resume", *NOWHERE).stderr, "nothing goes on"
    result = run("partitions", "resume", *NOWHERE)
    assert result.exit_code == 0, result.stderr
    assert "the throttle remains" in result.stderr
    assert run("partitions", "resume", *NOWHERE, "--throttle", "none").exit_code == 0
    assert [(item.throttle_bytes_per_s, item.moves_per_broker, item.one_replica) for item in paces[1:]] == [
        (5_000_000, 1, True),
        (None, 1, True),
    ]
    assert book.holder is None
