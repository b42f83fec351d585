"""The twin's own measures and bounds, by hand and by trying everything: what judges plans has to be right itself."""

from fractions import Fraction
from itertools import chain, combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaddata.samples.partitions import ClusterLayout, PartitionLoads
from shedders.kafka_rebalance.planning.plan import PartitionMove, ReassignmentPlan
from shedders.kafka_rebalance.planning.request import BrokerCapacity, Capacities, PlanMode, PlanRequest
from tests.support.clusters import layout, loads
from tests.support.partition_clusters import big_cluster, random_cluster, shuffled
from tests.twin.partition_bounds import Item, bytes_for_new, bytes_of_removal, least_cost, smallest_sum
from tests.twin.partition_measures import Measured, Meter, cells, ranges
from tests.twin.partition_reach import bounds
from tests.twin.partition_rules import violations
from tests.twin.partition_state import layout_after, state_after, state_of


def small(*replicas: tuple[int, ...], racks: str = "aab") -> ClusterLayout:
    """One topic, led by its first replicas; the racks of brokers 1, 2, ..."""
    return layout(dict(enumerate(racks, 1)), {"t": replicas})


def sizes(*disk: int) -> PartitionLoads:
    every = len(disk)
    return loads({"t": disk}, {"t": [size // 10 for size in disk]}, {"t": [0] * every}, {"t": [30] * every})


LAYOUT = small((1, 2), (1, 2), (1, 3), (2, 1))
LOADS = sizes(100, 50, 30, 20)


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        ("replicas", {("", 1): 4, ("", 2): 3, ("", 3): 1}),
        ("leaders", {("", 1): 3, ("", 2): 1, ("", 3): 0}),
        ("disk", {("", 1): 200, ("", 2): 170, ("", 3): 30}),
        ("bytes-in", {("", 1): 18, ("", 2): 2, ("", 3): 0}),
        ("network-in-capacity", {("", 1): 20, ("", 2): 17, ("", 3): 3}),
        ("network-out-capacity", {("", 1): 18, ("", 2): 2, ("", 3): 0}),
        ("cpu", {("", 1): 100, ("", 2): 50, ("", 3): 10}),
        ("topic-replicas", {("t", 1): 4, ("t", 2): 3, ("t", 3): 1}),
        ("topic-leaders", {("t", 1): 3, ("t", 2): 1, ("t", 3): 0}),
    ],
)
def test_cells_by_hand(goal, expected):
    assert cells(goal, state_of(LAYOUT), LAYOUT, LOADS, PlanRequest()) == expected


def test_a_broker_that_does_not_count_has_no_cell():
    request = PlanRequest(brokers=(1, 2))
    assert cells("disk", state_of(LAYOUT), LAYOUT, LOADS, request) == {("", 1): 200, ("", 2): 170}
    assert ranges("disk", LAYOUT, LOADS, request, 0.1) == {("", 1): (167, 203), ("", 2): (167, 203)}


def test_what_leaves_a_broker_counts_for_the_others():
    request = PlanRequest(mode=PlanMode.REMOVE_BROKERS, subjects=(3,))
    assert ranges("disk", LAYOUT, LOADS, request, 0.1) == {("", 1): (180, 220), ("", 2): (180, 220)}


def test_who_is_demoted_has_no_part_in_leading():
    request = PlanRequest(mode=PlanMode.DEMOTE, subjects=(1,))
    assert ranges("leaders", LAYOUT, LOADS, request, 0.0) == {("", 2): (2, 2), ("", 3): (2, 2)}
    assert ranges("replicas", LAYOUT, LOADS, request, 0.0) == {("", 1): (2, 3), ("", 2): (2, 3), ("", 3): (4, 4)}


def test_disks_of_known_sizes_have_parts_by_size():
    sizes_of = {item: BrokerCapacity(disk_bytes=100 * item) for item in (1, 2, 3)}
    request = PlanRequest(capacities=Capacities(of=sizes_of))
    assert ranges("disk", LAYOUT, LOADS, request, 0.0) == {("", 1): (66, 67), ("", 2): (133, 134), ("", 3): (200, 200)}
    assert ranges("disk-capacity", LAYOUT, LOADS, request, 0.8) == {("", item): (0, 80 * item) for item in (1, 2, 3)}


def test_the_range_is_whole_and_about_the_mean():
    assert bounds(Fraction(400, 3), 0.1, Fraction(400, 3)) == (120, 146)  # 133.3: 120 to 146.7
    assert bounds(Fraction(1, 3), 0.1, Fraction(1, 3)) == (0, 1)
    assert bounds(Fraction(100), 0.1, Fraction(95)) == (90, 110)
    assert bounds(Fraction(100), 0.1, Fraction(50)) == (45, 55), "a rack that cannot hold as much"
    assert bounds(Fraction(100), 0.1, Fraction(200)) == (180, 202), "one that must hold more: not more than it has to"


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        ("disk", Measured(3, 90 + 60 + 150)),
        ("rack-awareness", Measured(3, 3)),
        ("preferred-leader", Measured(0, 0)),
        ("replicas", Measured(2, 1 + 3)),  # 2.67: 2 to 3, but the third is alone in its rack, which needs one of each
        ("cpu-capacity", Measured(0, 0)),
    ],
)
def test_excess_by_hand(goal, expected):
    assert Meter(LAYOUT, LOADS, PlanRequest())(goal, state_of(LAYOUT), 0.1) == expected


