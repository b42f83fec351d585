"""Every record of a load topic becomes one row; what the brokers' decoder refuses keeps its bytes and says why."""

import orjson
import pyarrow as pa
import pytest

from loaddata.report.record import ReportKind
from spark.load.rows import ROW, decoded, row_of
from spark.load.table import ROW_TYPE
from statechannel.protocol.side_record import SideRecord
from tests.support.load_reports import NOW_MS, null, record
from tests.support.load_rows import KINDS, SOURCE, rows, source_row, top_record


def test_a_report_of_load() -> None:
    [row] = rows([record("b1", offset=7, seq=3, owned_as_of={0: 5, 2: -1})])
    assert (row["kind"], row["topic"], row["offset"]) == ("broker-load", "c-broker-load", 7)
    assert (row["broker"], row["incarnation"], row["seq"]) == ("b1", "b1-1", 3)
    assert row["owned_as_of"] == [(0, 5), (2, -1)]
    assert (row["dt"], row["log_time_ms"]) == ("2025-06-15", NOW_MS)
    assert row["log_time"].timestamp() * 1_000 == NOW_MS
    assert row["load"]["cpu"] == {"usage": 0.0, "limit": 0.0}
    assert row["load"]["weighted_max_ema"] == 1.0
    assert (row["reason"], row["raw"], row["tombstone"], row["bundles"]) == ("", None, False, None)


def test_a_report_of_bundles() -> None:
    [row] = rows([top_record("b1", 4, 2, bundles=3, timestamp_ms=NOW_MS)], ReportKind.TOP_BUNDLES)
    assert row["load"] is None
    assert [bundle["bundle"] for bundle in row["bundles"]][2] == "t/n/0x00000002_0x00000003"
    assert row["bundles"][2]["stats"]["msg_rate_in"] == 2.0
    assert row["bundles"][2]["short"]["samples"] == 10
    assert row["bundles"][2]["non_persistent"] is False


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (b"b1", b"\xff\x00", "not-json"),
        (b"b1", b"[" * 100_000, "not-json"),
        (b"b2", record("b1").value, "key"),
        (None, record("b1").value, "key"),
        (b"b1", orjson.dumps({"format": 2}), "format"),
        (b"b1", b"x" * 900_001, "too-large"),
        (b"b1", b"", "not-json"),
    ],
)
def test_junk_keeps_its_bytes_and_says_why(key: bytes | None, value: bytes, reason: str) -> None:
    [row] = rows([SideRecord(key, value, (), 0, NOW_MS)])
    assert row["reason"] == reason
    assert row["raw"] == value
    assert row["broker"] is None


def test_fields_of_a_later_version_are_passed_over() -> None:
    loaded = orjson.loads(record("b1").value or b"")
    value = orjson.dumps({**loaded, "new": {"deep": [1]}})
    [row] = rows([SideRecord(b"b1", value, (), 0, NOW_MS)])
    assert (row["reason"], row["broker"]) == ("", "b1")


def test_nulls() -> None:
    good, bare, forged = rows([null("b1", 5, 3), null("b1", 6, None), null("b1", 7, 7)])
    assert (good["broker"], good["tombstone"]) == ("b1", True)
    assert {header["key"]: header["value"] for header in good["headers"]}["last-offset"] == b"3"
    assert (bare["broker"], forged["broker"]) == (None, None)
    assert (bare["raw"], bare["size_bytes"], bare["reason"]) == (None, 0, "")


@pytest.mark.parametrize("timestamp_ms", [-1, 0, 2**62])
def test_absurd_times_of_the_log_stop_nothing(timestamp_ms: int) -> None:
    [row] = rows([record("b1", timestamp_ms=timestamp_ms)])
    assert row["broker"] == "b1"
    assert row["dt"] in ("1970-01-01", "9999-12-31")


def test_days_are_those_of_utc() -> None:
    midnight_ms = 1_750_032_000_000
    days = [row["dt"] for row in rows([record("b1", offset=n, timestamp_ms=midnight_ms - 1 + n) for n in range(2)])]
    assert days == ["2025-06-15", "2025-06-16"]


def test_batches_are_given_back_in_portions() -> None:
    listed = [source_row(record("b1", offset=n, seq=n + 1))._asdict() for n in range(7)]
    batch = pa.RecordBatch.from_pylist(listed, schema=SOURCE)
    batches = list(decoded([batch, batch.slice(0, 0)], KINDS, rows_max=3))
    assert [item.num_rows for item in batches] == [3, 3, 1]
    assert all(item.schema == ROW for item in batches)
    assert [row["offset"] for item in batches for row in item.to_pylist()] == list(range(7))


def test_the_words_of_spark() -> None:
    result = ROW_TYPE.simpleString()
    assert result.startswith("struct<kind:string,topic:string,offset:bigint,log_time:timestamp")
    assert "owned_as_of:map<int,bigint>" in result
    assert "bundles:array<struct<bundle:string,stats:struct<msg_rate_in:double" in result
    assert "non_persistent:boolean>>" in result


def test_only_columns_of_the_schema_are_made() -> None:
    for item in (record("b1"), null("b1", 1, 0), SideRecord(b"x", b"junk", (), 0, NOW_MS)):
        assert set(row_of(source_row(item), ReportKind.BROKER_LOAD)) <= set(ROW.names)
