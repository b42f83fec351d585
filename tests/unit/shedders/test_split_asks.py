"""Splits that somebody asks for: where they are cut, what is refused, and the children let go."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from loaddata.source import TopicRates
from shedders.balancer.request_handlers import SplitRequestHandler
from shedders.balancer.settings import BalancerSettings
from statechannel.engine.commands import Done, NotFound, Outcome, Rejected, Split, Started, Undetermined, Unload
from statechannel.operations.table import ExtensionAsk
from statechannel.protocol.bundle import topic_hash
from tests.support.strategies import install

BUNDLE = "t/n/0x00000000_0x80000000"
LOWER, UPPER = "t/n/0x00000000_0x40000000", "t/n/0x40000000_0x80000000"
OPERATION = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
TOPICS = [name for n in range(400) if topic_hash(name := f"persistent://t/n/x{n}") < 0x80000000]


class Channel:
    """A member that does what it is told at once, or says what it is told to say."""

    identity = SimpleNamespace(broker="b1")

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.says: Outcome | None = None
        self.located: str | NotFound = BUNDLE
        self.ended: Outcome = Undetermined("running", "it may end well")
        self.owner = "b1"

    def locate(self, _name: str) -> str | NotFound:
        return self.located

    def owners(self, _namespace: str) -> dict[str, str]:
        return {LOWER: self.owner, UPPER: "b2"}

    async def ask(self, command: Any) -> Outcome:
        self.asked.append(command)
        return self.says or Started(command.operation, BUNDLE, 0, 7)

    def ticket(self, operation: str) -> Any:
        async def outcome(_timeout_s: float) -> Outcome:
            return self.ended if self.ended is not None else Done(operation, "")

        return SimpleNamespace(outcome=outcome)


class Source:
    """Every topic has as many messages as every other one."""

    def bundles(self) -> dict[str, Any]:
        return {}

    def topics(self, _bundle: str) -> list[TopicRates]:
        return [TopicRates(name, 10.0, 0.0, 1_000.0, 0.0) for name in TOPICS]


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Channel:
    install(monkeypatch)
    channel = Channel()
    channel.ended = Done(OPERATION, "split")
    return channel


async def answer(channel: Channel, source: Any = None, *, splitting: bool = True, **args: Any) -> Outcome:
    asks = SplitRequestHandler(channel, source or Source(), dict, lambda: BalancerSettings(splitting=splitting))  # type: ignore[arg-type]
    return await asks.answer(ExtensionAsk("balancer", "split", {"name": BUNDLE, **args}, OPERATION, 5.0))


@pytest.mark.parametrize(
    ("args", "positions"),
    [
        ({"algorithm": "range-equally-divide"}, (0x40000000,)),
        ({"algorithm": "range_equally_divide"}, (0x40000000,)),
        ({"parts": 4}, (0x20000000, 0x40000000, 0x60000000)),
        ({"at": [0x30000000, 5]}, (5, 0x30000000)),
    ],
)
async def test_where_it_is_cut(args: dict[str, Any], positions: tuple[int, ...], channel: Channel) -> None:
    assert isinstance(await answer(channel, **args, reason="hot"), Done)
    (split,) = channel.asked
    assert isinstance(split, Split)
    assert (split.name, split.operation, tuple(split.at), split.reason) == (BUNDLE, OPERATION, positions, "hot")


async def test_an_algorithm_is_given_its_settings_as_texts_and_the_topics(channel: Channel) -> None:
    assert isinstance(await answer(channel, algorithm="topic-count-equally-divide"), Done)
    (split,) = channel.asked
    below = sum(topic_hash(name) < split.at[0] for name in TOPICS)
    assert abs(below - len(TOPICS) / 2) <= 1
    channel.asked.clear()
    settings = {"max_msg_rate": str(10 * len(TOPICS) // 3)}
    assert isinstance(await answer(channel, algorithm="flow_or_qps_equally_divide", settings=settings), Done)
    assert len(channel.asked[0].at) == 3


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({}, "bad-request"),
        ({"algorithm": 5}, "bad-request"),
        ({"parts": True}, "bad-request"),
        ({"at": ["1"]}, "bad-request"),
        ({"at": []}, "bad-request"),
        ({"algorithm": "range-equally-divide", "settings": [1]}, "bad-request"),
        ({"algorithm": "range-equally-divide", "unload_children": "yes"}, "bad-request"),
        ({"algorithm": "in-the-middle"}, "unknown-algorithm"),
        ({"algorithm": "flow-or-qps-equally-divide", "settings": {"max_msg_rate": "much"}}, "bad-settings"),
        ({"algorithm": "flow-or-qps-equally-divide", "settings": {"max_rate": 1}}, "bad-settings"),
        ({"algorithm": "specified-positions-divide"}, "bad-split"),
        ({"parts": 2**40}, "bad-split"),
    ],
)
async def test_what_is_refused(args: dict[str, Any], reason: str, channel: Channel) -> None:
    outcome = await answer(channel, **args)
    assert isinstance(outcome, Rejected)
    assert outcome.reason == reason, outcome
    assert channel.asked == []


@pytest.mark.parametrize("splitting", [True, False])
async def test_a_broker_that_splits_nothing_by_itself_does_not_do_it_for_a_balancer_either(
    splitting: bool, channel: Channel
) -> None:
    assert isinstance(await answer(channel, splitting=splitting, parts=2), Done)  # somebody asks for it
    outcome = await answer(channel, splitting=splitting, parts=2, decision="01J9Z3KQ7S0000000000000017")
    assert isinstance(outcome, Done if splitting else Rejected)
    assert splitting or outcome.reason == "splitting-off"  # type: ignore[union-attr]


async def test_only_the_children_that_are_still_here_are_let_go_and_only_after_a_split(channel: Channel) -> None:
    await answer(channel, parts=2, unload_children=True)
    _, *unloads = channel.asked
    assert [(type(unload), unload.name) for unload in unloads] == [(Unload, LOWER)]
    channel.asked.clear()
    channel.says = Rejected("busy", "no")
    assert await answer(channel, parts=2, unload_children=True) == channel.says
    assert len(channel.asked) == 1


async def test_a_second_broker_finds_that_the_first_has_done_it(channel: Channel) -> None:
    channel.located = NotFound("split-bundle", f"{BUNDLE} was split")
    assert await answer(channel, parts=2) == Done(OPERATION, "split")
    assert channel.asked == []
    channel.ended = Undetermined("running", "it may end well")
    assert await answer(channel, parts=2) == channel.located


async def test_a_bundle_with_too_few_topics_is_not_cut_by_topics(channel: Channel) -> None:
    empty = SimpleNamespace(topics=lambda _: [])
    outcome = await answer(channel, empty, algorithm="topic_count_equally_divide")
    assert (outcome.reason, outcome.bundle) == ("nothing-to-cut", BUNDLE)


@pytest.mark.parametrize(
    "args",
    [
        {"algorithm": "range-" * 150_000},
        {"algorithm": "flow-or-qps-equally-divide", "settings": {"max_msg_" * 110_000: "1"}},
        {"algorithm": "flow-or-qps-equally-divide", "settings": {"max_msg_rate": "1" * 900_000 + "x"}},
        {"algorithm": "flow-or-qps-equally-divide", "settings": {f"max_msg_rat{n}": "1" for n in range(40_000)}},
    ],
)
async def test_what_is_absurdly_long_neither_holds_the_loop_nor_fills_the_answer(
    args: dict[str, Any], channel: Channel
) -> None:
    """A request may be 900 kB long; nothing else happens on a broker while its loop looks for what was meant."""
    begun_s = time.thread_time()
    outcome = await answer(channel, **args)
    took_s = time.thread_time() - begun_s
    assert isinstance(outcome, Rejected)
    assert len(outcome.message) < 6_000
    assert took_s < 0.1, "the loop is held as long"
