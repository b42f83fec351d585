"""`statechannel demo` from outside: what it says, how it ends, what it leaves behind."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from statechannel.demo.cluster import command_path
from tests.support.waits import WAIT_S

COMMAND = os.environ.get("WHEEL_COMMAND") or str(command_path())
"""That of this checkout, or of a wheel that was installed elsewhere (`make wheel-env`, .ci/run)."""
LONGEST_S = 280
"""The demo promises 90 s on an idle machine; tests share theirs."""


@contextmanager
def demo(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("STATECHANNEL_KAFKA__")}
    env.pop("PYTHONPATH", None)
    process = subprocess.Popen(
        [COMMAND, "demo", *options],
        cwd=folder,
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
    pids = [int(pid) for pid in end.group(1).split()]
    try:
        env = os.environ | {address.group(1): address.group(2)}
        status = subprocess.run([COMMAND, "status"], env=env, capture_output=True, text=True, check=False)
        assert status.returncode == 0, status.stderr
        assert status.stdout.startswith("HEALTHY  3 brokers are alive")
    finally:
        brokers = [psutil.Process(pid) for pid in pids]
        for broker in brokers:
            broker.terminate()
        _, late = psutil.wait_procs(brokers, timeout=WAIT_S)
        down = subprocess.run(
            [COMMAND, "kafka", "down", "--folder", kafka_folder.group(1)], check=False, timeout=WAIT_S
        )
    assert late == []
    assert down.returncode == 0
    assert processes_in(tmp_path) == []
    assert "\x1b" not in text
    assert text.isascii()
    assert "FAILED" not in text
    for words in (
        "the transferred bundle is served by b[123]",
        "the namespace has 17 bundles after the split",
        r"every bundle was served again [\d.]+ s after the kill",
        r"handed over its bundles and ended, after [\d.]+ s with exit code 0",
        r"\d+ moves brought the brokers from [\d.]+ to [\d.]+ apart",
        "each of 17 bundles is served by a broker that runs",
        r"the log shows the cause of each of \d+ gaps",
        "at no time two brokers may have served one bundle",
        "the states of b1, b2, b3 are those of the log",
        "the status of the channel is healthy",
    ):
        assert re.search(r"\[ok\][^\[]*" + words.replace(" ", r"\s+"), text), (words, text)
    assert re.search(r"owner-lost .*\n.*b\d was gone, repaired by b\d", text)
    assert re.search(r"transfer from b\d to b\d \(shutdown\)", text)


def test_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        seen = ""
        until_s = time.monotonic() + WAIT_S
        while "All have caught up" not in seen and time.monotonic() < until_s:
            seen += process.stdout.readline()
        assert len(processes_in(tmp_path)) >= 4, seen
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, seen + rest
    assert "3 brokers and Kafka were ended" in rest
    assert "Traceback" not in rest
    assert processes_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
