"""Scenario files: what is read, what is refused, and how the refusal reads."""

import hashlib
import re
from pathlib import Path

import pytest

from shedders.contest import scenario as module
from shedders.contest.scenario import HELD_OUT, ScenarioError, load_scenario, parse_scenario, scenarios
from shedders.contest.workload import scenario_trace

TINY = """
name = "tiny"
about = "Two brokers."
source = "this test"
hours = 1

[[fleet]]
group = "b"
count = 2

[[namespaces]]
group = "app"
count = 2
bundles = 4
topics = 10
"""
EVERY_NAME = [*scenarios(), *scenarios(held_out=True)]


def broken(extra="", **replaced):
    text = TINY
    for old, new in replaced.items():
        text = re.sub(rf"^{old} = .*$", new, text, count=1, flags=re.MULTILINE)
    with pytest.raises(ScenarioError) as caught:
        scenario_trace(parse_scenario((text + extra).encode(), "my.toml"), 1)
    assert caught.value.exit_code == 7
    assert caught.value.hint
    assert str(caught.value).startswith(("my.toml", "tiny"))
    return caught.value.problems


@pytest.mark.parametrize(
    ("replaced", "extra", "problem"),
    [
        ({"hours": "hour = 1"}, "", "hour is not a field of the format; did you mean hours?"),
        ({"hours": 'hours = "1"'}, "", "hours: expected a valid number, got '1'"),
        ({"hours": "hours = nan"}, "", "hours: expected a finite number, got nan"),
        ({"hours": "hours = 0.001"}, "", "hours: shorter than one step of 20 s"),
        ({"count": "cores = 2"}, "", "fleet[0].count is missing"),
        (
            {"topics": "topics = 1_000_000"},
            '[[namespaces]]\ngroup = "x"\nbundles = 1\ntopics = 1\n',
            "it has 2,000,001 topics, more than 2,000,000: lower count or topics",
        ),
        ({}, '[[fleet]]\ngroup = "b"\ncount = 1\n', "fleet[1]: b duplicates fleet[0]"),
        ({}, "parts = [1, 2]\n", 'namespaces[0].parts: required for owners = "parts", and only there'),
        ({}, "created_at_min = 5\n", 'namespaces[0].owners: expected "placed", as it is created later'),
        ({}, "topic_max = 0.001\n", "utilisation: 0.5 is out of reach, 0.0"),
        ({"hours": "hours = 1\nutilisation = 0.02"}, "", "utilisation: 0.02 is used by idle machines already"),
        ({"hours": "hours = 1\njudged_min = [[40, 70]]"}, "", "judged_min[0]: expected a span within the 60 minutes"),
        ({}, "[[changes]]\ntopics = 1\n", "changes[0]: expected either times or machine_part"),
        ({}, "[[changes]]\ntopics = 1\ntimes = 2\nnamespace = 1\n", "changes[0].group: required with namespace"),
        ({}, '[[events]]\nwhat = "lost"\ngroup = "b"\nnumbers = [3]\nat_min = 1\n', "events[0]: b has 2 machines"),
        ({}, '[[events]]\nwhat = "slow"\ngroup = "b"\nat_min = 1\n', "events[0].factor: required for slow"),
        ({}, '[[events]]\nwhat = "lost"\ngroup = "b"\nat_min = 61\n', "events[0].at_min: 61 is after the end, 60"),
        (
            {},
            '[[events]]\nwhat = "join"\ngroup = "b"\nat_min = 5\n',
            "events: every machine joins later, so there is none at the start",
        ),
        (
            {},
            2 * '[[events]]\nwhat = "lost"\ngroup = "b"\nnumbers = [2]\nat_min = 5\n',
            "events: b-2 at 5 min: lost, but it is absent",
        ),
    ],
)
def test_what_is_refused_names_the_field_and_what_is_wanted(replaced, extra, problem):
    problems = broken(extra, **replaced)
    assert any(item.startswith(problem) for item in problems), problems


def test_a_file_that_is_no_toml_or_no_text():
    with pytest.raises(ScenarioError, match=r"my\.toml: it is not TOML: Invalid value"):
        parse_scenario(b"name = ", "my.toml")
    with pytest.raises(ScenarioError, match="it is not UTF-8: byte 0"):
        parse_scenario(b"\xff", "my.toml")


def test_one_of_ones_own_is_read_by_its_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TINY)
    assert load_scenario(str(path)).name == "tiny"


def test_a_path_that_cannot_be_read(tmp_path):
    with pytest.raises(ScenarioError, match="No such file"):
        load_scenario(str(tmp_path / "none.toml"))
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (module.SIZE_MAX_BYTES + 1))
    with pytest.raises(ScenarioError, match="more than 1048576"):
        load_scenario(str(large))
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_scenario("a\0b.toml")


def test_a_name_that_does_not_exist_is_answered_by_the_nearest():
    with pytest.raises(ScenarioError, match="unknown name") as caught:
        load_scenario("scale-ot")
    assert caught.value.hint.startswith("did you mean scale-out?")


def test_the_shipped_ones_are_found_and_called_as_their_files():
    assert {"calm", "zipf", "scale-out", "hot-topic", "day", "huge"} <= set(scenarios())
    assert len(scenarios(held_out=True)) >= 8
    assert all(name.startswith(HELD_OUT) for name in scenarios(held_out=True))
    for name in EVERY_NAME:
        assert load_scenario(name).name == name.removeprefix(HELD_OUT)


def test_held_out_files_are_those_whose_digests_were_kept():
    """The digests were committed before our strategy was changed: it was not tuned on these files, nor they on it."""
    folder = Path(module.__file__).parent / "scenarios" / "held-out"
    kept = dict(reversed(line.split()) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert kept == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.toml")}


def test_no_held_out_one_has_seeds_of_the_others():
    tuned = {seed for name in scenarios() for seed in load_scenario(name).seeds}
    held_out = {seed for name in scenarios(held_out=True) for seed in load_scenario(name).seeds}
    assert tuned.isdisjoint(held_out)


@pytest.mark.parametrize("name", EVERY_NAME)
def test_every_shipped_one_can_be_made_and_is_judged(name):
    scenario = load_scenario(name)
    trace = scenario_trace(scenario, scenario.seeds[0])
    assert trace.steps >= 20
    assert trace.judged
    assert all(0 <= a < b <= trace.steps * trace.step_s for a, b in trace.judged)
    assert sorted(trace.disturbances) == list(trace.disturbances)
    assert trace.disturbances[0] == 0
    assert all((item >= 0).all() for item in trace.demand(trace.steps - 1))
    names = {machine.name for machine in trace.machines}
    assert {owner for namespace in trace.namespaces for owner in namespace.owners} - {None} <= names
    assert {event.broker for event in trace.events if event.broker} <= names


def test_the_example_of_the_page_is_one():
    page = (Path(__file__).parents[3] / "design/reference/scenarios.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    trace = scenario_trace(parse_scenario(example.encode()), 1)
    assert [machine.name for machine in trace.machines] == ["b-1", "b-2", "b-3", "b-4", "new-1"]
    assert trace.disturbances == [0, 1_800]
