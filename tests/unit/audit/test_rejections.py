"""Rejected records by reason, writer and winner, of one part of a log and of several; and lost races."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from statechannel.audit.moments import AsOf, LogWindow
from statechannel.audit.rejections import (
    GROUPS_MAX,
    OTHERS,
    LostRaces,
    RejectionGroup,
    Rejections,
    RejectionTally,
    added_up,
    as_rows,
    race_counts,
    rejected_document,
)
from statechannel.protocol.bundle import partition_of
from statechannel.protocol.log import RecordRead
from statechannel.protocol.view import Judgement, View
from tests.support.report_logs import START_MS, LogMaker

BUNDLE = "t/n/0x00000000_0xffffffff"


def observed(log: LogMaker, *observers: Callable[[RecordRead, Judgement], None]) -> None:
    view = View(0, 1)
    for record in log.records:
        judgement = view.read(record.offset, record.key, record.value)
        for observe in observers:
            observe(record, judgement)


def contested() -> LogMaker:
    """Offsets 3 to 9 are rejected, except 6; a second lies between them."""
    log = LogMaker()
    log.namespace("t/n", 1)
    log.assign(BUNDLE, "b2")

    def put(key: str, value: dict[str, Any] | bytes) -> None:
        log.now_ms = START_MS + 1_000 * len(log.records)
        log.put(key, value)

    stale: dict[str, Any] = {"version": 1, "from": "b2", "operation": "op"}
    put(BUNDLE, log.proposal(BUNDLE, "Releasing", "b3", **stale))
    put(BUNDLE, log.proposal(BUNDLE, "Releasing", "b3", **stale))
    put(BUNDLE, log.proposal(BUNDLE, "Releasing", "b4", **stale))
    log.move(BUNDLE, "Releasing", "b2", **{"from": "b2"})
    put(BUNDLE, b"junk")
    put("t/m", log.proposal("t/m", "Deleted", "b3") | {"version": 9, "base": "x"})
    put("t/n", log.proposal("t/n", "Deleted", "b5") | {"version": 1})
    return log


def table(rejections: Rejections, name: str) -> list[tuple[Any, ...]]:
    rows = rejected_document(rejections)[name]
    for row in rows:
        row |= {"first_ms": row["first_ms"] - START_MS, "last_ms": row["last_ms"] - START_MS}
    return [tuple(row.values()) for row in rows]


def test_rejected_records_are_counted_by_reason_writer_and_winner() -> None:
    rejections = Rejections()
    observed(contested(), rejections.observe)
    assert table(rejections, "groups") == [
        ("stale-version", "b3", "b2", 2, 3_000, 4_000),
        ("stale-version", "b4", "b2", 1, 5_000, 5_000),
        ("stale-version", "b5", "b1", 1, 9_000, 9_000),
        ("undecodable", None, "b2", 1, 7_000, 7_000),
        ("unknown-bundle", "b3", None, 1, 8_000, 8_000),
    ]
    assert table(rejections, "by_reason") == [
        ("stale-version", 4, 3_000, 9_000),
        ("undecodable", 1, 7_000, 7_000),
        ("unknown-bundle", 1, 8_000, 8_000),
    ]
    expected = [("b3", 3, 3_000, 8_000), (None, 1, 7_000, 7_000), ("b4", 1, 5_000, 5_000), ("b5", 1, 9_000, 9_000)]
    assert table(rejections, "by_writer") == expected
    assert rejected_document(rejections)["records"] == 6
    names = ("offset", "writer", "version", "state", "operation", "winner")
    newest = [tuple(row[name] for name in names) for row in rejected_document(rejections)["newest"]]
    assert [(*row[:5], row[5] and row[5]["by"]) for row in newest] == [
        (3, "b3", 1, "Releasing", "op", "b2"),
        (4, "b3", 1, "Releasing", "op", "b2"),
        (5, "b4", 1, "Releasing", "op", "b2"),
        (7, None, None, None, None, "b2"),
        (8, "b3", 9, "Deleted", None, None),
        (9, "b5", 1, "Deleted", None, "b1"),
    ]


@pytest.mark.parametrize(
    ("by", "window", "offsets"),
    [
        (None, LogWindow(), [3, 4, 5, 7, 8, 9]),
        ("b3", LogWindow(), [3, 4, 8]),
        ("b9", LogWindow(), []),
        (None, LogWindow(AsOf(offset=4), AsOf(offset=7)), [4, 5, 7]),
        ("b3", LogWindow(AsOf(time_ms=START_MS + 4_000)), [4, 8]),
    ],
)
def test_only_records_of_a_broker_or_in_a_window(by: str | None, window: LogWindow, offsets: list[int]) -> None:
    rejections = Rejections(window=window, by=by)
    observed(contested(), rejections.observe)
    assert [row["offset"] for row in rejected_document(rejections)["newest"]] == offsets
    assert rejected_document(rejections)["records"] == len(offsets)


def test_parts_of_a_log_add_up_to_the_whole() -> None:
    log, whole, view = contested(), Rejections(), View(0, 1)
    parts = [Rejections(), Rejections(), Rejections()]
    for number, record in enumerate(log.records):
        judgement = view.read(record.offset, record.key, record.value)
        whole.observe(record, judgement)
        parts[number % 3].observe(record, judgement)
    for order in (parts, parts[::-1]):
        total = added_up(as_rows(part) for part in order)
        assert rejected_document(total) == rejected_document(whole)


def test_keys_that_are_none_are_counted_too() -> None:
    log, rejections, races = LogMaker(), Rejections(), LostRaces()
    log.put("nonsense", b"junk")
    log.put("t/n", b"junk")
    log.records.append(log.records[0]._replace(offset=2, key=None))
    observed(log, rejections.observe, races.observe)
    newest = rejected_document(rejections)["newest"]
    expected = [("nonsense", "undecodable", None), ("t/n", "undecodable", None), ("", "undecodable", None)]
    assert [(row["key"], row["reason"], row["winner"]) for row in newest] == expected
    wrong = View(1 - partition_of("t/n", 2), 2)
    value = orjson.dumps(log.proposal("t/n", "Active", children=["0x00000000_0xffffffff"]))
    races.observe(log.records[1], wrong.read(0, b"t/n", value))
    assert not races.counts


def test_the_number_of_groups_is_bounded() -> None:
    rejections = Rejections()
    for number in range(GROUPS_MAX + 2):
        rejections.add(RejectionGroup("stale-version", f"b{number}", "b"), RejectionTally(1, number, number))
    rejections.add(RejectionGroup("stale-version", "b7", "b"), RejectionTally(5, 3, 9))
    assert len(rejections.tallies) == GROUPS_MAX + 1
    assert rejections.tallies[RejectionGroup("stale-version", "b7", "b")] == RejectionTally(6, 3, 9)
    others = rejections.tallies[RejectionGroup("stale-version", OTHERS, None)]
    assert others == RejectionTally(2, GROUPS_MAX, GROUPS_MAX + 1)


def test_lost_races_are_rejected_proposals() -> None:
    races, log = LostRaces(), contested()
    observed(log, races.observe)
    counts = [tuple(row.values()) for row in race_counts(races)]
    assert counts == [
        ("stale-version", "b3", "b2", 2),
        ("stale-version", "b4", "b2", 1),
        ("stale-version", "b5", "b1", 1),
        ("unknown-bundle", "b3", None, 1),
    ]
