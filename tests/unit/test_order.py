"""The order of the suite's tests: nothing is lost, and what takes longest comes first."""

from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.order import FILES_S, SESSIONS, group_of, ordered

ROOT = Path(__file__).parents[2]


def item(name: str, *fixtures: str) -> Any:
    return SimpleNamespace(nodeid=name, fixturenames=fixtures, get_closest_marker=lambda _: None)


def test_groups_stay_together_and_those_that_take_longest_come_first():
    items = [
        item("tests/unit/test_quick.py::test_it"),
        item("tests/kafka/test_another.py::test_it", "kafka"),
        item("tests/spark/test_replay.py::test_it"),
        item("tests/kafka/test_balancer.py::test_it", "kafka"),
        item("tests/spark/test_table_view_faults.py::test_it"),
        item("tests/spark/test_load_views.py::test_it"),
        item("tests/kafka/test_balancer.py::test_that", "kafka"),
        item("tests/unit/test_quick.py::test_that"),
    ]
    names = [one.nodeid for one in ordered(items)]
    assert sorted(names) == sorted(one.nodeid for one in items)
    groups = [group for group, _ in groupby(names, group_of)]
    assert len(groups) == len({*groups}) == 5
    assert groups.index("tests/kafka/test_balancer.py") < groups.index("tests/kafka/test_another.py")
    assert groups[-1] == "tests/unit/test_quick.py"


@pytest.mark.parametrize("name", sorted({*FILES_S, *(name for names in SESSIONS.values() for name in names)}))
def test_a_file_whose_time_is_known_is_there(name: str):
    assert (ROOT / name).is_file()
