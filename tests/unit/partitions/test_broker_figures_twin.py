"""The planner's figures of brokers are those of plain sums, on random clusters."""

from dataclasses import replace

import pytest

from shedders.kafka_rebalance.planning.planner import broker_changes, plan_partitions
from tests.support.partition_cases import requests
from tests.support.partition_clusters import random_cluster


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_both_say_the_same(seed: int) -> None:
    cluster = random_cluster(seed)
    for request in requests(cluster):
        plan = plan_partitions(cluster.layout, cluster.loads, request)
        sound = {key: load for key, load in cluster.loads.of.items() if load.completeness >= request.completeness_min}
        loads = replace(cluster.loads, of=sound)
        assert plan.brokers == broker_changes(cluster.layout, loads, plan.moves)
