"""No bundle is left behind unsaid, whatever fails, however late reports come."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from shedders.model.cluster import Policies
from tests.support.drains import Twin, make_cluster, plan

NAMES = [f"t/n/0x{n:08x}_0x{n + 1:08x}" for n in range(40)]


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 12), min_size=2, max_size=5),
    rate_per_s=st.sampled_from([0.7, 3.0, 20.0, 1_000.0]),
    ahead_max=st.integers(1, 6),
    report_s=st.sampled_from([0.0, 1.0, 20.0, 10_000.0]),
    move_s=st.sampled_from([0.0, 0.4, 3.0]),
    failing=st.sets(st.integers(0, 20), max_size=8),
    pinned=st.sets(st.integers(0, 11), max_size=4),
    force=st.booleans(),
    at_once=st.integers(1, 5),
)
def test_every_bundle_is_elsewhere_or_said(
    counts: list[int],
    rate_per_s: float,
    ahead_max: int,
    report_s: float,
    move_s: float,
    failing: set[int],
    pinned: set[int],
    force: bool,
    at_once: int,
) -> None:
    policies = Policies(pins={NAMES[number]: "b1" for number in pinned}, cordons={"b1": "drain"})
    cluster = make_cluster({f"b{n + 1}": count for n, count in enumerate(counts)}, policies=policies)
    before = {name: bundle.owner for name, bundle in cluster.bundles.items()}
    drain = plan(rate_per_s=rate_per_s, ahead_max=ahead_max, force=force, moves_at_once=at_once, attempts_max=30)
    twin = Twin(cluster, drain, move_s=move_s, report_s=report_s, fails=lambda number: number in failing)

    step = twin.run(within_s=100_000.0)

    owners = {name: bundle.owner for name, bundle in twin.cluster.bundles.items()}
    kept = {NAMES[number] for number in pinned if before.get(NAMES[number]) == "b1"} if not force else set()
    assert {name for name, owner in owners.items() if owner == "b1"} == kept
    assert {bundle.name for bundle in step.left} == kept
    assert {bundle.reason for bundle in step.left} <= {"pin"}
    assert {name: owner for name, owner in owners.items() if before[name] != "b1"} == {
        name: owner for name, owner in before.items() if owner != "b1"
    }, "nobody else's bundles are touched"
    assert drain.moved == sum(owner == "b1" for owner in before.values()) - len(kept)
    assert not drain.under_way
    if report_s < drain.receivers._report_wait_s:
        assert twin.most_ahead <= ahead_max


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 30), order=st.randoms(use_true_random=False), force=st.booleans())
def test_the_same_plan_whatever_the_order_of_dicts(count: int, order: object, force: bool) -> None:
    cluster = make_cluster({"b1": count, "b2": 1, "b3": 2}, weights=lambda n: 1e6 * (n % 3))

    def shuffled(document: dict) -> dict:
        items = list(document.items())
        order.shuffle(items)  # type: ignore[attr-defined]
        return dict(items)

    other = replace(cluster, brokers=shuffled(dict(cluster.brokers)), bundles=shuffled(dict(cluster.bundles)))
    twin, two = Twin(cluster, plan(force=force)), Twin(other, plan(force=force))
    twin.run()
    two.run()
    assert twin.begun == two.begun