def plan_of(*moves: PartitionMove, layout: ClusterLayout = LAYOUT) -> ReassignmentPlan:
    return ReassignmentPlan(id="", cluster_id="test", layout=layout.fingerprint(), moves=moves)


def move(partition: int, before: tuple[int, ...], after: tuple[int, ...], leader_after: int | None = None):
    return PartitionMove(
        topic="t",
        partition=partition,
        before=before,
        after=after,
        leader_before=before[0],
        leader_after=leader_after or after[0],
        size_bytes=1,
        goals=(),
    )


def test_a_plan_is_carried_out():
    after = layout_after(LAYOUT, plan_of(move(0, (1, 2), (3, 2))))
    assert after.topics["t"].partitions[0].replicas == (3, 2)
    assert state_of(after) == state_after(LAYOUT, plan_of(move(0, (1, 2), (3, 2))))


@pytest.mark.parametrize(
    ("request_", "moves", "said"),
    [
        (PlanRequest(), [move(0, (1, 2), (3, 2))], ""),
        (PlanRequest(excluded_topics=("t",)), [move(0, (1, 2), (3, 2))], "is to stay, and moves"),
        (PlanRequest(), [move(2, (1, 3), (1, 2))], "more replicas in one rack"),
        (PlanRequest(), [move(0, (1, 2), (3,))], "has 1 replicas, had 2"),
        (PlanRequest(), [move(0, (1, 2), (3, 3))], "twice on a broker"),
        (PlanRequest(), [move(0, (1, 2), (3, 2), 1)], "led from outside"),
        (PlanRequest(), [move(0, (2, 1), (3, 1))], "the plan has it at"),
        (PlanRequest(), [move(0, (1, 2), (1, 2))], "nothing changes"),
        (PlanRequest(brokers=(1, 2)), [move(0, (1, 2), (3, 2))], "not all allowed"),
        (PlanRequest(mode=PlanMode.ADD_BROKERS, subjects=(2,)), [move(0, (1, 2), (3, 2))], "not all new"),
        (PlanRequest(mode=PlanMode.REMOVE_BROKERS, subjects=(3,)), [], "still on brokers that leave"),
        (PlanRequest(mode=PlanMode.DEMOTE, subjects=(1,)), [move(0, (1, 2), (3, 2))], "data moves"),
        (PlanRequest(), [move(1, (1, 2), (3, 2)), move(0, (1, 2), (3, 2))], "not in order"),
    ],
)
def test_what_no_plan_may_do_is_found(request_, moves, said):
    result = list(violations(LAYOUT, request_, plan_of(*moves)))
    assert (not said and not result) or any(said in line for line in result)


# --- bounds -----------------------------------------------------------------------------------------------------------

ITEMS = st.lists(st.builds(Item, st.integers(0, 20), st.integers(0, 50)), max_size=7)


def subsets(items):
    return chain.from_iterable(combinations(items, size) for size in range(len(items) + 1))


@given(ITEMS, st.integers(0, 60))
def test_no_choice_of_copies_is_cheaper_than_the_bound(items, need):
    costs = [sum(i.cost for i in some) for some in subsets(items) if sum(i.value for i in some) >= need]
    bound = least_cost(items, need)
    if costs:
        assert bound <= min(costs)
    else:
        assert bound <= sum(item.cost for item in items)


@given(ITEMS.map(lambda items: [Item(1, item.cost) for item in items]), st.integers(0, 7))
def test_of_single_replicas_the_bound_is_exact(items, need):
    if need <= len(items):
        assert least_cost(items, need) == sum(sorted(item.cost for item in items)[:need])


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 30), max_size=4), st.integers(0, 30)), max_size=3), st.integers(0, 100)
)
def test_the_smallest_sum_is_the_smallest(groups, need):
    """Of each broker's replicas some, with so much at least from each, and from all together."""
    choices = product(*([some for some in subsets(sizes_) if sum(some) >= gone] for sizes_, gone in groups))
    sums = [sum(map(sum, chosen)) for chosen in choices]
    enough = [item for item in sums if item >= need]
    assert smallest_sum(groups, need) == (min(enough) if enough else max(need, sum(gone for _, gone in groups)))


def test_of_many_sizes_only_the_need_counts():
    assert smallest_sum([([10] * 20, 0)], 15) == 15
    assert smallest_sum([([10] * 20, 17), ([10], 3)], 15) == 20


