"""Ownership of a simulated cluster is what the real core makes of the records."""

import pytest

from shedders.contest.bundles import ContestChannel, RefusedError, bounds_of
from statechannel.protocol.verdict import Verdict


def _owners(channel: ContestChannel) -> dict[str, str | None]:
    return {entry.bundle: entry.owner for entry in channel.live_bundles()}


def test_a_bundle_through_its_life() -> None:
    channel = ContestChannel()
    low, high = channel.create("t/n", bounds_of(2, ()))
    assert _owners(channel) == {low: None, high: None}
    assert channel.assign(low, "b1").to == "b1"
    assert channel.transfer(low, "b2").from_ == "b1"
    first, second = channel.split(low, [0x40000000])
    channel.unload(second)
    channel.assign(second, "b1")
    channel.remove_owner(second)
    assert _owners(channel) == {first: "b2", second: None, high: None}
    assert channel.bundle_counts() == {"b2": 1}
    assert channel.offset == channel.view.applied


def test_generations_are_those_of_the_protocol() -> None:
    channel = ContestChannel()
    (only,) = channel.create("t/n", bounds_of(1, ()))
    channel.assign(only, "b1")
    channel.transfer(only, "b2")
    (seen,) = channel.live_bundles()
    assert (seen.version, seen.generation) == (6, 6), (
        "created 1, assigning 2, assigned 3, releasing 4, assigning 5, assigned 6"
    )


def test_what_the_core_refuses_is_a_bug_here() -> None:
    channel = ContestChannel()
    (only,) = channel.create("t/n", bounds_of(1, ()))
    channel.assign(only, "b1")
    with pytest.raises(RefusedError, match=Verdict.ILLEGAL_MOVE):
        channel.assign(only, "b2")
    with pytest.raises(RefusedError, match="not found"):
        channel.unload("t/n/0x00000000_0x00000001")
