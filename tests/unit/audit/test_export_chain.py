"""The chain of an export file: an edited, cut or reordered one is refused with the line, one without a chain is not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from statechannel.audit.errors import ExportFileError
from statechannel.audit.transfer.export_file import read_export, write_export
from statechannel.audit.transfer.line import ExportHeader, record_digest
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.side_record import Headers
from tests.support.export_edits import EDITS, records_of, write_plain

NOW_MS = 1_700_000_000_000


def lines_of(path: Path) -> list[dict]:
    records = records_of(4, 3)
    write_export(path, ExportHeader("t", {0: 4, 1: 3}, 0), records, now_ms=lambda: NOW_MS)
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    line, why, edit = EDITS[name]
    path = tmp_path / "export.jsonl"
    lines = lines_of(path)
    path.write_text("".join(f"{json.dumps(item)}\n" for item in edit(lines)))
    with pytest.raises(ExportFileError, match=f"line {line}: .*{why}") as refused:
        read_export(path)
    assert refused.value.line == line


def test_how_a_line_is_spelt_is_no_matter(tmp_path: Path) -> None:
    """What a line says is digested: a tool may have sorted the fields, or put blanks between them."""
    path = tmp_path / "export.jsonl"
    spelt = [json.dumps(item, indent=None, sort_keys=True, separators=(" , ", " : ")) for item in lines_of(path)]
    path.write_text("\n\n".join(spelt))
    assert read_export(path).records == 7


def test_one_without_a_chain_is_read_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    write_plain(path, ExportHeader("t", {0: 4, 1: 3}, NOW_MS), records_of(4, 3))
    assert read_export(path).header.digest is None
    assert read_export(path).records == 7


def test_an_export_without_records_has_a_digest_too(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    write_export(path, ExportHeader("t", {0: 9}, 0), [], now_ms=lambda: NOW_MS)
    assert read_export(path).records == 0
    path.write_text(path.read_text().replace('"0":9', '"0":8'))
    with pytest.raises(ExportFileError, match="line 1: the end of the chain does not match"):
        read_export(path)


def test_the_chain_stays_what_it_is(tmp_path: Path) -> None:
    """Files that were written long ago have to be read: these digests are never to change."""
    path = tmp_path / "export.jsonl"
    lines = lines_of(path)
    assert lines[0]["digest"] == "f086bb8828c3cf530ffedf66e3b74de9"
    assert lines[1]["chain"] == "2358815bb2dbca3cc67230a568c02782"
    assert lines[-1]["chain"] == "0cd548f4ba426056988f8c9ce96a8c77"


@pytest.mark.parametrize(
    "change",
    [
        lambda item: item._replace(partition=1),
        lambda item: item._replace(offset=1),
        lambda item: item._replace(timestamp_ms=1),
        lambda item: item._replace(key=None),
        lambda item: item._replace(key=b"a", value=b"bc"),
        lambda item: item._replace(value=None),
    ],
)
def test_every_field_of_a_record_counts(change: Callable[[RecordRead], RecordRead]) -> None:
    record = RecordRead(Topic.CHANNEL, 0, 0, 0, b"ab", b"c")
    assert record_digest(change(record)) != record_digest(record)


HEADERS: Headers = (("by", b"ann@desk"), ("why", b"disk"))


@pytest.mark.parametrize(
    "other",
    [
        (),
        HEADERS[:1],
        HEADERS[::-1],
        (*HEADERS, ("by", b"eve")),
        (("by", b"ann@desk"), ("why", None)),
        (("by", b"ann@deskwhy"), ("", b"disk")),
        (("bya", b"nn@desk"), ("why", b"disk")),
    ],
)
def test_every_header_of_a_record_counts(other: Headers) -> None:
    record = RecordRead(Topic.CHANNEL, 0, 0, 0, b"ab", None)
    assert record_digest(record, other) != record_digest(record, HEADERS)


def with_headers(path: Path, headers: dict[int, Headers]) -> list[dict]:
    records = records_of(4)
    write_export(
        path,
        ExportHeader("t", {0: 4}, 0),
        records,
        now_ms=lambda: NOW_MS,
        headers_of=lambda record: headers.get(record.offset, ()),
    )
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_headers_are_read_back_as_they_were(tmp_path: Path) -> None:
    headers: dict[int, Headers] = {1: HEADERS, 3: (("a", b"\xff"), ("a", None), ("", b""))}
    lines = with_headers(tmp_path / "export.jsonl", headers)
    assert ["headers" in line for line in lines] == [False, False, True, False, True]
    assert lines[2]["headers"] == [{"name": "by", "value": "ann@desk"}, {"name": "why", "value": "disk"}]
    export = read_export(tmp_path / "export.jsonl")
    assert dict(export.partitions[0].headers()) == headers
    assert dict(export.partitions[0][2:].headers()) == {3: headers[3]}
    assert list(export.partitions[0]) == records_of(4)


def test_a_file_without_headers_is_what_it_was_before_there_were_any(tmp_path: Path) -> None:
    records = records_of(4)
    write_export(tmp_path / "before.jsonl", ExportHeader("t", {0: 4}, 0), records, now_ms=lambda: NOW_MS)
    with_headers(tmp_path / "export.jsonl", {})
    assert (tmp_path / "export.jsonl").read_bytes() == (tmp_path / "before.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ([{"name": "by", "value": "eve"}, {"name": "why", "value": "disk"}], "`chain` does not match"),
        ([{"name": "by", "value": "ann@desk"}], "`chain` does not match"),
        ([], "`headers` is not a list"),
        ("by", "`headers` is not a list"),
        (None, "`headers` is not a list"),
        ([["by", "ann"]], "`headers` is not a list"),
        ([{"name": 1, "value": "ann"}], "no `name`"),
        ([{"name": "by"}], "neither `value` nor `value_base64`"),
        ([{"name": "by", "value_base64": "?"}], "not base64"),
    ],
)
def test_edited_headers_are_refused(headers: object, why: str, tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    lines = with_headers(path, {1: HEADERS})
    lines[2]["headers"] = headers
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(ExportFileError, match=f"line 3: .*{why}"):
        read_export(path)
    del lines[2]["headers"]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(ExportFileError, match=r"line 3: .*`chain` does not match"):
        read_export(path)


def test_nothing_is_not_the_same_as_empty() -> None:
    record = RecordRead(Topic.CHANNEL, 0, 0, 0, b"", b"")
    assert (
        len({record_digest(record._replace(key=key, value=value)) for key in (b"", None) for value in (b"", None)}) == 4
    )
