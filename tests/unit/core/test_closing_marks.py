"""Marks of namespaces that are being deleted: what counts as one, and for how long."""

import orjson
import pytest

from statechannel.protocol.codec import CLOSING_PREFIX
from tests.support.lone_engine import LoneEngine

KEY = CLOSING_PREFIX + b"t/n"


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"{}", b'{"for_ms":"9"}', b'{"for_ms":0}', b'{"for_ms":120001}'])
def test_what_is_malformed_or_too_long_is_no_mark(value):
    alone = LoneEngine([])
    alone.put(KEY, value)
    assert not alone.engine.closing_marks.holds("t/n")


def test_a_mark_ends_by_the_time_of_the_log():
    alone = LoneEngine([])
    alone.put(KEY, orjson.dumps({"for_ms": 2_000}))
    assert alone.engine.closing_marks.holds("t/n")
    alone.run(1)
    assert alone.engine.closing_marks.holds("t/n")
    alone.run(2)
    alone.put(b"!later", b"")
    assert not alone.engine.closing_marks.holds("t/n")


def test_old_marks_do_not_pile_up():
    alone = LoneEngine([])
    for number in range(3_000):
        alone.put(CLOSING_PREFIX + b"t/n%d" % number, orjson.dumps({"for_ms": 1}))
        if number % 500 == 0:
            alone.run(0.1)
    assert len(alone.engine.closing_marks._marks) < 2_000
