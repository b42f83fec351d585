"""`simulate`: end to end on a cluster of three brokers, in this process and in several."""

import builtins
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from shedders.cli.contest import options
from shedders.contest.comparison import ContestComparison
from shedders.contest.outcome import RunOutcome
from shedders.snapshots.cluster import snapshot_of
from shedders.snapshots.file import write_snapshot
from statechannel.errors import ExitCode
from tests.cli.test_cli_plans import refused
from tests.support.snapshots import Shape, cluster
from tests.support.strategies import install

Run = Callable[..., Result]
TINY = """
name = "tiny"
about = "Three brokers; the first two have most of the load."
source = "tests"
hours = 0.5
utilisation = 0.5
step_s = 30

[[fleet]]
group = "b"
count = 3

[[namespaces]]
group = "app"
bundles = 24
topics = 96
zipf = 0.5
owners = "parts"
parts = [4, 2, 1]

[[noise]]
sd = 0.05
"""
TWO = "ours extensible/transfer+least-resource-usage@upstream"


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Our strategies and commands, one that raises, and a scenario in the current folder."""
    install(monkeypatch, shedding={"raising": "tests.cli.raising_strategy:Raising"})
    Path("tiny.toml").write_text(TINY)


def loaded(result: Result) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


# --- list -----------------------------------------------------------------------------------------------------------------


def test_list_names_scenarios_and_contenders(run: Run) -> None:
    result = loaded(run("simulate", "list", "--output", "json"))
    names = [scenario["name"] for scenario in result["scenarios"]]
    assert {"calm", "scale-out"} <= set(names)
    assert [scenario["held_out"] for scenario in result["scenarios"]] == [
        name.startswith("held-out/") for name in names
    ]
    assert any(scenario["held_out"] for scenario in result["scenarios"])
    assert result["contenders"][0]["name"] == "ours"
    assert any(contender["upstream"] for contender in result["contenders"])
    table = run("simulate", "list").stdout
    assert all(name in table for name in names)


# --- run ------------------------------------------------------------------------------------------------------------------


def test_run_shows_how_well_it_went_and_writes_plot_and_outcome(run: Run) -> None:
    result = run("simulate", "run", "tiny.toml", "--seed", 3, "--out", "here")
    assert result.exit_code == 0, result.stderr
    assert "ours on tiny, seed 3: 60 steps of 30 s" in result.stdout
    assert "max_over_mean" in result.stdout
    outcome = RunOutcome.model_validate_json(Path("here/tiny-3-ours.json").read_bytes())
    assert outcome.measures.moves == len(outcome.moves) > 0
    assert f"digest {outcome.digest()}" in result.stdout
    assert "</svg>" in Path("here/tiny-3-ours.svg").read_text()


def test_run_is_repeated_bit_for_bit(run: Run) -> None:
    first, second, other = (
        loaded(run("simulate", "run", "tiny.toml", "--seed", seed, "--output", "json")) for seed in (1, 1, 2)
    )
    assert first["digest"] == second["digest"] != other["digest"]
    del first["timing"], second["timing"]
    assert first == second


def test_bad_words_for_run_are_told(run: Run) -> None:
    assert run("simulate", "run").exit_code == ExitCode.USAGE
    refused(run("simulate", "run", "clam"), ExitCode.BAD_EXPORT, "did you mean calm?")
    refused(run("simulate", "run", "none.toml"), ExitCode.BAD_EXPORT, "none.toml", "No such file")
    refused(run("simulate", "run", "tiny.toml", "--contender", "our"), ExitCode.BAD_SETTINGS, "unknown contender `our`")
    setting = "ours,shedding.weighted-move.no_such=1"
    refused(run("simulate", "run", "tiny.toml", "--contender", setting), ExitCode.BAD_SETTINGS, "no_such")
    Path("file").touch()
    refused(
        run("simulate", "run", "tiny.toml", "--out", "file"), ExitCode.BAD_EXPORT, "the folder file cannot be created"
    )
    Path("bad.toml").write_text(TINY.replace("hours = 0.5", "hours = -1"))
    refused(run("simulate", "run", "bad.toml"), ExitCode.BAD_EXPORT, "hours")


# --- compare --------------------------------------------------------------------------------------------------------------


def test_compare_writes_all_results_and_does_not_repeat_runs(run: Run) -> None:
    words = ("simulate", "compare", "tiny.toml", "--contenders", TWO, "--seeds", "1-2", "--out", "out")
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    for text in ("tiny: Three brokers", "ours", "transfer+least-resource-usage@upstream", "aims of ours", "sign test"):
        assert text in result.stdout
    outcome = ContestComparison.model_validate_json(Path("out/comparison.json").read_bytes())
    assert outcome.seeds == [1, 2]
    assert [row.contender for row in outcome.scenarios[0].rows] == TWO.split()
    assert len(list(Path("out/runs/tiny").rglob("*.json"))) == 4
    assert Path("out/plots/tiny.svg").is_file()
    assert Path("out/churn.svg").is_file()
    assert "| ours |" in Path("out/tables.md").read_text()
    again = run(*words)
    assert "4 of 4 runs were reused" in again.stderr
    assert again.stdout == result.stdout
    # Another scenario under the same name is another one.
    Path("tiny.toml").write_text(TINY.replace("zipf = 0.5", "zipf = 0.6"))
    assert "were there already" not in run(*words).stderr


def test_compare_gives_the_same_in_several_processes(run: Run) -> None:
    words = ("simulate", "compare", "tiny.toml", "--contenders", "ours", "--seeds", "1,2", "--output", "json")
    alone, many = (loaded(run(*words, "--jobs", jobs)) for jobs in (1, 2))
    assert many["digest"] == alone["digest"]


def test_a_contender_that_fails_is_told_and_ends_with_1(run: Run) -> None:
    names = "ours extensible/raising+least-resource-usage@recommended"
    result = run("simulate", "compare", "tiny.toml", "--contenders", names, "--seeds", "1", "--output", "json")
    document = json.loads(result.stdout)
    row = document["scenarios"][0]["rows"][1]
    assert row["failed"] or row["remarks"]
    assert result.exit_code == (ExitCode.FAILED if row["failed"] else ExitCode.OK)
    assert "Traceback" not in result.stderr


def test_bad_words_for_compare_are_told(run: Run) -> None:
    refused(run("simulate", "compare", "tiny.toml", "--seeds", "5-1"), ExitCode.USAGE, "--seeds 5-1: no seeds")
    for seeds in ("", "a", "1,,2", "-1", "1-9999", "1.5", "٣"):
        assert run("simulate", "compare", "tiny.toml", "--seeds", seeds).exit_code == ExitCode.USAGE
    refused(run("simulate", "compare", "tiny.toml", "--snapshot", "s.json"), ExitCode.USAGE, "mutually exclusive")
    refused(run("simulate", "compare", "--snapshot", "s.json"), ExitCode.BAD_EXPORT, "s.json")
    refused(run("simulate", "compare", "tiny.toml", "--contenders", "nobody"), ExitCode.BAD_SETTINGS, "nobody")
    refused(run("simulate", "compare", "tiny.toml", "--contenders", "ours,foo"), ExitCode.BAD_SETTINGS, "foo")
    refused(run("simulate", "compare", "tiny.toml", "--contenders", ""), ExitCode.BAD_SETTINGS, "no name")
    refused(run("simulate", "compare", "tiny.toml", "--hours", "1"), ExitCode.USAGE, "--hours requires --snapshot")
    refused(run("simulate", "compare", "tiny.toml", "--seeds", "1-100000"), ExitCode.USAGE, "too many seeds")
    refused(run("simulate", "compare", "tiny.toml", "no-such"), ExitCode.BAD_EXPORT, "no-such")


def test_seeds_as_people_write_them() -> None:
    assert options.parse_seeds("1-3,7, 2") == [1, 2, 3, 7]


# --- one's own cluster ----------------------------------------------------------------------------------------------------


def test_a_snapshot_takes_part_with_what_its_cluster_does_now(run: Run) -> None:
    """And noise differs from seed to seed."""
    snapshot = snapshot_of(cluster(7, Shape(brokers=4, bundles_each=6, hot=1, topics_each=2)))
    strategies = snapshot.strategies.model_copy(update={"shedding": "threshold", "placement": "round-robin"})
    settings = snapshot.settings.model_copy(update={"shedding": {"threshold": {"threshold_percent": 5.0}}})
    write_snapshot(snapshot.model_copy(update={"strategies": strategies, "settings": settings}), Path("s.json"))
    words = ("simulate", "compare", "--snapshot", "s.json", "--contenders", "ours", "--hours", "0.3")
    answer = loaded(run(*words, "--seeds", "1-2", "--output", "json"))
    assert {row["contender"] for row in answer["scenarios"][0]["rows"]} == {"ours", "as-it-is"}
    now = next(row for row in answer["scenarios"][0]["rows"] if row["contender"] == "as-it-is")
    assert "threshold, round-robin" in now["about"]
    assert len(set(now["digests"].values())) == 2
    # Settings count: other ones make another contender.
    shown = run(*words, "--seeds", "1", "--out", "out").stdout
    assert shown.startswith("s: ")
    for text in (shown, Path("out/tables.md").read_text()):
        assert "as-it-is" in text
        assert "used for tuning" not in text, "nothing is summed up over scenarios"
    other = settings.model_copy(update={"shedding": {"threshold": {"threshold_percent": 6.0}}})
    write_snapshot(snapshot.model_copy(update={"strategies": strategies, "settings": other}), Path("s.json"))
    assert "were there already" not in run(*words, "--seeds", "1", "--out", "out").stderr


# --- without the extra ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [("list",), ("run", "tiny.toml"), ("compare", "tiny.toml"), ("generate", "--seed", "1", "--out", "d")],
    ids=" ".join,
)
def test_without_its_libraries_every_command_says_what_to_install(run: Run, monkeypatch, words: tuple[str, ...]):
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        assert name.partition(".")[0] not in ("numpy", "matplotlib"), f"{name} is imported"
        return real(name, *rest, **more)

    monkeypatch.setattr(options, "find_spec", lambda name: None)
    monkeypatch.setattr(builtins, "__import__", without)
    refused(run("simulate", *words), ExitCode.EXTRA_MISSING, "numpy and matplotlib", "[simulate]")


# --- generate -----------------------------------------------------------------------------------------------------------------


def test_generate_writes_the_same_scenarios_for_the_same_seed(run: Run) -> None:
    first = loaded(run("simulate", "generate", "--seed", "9", "--count", "3", "--out", "drawn", "--output", "json"))
    files = [Path(row["file"]) for row in first["scenarios"]]
    assert [file.name for file in files] == [f"generated-9-0{number}.toml" for number in (1, 2, 3)]
    before = [file.read_bytes() for file in files]
    again = run("simulate", "generate", "--seed", "9", "--count", "3", "--out", "drawn")
    assert again.exit_code == 0, again.stderr
    assert "generated-9-03.toml" in again.stdout
    assert [file.read_bytes() for file in files] == before


def test_generate_needs_a_seed_and_a_folder(run: Run) -> None:
    assert run("simulate", "generate", "--out", "drawn").exit_code == ExitCode.USAGE
    assert run("simulate", "generate", "--seed", "1").exit_code == ExitCode.USAGE


def test_generated_scenarios_are_a_group_of_results(run: Run) -> None:
    raw = TINY.replace('name = "tiny"', 'name = "tiny"\ngenerated_by_seed = 4')
    Path("tiny.toml").write_text(raw)
    result = loaded(run("simulate", "compare", "./tiny.toml", "--contenders", TWO, "--seeds", "1", "--output", "json"))
    assert list(result["overall"]) == ["generated"]
    assert result["scenarios"][0]["best"]
