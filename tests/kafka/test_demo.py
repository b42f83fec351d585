"""`statechannel demo` from outside: what it says, how it ends, what it leaves behind."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from statechannel.demo.cluster import command_path
from tests.support.waits import WAIT_S

LONGEST_S = 280
"""The demo promises 90 s on an idle machine; tests share theirs."""


@contextmanager
def demo(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("STATECHANNEL_KAFKA__")}
    process = subprocess.Popen(
        [str(command_path()), "demo", *options],
        env=env | {"TMPDIR": str(folder), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Whoever runs the tests may ignore SIGINT (a job in the background), and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=WAIT_S)


def processes_in(folder: Path) -> list[psutil.Process]:
    """Kafka names its folder on its command line; brokers have it as the place of their log."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if str(folder) in " ".join(words) or (
                "broker" in words and any(str(folder) in (f"/{file.path}") for file in process.open_files())
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_demo_runs_through_and_what_it_keeps_can_be_used_and_ended(tmp_path: Path) -> None:
    with demo(tmp_path, "--keep") as process:
        text, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, text[-3_000:]
    address = re.search(r"export (STATECHANNEL_KAFKA__BOOTSTRAP_SERVERS)=(\S+)", text)
    end = re.search(r"\$ kill ([\d ]+)\n", text[text.index("To end it") :])
    kafka_folder = re.search(r"kafka down --folder (\S+)", text)
    assert address is not None
    assert end is not None
    assert kafka_folder is not None
    pids = [int(pid) for pid in end.group(1).split()]
    try:
        env = os.environ | {address.group(1): address.group(2)}
        status = subprocess.run([command_path(), "status"], env=env, capture_output=True, text=True, check=False)
        assert status.returncode == 0, status.stderr
        assert status.stdout.startswith("HEALTHY  3 brokers are alive")
    finally:
        brokers = [psutil.Process(pid) for pid in pids]
        for broker in brokers:
            broker.terminate()
        _, late = psutil.wait_procs(brokers, timeout=WAIT_S)
        down = subprocess.run(
            [command_path(), "kafka", "down", "--folder", kafka_folder.group(1)], check=False, timeout=WAIT_S
        )
    assert late == []
    assert down.returncode == 0
    assert processes_in(tmp_path) == []
    assert "\x1b" not in text
    assert text.isascii()
    assert "FAILED" not in text
    for words in (
        "the namespace has 17 bundles",
        "the client noticed no gap",
        r"every topic is served again [\d.]+ s after the kill",
        "with exit code 0",
        r"\d+ moves? in \d+ decisions?, all done",
        "the brokers are closer together, and nothing moves any more",
        r"the audit has \d+ gaps, each with its cause",
        "no write was accepted by two owners",
        "each of the 17 bundles is served by exactly one broker",
        r"digest \w+\.\.\. of the audit is also that of b\d, b\d, b\d",
    ):
        assert re.search(words.replace(" ", r"\s+"), text), (words, text)
    assert re.search(r"owner-lost .* was gone, repaired by b\d", text)
    assert re.search(r"transfer +b\d +b\d .*\(shutdown\)", text)


def test_a_hot_spot_is_balanced_and_plotted(tmp_path: Path) -> None:
    plots = tmp_path / "plots"
    with demo(tmp_path, "--balance", "--quiet-seconds", "20", "--plots", str(plots)) as process:
        text, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, text[-3_000:]
    assert processes_in(tmp_path) == []
    assert "FAILED" not in text
    for words in (
        "7. The result",
        r"\d+ moves in \d+ decisions, all done",
        r"are \d+ % of a machine apart",
        r"none of \d+ moves brought a bundle back",
        "none accepted by two owners",
        "each of the 48 bundles is served by exactly one broker",
        r"digest \w+\.\.\. of the audit is also that of b\d, b\d, b\d, b\d",
    ):
        assert re.search(words.replace(" ", r"\s+"), text), (words, text)
    assert sorted(path.name for path in plots.iterdir()) == ["balance.json", "balance.png", "balance.svg"]
    series = json.loads((plots / "balance.json").read_text())
    assert sorted(series["loads"]) == ["b1", "b2", "b3", "b4"]
    (launch,) = series["marks"]
    # Loads are looked at once a second, and b1 may be relieved before the next look: what came is seen in the sum.
    before = max(number for number, at_s in enumerate(series["at_s"]) if at_s < launch["at_s"])
    assert sum(one[-1] for one in series["loads"].values()) > sum(one[before] for one in series["loads"].values()) + 0.2
    assert any(move["source"] == "b1" and move["at_s"] > launch["at_s"] - 1 for move in series["moves"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    with demo(tmp_path) as process:
        assert process.stdout is not None
        seen = ""
        until_s = time.monotonic() + WAIT_S
        while "b1 has caught up" not in seen and time.monotonic() < until_s:
            seen += process.stdout.readline()
        assert len(processes_in(tmp_path)) >= 2, seen
        process.send_signal(number)
        rest, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, seen + rest
    assert "interrupted" in rest
    assert "Traceback" not in rest
    assert processes_in(tmp_path) == []
