"""The virtual cluster: what it keeps is what a fresh count gives, and each move's inverse restores everything."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shedders.kafka_rebalance.planning.virtual_cluster import (
    NOBODY,
    AddReplica,
    Measure,
    MoveReplica,
    RemoveReplica,
    Reorder,
    Swap,
    SwitchLeader,
    VirtualCluster,
    between,
)
from tests.support.partition_clusters import random_cluster

ARRAYS = ("replicas", "leader", "sums", "topic_replicas", "topic_leaders", "as_leader", "as_follower")


def snapshot(cluster: VirtualCluster):
    held = [cluster.on_broker(item).tolist() for item in range(len(cluster.broker_ids))]
    return [getattr(cluster, name).copy() for name in ARRAYS], held


def same(layout, other) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(layout[0], other[0], strict=True)) and layout[1] == other[1]


def any_move(cluster: VirtualCluster, dice: random.Random):
    """Some move that can be made, or None."""
    row = dice.randrange(cluster.size)
    here = cluster.holders(row)
    away = [item for item in range(len(cluster.broker_ids)) if item not in here]
    place = dice.randrange(len(here))
    kind = dice.randrange(6)
    if kind == 0:
        return SwitchLeader(row, dice.choice(here))
    if kind == 1 and away:
        return MoveReplica(row, place, dice.choice(away))
    if kind == 2:
        other = dice.randrange(cluster.size)
        there = cluster.holders(other)
        also = dice.randrange(len(there))
        if other != row and here[place] not in there and there[also] not in here:
            return Swap(row, place, other, also)
    if kind == 3 and away and len(here) < cluster.replicas.shape[1]:
        return AddReplica(row, dice.randrange(len(here) + 1), dice.choice(away))
    if kind == 4 and len(here) > 1 and here[place] != cluster.leader[row]:
        return RemoveReplica(row, place)
    if kind == 5:
        return Reorder(row, place, dice.randrange(len(here)))
    return None


def counted(cluster: VirtualCluster):
    """The sums and counts, one replica after the other."""
    sums = {(measure, broker): 0 for measure in Measure for broker in range(len(cluster.broker_ids))}
    replicas, leaders = {}, {}
    for row in range(cluster.size):
        disk, taken, given, cpu = (int(item) for item in cluster.load[row])
        here = cluster.holders(row)
        topic = int(cluster.topic_of[row])
        for broker in here:
            leads = broker == cluster.leader[row]
            replicas[topic, broker] = replicas.get((topic, broker), 0) + 1
            leaders[topic, broker] = leaders.get((topic, broker), 0) + leads
            for measure, value in {
                Measure.REPLICAS: 1,
                Measure.LEADERS: int(leads),
                Measure.DISK: disk,
                Measure.LEADER_IN: taken * leads,
                Measure.LEADER_OUT: given * leads,
                Measure.NET_IN: taken,
                Measure.NET_OUT: (given + taken * (len(here) - 1)) * leads,
                Measure.CPU: cpu if leads else cpu // 3,
            }.items():
                sums[measure, broker] += value
    return sums, replicas, leaders


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_a_move_and_its_inverse_change_nothing_and_sums_are_those_of_a_fresh_count(seed: int) -> None:
    small = random_cluster(seed, brokers_max=8)
    cluster, dice = VirtualCluster(small.layout, small.loads, room=4), random.Random(seed)
    done, before = [], snapshot(cluster)
    for _ in range(30):
        move = any_move(cluster, dice)
        if move is None:
            continue
        now = snapshot(cluster)
        inverse = cluster.apply(move)
        assert cluster.apply(inverse) == move
        assert same(snapshot(cluster), now)
        done.append(cluster.apply(move))
    sums, replicas, leaders = counted(cluster)
    assert {key: int(cluster.sums[key]) for key in sums} == sums
    assert int(cluster.topic_replicas.sum()) == sum(replicas.values())
    assert all(int(cluster.topic_replicas[key]) == value for key, value in replicas.items())
    assert all(int(cluster.topic_leaders[key]) == value for key, value in leaders.items())
    for broker in range(len(cluster.broker_ids)):
        rows = cluster.on_broker(broker)
        assert rows.tolist() == [row for row in range(cluster.size) if broker in cluster.holders(row)]
        assert cluster.on_broker(broker) is rows
    for inverse in reversed(done):
        cluster.apply(inverse)
    assert same(snapshot(cluster), before)
    assert (cluster.replicas >= NOBODY).all()


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_the_way_from_one_list_to_another_leads_there(seed: int) -> None:
    small = random_cluster(seed, brokers_max=8)
    cluster, dice = VirtualCluster(small.layout, small.loads), random.Random(seed)
    brokers = range(len(cluster.broker_ids))
    for row in range(cluster.size):
        here, leader = cluster.holders(row), int(cluster.leader[row])
        there = dice.sample(brokers, len(here))
        leads = dice.choice(there)
        for move in between(row, here, leader, there, leads):
            cluster.apply(move)
        assert (cluster.holders(row), int(cluster.leader[row])) == (there, leads)
