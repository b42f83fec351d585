"""Lanes: each test has one at least, and a lane or a test that did not run is named."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.lanes import (
    EVIDENCE,
    FAST,
    LANES,
    LIVE,
    PLACES,
    SHORTENED,
    gaps,
    is_without,
    lanes_of,
    main,
    shorten,
)

ROOT = Path(__file__).parents[2]


def item(nodeid: str, *fixtures: str, marks: tuple[pytest.Mark, ...] = (), test: Any = None) -> Any:
    """What lanes look at in a test of pytest."""
    named = {mark.name: mark for mark in marks}
    return SimpleNamespace(nodeid=nodeid, fixturenames=fixtures, get_closest_marker=named.get, obj=test)


@pytest.mark.parametrize(
    ("nodeid", "fixtures", "lanes"),
    [
        ("tests/unit/core/test_lease.py::test_it", (), (FAST,)),
        ("tests/unit/kafka/test_lost_position.py::test_its_own_fixture_of_that_name", ("kafka",), (FAST,)),
        ("tests/unit/core/test_accelerator.py::test_it[a]", (), (EVIDENCE,)),
        ("tests/property/test_core_fold.py::test_it", (), (FAST,)),
        ("tests/explorer/test_explorer.py::test_it", (), (EVIDENCE,)),
        ("tests/cli/test_status_view.py::test_it", (), (FAST,)),
        ("tests/cli/test_report_page.py::test_it", ("browser",), (LIVE,)),
        ("tests/docs/test_kv_example.py::test_it", ("kafka", "tmp_path"), (LIVE,)),
        ("tests/spark/test_signals.py::test_it", (), (LIVE,)),
    ],
)
def test_a_test_is_in_the_lanes_of_what_it_uses_or_of_its_place(
    nodeid: str, fixtures: tuple[str, ...], lanes: tuple[str, ...]
) -> None:
    assert lanes_of(item(nodeid, *fixtures)) == lanes


def test_what_draws_examples_draws_more_in_a_second_lane() -> None:
    draws = given(st.integers())(lambda _: None)
    assert lanes_of(item("tests/property/test_core_fold.py::test_it", test=draws)) == (FAST, EVIDENCE)


@pytest.mark.parametrize(
    ("folder", "without"),
    [
        ("tests/", ()),
        ("tests/cli/", (EVIDENCE,)),
        ("tests/cli/cases/", (EVIDENCE,)),
        ("tests/unit/", (LIVE,)),
        ("tests/unit/core/", (LIVE,)),
        ("tests/unit/http_api/", (LIVE, EVIDENCE)),
        ("tests/explorer/", (LIVE,)),
    ],
)
def test_a_lane_alone_reads_folders_that_have_tests_of_it(folder: str, without: tuple[str, ...]) -> None:
    assert tuple(lane for lane in LANES if is_without(folder, [lane])) == without
    assert not is_without(folder, [])
    assert not is_without(folder, [LIVE, EVIDENCE])


def test_a_mark_is_stronger() -> None:
    nodeid = "tests/kafka/test_it.py::test_it"
    assert lanes_of(item(nodeid, marks=(pytest.mark.kafka.mark,))) == (LIVE,)
    assert lanes_of(item(nodeid, marks=(pytest.mark.kafka.mark, pytest.mark.lane(FAST).mark))) == (FAST,)


@pytest.mark.parametrize("names", [(), ("quick",), (FAST, "quick")])
def test_a_mark_names_lanes_that_there_are(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="is in one or more of"):
        lanes_of(item("tests/unit/test_it.py::test_it", marks=(pytest.mark.lane(*names).mark,)))


@pytest.mark.parametrize("place", PLACES)
def test_each_place_is_there(place: str) -> None:
    assert (ROOT / place).exists()


def test_property_tests_of_two_lanes_are_shortened_once() -> None:
    tried = []

    @settings(max_examples=40, database=None)
    @given(st.integers())
    def of_two_lanes(_: int) -> None:
        tried.append(1)

    shorten([item(f"tests/property/test_it.py::test_it[{case}]", test=of_two_lanes) for case in "ab"])
    shorten([item("tests/unit/test_it.py::test_it", test=of_two_lanes)])
    of_two_lanes()
    assert len(tried) == 40 // SHORTENED


def ran(*lanes: str, **outcomes: str) -> dict[str, Any]:
    collected = {"unit": [FAST], "property": [FAST, EVIDENCE], "kafka": [LIVE]}
    return {"lanes": lanes, "took_s": 60.0, "collected": collected, "outcomes": outcomes}


FIRST = ran(FAST, unit="passed", property="passed")
REST = ran(LIVE, EVIDENCE, kafka="skipped", property="passed")


@pytest.mark.parametrize(
    ("runs", "missing"),
    [
        ([FIRST, REST], []),
        ([FIRST, ran(LIVE, kafka="passed"), ran(EVIDENCE, property="passed")], []),
        ([FIRST, ran(LIVE, kafka="passed")], ["the lane evidence did not run"]),
        ([ran(FAST, unit="passed"), REST], ["property did not run in the lane fast"]),
        ([], [f"the lane {lane} did not run" for lane in LANES]),
    ],
)
def test_what_did_not_run_is_named(runs: list[dict[str, Any]], missing: list[str]) -> None:
    assert gaps(runs) == missing


@pytest.mark.parametrize(
    ("runs", "code", "last"),
    [
        ([FIRST, REST], 0, "===== all lanes: 2 passed, 1 skipped, 0 missing ====="),
        ([FIRST], 1, "===== all lanes: 2 passed, 2 missing ====="),
        (
            [FIRST, ran(LIVE, EVIDENCE, kafka="passed", property="failed")],
            1,
            "===== all lanes: 1 failed, 2 passed, 0 missing =====",
        ),
    ],
)
def test_lanes_are_summed_up(runs: list[dict[str, Any]], code: int, last: str, tmp_path, capsys):
    for number, run in enumerate(runs):
        (tmp_path / f"{number}.json").write_text(json.dumps(run), encoding="utf-8")
    assert main(tmp_path) == code
    assert capsys.readouterr().out.splitlines()[-1] == last
