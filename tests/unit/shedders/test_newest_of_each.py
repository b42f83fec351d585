"""What `snapshot take` keeps of a load topic: what the fold of the whole topic would keep, within a bound."""

import random

import pytest

from loaddata.report.record import BrokerLoadReport
from loaddata.view.table_view import TableView
from shedders.queries.live_source import NewestRecords
from statechannel.protocol.side_record import SideRecord
from tests.support.load_reports import null, read, record


def held(records: list[SideRecord]) -> dict[str, int]:
    view: TableView[BrokerLoadReport] = TableView()
    for line in records:
        read(view, line)
    return {name: entry.offset for name, entry in view.seen(0.0).items()}


@pytest.mark.parametrize("seed", range(10))
def test_the_fold_of_what_is_kept_is_the_fold_of_all(seed: int) -> None:
    rng = random.Random(seed)
    records = []
    for offset in range(200):
        name = f"b{rng.randrange(8)}"
        if rng.random() < 0.3:
            records.append(null(name, offset, rng.randrange(offset + 1)))
        else:
            records.append(record(name, offset, seq=offset + 1))
    kept = NewestRecords(100, 10**9)
    for entry in records:
        kept.add(entry)
    assert len(kept.records) <= 16
    assert [record.offset for record in kept.records] == sorted(record.offset for record in kept.records)
    newest_nulls = {record.key: record for record in records if record.value is None}
    # Of several nulls the newest is kept; one before it that named more is as gone as after compaction.
    plain = [record for record in records if record.value is not None or newest_nulls[record.key] is record]
    assert held(kept.records) == held(plain)
    assert kept.left_out == 0


def test_what_finds_no_room_is_left_out_and_counted() -> None:
    size_bytes = len(record("b1").value or b"") + 2
    kept = NewestRecords(100, 2 * size_bytes)
    for offset, name in enumerate(["b1", "b2", "b3", "b1", "b4"]):
        kept.add(record(name, offset, seq=offset + 1))
    assert ([record.offset for record in kept.records], kept.left_out) == ([1, 3], 2)
    kept.clear()
    kept.add(record("b3", 0))
    assert ([record.offset for record in kept.records], kept.left_out) == ([0], 0)
    few = NewestRecords(1, 10**9)
    for offset, name in enumerate(["b1", "b2", "b1"]):
        few.add(null(name, offset, 0))
    assert ([record.offset for record in few.records], few.left_out) == ([2], 1)
