"""Lines of an export file (design/cli.md, "Export file"), text to values and back, and their hash chain. Pure.

Each line has a digest of all lines before it, the header that of the last one. It covers the content of the lines, not their
formatting, so that one codec serves every reader, also one that reads the file in pieces: of two consecutive pieces only the
last link of the first and the first record of the second are compared. What it does not cover is refused (an unknown field, a
second spelling of a value), and what two parsers read differently (a name twice). It is not a signature: rewriting the whole
file creates a valid chain. To detect that, keep the digest elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from statechannel.files import check_names
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.side_record import Headers
from statechannel.protocol.view import Judgement

EXPORT_FORMAT = 1
_GZIP = b"\x1f\x8b"
_MAX_INT = 2**63 - 1
LINK_BYTES = 16
"""Length of a link of the chain, and of the header's digest; written as hex digits."""
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_ROLE = re.compile(r"[a-z]{1,40}", re.ASCII)
_LINK = re.compile(rf"[0-9a-f]{{{2 * LINK_BYTES}}}", re.ASCII)


class BadLine(ValueError):  # noqa: N818 - its message ends a sentence that the reader of the file begins
    """A line is malformed; the message says how.

    Attributes:
        hint: What to do; empty: what is done with any malformed file.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class RecordedReplay:
    """What the version that made an export got from its records.

    Attributes:
        digest: Of the accepted states (records.md).
        verdicts: Number of records by verdict, of those that were judged.
        covered: Whether the digest of the export covers this and the verdicts of the lines; not in those of earlier versions.
    """

    software: str
    digest: str
    verdicts: Mapping[str, int]
    covered: bool = False


@dataclass(frozen=True, slots=True)
class ExportHeader:
    """First line of an export file.

    Attributes:
        end_offsets: Offset after the last record of each partition of the topic, including empty partitions.
        exported_at_ms: When the export ended, milliseconds since 1970.
        digest: Of the whole file (`chain`); None: it has no chain, so edits are not detected.
        beside: Digests of the files of other topics that were made with it, by role; `digest` covers them. None: it does not say
            which there were, as those of earlier versions.
        replay: See `export --with-verdicts`; None without it.
        first_offsets: First offset of each partition from whose head records were deleted; the others begin at 0.
        positions_lost: By partition, highest offset that brokers had read and that the topic did not have, unless restated.
    """

    topic: str
    end_offsets: Mapping[int, int]
    exported_at_ms: int
    digest: str | None = None
    beside: Mapping[str, str] | None = None
    replay: RecordedReplay | None = None
    first_offsets: Mapping[int, int] = field(default_factory=dict)
    positions_lost: Mapping[int, int] = field(default_factory=dict)


class ExportLine(NamedTuple):
    """A line after the header.

    Attributes:
        link: Its link of the chain; None without a chain.
        verdict: As the version that made the export judged it; None: it says nothing, or did not judge it.
    """

    record: RecordRead
    link: str | None
    headers: Headers = ()
    verdict: str | None = None


def format_header(header: ExportHeader) -> bytes:
    return _line(
        {
            "export": EXPORT_FORMAT,
            "topic": header.topic,
            "end_offsets": _named(header.end_offsets),
            **({"first_offsets": _named(header.first_offsets)} if header.first_offsets else {}),
            **({"positions_lost": _named(header.positions_lost)} if header.positions_lost else {}),
            "exported_at_ms": header.exported_at_ms,
            **({} if header.beside is None else {"beside": dict(sorted(header.beside.items()))}),
            **({} if header.replay is None else {"replay": asdict(header.replay)}),
            **({} if header.digest is None else {"digest": header.digest}),
        }
    )


def _named(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def parse_header(line: bytes) -> ExportHeader:
    """Read the first line.

    Raises:
        BadLine: The line is not the header of an export of format 1.
    """
    fields = _object(line)
    _refuse_twice(line)
    if "export" not in fields:
        raise BadLine("the first line is not the header of an export (it has no `export`)")
    if fields["export"] != EXPORT_FORMAT or type(fields["export"]) is not int:
        newer = type(fields["export"]) is int and fields["export"] > EXPORT_FORMAT
        hint = "A newer version wrote it: read it with that version, or update this one." if newer else ""
        raise BadLine(f"export format {fields['export']!r} is not known, only {EXPORT_FORMAT}", hint)
    _refuse_others(fields, _HEADER_NAMES)
    topic = fields.get("topic")
    if not isinstance(topic, str):
        raise BadLine("`topic` is missing or not a text")
    ends = _end_offsets(fields.get("end_offsets"))
    firsts, lost = (
        _offsets(name, fields[name]) if name in fields else {} for name in ("first_offsets", "positions_lost")
    )
    if not all(0 < first <= ends.get(partition, -1) for partition, first in firsts.items()):
        raise BadLine("`first_offsets` holds an offset that is not between 0 and the end of its partition")
    exported_at_ms = _integer(fields, "exported_at_ms")
    digest, beside, replay = _link(fields, "digest"), _beside(fields), _replay(fields)
    return ExportHeader(topic, ends, exported_at_ms, digest, beside, replay, firsts, lost)


def _beside(fields: dict[str, Any]) -> dict[str, str] | None:
    if "beside" not in fields:
        return None
    beside = fields["beside"]
    if not isinstance(beside, dict) or not all(
        _ROLE.fullmatch(role) and isinstance(digest, str) and _LINK.fullmatch(digest) for role, digest in beside.items()
    ):
        raise BadLine("`beside` is not a list of names with digests")
    return beside


def _replay(fields: dict[str, Any]) -> RecordedReplay | None:
    if "replay" not in fields:
        return None
    replay = fields["replay"]
    software, digest, verdicts = (
        (replay.get(name) for name in ("software", "digest", "verdicts")) if isinstance(replay, dict) else (None,) * 3
    )
    counted = isinstance(verdicts, dict) and all(type(number) is int and number >= 0 for number in verdicts.values())
    if not (isinstance(software, str) and isinstance(digest, str) and counted and replay.get("covered", True) is True):
        raise BadLine("`replay` is not an object with `software`, `digest` and `verdicts`")
    _refuse_others(replay, _REPLAY_NAMES)
    return RecordedReplay(software, digest, verdicts or {}, "covered" in replay)


def _end_offsets(fields: object) -> dict[int, int]:
    if not isinstance(fields, dict) or not fields:
        raise BadLine("`end_offsets` is missing, or names no partition")
    ends = _offsets("end_offsets", fields)
    if sorted(ends) != list(range(len(fields))):
        raise BadLine(f"`end_offsets` must name all partitions from 0 on, not {', '.join(sorted(fields))}")
    return ends


def _offsets(what: str, fields: object) -> dict[int, int]:
    if not isinstance(fields, dict) or not fields:
        raise BadLine(f"`{what}` does not name partitions with offsets")
    offsets = {}
    for name, offset in fields.items():
        if not _PARTITION.fullmatch(name) or type(offset) is not int or not 0 <= offset <= _MAX_INT:
            raise BadLine(f"`{what}` holds {name[:40]!r}: {offset!r}, not a partition with an offset")
        offsets[int(name)] = offset
    return offsets


def format_record(
    record: RecordRead, link: bytes | None = None, headers: Headers = (), verdict: str | None = None
) -> bytes:
    """A record as a line; invalid UTF-8 is encoded as base64, and headers are written where there are any.

    Args:
        link: Its link of the chain.
        verdict: See `ExportLine`.
    """
    named = [{"name": name, **text_or_base64("value", value)} for name, value in headers]
    return _line(
        {
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            **text_or_base64("key", record.key),
            **text_or_base64("value", record.value),
            **({"headers": named} if named else {}),
            **({} if link is None else {"chain": link.hex()}),
            **({} if verdict is None else {"verdict": verdict}),
        }
    )


def text_or_base64(name: str, content: bytes | None) -> dict[str, str | None]:
    """The field `name`, or `name_base64` where the content is not valid UTF-8."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}


