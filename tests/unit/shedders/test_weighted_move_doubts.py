"""Brokers that weighted-move does not believe: slow ones, liars, and those on which what was sent does not show."""

from dataclasses import replace
from unittest.mock import ANY

import pytest

from loaddata.model.broker_load import ResourceUsage
from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Plan
from shedders.weighted_move.doubt import CAPPED, FELL, LIES, PAUSED, ROSE, UNMOVED, Doubts, Peak, pulse_of
from shedders.weighted_move.loads import cpu_costs, is_full
from shedders.weighted_move.slow_broker import SlowBroker
from shedders.weighted_move.strategy import WeightedMove, WeightedMoveSettings
from tests.support.loads import MIB, broker, bundle, cluster, left

NAMES = "abcdefgh"
EACH = 10


def make_bundle(now: float, long: float, *, samples: int = 1_000, number: int = 0) -> Bundle:
    average = MessageAverage(0.0, 0.0, long, 0.0, samples=samples)
    stats = BundleStats(0.0, 0.0, now, 0.0, topics=1)
    return (
        bundle(number, "a")
        if samples < 0
        else replace(bundle(number, "a"), stats=stats, averages=BundleAverages(replace(average, samples=10), average))
    )


def test_pulse_is_the_median_of_now_over_long():
    some = [
        make_bundle(5.0, 10.0),
        make_bundle(8.0, 10.0),
        make_bundle(9.0, 10.0),
        make_bundle(10.0, 10.0),
        make_bundle(50.0, 10.0),
    ]
    assert pulse_of(some) == (0.9, [10.0, 10.0, 10.0])
    assert pulse_of(some[:3]) == (None, None)  # three have no common pulse
    young = [
        replace(item, averages=BundleAverages(item.averages.short, replace(item.averages.long, samples=59)))
        for item in some
    ]
    assert pulse_of(young) == (None, None)
    assert pulse_of([replace(item, stats=None) for item in some]) == (None, None)
    assert pulse_of([make_bundle(float("nan"), 10.0)] * 9) == (None, None)


def judged(doubts: Doubts, odd: float, **levels: float) -> None:
    pulses = {**dict.fromkeys(NAMES, 1.0), "a": odd}
    doubts.judge(pulses, use({**dict.fromkeys(NAMES, 0.5), **levels}))


def fallen() -> Doubts:
    """The pulse of `a` has fallen, for long enough to probe it."""
    doubts = Doubts()
    judged(doubts, 1.0)
    for _ in range(3):
        judged(doubts, 0.7)
    return doubts


def use(levels: dict[str, float]) -> dict[str, tuple[float, float, float, float]]:
    """Usage of each resource, CPU first."""
    return {name: (level, level / 2, 0.0, 0.0) for name, level in levels.items()}


@pytest.mark.parametrize(("odd", "kind"), [(0.8, FELL), (1.3, ROSE), (0.9, None)])
def test_a_pulse_far_off_three_times_in_a_row(odd: float, kind: str | None):
    doubts = Doubts()
    judged(doubts, 1.0)
    for _ in range(2):
        judged(doubts, odd)
        assert doubts.of("a") is None
    assert doubts.may_take("a") == (kind != FELL)  # the first sign is enough to send nothing
    judged(doubts, odd)
    assert doubts.of("a") == kind
    judged(doubts, 1.0)
    assert doubts.of("a") is None
    assert doubts.may_take("a")


def test_where_all_fall_nobody_is_doubted():
    doubts = Doubts()
    judged(doubts, 1.0)
    for _ in range(5):
        doubts.judge(dict.fromkeys(NAMES, 0.5), use(dict.fromkeys(NAMES, 0.5)))
    assert not doubts.doubts


def test_where_pulses_differ_much_it_takes_more():
    doubts = Doubts()
    doubts.judge(dict.fromkeys(NAMES, 1.0), {})
    for turn in range(5):
        doubts.judge({name: 1.0 + 0.1 * (-1) ** (place + turn) for place, name in enumerate(NAMES)} | {"a": 0.75}, {})
    assert not doubts.doubts


