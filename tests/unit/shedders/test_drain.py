"""Drains on the leader, with a channel that is made up: who is answered what, and when."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from shedders.balancer.active_strategies import choose
from shedders.balancer.balancer import Ports
from shedders.balancer.cluster_inputs import ClusterInputs
from shedders.balancer.drain import Drains
from shedders.balancer.ports import LiveClocks
from shedders.balancer.request_handlers import MoveChecks, RequestHandlers
from shedders.balancer.settings import BalancerSettings, DrainSettings
from shedders.decisions.record import DecisionRecord, Inputs, OutcomeRecord
from shedders.model.cluster import Policies
from shedders.policies.effective import EffectivePolicies
from statechannel.engine.cluster_view import BrokerSeen, BundleSeen, ClusterView
from statechannel.engine.commands import Done, NotFound, Outcome, Rejected, Transfer, Undetermined
from statechannel.kafka.errors import KafkaUnavailableError
from statechannel.operations.request_record import Request
from statechannel.operations.table import ExtensionAsk

NAMES = [f"t/n/0x{n:08x}_0x{n + 1:08x}" for n in range(20)]
QUICK = DrainSettings(patience_s=0.2, quiet_s=0.1, cordon_wait_s=0.4, retry_s=0.05, report_wait_s=0.0, rate_per_s=500)


class FakeChannel:
    """Bundles with owners; a transfer is done as soon as it is asked for, unless the test wants otherwise."""

    def __init__(self, owners: dict[str, str], brokers: tuple[str, ...]) -> None:
        self.owners = owners
        self.alive = brokers
        self.term = 7
        self.mode = "normal"
        self.identity = SimpleNamespace(broker="b2")
        self.commands: list[Transfer] = []
        self.on_transfer: Callable[[Transfer], Outcome | None] = lambda _: None

    async def ask(self, command: Any) -> Outcome:
        assert isinstance(command, Transfer)
        self.commands.append(command)
        refused = self.on_transfer(command)
        if refused is not None:
            return refused
        self.owners[command.name] = command.destination
        return Done(command.operation, "transferred")

    def ticket(self, operation: str) -> Any:
        raise AssertionError(operation)

    def locate(self, name: str) -> str | NotFound:
        return name if name in self.owners else NotFound("unknown-bundle", f"{name} is not a bundle of t/n")

    def picture(self) -> ClusterView:
        brokers = [BrokerSeen(name, f"i-{name}", True, True, 0.0, {}) for name in self.alive]
        bundles = [BundleSeen(name, "Assigned", 3, owner, None, 2, 0, 9) for name, owner in self.owners.items()]
        leading = self.term >= 0
        return ClusterView("b2", leading, self.term, self.mode, True, False, None, [9], brokers, bundles)


class Leader:
    """A leader's drains, and what they wrote down."""

    def __init__(self, channel: FakeChannel, policies: Policies | None = None, settings: DrainSettings = QUICK) -> None:
        self.channel = channel
        self.policies = Policies(cordons={"b1": "drain"}) if policies is None else policies
        self.written: list[Any] = []
        self.ended: list[tuple[str, str]] = []
        configured = BalancerSettings(drain=settings, record_bytes=20_000)
        chosen = choose(configured)
        shed: Any = SimpleNamespace(shed=lambda result, reason, _: self.ended.append((result, reason)))
        ports = Ports(
            channel=cast("Any", channel),
            settings=lambda: configured,
            manager=lambda: "extensible",
            effective=lambda: None if self.policies is None else EffectivePolicies(policies=self.policies),
            known=lambda: ClusterInputs(policies=self.policies or Policies()),
            chosen=lambda: chosen,
            inputs=lambda _: Inputs(channel={"0": 9}),
            write=self.written.append,
            recall=AsyncMock(return_value=None),
            metrics=shed,
            clocks=LiveClocks(),
        )
        self.before: dict[str, Any] = {"moved": ()}
        self.own: list[frozenset[str]] = []
        self.drains = Drains(ports, moved_before=self._moved_before)
        assert ports.bounds.record_bytes == 20_000
        self.checks = MoveChecks(ports)
        self.asks = RequestHandlers(None, None, self.drains, self.checks)  # type: ignore[arg-type]

    async def _moved_before(self, drain: str, broker: str, own: Any) -> Any:
        """What leaders before this one have moved, as the topic of decisions tells."""
        assert (drain, broker) == ("01OP", "b1")
        self.own.append(own)
        if isinstance(self.before["moved"], Exception):
            raise self.before["moved"]
        return self.before["moved"]

    async def ask(self, ask: str = "drain", timeout_s: float = 20.0, operation: str = "01OP", **args: Any) -> Outcome:
        args = {"broker": "b1"} | args if ask == "drain" else args
        return await self.asks.answer(ExtensionAsk("balancer", ask, args, operation, timeout_s))


