"""Findings without a bound on their number, sums of gaps, groups of rejections, and time Unassigned on request."""

import json
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from statechannel.audit.engine import Wants
from statechannel.audit.gaps import GapCause
from statechannel.audit.history import History
from statechannel.audit.observers import Observers
from statechannel.audit.spool import Spool
from statechannel.audit.transfer.export_file import STRIDE, read_export
from statechannel.replay.auditor import audit_part
from statechannel.replay.survey import ReadFacts
from tests.unit.audit.test_story import BUNDLE, NAMESPACE, Log


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.mark.parametrize("number", [0, 1, 9, 10, 11, 95])
def test_a_spool_gives_back_all_rows_in_order_as_often_as_wanted(number: int) -> None:
    rows = [{"at": at, "text": f"\n\u2028{at}"} for at in range(number)]
    Random(number).shuffle(rows)
    in_order, as_they_came = Spool(lambda row: row["at"], held_max=10), Spool(held_max=10)
    for row in rows:
        in_order.append(row)
        as_they_came.append(row)
    for _ in range(2):
        assert len(in_order) == len(as_they_came) == number
        assert [row["at"] for row in in_order] == list(range(number))
        assert list(as_they_came) == rows
    in_order.append({"at": -1})
    assert next(iter(in_order)) == {"at": -1}


def test_rows_of_the_same_order_keep_theirs() -> None:
    spool = Spool(lambda row: row["at"], held_max=3)
    for number in range(20):
        spool.append({"at": number % 2, "number": number})
    numbers = [(row["at"], row["number"]) for row in spool]
    assert all(item < other for item, other in pairwise(numbers))


def test_an_unload_is_on_request_and_a_decline_is_not(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"})
    log.write(BUNDLE, "Unassigned", **{"from": "b1"})
    log.write(BUNDLE, "Assigning", to="b2", after_ms=10_000)
    log.write(BUNDLE, "Unassigned", **{"from": "b2"}, action="decline", by="b2")
    log.write(BUNDLE, "Assigning", to="b3", after_ms=500)
    log.write(BUNDLE, "Assigned", to="b3", by="b3")
    (gap,) = log.gaps()
    assert (gap.on_request_ms, gap.length_ms) == (10_000, 1_000 + 1_000 + 500 + 1_000)


def test_unassigned_by_repair_is_not_on_request(log: Log) -> None:
    log.assigned()
    lost = {"broker": "b1", "incarnation": "b1-i", "last_heard_ms": 3_500}
    log.write(BUNDLE, "Unassigned", forced=True, lost=lost, by="b2")
    log.write(BUNDLE, "Assigning", to="b2", after_ms=7_000)
    log.write(BUNDLE, "Assigned", to="b2", by="b2")
    (gap,) = log.gaps()
    assert (gap.cause, gap.start_ms, gap.on_request_ms) == (GapCause.OWNER_LOST, 3_500, 0)
    assert gap.length_ms == log.at_ms - 3_500


def test_an_operation_is_told_with_the_reason_that_it_began_with(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"}, to="b2", operation="op", reason="load", action="transfer", by="b9")
    log.write(BUNDLE, "Assigning", **{"from": "b1"}, to="b2", operation="op")
    history = History(BUNDLE)
    log.observe(history.observe)
    *_, first, second = history.rows
    assert first["began"] is None
    assert second["began"] == {"offset": 3, "by": "b9", "action": "transfer", "reason": "load"}
    assert (second["before"]["state"], second["before"]["generation"]) == ("Releasing", 3)
    assert (second["after"]["state"], second["after"]["to"]) == ("Assigning", "b2")


def test_a_join_in_the_middle_of_a_transfer_knows_when_the_gap_began(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"}, to="b2")
    log.write("x/y", "Deleted")
    for tentative, expected in ((False, [(BUNDLE, "transfer", 3, 4_000, "b1")]), (True, [])):
        seen = Observers(Wants(gaps=True))
        facts = ReadFacts(lenient_to=3, tentative=tentative)
        audit_part(0, 1, log.records, facts, seen.observe(), seen.join_observer)
        results = [
            (gap["bundle"], gap["cause"], gap["start_offset"], gap["start_ms"], gap["from"]) for gap in seen.end_gaps()
        ]
        assert results == expected
    history = History(NAMESPACE)
    audit_part(0, 1, log.records, ReadFacts(lenient_to=2), history.observe, history)
    assert [(row["offset"], (row["before"] or {}).get("owner")) for row in history.rows] == [(3, "b1")]


@pytest.mark.parametrize("records", [0, 1, STRIDE - 1, STRIDE, STRIDE + 1, 3 * STRIDE + 7])
def test_any_part_of_an_export_can_be_read(records: int, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    header = {"export": 1, "topic": "t", "end_offsets": {"0": records, "1": 2}, "exported_at_ms": 1}
    lines = [header] + [
        {"partition": number, "offset": offset, "timestamp_ms": offset, "key": "k", "value": f"{offset}"}
        for number, end in ((0, records), (1, 2))
        for offset in range(end)
    ]
    path.write_text("\n\n".join(json.dumps(line) for line in lines) + "\n \n")
    export = read_export(path)
    partition = export.partitions.get(0, ())
    expected = list(range(records))
    assert [record.offset for record in partition] == expected
    assert [record.offset for record in export.partitions[1]] == [0, 1]
    random = Random(records)
    for _ in range(20):
        low, high = (random.randint(-records - 2, records + 2) for _ in range(2))
        assert [record.offset for record in partition[low:high]] == expected[low:high]
        inner = partition[low:][: max(0, high)]
        assert [record.offset for record in inner] == expected[low:][: max(0, high)]
        if records:
            at = random.randrange(-records, records)
            assert partition[at].offset == expected[at]
    with pytest.raises(IndexError):
        partition[records]