def test_a_strained_broker_does_as_much_after_giving_a_part_away():
    for after, slow in ((0.39, True), (0.33, False)):
        doubts = fallen()
        assert doubts.to_try("a")
        doubts.tried("a", 0.4, 0.2)
        assert not doubts.to_try("a")
        judged(doubts, 0.7, a=after)
        assert doubts.slow == ({"a": SlowBroker(after, served=pytest.approx(0.7))} if slow else {})


@pytest.mark.parametrize(
    ("pulse", "after", "slow"),
    [
        (0.7, 0.39, True),  # it serves less than it is asked, and is as busy as before
        (0.7, 0.37, False),  # less than before, and yet it would not serve all: its bundles have less to do
        (0.99, 0.37, True),  # it serves all now: it was asked for a little too much
        (0.99, 0.35, False),
        (0.7, 0.43, True),  # its capacity varies
        (0.7, 0.45, False),  # other load came, so that nothing shows
        (0.99, 0.42, False),
    ],
)
def test_noise_in_a_probe_is_no_saturation(pulse: float, after: float, slow: bool):
    doubts = fallen()
    doubts.tried("a", 0.4, 0.2)
    judged(doubts, pulse, a=after)
    assert ("a" in doubts.slow) == slow


@pytest.mark.parametrize(("after", "again"), [(0.37, True), (0.35, False)])
def test_a_probe_that_shows_neither_is_repeated(after: float, again: bool):
    doubts = fallen()
    doubts.tried("a", 0.4, 0.2)
    for _ in range(2):
        judged(doubts, 0.7, a=after)
        assert not doubts.slow
    assert doubts.to_try("a") == again


def test_a_broker_with_next_to_no_load_is_not_found_slow():
    doubts = fallen()
    doubts.tried("a", 0.08, 0.3)
    judged(doubts, 0.7, a=0.08)
    assert not doubts.slow
    assert not doubts.to_try("a")


def test_probes_are_not_repeated_for_long():
    """Each takes a part of its load away."""
    doubts = Doubts()
    judged(doubts, 1.0)
    probes, level = 0, 0.4
    for _ in range(20):
        judged(doubts, 0.7, a=level)
        doubts = Doubts.recall(doubts.dumped(), 60.0, dict.fromkeys(NAMES))
        if doubts.to_try("a"):
            doubts.tried("a", level, 0.2)
            probes, level = probes + 1, level * 0.92
    assert not doubts.slow
    assert probes == 2


def test_a_usual_pulse_of_next_to_nothing_is_kept():
    """Its tenants are silent: their bundles have a tiny part of their long-term traffic."""
    doubts = Doubts()
    for _ in range(3):
        judged(doubts, 3e-5)
        doubts = Doubts.recall(doubts.dumped(), 60.0, dict.fromkeys(NAMES))
    assert doubts.calm["a"] == pytest.approx(3e-5)
    hostile = Doubts.recall({"calm": {"a": 0.0}}, 60.0, dict.fromkeys(NAMES))
    judged(hostile, 1.0)
    assert hostile.now["a"] == 1.0


def test_a_broker_is_full_by_its_limits_whatever_the_weights():
    doubts = Doubts(sent={"a": (0.49, 0.2, 2.0)})
    doubts.judge({}, use({"a": 0.5}), usages={"a": 1.0})
    assert not doubts.doubts


def test_a_probe_of_next_to_nothing_shows_nothing_and_is_not_repeated():
    doubts = fallen()
    doubts.tried("a", 0.4, 0.05)
    judged(doubts, 0.7, a=0.4)
    assert not doubts.slow
    assert not doubts.to_try("a")


def test_an_overloaded_broker_serves_less_for_a_known_reason():
    """It is not doubted, does not become slow, and what it usually has is not learned from it."""
    doubts = Doubts()
    judged(doubts, 1.0)
    usual = dict(doubts.calm)
    for _ in range(4):
        judged(doubts, 0.6, a=1.0)
    assert not doubts.doubts
    assert doubts.calm["a"] == usual["a"]
    for _ in range(3):
        judged(doubts, 0.6)
    assert doubts.of("a") == FELL
    doubts.tried("a", 0.95, 0.2)
    judged(doubts, 0.6, a=0.95)  # overloaded now: that explains it
    assert not doubts.slow
    assert not doubts.doubts


