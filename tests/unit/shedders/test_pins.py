"""Pins of bundles that were split."""

from shedders.filters.rules import inherited, split_up
from shedders.model.cluster import Policies

WHOLE, HALF, OTHER = "t/n/0x00000000_0x80000000", "t/n/0x00000000_0x40000000", "t/n/0x40000000_0x80000000"
QUARTER = "t/n/0x00000000_0x20000000"
BESIDE = "t/n/0x80000000_0xffffffff"
FOREIGN = "t/m/0x00000000_0x40000000"


def pins(*bundles: str, **laid_down: str) -> dict[str, str]:
    names = {"whole": WHOLE, "half": HALF, "quarter": QUARTER, "namespace": "t/n"}
    return dict(inherited(Policies(pins={names[key]: broker for key, broker in laid_down.items()}), bundles).pins)


def test_parts_are_pinned_as_their_bundle_was() -> None:
    assert pins(HALF, OTHER, BESIDE, FOREIGN, whole="b1") == {WHOLE: "b1", HALF: "b1", OTHER: "b1"}


def test_while_it_is_there_nothing_is_added() -> None:
    policies = Policies(pins={WHOLE: "b1", "t/n": "b2"})
    assert inherited(policies, [WHOLE, BESIDE]) is policies
    assert inherited(Policies(), [WHOLE]) == Policies()
    assert inherited(Policies(pins={WHOLE: "b1"}), [FOREIGN]).pins == {WHOLE: "b1"}


def test_the_closest_pin_counts() -> None:
    assert pins(HALF, OTHER, whole="b1", half="b2")[HALF] == "b2"
    assert pins(QUARTER, OTHER, whole="b1", half="b2") == {WHOLE: "b1", HALF: "b2", QUARTER: "b2", OTHER: "b1"}
    assert pins(HALF, whole="b1", namespace="b3")[HALF] == "b1"


def test_which_pins_live_on_in_their_parts() -> None:
    policies = Policies(pins={WHOLE: "b1", FOREIGN: "b2", "t/n": "b3"})
    bundles = [HALF, OTHER, BESIDE]
    assert split_up(policies, bundles) == frozenset()
    assert split_up(inherited(policies, bundles), bundles) == {WHOLE}
