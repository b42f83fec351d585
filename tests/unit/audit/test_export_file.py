"""Export files: what is written is read back; what is malformed is refused with its line and the reason."""

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statechannel.audit.errors import ExportFileError
from statechannel.audit.transfer.export_file import read_export, read_header, size_bytes, write_export
from statechannel.audit.transfer.line import BadLine, ExportHeader, format_record, parse_record
from statechannel.files import FileUnwritableError, NotReplaceableError, check_writable, new_file
from statechannel.protocol.log import RecordRead, Topic
from tests.support.export_edits import write_plain

HEADER = '{"export": 1, "topic": "t", "end_offsets": {"0": 10, "1": 5}, "exported_at_ms": 1}'
RECORD = '{"partition": 0, "offset": 0, "timestamp_ms": 1, "key": "a/b", "value": "x"}'


def record(partition: int, offset: int, key: bytes | None = b"a/b", value: bytes | None = b"{}") -> RecordRead:
    return RecordRead(Topic.CHANNEL, partition, offset, 1_000 + offset, key, value)


def test_what_cannot_be_written_has_a_fitting_hint(tmp_path: Path) -> None:
    for path, hint in (
        (tmp_path / "no" / "such" / "f.jsonl", "does not exist: create it"),
        (tmp_path, "that you may write"),
    ):
        with pytest.raises(FileUnwritableError) as caught:
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
    partition = read_export(path).partitions[0]

    assert (partition[0], partition[-1], partition[4]) == (records[0], records[-1], records[4])
    assert list(partition[:3]) == records[:3]
    assert list(partition[3:][2:4]) == records[5:7]
    assert (len(partition), list(partition[:0])) == (10, [])


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
        ([HEADER.replace('"1": 5', f'"{"1" * 5000}": 5')], 1, "`end_offsets` holds"),
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
        ([HEADER, RECORD.replace('"x"', '"x", "value_base64": "eA=="')], 2, "given as well as `value`"),
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


DAY_MS = 86_400_000


@pytest.mark.parametrize(("age_ms", "refused"), [(1_000, True), (6 * DAY_MS, True), (8 * DAY_MS, False)])
def test_a_file_that_lost_its_end_is_refused_unless_a_cleaned_null_may_have_stood_there(
    age_ms: int, refused: bool, tmp_path: Path
) -> None:
    path = tmp_path / "export.jsonl"
    now_ms = 1_700_000_000_000
    records = [
        record(0, 0)._replace(timestamp_ms=now_ms),
        *(record(1, n)._replace(timestamp_ms=now_ms - age_ms) for n in (3, 4)),
    ]
    write_plain(path, ExportHeader("t", {0: 1, 1: 6}, now_ms), records)
    assert read_export(path, made_here=True).records == 3
    if not refused:
        assert read_export(path).records == 3
        return
    with pytest.raises(ExportFileError, match=r"is truncated: partition 1 ends with offset 4.* up to offset 5"):
        read_export(path)


def test_a_line_is_not_read_without_bound(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    with path.open("wb") as file:
        file.truncate(20 * 1024**3)
    with pytest.raises(ExportFileError, match="line 1: longer than"):
        read_export(path)


def test_what_is_no_file_or_has_an_impossible_name_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, why in ((pipe, "a pipe or a device"), (tmp_path / ("x" * 300), "File name too long")):
        with pytest.raises(ExportFileError, match=why):
            read_export(path)
        assert size_bytes(path) == 0


def test_pipes_are_not_replaced_and_links_stay(tmp_path: Path) -> None:
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    link.symlink_to(file)
    to_pipe = tmp_path / "to-pipe"
    to_pipe.symlink_to(pipe)
    for path in (pipe, to_pipe):
        with pytest.raises(NotReplaceableError, match="a device, a pipe or a socket"):
            write_export(path, ExportHeader("t", {0: 0}, 1), [], now_ms=lambda: 1)
    assert pipe.is_fifo()
    for _ in range(2):
        write_export(link, ExportHeader("t", {0: 0}, 1), [], now_ms=lambda: 1)
        assert link.is_symlink()
        assert read_export(file).records == 0
    assert {item.name for item in tmp_path.iterdir()} == {"pipe", "link", "to-pipe", "file"}


@pytest.mark.parametrize("name", [".", "/", "x" * 300, "x" * 300 + "/x"])
def test_names_that_no_file_can_have_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileUnwritableError, match="cannot be written"):
        write_export(Path(name), ExportHeader("t", {0: 0}, 1), [], now_ms=lambda: 1)
    with pytest.raises(FileUnwritableError, match="cannot be written"), new_file(Path(name)):
        pass
    with pytest.raises(FileUnwritableError, match="cannot be written"):
        check_writable(Path(name))
    assert list(tmp_path.iterdir()) == []


def test_two_exports_to_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"

    def with_another() -> Iterator[RecordRead]:
        write_export(path, ExportHeader("other", {0: 0}, 1), [], now_ms=lambda: 1)
        yield record(0, 0)

    write_export(path, ExportHeader("t", {0: 1}, 1), with_another(), now_ms=lambda: 1)
    assert (read_export(path).header.topic, read_export(path).records) == ("t", 1)


NO_TEXT = [gzip.compress(b"{}", mtime=0), bytes(range(128, 256)), "{}".encode("utf-16"), b"\xef\xbb\xbf{}"]


@pytest.mark.parametrize("content", NO_TEXT)
def test_what_is_no_text_in_utf_8_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(ExportFileError) as refused:
        read_export(path)
    assert refused.value.line == 1


def test_the_header_of_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody may ever write to it, and what is read of it is lost for the reader of the records."""
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(BadLine, match="a pipe or a device"):
        read_header(pipe)
