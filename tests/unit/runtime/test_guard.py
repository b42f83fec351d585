"""The guard of a member without a log, and the form of a redirect on its way to a client."""

import pytest

from statechannel.api import ArgumentTypeError, ArgumentValueError, Redirect
from tests.support.lone_member import lone_channel

OWNED = Redirect("other-owner", "b2 serves it", "t/n/0x00000000_0xffffffff", "b2", {"http": "http://b2"}, 7)


def test_a_redirect_survives_json() -> None:
    assert Redirect.from_json(OWNED.to_json()) == OWNED
    assert Redirect.from_json({"reason": "no-owner", "message": "try again"}) == Redirect("no-owner", "try again")


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        {},
        "other-owner",
        {"reason": ""},
        {"reason": 7, "message": ""},
        OWNED.to_json() | {"urls": ["http://b2"]},
        OWNED.to_json() | {"urls": {"http": 7}},
        OWNED.to_json() | {"generation": "7"},
        OWNED.to_json() | {"generation": True},
        OWNED.to_json() | {"broker": 7},
    ],
    ids=str,
)
def test_what_is_no_redirect_is_none(fields) -> None:
    assert Redirect.from_json(fields) is None


async def test_a_member_that_joins_admits_nothing() -> None:
    async with lone_channel() as channel:
        refused = channel.guard("t/n/topic")
        assert isinstance(refused, Redirect)
        assert refused.broker is None
        assert channel.admitted() == {}


async def test_wrong_arguments_are_refused() -> None:
    async with lone_channel() as channel:
        with pytest.raises(ArgumentTypeError):
            channel.guard(7)  # type: ignore[arg-type]
        with pytest.raises(ArgumentValueError):
            channel.guard("t/n/topic", size_bytes=-1)
        refused = channel.guard("nonsense")
        assert isinstance(refused, Redirect)
        assert refused.reason == "bad-name"
