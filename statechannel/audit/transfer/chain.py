"""The chain of an export file: each line carries a digest of all that stands before it, the header that of the last one. Pure.

It holds what the lines mean, not how they are spelt, so that one codec serves every reader, also one that reads the file in
pieces: of two pieces that follow each other only the last link of the one and the first record of the other are compared.
It is no signature: who writes the whole file anew writes a chain that holds. Against that the digest is kept elsewhere.
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
"""Stands in the header while the records behind it are written."""
_FIELDS = struct.Struct(">qqqqq")


def first_link(topic: str, end_offsets: Mapping[int, int]) -> bytes:
    """What the first record follows: the header, but for the time, which is known at the end only."""
    return _digest(orjson.dumps([topic, sorted(end_offsets.items())]))


def record_digest(record: RecordRead) -> bytes:
    """All that a line says of a record."""
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
    """Follows the chain of lines that are read one after the other, or sees that there is none.

    Args:
        chained: Whether the header has a digest.
        link: That of the record before the first one; None: not known, so it is not compared.
    """

    def __init__(self, *, chained: bool, link: bytes | None = None) -> None:
        self._chained = chained
        self._link = link

    @property
    def link(self) -> bytes | None:
        """That of the newest record."""
        return self._link

    def take(self, line: ExportLine) -> None:
        """Take in the next line.

        Raises:
            BadLine: It does not follow from those before it.
        """
        if (line.link is not None) is not self._chained:
            if self._chained:
                raise BadLine("it has no `chain`, though the header has a `digest`")
            raise BadLine("it has a `chain`, but the header has lost its `digest`")
        if line.link is None:
            return
        link = bytes.fromhex(line.link)
        if self._link is not None and link != next_link(self._link, record_digest(line.record)):
            raise BadLine(
                "its `chain` does not follow: it was edited, or before it lines were taken out, put in or moved, or the header "
                "was edited"
            )
        self._link = link


def chain_of(header: ExportHeader) -> ChainReader:
    """What follows the chain of a file from its first record on."""
    return ChainReader(chained=header.digest is not None, link=first_link(header.topic, header.end_offsets))


def check_end(header: ExportHeader, link: bytes | None) -> None:
    """See that a chained file ends where it ended when it was written.

    Args:
        link: Of its last record.

    Raises:
        BadLine: It does not.
    """
    if header.digest is not None and (link is None or file_digest(link, header.exported_at_ms) != header.digest):
        raise BadLine(
            "the chain ends otherwise than the header says: lines behind it were cut off, or the header was edited"
        )


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=LINK_BYTES).digest()
