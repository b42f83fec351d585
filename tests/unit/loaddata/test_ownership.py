"""Which accepted record changes whose load, and when a broker's figures have taken a change in."""

import pytest

from loaddata.view.ownership import OwnChanges, OwnershipChange, change_of, newest_changes
from statechannel.protocol.states import State
from tests.support.load_channel import Accepted


@pytest.mark.parametrize(
    ("state", "from_", "to", "broker"),
    [
        (State.ASSIGNED, "a", "b", "b"),
        (State.ASSIGNED, None, "b", "b"),
        (State.ASSIGNING, "a", "b", "a"),
        (State.ASSIGNING, None, "b", None),
        (State.UNASSIGNED, "a", None, "a"),
        (State.DELETED, "a", None, "a"),
        (State.RELEASING, "a", "b", None),
        (State.SPLITTING, "a", None, None),
        (State.ACTIVE, None, None, None),
    ],
)
def test_whose_load_a_record_changes(state: State, from_: str | None, to: str | None, broker: str | None) -> None:
    expected = None if broker is None else OwnershipChange(broker, 3, 17)
    assert change_of(Accepted(3, 17, state, from_, to)) == expected


def test_a_change_is_taken_in_when_it_has_settled() -> None:
    own = OwnChanges(settle_s=5.0)
    own.started({0: 10, 1: -1})
    assert own.settled == {0: 10, 1: -1}
    assert not own.ripen({0: 12, 1: -1}, 0.0)
    own.changed(0, 12)
    assert not own.ripen({0: 20, 1: 3}, 4.9)
    assert own.settled[0] == 10
    assert own.ripen({0: 20, 1: 3}, 5.0)
    assert own.settled == {0: 12, 1: -1}
    assert not own.ripen({0: 20, 1: 3}, 10.0), "positions advance, but nothing of its own was among them"
    assert own.settled == {0: 20, 1: 3}


def test_nothing_waits_longer_than_twice_the_time() -> None:
    own = OwnChanges(settle_s=5.0)
    due = {}
    for tick in range(60):
        now_s = tick * 0.5
        own.changed(0, tick)
        if own.ripen({0: tick}, now_s):
            due[now_s] = own.settled[0]
    assert list(due) == [5.0, 10.0, 15.0, 20.0, 25.0]
    assert all(now_s - settled * 0.5 <= 10.0 for now_s, settled in due.items())


def test_a_change_that_is_told_late_still_makes_a_report() -> None:
    own = OwnChanges(settle_s=1.0)
    own.ripen({0: 5}, 0.0)
    own.ripen({0: 5}, 1.0)
    own.changed(0, 4)  # below what is settled already: the subscription lags behind the log
    assert not own.ripen({0: 5}, 1.5)
    assert own.ripen({0: 5}, 2.0)


def test_positions_never_go_back() -> None:
    own = OwnChanges(settle_s=0.0)
    own.started({0: 10})
    own.ripen({0: 3}, 0.0)
    own.ripen({0: 3}, 1.0)
    assert own.settled == {0: 10}


def test_the_newest_of_each_broker_and_partition() -> None:
    assigned = [
        OwnershipChange("b", 0, 4),
        OwnershipChange("a", 1, 2),
        OwnershipChange("b", 0, 9),
        OwnershipChange("b", 1, 1),
    ]
    expected = [OwnershipChange("a", 1, 2), OwnershipChange("b", 0, 9), OwnershipChange("b", 1, 1)]
    assert newest_changes(assigned) == expected