def owned(count: int, broker: str = "b1") -> dict[str, str]:
    return dict.fromkeys(NAMES[:count], broker)


def rejected(outcome: Outcome) -> tuple[str, str]:
    assert isinstance(outcome, Rejected), outcome
    return str(outcome.reason), outcome.message


async def test_everything_goes_and_every_move_is_written_down() -> None:
    channel = FakeChannel(owned(6), ("b1", "b2", "b3"))
    leader = Leader(channel)
    outcome = await leader.ask()
    assert (outcome.result, outcome.facts["moved"], outcome.facts["left_count"]) == ("drained", 6, 0)
    assert set(channel.owners.values()) == {"b2", "b3"}
    decisions = [proposal for proposal in leader.written if isinstance(proposal, DecisionRecord)]
    outcomes = [proposal for proposal in leader.written if isinstance(proposal, OutcomeRecord)]
    assert {(decision.subject, decision.reason, decision.trigger, decision.strategy) for decision in decisions} == {
        ("shed", "Admin", "request", "drain")
    }
    moves = {move.bundle: move for decision in decisions for move in decision.moves}
    assert sorted(moves) == NAMES[:6]
    assert {answer.operation for answer in outcomes} == {move.operation for move in moves.values()}
    assert {answer.result for answer in outcomes} == {"done"}
    assert {move.reason for move in moves.values()} == {"Admin"}
    for command in channel.commands:
        assert moves[command.name].operation == command.operation
        assert "drain 01OP of b1" in (command.reason or "")
    assert leader.ended == [("done", "Admin")] * 6
    assert leader.drains.status() == {}


async def test_nothing_to_do_is_done() -> None:
    outcome = await Leader(FakeChannel(owned(3, "b2"), ("b1", "b2"))).ask()
    assert (outcome.result, outcome.facts["moved"], outcome.facts["began_with"]) == ("drained", 0, 0)


@pytest.mark.parametrize(
    "args",
    [
        {"broker": None},
        {"broker": 1},
        {"force": "yes"},
        {"rate_per_s": 0},
        {"rate_per_s": -1},
        {"rate_per_s": True},
        {"rate_per_s": "10"},
        {"rate_per_s": float("inf")},
        {"rate_per_s": float("nan")},
        {"drain": 5},
        {"drain": "D" * 900_000},
    ],
)
async def test_bad_requests(args: dict[str, Any]) -> None:
    assert rejected(await Leader(FakeChannel(owned(1), ("b1", "b2"))).ask(**args))[0] == "bad-request"


async def test_an_unknown_broker() -> None:
    leader = Leader(FakeChannel(owned(1), ("b1", "b2")))
    assert rejected(await leader.ask(broker="b9"))[0] == "unknown-broker"


async def test_who_does_not_lead_says_so() -> None:
    channel = FakeChannel(owned(1), ("b1", "b2"))
    channel.term = -1
    assert rejected(await Leader(channel).ask())[0] == "not-leader"
    assert isinstance(await Leader(channel).ask("may-take", name=NAMES[0]), Done), "every broker has the policies"
    assert rejected(await Leader(channel).ask("fresh"))[0] == "not-leader"


