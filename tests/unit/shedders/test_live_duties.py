"""Duties that fail begin again with back-off, and are called failing until they have recovered; movers tell every end."""

import asyncio
from typing import Any

import pytest

from shedders.balancer import duties
from shedders.balancer.duties import BalancerTasks
from shedders.balancer.movers import EndedOperation, Movers, word_of
from statechannel.broker.exits import ChannelStoppedError, Stopped
from statechannel.engine import commands
from tests.support.live_balancer import Channel, Clock, key, move, settle
from tests.support.waits import WAIT_S

STOPPED = ChannelStoppedError(Stopped("closed", "the test is over"))


class Sleeps:
    """Sleeping in duties: noted, and over at once."""

    def __init__(self, clock: Clock) -> None:
        self.waits: list[float] = []
        self._clock = clock

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self._clock.s += seconds
        await asyncio.sleep(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Sleeps:
    sleeps = Sleeps(clock)
    monkeypatch.setattr(duties, "asyncio", sleeps)
    return sleeps


LONGEST_S = 60.0


def make_tasks(clock: Clock, *, over: bool = False) -> BalancerTasks:
    return BalancerTasks(
        first_wait_s=lambda: 1.0, longest_wait_s=lambda: LONGEST_S, now_s=lambda: clock.s, over=lambda: over
    )


async def until_hanging(runs: list[int], count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while len(runs) < count:  # noqa: ASYNC110 - runs are counted, not told
            await asyncio.sleep(0)
    await settle()


async def test_a_duty_that_fails_begins_again_later_each_time_up_to_a_bound(clock: Clock, sleeps: Sleeps) -> None:
    runs: list[int] = []

    async def duty() -> None:
        runs.append(1)
        if len(runs) > 9:
            await asyncio.Event().wait()
        raise OSError(f"no {len(runs)}")

    tasks = make_tasks(clock)
    tasks.begin("watching", duty)
    await until_hanging(runs, 10)
    assert sleeps.waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert tasks.failing() == {"watching": "OSError('no 9') (failed 9 times)"}
    clock.s += LONGEST_S
    assert tasks.failing() == {}  # it has recovered
    await tasks.close()


async def test_after_a_long_time_without_failure_the_wait_is_short_again(clock: Clock, sleeps: Sleeps) -> None:
    runs: list[int] = []

    async def duty() -> None:
        runs.append(1)
        if len(runs) == 4:
            clock.s += LONGEST_S
        if len(runs) > 5:
            await asyncio.Event().wait()
        raise OSError("no")

    tasks = make_tasks(clock)
    tasks.begin("watching", duty)
    await until_hanging(runs, 6)
    assert sleeps.waits == [1, 2, 4, 1, 2]
    await tasks.close()


async def test_one_that_comes_to_an_end_has_failed(clock: Clock, sleeps: Sleeps) -> None:
    runs: list[int] = []

    async def duty() -> None:
        runs.append(1)
        if len(runs) > 1:
            await asyncio.Event().wait()

    tasks = make_tasks(clock)
    tasks.begin("watching", duty)
    await until_hanging(runs, 2)
    assert tasks.failing() == {"watching": "RuntimeError('it ended')"}
    await tasks.close()


@pytest.mark.parametrize(("over", "expected"), [(True, 1), (False, 3)])
async def test_the_end_of_the_member_ends_it_a_refusal_of_the_member_does_not(
    clock: Clock, sleeps: Sleeps, over: bool, expected: int
) -> None:
    runs: list[int] = []

    async def duty() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise STOPPED
        await asyncio.Event().wait()

    tasks = make_tasks(clock, over=over)
    tasks.begin("watching", duty)
    await until_hanging(runs, expected)
    assert len(runs) == expected
    await tasks.close()


async def test_one_that_fails_does_not_hold_up_another(clock: Clock) -> None:
    seen = asyncio.Event()

    async def failing() -> None:
        raise OSError("no")

    async def fine() -> None:
        seen.set()
        await asyncio.Event().wait()

    tasks = make_tasks(clock)
    tasks.begin("a", failing)
    tasks.begin("b", fine)
    async with asyncio.timeout(WAIT_S):
        await seen.wait()
    await settle()
    assert list(tasks.failing()) == ["a"]
    await tasks.close()
    assert tasks._tasks == set()


# --- movers ---------------------------------------------------------------------------------------------------------


class Moves:
    """Movers on a channel that the test answers for."""

    def __init__(self, at_once: int = 2) -> None:
        self.channel = Channel(bundles={key(number): "b1" for number in range(5)})
        self.clock = Clock()
        self.ended: list[EndedOperation] = []
        self.leads = True
        channel: Any = self.channel
        self.movers = Movers(channel, at_once, 30.0, lambda: self.clock.s)

    def begin(self, number: int, destination: str | None = "b2", *, only_unload: bool = False) -> str:
        return self.movers.begin(
            move(key(number), "b1", destination),
            why="x" * 400,
            decision="01D",
            only_unload=only_unload,
            is_wanted=lambda: self.leads,
            on_end=self.ended.append,
        )

    @property
    def ends(self) -> list[tuple[str, str]]:
        return [(ended.bundle, ended.result) for ended in self.ended]


@pytest.mark.parametrize(
    ("destination", "only_unload", "kind"),
    [("b2", False, commands.Transfer), ("b2", True, commands.Unload), (None, False, commands.Unload)],
)
async def test_a_move_is_a_transfer_or_an_unload(destination: str | None, only_unload: bool, kind: type) -> None:
    moves = Moves()
    operation = moves.begin(0, destination, only_unload=only_unload)
    await settle()
    (asked,) = moves.channel.asked
    assert type(asked) is kind
    assert (asked.operation, asked.timeout_s, len(asked.reason)) == (operation, 30.0, 300)
    assert moves.ends == [(key(0), "done")]
    assert moves.ended[0].done


async def test_only_so_many_are_under_way_and_the_bound_may_change() -> None:
    moves = Moves(at_once=2)
    ends = [asyncio.get_running_loop().create_future() for _ in range(5)]
    moves.channel.answer = lambda _: ends[len(moves.channel.asked) - 1]
    operations = [moves.begin(number) for number in range(5)]
    await settle()
    assert (len(moves.channel.asked), len(moves.movers)) == (2, 5)
    ends[1].set_result(commands.Done(operations[1], "transferred"))
    await settle()
    assert len(moves.channel.asked) == 3
    moves.movers.at_once = 4
    ends[0].set_result(commands.Rejected("not-owned", "b3 owns it"))
    await settle()
    assert len(moves.channel.asked) == 5
    moves.clock.s += 7
    for end in ends[2:]:
        end.set_result(commands.Undetermined("running", "at Releasing"))
    await settle()
    assert [result for _, result in moves.ends] == ["done", "not-owned", "timed-out", "timed-out", "timed-out"]
    assert moves.ended[-1].took_s == 7
    assert len(moves.movers) == 0


async def test_what_is_not_wanted_any_more_when_its_turn_comes_is_not_begun() -> None:
    moves = Moves(at_once=1)
    end = asyncio.get_running_loop().create_future()
    moves.channel.answer = lambda _: end
    first = moves.begin(0)
    moves.begin(1)
    await settle()
    moves.leads = False
    end.set_result(commands.Done(first, "transferred"))
    await settle()
    assert moves.ends == [(key(0), "done"), (key(1), "abandoned")]
    assert len(moves.channel.asked) == 1


@pytest.mark.parametrize(("error", "result"), [(STOPPED, "abandoned"), (ValueError("bad name"), "internal-error")])
async def test_a_command_that_cannot_be_given_is_an_end_too(error: Exception, result: str) -> None:
    moves = Moves()
    moves.channel.answer = lambda _: error
    moves.begin(0)
    await settle()
    assert moves.ends == [(key(0), result)]


async def test_closing_tells_of_every_move_that_has_not_ended() -> None:
    moves = Moves(at_once=1)
    end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    moves.channel.answer = lambda _: end
    moves.begin(0)
    moves.begin(1)
    await settle()
    await moves.movers.close()
    await settle()
    assert sorted(moves.ends) == [(key(0), "unknown"), (key(1), "abandoned")]
    assert len(moves.movers) == 0


async def test_whoever_cannot_be_told_or_asked_does_not_hold_up_the_next_move() -> None:
    moves = Moves(at_once=1)

    def broken(*_: object) -> bool:
        raise RuntimeError("no")

    moves.movers.begin(
        move(key(0), "b1", "b2"), why="", decision="01D", only_unload=False, is_wanted=lambda: True, on_end=broken
    )  # type: ignore[arg-type]
    moves.movers.begin(
        move(key(1), "b1", "b2"), why="", decision="01D", only_unload=False, is_wanted=broken, on_end=moves.ended.append
    )
    moves.begin(2)
    await settle()
    assert moves.ends == [(key(1), "abandoned"), (key(2), "done")]


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (commands.Done("o", "transferred"), "done"),
        (commands.Rejected("draining", "it leaves"), "draining"),
        (commands.NotFound("unknown-bundle", "no such bundle"), "not-found"),
        (commands.Undetermined("running"), "timed-out"),
        (commands.Unknown("o", "not read back"), "unknown"),
        (commands.Unowned("a"), "unknown"),
    ],
)
def test_every_outcome_has_a_word(outcome: Any, word: str) -> None:
    result, why = word_of(outcome)
    assert result == word
    assert why
