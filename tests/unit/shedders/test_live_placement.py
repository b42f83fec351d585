"""Placement in a live broker: what the strategy says, what is done without load data, and who is never chosen."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from shedders.balancer.placement import LivePlacement, PlacedEnd, PlacementInputs
from shedders.balancer.settings import BalancerSettings
from shedders.decision.placing import Pipeline
from shedders.filters.rules import FilterSettings
from shedders.model.cluster import Broker, Bundle, Cluster, IsolationPolicy, Policies
from statechannel.engine.troubles import UnplacedCause
from tests.support.live_balancer import Clock, First, key, load

BROKERS = ["b1", "b2", "b3"]
SETTINGS = BalancerSettings()


@dataclass
class Place:
    """A placement with what it goes by."""

    clock: Clock = field(default_factory=Clock)
    strategy: First = field(default_factory=First)
    cluster: Cluster = field(default_factory=lambda: Cluster({name: Broker(name) for name in BROKERS}, {}))
    known: bool = True
    modular: bool = False
    leading: bool = False
    taken: int = 0
    held: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    ask: Callable[[str], None] | None = None
    took_s: float = 0.0
    asks_max: int = 1_000

    def __post_init__(self) -> None:
        self.pipeline = Pipeline(self.strategy, FilterSettings())
        settings = BalancerSettings(leader_asks_max=self.asks_max)
        self.placement = LivePlacement(
            surroundings=self._surroundings,
            held=self.held.__contains__,
            pipeline=lambda: self.pipeline,
            now_s=lambda: self.clock.s,
            ask_leader=self.ask or self.asked.append,
            settings=lambda: settings,
        )

    def _surroundings(self) -> PlacementInputs:
        self.taken += 1
        self.clock.s += self.took_s
        if self.cluster is None:
            raise RuntimeError("a bug")
        return PlacementInputs(self.cluster, self.known, self.modular, self.leading)

    def policies(self, **policies: Any) -> None:
        self.cluster = Cluster(self.cluster.brokers, self.cluster.bundles, Policies(**policies))
        self.placement.forget()

    def choose(self, number: int = 0, among: list[str] | None = None, **load: int) -> str | None:
        return self.placement.choose(key(number), BROKERS if among is None else among, load)

    def notes(self) -> list[tuple[str | None, str]]:
        return [(note.broker, note.how) for note in self.placement.take_notes()]


@pytest.fixture
def place() -> Place:
    return Place()


def test_the_strategy_chooses_among_whom_the_engine_offers(place: Place) -> None:
    assert place.choose() == "b1"
    assert place.choose(1, ["b2", "b3"]) == "b2"
    assert place.notes() == [("b1", "strategy"), ("b2", "strategy")]
    assert place.notes() == []


def test_where_the_strategy_has_nothing_to_go_by_the_broker_with_fewest_bundles_takes_it(place: Place) -> None:
    place.strategy.nobody = True
    assert place.choose(b1=4, b2=1, b3=2) == "b2"
    assert place.notes() == [("b2", "fewest")]


@pytest.mark.parametrize("broken", ["strategy", "nobody"])
def test_a_strategy_that_fails_never_gets_round_the_filters(place: Place, broken: str) -> None:
    place.policies(cordons={"b2": "disk"})
    if broken == "strategy":
        place.strategy.error = ZeroDivisionError("by zero")
    else:
        place.strategy.nobody = True
    assert place.choose(b1=4, b2=0, b3=2) == "b3"  # b2 has fewest, and is cordoned
    assert place.notes() == [("b3", "failed" if broken == "strategy" else "fewest")]
    assert ("by zero" in place.placement.failing) == (broken == "strategy")
    place.strategy.error, place.strategy.nobody = None, False
    place.choose()
    assert place.placement.failing == ""


def test_filters_that_leave_nobody_are_kept_to(place: Place) -> None:
    place.policies(pins={key(0): "b9"})
    assert place.choose(b1=0) is None
    assert place.choose(1) == "b1"
    assert place.notes() == [(None, "nobody"), ("b1", "strategy")]


def test_why_nobody_is_chosen_is_known_until_somebody_is(place: Place) -> None:
    gold = IsolationPolicy("gold", ("t/n",), ("b2",))
    place.policies(isolation=(gold,), cordons={"b2": "disk"})
    assert place.choose() is None
    refusal = place.placement.refusal(key(0))
    assert (refusal.reason, refusal.lasting, refusal.cause) == ("isolation", True, UnplacedCause.POLICIES)
    assert "`isolation` removed b1 and 1 more" in refusal.message
    assert "`cordon` removed b2 (it is cordoned: disk)" in refusal.message
    place.policies()
    assert place.choose() == "b1"
    assert place.placement.refusal(key(0)) is None


def test_to_wait_helps_where_a_broker_that_may_take_it_can_come_back(place: Place) -> None:
    place.policies(isolation=(IsolationPolicy("gold", ("t/n",), ("b2",)),))
    assert place.choose(0, ["b1", "b3"]) is None
    refusal = place.placement.refusal(key(0))
    assert not refusal.lasting
    place.known = False
    place.placement.forget()
    assert place.choose() is None
    refusal = place.placement.refusal(key(0))
    assert (refusal.reason, refusal.lasting, refusal.cause) == ("policies-unread", False, UnplacedCause.FAILURE)


def test_where_the_engine_offers_no_broker_no_policy_is_to_blame(place: Place) -> None:
    """All have declined the bundle lately."""
    assert place.choose(0, []) is None
    assert place.placement.refusal(key(0)) is None
    assert place.notes() == [(None, "nobody")]
    place.policies(cordons={"b2": "disk"})
    assert place.choose(0, []) is None
    assert place.placement.refusal(key(0)) is None
    assert place.choose(0, ["b2"]) is None
    refusal = place.placement.refusal(key(0))
    assert (refusal.reason, refusal.cause) == ("cordon", UnplacedCause.POLICIES)
    assert "(it declined the bundle lately, or takes none)" in refusal.message


def test_a_pin_is_obeyed_as_soon_as_it_is_known(place: Place) -> None:
    assert place.choose() == "b1"
    place.policies(pins={"t/n": "b3"})
    assert place.choose() == "b3"


def test_nobody_is_chosen_before_the_policies_are_known(place: Place) -> None:
    place.known = False
    assert place.choose() is None
    place.known = True
    place.placement.forget()
    assert place.choose() == "b1"
    assert place.notes() == [(None, "unread"), ("b1", "strategy")]


def test_a_bug_costs_no_placement_as_long_as_there_are_no_policies(place: Place) -> None:
    assert place.choose() == "b1"
    sound, place.cluster = place.cluster, None  # type: ignore[assignment]
    place.placement.forget()
    assert place.choose(b1=3, b2=2, b3=1) == "b3"
    place.cluster = sound
    place.policies(cordons={"b1": "disk"})
    assert place.choose() == "b2"
    place.cluster = None  # type: ignore[assignment]
    place.placement.forget()
    assert place.choose(b1=0) is None  # who knows what is forbidden
    assert "a bug" in place.placement.failing
    assert [how for _, how in place.notes()] == ["strategy", "failed", "strategy", "failed"]


def test_a_bug_before_anything_is_known_chooses_nobody(place: Place) -> None:
    place.cluster = None  # type: ignore[assignment]
    assert place.choose() is None


# --- bookings and surroundings --------------------------------------------------------------------------------------


def test_what_was_placed_counts_until_a_report_was_made_after_it() -> None:
    place = Place()

    def reported(age_s: float | None) -> None:
        broker = Broker("b1") if age_s is None else Broker("b1", load=load(), load_age_s=age_s)
        place.cluster = Cluster({"b1": broker}, {})

    reported(5.0)
    for number in range(3):
        place.choose(number, ["b1"])
    assert place.placement._booked == {"b1": [key(0), key(1), key(2)]}
    place.clock.s += 2
    reported(3.0)  # made before the placements
    place.choose(3, ["b1"])
    assert place.placement._booked == {"b1": [key(0), key(1), key(2), key(3)]}
    place.clock.s += 2
    reported(3.0)  # made after the first three
    place.choose(4, ["b1"])
    assert place.placement._booked == {"b1": [key(3), key(4)]}
    place.clock.s += 2
    place.cluster = Cluster({}, {})
    place.choose(5, ["b1"])
    assert place.placement._booked == {}


def test_a_bundle_that_is_placed_again_counts_once(place: Place) -> None:
    place.choose(0, ["b1"])
    place.choose(0, ["b2"])
    assert place.placement._booked == {"b1": [], "b2": [key(0)]}


def test_surroundings_are_taken_anew_by_their_age_and_less_often_the_longer_that_takes(place: Place) -> None:
    for _ in range(5):
        place.choose()
    assert place.taken == 1
    place.clock.s += 1.1
    place.choose()
    assert place.taken == 2
    place.took_s = 0.5  # a tenth of the time: not again before 5 s
    place.clock.s += 1.1
    place.choose()
    place.clock.s += 4.4
    place.choose()
    assert place.taken == 3
    place.clock.s += 0.2
    place.choose()
    assert place.taken == 4


def test_a_bundle_without_a_broker_is_told_of_once_in_a_while(place: Place) -> None:
    place.policies(cordons=dict.fromkeys(BROKERS, "power"))
    for _ in range(50):
        assert place.choose() is None
    assert place.notes() == [(None, "nobody")]
    assert place.placement.counts["nobody"] == 50
    place.clock.s += SETTINGS.homeless_again_s
    place.choose()
    assert place.notes() == [(None, "nobody")]


def test_notes_that_nobody_takes_are_bounded(place: Place) -> None:
    for _ in range(SETTINGS.placements_noted_max + 10):
        place.choose()
    assert len(place.placement.take_notes()) <= SETTINGS.placements_noted_max


# --- the modular manager --------------------------------------------------------------------------------------------


def test_the_leader_is_asked_once_and_this_broker_places_when_it_does_not() -> None:
    place = Place(modular=True)
    assert place.choose() is None
    place.clock.s += 2.9
    assert place.choose() is None
    assert place.asked == [key(0)]
    place.clock.s += 0.2
    assert place.choose() == "b1"
    assert place.asked == [key(0)]
    assert place.notes() == [(None, "asked"), ("b1", "strategy")]


def test_the_leader_itself_places_at_once() -> None:
    place = Place(modular=True, leading=True)
    assert place.choose() == "b1"
    assert place.asked == []


def test_a_bundle_that_is_only_moved_is_not_the_leaders_business() -> None:
    """A broker that leaves hands its bundles over itself: the leader would find them served."""
    place = Place(modular=True)
    place.held.add(key(0))
    assert place.choose() == "b1"
    assert place.asked == []


def test_whoever_was_assigned_meanwhile_is_asked_for_again() -> None:
    place = Place(modular=True)
    assert place.choose() is None
    place.placement.assigned(key(0))
    place.clock.s += 5
    assert place.choose() is None
    assert place.asked == [key(0), key(0)]


def test_no_more_wait_for_the_leader_than_may() -> None:
    place = Place(modular=True, asks_max=2)
    assert [place.choose(number) for number in range(4)] == [None, None, "b1", "b1"]
    assert len(place.asked) == 2


def test_asks_are_forgotten_in_the_end() -> None:
    place = Place(modular=True, asks_max=2)
    place.choose(0)
    place.choose(1)
    place.clock.s += 13
    assert place.choose(2) is None
    assert place.asked == [key(0), key(1), key(2)]


def test_a_leader_that_cannot_be_asked_is_not_waited_for() -> None:
    def refuse(_: str) -> None:
        raise OSError("stopped")

    place = Place(modular=True, ask=refuse)
    assert place.choose(b1=2, b2=0, b3=1) == "b2"
    assert place.notes() == [("b2", "failed")]


def test_switching_back_goes_by_the_next_choice() -> None:
    place = Place(modular=True)
    assert place.choose() is None
    place.modular = False
    place.placement.forget()
    assert place.choose() == "b1"


def test_what_the_surroundings_know_of_a_bundle_is_handed_to_the_strategy(place: Place) -> None:
    seen: list[Bundle] = []
    plain = place.strategy.place

    def noted(cluster: Any, bundle: Bundle, *rest: Any) -> Any:
        seen.append(bundle)
        return plain(cluster, bundle, *rest)

    place.strategy.place = noted  # type: ignore[method-assign]
    known = Bundle(key(0), non_persistent=True)
    place.cluster = Cluster(place.cluster.brokers, {key(0): known})
    place.choose(0)
    place.choose(1)
    assert seen == [known, Bundle(key(1))]


# --- how long it took -------------------------------------------------------------------------------------------------


def test_the_time_to_a_place_is_from_the_first_question_to_its_being_served(place: Place) -> None:
    place.policies(cordons=dict.fromkeys(BROKERS, "power"))
    assert place.choose() is None
    place.clock.s += 40
    assert place.choose() is None
    place.clock.s += 40
    place.policies()
    assert place.choose() == "b1"
    place.placement.assigned(key(0))  # on its way
    place.clock.s += 2
    place.placement.assigned(key(0), "b1")
    place.placement.assigned(key(0), "b1")
    assert place.placement.take_ends() == [PlacedEnd("strategy", "first", 82)]
    assert place.placement.take_ends() == []


def test_the_leaders_choice_ends_a_wait_too() -> None:
    place = Place(modular=True)
    place.choose()
    place.clock.s += 1
    place.placement.assigned(key(0), "b3")
    assert place.placement.take_ends() == [PlacedEnd("asked", "modular", 1)]


def test_what_somebody_else_has_done_is_no_end_of_a_placement(place: Place) -> None:
    place.choose(0)  # b1, but it went elsewhere
    place.placement.assigned(key(0), "b2")
    place.policies(pins={key(1): "b9"})
    place.choose(1)  # nobody may have it, and somebody gave it to a broker all the same
    place.placement.assigned(key(1), "b2")
    place.policies()
    place.choose(2)  # nothing came of it; much later it was moved there
    place.clock.s += SETTINGS.placement_booked_s + 1
    place.placement.assigned(key(2), "b1")
    place.placement.assigned(key(3), "b1")
    assert place.placement.take_ends() == []


def test_a_question_that_came_to_nothing_does_not_count_for_a_later_one(place: Place) -> None:
    place.choose()
    place.clock.s += SETTINGS.placement_booked_s + 1
    place.choose()
    place.clock.s += 3
    place.placement.assigned(key(0), "b1")
    assert place.placement.take_ends() == [PlacedEnd("strategy", "first", 3)]


def test_places_that_are_never_read_back_are_bounded(place: Place) -> None:
    for number in range(SETTINGS.placements_noted_max + 10):
        place.placement.choose(f"t/n/{number}", BROKERS, {})
    assert len(place.placement._awaited) == SETTINGS.placements_noted_max
    for number in range(SETTINGS.placements_noted_max + 10):
        place.placement.assigned(f"t/n/{number}", "b1")
    assert place.placement._awaited == {}
    assert len(place.placement.take_ends()) <= SETTINGS.placements_noted_max


# --- by what ----------------------------------------------------------------------------------------------------------


def test_each_choice_has_a_reason_of_one_word(place: Place) -> None:
    place.choose()
    place.strategy.nobody = True
    place.choose()
    place.strategy.error = ZeroDivisionError("by zero")
    place.choose()
    place.policies(cordons={"b1": "disk", "b2": "disk"}, pins={key(0): "b2"})
    place.choose()
    place.policies()
    place.choose(1, [])
    place.known = False
    place.placement.forget()
    place.choose()
    place.cluster = None  # type: ignore[assignment]
    place.placement.forget()
    place.choose()
    assert [(note.how, note.reason) for note in place.placement.take_notes()] == [
        ("strategy", "first"),
        ("fewest", "undecided"),
        ("failed", "strategy-failed"),
        ("nobody", "pin"),
        ("nobody", "no-brokers"),
        ("unread", "policies-unread"),
        ("failed", "internal-error"),
    ]


# --- what was shed ----------------------------------------------------------------------------------------------------


def loaded(**usages: float | None) -> Cluster:
    brokers = {
        name: Broker(name, None if usage is None else load(usage, 1_000)) for name, usage in sorted(usages.items())
    }
    return Cluster(brokers, {key(0): Bundle(key(0))})


@pytest.mark.parametrize(
    ("usages", "chosen"),
    [
        pytest.param({"b1": 0.8, "b2": 0.9, "b3": 0.1}, "b3", id="below-the-source"),
        pytest.param({"b1": 0.8, "b2": None, "b3": 0.1}, "b3", id="whose-load-is-known"),
        pytest.param({"b1": 0.8, "b2": 0.9, "b3": 0.95}, "b2", id="anybody-but-the-source"),
        pytest.param({"b1": 0.8}, "b1", id="nobody-else"),
    ],
)
def test_what_was_shed_does_not_come_back_where_anybody_else_may_take_it(usages: dict[str, float | None], chosen: str):
    place = Place(cluster=loaded(**usages))
    place.placement.shed(key(0), "b1")
    assert place.placement.choose(key(0), sorted(usages), {}) == chosen


def test_filters_come_before_relief() -> None:
    place = Place(cluster=loaded(b1=0.8, b2=0.9, b3=0.1))
    place.policies(cordons={"b2": "disk", "b3": "disk"})
    place.placement.shed(key(0), "b1")
    assert place.placement.choose(key(0), BROKERS, {}) == "b1"


def test_it_is_known_for_a_while_or_until_it_is_served_again_who_has_shed_it() -> None:
    place = Place(cluster=loaded(b1=0.8, b2=0.9, b3=0.95))
    place.placement.shed(key(0), "b1")
    place.clock.s += SETTINGS.placement_booked_s + 1
    assert place.placement.choose(key(0), BROKERS, {}) == "b1"
    place.placement.shed(key(0), "b1")
    place.placement.assigned(key(0))
    assert place.placement.choose(key(0), BROKERS, {}) == "b2"
    place.placement.assigned(key(0), "b2")
    assert place.placement.choose(key(0), BROKERS, {}) == "b1"


def test_not_everything_that_was_shed_is_remembered() -> None:
    place = Place(cluster=loaded(b1=0.8, b2=0.9))
    settings = SETTINGS.model_copy(update={"placements_noted_max": 2})
    place.placement.settings = lambda: settings
    for number in range(3):
        place.placement.shed(key(number), "b1")
    assert [place.placement.choose(key(number), ["b1", "b2"], {}) for number in range(3)] == ["b1", "b2", "b2"]