async def test_leadership_is_lost_in_the_middle() -> None:
    channel = FakeChannel(owned(20), ("b1", "b2"))

    def third(_: Transfer) -> None:
        if len(channel.commands) == 3:
            channel.term = 9  # it leads again, by another term: another drain may have begun in between

    channel.on_transfer = third
    leader = Leader(channel, settings=QUICK.model_copy(update={"moves_at_once": 1}))
    assert rejected(await leader.ask())[0] == "not-leader"
    assert len(channel.commands) <= 4
    assert isinstance(await leader.ask(), Done), "asked again, it goes on with what is there"
    assert set(channel.owners.values()) == {"b2"}


async def test_deleting_the_cordon_ends_it() -> None:
    channel = FakeChannel(owned(20), ("b1", "b2"))
    leader = Leader(channel)

    def second(_: Transfer) -> None:
        leader.policies = Policies()

    channel.on_transfer = second
    reason, detail = rejected(await leader.ask(rate_per_s=4.0))
    assert (reason, "no longer cordoned" in detail) == ("uncordoned", True)
    assert "b1" in channel.owners.values()


async def test_without_a_cordon_nothing_is_begun() -> None:
    channel = FakeChannel(owned(2), ("b1", "b2"))
    assert rejected(await Leader(channel, Policies()).ask())[0] == "not-cordoned"
    assert channel.commands == []


async def test_time_is_up() -> None:
    channel = FakeChannel(owned(20), ("b1", "b2"))
    outcome = await Leader(channel).ask(rate_per_s=2.0, timeout_s=1.2)
    assert isinstance(outcome, Undetermined)
    assert outcome.reason == "timed-out"
    left = sum(owner == "b1" for owner in channel.owners.values())
    assert outcome.message == f"by then {20 - left} bundles of b1 were moved and {left} were left"
    assert 0 < left < 20


async def test_a_second_request_joins_and_says_how_fast() -> None:
    channel = FakeChannel(owned(10), ("b1", "b2"))
    leader = Leader(channel)
    first = asyncio.create_task(leader.ask(rate_per_s=0.5))
    await asyncio.sleep(0.4)
    assert leader.drains.status()["b1"]["began_with"] == 10
    second = await leader.ask(rate_per_s=500.0, operation="02OP")
    assert second == await first
    assert second.facts["moved"] == 10, "and not twice as many"
    assert len(channel.commands) == 10


async def test_a_rolling_restart_that_joins_says_where_to() -> None:
    """A drain that an operator has begun fills no broker that is still to be restarted."""
    channel = FakeChannel(owned(10), ("b1", "b2", "b3"))
    leader = Leader(channel)
    first = asyncio.create_task(leader.ask(rate_per_s=0.5))
    await asyncio.sleep(0.4)
    before = len(channel.commands)
    planned = {"restart": "01R", "brokers": ["b1", "b2"], "done": []}
    await leader.ask(rate_per_s=500.0, operation="02OP", **planned)
    await first
    assert len(channel.commands) == 10
    assert before < 10
    assert {command.destination for command in channel.commands[before:]} == {"b3"}


async def test_who_joins_does_not_wait_beyond_its_own_time() -> None:
    leader = Leader(FakeChannel(owned(10), ("b1", "b2")))
    first = asyncio.create_task(leader.ask(rate_per_s=0.5, timeout_s=3.0))
    await asyncio.sleep(0.3)
    late = await leader.ask(rate_per_s=0.5, timeout_s=0.3, operation="02OP")
    assert isinstance(late, Undetermined)
    assert isinstance(await first, Undetermined)


async def test_nobody_may_take_anything() -> None:
    policies = Policies(cordons={"b1": "drain"}, pins={"t/n": "b1"})
    leader = Leader(FakeChannel(owned(3), ("b1", "b2")), policies)
    reason, detail = rejected(await leader.ask())
    assert reason == "no-destination"
    assert detail.startswith(f"no broker may take {NAMES[0]} and 2 more of b1: ")
    assert "`pin` removed b2 (it is pinned to b1)" in detail
    record = leader.written[-1]
    assert [(bundle.name, bundle.reason) for bundle in record.left] == [(name, "pin") for name in NAMES[:3]]
    assert (record.label, record.moves) == ("Skip", [])


