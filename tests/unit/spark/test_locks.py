"""One job at a time on a folder, also where the other one was killed."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from spark.core.job_session import JobInUseError, lock_file, only_job
from spark.errors import SparkJobError
from statechannel.errors import ExitCode
from tests.support.waits import WAIT_S

HOLDER = """
import sys, time
from spark.core.job_session import only_job
with only_job("other", sys.argv[1:]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds a checkpoint and a table."""
    places = [str(tmp_path / "checkpoint"), (tmp_path / "ta ble").as_uri()]
    with subprocess.Popen([sys.executable, "-c", HOLDER, *places], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["checkpoint", "ta ble"])
def test_the_second_job_is_told_who_is_first_and_gets_in_when_that_one_is_killed(holder, tmp_path, name):
    result = rf"{name} is in use by process {holder.pid} on .*\(job other\)"
    with pytest.raises(JobInUseError, match=result) as error, only_job("mine", [tmp_path / name]):
        pytest.fail("two jobs on one folder")
    assert error.value.exit_code == ExitCode.JOB_IN_USE
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait(WAIT_S)
    with only_job("mine", [tmp_path / name]):
        assert f"process {os.getpid()} " in lock_file(tmp_path / name).read_text()


def test_another_name_of_the_folder_is_the_same_folder(holder, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(JobInUseError), only_job("mine", [f"{tmp_path}/link/../{tmp_path.name}/link/checkpoint/"]):
        pytest.fail("two jobs on one folder")


def test_a_refused_job_holds_nothing(holder, tmp_path):
    with pytest.raises(JobInUseError), only_job("mine", [tmp_path / "a", tmp_path / "checkpoint"]):
        pytest.fail("two jobs on one folder")
    with only_job("third", [tmp_path / "a"]):
        pass


TROUBLES = {
    "folder": Path.mkdir,
    "loop": lambda lock: lock.symlink_to(lock),
    "lost": lambda lock: lock.symlink_to(lock / "no" / "where"),
    "no locks": lambda _: OSError(errno.ENOLCK, "No locks available"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_lock_that_cannot_be_had(tmp_path, monkeypatch, trouble):
    if error := TROUBLES[trouble](lock_file(tmp_path / "t")):
        monkeypatch.setattr(fcntl, "flock", Mock(side_effect=error))
    with pytest.raises(SparkJobError, match=r"\.t\.lock") as caught, only_job("mine", [tmp_path / "t"]):
        pytest.fail("nothing is held")
    assert caught.value.exit_code == ExitCode.TABLE_UNUSABLE


def test_a_lock_whose_text_has_no_room_is_a_lock(tmp_path):
    lock_file(tmp_path / "t").symlink_to("/dev/full")
    with only_job("mine", [tmp_path / "t"]), pytest.raises(JobInUseError), only_job("again", [tmp_path / "t"]):
        pytest.fail("two jobs on one folder")


def test_a_folder_named_twice_is_locked_once_and_places_elsewhere_are_passed_over(tmp_path):
    with only_job("mine", [tmp_path / "a", (tmp_path / "a").as_uri(), None, "s3://bucket/table"]):
        assert [path.name for path in tmp_path.iterdir()] == [".a.lock"]
