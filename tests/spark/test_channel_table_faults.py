"""The job's batches where something goes wrong: against the same decisions without Spark, and against the core's audit."""

from __future__ import annotations

from dataclasses import asdict, replace
from random import Random
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from spark.channel.plan import place_fields
from spark.channel.published import PublishedChanges
from spark.core.store import Pointer, SnapshotStore
from spark.errors import NewerFormatError
from statechannel.protocol.codec import newer_format
from statechannel.protocol.digest import digest
from statechannel.protocol.log import RecordRead, Topic
from statechannel.replay import auditor
from statechannel.replay.survey import join_facts
from tests.spark.channel_frames import LAG_MS, LogTopic, archived, frame_of, pieces, table_on
from tests.support.clean_logs import clean_lines
from tests.support.cold_start_logs import cold_start_log
from tests.support.lone_engine import heartbeat
from tests.support.pure_table import PureTable
from tests.twin import loggen
from tests.twin.compaction import clean_once
from tests.unit.core.against_twin import KNOBS, record_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from spark.channel.table import ChannelTable


def pointer_of(folder: Path) -> Pointer:
    pointer = SnapshotStore(str(folder / "view")).latest()
    assert pointer is not None
    return pointer


class Both:
    """The job's table and the one without Spark, told the same."""

    def __init__(self, session: SparkSession, folder: Path, topic: int | LogTopic) -> None:
        self.folder = folder
        self.topic = LogTopic(session, topic) if isinstance(topic, int) else topic
        self.pure = PureTable(self.topic.partitions)
        self.table = table_on(self.topic, folder, wall_ms=lambda: self.pure.now_ms)

    def has(self, records: Sequence[RecordRead], now_ms: int | None = None) -> None:
        """What lies in Kafka now."""
        self.topic.records = self.pure.topic = list(records)
        self.pure.now_ms = max(record.timestamp_ms for record in records) if now_ms is None else now_ms

    def take(self, batch: Sequence[RecordRead]) -> None:
        """A batch comes; both must have made the same of it."""
        self.pure.process(batch)
        try:
            self.table.process(frame_of(self.topic.session, batch))
        finally:
            meta = pointer_of(self.folder).meta
            assert meta["digest"] == self.pure.digest()
            assert meta["tentative"] is self.pure.tentative
            assert meta["partitions"] == {
                str(n): place_fields(self.pure.place(n)) for n in range(self.topic.partitions)
            }

    def check(self) -> dict[str, Any]:
        """The archive, and what is told beside it; returns the pointer's meta."""
        rows = archived(self.folder)
        verdicts = self.pure.verdicts()
        assert [(row["partition"], row["offset"]) for row in rows] == sorted(verdicts)
        assert {(row["partition"], row["offset"]): row["verdict"] for row in rows} == verdicts
        meta = pointer_of(self.folder).meta
        results = [item | {"strict_from": None} for item in meta["incomplete"]]
        assert results == [asdict(replace(rule, strict_from=None)) for rule in self.pure.missing]
        return meta


def records_of(log: loggen.Log) -> list[RecordRead]:
    return [record_of(line) for line in log.lines]


def test_wild_junk(session: SparkSession, tmp_path: Path) -> None:
    partitions, seed = 8, 12
    log = loggen.generate(seed, replace(KNOBS["wild"], partitions=partitions, newer=0, namespaces=8))
    both = Both(session, tmp_path, partitions)
    records = records_of(log)
    both.has(records)
    generator = Random(seed)
    for piece in pieces(records, [generator.randrange(len(records))]):
        both.take(generator.sample(piece, len(piece)))
    both.check()


