"""What the canary asks, and which answers count: a lie is found at the second look, a race never."""

from typing import Any

import orjson
import pytest

from statechannel.engine.canary import Canary, CanaryAnswer, CanaryQuestion
from statechannel.engine.canary_finding import CanaryReason
from statechannel.engine.commands import Lookup, Owned, Transfer, Unload
from tests.support.lone_engine import LoneEngine
from tests.unit.core.test_floods import leader, ring

CONFIRM_S = 2.0
SERVES_AS_RECORDED = None


class World:
    """A leader with a bundle at broker `z`, and its canary. `applied` is what `z` says in its heartbeats."""

    def __init__(self, **config: Any) -> None:
        self.alone: LoneEngine = leader(**config)
        self.hear()
        (self.bundle,) = ring(self.alone, 1)
        self.alone.ask(Lookup(self.bundle, 60.0), lambda _: None)
        self.canary = Canary(self.alone.engine.context, lambda _: 0, confirm_s=CONFIRM_S, by_hook=True)

    def hear(self, applied: int | None = None) -> None:
        end = len(self.alone.channel) if hasattr(self, "alone") else 0
        self.alone.hear("z", applied={"0": end if applied is None else applied})

    def hand_over(self) -> None:
        """To `z`, which takes it."""
        alone = self.alone
        alone.ask(Transfer(self.bundle, "z", "op-1", 60.0), lambda _: None)
        alone.run(1)
        key = alone.engine.key(self.bundle)
        assert key is not None
        alone.put(self.bundle.encode(), orjson.dumps({
            "format": 1, "kind": "proposal", "id": "z-took", "covers": key.offset,
            "by": {"broker": "z", "incarnation": "z-1"}, "version": key.version + 1, "base": key.accepted_id,
            "state": "Assigned", "action": "own", "flow": "transfer", "operation": key.operation, "from": "a", "to": "z",
        }))  # fmt: skip
        self.hear()
        assert alone.engine.key(self.bundle).owner == "z"

    def turn(self, answer: CanaryAnswer | None, *, read_on: bool = True) -> Any:
        """One question about the bundle, and its answer; None: as recorded."""
        question = self.ask()
        assert question is not None
        return self.judge(question, answer, read_on=read_on)

    def judge(self, question: CanaryQuestion, answer: CanaryAnswer | None, *, read_on: bool = True) -> Any:
        given = CanaryAnswer(question.generation) if answer is None else answer
        self.canary.judge(self.alone.now_s + 0.05, 1_000, question, given)
        assert self.canary.review(1_000) == [], "this process may not have read as far as the other"
        self.alone.run(CONFIRM_S + 0.2)
        if read_on:
            self.alone.channel.append((b"!heartbeat", None, 0))
        self.hear(None if read_on else question.applied)
        return next(iter(self.canary.review(1_000)), None)

    def ask(self) -> CanaryQuestion | None:
        return self.canary.next(self.alone.now_s)


@pytest.fixture
def world() -> World:
    made = World()
    made.hand_over()
    return made


def test_an_owner_that_serves_is_no_finding(world) -> None:
    for _ in range(5):
        assert world.turn(SERVES_AS_RECORDED) is None
    assert world.canary.findings == {}


@pytest.mark.parametrize(
    ("answer", "reason", "words"),
    [
        (CanaryAnswer(), CanaryReason.NOT_SERVING, "when asked, it refuses"),
        (CanaryAnswer(1), CanaryReason.NOT_SERVING, "it serves at generation 1"),
        (CanaryAnswer(error="refused"), CanaryReason.NO_ANSWER, "does not answer: refused"),
    ],
)
def test_a_lie_is_found_at_the_second_look(world, answer, reason, words) -> None:
    assert world.turn(answer) is None
    assert world.canary.findings == {}
    finding = world.turn(answer)
    assert (finding.reason, finding.broker, finding.owner) == (reason, "z", "z")
    assert words in finding.message
    assert f"by the log z serves {world.bundle}" in finding.message
    assert world.turn(answer) is None, "it is reported once"
    assert len(world.canary.findings) == 1
    world.turn(SERVES_AS_RECORDED)
    assert world.canary.findings == {}


def test_a_newer_generation_is_ahead_of_this_process(world) -> None:
    for _ in range(3):
        assert world.turn(CanaryAnswer(99)) is None
    assert world.canary.findings == {}


