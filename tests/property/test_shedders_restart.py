"""A rolling restart moves as few bundles as any can, onto brokers that stay within the bound, and breaks no policy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from shedders.decision.planned_restart import ALLOWANCE
from shedders.model.cluster import IsolationPolicy, Policies
from tests.support.restarts import cluster_of, restart


def fewest_moves(owner: str, brokers: Sequence[str], order: Sequence[str]) -> int:
    """The twin: of all ways that a bundle can go, the one with the fewest moves."""

    @cache
    def from_(step: int, at: str) -> int:
        if step == len(order):
            return 0
        others = [name for name in brokers if name != order[step]]
        stays = [from_(step + 1, at)] if at != order[step] else []
        return min(stays + [1 + from_(step + 1, name) for name in others])

    return from_(0, owner)


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(0, 8), min_size=3, max_size=6),
    spare=st.booleans(),
    turn=st.randoms(use_true_random=False),
)
def test_no_restart_moves_fewer_where_every_broker_has_room(counts: list[int], spare: bool, turn: object) -> None:
    names = [f"b{number}" for number in range(len(counts))]
    # The brokers that do not restart could hold everything.
    cluster = cluster_of(
        {name: [0.01] * count for name, count in zip(names, counts, strict=True)} | ({"spare": []} if spare else {}),
        sizes=dict.fromkeys(names, 1.0),
    )
    order = sorted(names)
    turn.shuffle(order)  # type: ignore[attr-defined]
    done = restart(cluster, order, sizes={})
    least = sum(
        fewest_moves(str(bundle.owner), sorted(cluster.brokers), tuple(order)) for bundle in cluster.bundles.values()
    )
    unsettled = sum("still to be restarted: those that were" in why or "over " in why for why in done.whys)
    first = sum(bundle.owner == order[0] for bundle in cluster.bundles.values())
    assert least == len(cluster.bundles) + (0 if spare else first)
    assert least <= len(done.moves) <= least + unsettled, "more only where those that were restarted had enough load"
    assert not any(done.left.values())


@settings(max_examples=40, deadline=None)
@given(
    brokers=st.integers(4, 7),
    each=st.integers(5, 12),
    heavy=st.lists(st.floats(0.001, 0.03), min_size=1, max_size=60),
    primaries=st.sampled_from([0, 2]),
)
def test_loads_stay_within_the_bound_and_policies_hold(
    brokers: int, each: int, heavy: list[float], primaries: int
) -> None:
    order = [f"b{number}" for number in range(brokers)]
    traffic = {
        name: [heavy[(index * each + turn) % len(heavy)] for turn in range(each)] for index, name in enumerate(order)
    }
    # Two brokers are for one namespace alone, and the others for the other.
    own = dict.fromkeys(range(primaries * each), "own/n")
    isolation = (IsolationPolicy("x", ("own/n",), tuple(order[:primaries])),) if primaries else ()
    policies = Policies(isolation=isolation)
    done = restart(cluster_of(traffic, policies=policies, spaces=own), order)
    for bundle, source, destination in done.moves:
        assert source != destination
        assert bundle.startswith("own/n/") == (destination in order[:primaries])
    assert not any(done.left.values())
    settled: set[str] = set()
    for step, name in enumerate(order):
        moves = [(move, why) for move, why in zip(done.moves, done.whys, strict=True) if move[1] == name]
        for (_, _, destination), why in moves:
            assert (destination in settled) == ("not to be restarted any more" in why) or "over " in why
        if all("over " not in why for _, why in moves):
            assert done.taken[step] <= ALLOWANCE + 0.01
        settled.add(name)


@settings(max_examples=40, deadline=None)
@given(
    brokers=st.integers(3, 7),
    each=st.integers(3, 10),
    dies=st.dictionaries(st.integers(0, 6), st.integers(0, 6), max_size=2),
    command=st.integers(0, 6),
)
def test_a_broker_that_dies_in_between_costs_no_more_than_its_bundles(
    brokers: int, each: int, dies: dict[int, int], command: int
) -> None:
    """And so does a command that is killed at any step, whose successor reads who is done."""
    order = [f"b{number}" for number in range(brokers)]
    cluster = cluster_of({name: [0.02] * each for name in order})
    deaths = {step: order[number % brokers] for step, number in dies.items()}
    cut = command % brokers
    first = restart(cluster, order[:cut], done=(), dies=deaths, every=order)
    rest = restart(
        first.cluster,
        order[cut:],
        done=order[:cut],
        dies={step - cut: name for step, name in deaths.items() if step >= cut},
        every=order,
    )
    moves = [*first.moves, *rest.moves]
    assert not any([*first.left.values(), *rest.left.values()])
    assert sorted(bundle.name for bundle in rest.cluster.bundles.values()) == sorted(cluster.bundles)
    repaired = first.repaired + rest.repaired
    assert len(moves) <= brokers * each + each + repaired + brokers, "each of theirs may have to move once more"
    for settled, drained in [(order[:step], name) for step, name in enumerate(order)]:
        receivers = {destination for _, source, destination in moves if source == drained}
        assert not settled or receivers <= set(settled) or repaired
