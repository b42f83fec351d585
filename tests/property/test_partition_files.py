"""Files of the planner: whatever is written is read back the same, and no bytes lead to anything but a told error."""

import random
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loaddata.samples.cluster_files import LayoutUnusableError, read_layout_file, write_layout
from loaddata.samples.partitions import (
    ClusterLayout,
    KafkaBroker,
    KafkaPartition,
    KafkaTopic,
    LogDir,
    PartitionLoad,
    PartitionLoads,
)
from shedders.kafka_rebalance.errors import PlanUnusableError
from shedders.kafka_rebalance.planning.plan import GoalOutcome, GoalSpread, GoalStatus, PartitionMove, ReassignmentPlan
from shedders.kafka_rebalance.planning.plan_files import parse_plan, parse_reassignment, plan_bytes, to_json

SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
"""Examples are drawn slowly on a machine that does much else."""
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.text("aZ9._-", min_size=3, max_size=12)
AMOUNTS = st.none() | st.integers(0, 2**62)
SHARES = st.integers(0, 2**60 // 64)
"""Of what can be reckoned with together; a layout here has at most 45 replicas."""
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
REPLICAS = st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True).map(tuple)
JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | TEXT, lambda inner: st.lists(inner, max_size=3))
SPREADS = st.none() | st.builds(
    GoalSpread,
    violations=st.integers(0, 99),
    excess=st.integers(0, 2**60),
    low=NUMBERS,
    high=NUMBERS,
    mean=NUMBERS,
    std=NUMBERS,
)


@st.composite
def moves(draw: st.DrawFn) -> PartitionMove:
    before, after = draw(REPLICAS), draw(REPLICAS)
    leader = draw(st.none() | st.sampled_from(before))
    if before == after and leader == after[0]:
        leader = None
    return PartitionMove(
        topic=draw(NAMES),
        partition=draw(st.integers(0, 2**31 - 1)),
        before=before,
        after=after,
        leader_before=leader,
        leader_after=after[0],
        size_bytes=draw(AMOUNTS),
        goals=tuple(draw(st.lists(NAMES, max_size=3))),
    )


@st.composite
def plans(draw: st.DrawFn) -> ReassignmentPlan:
    paths = tuple(draw(st.lists(moves(), max_size=6, unique_by=lambda item: (item.topic, item.partition))))
    goals = st.builds(
        GoalOutcome,
        name=NAMES,
        hard=st.booleans(),
        unit=TEXT,
        range_share=NUMBERS,
        status=st.sampled_from(GoalStatus),
        before=SPREADS,
        after=SPREADS,
        moves=st.integers(0, 99),
        took_s=NUMBERS,
        witness=TEXT,
    )
    return ReassignmentPlan(
        id=f"{draw(st.integers(0, 2**64 - 1)):016x}",
        cluster_id=draw(TEXT),
        layout=draw(TEXT),
        topic_ids={path.topic: draw(TEXT) for path in paths},
        made_at_ms=draw(st.integers(0, 2**45)),
        request=draw(st.dictionaries(TEXT, JSON, max_size=4)),
        goals=tuple(draw(st.lists(goals, max_size=3, unique_by=lambda item: item.name))),
        moves=paths,
        complete=draw(st.booleans()),
        remarks=tuple(draw(st.lists(TEXT, max_size=3))),
        took_s=draw(NUMBERS),
    )


@given(plans())
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
def test_a_plan_is_read_back_as_it_was(plan: ReassignmentPlan) -> None:
    planned = parse_plan(plan_bytes(plan))
    assert planned == plan
    assert [goal.took_s for goal in planned.goals] == [goal.took_s for goal in plan.goals]


@given(st.lists(moves(), max_size=8, unique_by=lambda item: (item.topic, item.partition)))
@settings(deadline=None, suppress_health_check=SLOW)
def test_a_reassignment_is_read_back_as_it_was(moves: list[PartitionMove]) -> None:
    assert parse_reassignment(to_json(moves)) == {move.key: (move.after, ()) for move in moves}
    assert parse_reassignment(to_json(moves, "before")) == {move.key: (move.before, ()) for move in moves}


