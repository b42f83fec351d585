"""The balancing extension put together: strategies by policy, what is reported, the watch, the end of a start that failed."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from loaddata.model.broker_load import ResourceWeights
from loaddata.report.record import ReportKind
from shedders.balancer import extension
from shedders.balancer.active_strategies import choose, common_settings
from shedders.balancer.cluster_inputs import BundleCache
from shedders.balancer.duties import ReportRenewal
from shedders.balancer.extension import BalancerExtension, make
from shedders.balancer.placement import PlacementInputs
from shedders.balancer.settings import BalancerSettings
from shedders.decisions.record import Inputs
from shedders.model.cluster import Broker, Cluster, IsolationPolicy, Policies
from shedders.model.profiles import UnknownProfileError
from shedders.policies.effective import EffectivePolicies
from statechannel.broker.changes import Change, ChangesError, StreamEnd
from statechannel.broker.exits import ChannelStoppedError, Stopped
from statechannel.errors import StateChannelError
from statechannel.kafka.errors import KafkaUnavailableError
from statechannel.protocol.states import State
from statechannel.settings import load
from statechannel.settings.errors import SettingsError
from tests.support.live_balancer import Channel, Clock, World, key, settle


def make_extension(**settings: Any) -> BalancerExtension:
    return BalancerExtension(BalancerSettings(**settings))


# --- chosen by settings and policies --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "overrides", "manager", "shedding"),
    [
        ({}, {}, "extensible", "weighted-move"),
        ({}, {}, "modular", "threshold"),
        ({"modular_profile": "production"}, {}, "modular", "uniform"),
        ({"profile": "production"}, {}, "modular", "uniform"),
        ({"profile": "production", "shedding": "avg"}, {}, "extensible", "avg"),
        ({"profile": "production", "shedding": "avg"}, {"profile": "default"}, "extensible", "avg"),
        ({}, {"shedding": "overload"}, "modular", "overload"),
    ],
)
def test_policies_stand_over_settings_and_those_over_profiles(
    settings: dict[str, Any], overrides: dict[str, Any], manager: str, shedding: str
) -> None:
    assert choose(BalancerSettings(**settings), overrides, manager=manager).names["shedding"] == shedding


def test_a_setting_comes_from_the_nearest_that_says_it() -> None:
    transfer = {"transfer": {"hit_threshold": 5, "cool_down_s": 9}}
    own = BalancerSettings(shedding="transfer", strategies={"shedding": transfer})
    effective = EffectivePolicies(weights=ResourceWeights(cpu=4.0), shed_with_policies=True)
    result = choose(own, {"shedding.transfer.hit_threshold": 7}, common=common_settings(effective))
    shedding: Any = result.settings["shedding"]
    assert (shedding.hit_threshold, shedding.cool_down_s, shedding.shed_with_policies) == (7, 9, True)
    threshold: Any = choose(BalancerSettings(shedding="threshold"), common=common_settings(effective)).settings[
        "shedding"
    ]
    assert threshold.cpu_weight == 4.0
    named: Any = choose(own, {"shedding.transfer.shed_with_policies": False}, common=common_settings(effective))
    assert named.settings["shedding"].shed_with_policies is False


def test_parts_around_the_strategies_have_settings_too() -> None:
    result = choose(BalancerSettings(), {"parts.filters.max_topics": 7, "parts.splitting.max_bundles": 3})
    assert result.pipeline.settings.max_topics == result.placing.settings.max_topics == 7
    assert result.splitting.max_bundles == 3


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"intervall_s": 5}, "Did you mean `interval_s`"),
        ({"interval_s": "often"}, r"extensions\.balancer\.interval_s"),
        ({"load": {"ttl_s": 1}}, "ttl_s must be larger"),
    ],
)
def test_settings_that_will_not_do_keep_the_broker_from_starting(values: dict[str, Any], text: str) -> None:
    settings = load(overrides={"kafka": {"bootstrap_servers": "127.0.0.1:1"}})
    with pytest.raises(SettingsError, match=text):
        make(settings, values)
    with pytest.raises(UnknownProfileError, match="produktion"):
        make(settings, {"profile": "produktion"})


# --- policies while it runs -----------------------------------------------------------------------------------------


def test_a_change_of_policies_is_followed_and_taken_back() -> None:
    extension = make_extension()
    first = extension._in_force.chosen
    extension._policies_changed(EffectivePolicies(settings={"balancer.interval_s": 5, "shedding": "threshold"}))
    assert (extension.settings.interval_s, extension._in_force.chosen.names["shedding"]) == (5, "threshold")
    same = extension._in_force.chosen
    extension._policies_changed(
        EffectivePolicies(settings={"balancer.interval_s": 5, "shedding": "threshold"}, position=9)
    )
    assert extension._in_force.chosen is same  # strategies keep their memory where nothing changes for them
    extension._policies_changed(EffectivePolicies())
    assert (extension.settings.interval_s, extension._in_force.chosen.names) == (60, first.names)
    extension._policies_changed(EffectivePolicies(manager="modular"))
    assert extension._in_force.chosen.names["shedding"] == "threshold"
    extension._policies_changed(EffectivePolicies(settings={"balancer.budget.moves": 3}))
    assert extension.settings.budget.moves == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"shedding": "gone"},
        {"shedding": ["transfer"]},
        {"placement": {"x": 1}},
        {"split": ""},
        {"profile": 7},
        {"profile": ["x"]},
        {"balancer.interval_s": -1},
        {"balancer.interval_s": [1]},
        {"balancer.no_such": 1},
        {"balancer": 1},
        {"balancing": "off"},
        {"nosuch": 1},
        {"foo.bar": 1},
        {"shedding.transfer": 1},
        {"shedding.transfer.no_such": 1},
        {"shedding.overload.no_such": 1},
        {"shedding.nosuch.x": 1},
        {"parts.filters.no_such": 1},
        {"parts.nosuch.x": 1},
        {"shedding.threshold.threshold_percent": "much"},
    ],
)
def test_what_cannot_be_used_stops_moves_and_nothing_else(settings: dict[str, Any]) -> None:
    extension = make_extension()
    extension._policies_changed(EffectivePolicies(settings={"balancer.interval_s": 5}))
    before = extension._in_force.chosen
    extension._policies_changed(EffectivePolicies(settings=settings))
    assert extension._in_force.unusable
    assert "policies" in extension._failing()
    assert (extension._in_force.chosen, extension.settings.interval_s) == (before, 5)
    extension._policies_changed(EffectivePolicies())
    assert (extension._in_force.unusable, extension._failing()) == (None, {})


def test_a_bug_behind_a_setting_stops_moves_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    extension = make_extension()

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("plug-in")

    monkeypatch.setattr("shedders.balancer.active_strategies.shedding_maker", broken)
    extension._policies_changed(EffectivePolicies(settings={"balancer.interval_s": 5}))
    assert "ZeroDivisionError: plug-in" in extension._failing()["policies"]
    monkeypatch.undo()
    extension._policies_changed(EffectivePolicies(settings={"balancer.interval_s": 7}))
    assert (extension.settings.interval_s, extension._failing()) == (7, {})


@pytest.mark.parametrize(
    ("strategies", "said"),
    [
        ({"shedding": {"threshold": {"nosuch": 1}}}, "nosuch"),
        ({"shedding": {"nosuch": {"x": 1}}}, "nosuch"),
        ({"nosuchkind": {"transfer": {"x": 1}}}, "nosuchkind"),
        ({"parts": {"nosuch": {"x": 1}}}, "parts.nosuch"),
        ({"placement": {"round-robin": {"nosuch": 1}}}, "nosuch"),
    ],
)
def test_settings_of_strategies_that_are_not_chosen_have_to_be_right_too(strategies: dict[str, Any], said: str) -> None:
    with pytest.raises(StateChannelError, match=said):
        make_extension(strategies=strategies)


@pytest.mark.parametrize(
    ("allowed", "configured", "kept"),
    [(None, False, True), (None, True, False), (False, True, True), (True, False, False)],
)
def test_bundles_with_policies_are_told_of_as_the_policy_says_else_the_setting(
    allowed: bool | None, configured: bool, kept: bool
) -> None:
    extension = make_extension(load={"top_with_policies": configured})
    policies = Policies((IsolationPolicy("gold", ("t/gold",), ("b1",)),), anti_affinity={"t/apart": "g"})
    effective = EffectivePolicies(policies=policies, shed_with_policies=allowed)
    expected = [kept, kept, False]
    assert [extension._in_force.keeps(effective, name) for name in ("t/gold", "t/apart", "t/plain")] == expected
    assert not extension._in_force.keeps(None, "t/gold")


def test_before_it_starts_nobody_is_placed() -> None:
    extension = make_extension()
    assert extension.placement.choose(key(0), ["b1"], {}) is None
    assert extension.status()["placements"] == {"unread": 1}


@pytest.mark.parametrize(("reading", "top"), [(True, 7), (False, None)])
def test_inputs_say_how_far_each_log_was_read(reading: bool, top: int | None) -> None:
    extension = make_extension()
    extension._channel = SimpleNamespace(positions=lambda: {0: 5, 1: 6})  # type: ignore[assignment]
    assert extension._inputs(None) == Inputs(channel={"0": 5, "1": 6})
    at = {
        ReportKind.BROKER_LOAD: 4,
        ReportKind.TOP_BUNDLES: 7 if reading else None,
    }  # only a leader follows the heaviest bundles
    extension._loads = SimpleNamespace(position=at.__getitem__)  # type: ignore[assignment]
    extension._follower = SimpleNamespace(effective=EffectivePolicies(position=3))  # type: ignore[assignment]
    assert extension._inputs(None) == Inputs(channel={"0": 5, "1": 6}, broker_load=4, top_bundles=top, policies=3)


# --- the watch ------------------------------------------------------------------------------------------------------


def change(number: int, from_: str | None, to: str | None, state: State = State.ASSIGNED) -> Change:
    return Change(0, number, 1, key(number), state, 3, from_, to, "b1", "i1")


async def test_a_watch_that_breaks_is_taken_up_again_as_soon_as_it_may() -> None:
    extension = make_extension()
    watches: list[Any] = []

    class Watch:
        def __init__(self, *items: Any) -> None:
            self.items = list(items)
            self.closed = False

        async def next(self) -> Any:
            if isinstance(self.items[0], Exception):
                raise self.items.pop(0)
            return self.items.pop(0)

        def close(self) -> None:
            self.closed = True

    scripts: list[Any] = [
        Watch(change(0, "b1", "b2"), ChangesError("read anew", hint="", reason=StreamEnd.INTERRUPTED)),
        ChangesError("a partition is being joined", hint="", reason=StreamEnd.NOT_FOLLOWED),
        ChangesError("a partition is being joined", hint="", reason=StreamEnd.NOT_FOLLOWED),
        Watch(change(1, "b2", "b3"), ChannelStoppedError(Stopped("closed", "bye"))),
    ]

    def watch(limit: int) -> Watch:
        script = scripts.pop(0)
        if isinstance(script, ChangesError):
            raise script
        watches.append(script)
        return script

    extension._channel = SimpleNamespace(watch=watch)  # type: ignore[assignment]
    with pytest.raises(ChannelStoppedError):
        await extension._watch()
    assert [item.closed for item in watches] == [True, True]
    assert sorted(extension._trail.recent(extension._clocks.mono_s()).bundles) == [key(0), key(1)]


# --- start and end --------------------------------------------------------------------------------------------------


async def test_a_start_that_fails_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    class Part:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.log: list[str] = []
            parts.append(self)

        def start(self) -> None:
            self.log.append("start")

        async def close(self) -> None:
            self.log.append("close")

        @property
        def effective(self) -> None:
            return None

    class Loads(Part):
        async def start(self) -> None:  # type: ignore[override]
            raise KafkaUnavailableError("away")

    class Writer(Part):
        def close(self, timeout_s: float) -> None:  # type: ignore[override]
            self.log.append("close")

    parts: list[Part] = []
    monkeypatch.setattr(extension, "open_topics", lambda _, topic, **__: {topic.name: SimpleNamespace(topic_id="T1")})
    monkeypatch.setattr(extension, "policy_reader", lambda *_: None)
    for name, part in (("DecisionWriter", Writer), ("PolicyFollower", Part), ("LoadService", Loads)):
        monkeypatch.setattr(extension, name, part)
    balancer = make_extension()
    settings = load(overrides={"kafka": {"bootstrap_servers": "127.0.0.1:1"}})
    channel: Any = SimpleNamespace(
        access=(None, SimpleNamespace(channel="c")),
        watched_topics={},
        settings=settings,
        identity=SimpleNamespace(broker="b1"),
        log_time_ms=1,
        picture=Channel(bundles={key(0): "b1"}).picture,
    )
    update, threads = BundleCache.update, []

    def noted(kept: BundleCache, bundles: Any) -> None:
        # Nobody can ask for a place yet, and the loop is free meanwhile.
        assert not balancer._surroundings().known
        threads.append(threading.get_ident())
        update(kept, bundles)

    monkeypatch.setattr(BundleCache, "update", noted)
    with pytest.raises(KafkaUnavailableError):
        await balancer.start(channel)
    await balancer.close()
    assert list(balancer._kept.bundles) == [key(0)]
    assert threading.get_ident() not in threads
    assert [part.log for part in parts] == [["close"], ["start", "close"], ["close"]]


async def test_a_broker_starts_without_policies_and_places_nobody_until_they_are_read(monkeypatch: pytest.MonkeyPatch):
    class Follower:
        doubt = ""

        effective: EffectivePolicies | None = None

        def __init__(self, *_: Any, on_change: Any, **__: Any) -> None:
            self.on_change = on_change
            followers.append(self)

        def start(self) -> None:
            pass

        async def wait_known(self, timeout_s: float) -> bool:
            waits.append(timeout_s)
            return False

        async def close(self) -> None:
            pass

        def status(self) -> dict[str, Any]:
            return {"known": self.effective is not None}

    followers: list[Follower] = []
    waits: list[float] = []
    monkeypatch.setattr(extension, "open_topics", lambda _, topic, **__: {topic.name: SimpleNamespace(topic_id="T1")})
    monkeypatch.setattr(extension, "policy_reader", lambda *_: None)
    monkeypatch.setattr(extension, "PolicyFollower", Follower)
    balancer = make_extension(source="none", policies_wait_s=0.25)
    world = World()
    channel: Any = SimpleNamespace(
        access=(None, SimpleNamespace(channel="c")),
        watched_topics={},
        settings=load(overrides={"kafka": {"bootstrap_servers": "127.0.0.1:1"}}),
        identity=SimpleNamespace(broker="b1"),
        picture=world.channel.picture,
        metrics_registry=None,
        answer_for=lambda *_: None,
        check_before=lambda *_: None,
        term=-1,
        log_time_ms=1,
        leading=False,
        stopped=None,
        holder=lambda _: None,
        watch=lambda _: SimpleNamespace(next=asyncio.Event().wait, close=lambda: None),
    )
    await balancer.start(channel)
    try:
        assert waits == [0.25]
        assert balancer.placement.choose(key(0), ["b1"], {}) is None
        status = balancer.status()
        assert (status["policies"], status["placements"], status["failing"]) == ({"known": False}, {"unread": 1}, {})

        followers[0].effective = EffectivePolicies()
        followers[0].on_change(EffectivePolicies())
        assert balancer.placement.choose(key(0), ["b1"], {}) == "b1"
    finally:
        await balancer.close()


async def test_closing_what_never_began_is_no_error() -> None:
    await make_extension().close()


async def test_one_part_that_cannot_be_closed_does_not_keep_the_others() -> None:
    extension, closed = make_extension(), []

    async def broken() -> None:
        raise OSError("no")

    async def fine() -> None:
        closed.append(True)

    extension._loads = SimpleNamespace(close=broken)  # type: ignore[assignment]
    extension._follower = SimpleNamespace(close=fine)  # type: ignore[assignment]
    await extension.close()
    assert closed == [True]


async def test_made_up_load_never_asks_the_channel_from_another_thread() -> None:
    balancer = BalancerExtension(BalancerSettings(), simulated=True)
    asked: list[int] = []

    def serving() -> dict[str, int]:
        asked.append(1)
        return {key(0): 1}

    balancer._channel = SimpleNamespace(serving=serving)  # type: ignore[assignment]
    balancer._loop_thread = extension.threading.get_ident()
    assert list(await asyncio.to_thread(balancer._serving)) == []
    assert list(balancer._serving()) == [key(0)]
    assert list(await asyncio.to_thread(balancer._serving)) == [key(0)]
    assert len(asked) == 1
    await settle()


# --- once more after a move -----------------------------------------------------------------------------------------


def test_a_broker_reports_once_more_when_it_has_cooled_down() -> None:
    clock, result, cool_down_s = Clock(), [], 180.0
    renewal = ReportRenewal("b1", lambda: cool_down_s, result.append, lambda: clock.s)
    renewal.look()
    renewal.changed(change(0, "b1", "b2"))
    clock.s += 100
    renewal.changed(change(1, "b3", "b1"))
    clock.s += 180
    renewal.look()
    assert result == []  # the leader saw the move later than it was written
    clock.s += 5
    renewal.look()
    renewal.look()
    assert len(result) == 1


@pytest.mark.parametrize(
    "change", [change(0, "b2", "b3"), change(0, "b1", "b1"), change(0, "b1", "b2", State.RELEASING)]
)
def test_what_is_no_move_of_this_broker_is_no_reason_to_report(change: Change) -> None:
    clock, result = Clock(), []
    renewal = ReportRenewal("b1", lambda: 1.0, result.append, lambda: clock.s)
    renewal.changed(change)
    clock.s += 100
    renewal.look()
    assert result == []


def test_a_strategy_without_cool_down_asks_for_no_report() -> None:
    clock, result = Clock(), []
    renewal = ReportRenewal("b1", lambda: None, result.append, lambda: clock.s)
    renewal.changed(change(0, "b1", "b2"))
    clock.s += 100
    renewal.look()
    assert result == []
    assert make_extension(shedding="avg")._in_force.cool_down_s() is None
    assert make_extension(shedding="transfer")._in_force.cool_down_s() == 180


@pytest.mark.parametrize(
    ("decision", "reason", "chosen"),
    [("01X", None, "b2"), (None, "balancer, decision 01X: too much", "b1"), (None, None, "b1")],
    ids=["balancer", "somebody's words", "nobody's"],
)
def test_what_the_balancer_lets_go_does_not_come_back(decision: str | None, reason: str | None, chosen: str) -> None:
    extension = make_extension()
    brokers = {name: Broker(name) for name in ("b1", "b2")}
    extension._placement.surroundings = lambda: PlacementInputs(Cluster(brokers, {}))
    extension._changed(
        Change(
            *(0, 1, 1, "t/n/0x00000000_0x10000000", State.RELEASING, 2, "b1", None, "b1", "i"),
            reason=reason,
            decision=decision,
        )
    )
    assert extension._placement.choose("t/n/0x00000000_0x10000000", ["b1", "b2"], {}) == chosen
