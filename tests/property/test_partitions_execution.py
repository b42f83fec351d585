"""Plans carried out on a dumb Kafka: always the planned layout, bounds kept, nothing moved twice, throttles put back."""

from collections import Counter
from functools import partial
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from shedders.kafka_rebalance.execution.moves import LOST
from shedders.kafka_rebalance.execution.values import StopKind
from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
from shedders.kafka_rebalance.settings import PaceSettings
from tests.support.partition_twin import At, Ledger, Part, Twin, make_plan, move, run

BEFORE = {
    ("broker", "1"): {"leader.replication.throttled.rate": "77"},
    ("topic", "t0"): {"leader.replication.throttled.replicas": "9:9"},
}
World = tuple[Twin, ReassignmentPlan, PaceSettings]


@st.composite
def worlds(draw: st.DrawFn, *, faults: float = 0.0, lag: float = 0.0) -> World:
    rng = Random(draw(st.integers(0, 2**32)))
    brokers = list(range(1, draw(st.integers(3, 6)) + 1))
    factor = draw(st.integers(1, 3))
    parts, moves = {}, []
    for number in range(draw(st.integers(1, 12))):
        key = (f"t{number % 3}", number // 3)
        before = tuple(rng.sample(brokers, factor))
        other = rng.sample(brokers, min(len(brokers), max(1, factor + rng.choice([0, 0, 0, 1, -1]))))
        after = rng.choice([tuple(other), before[::-1], before])
        size = rng.choice([0, 50, 100, 900])
        parts[key] = Part(list(before), set(before), before[0], size)
        if after != before:
            moves.append(move(key, before, after, size))
    twin = Twin(
        parts, set(brokers), rng, faults=faults, lag=lag, min_isr=1, configs={k: dict(v) for k, v in BEFORE.items()}
    )
    pace = PaceSettings(
        moves_per_broker=draw(st.integers(1, 3)),
        moves_max=draw(st.integers(1, 6)),
        bytes_in_flight=draw(st.sampled_from([100, 300, 10_000])),
        one_replica=draw(st.booleans()),
        order=draw(st.sampled_from(["plan", "small-first", "large-first"])),
        throttle_bytes_per_s=draw(st.sampled_from([None, 1_000])),
        attempts_max=50,
    )
    return twin, make_plan(moves), pace


def reached(twin: Twin, plan: ReassignmentPlan, *, leaders: bool = True) -> None:
    for step in plan.moves:
        part = twin.parts[step.topic, step.partition]
        assert (tuple(part.replicas), part.moving) == (step.after, False)
        assert part.leader == step.after[0] or not leaders


def bounded(twin: Twin, plan: ReassignmentPlan, pace: PaceSettings) -> None:
    assert twin.most_of_broker <= pace.moves_per_broker
    assert twin.most_moving <= pace.moves_max
    largest = max((move.copied_bytes for move in plan.moves), default=0)
    assert twin.most_bytes <= max(pace.bytes_in_flight, largest)
    assert twin.under_min == 0


@settings(max_examples=120, deadline=None)
@given(worlds(), st.just([]) | st.lists(st.integers(1, 60), max_size=8))
def test_killed_anywhere_or_nowhere_it_ends_the_same_within_its_bounds_and_moves_nothing_twice(
    world: World, gaps: list[int]
) -> None:
    twin, plan, pace = world
    kills = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    end, _ = run(twin, plan, pace, Ledger(kills=kills))
    assert end.stop.kind is StopKind.DONE
    reached(twin, plan)
    bounded(twin, plan, pace)
    assert {key: value for key, value in twin.configs.items() if value} == BEFORE
    assert twin.unthrottled == 0 or pace.throttle_bytes_per_s is None
    steps = {(move.topic, move.partition): max(1, len(move.added)) if pace.one_replica else 1 for move in plan.moves}
    assert all(count <= steps[key] for key, count in twin.set_out.items())


@settings(max_examples=60, deadline=None)
@given(worlds(lag=0.4))
def test_stale_looks_neither_repeat_a_request_nor_break_a_bound(world: World) -> None:
    twin, plan, pace = world
    end, _ = run(twin, plan, pace, Ledger())
    assert end.stop.kind is StopKind.DONE
    reached(twin, plan)
    bounded(twin, plan, pace)
    assert twin.repeated == 0
    assert twin.unthrottled == 0 or pace.throttle_bytes_per_s is None


@settings(max_examples=60, deadline=None)
@given(worlds(faults=0.2, lag=0.2), st.lists(st.integers(1, 60), max_size=4))
def test_lost_answers_refusals_and_stale_looks_change_nothing(world: World, gaps: list[int]) -> None:
    twin, plan, pace = world
    kills = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    ledger = Ledger(kills=kills)
    end, _ = run(twin, plan, pace, ledger)
    assert end.stop.kind is StopKind.DONE, end.stop
    assert ledger.recorded().throttle_before == {}
    reached(twin, plan)
    assert {key: value for key, value in twin.configs.items() if value} == BEFORE


@settings(max_examples=60, deadline=None)
@given(
    worlds(faults=0.05),
    st.dictionaries(st.integers(2, 60), st.tuples(st.integers(1, 6), st.integers(1, 200)), max_size=4),
)
def test_brokers_that_die_end_it_with_a_reason_and_it_goes_on_when_they_are_back(
    world: World, deaths: dict[int, tuple[int, int]]
) -> None:
    twin, plan, pace = world
    pace = pace.model_copy(update={"broker_grace_s": 20.0, "urp_grace_s": 20.0, "stalled_s": 500.0, "settle_s": 3.0})
    ledger = At({at: partial(twin.kill_broker, broker, for_s=length) for at, (broker, length) in deaths.items()})
    ends = []
    for _ in range(20):
        end, _ = run(twin, plan, pace, ledger)
        ends.append(end.stop)
        left = {key for key in twin.configs if twin.configs[key] not in ({}, BEFORE.get(key, {}))}
        assert left <= set(end.throttles_left)
        if end.stop.kind is StopKind.DONE and not end.throttles_left:
            break
        # All may be moved while a broker that is away still has its throttle: the next one clears it.
        assert end.throttles_left or end.stop.reason
        assert end.stop.hint or end.stop.kind is StopKind.DONE
        while twin.back:
            twin.wait(5.0)
    assert ends[-1].kind is StopKind.DONE, ends
    reached(twin, plan, leaders=False)  # one may die in the moment in which all is done
    assert twin.under_min == twin.to_dead == 0
    assert {key: value for key, value in twin.configs.items() if value} == BEFORE


def interfere(twin: Twin, rng: Random, removed: Counter[str], at: int) -> None:
    """What other tools do: remove throttles, each at most once; delete topics; add partitions; take partitions over."""
    match rng.choice(["rates", "lists", "delete", "grow", "take"]):
        case ("rates" | "lists") as what:
            kind = {"rates": "broker", "lists": "topic"}[what]
            for resource in [item for item in twin.configs if item[0] == kind and not removed[what]]:
                kept = BEFORE.get(resource, {})
                twin.configs[resource] = {name: kept[name] for name in twin.configs[resource] if name in kept}
            removed[what] += 1
        case "delete":
            for key in [key for key in twin.parts if key[0] == f"t{at % 3}"]:
                del twin.parts[key]
            twin.configs.pop(("topic", f"t{at % 3}"), None)
        case "grow":
            number = sum(key[0] == "t2" for key in twin.parts)
            twin.parts["t2", number] = Part([1], {1}, 1)
        case "take" if twin.parts:
            part = twin.parts[rng.choice(sorted(twin.parts))]
            if not part.moving:
                part.replicas, part.isr, part.leader = [2], {2}, 2


@settings(max_examples=120, deadline=None)
@given(
    worlds(),
    st.dictionaries(st.integers(2, 40), st.integers(0, 2**32), max_size=4),
    st.lists(st.integers(1, 60), max_size=3),
)
def test_with_another_tool_at_work_it_is_as_planned_or_dropped_by_name(
    world: World, acts: dict[int, int], gaps: list[int]
) -> None:
    twin, plan, pace = world
    pace = pace.model_copy(update={"full_look_s": 1.0, "settle_s": 2.0})
    removed: Counter[str] = Counter()
    ledger = At({at: partial(interfere, twin, Random(seed), removed, at) for at, seed in acts.items()})
    ledger.kills = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    end, machine = run(twin, plan, pace, ledger)
    assert end.stop.kind in {StopKind.DONE, StopKind.CHANGED, StopKind.THROTTLE_REMOVED}, end.stop
    dropped = {key for key, status in machine.statuses.items() if status.state in LOST}
    if end.stop.kind is StopKind.DONE:
        assert bool(dropped) == ("dropped" in end.stop.reason)
        for step in plan.moves:
            now = twin.parts.get(step.key)
            done = step.key in ledger.recorded().moved
            assert step.key in dropped or done or (now is not None and tuple(now.replicas) == step.after)
        left = {key: value for key, value in twin.configs.items() if value}
        assert end.throttles_left == ()
        assert {key for key, value in left.items() if value != BEFORE.get(key)} == set()
    twin.unthrottled = 0
    twin.go_on()
    assert twin.unthrottled == 0 or pace.throttle_bytes_per_s is None or end.stop.kind is StopKind.DONE