async def test_a_second_leader_tells_of_the_whole_drain() -> None:
    """Three of four bundles had gone when it took the drain up, and the fourth may go nowhere: that is no `no-destination`."""
    channel = FakeChannel({**owned(3, "b2"), NAMES[3]: "b1"}, ("b1", "b2"))
    leader = Leader(channel, Policies(cordons={"b1": "drain"}, pins={NAMES[3]: "b1"}))
    leader.before["moved"] = frozenset(NAMES[:4])  # the fourth was tried, and stayed
    outcome = await leader.ask()
    assert (outcome.result, outcome.facts["left_count"]) == ("drained-in-part", 1)
    assert (outcome.facts["moved"], outcome.facts["began_with"]) == (3, 4)
    assert outcome.facts["earlier_known"] is True


async def test_the_last_of_several_leaders_counts_each_bundle_once() -> None:
    """The first leader began to move five: two arrived, three are still there, which this one moves."""
    channel = FakeChannel({**owned(5, "b1"), NAMES[0]: "b2", NAMES[1]: "b3"}, ("b1", "b2", "b3"))
    leader = Leader(channel)
    leader.before["moved"] = frozenset(NAMES[:5])
    outcome = await leader.ask()
    assert (outcome.result, outcome.facts["moved"], outcome.facts["began_with"]) == ("drained", 5, 5)
    (own,) = leader.own
    assert own == {proposal.id for proposal in leader.written if isinstance(proposal, DecisionRecord)}, (
        "what it wrote does not count twice"
    )


@pytest.mark.parametrize("before", [None, KafkaUnavailableError("away"), RuntimeError("a bug")])
async def test_where_nobody_knows_what_was_moved_before_nobody_says_that_nothing_was(before: Any) -> None:
    leader = Leader(FakeChannel(owned(3), ("b1", "b2")), Policies(cordons={"b1": "drain"}, pins={"t/n": "b1"}))
    leader.before["moved"] = before
    outcome = await leader.ask()
    assert (outcome.result, outcome.facts["moved"], outcome.facts["left_count"]) == ("drained-in-part", 0, 3)
    assert outcome.facts["earlier_known"] is False


async def test_some_may_not() -> None:
    policies = Policies(cordons={"b1": "drain"}, pins={NAMES[1]: "b1"})
    outcome = await Leader(FakeChannel(owned(3), ("b1", "b2")), policies).ask()
    assert (outcome.result, outcome.facts["moved"], outcome.facts["left_count"]) == ("drained-in-part", 2, 1)
    assert [(bundle["bundle"], bundle["reason"]) for bundle in outcome.facts["left"]] == [(NAMES[1], "pin")]
    assert "`pin` removed b2" in outcome.facts["message"]


async def test_moves_that_are_refused_are_tried_again_and_then_told() -> None:
    channel = FakeChannel(owned(2), ("b1", "b2"))
    channel.on_transfer = lambda command: Rejected("busy", "try later") if command.name == NAMES[0] else None
    leader = Leader(channel, settings=QUICK.model_copy(update={"attempts_max": 3}))
    outcome = await leader.ask()
    assert [(bundle["bundle"], bundle["reason"]) for bundle in outcome.facts["left"]] == [(NAMES[0], "failed")]
    assert outcome.facts["left"][0]["why"] == "3 attempts failed; the last: busy: try later"
    assert sum(command.name == NAMES[0] for command in channel.commands) == 3


async def test_in_safe_mode_nothing_is_begun_until_it_is_over() -> None:
    channel = FakeChannel(owned(2), ("b1", "b2"))
    channel.mode = "safe"
    drained = asyncio.create_task(Leader(channel).ask())
    await asyncio.sleep(0.6)
    assert channel.commands == []
    channel.mode = "normal"
    assert isinstance(await drained, Done)


