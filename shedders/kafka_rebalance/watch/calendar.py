"""Recurring hours and single days, as settings have them: `Mon-Fri 22:00-06:00`, `08:00-12:00`, `2026-12-24..2026-12-26`. Pure.

Hours that end before they begin go on after midnight and belong to the day on which they begin. Days are those of the time
zone of the settings; a day is inclusive, the end of hours is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DAY_MIN: Final = 24 * 60
_HOURS: Final = re.compile(r"(?:([A-Z][a-z]{2})(?:-([A-Z][a-z]{2}))? )?(\d{2}):(\d{2})-(\d{2}):(\d{2})", re.ASCII)
_DATES: Final = re.compile(r"(\d{4}-\d{2}-\d{2})(?:\.\.(\d{4}-\d{2}-\d{2}))?", re.ASCII)
FORMS: Final = "Use `22:00-06:00`, `Mon-Fri 22:00-06:00`, `2026-12-24` or `2026-12-24..2026-12-26`."


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringHours:
    """Hours on days of the week (0: Monday); `to_min` beyond a day: after midnight."""

    days: frozenset[int]
    from_min: int
    to_min: int

    def contains(self, at: datetime) -> bool:
        minute = at.hour * 60 + at.minute
        today = at.weekday() in self.days and self.from_min <= minute < self.to_min
        yesterday = (at.weekday() - 1) % 7 in self.days and minute + DAY_MIN < self.to_min
        return today or yesterday


@dataclass(frozen=True, slots=True, kw_only=True)
class DateRange:
    """Whole days, both ends included."""

    first: date
    last: date

    def contains(self, at: datetime) -> bool:
        return self.first <= at.date() <= self.last


def parse_span(text: str) -> RecurringHours | DateRange:
    """Parse one span.

    Raises:
        ValueError: The text has another form, or a time beyond 24:00.
    """
    if (match := _DATES.fullmatch(text)) is not None:
        first, last = date.fromisoformat(match[1]), date.fromisoformat(match[2] or match[1])
        if last < first:
            raise ValueError(f"{text!r}: the last day is before the first. {FORMS}")
        return DateRange(first=first, last=last)
    match = _HOURS.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a span of time. {FORMS}")
    begin, end = _minute(match[3], match[4], text), _minute(match[5], match[6], text)
    if begin == end or (begin, end) == (DAY_MIN, 0):
        raise ValueError(f"{text!r} is empty; a whole day is 00:00-24:00. {FORMS}")
    return RecurringHours(
        days=_days(match[1], match[2], text), from_min=begin, to_min=end if end > begin else end + DAY_MIN
    )


def _minute(hour: str, minute: str, text: str) -> int:
    result = int(hour) * 60 + int(minute)
    if int(minute) >= 60 or result > DAY_MIN:  # noqa: PLR2004 - minutes of an hour
        raise ValueError(f"{text!r}: {hour}:{minute} is not a time of a day. {FORMS}")
    return result


def _days(first: str | None, last: str | None, text: str) -> frozenset[int]:
    if first is None:
        return frozenset(range(7))
    for name in (first, last or first):
        if name not in DAYS:
            raise ValueError(f"{text!r}: {name} is not one of {', '.join(DAYS)}")
    begin, end = DAYS.index(first), DAYS.index(last or first)
    return frozenset((begin + step) % 7 for step in range((end - begin) % 7 + 1))


def local_time(now_ms: int, zone: str) -> datetime:
    """Wall-clock time in a time zone."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=now_ms)).astimezone(ZoneInfo(zone))


def first_span_at(texts: Iterable[str], now_ms: int, zone: str) -> str | None:
    """The first span that contains a time; None: no span does."""
    at = local_time(now_ms, zone)
    return next((text for text in texts if parse_span(text).contains(at)), None)


def time_text(now_ms: int, zone: str) -> str:
    """A time as the spans have it, for people."""
    at = local_time(now_ms, zone)
    return f"{DAYS[at.weekday()]} {at:%H:%M} {zone}"
