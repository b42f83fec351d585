"""Debts at their bounds (protocol.md section 3): what settles a key by one offset or one version, and what does not."""

import pytest

from statechannel.protocol.debts import Debts
from statechannel.protocol.keys import KeyState


@pytest.fixture
def key() -> KeyState:
    state = KeyState("t/n", 0, 0xFFFFFFFF)
    state.settled = 10
    return state


@pytest.fixture
def ledger() -> Debts:
    return Debts()


@pytest.mark.parametrize(("covers", "settles"), [(9, False), (10, True), (11, True)])
def test_a_clean_record_settles_if_it_covers_what_settled_before(ledger, key, covers, settles):
    ledger.clean(key, 20, covers, 5)
    assert key.settled == (20 if settles else 10)
    assert (key in ledger.open) is not settles


def test_one_that_does_not_is_a_debt_of_its_own(ledger, key):
    ledger.clean(key, 20, 9, 5)
    debt = ledger.open[key]
    assert (debt.since_offset, debt.newest_offset, debt.highest_version) == (20, 10, -1)
    assert debt.seen_s is None


@pytest.mark.parametrize(
    ("covers", "version", "settles"),
    [
        (15, 3, True),  # covers the newest unclean record
        (14, 3, False),
        (14, 4, False),  # the version of the highest unclean one
        (14, 5, True),
        (10, 5, True),
        (9, 5, False),  # does not cover what settled before
        (9, 99, False),
    ],
)
def test_a_debt_is_paid_by_covering_it_or_by_a_version_above_it(ledger, key, covers, version, settles):
    ledger.unclean(key, 12, 4)
    ledger.unclean(key, 15, 2)
    ledger.clean(key, 20, covers, version)
    assert (key not in ledger.open) is settles
    assert key.settled == (20 if settles else 10)


def test_a_debt_keeps_its_beginning_its_newest_record_and_the_highest_version(ledger, key):
    for offset, version in ((12, 4), (13, 9), (15, -1)):
        ledger.unclean(key, offset, version)
    debt = ledger.open[key]
    assert (debt.since_offset, debt.newest_offset, debt.highest_version) == (12, 15, 9)


def test_one_begun_by_a_clean_record_is_paid_by_any_version_that_covers_what_settled(ledger, key):
    ledger.clean(key, 20, 9, 5)
    ledger.clean(key, 21, 9, 99)
    assert key in ledger.open
    ledger.clean(key, 22, 10, 0)
    assert (key in ledger.open, key.settled) == (False, 22)


def test_the_oldest_is_the_one_begun_first_whatever_came_to_it_later(ledger, key):
    assert ledger.oldest is None
    other = KeyState("t/n", 0, 0x7FFFFFFF)
    ledger.unclean(key, 1, 0)
    ledger.unclean(other, 2, 0)
    ledger.unclean(key, 3, 0)
    assert ledger.oldest is ledger.open[key]
    ledger.clean(key, 9, 99, 99)
    assert ledger.oldest is ledger.open[other]
