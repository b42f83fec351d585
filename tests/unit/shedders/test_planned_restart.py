"""Which brokers take the bundles in a rolling restart: the settled ones first, up to a bound, and never against policies."""

from collections import Counter

import pytest

from shedders.decision.planned_restart import ALLOWANCE, PlannedRestart, RestartDestinations
from shedders.model.cluster import IsolationPolicy, Policies
from tests.support.restarts import RESTART, cluster_of, restart


def names(count: int) -> list[str]:
    return [f"b{number:03d}" for number in range(1, count + 1)]


@pytest.mark.parametrize(("brokers", "each"), [(3, 20), (10, 100), (100, 10)])
def test_each_bundle_moves_once_and_those_of_the_first_broker_twice(brokers: int, each: int) -> None:
    order = names(brokers)
    bundles = brokers * each
    done = restart(cluster_of({name: [0.3 / each] * each for name in order}), order)
    assert len(done.moves) == bundles + each, "B + B/N"
    assert max(Counter(bundle for bundle, _, _ in done.moves).values()) == 2
    for step, name in enumerate(order[1:], 1):
        receivers = {destination for _, source, destination in done.moves if source == name}
        assert receivers <= set(order[:step]), f"{name}: only to those that are done"
    assert max(done.peaks) <= ALLOWANCE
    held = Counter(bundle.owner for bundle in done.cluster.bundles.values())
    assert held[order[-1]] == 0, "nothing is left to move where the last one comes back"
    assert max(held.values()) - min(held[name] for name in order[:-1]) <= max(2, each // 5)


def test_drains_that_know_nothing_of_each_other_move_more() -> None:
    order = names(10)
    cluster = cluster_of({name: [0.03] * 10 for name in order})
    assert len(restart(cluster, order, planned=False).moves) > len(restart(cluster, order).moves)


def test_a_spare_broker_makes_it_once_each() -> None:
    order = names(4)
    done = restart(cluster_of({"spare": [], **{name: [0.05] * 10 for name in order}}), order)
    assert len(done.moves) == 40
    assert {destination for _, source, destination in done.moves if source == order[0]} == {"spare"}


def test_whoever_has_enough_load_takes_no_more_and_the_decision_names_why() -> None:
    """A broker twice as large is emptied: what a small one that is done cannot hold goes to those that wait."""
    sizes = {"b1": 1.0, "b2": 3.0, "b3": 1.0, "b4": 1.0}
    cluster = cluster_of({"b1": [0.02] * 10, "b2": [0.02] * 30, "b3": [0.02] * 10, "b4": [0.02] * 10}, sizes=sizes)
    done = restart(cluster, ["b1", "b2", "b3", "b4"], sizes=sizes)
    of_large = Counter(destination for _, source, destination in done.moves if source == "b2")
    assert min(of_large["b3"], of_large["b4"]) > 0
    assert max(done.taken) <= ALLOWANCE
    whys = [why for move, why in zip(done.moves, done.whys, strict=True) if move[1:] == ("b2", "b3")]
    assert all("still to be restarted: those that were restarted have enough load" in why for why in whys)
    assert any("is not to be restarted any more" in why for why in done.whys)


def test_policies_hold_at_all_times() -> None:
    """Bundles of one namespace may only be on two of four brokers; a settled one that may not take them gets none."""
    policies = Policies(isolation=(IsolationPolicy("x", ("own/n",), ("b3", "b4")),))
    cluster = cluster_of(
        {"b1": [0.03] * 4, "b2": [0.03] * 4, "b3": [0.03] * 4, "b4": [0.03] * 4},
        policies=policies,
        spaces=dict.fromkeys((8, 9, 12), "own/n"),
    )
    done = restart(cluster, ["b1", "b2", "b3", "b4"])
    own = [move for move in done.moves if move[0].startswith("own/n/")]
    assert {destination for _, _, destination in own} <= {"b3", "b4"}
    assert len(done.moves) == 16 + 4 + 2, "those of the namespace on b3 have only b4 to go to, and move again"
    assert not any(done.left.values())


def test_a_bundle_that_nobody_may_take_stays() -> None:
    cluster = cluster_of(
        {"b1": [0.1], "b2": [0.1]}, policies=Policies(isolation=(IsolationPolicy("x", ("t/n",), ("b1",)),))
    )
    assert [len(left) for left in restart(cluster, ["b1", "b2"]).left.values()] == [1, 0]


def test_a_command_that_continues_knows_who_is_done() -> None:
    order = names(5)
    cluster = cluster_of({name: [0.03] * 10 for name in order})
    first = restart(cluster, order[:2])
    rest = restart(first.cluster, order[2:], done=order[:2])
    whole = restart(cluster, order)
    assert {move[2] for move in rest.moves} <= set(order[:4])
    assert len(rest.moves) <= len(whole.moves)


def test_brokers_without_reports_are_not_left_out() -> None:
    cluster = cluster_of({"b1": [0.1], "b2": [0.1], "b3": [0.1]})
    blind = PlannedRestart(RESTART, frozenset({"b1", "b2", "b3"}), frozenset({"b3"}))
    unknown = {name: broker.__class__(name) for name, broker in cluster.brokers.items()}
    chosen = RestartDestinations(cluster.__class__(unknown, cluster.bundles), blind, "b1").of(
        cluster.bundles["t/n/0x00000000_0x00000001"], ["b2", "b3"], {}
    )
    assert chosen.names == ["b3"]


@pytest.mark.parametrize("wrong", [{"done": "b1"}, {"done": [1]}, {"done": [], "brokers": None}])
def test_arguments_of_another_form_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is a list of at most"):
        PlannedRestart.parse({"restart": RESTART, "brokers": ["b1"], **wrong})


@pytest.mark.parametrize("args", [{}, {"restart": RESTART, "brokers": ["b1"]}, {"done": [], "brokers": []}])
def test_a_drain_by_itself_or_of_an_older_command_is_no_step(args: dict[str, object]) -> None:
    assert PlannedRestart.parse(args) is None