@pytest.mark.parametrize(("level", "full"), [(0.94, False), (0.95, True), (1.05, True), (1.06, False), (2.2, False)])
def test_usage_far_beyond_a_limit_is_a_wrong_figure(level: float, full: bool):
    assert is_full(level) == full


def test_what_is_sent_to_a_full_broker_cannot_show():
    doubts = Doubts(sent={"a": (0.99, 0.2, 2.0)})
    doubts.judge({}, use({"a": 1.0}))
    assert doubts.of("a") is None
    assert not doubts.sums


def peaked(doubts: Doubts, level: float, *, share: float = 1.0, others: float = 0.2, times: int = 1) -> None:
    """Decisions in which `a` is at a level, with that share of its samples at its peak, and the others vary."""
    levels = {**dict.fromkeys(NAMES, 0.5), "a": level}
    peaks = {**dict.fromkeys(NAMES, Peak(0.52, others, 0.5)), "a": Peak(level, share, level)}
    for _ in range(times):
        doubts.judge({}, use(levels), peaks)


def probed(part: float = 0.2) -> Doubts:
    """A broker that has stayed at its peak of 0.45 gives this part of its load."""
    doubts = Doubts()
    peaked(doubts, 0.45, times=3)
    doubts.tried("a", 0.45, part)
    return doubts


def test_a_broker_that_stays_at_its_peak_is_probed():
    doubts = Doubts()
    peaked(doubts, 0.45, times=2)
    assert doubts.of("a") is None
    assert not doubts.may_take("a")  # the first sign is enough to send nothing
    peaked(doubts, 0.45)
    assert doubts.of("a") == CAPPED
    assert doubts.to_try("a")
    assert "stayed at its peak" in doubts.why("a")
    doubts.tried("a", 0.45, 0.2)
    peaked(doubts, 0.44)  # much more is asked of it than it can do
    assert doubts.slow == {"a": SlowBroker(pytest.approx(0.45))}
    assert not doubts.doubts


@pytest.mark.parametrize(
    ("level", "share", "others"),
    [
        (0.45, 0.8, 0.2),  # it varies
        (0.45, 1.0, 0.7),  # nothing varies
        (0.9, 1.0, 0.2),  # at its own limit
        (0.2, 1.0, 0.2),  # has little load
        (0.0, 1.0, 0.2),
    ],
)
def test_peaks_that_show_nothing(level: float, share: float, others: float):
    doubts = Doubts()
    peaked(doubts, level, share=share, others=others, times=5)
    assert not doubts.doubts
    assert doubts.may_take("a")


def test_the_same_peak_once_more_after_a_probe_shows_a_broker_that_was_asked_for_a_little_too_much():
    def answered() -> Doubts:
        doubts = probed()
        peaked(doubts, 0.38, share=0.5)
        assert not doubts.doubts
        assert not doubts.slow
        return Doubts.recall(doubts.dumped(), 60.0, dict.fromkeys(NAMES))

    other = answered()
    peaked(other, 0.46, times=5)
    assert not other.doubts  # probed lately, and not stuck there
    assert not other.slow
    same = answered()
    peaked(same, 0.451, times=3)
    assert same.slow == {"a": SlowBroker(0.451, served=pytest.approx(0.95))}
    assert not same.ceilings
    later = Doubts.recall(answered().dumped(), 22_000.0, dict.fromkeys(NAMES))
    peaked(later, 0.451, times=3)
    assert later.to_try("a")  # forgotten: it is probed again


def test_a_peak_is_found_whatever_the_weight_of_its_resource():
    """Levels are weighted, and what a broker reports of its peak is not."""
    doubts = Doubts()
    levels = {**dict.fromkeys(NAMES, 0.25), "a": 0.225}
    peaks = {**dict.fromkeys(NAMES, Peak(0.52, 0.2, 0.5)), "a": Peak(0.45, 1.0, 0.45)}
    for _ in range(3):
        doubts.judge({}, use(levels), peaks)
    assert doubts.of("a") == CAPPED


