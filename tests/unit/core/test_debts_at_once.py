"""Debts are paid as they are read while somebody joins, or where nothing was clean for long; asserts tell the operation."""

import orjson
import pytest

from statechannel.protocol.joiner import Joiner
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.view import View
from tests.support.cold_start_logs import proposal
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, LoneEngine

WHOLE = [(NAMESPACE, CREATED, 1)]


def leader(**config: float) -> LoneEngine:
    alone = LoneEngine(WHOLE, **config)
    alone.run(12)
    assert alone.engine.leading
    return alone


def asserts(alone: LoneEngine) -> list[bytes]:
    return [key for key, value, _ in alone.channel if b'"kind":"assert"' in (value or b"")]


def test_a_debt_is_paid_in_the_step_that_reads_it_while_somebody_joins() -> None:
    alone = leader()
    alone.put(NAMESPACE, b"junk")
    assert asserts(alone) == []
    alone.hear("b", phase="joining")
    before = len(alone.channel)
    alone.put(BUNDLE, b"junk")  # no time passes
    assert [key for key, _, _ in alone.channel[before:]][:2] == [BUNDLE, BUNDLE]
    assert asserts(alone) == [BUNDLE]


def test_a_clean_heartbeat_follows_at_the_first_moment_without_debts() -> None:
    alone = leader()
    alone.hear("b", phase="joining")
    alone.hold = True
    alone.put(BUNDLE, b"junk")
    alone.run(0.5)
    alone.let_through()
    key, value, _ = alone.channel[-1]
    assert key == b"!heartbeat"
    assert orjson.loads(value or b"")["clean_to"] == len(alone.channel) - 2


def test_without_a_joiner_debts_are_paid_at_once_where_nothing_was_clean_for_long() -> None:
    alone = leader(debt_age_leader_s=60.0)
    for _ in range(8):  # never a clean heartbeat: one key is in debt whenever one is due
        alone.put(NAMESPACE, b"junk")
        alone.run(0.5)
    assert asserts(alone) == []
    alone.run(2)
    assert asserts(alone)
    count = len(asserts(alone))
    alone.run(5)
    assert len(asserts(alone)) == count
    alone.put(NAMESPACE, b"junk")
    assert len(asserts(alone)) == count  # one is clean again


def test_junk_that_follows_its_payment_at_once_is_paid_too() -> None:
    alone = leader()
    alone.hear("b", phase="joining")
    alone.hold = True
    alone.put(BUNDLE, b"junk")
    alone.put(BUNDLE, proposal("p9", 9, "p8", "Assigning", to="y"))
    assert [append.key for append in alone.held] == [BUNDLE]
    alone.let_through()
    assert asserts(alone) == [BUNDLE, BUNDLE]
    assert not alone.engine.replicas[0].view.ledger.open


@pytest.mark.parametrize("flow", ["assignment", "some-later-flow"])
def test_an_assert_tells_operation_and_flow_of_what_it_restates(flow: str) -> None:
    """Whoever joins by it answers with them; the smallest log: the operation was lost in 8 of 25,316 reactions."""
    assigning = proposal("p1", 2, "ns1/0x00000000_0xffffffff", "Assigning", to="z", operation="op-1", flow=flow)
    alone = LoneEngine([*WHOLE, (BUNDLE, assigning, 2), (BUNDLE, b"junk", 3)])
    alone.hear("z")
    alone.run(12)
    offset = next(at for at in alone.written(BUNDLE) if b'"kind":"assert"' in (alone.channel[at][1] or b""))
    full, joiner = View(0, 1), Joiner(0, 1)
    for at, (key, value, ms) in enumerate(alone.channel[: offset + 1]):
        record = RecordRead(Topic.CHANNEL, 0, at, ms, key, value)
        full.read(record.offset, record.key, record.value)
        if at in (0, offset):
            joiner.read(record.offset, record.key, record.value)
    for view in (full, joiner.view()):
        key_state = view.get(BUNDLE.decode())
        assert (key_state.operation, key_state.flow) == ("op-1", flow)
