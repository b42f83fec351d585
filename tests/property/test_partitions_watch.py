"""The autopilot in virtual time: 30 days with failures, each of its rules broken, and its arithmetic beside dumb twins.

More seeds: `python -m tests.partitions_watch`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shedders.kafka_rebalance.settings import WatchSettings
from shedders.kafka_rebalance.watch.calendar import DAYS, first_span_at, parse_span
from shedders.kafka_rebalance.watch.values import HoldNote, Spending, WatchedExecution, WatchState
from shedders.kafka_rebalance.watch.watcher import WatchEventKind
from tests.partitions_watch import PLANTED, TIGHT, measured, noticed
from tests.support.watch_world import live


def test_thirty_days_with_failures() -> None:
    """No ping-pong, never more than the budget, nothing while the cluster is not well, and evener disks than without."""
    figures = measured(3)
    assert figures.faults == ()
    assert figures.starts > 10
    assert figures.resumes > 3, "plans are continued after deaths"
    assert figures.moved > 30
    assert set(WatchEventKind) - {WatchEventKind.CANCELLING} <= figures.kinds
    assert figures.fullest < 1.15
    assert figures.fullest_without > 1.5


def test_a_tight_budget_and_long_quiet_times() -> None:
    world, _ = live(1, days=5, settings=TIGHT)
    assert world.faults == []
    assert world.moved > 5


def test_it_only_proposes_by_default() -> None:
    settings = TIGHT.model_copy(update={"mode": WatchSettings().mode})
    world, lives = live(1, days=2, settings=settings, broken=False)
    kinds = {event.kind for one in lives for event in one.events}
    assert WatchEventKind.PROPOSED in kinds
    assert (world.moved, world.starts) == (0, 0)


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_fault_is_noticed(name: str) -> None:
    assert noticed(name, days=15, seeds=3) is not None


# --- the budget -----------------------------------------------------------------------------------------------------------

MINUTE_MS = 60_000
BUDGET, WINDOW_MIN = 100, 30


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 40), st.integers(1, 100)), max_size=15))
def test_no_window_has_more_than_the_budget(wanted: list[tuple[int, int, int]]) -> None:
    """Plans that start when they may, and copy at any moment of their time: minute by minute, in each window."""
    settings = WatchSettings(budget_bytes=BUDGET, budget_window_s=WINDOW_MIN * 60)
    state, minute, plans = WatchState(), 0, list[tuple[int, int, int]]()
    for wait, length, size in wanted:
        minute += wait
        now_ms = (minute + 1_000) * MINUTE_MS
        twin_left = BUDGET - sum(of for _, end, of in plans if end > minute - WINDOW_MIN)
        assert state.left_bytes(now_ms, settings) == max(0, twin_left)
        if size > twin_left:
            continue
        open_ = (*state.spent, Spending(plan_id="p", from_ms=now_ms, to_ms=None, size_bytes=size))
        assert WatchState(spent=open_).left_bytes(now_ms, settings) == twin_left - size, (
            "it counts while it is under way"
        )
        plans.append((minute, minute + length, size))
        minute += length
        end_ms = (minute + 1_000) * MINUTE_MS
        state = WatchState(spent=(*state.spent, Spending(plan_id="p", from_ms=now_ms, to_ms=end_ms, size_bytes=size)))
    for end in range(minute + 1):  # whenever a plan copies, all of it may be in the window
        assert sum(size for begin, over, size in plans if begin <= end and over > end - WINDOW_MIN) <= BUDGET


# --- hours ----------------------------------------------------------------------------------------------------------------

TIMES = st.integers(0, 24 * 60).map(lambda minute: f"{minute // 60:02}:{minute % 60:02}")
NAMES = st.sampled_from(DAYS)
SPANS = st.tuples(st.one_of(st.just(""), NAMES, st.tuples(NAMES, NAMES).map("-".join)), TIMES, TIMES).filter(
    lambda parts: parts[1] != parts[2]
)
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])
MOMENTS = st.integers(0, 2 * 365 * 24 * 60).map(
    lambda minute: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)
)


@given(SPANS, MOMENTS, ZONES)
def test_hours_beside_a_walk_through_the_minutes(parts: tuple[str, str, str], at: datetime, zone: str) -> None:
    days, begin, end = parts
    text = f"{days} {begin}-{end}".strip()
    local = at.astimezone(ZoneInfo(zone)).replace(tzinfo=None, second=0, microsecond=0)
    assert (first_span_at([text], round(at.timestamp() * 1_000), zone) is not None) == _walk(days, begin, end, local)


def _walk(days: str, begin: str, end: str, at: datetime) -> bool:
    """Walk from each beginning of the last days to its end, a minute at a time."""
    first, _, last = days.partition("-")
    allowed, name = set[str](), first
    while first:
        allowed.add(name)
        if name == (last or first):
            break
        name = DAYS[(DAYS.index(name) + 1) % 7]
    begin_min, end_min = (int(text[:2]) * 60 + int(text[3:]) for text in (begin, end))
    for back in (0, 1, 2):
        day = at.replace(hour=0, minute=0) - timedelta(days=back)
        if allowed and DAYS[day.weekday()] not in allowed:
            continue
        clock, minutes = day + timedelta(minutes=begin_min), (end_min - begin_min) % (24 * 60) or 24 * 60
        if clock <= at < clock + timedelta(minutes=minutes):
            return True
    return False


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8-9",
        "25:00-26:00",
        "Mo 08:00-09:00",
        "08:00-08:00",
        "24:00-00:00",
        "2026-13-01",
        "2026-01-02..2026-01-01",
        "08:60-09:00",
    ],
)
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_span(text)


def test_days_are_inclusive_in_their_time_zone() -> None:
    before = round(datetime(2026, 12, 23, 22, 59, tzinfo=UTC).timestamp() * 1_000)
    spans = ["2026-12-24..2026-12-26"]
    assert [
        first_span_at(spans, before + minute * MINUTE_MS, "Europe/Berlin") is not None for minute in (0, 1, 3 * 24 * 60)
    ] == [
        False,
        True,
        True,
    ]
    assert first_span_at(spans, before + (3 * 24 * 60 + 1) * MINUTE_MS, "Europe/Berlin") is None


# --- memory ---------------------------------------------------------------------------------------------------------------

KEYS = st.tuples(st.text("abc.-", min_size=1), st.integers(0, 9))
NUMBERS = st.integers(0, 2**50)


@given(
    st.builds(
        WatchState,
        looked_at_ms=NUMBERS,
        brokers=st.dictionaries(st.integers(0, 9), NUMBERS),
        spent=st.lists(
            st.builds(Spending, plan_id=st.text(), from_ms=NUMBERS, to_ms=st.none() | NUMBERS, size_bytes=NUMBERS)
        ).map(tuple),
        moved=st.dictionaries(KEYS, NUMBERS),
        execution=st.none()
        | st.builds(WatchedExecution, plan_id=st.text(), began_at_ms=NUMBERS, keys=st.lists(KEYS).map(tuple)),
        hold=st.none()
        | st.builds(HoldNote, code=st.text(), message=st.text(), since_ms=NUMBERS, alerted=st.booleans()),
    )
)
def test_the_memory_survives_the_topic(state: WatchState) -> None:
    assert WatchState.from_json({**state.to_json(), "of_a_newer_version": 1}) == state