def test_a_probe_that_is_not_answered_ends_the_doubt():
    """Its bundles were refused, or it sent no report for a while."""
    doubts = probed()
    doubts.probes = {}
    peaked(doubts, 0.45)
    assert doubts.of("a") is None
    assert doubts.may_take("a")
    again = Doubts.recall(doubts.dumped(), 60.0, dict.fromkeys(NAMES))
    peaked(again, 0.45, times=9)
    assert again.doubts["a"].hits == PAUSED
    assert not again.to_try("a")
    assert not again.slow
    later = Doubts.recall(again.dumped(), 1_800.0, dict.fromkeys(NAMES))
    peaked(later, 0.45, times=3)
    assert later.to_try("a")


def test_a_probe_that_takes_next_to_nothing_shows_nothing():
    doubts = probed(part=0.01)
    peaked(doubts, 0.45, times=3)
    assert not doubts.slow
    assert not doubts.ceilings
    assert doubts.may_take("a")


def test_a_paused_doubt_gives_way_to_others():
    doubts = Doubts()
    judged(doubts, 1.0)
    peaked(doubts, 0.45, times=3)
    doubts.pause("a")
    for _ in range(3):
        judged(doubts, 0.6)
    assert doubts.of("a") == FELL


def test_a_broker_whose_usage_rises_while_it_is_probed_has_no_ceiling_there():
    doubts = probed()
    peaked(doubts, 0.47, share=0.3)
    assert not doubts.slow
    assert not doubts.doubts


def test_what_was_sent_has_to_show():
    doubts = Doubts(sent={"a": (0.3, 0.2, 2.0), "b": (0.3, 0.2, 2.0), "c": (0.3, 0.02, 2.0)})
    doubts.judge({}, use({"a": 0.34, "b": 0.5, "c": 0.3}))
    assert {name: doubts.of(name) for name in "abc"} == {"a": UNMOVED, "b": None, "c": None}


def test_long_averages_that_jump_alike_are_lies():
    doubts = Doubts()
    doubts.look_at("a", [9.0, 6.0, 3.0], changed=False)
    doubts.look_at("a", [9.0, 6.0, 3.6], changed=False)  # one of them does not count
    assert doubts.of("a") is None
    doubts.look_at("a", [3.0, 2.0, 1.2], changed=False)
    assert doubts.of("a") == LIES
    doubts.look_at("a", [3.0, 2.0, 1.2], changed=True)
    assert doubts.of("a") == LIES
    doubts.look_at("a", [9.1, 6.0, 3.6], changed=False)
    assert doubts.of("a") is None
    doubts.look_at("a", [1.0, 1.0, 1.0], changed=True)  # other bundles, other averages
    assert doubts.of("a") is None


def test_doubts_go_through_memory_and_expire():
    doubts = Doubts(slow={"c": SlowBroker(0.4, 1, 0.8, 7_000.0)})
    judged(doubts, 1.0)
    for _ in range(3):
        judged(doubts, 0.7)
    doubts.sent["b"] = 0.3, 0.2, 2.0
    kept = doubts.dumped()
    again = Doubts.recall(kept, 60.0, dict.fromkeys(NAMES))
    assert (again.of("a"), again.doubts["a"].age_s) == (FELL, 60.0)
    assert (again.sent, again.slow) == (
        {"b": (0.3, 0.2, 2.0)},
        {"c": SlowBroker(0.4, 1, 1.0, 7_060.0, beyond=[0.5, 0.0, 0.0, 0.0])},
    )
    assert again.calm == doubts.calm
    assert Doubts.recall(kept, 1_801.0, dict.fromkeys(NAMES)).doubts == {}
    assert Doubts.recall(kept, 60.0, {"z": None}).dumped() == {"sent": {"b": [0.3, 0.2, 2.0]}}
    for junk in (7, [], {"kinds": 3, "sizes": {"a": "xyz"}, "sent": {"a": [1, None]}}, {"kinds": {"a": "bored"}}):
        assert not Doubts.recall(junk, 1.0, dict.fromkeys(NAMES)).doubts


# --- whole decisions ----------------------------------------------------------------------------------------------------


