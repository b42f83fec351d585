"""Moments of a log (`--as-of`), and the part of it between two of them (`--since`, `--until`). Pure.

All are inclusive, and by the log's own offsets and times.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from statechannel.audit.errors import AuditQuestionError
from statechannel.protocol.log import RecordRead
from statechannel.replay.auditor import prefix

_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?Z?", re.ASCII)
_DAY_MS = 86_400_000
_OFFSET = re.compile(r"[0-9]{1,19}", re.ASCII)
_TIME_WITHOUT_SUFFIX = re.compile(r"[1-9][0-9]{11,13}", re.ASCII)
"""Milliseconds since 1970, from 1973 on; as an offset it would be past the end of every topic, and mean now."""
_MILLISECONDS = re.compile(r"([0-9]{1,19})ms", re.ASCII)
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h|d)", re.ASCII)
_DURATION = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AHEAD_MAX_MS = 60_000
"""Clocks of a reader and of Kafka may differ by so much: a moment that is further ahead is in the future."""


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

    def distance(self, offset: int | None, time_ms: int | None) -> int | None:
        """How far a place is behind the moment, in offsets or milliseconds; negative: before it; None: it has no end."""
        at, bound = (offset, self.offset) if self.offset is not None else (time_ms, self.time_ms)
        return None if at is None or bound is None else at - bound

    def is_future(self, now_ms: int) -> bool:
        """Whether it is a time that has not come yet, also if the clocks differ a little."""
        return self.time_ms is not None and self.time_ms > now_ms + _AHEAD_MAX_MS


class Cut(NamedTuple):
    """Prefix of a partition for an audit of the past: its number of records."""

    records: int
    last_offset: int  # -1: there is no record


def parse_as_of(text: str, name: str = "--as-of", *, now_ms: int | None = None) -> AsOf:
    """Read an offset, milliseconds since 1970 with the suffix `ms`, ISO 8601, a time of day, or an age; times are UTC by default.

    Args:
        name: Name of the option, for errors.
        now_ms: The moment from which an age such as `10m` counts back, and before which a time of day such as `11:55` was;
            None: these are not supported.

    Raises:
        AuditQuestionError: The text is invalid.
    """
    if _TIME_WITHOUT_SUFFIX.fullmatch(text):
        raise AuditQuestionError(
            f"{name} {text} is too high for an offset, and no time without the suffix `ms`.",
            hint=f"Milliseconds since 1970, as in JSON and exports: {text}ms.",
        )
    if _OFFSET.fullmatch(text):
        return AsOf(offset=int(text))
    milliseconds = _MILLISECONDS.fullmatch(text)
    if milliseconds:
        return AsOf(time_ms=int(milliseconds.group(1)))
    age_ms = None if now_ms is None else duration_ms(text)
    if now_ms is not None and age_ms is not None:
        if age_ms > now_ms:
            raise AuditQuestionError(
                f"{name} {text} is an age that reaches back before 1970.", hint="Use 10m, 2h or 7d."
            )
        return AsOf(time_ms=now_ms - age_ms)
    # Digits alone are an offset: in the basic format of ISO 8601 a longer one would be a time of some century.
    time_ms = None if text.isdigit() else iso_ms(text)
    if time_ms is None and now_ms is not None:
        time_ms = _last_ms(text, now_ms)
    if time_ms is None:
        raise AuditQuestionError(
            f"{name} {text!r} is neither an offset nor a time" + (", nor an age." if now_ms is not None else "."),
            hint="Examples: 1042 (offset), 1767225600000ms, 2026-01-01T00:00:00Z"
            + (", 11:55, 10m (ago), 2h, 7d." if now_ms is not None else "."),
        )
    return AsOf(time_ms=time_ms)


def _last_ms(text: str, now_ms: int) -> int | None:
    """The last time before now at which it was this time of day, as tables print it, in UTC; None: the text is not one."""
    if not _CLOCK.fullmatch(text):
        return None
    now = _EPOCH + timedelta(milliseconds=now_ms)
    clock = text.removesuffix("Z")
    clock = clock if clock[2] == ":" else f"0{clock}"
    at_ms = iso_ms(f"{now:%Y-%m-%d}T{clock}")
    if at_ms is None:
        return None
    return at_ms if at_ms <= now_ms else at_ms - _DAY_MS


def was_yesterday(text: str, moment: AsOf, now_ms: int) -> bool:
    """Whether a time of day means the one of the day before, since today's is still to come."""
    return bool(_CLOCK.fullmatch(text)) and moment.time_ms is not None and moment.time_ms // _DAY_MS < now_ms // _DAY_MS


def iso_ms(text: str) -> int | None:
    """Milliseconds since 1970 of a time in ISO 8601 (UTC unless it says so); None: the text is not one."""
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        return None


def duration_ms(text: str) -> int | None:
    """Milliseconds of a duration such as `90s` or `1h30m`; None: the text is not one."""
    if not _DURATION.fullmatch(text):
        return None
    return round(sum(float(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text)))


@dataclass(frozen=True, slots=True)
class LogWindow:
    """The part of a log from one moment to another, both inclusive; an empty side is open.

    Unlike `--as-of` it does not change what is judged: the whole log is, and the window selects what is listed.
    """

    since: AsOf | None = None
    until: AsOf | None = None

    @property
    def is_whole(self) -> bool:
        return self.since is None and self.until is None

    def has(self, offset: int, timestamp_ms: int) -> bool:
        return self.meets((offset, timestamp_ms), (offset, timestamp_ms))

    def meets(self, start: tuple[int, int], end: tuple[int | None, int | None]) -> bool:
        """Whether something is at least partly in the window, by the offsets and log times of its start and end; None: no end."""
        ends = None if self.since is None else self.since.distance(*end)
        begins = None if self.until is None else self.until.distance(*start)
        return (ends is None or ends >= 0) and (begins is None or begins <= 0)

    def fields(self) -> dict[str, Any]:
        """For the JSON output: an offset or a time for each side that is given."""
        return {"since": _side(self.since), "until": _side(self.until)}


WHOLE_LOG = LogWindow()


def _side(moment: AsOf | None) -> dict[str, int] | None:
    if moment is None:
        return None
    return {"offset": moment.offset} if moment.offset is not None else {"timestamp_ms": moment.time_ms or 0}


def parse_window(since: str | None, until: str | None, *, now_ms: int) -> LogWindow:
    """The window between two moments; each as `parse_as_of` reads it.

    Raises:
        AuditQuestionError: A text is invalid, the first moment is later than the second, or it is in the future.
    """
    window = LogWindow(
        None if since is None else parse_as_of(since, "--since", now_ms=now_ms),
        None if until is None else parse_as_of(until, "--until", now_ms=now_ms),
    )
    first, last = window.since, window.until
    if first is not None and first.is_future(now_ms):
        raise AuditQuestionError(f"--since {since} is in the future.", hint="Give an earlier time.")
    if first is None or last is None:
        return window
    for begins, ends in ((first.offset, last.offset), (first.time_ms, last.time_ms)):
        if begins is not None and ends is not None and begins > ends:
            raise AuditQuestionError(f"--since {since} is later than --until {until}.", hint="Exchange them.")
    return window
