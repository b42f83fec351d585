"""load-views on batch frames: what is written is whole and there once, whatever happens between two writes."""

import pickle
from collections.abc import Mapping
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset
import pytest

from loaddata.report.record import ReportKind, Tombstone
from spark.core.streaming import Streaming
from spark.errors import TableChangedError, TableFormatError, TopicBrokenError
from spark.load import views
from spark.load.options import LoadViewsOptions
from spark.load.table import fold_rows, rows_of
from spark.load.views import LoadViews
from statechannel.errors import ExitCode
from statechannel.kafka.admin import OffsetBounds
from statechannel.kafka.client_settings import ClientSettings
from statechannel.protocol.side_record import SideRecord
from tests.support.load_reports import NOW_MS, null, record
from tests.support.load_rows import KINDS, SOURCE, TOPICS, source_row, top_record

DAY_MS = 86_400_000
NEVER = ClientSettings("127.0.0.1:1")
TRIGGER_S = 20.0
"""A batch so often is as usual: a time to live passes in few of them."""


class Asker:
    """Kafka's answers, as the test sets them."""

    def __init__(self) -> None:
        self.names: Mapping[ReportKind, str] = TOPICS
        self.topic_ids = {ReportKind.BROKER_LOAD: "id-1", ReportKind.TOP_BUNDLES: "id-2"}
        self.ends = dict.fromkeys(ReportKind, OffsetBounds(0, 0))

    def ids(self) -> dict[ReportKind, str]:
        return dict(self.topic_ids)

    def bounds(self) -> dict[ReportKind, OffsetBounds]:
        return dict(self.ends)


class World:
    """A job without a query: batches are handed to it, in the columns of Kafka's source."""

    def __init__(self, session, folder: Path) -> None:
        self.session, self.folder = session, folder
        self.asker = Asker()
        self.now_s = 1_000.0
        self.job = self.started()

    def started(self, **more: object) -> LoadViews:
        streaming = Streaming(NEVER, "c", str(self.folder / "checkpoint"), trigger_s=TRIGGER_S)
        options = LoadViewsOptions(
            str(self.folder / "table"), ttl_s=100.0, grace_s=10.0, **{"tombstones": False, "keep": 3, **more}
        )
        clocks = {"mono_s": lambda: self.now_s, "now_ms": lambda: NOW_MS}
        job = LoadViews(self.session, streaming, options, asker=self.asker, **clocks)
        job.open()
        self.job = job
        return job

    def frame(self, loads: list[SideRecord], tops: list[SideRecord]):
        """What the query would hand over: the records, and a tick without a topic."""
        listed = [source_row(one, kind) for kind, some in zip(ReportKind, (loads, tops), strict=True) for one in some]
        for one in listed:
            kind = ReportKind.BROKER_LOAD if one.topic == TOPICS[ReportKind.BROKER_LOAD] else ReportKind.TOP_BUNDLES
            self.asker.ends[kind] = OffsetBounds(0, max(self.asker.ends[kind].high, one.offset + 1))
        tick = dict.fromkeys(SOURCE.names)
        table = pa.Table.from_pylist([*(one._asdict() for one in listed), tick], schema=SOURCE)
        frame = self.session.createDataFrame(table)
        return frame.selectExpr(
            "topic", "offset", "timestamp_millis(timestamp_ms) as timestamp", "key", "value", "headers"
        )

    def take(self, *loads: SideRecord, tops: list[SideRecord] | None = None) -> None:
        self.job.take(self.frame(list(loads), tops or []), 0)

    def history(self) -> list[tuple[object, ...]]:
        """Read without Spark, which would take longer than a batch."""
        found = pyarrow.dataset.dataset(self.folder / "table" / "history", format="parquet")
        columns = ["kind", "offset", "topic_id", "fate", "reason"]
        rows = sorted(tuple(row[name] for name in columns) for row in found.to_table(columns=columns).to_pylist())
        return [(kind, offset, fate, reason) for kind, offset, _, fate, reason in rows]

    def history_by_spark(self) -> list[tuple[object, ...]]:
        found = self.session.read.parquet(str(self.folder / "table" / "history"))
        rows = found.select("kind", "offset", "fate", "reason").orderBy("kind", "offset", "topic_id").collect()
        return [tuple(row) for row in rows]

    def view(self, kind: ReportKind = ReportKind.BROKER_LOAD) -> dict[str, int]:
        pointer = self.job.table.views.latest()
        assert pointer is not None
        folder = self.job.table.views.folder(pointer.sequence)
        found = pyarrow.dataset.dataset(f"{folder.path}/{kind}", format="parquet").to_table(
            columns=["broker", "offset"]
        )
        return {row["broker"]: row["offset"] for row in found.to_pylist()}


