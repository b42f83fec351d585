"""Hash chain of an export file: each line has a digest of all lines before it, the header that of the last one. Pure.

It covers the content of the lines, not their formatting, so that one codec serves every reader, also one that reads the file in
pieces: of two consecutive pieces only the last link of the first and the first record of the second are compared.
It is not a signature: rewriting the whole file creates a valid chain. To detect that, keep the digest elsewhere.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING

import orjson

from statechannel.audit.transfer.line import LINK_BYTES, BadLine, ExportHeader, ExportLine

if TYPE_CHECKING:
    from statechannel.protocol.log import RecordRead

NO_DIGEST = "0" * 2 * LINK_BYTES
"""Placeholder in the header while the records are written."""
_FIELDS = struct.Struct(">qqqqq")


def first_link(topic: str, end_offsets: Mapping[int, int]) -> bytes:
    """Link before the first record: of the header without its time, which is only known at the end."""
    return _digest(orjson.dumps([topic, sorted(end_offsets.items())]))


def record_digest(record: RecordRead) -> bytes:
    """Digest of a record's content."""
    key, value = record.key, record.value
    lengths = (-1 if part is None else len(part) for part in (key, value))
    fields = _FIELDS.pack(record.partition, record.offset, record.timestamp_ms, *lengths)
    return _digest(fields + (key or b"") + (value or b""))


def next_link(link: bytes, digest: bytes) -> bytes:
    """The link of a record that follows another one."""
    return _digest(link + digest)


def file_digest(link: bytes, exported_at_ms: int) -> str:
    """The digest of a file whose last record has this link."""
    return _digest(link + _FIELDS.pack(exported_at_ms, 0, 0, 0, 0)).hex()


class ChainReader:
    """Checks the chain of consecutive lines, or that there is none.

    Args:
        chained: Whether the header has a digest.
        link: That of the record before the first one; None: unknown, and not compared.
    """

    def __init__(self, *, chained: bool, link: bytes | None = None) -> None:
        self._chained = chained
        self._link = link

    @property
    def link(self) -> bytes | None:
        """Link of the newest record."""
        return self._link

    def take(self, line: ExportLine) -> None:
        """Check the next line.

        Raises:
            BadLine: Its link does not match.
        """
        if (line.link is not None) is not self._chained:
            if self._chained:
                raise BadLine("it has no `chain`, although the header has a `digest`")
            raise BadLine("it has a `chain`, but the header has no `digest`")
        if line.link is None:
            return
        link = bytes.fromhex(line.link)
        if self._link is not None and link != next_link(self._link, record_digest(line.record)):
            raise BadLine(
                "its `chain` does not match: it was edited, or lines before it were removed, inserted or moved, or the header "
                "was edited"
            )
        self._link = link


def chain_of(header: ExportHeader) -> ChainReader:
    """Reader of a file's chain from its first record on."""
    return ChainReader(chained=header.digest is not None, link=first_link(header.topic, header.end_offsets))


def check_end(header: ExportHeader, link: bytes | None) -> None:
    """Check that a chained file is complete at its end.

    Args:
        link: Of its last record.

    Raises:
        BadLine: It is not.
    """
    if header.digest is not None and (link is None or file_digest(link, header.exported_at_ms) != header.digest):
        raise BadLine(
            "the end of the chain does not match the header: lines at the end were removed, or the header was edited"
        )


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=LINK_BYTES).digest()
