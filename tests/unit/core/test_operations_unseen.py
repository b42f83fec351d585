"""Operations whose end was not seen: one that ended while the view was left is told of, one whose record is open is unknown."""

import pytest

from statechannel.engine.commands import AwaitOperation, DeleteNamespace, Done, Lookup, Owned, Started, Unknown, Unload
from statechannel.engine.inputs import AppendFailed
from statechannel.protocol import codec
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
