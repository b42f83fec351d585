"""What is a mark of a cold start, and which marks count, field by field and offset by offset (protocol.md section 5)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from statechannel.protocol.codec import COLD_START_KEY, HEARTBEAT_KEY, MAX_INT
from statechannel.protocol.cold_start_marks import Mark, Marks, decode_mark
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.record import Record
from tests.support.lone_engine import heartbeat, mark

BY = {"broker": "b", "incarnation": "b-1"}


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"through": 7, "by": BY}, id="as it is written"),
        pytest.param({"through": 7, "by": BY | {"more": 1}, "format": 9}, id="with fields of another version"),
    ],
)
def test_a_mark_says_who_had_read_how_far(fields: dict[str, Any]) -> None:
    assert decode_mark(orjson.dumps(fields)) == Mark("b-1", 7)


@pytest.mark.parametrize("through", [-1, 0, MAX_INT])
def test_it_may_say_any_offset(through: int) -> None:
    assert decode_mark(mark("b-1", through)) == Mark("b-1", through)


@pytest.mark.parametrize(
    "loaded",
    [
        None,
        7,
        [],
        "mark",
        {},
        {"by": BY},
        {"through": 7},
        {"through": "7", "by": BY},
        {"through": 7.0, "by": BY},
        {"through": True, "by": BY},
        {"through": -2, "by": BY},
        {"through": MAX_INT + 1, "by": BY},
        {"through": 7, "by": None},
        {"through": 7, "by": ["b", "b-1"]},
        {"through": 7, "by": {"incarnation": "b-1"}},
        {"through": 7, "by": {"broker": " ", "incarnation": "b-1"}},
        {"through": 7, "by": {"broker": 7, "incarnation": "b-1"}},
        {"through": 7, "by": {"broker": "b"}},
        {"through": 7, "by": {"broker": "b", "incarnation": ""}},
        {"through": 7, "by": {"broker": "b", "incarnation": 7}},
    ],
)
def test_what_is_not_of_the_form_is_none(loaded: Any) -> None:
    assert decode_mark(orjson.dumps(loaded)) is None


@pytest.mark.parametrize("value", [None, b"", b"{", b"\xff"])
def test_what_is_no_json_is_none(value: bytes | None) -> None:
    assert decode_mark(value) is None


def test_without_any_record_none_counts() -> None:
    assert (Marks().newest, Marks().mark) == (-1, None)


@pytest.mark.parametrize(
    ("through", "counts"), [(-2, False), (-1, True), (0, True), (8, True), (9, False), (10, False)]
)
def test_it_counts_where_its_writer_had_read_something_below_it(through: int, counts: bool) -> None:
    marks = Marks()
    assert marks.read(9, mark("b-1", through)) is counts
    assert marks.newest == (9 if counts else -1)
    assert marks.mark == (Mark("b-1", through) if counts else None)


@pytest.mark.parametrize(("through", "counts"), [(3, False), (4, True), (5, True)])
@pytest.mark.parametrize("by_mark", [False, True])
def test_it_counts_where_its_writer_had_read_the_newest_word(by_mark: bool, through: int, counts: bool) -> None:
    marks = Marks()
    if by_mark:
        assert marks.read(4, mark("c-1", 3))
    else:
        marks.heartbeat_read(4)
    assert marks.read(9, mark("b-1", through)) is counts
    assert marks.newest == (9 if counts else 4 if by_mark else -1)


def test_a_void_mark_is_nobodys_word() -> None:
    marks = Marks()
    marks.heartbeat_read(4)
    assert not marks.read(5, mark("c-1", 3))
    assert not marks.read(6, b"junk")
    assert marks.read(9, mark("b-1", 4))


def record(offset: int, key: bytes | None, value: bytes | None) -> RecordRead:
    return RecordRead(Topic.CHANNEL, 0, offset, 0, key, value)


def test_a_heartbeat_is_told_and_is_a_word() -> None:
    marks = Marks()
    said = marks.control_read(record(4, HEARTBEAT_KEY, heartbeat("c-1", 3)))
    assert isinstance(said, Record)
    assert (said.incarnation, said.clean_to) == ("c-1", 3)
    assert not marks.read(9, mark("b-1", 3))
    assert marks.read(9, mark("b-1", 4))


def test_a_mark_that_counts_is_told_and_is_a_word() -> None:
    marks = Marks()
    assert marks.control_read(record(4, COLD_START_KEY, mark("c-1", 3))) == Mark("c-1", 3)
    assert marks.newest == 4
    assert marks.control_read(record(9, COLD_START_KEY, mark("b-1", 3))) is None
    assert marks.newest == 4


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param(HEARTBEAT_KEY, None, id="a heartbeat's tombstone"),
        pytest.param(HEARTBEAT_KEY, b"junk", id="junk on its key"),
        pytest.param(HEARTBEAT_KEY, mark("c-1", 3), id="a mark on its key"),
        pytest.param(COLD_START_KEY, b"junk", id="junk on the key of the marks"),
        pytest.param(COLD_START_KEY, heartbeat("c-1", 3), id="a heartbeat on it"),
        pytest.param(b"!note", heartbeat("c-1", 3), id="a heartbeat elsewhere"),
        pytest.param(b"!note", mark("c-1", 3), id="a mark elsewhere"),
        pytest.param(None, heartbeat("c-1", 3), id="no key"),
    ],
)
def test_whatever_else_is_read_is_nobodys_word(key: bytes | None, value: bytes | None) -> None:
    marks = Marks()
    assert marks.control_read(record(4, key, value)) is None
    assert marks.read(9, mark("b-1", -1))


def test_a_heartbeat_of_a_format_that_the_reader_does_not_know_is_none() -> None:
    later = heartbeat("c-1", 3).replace(b'"format":1', b'"format":2')
    marks = Marks()
    assert marks.control_read(record(4, HEARTBEAT_KEY, later)) is None
    assert marks.read(5, mark("b-1", -1))
    assert isinstance(marks.control_read(record(6, HEARTBEAT_KEY, later), 2), Record)
    assert not marks.read(9, mark("b-1", 5))