@pytest.fixture
def world(session, tmp_path) -> World:
    return World(session, tmp_path)


def test_views_and_history_and_who_can_read_them(world) -> None:
    world.take(
        record("b1", offset=0, owned_as_of={0: 5}),
        SideRecord(b"b9", b"\xff", (), 1, NOW_MS),
        record("b2", offset=2, timestamp_ms=NOW_MS + DAY_MS - 1),
        record("b1", offset=3, seq=2),
        tops=[top_record("b1", 0, 1, 3, NOW_MS)],
    )
    world.take(null("b2", 4, 2), record("b1", offset=5, seq=1))
    assert world.view() == {"b1": 3}
    assert world.view(ReportKind.TOP_BUNDLES) == {"b1": 0}
    expected = [
        ("broker-load", 0, "taken", ""),
        ("broker-load", 1, "dropped", "not-json"),
        ("broker-load", 2, "taken", ""),
        ("broker-load", 3, "taken", ""),
        ("broker-load", 4, "honoured", ""),
        ("broker-load", 5, "late", ""),
        ("top-bundles", 0, "taken", ""),
    ]
    assert world.history() == world.history_by_spark() == expected

    files = f"{world.folder}/table/history/*/*/*.parquet"
    found = duckdb.sql(
        f"select kind, \"offset\", fate, reason from read_parquet('{files}', hive_partitioning = true) order by all"
    )
    assert found.fetchall() == expected
    days = duckdb.sql(f"select distinct dt::varchar, batch::int from read_parquet('{files}') order by all").fetchall()
    assert days == [("2025-06-15", 0), ("2025-06-15", 1), ("2025-06-16", 0)]
    table = pyarrow.dataset.dataset(f"{world.folder}/table/history", partitioning="hive").to_table()
    rows = sorted(table.to_pylist(), key=lambda row: (row["kind"], row["offset"]))
    assert [(row["kind"], row["offset"], row["fate"], row["reason"]) for row in rows] == expected
    assert rows[0]["owned_as_of"] == [(0, 5)]
    assert rows[0]["load"]["cpu"] == {"usage": 0.0, "limit": 0.0}
    assert rows[1]["raw"] == b"\xff"
    assert rows[6]["bundles"][2]["stats"]["msg_rate_in"] == 2.0
    assert {row["topic_id"] for row in rows} == {"id-1", "id-2"}

    meta = world.job.table.views.latest().meta
    assert meta["topics"]["c-broker-load"]["position"] == 6
    assert meta["topics"]["c-top-bundles"]["brokers"] == 1


