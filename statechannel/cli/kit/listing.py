"""Options shared by all lists of what happened: from when to when, and by whom."""

from __future__ import annotations

import re
from typing import Annotated, Final

from statechannel.audit.moments import duration_ms, iso_ms
from statechannel.cli.kit.options import option
from statechannel.errors import UsageError

Since = Annotated[
    str | None,
    option("--since AGE|TIME|OFFSET", "Only from then on, inclusive: 10m (ago), 2026-01-01T00:00:00Z, or an offset."),
]
Until = Annotated[str | None, option("--until AGE|TIME|OFFSET", "Only up to then, inclusive, as --since.")]
SinceTime = Annotated[
    str | None, option("--since AGE|TIME", "Only from then on: 15m (ago), 2h, 7d, 2026-01-01T00:00:00Z.")
]
UntilTime = Annotated[str | None, option("--until AGE|TIME", "Only up to then, as --since.")]


def _named(by: str | None) -> str | None:
    """Refuse an empty name, as an empty variable of a script gives it: it would select what has no author."""
    if by is not None and not by.strip():
        raise UsageError("--by is empty", hint="Name a broker or a person, or omit it.")
    return by


Writer = Annotated[str | None, option("--by BROKER", "Only what this broker wrote.", callback=_named)]
Person = Annotated[str | None, option("--by PERSON", "Only what this person did.", callback=_named)]
Author = Annotated[
    str | None, option("--by BROKER|PERSON", "Only what this broker began, or this person requested.", callback=_named)
]


LONGEST_MS: Final = 366 * 86_400_000
"""Longest duration of an override."""

_STAMP = re.compile(r"([0-9]{12,14})ms", re.ASCII)

_PERMANENT: Final = "for a permanent policy, use `statechannel policy set`."


def parse_length_ms(text: str, option: str, *, beyond: str = _PERMANENT) -> int:
    """Parse a duration such as `30m`, `2h` or `1h30m`.

    Args:
        option: Name of the option, for people.
        beyond: Advice for longer durations, for people.

    Raises:
        UsageError: The text is not a duration, not positive, or longer than a year.
    """
    length_ms = duration_ms(text)
    if length_ms is None:
        raise UsageError(f"{option} {text}: not a duration", hint="Use 90s, 30m, 2h, 1h30m or 7d.")
    if not 0 < length_ms <= LONGEST_MS:
        raise UsageError(
            f"{option} {text}: must be between one millisecond and one year",
            hint=f"Use 90s, 30m, 2h, 1h30m or 7d; {beyond}",
        )
    return length_ms


def parse_until_ms(text: str, now_ms: int) -> int:
    """Parse a future time: a duration from now, ISO 8601 (UTC by default), or `...ms` since 1970.

    Raises:
        UsageError: The text is none of them, in the past, or more than a year ahead.
    """
    until_ms = _time_ms(text)
    if until_ms is None and duration_ms(text) is not None:
        return now_ms + parse_length_ms(text, "--until")
    if until_ms is None:
        raise UsageError(
            f"--until {text}: neither a time nor a duration",
            hint="Examples: 2026-01-01T00:00:00Z, 1767225600000ms, 30m.",
        )
    if not now_ms < until_ms <= now_ms + LONGEST_MS:
        what = "is in the past" if until_ms <= now_ms else "is more than a year ahead"
        raise UsageError(f"--until {text} {what}", hint="For a permanent policy, omit --until.")
    return until_ms


def _time_ms(text: str) -> int | None:
    """Milliseconds since 1970 of `...ms` or ISO 8601 (UTC by default); None: the text is neither."""
    stamp = _STAMP.fullmatch(text)
    return int(stamp[1]) if stamp else iso_ms(text)