def test_a_newer_format_and_a_gap_behind_it(session: SparkSession, tmp_path: Path) -> None:
    """It stops with all before it published, however often it is started; the upgraded one goes on, and tells of the gap once."""
    log = loggen.generate(3, replace(KNOBS["newer"], partitions=2))
    records = records_of(log)
    stop = next(r for r in records if newer_format(r.key, r.value))
    behind = [r.offset for r in records if r.partition == stop.partition and r.offset > stop.offset]
    assert len(behind) > 12
    records = [r for r in records if r.partition != stop.partition or r.offset not in behind[4:8]]
    both = Both(session, tmp_path, 2)
    both.has(records)
    for _ in range(2):
        with pytest.raises(NewerFormatError, match=f"offset {stop.offset} of bundle-state-{stop.partition} "):
            both.take(records)
    assert both.check()["incomplete"] == []
    known = [r._replace(value=b"junk") if r is stop else r for r in records]
    both.has(known)
    # Rows of the other partition alone: nothing has stopped there.
    both.take([r for r in known if r.partition != stop.partition])
    both.take(known)
    meta = both.check()
    assert [(item["from_offset"], item["to_offset"]) for item in meta["incomplete"]] == [(stop.offset, behind[7])]
    assert len(archived(tmp_path)) == len(records)


HALF = 60


def cleaned() -> tuple[list[RecordRead], list[RecordRead], int]:
    """A log, what the cleaner has left of it hours later, and the offset from which on caught-up members wrote again."""
    lines = clean_lines(21, 250)
    clean_to = len(lines) - 1
    assert clean_to > 2 * HALF
    now_ms = lines[-1].timestamp_ms + 2 * LAG_MS
    later = [
        RecordRead(Topic.CHANNEL, 0, clean_to + 1 + number, now_ms, key, value)
        for number, (key, value) in enumerate(
            [(b"!heartbeat", heartbeat("m-1", clean_to)), (b"a/b", b"junk"), (b"!heartbeat", heartbeat("m-1", -1))]
        )
    ]
    kept = clean_once(lines, Random(1), now_ms, LAG_MS, whole=True)
    assert len(kept) < len(lines) - HALF
    return [record_of(line) for line in lines], [*map(record_of, kept), *later], clean_to + 1


def digest_of_joiner(records: list[RecordRead]) -> str:
    part = auditor.audit_part(0, 1, records, join_facts(records, oldest_kept_ms=records[-1].timestamp_ms - LAG_MS))
    assert not part.tentative
    return digest([part.view])


class TestCleaner:
    def test_the_log_is_cleaned_between_batches(self, session: SparkSession, tmp_path: Path) -> None:
        """A gap that nobody vouches for, then somebody does: as the brokers' view, nothing doubled, told of as incomplete."""
        records, left, later = cleaned()
        both = Both(session, tmp_path, 1)
        half = records[:HALF]
        both.has(half)
        both.take(half)
        before = pointer_of(tmp_path).meta["partitions"]["0"]["position"]
        quiet = [r for r in left if r.offset < later]
        both.has(quiet, left[-1].timestamp_ms)
        both.take(quiet)
        meta = both.check()
        assert meta["tentative"] is True
        assert [item["strict_from"] for item in meta["incomplete"]] == [None]
        both.has(left)
        both.take([r for r in left if r.offset >= later])
        meta = both.check()
        assert meta["tentative"] is False
        assert [(item["from_offset"], item["strict_from"]) for item in meta["incomplete"]] == [(before, later)]
        assert meta["digest"] == digest_of_joiner(left)
        rows = archived(tmp_path)
        assert {row["verdict"] for row in rows if HALF <= row["offset"] < later} == {None}
        assert None not in {row["verdict"] for row in rows if row["offset"] < HALF or row["offset"] >= later}

    def test_a_late_first_start_and_a_cleaner_that_is_faster_than_the_join(
        self, session: SparkSession, tmp_path: Path
    ) -> None:
        """What the batch brought is archived, though it is gone from Kafka when the whole log is read."""
        _, left, _ = cleaned()
        both = Both(session, tmp_path, 1)
        both.has([r for r in left if r.offset % 2])
        both.take(left)
        meta = both.check()
        assert [(item["from_offset"], item["from_ms"]) for item in meta["incomplete"]] == [(0, 0)]
        assert [row["offset"] for row in archived(tmp_path)] == [r.offset for r in left]


class TestColdStart:
    def test_the_view_joins_and_tells_what_was_overruled(self, session: SparkSession, tmp_path: Path) -> None:
        records, alone = cold_start_log(differs=True)
        mark = alone.written(b"!cold-start")[0]
        both = Both(session, tmp_path, 1)
        both.has(records)
        both.take(records[: mark + 1])
        assert both.check()["cold_starts"] == []
        both.take(records[mark - 2 :])
        meta = both.check()
        assert meta["digest"] == digest([alone.engine.replicas[0].view])
        (result,) = meta["cold_starts"]
        assert result["differences"] == [difference._asdict() for difference in both.pure.differences]
        assert result["differences_count"] == 1
        assert None not in both.pure.verdicts().values()