def format_verdict(record: RecordRead, judgement: Judgement) -> bytes:
    """A line of a verdict file (`--verdicts`): version and state are the record's own, null if it is undecodable."""
    decoded = judgement.record
    return _line(
        {
            "partition": record.partition,
            "offset": record.offset,
            **text_or_base64("key", record.key),
            "verdict": judgement.verdict.value,
            "version": None if decoded is None else decoded.version,
            "state": None if decoded is None else decoded.state.value,
        }
    )


def end_of_verdicts(digest: str) -> bytes:
    """The last line of a verdict file; those of earlier versions have none."""
    return _line({"digest": digest})


def parse_record(line: bytes) -> RecordRead:
    """Read one record, without its link.

    Raises:
        BadLine: The line is not a record.
    """
    return _record(_object(line))


def parse_line(line: bytes) -> ExportLine:
    """Read one record with its link.

    Raises:
        BadLine: The line is not a record.
    """
    fields = _object(line)
    _refuse_others(fields, _LINE_NAMES)
    verdict = fields.get("verdict")
    if "verdict" in fields and not isinstance(verdict, str):
        raise BadLine("`verdict` is not a text")
    parsed = ExportLine(_record(fields), _link(fields, "chain"), _headers(fields), verdict)
    if _line(fields) != line:  # not in our own spelling, in which no name is twice
        _refuse_twice(line)
    return parsed


