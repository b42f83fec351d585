"""View and archive out of batches against the core's audit of the whole log: the same verdicts, the same digest."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from spark.core.store import SnapshotStore
from spark.replay.logs import archive_log
from statechannel.protocol.log import RecordRead, Topic
from tests.spark.channel_frames import LogTopic, archived, frame_of, pieces, table_on
from tests.support.lone_engine import heartbeat
from tests.support.pure_table import audited
from tests.twin import loggen
from tests.unit.audit import test_lost_head as lost_head
from tests.unit.core.against_twin import KNOBS, record_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def in_arrival_order(log: loggen.Log, seed: int) -> list[RecordRead]:
    """Records of all partitions as a query may get them: each partition in order, mixed with the others."""
    generator = Random(seed)
    queues = [[record_of(line) for line in log.lines if line.partition == number][::-1] for number in log.end_offsets]
    results = []
    while any(queues):
        queue = generator.choice([queue for queue in queues if queue])
        results.append(queue.pop())
    return results


@pytest.mark.parametrize(("knobs", "seed"), [("junky", 2), ("wild", 3)])
def test_batches_make_the_brokers_view(session: SparkSession, tmp_path: Path, knobs: str, seed: int) -> None:
    log = loggen.generate(seed, KNOBS[knobs])
    topic = LogTopic(session, len(log.end_offsets))
    topic.records = in_arrival_order(log, seed)
    generator = Random(seed)
    cuts = [generator.randrange(len(topic.records)) for _ in range(3)]
    table = table_on(topic, tmp_path)
    for number, piece in enumerate(pieces(topic.records, cuts)):
        generator.shuffle(piece)
        table.process(frame_of(session, piece))
        if number == 1:
            # A batch that is repeated, and a process that begins anew.
            table = table_on(topic, tmp_path)
            table.process(frame_of(session, piece))
    answer, verdicts = audited(topic.records, log.end_offsets)
    pointer = SnapshotStore(str(tmp_path / "view")).latest()
    assert pointer is not None
    assert pointer.meta["digest"] == answer["digest"]
    assert pointer.meta["tentative"] is False
    rows = archived(tmp_path)
    assert {(row["partition"], row["offset"]): row["verdict"] for row in rows} == verdicts
    assert len(rows) == len(topic.records)
    assert [(row["key"], row["value"]) for row in rows] == [
        (record.key, record.value) for record in sorted(topic.records, key=lambda r: (r.partition, r.offset))
    ]


def test_names_of_folders(session: SparkSession, tmp_path: Path) -> None:
    log = loggen.generate(1, KNOBS["honest"])
    topic = LogTopic(session, len(log.end_offsets))
    records = in_arrival_order(log, 1)
    topic.records = [
        record._replace(timestamp_ms=86_400_000 * (1 + n * 3 // len(records))) for n, record in enumerate(records)
    ]
    folder = tmp_path / "a b#ü x[1] 50%20"
    table = table_on(topic, folder)
    for piece in pieces(topic.records, [10, 20]):
        table.process(frame_of(session, piece))
    assert [(row["partition"], row["offset"]) for row in archived(folder)] == sorted(
        (record.partition, record.offset) for record in records
    )
    assert archive_log(session, str(folder)).rows.count() == len(records)
    assert [path.name for path in tmp_path.iterdir()] == ["a b#ü x[1] 50%20"]


def test_days_that_are_over_become_one_batch(session: SparkSession, tmp_path: Path) -> None:
    log = loggen.generate(1, KNOBS["honest"])
    topic = LogTopic(session, len(log.end_offsets))
    day_ms = 86_400_000
    records = in_arrival_order(log, 1)
    step_ms = 3 * day_ms // len(records)
    topic.records = [record._replace(timestamp_ms=day_ms + step_ms * number) for number, record in enumerate(records)]
    table = table_on(topic, tmp_path)
    count = len(topic.records)
    for piece in pieces(topic.records, [count // 6, count // 3, count // 2, 2 * count // 3]):
        table.process(frame_of(session, piece))
    days = sorted(folder.name for folder in (tmp_path / "archive").iterdir())
    assert days == ["dt=1970-01-02", "dt=1970-01-03", "dt=1970-01-04"]
    assert len(list((tmp_path / "archive/dt=1970-01-02").iterdir())) == 1
    _, verdicts = audited(topic.records, log.end_offsets)
    rows = archived(tmp_path)
    assert {(row["partition"], row["offset"]): row["verdict"] for row in rows} == verdicts
    assert len(rows) == count


def test_a_view_of_a_log_that_has_lost_its_head_is_tentative_until_it_was_restated(
    session: SparkSession, tmp_path: Path
) -> None:
    """A heartbeat alone vouches for what its writer knows, and that is more than the log has."""
    restated = len(lost_head.ROWS) + len(lost_head.RESTATED)
    head = (lost_head.head_mark(lost_head.FIRST), (b"!heartbeat", heartbeat("b-1", restated)))
    rows = enumerate([*lost_head.ROWS, *lost_head.RESTATED, *head])
    topic = LogTopic(session, 1)
    topic.first = lost_head.FIRST
    topic.records = [RecordRead(Topic.CHANNEL, 0, at, at, *row) for at, row in rows if at >= topic.first]
    table = table_on(topic, tmp_path)
    found = []
    for batch in pieces(topic.records, [len(lost_head.ROWS) - topic.first]):
        table.process(frame_of(session, batch))
        pointer = SnapshotStore(str(tmp_path / "view")).latest()
        assert pointer is not None
        found.append((pointer.meta["tentative"], pointer.meta["keys"]))
    assert found == [(True, 0), (False, 2)]
