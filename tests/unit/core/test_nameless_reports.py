"""A delivery report that does not say where the record lies: what becomes of it is read, not guessed."""

import pytest

from statechannel.engine.commands import CreateNamespace, Outcome, Rejected, Started
from statechannel.engine.inputs import Appended, AppendFailed, delivery_report
from tests.support.lone_engine import LoneEngine


def test_only_an_offset_says_where_a_record_lies() -> None:
    assert delivery_report(7, 0, 2) == Appended(7, 0, 2)
    for nowhere in (None, -1, -1001):
        report = delivery_report(7, nowhere, 2)
        assert isinstance(report, AppendFailed)
        assert (report.token, report.session, report.never_written) == (7, 2, False)


@pytest.mark.parametrize("rival", [False, True])
def test_a_caller_hears_what_was_read_and_not_what_the_report_left_open(rival: bool) -> None:
    engine, outcomes = LoneEngine([]), list[Outcome]()
    engine.run(3)
    engine.hold = True
    engine.ask(CreateNamespace("t/x", (0, 0xFFFFFFFF), "op-1", 30.0), outcomes.append)
    (append,) = (item for item in engine.held if item.key == b"t/x")
    engine.report(delivery_report(append.token, None, 1))
    engine.run(1)
    assert outcomes == []
    if rival:
        value = (append.value or b"").replace(b'"id":"', b'"id":"X')
        value = value.replace(b'"incarnation":"a-1"', b'"incarnation":"x-1"')
        engine.put(append.key, value.replace(b"op-1", b"op-2"))
    engine.let_through()
    engine.run(1)
    assert [type(outcome) for outcome in outcomes] == [Rejected if rival else Started]
