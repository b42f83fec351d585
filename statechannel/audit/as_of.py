"""Moment of an audit: an offset or a time (design/cli.md, `--as-of`). Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from statechannel.audit.errors import AuditQuestionError
from statechannel.protocol.log import RecordRead
from statechannel.replay.auditor import prefix

_OFFSET = re.compile(r"[0-9]{1,19}", re.ASCII)
_MILLISECONDS = re.compile(r"([0-9]{1,19})ms", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class AsOf:
    """Inclusive: the record at the offset, or of that millisecond, still counts.

    Attributes:
        offset: Applies to each partition; None for a time.
        time_ms: Milliseconds since 1970; None for an offset.
    """

    offset: int | None = None
    time_ms: int | None = None

    def __call__(self, record: RecordRead) -> bool:
        """Whether the record lies in the prefix; the first that does not ends its partition's."""
        if self.offset is not None:
            return record.offset <= self.offset
        return self.time_ms is None or record.timestamp_ms <= self.time_ms

    def cut(self, records: Sequence[RecordRead]) -> Cut:
        """Number of a partition's records in the prefix."""
        inside = prefix(records, self)
        return Cut(len(inside), inside[-1].offset if inside else -1)


class Cut(NamedTuple):
    """Prefix of a partition for an audit of the past.

    Attributes:
        records: Number of records in it.
        last_offset: Offset of the last of them; -1 if there is none.
    """

    records: int
    last_offset: int


def parse_as_of(text: str, name: str = "--as-of") -> AsOf:
    """Read a bare number (offset), milliseconds since 1970 with the suffix `ms`, or ISO 8601 (UTC unless it says so).

    Args:
        name: Name of the option, for errors.

    Raises:
        AuditQuestionError: The text is invalid.
    """
    if _OFFSET.fullmatch(text):
        return AsOf(offset=int(text))
    milliseconds = _MILLISECONDS.fullmatch(text)
    if milliseconds:
        return AsOf(time_ms=int(milliseconds.group(1)))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise AuditQuestionError(
            f"{name} {text!r} is neither an offset nor a time.",
            hint="Examples: 1042 (offset), 1767225600000ms, 2026-01-01T00:00:00Z.",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return AsOf(time_ms=(moment - _EPOCH) // timedelta(milliseconds=1))
