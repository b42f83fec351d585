"""Jobs as commands: found by entry point, loaded when called, told in one line what is missing."""

import json
import subprocess
import sys
from importlib import metadata

import pytest

from spark.cli import main
from spark.core import session
from statechannel.cli.kit.failures import guarded
from statechannel.errors import ExitCode
from tests.support.waits import WAIT_S
from tests.unit.spark import tiny_job

TINY = ("--checkpoint", "there", "--table", "my-table", "-b", "host:1")


@pytest.fixture
def jobs(monkeypatch):
    """Two jobs: one that works, and one whose package is gone."""
    values = {"tiny": "tests.unit.spark.tiny_job:app", "gone": "no.such.job:app"}
    points = {name: metadata.EntryPoint(name, value, main.JOBS_GROUP) for name, value in values.items()}
    monkeypatch.setattr(main, "_registered", lambda: points)


@pytest.fixture
def call(jobs, capsys):
    """Calls a command below `statechannel spark` as the command line does."""

    def called(*words):
        command = main.typer.main.get_command(main.app)
        code = guarded(lambda: command.main(list(words), "spark", standalone_mode=False), debug=False)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return called


def test_a_job_gets_its_options(call):
    code, out, err = call(
        "run", "tiny", *TINY, "--trigger", "2.5", "--conf", "spark.a=b=c", "-X", "security.protocol=SSL"
    )
    assert (code, err) == (3, "")
    assert out.startswith(
        "my-table host:1 bundle-state there {'processingTime': '2500 milliseconds'} {'spark.a': 'b=c'}"
    )
    assert "('kafka.security.protocol', 'SSL')" in out
    assert "('failOnDataLoss', 'true')" in out
    assert "maxOffsetsPerTrigger" not in out


def test_limits_and_available_now(call):
    _, out, _ = call("run", "tiny", *TINY, "--available-now", "--max-offsets-per-trigger", "7", "--channel", "mine")
    assert all(word in out for word in ("{'availableNow': True}", " mine ", "('maxOffsetsPerTrigger', '7')"))


def test_a_job_is_also_a_program(capsys):
    assert tiny_job.main(list(TINY)) == 3
    assert tiny_job.main([*TINY, "--broken"]) == ExitCode.TABLE_UNUSABLE
    assert capsys.readouterr().err.startswith("error: my-table cannot be used: it is broken\nhint: ")


@pytest.mark.parametrize("wrong", [["--conf", "x"], ["-X", "=y"], ["--trigger", "-1"], ["--retries", "often"]])
def test_wrong_usage(call, wrong):
    code, _, err = call("run", "tiny", *TINY, *wrong)
    assert code == ExitCode.USAGE
    assert wrong[0] in err


def test_a_job_that_there_is_not(call):
    code, _, err = call("run", "tinny", "--checkpoint", "x")
    assert code == ExitCode.USAGE
    assert "unknown job 'tinny'" in err
    assert "gone, tiny" in err


def test_a_broken_job_breaks_no_other(call):
    code, _, err = call("run", "gone")
    assert code == ExitCode.SPARK_FAILED
    assert "`gone` (no.such.job:app) cannot be loaded" in err
    code, out, _ = call("run", "--help")
    assert code == ExitCode.OK
    assert "Tell what it was told." in out
    assert "And more" not in out
    assert "gone" in out


def test_list(call):
    code, out, _ = call("list", "--output", "json")
    assert code == ExitCode.OK
    gone, tiny = json.loads(out)["jobs"]
    assert tiny == {"job": "tiny", "what": "Tell what it was told.", "from": "tests.unit.spark.tiny_job:app"}
    assert gone["what"].startswith("cannot be loaded")
    assert "Tell what it was told." in call("list")[1]


def test_without_spark_it_says_what_to_install(call, monkeypatch):
    find = session.util.find_spec
    monkeypatch.setattr(session.util, "find_spec", lambda name: None if name == "pyspark" else find(name))
    code, _, err = call("run", "gone")
    assert code == ExitCode.SPARK_MISSING
    assert "need pyspark, not installed" in err
    assert "[spark]" in err
    assert "Traceback" not in err
    assert call("run", "--help")[0] == ExitCode.OK
    assert call("list")[0] == ExitCode.OK


def test_help_and_list_load_no_spark():
    """A second more for every look at the help, and nothing at all without the extra."""
    heavy = "('duckdb', 'pandas', 'py4j', 'pyarrow', 'pyspark')"
    code = (
        "import sys\n"
        "from spark.cli import main\n"
        "command = main.typer.main.get_command(main.app)\n"
        "[command.main(words, 'spark', standalone_mode=False) for words in (['run', '--help'], ['list'])]\n"
        f"sys.exit(sum(name in sys.modules for name in {heavy}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    assert "cannot be loaded" not in done.stdout


def test_what_entry_points_name_is_imported_without_the_extra() -> None:
    """So that a command can report that pyspark is missing."""
    entry_points = metadata.distribution("statechannel").entry_points
    points = {point.module for point in entry_points if point.module.startswith("spark.")}
    assert {"spark.jobs.replay", "spark.replay.audit_engine"} <= points
    code = (
        "import importlib, sys\n"
        "sys.modules |= dict.fromkeys(('pyspark', 'pandas', 'pyarrow'))\n"
        f"for name in {sorted(points)}: importlib.import_module(name)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert (ended.returncode, ended.stderr) == (0, "")
