"""A job as a process: a signal ends it behind a batch, a kill frees what it held, and no JVM is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from spark.core.job_session import only_job
from tests.support.waits import WAIT_S

ROOT = Path(__file__).parents[2]


@pytest.fixture
def job(tmp_path):
    """Starts the job, in a process group of its own as a terminal does; whatever is left is ended."""
    started = []

    def start(batch_s, stop_timeout_s):
        command = [
            sys.executable,
            "-m",
            "tests.spark.ticking_job",
            str(tmp_path / "c"),
            str(batch_s),
            str(stop_timeout_s),
        ]
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        seen = iter(process.stdout.readline, "")
        assert next(seen) == "begun 0\n", process.stderr.read()
        return process, psutil.Process(process.pid).children(recursive=True)

    yield start
    for process in started:
        process.kill()
        process.communicate()


def gone(processes):
    _, left = psutil.wait_procs(processes, timeout=WAIT_S)
    return left == []


def test_a_signal_to_the_whole_group_ends_the_job_behind_its_batch(job):
    process, children = job(1.0, 30.0)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    begun = [line for line in out.splitlines() if line.startswith("begun")]
    done = [line for line in out.splitlines() if line.startswith("done")]
    assert len(done) == len(begun) + 1, "the batch whose beginning was read above is among those that are done"
    assert out.endswith("stopped\n")
    assert (process.returncode, err) == (0, "")
    assert gone(children)


def test_a_batch_that_is_stuck_holds_nobody_up(job):
    process, children = job(600.0, 1.0)
    process.terminate()
    out, _ = process.communicate(timeout=WAIT_S)
    assert "done" not in out
    assert gone(children)


@pytest.mark.lane("fast")
def test_a_kill_frees_the_checkpoint_and_ends_the_jvm(job, tmp_path):
    process, children = job(600.0, 30.0)
    process.kill()
    process.wait(WAIT_S)
    assert gone(children)
    with only_job("next", [tmp_path / "c"]):
        pass
