"""Marks of namespaces that are being deleted: what counts as one, and for how long."""

from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from statechannel.engine.controls import MARKS_BEFORE_CLEANING, ClosingMarks
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


def marks(**log: Any) -> tuple[ClosingMarks, Any]:
    """Marks of a context of one partition whose log time and key of `t/n` the test sets."""
    context: Any = SimpleNamespace(
        config=SimpleNamespace(closing_mark_s=2.0),
        partition_of=lambda _: 0,
        replicas=[SimpleNamespace(timestamp_ms=log.get("now_ms", 0))],
        key=lambda _: log.get("key"),
    )
    return ClosingMarks(context), context


def value(for_ms: int) -> bytes:
    return orjson.dumps({"for_ms": for_ms})


@pytest.mark.parametrize(("for_ms", "counts"), [(-1, False), (0, False), (1, True), (2_000, True), (2_001, False)])
def test_the_longest_mark_is_that_of_the_setting(for_ms, counts):
    kept, _ = marks()
    kept.read(KEY, value(for_ms), 5, 0)
    assert kept.holds("t/n") is counts


@pytest.mark.parametrize(("now_ms", "holds"), [(2_999, True), (3_000, False), (3_001, False)])
def test_a_mark_ends_at_its_last_moment(now_ms, holds):
    kept, _ = marks(now_ms=now_ms)
    kept.read(KEY, value(2_000), 5, 1_000)
    assert kept.holds("t/n") is holds


@pytest.mark.parametrize(("offset", "holds"), [(4, True), (5, True), (6, False)])
def test_a_record_of_the_namespace_above_the_mark_ends_it(offset, holds):
    kept, context = marks(key=SimpleNamespace(offset=offset))
    kept.read(KEY, value(2_000), 5, 0)
    assert kept.holds("t/n") is holds
    context.key = lambda _: None
    assert kept.holds("t/n") is holds  # an ended mark stays ended


@pytest.mark.parametrize("newer", [None, 9])
def test_two_threads_that_find_an_ended_mark_do_not_hinder_each_other(newer):
    kept, context = marks()
    kept.read(KEY, value(2_000), 5, 0)

    def key(_: str) -> Any:
        kept._marks.pop("t/n", None)  # as another thread does that asks for the same namespace
        if newer is not None:
            kept.read(KEY, value(2_000), newer, 0)  # or the engine's, which goes on reading
        return SimpleNamespace(offset=6)

    context.key = key
    assert not kept.holds("t/n")
    assert kept.mentions("t/n") is (newer is not None)


def test_the_table_is_cleaned_only_where_it_is_full_and_of_expired_marks_only():
    kept, _ = marks()
    for number in range(MARKS_BEFORE_CLEANING):
        kept.read(CLOSING_PREFIX + b"t/n%d" % number, value(1_000), number, 0)
    kept.read(CLOSING_PREFIX + b"t/n0", value(1_000), 5_000, 1_000)  # replaces one: full, not above
    assert len(kept._marks) == MARKS_BEFORE_CLEANING
    kept.read(CLOSING_PREFIX + b"t/new", value(1_000), 5_001, 1_000)
    assert set(kept._marks) == {"t/n0", "t/new"}
