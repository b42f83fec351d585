"""Many runs in several processes: their order, runs that fail or die, what is kept, and Ctrl-C."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import psutil
import pytest

from shedders.contest.outcome import ContestRun, RunResult
from shedders.contest.runner import ResultStore, file_name, program_digest, run_all
from statechannel.errors import StateChannelError
from tests.support.contest_plays import play, runs
from tests.support.contest_runs import contender, source
from tests.support.waits import WAIT_S, wait_until

ROOT = Path(__file__).parents[3]


def names(rans: list[RunResult]) -> list[tuple[str, int]]:
    return [(ran.run.contender.name, ran.run.seed) for ran in rans]


def test_results_come_in_the_order_of_the_runs_whoever_is_first():
    wanted = runs("late", "ours", "quick", seeds=(1, 2))
    alone = run_all(wanted, play=play)
    many = run_all(wanted, jobs=2, play=play)
    assert names(many) == names(alone) == [(run.contender.name, run.seed) for run in wanted]
    assert [item.digest for item in many] == [item.digest for item in alone]


def test_a_run_that_fails_or_whose_process_dies_ends_no_other():
    results: list[int] = []
    wanted = runs("a", "raises", "dies", "b", "c", seeds=(1,))
    result = run_all(wanted, jobs=2, play=play, progress=results.append)
    assert names(result) == [(run.contender.name, run.seed) for run in wanted]
    errors = {item.run.contender.name: item.error for item in result}
    assert errors["raises"] == "KeyError: 'no such broker'"
    assert "its process ended" in errors["dies"]
    assert [item.outcome is not None for item in result] == [True, False, False, True, True]
    assert results == list(range(1, 6))


def test_a_run_that_fails_in_this_process_is_a_result():
    lost = ContestRun(source("no-such-scenario"), 1, contender())
    result = run_all([lost])[0]
    assert result.outcome is None
    assert result.error.startswith("ScenarioError: scenario no-such-scenario")


def test_series_are_left_away_unless_they_are_wanted():
    wanted = runs("ours", seeds=(1, 2))
    first, second = run_all(wanted, play=play, keeps_series=lambda run: run.seed == 1)
    assert first.outcome.series.at_s
    assert first.outcome.moves
    assert second.outcome.series.at_s == second.outcome.moves == []
    assert second.digest != second.outcome.digest()  # it is that of the whole outcome
    assert second.digest == run_all(wanted, play=play)[1].digest


# --- what is kept ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(tmp_path: Path):
    """Runs that are counted, with a folder."""
    played: list[str] = []

    def once(run: ContestRun) -> RunResult:
        played.append(f"{run.contender.name}-{run.seed}")
        return play(run)

    def again(wanted: list[ContestRun], program: str = "one", **more: bool) -> tuple[list[RunResult], list[str]]:
        played.clear()
        return run_all(wanted, store=ResultStore(tmp_path, program, **more), play=once), list(played)

    return again


def test_what_is_there_is_not_run_again(counted):
    first, played = counted(runs("a", "b"))
    assert played == ["a-1", "b-1", "a-2", "b-2"]
    second, played = counted(runs("a", "b", "c"))
    assert played == ["c-1", "c-2"]
    assert [item.kept for item in second] == [True, True, False] * 2
    assert [item.digest for item in second if item.kept] == [item.digest for item in first]
    assert [item.outcome for item in second if item.kept] == [item.outcome for item in first]
    assert counted(runs("a"), overwrite=True)[1] == ["a-1", "a-2"]


def test_a_result_of_another_scenario_contender_or_program_is_none(counted):
    counted(runs("a", seeds=(1,)))
    other = ContestRun(source(), 1, contender("a", overrides={"x.y": 1}))
    assert counted([other])[1] == ["a-1"]
    assert counted(runs("a", seeds=(1,)))[1] == ["a-1"]  # it was written over
    assert counted(runs("a", seeds=(1,)), program="two")[1] == ["a-1"]
    changed = ContestRun(replace(source(), digest="1" * 64), 1, contender("a"))
    assert counted([changed], program="two")[1] == ["a-1"]


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"made_of": {}}', b"\xff"])
def test_a_file_that_is_no_result_is_run_and_written_over(tmp_path, counted, content):
    run = runs("a", seeds=(1,))[0]
    place = ResultStore(tmp_path, "one").place(run)
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    assert counted([run])[1] == ["a-1"]
    assert counted([run])[1] == []


def test_failed_runs_are_not_kept(tmp_path):
    folder = ResultStore(tmp_path, "one")
    wanted = runs("raises", "a", seeds=(1,))
    run_all(wanted, store=folder, play=play)
    assert [folder.find(run) is not None for run in wanted] == [False, True]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(StateChannelError, match=r"runs/calm/1/a\.json cannot be written"):
        run_all(runs("a", seeds=(1,)), store=ResultStore(tmp_path, "one"), play=play)


def test_names_of_files_are_safe_and_differ():
    usual = "extensible/transfer+least-resource-usage@upstream,shedding.transfer.hit_threshold=2"
    odd = ["../../etc/passwd", "a b", "a_b", "a/b", ".", "x" * 500, usual]
    results = [file_name(item) for item in odd]
    assert len(set(results)) == len(odd)
    assert not any("/" in item or item.startswith(".") or len(item) > 140 for item in results)
    assert file_name("ours") == "ours"


def test_the_program_has_a_digest_that_stays():
    assert len(program_digest()) == 64
    assert program_digest() == program_digest()


# --- Ctrl-C ---------------------------------------------------------------------------------------------------------------


def interrupted_process(folder: Path) -> subprocess.Popen[bytes]:
    """One that has a contest in two processes, of which one run has ended and one has no end."""
    folder.mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = [sys.executable, "-m", "tests.support.contest_plays"]
    return subprocess.Popen(script, cwd=folder, env=env, start_new_session=True, stderr=subprocess.PIPE)


def test_nobody_is_left_when_the_command_is_interrupted_or_killed(tmp_path):
    """Ctrl-C goes to the whole group, as on a terminal; a kill only to the process that was started."""
    folders = {signal.SIGINT: tmp_path / "interrupted", signal.SIGKILL: tmp_path / "killed"}
    processes = {how: interrupted_process(folder) for how, folder in folders.items()}
    try:
        for how, folder in folders.items():
            process, kept = processes[how], folder / "out/runs/calm/1/ours.json"
            wait_until(lambda at=folder, file=kept: file.exists() and list(at.glob("begun-*")))
            children = psutil.Process(process.pid).children(recursive=True)
            (os.killpg if how == signal.SIGINT else os.kill)(process.pid, how)
            code = process.wait(WAIT_S)
            assert code == (130 if how == signal.SIGINT else -signal.SIGKILL)
            _, alive = psutil.wait_procs(children, 20)
            assert alive == []
            assert orjson.loads(kept.read_bytes())["outcome"]["contender"] == "ours"
            if how == signal.SIGINT:
                assert b"Traceback" not in process.stderr.read()
    finally:
        for process in processes.values():
            process.kill()
            process.wait(WAIT_S)
            process.stderr.close()