def _record(fields: dict[str, Any]) -> RecordRead:
    return RecordRead(
        Topic.CHANNEL,
        _integer(fields, "partition"),
        _integer(fields, "offset"),
        _integer(fields, "timestamp_ms", least=-1),
        _content(fields, "key"),
        _content(fields, "value"),
    )


def _object(line: bytes) -> dict[str, Any]:
    try:
        loaded = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise _not_json(line, error) from None
    if not isinstance(loaded, dict):
        raise BadLine("not a JSON object")
    return loaded


_HEADER_NAMES = frozenset({"export", *ExportHeader.__dataclass_fields__})
_REPLAY_NAMES = frozenset(RecordedReplay.__dataclass_fields__)
_LINE_NAMES = frozenset(
    {"partition", "offset", "timestamp_ms", "key", "key_base64", "value", "value_base64", "headers", "chain", "verdict"}
)
_NAMES_OF_HEADERS = frozenset({"name", "value", "value_base64"})


def _refuse_others(fields: dict[str, Any], known: frozenset[str]) -> None:
    """Refuse what no digest covers, as people and other programs would read it."""
    if not known.issuperset(fields):
        raise BadLine(f"{min(fields.keys() - known)[:40]!r} is not a field of an export, so that no digest covers it")


def _refuse_twice(line: bytes) -> None:
    try:
        check_names(line)
    except ValueError as error:
        raise BadLine(str(error)) from None


def _not_json(line: bytes, error: orjson.JSONDecodeError) -> BadLine:
    if line.startswith(_GZIP):
        return BadLine("compressed by gzip", "Unpack it to a file, such as with `gzip -dc`.")
    try:
        line.decode()
    except UnicodeDecodeError:
        return BadLine("not text in UTF-8")
    return BadLine(f"not JSON: {error}")


def _integer(fields: dict[str, Any], name: str, least: int = 0) -> int:
    value = fields.get(name)
    if type(value) is not int or not least <= value <= _MAX_INT:
        raise BadLine(f"`{name}` is missing or not an integer of at least {least}")
    return value


