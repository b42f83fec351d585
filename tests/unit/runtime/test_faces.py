"""The blocking face has the same methods and signatures as the asyncio one."""

import inspect

import pytest

from statechannel.api import (
    BlockingBrokerHooks,
    BlockingStateChannel,
    BlockingTicket,
    BrokerHooks,
    StateChannel,
    Ticket,
)

FOR_EXTENSIONS = {
    "answer_for",
    "check_before",
    "broker_ids",
    "brokers",
    "holder",
    "locate",
    "positions",
    "request",
    "watch",
}
"""What extensions ask of a member, from its own loop: the blocking face is for other threads."""


def public(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(member)
        for name, member in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }


def parameters(signature: inspect.Signature, renamed: dict[str, str]) -> list[tuple]:
    return [
        (p.name, p.kind, p.default, renamed.get(str(p.annotation), str(p.annotation)))
        for p in signature.parameters.values()
    ]


@pytest.mark.parametrize(
    ("asynchronous", "blocking"),
    [(StateChannel, BlockingStateChannel), (Ticket, BlockingTicket), (BrokerHooks, BlockingBrokerHooks)],
)
def test_both_faces_agree(asynchronous: type, blocking: type) -> None:
    first, second = public(asynchronous), public(blocking)
    if asynchronous is StateChannel:
        assert first.keys() >= FOR_EXTENSIONS
        first = {name: item for name, item in first.items() if name not in FOR_EXTENSIONS}
    assert first.keys() == second.keys()
    renamed = {"BlockingBrokerHooks | None": "BrokerHooks | None"}
    for name, signature in first.items():
        assert parameters(second[name], renamed) == parameters(signature, renamed), name
        assert inspect.getdoc(getattr(blocking, name)), name