class Counting(LogTopic):
    """Counts the offsets that are asked for."""

    read = 0

    def whole(self, ends: Mapping[int, int]) -> DataFrame:
        self.read += sum(ends.values())
        return super().whole(ends)


class TestBacklog:
    """The cleaner was everywhere, and nobody vouches."""

    def test_a_backlog_that_was_compacted_is_not_read_again_with_each_batch(
        self, session: SparkSession, tmp_path: Path
    ) -> None:
        topic = Counting(session, 1)
        both = Both(session, tmp_path, topic)
        log = [RecordRead(Topic.CHANNEL, 0, 2 * n + 1, n, b"t/ns", b"junk") for n in range(40)]
        both.has(log, 10 * LAG_MS)
        for piece in pieces(log, range(10, 40, 10)):
            both.take(piece)
        # Each reading goes twice as far as the one before, and the last one to the end.
        assert topic.read <= 2 * 80, "a log of 80 offsets"
        meta = both.check()
        assert [(item["from_offset"], item["to_offset"]) for item in meta["incomplete"]] == [(0, 78)]
        assert (meta["tentative"], meta["partitions"]["0"]["read_to"]) == (True, 80)

    def test_the_end_of_a_dead_log_is_in_the_view(self, session: SparkSession, tmp_path: Path) -> None:
        """Though nothing was cleaned away there; and what is told is told once, also when somebody vouches at last."""
        _, left, later = cleaned()
        dead = [r for r in left if r.offset < later]
        both = Both(session, tmp_path, Counting(session, 1))
        both.has(dead, left[-1].timestamp_ms)
        count = len(dead)
        for piece in pieces(dead, [count // 2, count - 6]):
            both.take(piece)
        meta = both.check()
        assert (meta["tentative"], meta["partitions"]["0"]["read_to"]) == (True, later)
        whole = Both(session, tmp_path / "whole", LogTopic(session, 1))
        whole.has(dead, left[-1].timestamp_ms)
        whole.take(dead)
        assert meta["digest"] == pointer_of(tmp_path / "whole").meta["digest"]
        both.has(left)
        both.take([r for r in left if r.offset >= later])
        meta = both.check()
        assert meta["digest"] == digest_of_joiner(left)
        assert [item["strict_from"] for item in meta["incomplete"]] == [later]


def _proposal(key: str, offset: int, identity: str, version: int, base: str | None, **more: Any) -> RecordRead:
    fields = {"format": 1, "kind": "proposal", "id": identity, "covers": offset - 1, "version": version, "base": base}
    value = orjson.dumps(fields | {"by": {"broker": "b", "incarnation": "i"}} | more)
    return RecordRead(Topic.CHANNEL, 0, offset, 1_000 + offset, key.encode(), value)


def test_the_topic_of_changes_ends_with_the_view_after_a_crash(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the pointer, and the checkpoint lost: the next batch is another one, in which a key comes and goes."""
    results: dict[bytes, bytes | None] = {}
    log = [
        _proposal("t/ns", 0, "a", 1, None, state="Active", children=["0x00000000_0xffffffff"]),
        _proposal("t/ns", 1, "b", 2, "a", state="Deleted"),
    ]
    topic = LogTopic(session, 1)
    topic.records = log

    def table() -> ChannelTable:
        return table_on(topic, tmp_path, changes=PublishedChanges(store, "out", lambda rows: take_in(results, rows)))

    store = SnapshotStore(str(tmp_path / "view"))
    with monkeypatch.context() as patch:
        patch.setattr(SnapshotStore, "publish", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            table().process(frame_of(session, log[:1]))
    table().process(frame_of(session, log))
    assert archived(tmp_path)[1]["verdict"] == "accepted"
    assert {key for key, value in results.items() if value is not None} == {b"t/ns"}


def take_in(records: dict[bytes, bytes | None], rows: Any) -> None:
    records.update({bytes(row["key"]): row["value"] for row in rows.collect()})
