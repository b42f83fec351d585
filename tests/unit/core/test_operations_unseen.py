"""Operations whose end was not seen: one that ended while the view was left is told of, one whose record is open is unknown."""

from types import SimpleNamespace

import pytest

from statechannel.engine.commands import (
    AwaitOperation,
    DeleteNamespace,
    Done,
    Lookup,
    Owned,
    Started,
    Transfer,
    Unknown,
    Unload,
)
from statechannel.engine.inputs import AppendFailed
from statechannel.engine.operation_fold import OperationFold
from statechannel.protocol import codec
from statechannel.protocol.states import State
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, LoneEngine, mark


def test_it_is_told_after_the_join():
    alone = LoneEngine([(NAMESPACE, CREATED, 1)])
    alone.hear("b", phase="joining")
    alone.run(5)
    served, started, ended = [], [], []
    alone.ask(Lookup(BUNDLE.decode(), 60.0), served.append)
    assert isinstance(served[0], Owned)

    def began(outcome):
        started.append(outcome)
        alone.hold = True

    alone.ask(Unload(BUNDLE.decode(), "op2", 60.0), began)
    alone.ask(AwaitOperation("op2", 60.0), ended.append)
    assert isinstance(started[0], Started)
    alone.put(codec.COLD_START_KEY, mark("b-1", len(alone.channel) - 1))
    assert alone.restarts == 1
    assert alone.engine.caught_up
    assert ended == []  # a log without gaps: it is judged again from the first record on, and nothing is told twice
    alone.let_through()
    at = alone.written(BUNDLE)[-1]
    assert ended == [Done("op2", "unloaded", {"bundle": BUNDLE.decode(), "flow": "unload", "offset": at})]


@pytest.mark.parametrize("reported", [False, True])
def test_a_deletion_whose_record_is_open_at_its_deadline_is_unknown(reported):
    """Nobody knows yet whether the namespace is deleted: it is not said to be open."""
    alone = LoneEngine([(NAMESPACE, CREATED, 1)], unknown_limit_s=1.0)
    alone.run(5)
    answers = []
    alone.hold = True
    alone.ask(DeleteNamespace("t/n", "op2", 4.0), answers.append)
    alone.run(1)
    (deleting,) = [append for append in alone.held if append.key == NAMESPACE]
    if reported:
        alone.report(AppendFailed(deleting.token, "timed out", 1, never_written=False))
    alone.run(5)
    assert [type(answer) for answer in answers] == [Unknown]
    alone.let_through()
    assert alone.engine.key("t/n").state == "Deleted"


def test_a_bundle_that_is_being_assigned_is_asked_for_again_and_not_looked_up():
    alone = LoneEngine([(NAMESPACE, CREATED, 1)])
    alone.run(5)
    alone.hear("b")
    alone.hold_hooks = True
    answers = []
    for command in (Lookup(BUNDLE.decode(), 60.0), Transfer(BUNDLE.decode(), "b", "op2", 4.0)):
        alone.ask(command, answers.append)
    (refused,) = answers
    assert (refused.reason, refused.hint) == ("not-assigned", "Try again in a moment: it is in flight.")


@pytest.mark.parametrize(
    ("lost", "forced", "to", "why"),
    [
        ({"broker": "b2"}, True, "b3", "b2 was lost before it was done, and b1 gave the bundle to b3: it is not split"),
        ({"broker": "b\x1b2"}, True, "b3", "b\ufffd2 was lost before it was done, and b1 gave the bundle to b3: it is not split"),
        (None, True, None, "it was not done in time, and b1 left the bundle without an owner: it is not split"),
        ({"broker": 7}, True, "b3", "it was not done in time, and b1 gave the bundle to b3: it is not split"),
        (None, True, "b3", "it was not done in time, and b1 gave the bundle to b3: it is not split"),
        (None, False, "b3", "another change, by b1, was first"),
    ],
)  # fmt: skip
def test_what_interrupted_an_operation_is_said(lost, forced, to, why):
    fold = OperationFold(10)
    plain = {"from_": "b2", "text": {}.get}
    key = {"name": "t/n/x", "namespace": "t/n", "is_namespace": False}
    began = SimpleNamespace(state=State.SPLITTING, to=None, broker="b2", raw={}, forced=False, **plain)
    fold.accepted(began, SimpleNamespace(operation="op1", flow="split", **key), 0, 1)
    repair = SimpleNamespace(state=State.ASSIGNING, to=to, broker="b1", raw={"lost": lost}, forced=forced, **plain)
    fold.accepted(repair, SimpleNamespace(operation="op2", flow="repair", **key), 0, 2)
    assert (fold.known["op1"].result, fold.known["op1"].why) == ("superseded", why)
