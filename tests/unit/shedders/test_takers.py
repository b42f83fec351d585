"""Who may get a bundle that is shed: somebody with a usable report who ends below where the source stands."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from loaddata.model.broker_load import BrokerLoad
from loaddata.model.bundle_load import BundleStats
from shedders.decision.dry_run import Decision, decide
from shedders.decision.placing import Pipeline
from shedders.filters.destinations import Takers, describe
from shedders.filters.rules import FilterSettings
from shedders.model.cluster import Broker, Bundle, Cluster
from shedders.model.plan import BundleMove, Label, Placed, Plan, Reason
from tests.support.live_balancer import First, Scripted, key, load

HOT = Bundle(key(0), "b1", stats=BundleStats(50, 50, 50_000, 50_000))


def report(usage: float, rate: float = 1_000, throughput: float = 1e6) -> BrokerLoad:
    return replace(load(usage, rate), msg_throughput_in=throughput)


def cluster(**loads: Any) -> Cluster:
    brokers = {"b1": Broker("b1", report(0.8)), "b2": Broker("b2", report(0.1))}
    brokers |= {name: load if isinstance(load, Broker) else Broker(name, load) for name, load in loads.items()}
    return Cluster(brokers, {HOT.name: HOT, key(1): Bundle(key(1), "b1", stats=HOT.stats)})


# A tenth of the source's traffic goes along, so a tenth of its load.
@pytest.mark.parametrize(
    ("taker", "why"),
    [
        (report(0.1), None),
        (report(0.71), None),
        (report(0.72), "it would have 0.8, and b1 has 0.8"),
        (report(0.95), "it would have 1.03, and b1 has 0.8"),
        (None, "no-load-data: it has reported no load"),
        (Broker("b3", report(0.1), load_lapsed=True), "lapsed: "),
        (Broker("b3", report(0.1), load_age_s=101), "outdated: its report is 101 s old, more than 100 s"),
        (Broker("b3", replace(report(0.1), msg_rate_in=float("nan"))), "bad-load: "),
    ],
)
def test_who_may_be_chosen(taker: Any, why: str | None) -> None:
    result = Takers(cluster(b3=taker), 100).why_not(HOT, "b1", "b3")
    assert (result is None) if why is None else (result or "").startswith(why)


def test_never_where_it_comes_from_nor_somebody_unknown() -> None:
    takers = Takers(cluster(), 100)
    assert takers.why_not(HOT, "b1", "b1") == "it is the source"
    assert takers.why_not(HOT, "b1", "b9") == "gone: it is not registered"
    assert takers.open_to(HOT, "b1") == (["b2"], {"b1": "it is the source"})


def test_what_goes_there_counts_for_those_after_it() -> None:
    takers = Takers(cluster(b2=report(0.65)), 100)
    assert takers.why_not(HOT, "b1", "b2") is None
    takers.book(HOT, "b1", "b2")
    assert "it would have 0.81" in (takers.why_not(HOT, "b1", "b2") or "")


def test_the_strategys_own_scores_count_where_it_gives_them_to_both() -> None:
    assert Takers(cluster(), 100, {"b1": 3.0, "b2": 4.0}).why_not(HOT, "b1", "b2") is not None
    assert Takers(cluster(), 100, {"b1": 3.0, "b2": 2.0}).why_not(HOT, "b1", "b2") is None
    assert Takers(cluster(), 100, {"b1": 3.0, "b2": float("inf")}).why_not(HOT, "b1", "b2") is None
    assert Takers(cluster(), 100, {"b2": 4.0}).why_not(HOT, "b1", "b2") is None


@pytest.mark.parametrize(
    ("rate", "throughput", "share"), [(1_000, 1e6, 0.1), (200, 1e6, 0.5), (1_000, 1e5, 1.0), (0, 1e6, 0.1), (0, 0, 1.0)]
)
def test_a_bundle_weighs_as_much_as_its_larger_share(rate: float, throughput: float, share: float) -> None:
    takers = Takers(cluster(b1=report(1.0, rate, throughput), b2=report(0.1)), 100)
    takers.book(HOT, "b1", "b2")
    assert takers._added["b2"] == pytest.approx(share)


def test_a_source_that_is_gone_has_nothing_to_compare_with() -> None:
    assert Takers(cluster(), 100).why_not(replace(HOT, owner="gone"), "gone", "b2") is None


def test_not_everybody_is_named() -> None:
    faults: Mapping[str, str] = {f"b{number}": "full" for number in range(8)}
    assert describe(faults) == "b0 (full), b1 (full), b2 (full), b3 (full), b4 (full) and 3 more"


# --- in a decision ----------------------------------------------------------------------------------------------------


class Chooses(First):
    """A placement that names whom the test says, whoever is offered, or the last candidate."""

    def __init__(self, whom: str | None = None) -> None:
        super().__init__()
        self.whom = whom
        self.offered: list[list[str]] = []

    def place(self, cluster: Any, bundle: Any, candidates: Any, booked: Any, memory: Any) -> Placed:
        self.offered.append(list(candidates))
        return Placed(bundle.name, self.whom or candidates[-1], "as told")


def decide_moves(base: Cluster, *moves: BundleMove, placing: Chooses | None = None, **filters: Any) -> Decision:
    plan = lambda cluster, memory: list(moves)  # noqa: E731 - as `Scripted` wants it
    return decide(base, lambda _: Scripted(plan), {}, Pipeline(placing or Chooses(), FilterSettings(**filters)))


def move(number: int = 0, destination: str | None = None, source: str = "b1", **fields: Any) -> BundleMove:
    return BundleMove(key(number), source, destination, Reason.OVERLOADED, 1.0, "told", **fields)


def test_what_a_strategy_leaves_open_goes_only_where_load_is_known_to_be_less() -> None:
    lapsed, old = Broker("b3", report(0.0), load_lapsed=True), Broker("b4", report(0.0), load_age_s=9_999)
    placing = Chooses()
    decision = decide_moves(cluster(b3=lapsed, b4=old, b5=Broker("b5"), b6=report(0.9)), move(), placing=placing)
    assert [move.destination for move in decision.moves] == ["b2"]
    assert placing.offered == [["b2"]]


def test_nobody_is_asked_where_nobody_is_left() -> None:
    (check,) = decide_moves(cluster(b2=report(0.95)), move()).checked
    assert check.refused == "no-taker: b1 (it is the source), b2 (it would have 1.03, and b1 has 0.8)"


def test_each_counts_for_those_after_it() -> None:
    decision = decide_moves(cluster(b2=report(0.65)), move(0), move(1))
    assert [check.refused is None for check in decision.checked] == [True, False]


def test_upstreams_placement_is_asked_about_everybody_and_its_answer_looked_at() -> None:
    placing = Chooses("b3")
    (check,) = decide_moves(cluster(b3=report(0.95)), move(), placing=placing, upstream=True).checked
    assert placing.offered == [["b1", "b2", "b3"]]
    assert (check.refused or "").startswith("no-taker: the placement chose b3: it would have 1.03")


def test_a_destination_that_is_named_needs_a_usable_report() -> None:
    base = cluster(b3=Broker("b3"))
    (check,) = decide_moves(base, move(0, "b3")).checked
    assert check.refused == "no-usable-report: b3: no-load-data: it has reported no load"
    assert check.planned == "b3"


def test_how_old_a_report_may_be_is_a_setting() -> None:
    base = cluster(b2=Broker("b2", report(0.1), load_age_s=50))
    assert decide_moves(base, move(0, "b2")).moves
    assert not decide_moves(base, move(0, "b2"), taker_max_age_s=49).moves


def test_an_exchange_with_a_broker_whose_load_is_not_known_goes_not_at_all() -> None:
    base = cluster(b2=Broker("b2", report(0.1), load_lapsed=True))
    other = replace(base, bundles={**base.bundles, key(2): Bundle(key(2), "b2")})
    decision = decide_moves(other, move(2, "b1", "b2", swap=True), move(0, "b2"))
    assert not decision.moves
    assert all("no-usable-report: b2: lapsed" in (check.refused or "") for check in decision.checked)


def test_plan_labels_are_the_strategys_whatever_is_refused() -> None:
    plan: Plan = decide_moves(cluster(b2=Broker("b2")), move()).plan
    assert plan.label is Label.SUCCESS
