"""The operator's page: its commands run as they stand there, one after the other, through five real incidents."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from statechannel.cli.main import app
from statechannel.embedded import KafkaServer
from tests.docs.generate import ROOT
from tests.docs.typed_lines import PART, parts_of, words_of
from tests.support.broker_cluster import COMMAND
from tests.support.waits import WAIT_S

_DOCTOR = {0, 30, 31, 32}
_ELSEWHERE = "statechannel rolling-restart"
"""It needs machines to go to by ssh; cli/test_cli_drain.py and kafka/test_drain.py run it."""
_WAIT_S = 60.0


def _page() -> str:
    return (ROOT / "design/operate.md").read_text(encoding="utf-8")


def _parts() -> dict[str, list[str]]:
    return parts_of(_page())


class Operator:
    """Somebody who types what the page says, in one folder, on a machine with an embedded Kafka."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.parts, self.frozen = folder, _parts(), False
        self.brokers: dict[str, subprocess.Popen[bytes]] = {}

    def type(self, line: str) -> str:
        """Type a line; the shell makes its words. A broker goes to the background, all else has to end well."""
        words = words_of(line)
        if words[:2] == ["broker", "run"]:
            return self._start(words)
        if "--watch" in words:
            words += ["--for", "1"]
        result = CliRunner().invoke(app, words)
        ends_s = time.monotonic() + _WAIT_S
        while words[:2] == ["audit", "verify"] and result.exit_code == 4 and time.monotonic() < ends_s:
            result = CliRunner().invoke(app, words)  # a replica that settles after the outage gives no digest yet
        fine = _DOCTOR if words[0] == "doctor" else {10} if self.frozen else {0}
        assert result.exit_code in fine, f"{line}: {result.exit_code}\n{result.output}\n{self._logs()}"
        assert "Traceback" not in result.output
        return result.output

    def do(self, title: str, count: int | None = None) -> str:
        """Type the next lines of a part, or all that are left of it; all that they say."""
        lines = self.parts[title]
        now, self.parts[title] = lines[:count], lines[len(lines[:count]) :]
        return "".join(self.type(line) for line in now if not line.startswith(_ELSEWHERE))

    def until(self, line: str, wanted: str) -> None:
        ends_s = time.monotonic() + _WAIT_S
        while wanted not in (said := self.type(line)):
            assert time.monotonic() < ends_s, said
            time.sleep(0.3)

    def _start(self, words: list[str]) -> str:
        name = words[words.index("--id") + 1]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.brokers[name] = subprocess.Popen([*COMMAND, *words], stdout=log, stderr=log)
        ends_s = time.monotonic() + _WAIT_S
        while "accepts bundles" not in (self.folder / f"{name}.log").read_text():
            assert time.monotonic() < ends_s, self._logs()
            time.sleep(0.1)
        return ""

    def _logs(self) -> str:
        return "".join(path.read_text()[-3_000:] for path in self.folder.glob("*.log"))


@pytest.fixture
def operator(own_kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("STATECHANNEL_EMBEDDED__FOLDER", str(own_kafka.folder))
    for name in [name for name in os.environ if name.startswith(("STATECHANNEL_KAFKA_", "STATECHANNEL_CHANNEL_"))]:
        monkeypatch.delenv(name)
    made = Operator(tmp_path)
    try:
        yield made
    finally:
        for broker in made.brokers.values():
            broker.kill()
            broker.wait(WAIT_S)


def test_it_is_five_jobs_and_five_incidents():
    jobs, incidents = _page().split("## Five incidents")
    assert len(PART.findall(jobs)) == len(PART.findall(incidents)) == 5
    assert all(_parts().values()), "each has commands"
    assert len(_page().splitlines()) <= 130


@pytest.mark.kafka
def test_the_commands_run_one_after_the_other(operator: Operator, own_kafka: KafkaServer):
    topic = "public/default/orders"
    operator.do("Start a channel.")
    if "b2" in operator.do("Move or split a bundle.", 1):
        operator.type(f"statechannel transfer {topic} --dest b1")
    assert "split" in operator.do("Move or split a bundle.")
    operator.do("Restart a broker")
    operator.do("Back up and restore.")
    report = operator.do("Audit a period, and hand over a report.")
    assert "report.html" in report
    assert Path("report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")

    operator.type(f"statechannel transfer {topic} --dest b1")
    operator.brokers["b1"].kill()
    operator.until("statechannel status", "b1 was lost; b2 repaired")
    assert "owner-lost" in operator.do("A broker was killed.")

    operator.type(f"statechannel unload {topic} --force")
    operator.type("statechannel broker run --id b3 --advertised pulsar=pulsar://127.0.0.1:6652")
    story = operator.do("A bundle has no owner.")
    assert "owner b1 is lost" in story
    assert "Unassigned" in story

    kafka = psutil.Process(own_kafka.pid)
    kafka.send_signal(signal.SIGSTOP)
    operator.frozen = True
    try:
        ends_s = time.monotonic() + _WAIT_S
        while kafka.status() != psutil.STATUS_STOPPED and time.monotonic() < ends_s:
            time.sleep(0.02)
        assert "suspended" in operator.do("Kafka is away.", 2)
    finally:
        kafka.send_signal(signal.SIGCONT)
        operator.frozen = False
    operator.do("Kafka is away.")

    operator.do("A newer format stops a replica.")
    assert "equal" in operator.do("In doubt.")
    assert not any(operator.parts.values()), "all of the page was typed"
