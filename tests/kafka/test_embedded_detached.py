"""`up`, `down` and `status` work by data folder alone, from any process, whatever is left there."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from statechannel.embedded import AlreadyRunningError, BrokerStartError, down, status, up
from statechannel.embedded.detached import BrokerState
from tests.support.kafka_lanes import embedded_options
from tests.support.waits import WAIT_S


def test_up_status_down(tmp_path: Path) -> None:
    folder = tmp_path / "kafka"
    assert status(folder).state is BrokerState.STOPPED
    assert not folder.exists(), "looking must not make the folder"
    started, fresh = up(folder, options=embedded_options())
    try:
        assert fresh
        assert started.state is BrokerState.RUNNING
        again, fresh_again = up(folder, options=embedded_options())
        assert not fresh_again
        assert (again.pid, again.bootstrap_servers) == (started.pid, started.bootstrap_servers)
        other_port = int(started.bootstrap_servers.rpartition(":")[2]) + 1
        with pytest.raises(AlreadyRunningError, match=str(started.bootstrap_servers)):
            up(folder, port=other_port, options=embedded_options())
    finally:
        assert down(folder)
    assert status(folder).state is BrokerState.STOPPED
    assert status(folder).bootstrap_servers == started.bootstrap_servers
    assert not down(folder), "nothing is left to stop"


def test_a_crash_is_told_from_a_stop(tmp_path: Path) -> None:
    folder = tmp_path / "kafka"
    started, _ = up(folder, options=embedded_options())
    psutil.Process(started.pid).kill()
    deadline_s = time.monotonic() + WAIT_S
    while status(folder).state in (BrokerState.RUNNING, BrokerState.STARTING) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert status(folder).state is BrokerState.CRASHED
    try:
        assert up(folder, options=embedded_options())[0].state is BrokerState.RUNNING
    finally:
        assert down(folder)
    assert status(folder).state is BrokerState.STOPPED


def test_broker_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    folder = tmp_path / "kafka"
    script = "import sys, pathlib; from statechannel.embedded import up; up(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True, timeout=120)
    try:
        assert status(folder).state is BrokerState.RUNNING
    finally:
        assert down(folder)
    assert (folder / "log" / ".kafka_cleanshutdown").exists()


def has_ended(pid: int) -> bool:
    """Gone, or ended as a child of this test that nobody has waited for yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_lost_record_does_not_hide_a_running_broker(tmp_path: Path) -> None:
    folder = tmp_path / "kafka"
    started, _ = up(folder, options=embedded_options())
    try:
        (folder / "broker.json").unlink()
        assert status(folder).pid == started.pid
    finally:
        assert down(folder)
    deadline_s = time.monotonic() + WAIT_S  # the process table may be a moment behind
    while not has_ended(started.pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert has_ended(started.pid)


def test_reused_pid_is_never_signalled(tmp_path: Path) -> None:
    # The record of a broker that is long gone names the pid of an innocent process: this one.
    record = {"pid": os.getpid(), "started_at_s": 1.0, "port": 1, "controller_port": 2}
    (tmp_path / "broker.json").write_text(json.dumps(record))
    assert status(tmp_path).state is BrokerState.STOPPED
    assert not down(tmp_path)


def test_damaged_record_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text('{"pid": "x"')
    assert status(tmp_path).state is BrokerState.STOPPED
    assert status(tmp_path).bootstrap_servers is None


def test_a_suspended_broker_is_said_to_be_so_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "kafka"
    started, _ = up(folder, options=embedded_options())
    running = psutil.Process(started.pid)
    try:
        running.suspend()
        deadline_s = time.monotonic() + WAIT_S  # it has many threads, and a busy machine
        while running.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert status(folder).state is BrokerState.SUSPENDED
        with pytest.raises(BrokerStartError, match="is suspended") as refused:
            up(folder, options=embedded_options())
        assert f"kill -CONT {started.pid}" in refused.value.hint
        running.resume()
        assert up(folder, options=embedded_options())[0].state is BrokerState.RUNNING
    finally:
        running.resume()
        assert down(folder)
