"""The pipeline: pins, filters, strategy, bookings; and plans checked as a whole."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from shedders.decision.placing import Pipeline
from shedders.errors import StrategyFailedError
from shedders.filters.rules import FilterSettings
from shedders.model.cluster import Broker, Bundle, Cluster, Policies
from shedders.model.plan import BundleMove, Placed, Reason
from shedders.model.strategy import StrategySettings

A = "t/a/0x00000000_0xffffffff"
B = "t/b/0x00000000_0xffffffff"
C = "t/c/0x00000000_0xffffffff"


class FewestBooked:
    """The candidate with the fewest bookings; remembers how often it was asked."""

    name: ClassVar[str] = "fewest-booked"
    Settings: ClassVar[type[StrategySettings]] = StrategySettings

    def __init__(self, answer: str | None = None) -> None:
        self.answer = answer

    def place(
        self,
        cluster: Cluster,
        bundle: Bundle,
        candidates: Sequence[str],
        booked: Mapping[str, Sequence[str]],
        memory: Mapping[str, Any],
    ) -> Placed:
        best = min(candidates, key=lambda name: (len(booked.get(name, ())), name))
        if self.answer == "raise":
            raise ZeroDivisionError("oops")
        asked = memory.get("asked", 0) + 1
        return Placed(bundle.name, self.answer or best, "fewest", memory={"asked": asked})


def cluster(count: int = 3, owners: Mapping[str, str | None] | None = None, **policies: Any) -> Cluster:
    names = {A: None, B: None, C: None} if owners is None else owners
    return Cluster(
        brokers={f"b{number}": Broker(f"b{number}") for number in range(1, count + 1)},
        bundles={name: Bundle(name, owner) for name, owner in names.items()},
        policies=Policies(**policies),
    )


def test_filters_first_then_the_strategy_with_its_memory() -> None:
    base = cluster(cordons={"b1": "disk"})
    pipeline = Pipeline(FewestBooked(), memory={"asked": 6})
    placed = pipeline.place(base, base.bundles[A])
    assert (placed.broker, placed.removed) == ("b2", {"b1": ("cordon", "it is cordoned: disk")})
    assert pipeline.memory == {"asked": 7}
    assert pipeline.name == "fewest-booked"


def test_nobody_left_says_who_removed_whom() -> None:
    base = cluster(2, cordons={"b1": "disk", "b2": "disk"})
    placed = Pipeline(FewestBooked()).place(base, base.bundles[A])
    assert placed.broker is None
    assert sorted(placed.removed) == ["b1", "b2"]
    empty = cluster(0)
    assert Pipeline(FewestBooked()).place(empty, empty.bundles[A]).broker is None


def test_bookings_reach_strategy_and_filters_while_they_grow() -> None:
    base = cluster(anti_affinity={"t/a": "g", "t/b": "g", "t/c": "g"})
    pipeline = Pipeline(FewestBooked())
    booked: dict[str, list[str]] = {}
    chosen = []
    for name in (A, B, C):
        placed = pipeline(base, base.bundles[name], booked)
        assert placed.broker is not None
        chosen.append(placed.broker)
        booked.setdefault(placed.broker, []).append(name)
    assert chosen == ["b1", "b2", "b3"]
    assert pipeline(base, base.bundles[C], {}).broker == "b1", "other bookings, other answer"
    booked["b1"].clear()
    assert pipeline(base, base.bundles[C], booked).broker == "b1", "what left the bookings does not count"


def test_another_cluster_gets_other_filters() -> None:
    pipeline = Pipeline(FewestBooked())
    first, second = cluster(), cluster(cordons={"b1": ""})
    assert pipeline.filters(first) is pipeline.filters(first)
    assert pipeline.place(first, first.bundles[A]).broker == "b1"
    assert pipeline.place(second, second.bundles[A]).broker == "b2"


def test_a_strategy_that_fails_or_goes_past_the_filters_is_named() -> None:
    base = cluster(cordons={"b1": ""})
    with pytest.raises(StrategyFailedError, match="fails: ZeroDivisionError"):
        Pipeline(FewestBooked("raise")).place(base, base.bundles[A])
    with pytest.raises(StrategyFailedError, match="names b1, which may not take t/a"):
        Pipeline(FewestBooked("b1")).place(base, base.bundles[A])


def test_pins_and_offers() -> None:
    base = cluster(pins={"t/a": "b3"})
    pipeline = Pipeline(FewestBooked())
    assert pipeline.place(base, base.bundles[A]).broker == "b3"
    assert pipeline.place(base, base.bundles[A], among=["b1", "b2"]).broker is None
    assert pipeline.place(base, base.bundles[B], among=["b2"]).broker == "b2"


def test_shedders_ask_what_may_go_where() -> None:
    base = cluster(cordons={"b2": "disk"})
    can_take = Pipeline(FewestBooked()).can_take(base)
    assert can_take(base.bundles[A], "b1") is None
    assert can_take(base.bundles[A], "b2") == "cordon: it is cordoned: disk"


def move(bundle: str, source: str, destination: str | None, *, swap: bool = False) -> BundleMove:
    return BundleMove(bundle, source, destination, Reason.OVERLOADED, 1.0, "test", swap)


def test_two_moves_that_are_harmless_alone() -> None:
    base = cluster(owners={A: "b1", B: "b1"}, anti_affinity={"t/a": "g", "t/b": "g"})
    pipeline = Pipeline(FewestBooked())
    moves = [move(A, "b1", "b2"), move(B, "b1", "b2")]
    can_take = pipeline.can_take(base)
    assert [can_take(base.bundles[move.bundle], "b2") for move in moves] == [None, None]
    kept, left = pipeline.permitted(base, moves)
    assert kept == [moves[0]]
    assert [(bundle.name, bundle.reason) for bundle in left] == [(B, "anti-affinity")]
    assert left[0].why == "b1 to b2: serves 1 other namespaces of group `g`, another broker 0"


def test_an_exchange_goes_whole_or_not_at_all() -> None:
    base = cluster(owners={A: "b1", B: "b2", C: "b1"}, pins={B: "b2"})
    moves = [move(B, "b2", "b1", swap=True), move(C, "b1", "b3"), move(A, "b1", "b2")]
    kept, left = Pipeline(FewestBooked()).permitted(base, moves)
    assert kept == [moves[1]]
    assert [(bundle.name, bundle.reason) for bundle in left] == [(B, "pin"), (A, "swap")]


def test_what_a_refused_exchange_had_booked_does_not_count() -> None:
    owners = {A: "b1", B: "b2", C: "b3"}
    base = cluster(owners=owners, anti_affinity={"t/a": "g", "t/c": "g"}, pins={B: "b2"})
    moves = [move(A, "b1", "b2"), move(B, "b2", "b1", swap=True), move(C, "b3", "b2")]
    kept, left = Pipeline(FewestBooked()).permitted(base, moves)
    assert kept == [moves[2]]
    assert [bundle.name for bundle in left] == [A, B]


@pytest.mark.parametrize(
    ("move", "word"),
    [
        (move("t/x/0x00000000_0xffffffff", "b1", "b2"), "gone"),
        (move(A, "b2", "b1"), "not-owned"),
        (move(A, "b1", "b1"), "same-broker"),
        (move(A, "b1", "b9"), "accepting"),
        (move(B, "b1", None), "nobody"),
    ],
)
def test_moves_that_cannot_be(move: BundleMove, word: str) -> None:
    base = cluster(owners={A: "b1", B: "b1"}, pins={B: "b1"})
    kept, left = Pipeline(FewestBooked()).permitted(base, [move])
    assert not kept
    assert [(entry.name, entry.reason) for entry in left] == [(move.bundle, word)]


def test_settings_reach_the_filters() -> None:
    base = cluster()
    placed = Pipeline(FewestBooked(), FilterSettings(max_topics=1)).place(base, base.bundles[A], {"b1": [B]})
    assert placed.broker == "b2"
    assert placed.removed == {"b1": ("topics", "it would serve 2 topics, at most 1 are allowed")}
