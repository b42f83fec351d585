"""A process that is starved gets its share and no more, by groups and by stopping; afterwards it runs as before."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults import throttle


@pytest.fixture
def busy() -> Iterator[psutil.Process]:
    """A process that wants all of a processor."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            yield psutil.Process(child.pid)
        finally:
            child.kill()


def used_s(process: psutil.Process, wait_s: float) -> float:
    before_s = process.cpu_times().user
    time.sleep(wait_s)
    return float(process.cpu_times().user - before_s)


@pytest.mark.parametrize("make", [throttle.starve, throttle._Stopping], ids=["as here", "stopping"])
def test_a_starved_process_gets_its_share_and_all_of_it_again(busy, make: Callable[[int, float], throttle.Throttle]):
    held_back = make(busy.pid, 0.05)
    assert used_s(busy, 1.5) < 0.4
    held_back.lift()
    deadline_s = time.monotonic() + 20
    while used_s(busy, 0.5) < 0.05:
        assert time.monotonic() < deadline_s
    assert busy.status() != psutil.STATUS_STOPPED


def test_lifting_from_a_process_that_has_ended_is_nothing(busy):
    held_back = throttle.starve(busy.pid, 0.05)
    busy.kill()
    busy.wait(10)
    held_back.lift()
    held_back.lift()


def test_without_groups_a_process_is_stopped(busy, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(throttle, "ROOT", tmp_path)
    for held_back in (throttle.starve(busy.pid, 0.05), throttle.slow_disk(busy.pid, tmp_path, 5)):
        assert held_back.how == "stopping"
        held_back.lift()
    assert busy.status() != psutil.STATUS_STOPPED


def test_groups_of_version_2_are_used_where_version_1_is_gone(busy, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(throttle, "ROOT", tmp_path)
    monkeypatch.setattr(throttle, "_disk_of", lambda _: "8:0")
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory\n")
    group = tmp_path / f"statechannel-faults-{busy.pid}"
    starved = throttle.starve(busy.pid, 0.05)
    assert starved.how == "group"
    assert (group / "cpu.max").read_text() == "5000 100000"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    throttle.slow_disk(busy.pid, tmp_path, 5)
    assert (group / "io.max").read_text() == "8:0 wiops=5"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+io"
    assert (group / "cgroup.procs").read_text() == str(busy.pid)
    starved.lift()
    assert (tmp_path / throttle._group_of(busy.pid, "") / "cgroup.procs").read_text() == str(busy.pid)


def test_a_slow_disk_is_slow_for_this_process_alone(tmp_path: Path):
    code = (
        "import os, sys, time\n"
        "file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_APPEND)\n"
        "while sys.stdin.readline():\n"
        "    before_s = time.monotonic()\n"
        "    for _ in range(2): os.write(file, b'x'), os.fsync(file)\n"
        "    print(time.monotonic() - before_s, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "file")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:

        def wrote_s() -> float:
            child.stdin.write("now\n")
            child.stdin.flush()
            return float(child.stdout.readline())

        first_s = wrote_s()
        held_back = throttle.slow_disk(child.pid, tmp_path, 4)
        if held_back.how != "group":
            held_back.lift()
            child.kill()
            return  # stopped as in the test above: this machine lets nobody make groups
        assert max(wrote_s() for _ in range(3)) > 0.4
        file = os.open(tmp_path / "other", os.O_CREAT | os.O_WRONLY)
        before_s = time.monotonic()
        os.fsync(file)
        assert time.monotonic() - before_s < max(1.0, 20 * first_s)
        held_back.lift()
        child.kill()