@st.composite
def layouts(draw: st.DrawFn) -> tuple[ClusterLayout, PartitionLoads]:
    dirs = st.builds(LogDir, path=TEXT, total_bytes=AMOUNTS, usable_bytes=AMOUNTS, offline=st.booleans())
    brokers = tuple(
        KafkaBroker(
            id=item,
            host=draw(TEXT),
            port=draw(st.integers(0, 65_535)),
            rack=draw(st.none() | NAMES),
            alive=draw(st.booleans()),
            log_dirs=tuple(draw(st.lists(dirs, max_size=2, unique_by=lambda entry: entry.path))),
        )
        for item in range(10)
    )
    topics, loads = {}, {}
    for name in sorted(draw(st.lists(NAMES, max_size=3, unique=True))):
        results = []
        for number in range(draw(st.integers(0, 3))):
            replicas = draw(REPLICAS)
            some = st.lists(st.sampled_from(replicas), unique=True).map(tuple)
            results.append(
                KafkaPartition(
                    partition=number,
                    replicas=replicas,
                    leader=draw(st.none() | st.sampled_from(replicas)),
                    isr=draw(some),
                    offline=draw(some),
                    adding=draw(some),
                    removing=draw(some),
                )
            )
            if draw(st.booleans()):
                loads[name, number] = PartitionLoad(
                    disk_bytes=draw(SHARES),
                    bytes_in_per_s=draw(st.none() | SHARES),
                    bytes_out_per_s=draw(st.none() | SHARES),
                    cpu_units=draw(st.none() | SHARES),
                    completeness=draw(st.floats(0, 1)),
                )
        topics[name] = KafkaTopic(
            name=name, partitions=tuple(results), topic_id=draw(TEXT), min_isr=draw(st.integers(1, 5))
        )
    layout = ClusterLayout(cluster_id=draw(TEXT), brokers=brokers, topics=topics, read_at_ms=draw(st.integers(0, 9)))
    return layout, PartitionLoads(of=loads, from_ms=draw(st.integers(0, 9)), to_ms=9, source=draw(TEXT))


@given(layouts())
@settings(deadline=None, suppress_health_check=SLOW, max_examples=30)
def test_a_layout_is_read_back_as_it_was(tmp_path: Path, given: tuple[ClusterLayout, PartitionLoads]) -> None:
    write_layout(tmp_path / "layout.json", *given)
    assert read_layout_file(tmp_path / "layout.json") == given


@given(plan=plans(), seed=st.integers(0, 2**32), changes=st.integers(1, 4))
@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
def test_a_plan_with_bytes_that_were_changed_is_a_plan_or_a_told_error(
    plan: ReassignmentPlan, seed: int, changes: int
) -> None:
    raw = bytearray(plan_bytes(plan))
    draws = random.Random(seed)
    for _ in range(changes):
        at = draws.randrange(len(raw))
        match draws.randrange(3):
            case 0:
                raw[at] = draws.randrange(256)
            case 1:
                del raw[at : at + draws.randrange(1, 20)]
            case _:
                raw[at:at] = draws.choice([b'"', b"[", b"{", b"}", b"]", b",", b"NaN", b"-1", b"\\ud800", b"1e999"])
    with suppress(PlanUnusableError):
        assert parse_plan(bytes(raw)).id


@given(junk=st.binary(max_size=200))
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@pytest.mark.parametrize("head", [b"", b'{"format":"kafka-layout/1","brokers":[{"id":1},{"id":1}],"topics":['])
def test_junk_is_a_told_error(tmp_path: Path, head: bytes, junk: bytes) -> None:
    (tmp_path / "junk.json").write_bytes(head + junk)
    with pytest.raises(LayoutUnusableError):
        read_layout_file(tmp_path / "junk.json")
    for parse in (parse_plan, parse_reassignment):
        with pytest.raises(PlanUnusableError):
            parse(head + junk)