def test_a_writer_that_died_between_two_writes_leaves_nothing_twice(world, monkeypatch) -> None:
    world.take(record("b1", offset=0))
    # One that dies behind the history, and one that dies behind the views, each with another batch: the next start
    # gets other offsets together than the last.
    for died_in, batch in (("write_views", [1, 2, 3]), ("publish", [1, 2])):
        with monkeypatch.context() as patch:

            def dies(*_: object, **__: object) -> None:
                raise OSError("killed")

            patch.setattr(world.job.table, died_in, dies)
            records = [record("b2", offset=n, seq=n, timestamp_ms=NOW_MS + (n % 2) * DAY_MS // 2) for n in batch]
            with pytest.raises(OSError, match="killed"):
                world.take(*records)
        world.started()
    assert world.view() == {"b1": 0}
    world.take(record("b2", offset=1, seq=1))
    world.take(record("b2", offset=1, seq=1), record("b2", offset=2, seq=2))
    assert [row[:2] for row in world.history()] == [("broker-load", n) for n in range(3)]
    assert world.view() == {"b1": 0, "b2": 2}


def test_a_batch_that_is_repeated_and_a_replay_from_the_beginning_change_nothing(world) -> None:
    log = [record("b1", offset=0), record("b2", offset=3), record("b1", offset=4, seq=2), null("b2", 5, 3)]
    world.take(*log[:3])
    world.take(*log)
    before = world.history(), world.view(), world.job.table.views.latest().sequence
    world.take(*log)
    assert (world.history(), world.view(), world.job.table.views.latest().sequence) == before
    world.started()
    world.take(*log)
    assert (world.history(), world.view()) == before[:2]


def test_suspects_are_shown_and_forgotten_at_a_start(world) -> None:
    def suspects(*records: SideRecord) -> list[str]:
        world.now_s += 5.0
        world.take(*records)
        found: list[str] = world.job.table.views.latest().meta["topics"]["c-broker-load"]["suspects"]
        return found

    assert suspects(record("b1", offset=0), record("b2", offset=1)) == []
    for _ in range(5):
        world.now_s += TRIGGER_S
        world.take()
    assert suspects() == ["b1", "b2"]
    assert suspects(record("b2", offset=2, seq=2)) == ["b1"]
    world.started()
    assert suspects() == [], "no later record proves how old it is"


def test_another_topic_under_the_name_stops_the_job_unless_that_was_meant(world) -> None:
    world.take(record("b1", offset=7), tops=[top_record("b1", 3, 1, 1, NOW_MS)])
    world.asker.topic_ids[ReportKind.BROKER_LOAD] = "id-9"
    world.asker.ends[ReportKind.BROKER_LOAD] = OffsetBounds(0, 1)
    with pytest.raises(TopicBrokenError, match="c-broker-load was re-created") as error:
        world.take(record("b3", offset=0))
    assert error.value.exit_code == ExitCode.TOPIC_BROKEN
    with pytest.raises(TopicBrokenError, match="re-created"):
        world.started()
    assert world.view() == {"b1": 7}

    world.started(accept_new_topic=True)
    world.take(record("b3", offset=0))
    assert world.view() == {"b3": 0}
    assert world.view(ReportKind.TOP_BUNDLES) == {"b1": 3}
    assert [row[:2] for row in world.history()] == [("broker-load", 0), ("broker-load", 7), ("top-bundles", 3)]
    world.started()
    world.take(record("b3", offset=1, seq=2))
    assert world.view() == {"b3": 1}


def test_a_topic_that_ends_before_what_was_read_is_asked_for_twice_and_stops_the_job(world) -> None:
    world.take(record("b1", offset=7))
    world.asker.ends[ReportKind.BROKER_LOAD] = OffsetBounds(0, 3)
    world.take()
    with pytest.raises(TopicBrokenError, match="ends at 3, before 8"):
        world.take()
    with pytest.raises(TopicBrokenError, match="ends at 3, before 8"):
        world.started()


def test_two_writers_and_foreign_tables_are_refused(world) -> None:
    world.take(record("b1", offset=0))
    first = world.job
    world.started()
    world.take(record("b1", offset=1, seq=2))
    with pytest.raises(TableChangedError):
        first.take(world.frame([record("b1", offset=1, seq=2)], []), 0)
    assert [row[1] for row in world.history()] == [0, 1]

    pointer = world.job.table.views.latest()
    world.job.table.views.publish(pointer, pointer.meta | {"job": "another"})
    with pytest.raises(TableFormatError, match="another"):
        world.started()


def test_a_day_that_is_over_becomes_one_batch(world) -> None:
    for n in range(2):
        world.take(record("b1", offset=n, seq=n + 1), tops=[top_record("b1", n, n + 1, 2, NOW_MS)])
    before = world.history()
    later_ms = NOW_MS + DAY_MS
    world.take(record("b1", offset=2, seq=3, timestamp_ms=later_ms, written_at_ms=later_ms))
    history = world.folder / "table" / "history"
    assert sorted(str(path.relative_to(history)) for path in history.glob("*/*")) == [
        "dt=2025-06-15/batch=000000000001",
        "dt=2025-06-16/batch=000000000002",
    ]
    assert world.history() == sorted([*before, ("broker-load", 2, "taken", "")])
    for folder in (world.folder / "table").glob("views/v=*/*/"):
        (folder / "x.parquet.tmp").write_text("somebody's")
    world.started()
    world.take(record("b1", offset=3, seq=4, timestamp_ms=later_ms, written_at_ms=later_ms))
    assert len(world.history()) == 6
    bundles = world.session.read.parquet(str(history)).where("kind = 'top-bundles'").select("bundles").collect()
    assert [len(row.bundles) for row in bundles] == [2, 2]


def test_who_was_heard_last_outlives_a_restart(world) -> None:
    """The clock of b1 is broken: its reports are dropped, and b2 shows how old the one is that is held."""
    world.take(record("b1", offset=0))
    at_ms = NOW_MS + 200_000
    world.take(
        record("b2", offset=1, timestamp_ms=at_ms, written_at_ms=at_ms),
        record("b1", offset=2, seq=2, timestamp_ms=at_ms, written_at_ms=at_ms + 2 * DAY_MS),
        record("b2", offset=3, seq=2, timestamp_ms=at_ms, written_at_ms=at_ms),
    )
    world.started()
    world.now_s += 5.0
    world.take()
    assert world.job.expiry[ReportKind.BROKER_LOAD].suspects == []
    assert world.view() == {"b1": 0, "b2": 3}
    later_ms = at_ms + 101_000
    junk = SideRecord(b"b1", b"{}", (), 4, later_ms)
    world.take(junk, record("b2", offset=5, seq=3, timestamp_ms=later_ms, written_at_ms=later_ms))
    world.started()
    world.now_s += 5.0
    world.take()
    assert world.job.expiry[ReportKind.BROKER_LOAD].suspects == ["b1"], "junk is no sign of life"


def test_a_tombstone_names_the_last_sign_of_life(world, monkeypatch) -> None:
    buried: list[dict[str, Tombstone]] = []
    monkeypatch.setattr(
        views, "write_tombstones", lambda _session, _topic, tombstones, _options: buried.append(tombstones)
    )
    world.started(tombstones=True)
    world.take(record("b1", offset=0, seq=2), record("b1", offset=1, seq=1))
    for _ in range(6):
        world.now_s += TRIGGER_S
        world.take()
    assert [(one["b1"].reason, one["b1"].last_offset) for one in buried] == [("expired", 1)]
    assert world.view() == {"b1": 0}
    world.take(null("b1", 2, buried[0]["b1"].last_offset))
    assert world.view() == {}


def test_nothing_as_long_as_a_record_reaches_the_driver(world) -> None:
    long = b"x" * 300_000
    headers = (*Tombstone("expired", 0, NOW_MS).headers(), ("large", long))
    twice = (("reason", long), *headers)
    behind = (*headers, *[("n", b"")] * 40, ("reason", long))
    loads = [
        record("b1", offset=0)._replace(headers=headers),
        SideRecord(long, b"{", headers, 1, NOW_MS),
        SideRecord(long, record("b2").value, headers, 2, NOW_MS),
        SideRecord(long, None, headers, 3, NOW_MS),
        SideRecord(long, None, (("large", long),), 4, NOW_MS),
        SideRecord(b"b1", None, twice, 5, NOW_MS),
        SideRecord(b"b1", None, behind, 6, NOW_MS),
    ]
    sent = fold_rows(rows_of(world.frame(loads, []), KINDS, dict.fromkeys(KINDS, 0)))
    assert len(pickle.dumps(sent)) < 5_000
    world.take(*loads)
    fates = [(row[2], row[3]) for row in world.history()]
    assert fates == [
        ("taken", ""),
        ("dropped", "not-json"),
        ("dropped", "key"),
        ("dropped", "key"),
        ("dropped", "bare-null"),
        ("dropped", "bare-null"),
        ("honoured", ""),
    ]
    kept = duckdb.sql(
        f"select sum(octet_length(key)), sum(len(headers)) from read_parquet('{world.folder}/table/history/*/*/*.parquet')"
    ).fetchall()
    assert kept == [(4 * len(long) + 3 * len(b"b1"), 4 * 4 + 1 + 5 + 45)], "the history has them whole"
