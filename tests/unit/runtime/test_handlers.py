"""Handlers of extensions: every request is answered once, whatever its handler does."""

import asyncio
from typing import Any

import pytest

from statechannel.broker.handlers import Handlers
from statechannel.engine.commands import Done, Outcome, Rejected, Undetermined, Unknown
from statechannel.operations.request_record import Request
from statechannel.operations.table import ExtensionAsk
from tests.support.waits import WAIT_S


def ask(operation: str = "op1", extension: str = "mine", **args: Any) -> ExtensionAsk:
    return ExtensionAsk(extension, "do", args, operation, 10.0)


class Answers:
    """Who asked, and what they were told."""

    def __init__(self) -> None:
        self.answers: list[Outcome] = []
        self._came = asyncio.Event()

    def __call__(self, outcome: Outcome) -> None:
        self.answers.append(outcome)
        self._came.set()

    async def only(self) -> Outcome:
        async with asyncio.timeout(WAIT_S):
            await self._came.wait()
        await asyncio.sleep(0)
        assert len(self.answers) == 1, self.answers
        return self.answers[0]


async def test_a_request_is_handed_to_the_extension_it_names_and_its_answer_told() -> None:
    handlers, answers = Handlers(2), Answers()

    async def handler(ask: ExtensionAsk) -> Outcome:
        return Done(ask.operation, f"{ask.ask} {ask.args['x']}")

    handlers.register("mine", handler)
    handlers.give(ask(x=3), answers)
    assert answers.answers == []  # never within the step of the engine that asks
    assert await answers.only() == Done("op1", "do 3")
    assert len(handlers) == 0


async def test_nobody_runs_that_extension() -> None:
    answers = Answers()
    Handlers(2).give(ask(extension="other"), answers)
    outcome = await answers.only()
    assert isinstance(outcome, Rejected)
    assert (outcome.reason, "other" in outcome.message) == ("no-extension", True)


async def test_more_than_may_be_answered_are_refused_and_let_in_again_later() -> None:
    handlers, go = Handlers(1), asyncio.Event()

    async def handler(ask: ExtensionAsk) -> Outcome:
        await go.wait()
        return Done(ask.operation, "ok")

    handlers.register("mine", handler)
    first, second, third = Answers(), Answers(), Answers()
    handlers.give(ask("op1"), first)
    handlers.give(ask("op2"), second)
    refused = await second.only()
    assert isinstance(refused, Rejected)
    assert refused.reason == "busy"
    go.set()
    assert await first.only() == Done("op1", "ok")
    handlers.give(ask("op3"), third)
    assert await third.only() == Done("op3", "ok")


@pytest.mark.parametrize(
    ("said", "expected"), [(ValueError("no"), "ValueError: no"), (TimeoutError("its own"), "TimeoutError: its own")]
)
async def test_what_a_handler_raises_is_an_internal_error(said: Exception, expected: str) -> None:
    handlers, answers = Handlers(2), Answers()

    async def handler(_: ExtensionAsk) -> Outcome:
        raise said

    handlers.register("mine", handler)
    handlers.give(ask(), answers)
    assert await answers.only() == Rejected("internal-error", expected)


async def test_an_answer_that_is_none_is_an_internal_error() -> None:
    handlers, answers = Handlers(2), Answers()

    async def handler(_: ExtensionAsk) -> Any:
        return {"result": "ok"}

    handlers.register("mine", handler)
    handlers.give(ask(), answers)
    assert await answers.only() == Rejected("internal-error", "mine answered do with dict")


async def test_the_same_request_given_twice_is_begun_once_and_both_are_told() -> None:
    """The requests topic was read anew while it was being answered."""
    handlers, go, begun = Handlers(1), asyncio.Event(), 0

    async def handler(ask: ExtensionAsk) -> Outcome:
        nonlocal begun
        begun += 1
        await go.wait()
        return Done(ask.operation, "ok")

    handlers.register("mine", handler)
    first, second = Answers(), Answers()
    handlers.give(ask(), first)
    handlers.give(ask(), second)
    go.set()
    assert await first.only() == await second.only() == Done("op1", "ok")
    assert begun == 1


async def test_closing_tells_those_who_wait_also_where_the_handler_had_not_begun() -> None:
    handlers = Handlers(2)

    async def handler(_: ExtensionAsk) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError

    handlers.register("mine", handler)
    begun, new = Answers(), Answers()
    handlers.give(ask("op1"), begun)
    await asyncio.sleep(0)
    handlers.give(ask("op2"), new)
    handlers.close()
    for operation, answers in (("op1", begun), ("op2", new)):
        outcome = await answers.only()
        assert isinstance(outcome, Unknown)
        assert outcome.operation == operation
    assert len(handlers) == 0


async def test_a_handler_that_hangs_gives_its_place_back() -> None:
    handlers, answers, next_one = Handlers(1, answer_max_s=0.05), Answers(), Answers()

    async def handler(ask: ExtensionAsk) -> Outcome:
        if ask.operation == "op1":
            await asyncio.Event().wait()
        return Done(ask.operation, "ok")

    handlers.register("mine", handler)
    handlers.give(ask("op1"), answers)
    late = await answers.only()
    assert isinstance(late, Undetermined)
    assert late.reason == "timed-out"
    handlers.give(ask("op2"), next_one)
    assert await next_one.only() == Done("op2", "ok")


async def test_a_handler_that_fails_while_it_is_cancelled_has_failed() -> None:
    handlers, answers = Handlers(1, answer_max_s=0.01), Answers()

    async def handler(_: ExtensionAsk) -> Outcome:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("its store is gone")
        raise AssertionError

    handlers.register("mine", handler)
    handlers.give(ask(), answers)
    assert await answers.only() == Rejected("internal-error", "OSError: its store is gone")


async def test_somebody_who_cannot_be_told_does_not_keep_it_from_others() -> None:
    handlers, answers = Handlers(2), Answers()

    async def handler(ask: ExtensionAsk) -> Outcome:
        return Done(ask.operation, "ok")

    def broken(_: Outcome) -> None:
        raise OSError("the log is closed")

    handlers.register("mine", handler)
    handlers.give(ask(), broken)
    handlers.give(ask(), answers)
    assert await answers.only() == Done("op1", "ok")


def move(command: str = "unload", **args: Any) -> Request:
    return Request("op1", command, 0, {"name": "a/b/t", **args}, "")


def test_a_move_is_refused_by_the_check_of_an_extension_and_force_passes_it() -> None:
    handlers, filtered = Handlers(1), Rejected("filtered", "b2 is cordoned")
    assert handlers.refusal(move()) is None, "without an extension the channel alone decides"
    handlers.check_before("may-take", lambda request: filtered if request.name == "a/b/t" else None)
    assert handlers.refusal(move()) == filtered
    assert handlers.refusal(move(name="a/b/u")) is None
    assert handlers.refusal(move(force=True)) is None
    assert handlers.refusal(move("split")) is None


def test_a_promised_check_holds_moves_back_until_its_extension_has_started() -> None:
    handlers = Handlers(1, promised=["may-take"])
    outcome = handlers.refusal(move())
    assert isinstance(outcome, Rejected)
    assert outcome.reason == "policies-unread"
    handlers.check_before("may-take", lambda _: None)
    assert handlers.refusal(move()) is None
