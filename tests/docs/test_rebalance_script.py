"""The script for a timer, as the page has it: its window, its lock, what it executes, and what it takes back.

`plan` is the real command, on a layout file; `apply` and `cancel` are noted. On a real Kafka: kafka/test_partitions_execution.py.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shedders.kafka_rebalance.planning.plan_files import read_plan
from tests.docs.generate import ROOT
from tests.docs.test_partitions_walk import LAYOUT

SCRIPT = ROOT / "design/examples/rebalance-partitions.sh"
COMMAND = f"""#!/bin/sh
echo "$2" >> calls
case $2 in
    plan) exec '{sys.executable}' -c 'from statechannel.cli.main import main; main()' "$@" --layout layout.json ;;
    apply) trap 'kill $!; exit 130' TERM; cp "$3" applied.json; [ ! -e slow ] || {{ sleep 60 & wait; }}; exit "$(cat apply)" ;;
    cancel) echo "$3" > cancelled; exit "$(cat cancel)" ;;
esac
"""
Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the commands of the script, in which executions end well."""
    for name, text in (("statechannel", COMMAND), ("date", "#!/bin/sh\ncat now\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "layout.json").write_bytes(LAYOUT.read_bytes())
    for name, text in (("now", "23:30:00"), ("apply", "0"), ("cancel", "0")):
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def script(folder: Path) -> Script:
    here = {name: value for name, value in os.environ.items() if not name.startswith("STATECHANNEL_")}
    here |= {"PATH": f"{folder}:{os.environ['PATH']}", "STATE": str(folder / "state")}

    def run(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
        words = args or ("22:00", "05:00", "--add-brokers", "4")
        return subprocess.run(
            [str(SCRIPT), *words], capture_output=True, text=True, cwd=folder, env=here | more, check=False, timeout=60
        )

    return run


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().split() if path.exists() else []


def test_a_plan_that_is_worth_it_is_executed(folder: Path, script: Script) -> None:
    result = script()
    assert result.returncode == 0, result.stderr
    assert calls(folder) == ["plan", "apply"]
    plan = read_plan(folder / "applied.json")
    assert plan.moves
    assert plan.request["bytes_max"] == 500_000_000_000
    assert sorted(path.name for path in (folder / "state").iterdir()) == ["lock"]


@pytest.mark.parametrize(
    ("now", "inside"), [("21:59:59", False), ("22:00:00", True), ("04:59:59", True), ("05:00:00", False)]
)
def test_nothing_begins_outside_of_the_window(folder: Path, script: Script, now: str, inside: bool) -> None:
    (folder / "now").write_text(now)
    result = script("22:00", "05:00", "--topics", "none")
    assert (result.returncode == 0, calls(folder)) == ((False, ["plan"]) if inside else (True, []))
    assert ("outside of 22:00-05:00" in result.stderr) != inside


@pytest.mark.parametrize("times", [("22", "05:00"), ("22:00", "five"), ("22:00",)])
def test_a_window_that_is_none_is_refused(folder: Path, script: Script, times: tuple[str, ...]) -> None:
    assert script(*times).returncode == 2
    assert calls(folder) == []


def test_what_is_not_worth_it_is_not_executed(folder: Path, script: Script) -> None:
    result = script(MIN_GAIN="100.1%")
    assert (result.returncode, calls(folder)) == (0, ["plan"])
    assert "not worth it" in result.stderr


def test_what_the_planner_refuses_is_told(folder: Path, script: Script) -> None:
    assert script("22:00", "05:00", "--add-brokers", "77").returncode == 2
    assert calls(folder) == ["plan"]


@pytest.mark.parametrize(
    "change",
    [
        (r'{"id":4,', r'{"id":5,"host":"k","port":9092,"alive":false,"log_dirs":[]},\n {"id":4,'),
        (r'"disk_bytes":\d+,', ""),
    ],
)
def test_nothing_moves_while_a_broker_is_down_or_a_size_is_unknown(
    folder: Path, script: Script, change: tuple[str, str]
) -> None:
    (folder / "layout.json").write_text(re.sub(*change, LAYOUT.read_text()))
    result = script()
    assert (result.returncode, calls(folder)) == (3, ["plan"]), result.stderr
    assert "a broker is down, or a size is unknown" in result.stderr


def test_one_run_at_a_time(folder: Path, script: Script) -> None:
    (folder / "state").mkdir()
    with subprocess.Popen(
        ["flock", str(folder / "state/lock"), "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write(b"locked\n")
        other.stdin.flush()
        assert other.stdout.readline() == b"locked\n"
        result = script()
    assert (result.returncode, calls(folder)) == (0, [])
    assert "another run" in result.stderr


def test_at_the_end_of_the_window_what_is_in_flight_is_taken_back(folder: Path, script: Script) -> None:
    (folder / "now").write_text("04:59:59")
    (folder / "slow").touch()
    result = script()
    assert (result.returncode, calls(folder)) == (0, ["plan", "apply", "cancel"]), result.stderr
    assert (folder / "cancelled").read_text().strip() == read_plan(folder / "applied.json").id


@pytest.mark.parametrize(("cancel", "code"), [("0", 3), ("5", 3), ("13", 1)])
def test_an_execution_that_stops_is_taken_back_at_once_or_by_the_next_run(
    folder: Path, script: Script, cancel: str, code: int
) -> None:
    """5: it had not begun; 13: Kafka is away, so the next run does it first, at any time."""
    (folder / "apply").write_text("3")
    (folder / "cancel").write_text(cancel)
    assert script().returncode == code
    assert calls(folder) == ["plan", "apply", "cancel"]
    assert (folder / "state/running.json").exists() == (code == 1)
    (folder / "cancel").write_text("0")
    (folder / "now").write_text("12:00:00")
    assert script().returncode == 0
    assert calls(folder)[3:] == (["cancel"] if code == 1 else [])
    assert not (folder / "state/running.json").exists()
