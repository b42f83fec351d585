"""What people see while a command waits."""

import io
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from click.testing import Result
from rich.console import Console

from statechannel.cli.kit import output
from statechannel.cli.kit.progress import TERMINAL
from statechannel.queries import live_log


def test_a_kafka_that_is_away_is_named_while_it_is_waited_for_and_after(
    run: Callable[..., Result], closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_log, "NOTIFY_AFTER_S", 0.2)
    address = f"127.0.0.1:{closed_port}"
    for command in (("bundles",), ("brokers",), ("lookup", "t/n/x"), ("init",)):
        result = run(*command, "--bootstrap-servers", address, "--set", "kafka.refused_wait_s=1")
        first, *_, error, hint = result.stderr.splitlines()
        assert result.exit_code == 10, command
        assert first.startswith(f"Kafka at {address} has not answered yet; waiting for at most 20 s"), command
        assert error == f"error: Kafka at {address} refuses the connection: no program listens there", command
        assert "`statechannel kafka status`" in hint
        assert "kafka.bootstrap_servers" in hint


class Asked:
    """A reader whose Kafka is away for some of the questions."""

    def __init__(self, answers: list[bool]) -> None:
        self._answers = answers

    def answers(self, timeout_s: float) -> bool:
        return self._answers.pop(0)


def test_a_command_without_end_says_once_that_kafka_is_away_and_once_that_it_is_back(monkeypatch, capsys):
    now_s = [100.0]
    monkeypatch.setattr(live_log.time, "monotonic", lambda: now_s[0])
    pulse = live_log.Pulse(
        SimpleNamespace(client=SimpleNamespace(bootstrap_servers="h:1"), reporter=TERMINAL),
        Asked([True, *[False] * 8, True]),
    )
    results: list[tuple[float, str]] = []
    for _ in range(10):
        now_s[0] += live_log.BEAT_S
        pulse.beat()
        results += [(now_s[0] - 100.5, line) for line in capsys.readouterr().err.splitlines()]
    assert [at_s for at_s, _ in results] == [live_log.NOTIFY_AFTER_S, 4.5]
    assert results[0][1].startswith("Kafka at h:1 does not answer")
    assert results[1][1] == "Kafka at h:1 answers again, after 4 s"


def test_a_question_that_waits_behind_a_fetch_is_no_outage(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(live_log.time, "monotonic", lambda: now_s[0])
    patient = SimpleNamespace(
        answers=lambda timeout_s: timeout_s >= 1.0
    )  # as where nothing is written, on a busy machine
    pulse = live_log.Pulse(SimpleNamespace(client=SimpleNamespace(bootstrap_servers="h:1"), reporter=TERMINAL), patient)
    for _ in range(20):
        now_s[0] += live_log.BEAT_S
        pulse.beat()
    assert capsys.readouterr().err == ""


def _waited(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, seconds: float) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    now = iter((100.0, 100.0 + seconds))
    monkeypatch.setattr(output, "stderr", lambda: console)
    monkeypatch.setattr(output.time, "monotonic", lambda: next(now, 100.0 + seconds))
    with output.waiting("waiting for lookup", 33) as result:
        result("; no broker has claimed it yet")
    monkeypatch.undo()
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_wait_is_told_of_on_a_terminal_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "waiting for lookup: 2 s of at most 33 s; no broker has claimed it yet"
    assert line in _waited(monkeypatch, terminal=True, seconds=2.0)
    assert _waited(monkeypatch, terminal=True, seconds=0.5) == ""
    assert _waited(monkeypatch, terminal=False, seconds=2.0) == ""
