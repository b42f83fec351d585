"""The log's time as a broker reckons it: by what it reads, not by its machine's clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaddata.model.figures import LATEST_MS
from shedders.balancer.extension import BalancerExtension
from shedders.balancer.ports import SAMPLES_MAX, WINDOW_S, BalancerLogClock
from shedders.policies.book import PolicyBook
from shedders.policies.kinds import PolicyKind
from shedders.policies.record import PolicyRecord, encode, made_key

HOUR_MS = 3_600_000
LOG_MS = 1_750_000_000_000


class World:
    """True time, a log that is stamped by it, and a machine whose wall clock is two hours fast."""

    def __init__(self) -> None:
        self.s = 50.0
        self.clock = BalancerLogClock(lambda: self.s, lambda: self.true_ms + 2 * HOUR_MS)

    @property
    def true_ms(self) -> int:
        return LOG_MS + round(self.s * 1_000)

    def read(self, age_s: float = 0.0) -> None:
        self.clock.heard(self.true_ms - round(age_s * 1_000))

    @property
    def wrong_ms(self) -> int:
        return self.clock.now_ms() - self.true_ms


@pytest.fixture
def world() -> World:
    return World()


def test_a_fast_wall_clock_ends_no_override(world: World) -> None:
    key = made_key(PolicyKind.CORDON, "b1", override=True)
    book = PolicyBook()
    end_ms = world.true_ms + HOUR_MS
    book.take(0, world.true_ms, key.encode(), encode(PolicyRecord(key, {}, "ann", "disk", end_ms, 1)))
    world.read()
    assert list(book.at(world.clock.now_ms()).policies.cordons) == ["b1"]
    world.s += 3_599
    assert list(book.at(world.clock.now_ms()).policies.cordons) == ["b1"]
    world.s += 1
    assert list(book.at(world.clock.now_ms()).policies.cordons) == []
    assert world.clock.ahead_ms() == 2 * HOUR_MS


def test_before_anything_is_read_it_is_the_wall_clock(world: World) -> None:
    assert (world.wrong_ms, world.clock.ahead_ms()) == (2 * HOUR_MS, None)


def test_it_runs_on_while_nothing_is_read_and_a_backlog_does_not_turn_it_back(world: World) -> None:
    world.read()
    world.s += 1_000
    assert world.wrong_ms == 0
    for age_s in (900, 600, 300, 1):
        world.read(age_s)
        assert world.wrong_ms == 0


def test_what_is_read_late_counts_less_than_what_is_read_at_once(world: World) -> None:
    world.read(age_s=3)
    assert world.wrong_ms == -3_000
    world.s += 1
    world.read(age_s=0.25)
    assert world.wrong_ms == -250
    world.s += 1
    world.read(age_s=3)
    assert world.wrong_ms == -250


def test_the_same_record_says_nothing_twice(world: World) -> None:
    world.read()
    stamp = world.true_ms
    for _ in range(SAMPLES_MAX * 2):
        world.s += 5
        world.clock.heard(stamp)
        assert world.wrong_ms == 0


def test_a_fast_broker_of_kafka_moves_it_for_a_while_only(world: World) -> None:
    world.read()
    world.s += 1
    world.read(age_s=-7_200)
    assert world.wrong_ms == 2 * HOUR_MS
    for _ in range(round(WINDOW_S) + 1):
        world.s += 1
        world.read()
    assert world.wrong_ms == 0


@pytest.mark.parametrize("stamp", [0, -1, LATEST_MS + 1])
def test_no_time_at_all_is_not_heard(world: World, stamp: int) -> None:
    world.clock.heard(stamp)
    assert world.clock.ahead_ms() is None


@given(st.lists(st.tuples(st.floats(0.001, 300), st.floats(0, 60)), min_size=1, max_size=60))
def test_it_is_never_ahead_of_the_log_nor_further_behind_than_the_best_that_was_read(steps: list[tuple[float, float]]):
    world = World()
    ages = []
    for wait_s, age_s in steps:
        world.s += wait_s
        world.read(age_s)
        ages.append(age_s)
        assert -max(ages) * 1_000 - 2 <= world.wrong_ms <= 2


def test_the_extension_goes_by_it() -> None:
    extension = BalancerExtension()
    extension._log_clock.heard(LOG_MS)
    assert abs(extension._clocks.log_ms() - LOG_MS) < 60_000
    assert extension.status()["clock_ahead_ms"] > 0