def _link(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None and name not in fields:
        return None
    if not isinstance(value, str) or not _LINK.fullmatch(value):
        raise BadLine(f"`{name}` is not a digest")
    return value


def _headers(fields: dict[str, Any]) -> Headers:
    if "headers" not in fields:
        return ()
    named = fields["headers"]
    if not isinstance(named, list) or not named or not all(isinstance(header, dict) for header in named):
        raise BadLine("`headers` is not a list of objects with `name` and `value`")
    if not all(isinstance(header.get("name"), str) for header in named):
        raise BadLine("one of its `headers` has no `name`, or one that is not a text")
    for header in named:
        _refuse_others(header, _NAMES_OF_HEADERS)
    return tuple((header["name"], _content(header, "value")) for header in named)


def is_digest(text: str) -> bool:
    """Whether a text can be the digest of an export."""
    return _LINK.fullmatch(text) is not None


def _content(fields: dict[str, Any], name: str) -> bytes | None:
    encoded_name = f"{name}_base64"
    if encoded_name in fields:
        encoded = fields[encoded_name]
        if name in fields or not isinstance(encoded, str):
            raise BadLine(f"`{encoded_name}` is not a text, or is given as well as `{name}`")
        try:
            content = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise BadLine(f"`{encoded_name}` is not base64") from None
        if text_or_base64(name, content) != {encoded_name: encoded}:
            raise BadLine(f"`{encoded_name}` is not as an export writes it")
        return content
    text = fields.get(name)
    if isinstance(text, str):
        return text.encode()
    if name not in fields:
        raise BadLine(f"neither `{name}` nor `{encoded_name}` is given")
    if text is not None:
        raise BadLine(f"`{name}` is not a text or null")
    return None


def _line(fields: dict[str, Any]) -> bytes:
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


NO_DIGEST = "0" * 2 * LINK_BYTES
"""Placeholder in the header while the records are written."""
_FIELDS = struct.Struct(">qqqqq")
_LENGTHS = struct.Struct(">qq")


def first_link(header: ExportHeader) -> bytes:
    """Link before the first record: of the header without its time, which is only known at the end."""
    offsets = [offsets for offsets in (header.end_offsets, header.first_offsets) if offsets]
    lost = [["positions_lost", sorted(header.positions_lost.items())]] if header.positions_lost else []
    return _digest(orjson.dumps([header.topic, *(sorted(named.items()) for named in offsets), *lost]))


def record_digest(record: RecordRead, headers: Headers = (), verdict: str | None = None) -> bytes:
    """Digest of a record; without headers and verdict that of versions that did not export or cover them."""
    key, value = record.key, record.value
    fields = _FIELDS.pack(record.partition, record.offset, record.timestamp_ms, _length(key), _length(value))
    content = fields + (key or b"") + (value or b"")
    for name, text in headers:
        raw = name.encode()
        content += _LENGTHS.pack(len(raw), _length(text)) + raw + (text or b"")
    if verdict is not None:
        content += _LENGTHS.pack(-1, len(verdict)) + verdict.encode()  # no header has a name of this length
    return _digest(content)


def _length(part: bytes | None) -> int:
    return -1 if part is None else len(part)


def next_link(link: bytes, digest: bytes) -> bytes:
    """The link of a record that follows another one."""
    return _digest(link + digest)


def file_digest(link: bytes, header: ExportHeader) -> str:
    """The digest of a file whose last record has this link; without `beside` and `replay` as before they were covered."""
    covered = b"" if header.beside is None else orjson.dumps(sorted(header.beside.items()))
    if header.replay is not None and header.replay.covered:
        covered += orjson.dumps(asdict(header.replay), option=orjson.OPT_SORT_KEYS)
    return _digest(link + _FIELDS.pack(header.exported_at_ms, 0, 0, 0, 0) + covered).hex()


class ChainReader:
    """Checks the chain of consecutive lines, or that there is none.

    Args:
        header: Of the file: whether it has a digest, and what that covers.
        link: That of the record before the first one; None: unknown, and not compared.
    """

    def __init__(self, header: ExportHeader, link: bytes | None = None) -> None:
        self._chained, self._judged = header.digest is not None, header.replay is not None
        self._covered = header.replay is not None and header.replay.covered
        self.link = link

    def digest(self, line: ExportLine) -> bytes:
        """What the next link of the chain covers of a line."""
        return record_digest(line.record, line.headers, line.verdict if self._covered else None)

    def take(self, line: ExportLine) -> None:
        """Check the next line.

        Raises:
            BadLine: Its link does not match.
        """
        if (line.link is not None) is not self._chained:
            if self._chained:
                raise BadLine("it has no `chain`, although the header has a `digest`")
            raise BadLine("it has a `chain`, but the header has no `digest`")
        if line.verdict is not None and not self._judged:
            raise BadLine("it has a `verdict`, but the header has no `replay`")
        if line.link is None:
            return
        link = bytes.fromhex(line.link)
        if self.link is not None and link != next_link(self.link, self.digest(line)):
            raise BadLine(
                "its `chain` does not match: it was edited, or lines before it were removed, inserted or moved, or the header "
                "was edited"
            )
        self.link = link


def chain_of(header: ExportHeader) -> ChainReader:
    """Reader of a file's chain from its first record on."""
    return ChainReader(header, first_link(header))


def check_end(header: ExportHeader, link: bytes | None) -> None:
    """Check that a chained file is complete at its end.

    Args:
        link: Of its last record.

    Raises:
        BadLine: It is not.
    """
    if header.digest is None:
        return
    if link is None or file_digest(link, header) != header.digest:
        raise BadLine(
            "the end of the chain does not match the header: lines at the end were removed, or the header was edited"
        )


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=LINK_BYTES).digest()