def test_what_a_removal_copies():
    request = PlanRequest(mode=PlanMode.REMOVE_BROKERS, subjects=(2,))
    assert bytes_of_removal(LAYOUT, LOADS, request) == 170
    assert bytes_of_removal(LAYOUT, LOADS, PlanRequest(mode=PlanMode.REMOVE_BROKERS, subjects=(2, 3))) == 200
    excluded = PlanRequest(mode=PlanMode.REMOVE_BROKERS, subjects=(2,), excluded_topics=("t",))
    assert bytes_of_removal(LAYOUT, LOADS, excluded) == 0


NEW = PlanRequest(mode=PlanMode.ADD_BROKERS, subjects=(3,))


def moved(layout: ClusterLayout, **after: tuple[int, ...]) -> dict:
    return state_of(layout) | {("t", int(key[1:])): (replicas, replicas[0]) for key, replicas in after.items()}


def test_what_a_new_broker_needs_by_goal():
    layout = small((1, 2), (1, 2), (2, 1), (2, 1), racks="abc")
    after = moved(layout, p0=(3, 2), p1=(1, 3))
    shares = {"disk": 0.1, "replicas": 0.0, "leaders": 0.0, "rack-awareness": 0.0}
    result = bytes_for_new(layout, sizes(100, 50, 30, 20), NEW, after, shares)
    # Disk: 400 in all, 120 to 146 each. The old ones have 200, go to 100 and 150 and must lose 54 and 50: of 100, 50, 30 and
    # 20 these are 70 and 50, and that is enough for the new one. Replicas: 2.67 each, low 2: the two smallest. Leaders: 1.33,
    # low 1: the smallest.
    assert result == {"disk": 120, "replicas": 50, "leaders": 20, "rack-awareness": 0}


def test_the_bound_is_for_what_the_plan_has_reached():
    layout = small((1, 2), (1, 2), (2, 1), (2, 1), racks="abc")
    loads = sizes(100, 50, 30, 20)
    assert bytes_for_new(layout, loads, NEW, moved(layout), {"disk": 0.1, "leaders": 0.0}) == {"disk": 0, "leaders": 0}
    assert bytes_for_new(layout, loads, NEW, moved(layout, p2=(3, 1)), {"disk": 0.1})["disk"] == 30


def test_an_indivisible_replica_counts_whole():
    layout = small((1,), (2,), (1,))
    assert bytes_for_new(layout, sizes(100, 100, 100), NEW, moved(layout, p0=(3,)), {"disk": 0.1})["disk"] == 100


def test_spreading_over_racks_copies_what_it_spreads():
    layout = small((1, 2), (1, 3))
    result = bytes_for_new(layout, sizes(100, 50), NEW, moved(layout, p0=(1, 3)), {"rack-awareness": 0.0})
    assert result == {"rack-awareness": 100}


def test_spreading_and_losing_are_apart_where_they_are_of_different_brokers():
    layout = small((1, 2), (4, 5), (4,), (4,), racks="aabcd")
    loads = sizes(10, 40, 100, 60)
    request = PlanRequest(mode=PlanMode.ADD_BROKERS, subjects=(3,))
    after = moved(layout, p0=(1, 3), p2=(3,))
    # 260 in all, 52 each, 46 to 58 in range; broker 4 has 200 and goes to 100: what it loses is at least 100, the 10 apart.
    result = bytes_for_new(layout, loads, request, after, {"rack-awareness": 0.0, "disk": 0.1})
    assert result == {"rack-awareness": 10, "disk": 110}


# --- clusters ---------------------------------------------------------------------------------------------------------


def test_random_clusters_are_what_they_say():
    seen = set()
    for seed in range(120):
        cluster = random_cluster(seed)
        used = {replica for _, part in cluster.layout.partitions() for replica in part.replicas}
        alive = {broker.id for broker in cluster.layout.brokers if broker.alive}
        assert used <= {broker.id for broker in cluster.layout.brokers}
        assert not used & set(cluster.empty)
        assert {*cluster.empty, *cluster.leaving} <= alive
        assert not alive & set(cluster.dead)
        for _, part in cluster.layout.partitions():
            assert len(set(part.replicas)) == len(part.replicas) <= len(alive - set(cluster.leaving))
            assert part.leader is None or part.leader in alive
        seen |= {cluster.racks, cluster.placed, cluster.holes, bool(cluster.empty), bool(cluster.dead)}
        assert random_cluster(seed) == cluster
        layout, loads = shuffled(cluster, 1)
        assert state_of(layout) == state_of(cluster.layout)
        assert loads == cluster.loads
    assert len(seen) == 4 + 4 + 4 + 2


def test_the_big_cluster_is_whole_at_any_size():
    layout, loads = big_cluster(1, replicas=3_000, brokers=20, racks=5, topics=40, empty=2)
    parts = [part for _, part in layout.partitions()]
    assert sum(len(part.replicas) for part in parts) >= 3_000
    assert all(len(set(part.replicas)) == len(part.replicas) for part in parts)
    assert len(loads.of) == len(parts)
    assert not {19, 20} & {replica for part in parts for replica in part.replicas}
    assert all(len({replica % 5 for replica in part.replicas}) == len(part.replicas) for part in parts)
