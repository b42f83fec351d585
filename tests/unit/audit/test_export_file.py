"""Export files: what is written is read back; what is malformed is refused with its line and the reason."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statechannel.audit.errors import ExportFileError
from statechannel.audit.export_file import read_export, write_export
from statechannel.audit.export_line import ExportHeader, format_record, parse_record
from statechannel.core.inputs import RecordRead, Topic

HEADER = '{"export": 1, "topic": "t", "end_offsets": {"0": 10, "1": 5}, "exported_at_ms": 1}'
RECORD = '{"partition": 0, "offset": 0, "timestamp_ms": 1, "key": "a/b", "value": "x"}'


def record(partition: int, offset: int, key: bytes | None = b"a/b", value: bytes | None = b"{}") -> RecordRead:
    return RecordRead(Topic.CHANNEL, partition, offset, 1_000 + offset, key, value)


def test_what_cannot_be_written_has_a_fitting_hint(tmp_path: Path) -> None:
    for path, hint in ((tmp_path / "no" / "such" / "f.jsonl", "There is no folder"), (tmp_path, "that you may write")):
        with pytest.raises(ExportFileError) as caught:
            write_export(path, ExportHeader("t", {0: 0}, 1), [], now_ms=lambda: 1)
        assert hint in caught.value.hint


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    records = [record(0, 3), record(0, 7, b"\xff", None), record(2, 0, None, b"\xfe\n"), record(2, 1, b"!x", b"")]
    times = iter([1_700_000_000_000, 1_700_000_000_999])

    header = write_export(path, ExportHeader("t", {0: 8, 1: 0, 2: 2}, 0), records, now_ms=lambda: next(times))
    export = read_export(path)

    assert header.exported_at_ms == 1_700_000_000_999
    assert export.header == header
    assert [*export.partitions[0], *export.partitions[2]] == records
    assert export.records == 4
    assert [item.name for item in tmp_path.iterdir()] == ["export.jsonl"]


def test_a_partition_is_a_sequence_read_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    records = [record(0, offset) for offset in range(10)]
    write_export(path, ExportHeader("t", {0: 10}, 0), records, now_ms=lambda: 1_700_000_000_000)
    found = read_export(path).partitions[0]

    assert (found[0], found[-1], found[4]) == (records[0], records[-1], records[4])
    assert list(found[:3]) == records[:3]
    assert list(found[3:][2:4]) == records[5:7]
    assert (len(found), list(found[:0])) == (10, [])


@given(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=200))
def test_every_key_and_value_survives(key: bytes | None, value: bytes | None) -> None:
    given_record = record(0, 0, key, value)
    assert parse_record(format_record(given_record)) == given_record


@pytest.mark.parametrize(
    ("lines", "line", "reason"),
    [
        ([], None, "is empty"),
        (["x"], 1, "not JSON"),
        (["[]"], 1, "not a JSON object"),
        ([RECORD], 1, "not the header of an export"),
        ([HEADER.replace('"export": 1', '"export": 2')], 1, "export format 2 is not known"),
        ([HEADER.replace('"export": 1', '"export": true')], 1, "export format True is not known"),
        ([HEADER.replace('"t"', "7")], 1, "`topic`"),
        ([HEADER.replace('{"0": 10, "1": 5}', "{}")], 1, "`end_offsets`"),
        ([HEADER.replace('"1": 5', '"2": 5')], 1, "all partitions from 0 on"),
        ([HEADER.replace("10", "-1")], 1, "`end_offsets` holds '0': -1"),
        ([HEADER.replace('"exported_at_ms": 1', '"exported_at_ms": 1.5')], 1, "`exported_at_ms`"),
        ([HEADER, RECORD, "{"], 3, "not JSON"),
        ([HEADER, RECORD.replace('"partition": 0', '"partition": 2')], 2, "partition 2 is not among"),
        ([HEADER, RECORD.replace('"partition": 0', '"partition": 1'), RECORD], 3, "partition 0 follows partition 1"),
        ([HEADER, RECORD, RECORD], 3, "offset 0 follows offset 0 of partition 0"),
        ([HEADER, RECORD.replace('"offset": 0', '"offset": 10')], 2, "not below the end offset 10"),
        ([HEADER, RECORD.replace('"offset": 0', '"offset": true')], 2, "`offset`"),
        ([HEADER, RECORD.replace('"timestamp_ms": 1', '"timestamp_ms": "1"')], 2, "`timestamp_ms`"),
        ([HEADER, RECORD.replace(', "value": "x"', "")], 2, "neither `value` nor `value_base64`"),
        ([HEADER, RECORD.replace('"key": "a/b"', '"key": 1')], 2, "`key` is not a text or null"),
        ([HEADER, RECORD.replace('"x"', '"x", "value_base64": "eA=="')], 2, "stands beside `value`"),
        ([HEADER, RECORD.replace('"value": "x"', '"value_base64": "?"')], 2, "not base64"),
        ([HEADER, RECORD.replace('"x"', '"\\ud800"')], 2, "not JSON"),
    ],
)
def test_malformed_exports_are_refused(lines: list[str], line: int | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    path.write_text("".join(f"{text}\n" for text in lines))
    with pytest.raises(ExportFileError) as refused:
        read_export(path)
    assert refused.value.line == line
    assert reason in str(refused.value)
    assert line is None or f"line {line}:" in str(refused.value)


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[RecordRead]:
        yield record(0, 0)
        raise RuntimeError("Kafka went away")

    with pytest.raises(RuntimeError):
        write_export(tmp_path / "x.jsonl", ExportHeader("t", {0: 1}, 0), broken(), now_ms=lambda: 1)
    assert list(tmp_path.iterdir()) == []


def test_a_record_is_one_line_even_where_its_value_has_many() -> None:
    line = format_record(record(0, 0, b"a\nb", b"1\n2"))
    assert line.count(b"\n") == 1
    assert json.loads(line)["value"] == "1\n2"
