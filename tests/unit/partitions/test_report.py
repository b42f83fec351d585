"""What people read of a plan."""

from dataclasses import replace

import pytest

from shedders.kafka_rebalance.planning.estimate import estimate
from shedders.kafka_rebalance.planning.plan import (
    GoalOutcome,
    GoalSpread,
    GoalStatus,
    PartitionMove,
    ReassignmentPlan,
    compared,
)
from shedders.kafka_rebalance.planning.report import (
    asked_said,
    brokers_grid,
    goals_grid,
    length,
    moves_grid,
    moves_said,
    overview,
    steps_said,
)
from shedders.kafka_rebalance.settings import PartitionsSettings
from tests.unit.partitions.plans import MIB, MOVES, PLAN, move


def test_the_overview_says_what_is_to_be_known_first() -> None:
    rows = overview(PLAN, estimate(PLAN.moves, PartitionsSettings())).rows
    assert rows[:6] == (
        ("cluster", "lab, 3 brokers"),
        ("request", "rebalance"),
        ("moves", "3 partitions: 2 replicas to copy, 3 new leaders"),
        ("copied", "41.9 MB; most to broker 3: 41.9 MB"),
        ("goals", "1 met; infeasible: rack-awareness; no data: cpu"),
        ("duration", "about 2.8 s; bottleneck: the number of small moves"),
    )
    assert ("search", "ended early; this is the best plan found, see the remarks") in rows
    assert [text for name, text in rows if name == "remark"] == list(PLAN.remarks)


def test_an_empty_plan_says_that_there_is_nothing_to_do() -> None:
    empty = ReassignmentPlan(id="0" * 16, cluster_id="", layout="")
    rows = dict(overview(empty, estimate((), PartitionsSettings())).rows)
    assert rows == {"cluster": "(no id), 0 brokers", "request": "-", "moves": "no moves between brokers"}


def test_goals_before_and_after() -> None:
    grid = goals_grid(PLAN)
    assert grid.rows[0][:6] == ("rack-awareness", "hard", "-", "infeasible", "3 -> 1", "0")
    assert grid.rows[1][:8] == (
        "disk",
        "soft",
        "0.1",
        "met",
        "2 -> 0",
        "0 B -> 50.3 MB",
        "94.4 MB -> 54.5 MB",
        "3 B -> 0 B",
    )
    assert grid.rows[2][3:8] == ("no data", "-", "-", "-", "-")
    assert grid.notes == ("rack-awareness: logs-0: 3 replicas, 2 racks",)


@pytest.mark.parametrize(
    ("unit", "value", "expected"),
    [
        ("bytes", 2_500.0, "2.5 kB"),
        ("bytes/s", 2_500.0, "2.5 kB/s"),
        ("millionths of CPU", 125_000.0, "12.5%"),
        ("leaders", 3.5, "3.50"),
    ],
)
def test_amounts_have_the_unit_of_their_goal(unit: str, value: float, expected: str) -> None:
    spread = GoalSpread(violations=0, excess=0, low=value, high=value, mean=value, std=value)
    goal = GoalOutcome(
        name="g", hard=False, unit=unit, range_share=0.1, status=GoalStatus.MET, before=spread, after=spread
    )
    assert goals_grid(replace(PLAN, goals=(goal,))).rows[0][5] == expected


def test_brokers_before_and_after() -> None:
    rows = brokers_grid(PLAN).rows
    assert rows[0] == (
        "1",
        "a",
        "3 -> 1",
        "2 -> 1",
        "94.4 MB -> 52.4 MB",
        "1.0 kB/s -> 500 B/s",
        "2.0 kB/s -> 1.0 kB/s",
        "-",
        "2: 41.9 MB",
    )
    assert rows[2] == ("3 (down)", "-", "1 -> 2", "0 -> 1", "-", "-", "-", "1: 41.9 MB", "-")


