"""Placements of the modular manager on random clusters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shedders.model.cluster import Bundle, Cluster
from shedders.placement.least_long_term_rate import LeastLongTermMessageRate
from shedders.placement.least_resource_usage import LeastResourceUsage, ModularLeastResourceUsage
from shedders.placement.round_robin import RoundRobin
from shedders.shedding.avg import AvgShedder
from tests.support.uneven import clusters, shuffled

ALL = (LeastResourceUsage, ModularLeastResourceUsage, LeastLongTermMessageRate, RoundRobin, AvgShedder)
each = pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.name)


def storm(cls: type, cluster: Cluster, upstream: bool, count: int) -> list[tuple]:
    strategy, memory = cls(cls.Settings(upstream=upstream)), {}
    booked: dict[str, list[str]] = {}
    answers = []
    for number in range(count):
        answer = strategy.place(
            cluster, Bundle(f"t/x/0x{number:08x}_0xffffffff"), list(cluster.broker_names), booked, memory
        )
        memory = dict(answer.memory)
        booked.setdefault(answer.broker, []).append(answer.bundle)
        answers.append((answer.broker, list(answer.best), dict(answer.scores), repr(answer.memory)))
    return answers


@each
@settings(deadline=None)
@given(cluster=clusters(), upstream=st.booleans(), seed=st.integers(0, 99))
def test_order_does_not_matter_and_the_choice_is_one_of_the_best(
    cls: type, cluster: Cluster, upstream: bool, seed: int
) -> None:
    result = storm(cls, cluster, upstream, 5)
    assert result == storm(cls, shuffled(cluster, seed), upstream, 5)
    for broker, best, _, _ in result:
        assert broker in best
        assert best == sorted(best)
        assert set(best) <= set(cluster.brokers)


@each
@settings(deadline=None)
@given(cluster=clusters(), count=st.integers(1, 12))
def test_a_strategy_that_is_asked_again_and_a_new_one_agree(cls: type, cluster: Cluster, count: int) -> None:
    """What it keeps between two questions only saves work."""
    strategy, memory = cls(cls.Settings()), {}
    booked: dict[str, list[str]] = {}
    for number in range(count):
        bundle = Bundle(f"t/x/0x{number:08x}_0xffffffff")
        kept = strategy.place(cluster, bundle, cluster.broker_names, booked, memory)
        fresh = cls(cls.Settings()).place(cluster, bundle, cluster.broker_names, booked, memory)
        assert (kept.broker, kept.scores, kept.memory) == (fresh.broker, fresh.scores, fresh.memory)
        memory = dict(kept.memory)
        # Lists that shrink again, too.
        booked.setdefault(kept.broker, []).append(bundle.name)
        if number % 5 == 4:
            del booked[kept.broker][0]


@settings(deadline=None)
@given(clusters())
def test_the_least_used_broker_is_never_passed_over_for_one_above_the_average(cluster: Cluster) -> None:
    answer = LeastResourceUsage(LeastResourceUsage.Settings()).place(
        cluster, Bundle("t/x/0x0_0x1"), cluster.broker_names, {}, {}
    )
    if (
        answer.broker in cluster.brokers
        and set(answer.scores) & set(cluster.brokers)
        and answer.why.startswith(("one of", "nobody is"))
    ):
        assert answer.scores[answer.broker] <= sum(answer.scores.values()) / len(answer.scores) + 1e-9