def world(factor: float = 1.0, *, lying: float = 1.0, number: int = 0) -> Cluster:
    """Eight brokers with 50 % CPU; a does (or says) only so much of what it is asked."""
    brokers, bundles = [], []
    for name in NAMES:
        part = factor if name == "a" else 1.0
        said = lying if name == "a" else 1.0
        for place in range(EACH):
            size = (4.0 + place % 3) * MIB
            long = MessageAverage(0.0, 0.0, size * said, 0.0, samples=1_000)
            now = MessageAverage(0.0, 0.0, size * part * said, 0.0, samples=10)
            key = len(bundles)
            bundles.append(
                replace(
                    bundle(key, name),
                    stats=BundleStats(0.0, 0.0, size * part * said, 0.0, topics=1),
                    averages=BundleAverages(now, long),
                )
            )
        mine = sum(bundle.stats.msg_throughput_in for bundle in bundles[-EACH:])
        brokers.append(broker(name, 0.5 * part * said, bytes_per_s=mine))
    return cluster(brokers, bundles, now_ms=1_000_000 + number * 60_000)


def decided(*worlds: Cluster) -> list[Plan]:
    plans: list[Plan] = []
    for number, world in enumerate(worlds):
        memory = plans[-1].memory if plans else {}
        now = replace(world, now_ms=1_000_000 + number * 60_000)
        plans.append(WeightedMove(WeightedMoveSettings()).plan(now, memory))
    return plans


def test_a_slow_broker_that_looks_idle_gets_nothing_and_gives_a_part_to_find_out():
    plans = decided(*[world()] * 3, *[world(0.8)] * 3)
    assert not any(plan.moves for plan in plans[:5])
    assert {move.source for move in plans[5].moves} == {"a"}
    share = sum(move.load for move in plans[5].moves) / sum(
        bundle.stats.msg_throughput for bundle in world(0.8).bundles.values() if bundle.owner == "a"
    )
    assert 0.15 < share < 0.35
    assert left(plans[5])["a"] == "doubted"
    assert "0.80 of the usual" in next(bundle.why for bundle in plans[5].left if bundle.name == "a")


def test_a_slow_broker_that_stays_as_busy_is_at_its_end():
    plans = decided(*[world()] * 3, *[world(0.8)] * 3)
    gone = {move.bundle: move.destination for move in plans[-1].moves}
    strained = world(0.8)
    strained = replace(
        strained,
        bundles={
            name: replace(bundle, owner=gone.get(name, bundle.owner)) for name, bundle in strained.bundles.items()
        },
        now_ms=1_000_000 + 6 * 60_000,
    )
    plan = WeightedMove(WeightedMoveSettings()).plan(strained, plans[-1].memory)
    assert plan.memory["doubts"]["slow"] == {"a": [0.4, 0, ANY, 0.0, 7_200.0, 0]}
    assert next(each.reason for each in plan.left if each.name == "a") == "slow"
    assert plan.scores["a"] > 1.0
    assert {move.source for move in plan.moves} <= {"a"}


def test_liars_are_neither_filled_nor_emptied():
    for factor in (0.33, 1.5):
        plans = decided(*[world()] * 3, *[world(lying=factor)] * 12)
        assert not any(plan.moves for plan in plans)
        assert left(plans[-1])["a"] == "doubted"


def test_a_liar_is_no_part_of_the_average():
    plan = decided(*[world()] * 3, *[world(lying=0.33)] * 2)[-1]
    assert plan.stats["level"] == pytest.approx(0.5)
    assert plan.stats["doubted"] == 1.0


def strained(level: float) -> Cluster:
    """A world in which a reports this level."""
    crowded = world()
    busy = broker("a", level, bytes_per_s=crowded.brokers["a"].load.msg_throughput_in)
    return replace(crowded, brokers={**crowded.brokers, "a": busy})


@pytest.mark.parametrize(("level", "full"), [(0.93, False), (1.0, True)])
def test_a_move_remembers_whether_its_source_was_full(level: float, full: bool):
    plan = decided(*[strained(level)] * 2)[-1]
    assert "a" in {move.source for move in plan.moves}
    departures = plan.memory["doubts"]["arrivals"]["departures"]
    assert {was for source, *_, was in departures.values() if source == "a"} == {int(full)}