async def test_the_drained_broker_dies() -> None:
    channel = FakeChannel(owned(2), ("b2", "b3"))
    drained = asyncio.create_task(Leader(channel).ask())
    await asyncio.sleep(0.5)
    assert channel.commands == []
    channel.owners = owned(2, "b3")  # the leader's repair
    outcome = await drained
    assert (outcome.facts["began_with"], outcome.facts["moved"], outcome.facts["left_count"]) == (2, 0, 0)


async def test_the_leader_drains_itself() -> None:
    channel = FakeChannel(owned(2, "b2"), ("b1", "b2"))
    outcome = await Leader(channel, Policies(cordons={"b2": "drain"})).ask(broker="b2")
    assert outcome.facts["leads"] is True
    assert set(channel.owners.values()) == {"b1"}


async def test_an_unknown_ask_lists_what_is_known() -> None:
    refused = await Leader(FakeChannel({}, ("b1",))).ask("dance")
    assert isinstance(refused, Rejected)
    assert refused.reason == "unknown-ask"
    assert "drain, may-take, fresh and rolling-restart" in refused.hint


# --- checks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "destination", "policies", "answer"),
    [
        (NAMES[0], "b2", Policies(), "may-take"),
        (NAMES[0], None, Policies(), "may-take"),
        (NAMES[0], "b2", Policies(cordons={"b2": "disk"}), "cordon: it is cordoned: disk"),
        (NAMES[0], "b2", Policies(pins={"t/n": "b3"}), "pin: it is pinned to b3"),
        (NAMES[0], None, Policies(pins={"t/n": "b1"}), "may-take"),
        (NAMES[0], None, Policies(pins={"t/n": "b9"}), "`pin` removed"),
        (NAMES[0], "b1", Policies(cordons={"b1": "it is there already"}), "may-take"),
        ("t/n/0xee_0xff", "b2", Policies(), "unknown-bundle"),
    ],
)
async def test_may_take(name: str, destination: str | None, policies: Policies, answer: str) -> None:
    leader = Leader(FakeChannel(owned(2), ("b1", "b2", "b3")), policies)
    outcome = await leader.ask("may-take", name=name, destination=destination)
    args = {"name": name} if destination is None else {"name": name, "destination": destination}
    refusal = leader.checks.refusal(Request("01OP", "unload", 0, args, ""))
    assert refusal == (None if isinstance(outcome, Done) else outcome), "the executing broker checks the same"
    match outcome:
        case Done(result=result):
            assert result == answer
        case Rejected(reason=reason, message=message, hint=hint):
            assert reason == "filtered"
            assert answer in message
            assert hint == "Use --force to do it nevertheless."
        case _:
            assert isinstance(outcome, NotFound)
            assert answer == outcome.reason


@pytest.mark.parametrize("owner", ["b1", "b9"])
async def test_nobody_may_go_to_a_broker_that_nobody_hears(owner: str) -> None:
    """Also where it is the lost owner of the bundle, or is asked for in other words."""
    leader = Leader(FakeChannel(owned(1, owner), ("b1", "b2")))
    for destination in ("b9", "b9" * 400_000):
        reason, detail = rejected(await leader.ask("may-take", name=NAMES[0], destination=destination))
        assert reason == "unknown-broker"
        assert detail.startswith(f"{NAMES[0]} may not go to b9")
        assert "no broker of that name is registered" in detail
        assert "--force" not in detail, "the channel refuses it, too"
        assert len(detail) < 300


async def test_bad_questions_of_what_may_be_taken() -> None:
    leader = Leader(FakeChannel(owned(2), ("b1", "b2")))
    for args in ({}, {"name": 1}, {"name": NAMES[0], "destination": 2}):
        assert rejected(await leader.ask("may-take", **args))[0] == "bad-request"


async def test_reports_that_nobody_makes_are_late() -> None:
    channel = FakeChannel({}, ("b1", "b2"))
    outcome = await Leader(channel).ask("fresh", timeout_s=0.5)
    assert outcome == Done("01OP", "late", {"late": ["b1", "b2"], "late_count": 2})
    channel.alive = ()
    assert (await Leader(channel).ask("fresh", timeout_s=0.5)) == Done("01OP", "fresh", {"late": [], "late_count": 0})