def test_the_second_look_needs_a_broker_that_has_read_on(world) -> None:
    question = world.ask()
    assert world.judge(question, CanaryAnswer(), read_on=False) is None
    for _ in range(3):
        assert world.ask() is None
        world.alone.run(CONFIRM_S)
        world.hear(applied=question.applied)
    world.alone.channel.append((b"!heartbeat", None, 0))
    world.hear()
    assert world.turn(CanaryAnswer()) is not None


def test_a_question_of_before_the_first_answer_confirms_nothing(world) -> None:
    """With few bundles the same broker is asked again before it has answered: one pause is one look."""
    first = world.ask()
    world.alone.run(1.0)
    world.alone.channel.append((b"!heartbeat", None, 0))
    world.hear()
    second = world.ask()
    assert second.applied > first.applied
    world.alone.run(1.0)
    assert world.judge(first, CanaryAnswer(error="no answer within 2 s")) is None
    assert world.judge(second, CanaryAnswer(error="no answer within 2 s")) is None
    assert world.canary.findings == {}
    assert world.turn(CanaryAnswer(error="no answer within 2 s")) is not None


def test_a_bundle_that_has_just_moved_is_confirmed_no_sooner(world) -> None:
    world.canary.moved(world.alone.now_s, world.bundle, "z")
    question = world.ask()  # drawn, before it has settled
    world.canary.judge(world.alone.now_s, 1_000, question, CanaryAnswer())
    world.alone.run(1.1)
    world.alone.channel.append((b"!heartbeat", None, 0))
    world.hear()
    soon = world.ask()
    if soon is not None:
        world.canary.judge(world.alone.now_s, 1_000, soon, CanaryAnswer())
    world.alone.run(0.2)
    assert world.canary.review(1_000) == []


def test_a_broker_that_has_died_since_it_was_asked_has_not_read_on(world) -> None:
    question = world.ask()
    world.alone.channel.append((b"!heartbeat", None, 0))
    world.hear()  # its last
    world.canary.judge(world.alone.now_s, 1_000, question, CanaryAnswer(error="refused"))
    world.alone.run(CONFIRM_S + 0.2)
    assert world.ask() is None


def test_what_moves_between_question_and_answer_counts_for_nothing(world) -> None:
    world.turn(CanaryAnswer())
    question = world.ask()
    world.alone.ask(Unload(world.bundle, "op-2", 60.0), lambda _: None)
    assert world.judge(question, CanaryAnswer()) is None
    assert world.canary.findings == {}


def test_a_broker_that_is_behind_the_log_is_not_asked(world) -> None:
    key = world.alone.engine.key(world.bundle)
    world.hear(applied=key.offset - 1)
    assert world.ask() is None
    world.hear(applied=key.offset)
    assert world.ask() is not None


def test_a_former_owner_that_goes_on_serving_is_found() -> None:
    world = World()
    world.hear()
    alone, key = world.alone, world.alone.engine.key(world.bundle)
    generation = key.generation
    outcomes: list[Any] = []
    alone.ask(Lookup(world.bundle, 60.0), outcomes.append)
    assert isinstance(outcomes[-1], Owned)
    world.canary.moved(alone.now_s, world.bundle, "z")
    alone.run(1.5)
    world.alone.channel.append((b"!heartbeat", None, 0))
    world.hear()
    question = world.ask()
    assert (question.broker, question.owner) == ("z", "a")
    assert world.judge(question, CanaryAnswer(generation - 1)) is None
    finding = world.turn(CanaryAnswer(generation - 1))
    assert finding.reason is CanaryReason.SERVES_UNOWNED
    assert f"but z serves it, too, at generation {generation - 1}" in finding.message
    world.turn(CanaryAnswer())
    assert world.canary.findings == {}


def test_an_asker_that_is_behind_waits_until_it_has_read_as_far(world) -> None:
    assert world.turn(CanaryAnswer()) is None
    world.alone.away = True  # the other may have read what this one has not
    assert world.turn(CanaryAnswer()) is None
    world.alone.away = False
    world.alone.put(b"!heartbeat", None)
    (finding,) = world.canary.review(1_000)
    assert finding.reason is CanaryReason.NOT_SERVING


def test_a_finding_ends_with_the_record_that_it_is_about(world) -> None:
    world.turn(CanaryAnswer())
    assert world.turn(CanaryAnswer()) is not None
    world.alone.ask(Unload(world.bundle, "op-2", 60.0), lambda _: None)
    world.canary.review(1_000)
    assert world.canary.findings == {}


def test_nothing_is_asked_while_kafka_is_away(world) -> None:
    world.alone.deaf = True
    world.alone.run(10)
    assert world.ask() is None