@pytest.mark.parametrize("full", [False, True])
def test_bundles_that_shrink_show_a_wrong_figure_unless_they_came_to_full_brokers(full: bool):
    before = decided(*[strained(0.93)] * 2)[-1]
    gone = {move.bundle: move.destination for move in before.moves if move.source == "a"}
    after = strained(0.6)
    bundles = {
        name: half(replace(bundle, owner=gone[name])) if name in gone else bundle
        for name, bundle in after.bundles.items()
    }
    crowded = {name: broker(name, 1.0) for name in gone.values()} if full else {}
    after = replace(after, bundles=bundles, brokers={**after.brokers, **crowded}, now_ms=1_000_000 + 2 * 60_000)
    plan = WeightedMove(WeightedMoveSettings()).plan(after, before.memory)
    factors = plan.memory["doubts"]["arrivals"].get("factors", {})
    assert factors == ({} if full else {"a": pytest.approx(2.0)})


def half(bundle: Bundle) -> Bundle:
    """With half the traffic now."""
    stats = replace(bundle.stats, msg_throughput_in=bundle.stats.msg_throughput_in / 2)
    short = replace(bundle.averages.short, msg_throughput_in=bundle.averages.short.msg_throughput_in / 2)
    return replace(bundle, stats=stats, averages=replace(bundle.averages, short=short))


def test_an_overloaded_broker_is_relieved_in_spite_of_a_doubt():
    """What was moved there did not show, and neither did a probe: it is full."""
    doubts = {"kinds": {"a": UNMOVED}, "hits": {"a": 4}, "age_s": {"a": 60.0}, "calm": dict.fromkeys(NAMES, 1.0)}
    calm, *_ = decided(strained(0.93))
    later = replace(strained(0.93), now_ms=1_060_000)
    plan = WeightedMove(WeightedMoveSettings()).plan(later, {**calm.memory, "doubts": doubts})
    assert "a" in {move.source for move in plan.moves}


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_a_broker_whose_network_is_full_is_overloaded_whatever_its_weight(weight: float):
    """It is at its limit by what it receives, and its pulse has fallen with it."""
    busy = strained(0.5)
    load = replace(busy.brokers["a"].load, bandwidth_in=ResourceUsage(100.0, 100.0))
    brokers = {**busy.brokers, "a": replace(busy.brokers["a"], load=load)}
    settings, plan = WeightedMoveSettings(bandwidth_in_weight=weight), None
    for number in range(6):
        bundles = world(1.0 if number < 2 else 0.7).bundles
        now = replace(busy, brokers=brokers, bundles=bundles, now_ms=1_000_000 + number * 60_000)
        plan = WeightedMove(settings).plan(now, plan.memory if plan else {})
    assert "kinds" not in plan.memory["doubts"]


# --- CPU ---------------------------------------------------------------------------------------------------------------


def load(idle: float, rate: float, size: float, limit: float = 100.0):
    load = broker("a", 0.0, bytes_per_s=size, msg_per_s=rate).load
    return replace(load, cpu=ResourceUsage(idle * limit + 0.002 * rate + 1e-6 * size, limit))


def test_costs_of_cpu_are_found_where_brokers_differ():
    costs = cpu_costs(
        [load(0.03, 10_000, 1e6), load(0.03, 1_000, 30e6), load(0.03, 0, 0), load(0.06 / 2, 20_000, 5e6, 200)]
    )
    assert costs.message == pytest.approx(0.002, rel=0.1)
    assert costs.size == pytest.approx(1e-6, rel=0.1)
    assert costs.idle == pytest.approx(0.03, abs=0.01)
    assert costs.of(1_000, 1e6) == pytest.approx(3.0, rel=0.1)


def test_where_brokers_are_alike_half_is_for_messages():
    costs = cpu_costs([load(0.0, 10_000, 20e6)] * 5)
    assert (costs.message, costs.size) == (pytest.approx(0.002), pytest.approx(1e-6))
    assert costs.idle == pytest.approx(0.0, abs=1e-9)


def test_costs_of_nothing():
    assert cpu_costs([]) == (0.0, 0.0, 0.0)
    assert cpu_costs([load(0.05, 0, 0)]) == (0.0, 0.0, 0.0)
    only = cpu_costs([load(0.0, 10_000, 0)] * 2)
    assert (only.message, only.size) == (pytest.approx(0.002), 0.0)
