"""The order of the suite's tests: nothing is lost, and long tests stand where a worker begins."""

from pathlib import Path

import pytest

from tests.bench.pulsar import jars, lane
from tests.support.order import FILES_S, in_stretches

ROOT = Path(__file__).parents[2]
GROUPS = {"a": ["a1", "a2"], "b": ["b1"], "c": ["c1", "c2", "c3"], "d": ["d1"]}
TAKES_S = {"a": 5.0, "b": 40.0, "c": 15.0, "d": 28.0}
QUICK = [f"q{number}" for number in range(15)]


def test_each_worker_but_the_last_begins_with_long_tests_the_longest_first():
    items = in_stretches(GROUPS, TAKES_S, QUICK, 3)
    assert [items[:7], items[7:14], items[14:]] == [
        ["b1", "a1", "a2", "q0", "q1", "q2", "q3"],
        ["d1", "c1", "c2", "c3", "q4", "q5", "q6"],
        ["q7", "q8", "q9", "q10", "q11", "q12", "q13", "q14"],
    ]


def test_where_few_tests_are_quick_every_worker_begins_with_long_ones():
    items = in_stretches(GROUPS, TAKES_S, ["q0"], 2)
    assert items == ["b1", "a1", "a2", "q0", "d1", "c1", "c2", "c3"]


@pytest.mark.parametrize("workers", range(1, 9))
@pytest.mark.parametrize("quick", [0, 1, 7, 15])
def test_nothing_is_lost_and_nothing_comes_twice(workers: int, quick: int):
    items = in_stretches(GROUPS, TAKES_S, QUICK[:quick], workers)
    assert sorted(items) == sorted([*QUICK[:quick], *(item for group in GROUPS.values() for item in group)])


@pytest.mark.parametrize("name", FILES_S)
def test_a_file_whose_time_is_known_is_there(name: str):
    assert (ROOT / name).is_file()


def test_jars_that_are_not_the_pinned_ones_are_not_measured_with(tmp_path, monkeypatch, capsys):
    (tmp_path / "pulsar-broker-4.2.4.jar").write_bytes(b"another")
    monkeypatch.setenv(jars.JARS_VARIABLE, str(tmp_path))
    assert lane.run() == []
    said = capsys.readouterr().err
    assert "nothing was measured" in said
    assert str(tmp_path) in said


def test_the_digest_of_jars_is_that_of_their_names_and_contents(tmp_path: Path):
    for name in ("b.jar", "a.jar", "notes.txt"):
        (tmp_path / name).write_bytes(name.encode())
    first = jars.listing(tmp_path)
    assert [line.split()[1] for line in first.splitlines()] == ["a.jar", "b.jar"]
    (tmp_path / "a.jar").write_bytes(b"changed")
    assert jars.listing(tmp_path) != first