def test_of_many_brokers_those_with_most_data_are_shown_by_id() -> None:
    many = tuple(replace(PLAN.brokers[0], id=number, bytes_in=number % 7 * MIB) for number in range(100))
    grid = brokers_grid(replace(PLAN, brokers=many), most=5)
    assert [row[0] for row in grid.rows] == ["6", "13", "20", "27", "34"]
    assert grid.notes == ("and 95 more with less data in and out",)
    assert len(brokers_grid(replace(PLAN, brokers=many), most=None).rows) == 100


def test_single_moves() -> None:
    assert moves_grid(MOVES).rows == (
        ("logs-0", "1,2 -> 3,2", "1 -> 3", "1 -> 3", "41.9 MB", "41.9 MB", "disk"),
        ("logs-1", "2,1 -> 1,2", "leader", "2 -> 1", "10.5 MB", "0 B", "disk"),
        ("orders-0", "1,3 -> 2,3", "1 -> 2", "1 -> 2", "-", "-", "disk"),
    )
    assert moves_grid(MOVES, most=1, more="ask").notes == ("and 2 more: ask",)


def _from(before: tuple[int, ...], after: tuple[int, ...], leader: int | None) -> PartitionMove:
    return replace(move("t", 0, before, after), leader_before=leader)


@pytest.mark.parametrize(
    ("before", "after", "leader", "expected", "said"),
    [
        ((1, 2), (1, 2, 3), 1, "+3", "1 replica to copy"),
        ((1, 2, 3), (1, 2), 1, "-3", "1 replica to remove"),
        ((1, 2), (3, 4), 1, "1 -> 3, 2 -> 4", "2 replicas to copy, 1 new leader"),
        ((1, 2), (2, 1), 2, "order", "1 with a new order of replicas only"),
        ((1, 2), (2, 1), None, "leader", "1 new leader"),
        ((1, 2, 3), (1, 4), 1, "2 -> 4, -3", "1 replica to copy, 1 replica to remove"),
    ],
)
def test_what_becomes_of_a_partition(
    before: tuple[int, ...], after: tuple[int, ...], leader: int | None, expected: str, said: str
) -> None:
    move = _from(before, after, leader)
    assert steps_said(move) == expected
    assert moves_said((move,)) == f"1 partition: {said}"


def test_what_was_asked_for() -> None:
    assert asked_said({}) == "-"
    assert (
        asked_said(
            {
                "mode": "remove-brokers",
                "subjects": [3, 4],
                "topics": [],
                "excluded_topics": ["tmp-.*"],
                "moves_max": 9,
                "bytes_max": None,
            }
        )
        == "remove-brokers; brokers 3, 4; without topics tmp-.*; max moves 9"
    )
    assert (
        asked_said({"mode": "remove-log-dirs", "log_dirs": [[1, "/a"], [2, "/b"]]})
        == "remove-log-dirs; log directories 1:/a, 2:/b"
    )


@pytest.mark.parametrize(
    ("duration_s", "expected"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (75, "75 s"),
        (150, "2 min"),
        (7_100, "118 min"),
        (7_260, "2.0 h"),
        (90_000, "25.0 h"),
    ],
)
def test_lengths(duration_s: float, expected: str) -> None:
    assert length(duration_s) == expected


@pytest.mark.parametrize(
    ("value", "bound", "unit", "expected"),
    [
        (924_000_000_000, 88, "bytes", ("924.0 GB", "88 B")),
        (88_010_000, 88_000_000, "bytes", ("88010000 bytes", "88000000")),
        (1, 2, "replicas", ("1 replica", "2")),
        (1_500, 2_000, "bytes/s", ("1.5 kB/s", "2.0 kB/s")),
        (314_000, 300_000, "millionths of CPU", ("31.4% of CPU", "30.0%")),
    ],
)
def test_what_is_compared_is_told_exactly_where_it_would_read_alike(
    value: int, bound: int, unit: str, expected: tuple[str, str]
) -> None:
    assert compared(value, bound, unit) == expected
