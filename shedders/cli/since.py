"""`--since`: a moment, or a length of time before now."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from shedders.cli.moments import parse_length_ms
from statechannel.cli.failures import CommandError
from statechannel.errors import ExitCode

_LENGTH = re.compile(r"[0-9.]+(?:ms|s|m|h|d)(?:[0-9.]+(?:ms|s|m|h|d))*", re.ASCII)
_STAMP = re.compile(r"([0-9]{12,14})ms", re.ASCII)
_BEYOND = "decisions are kept for a week by default."
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_since(text: str, now_ms: int) -> int:
    """Milliseconds since 1970.

    Args:
        text: `90s`, `1h30m`, `7d`; ISO 8601 (UTC unless it says so); or `...ms` since 1970.

    Raises:
        CommandError: It is none of them.
    """
    stamp = _STAMP.fullmatch(text)
    if stamp:
        return int(stamp.group(1))
    if _LENGTH.fullmatch(text):
        return max(0, now_ms - parse_length_ms(text, "--since", beyond=_BEYOND))
    try:
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return max(0, (at - _EPOCH) // timedelta(milliseconds=1))
    except (ValueError, OverflowError):
        raise CommandError(
            f"--since {text} is neither a time nor a length",
            hint="Examples: 15m, 2h, 7d, 2026-01-01T00:00:00Z, 1767225600000ms.",
            code=ExitCode.USAGE,
        ) from None
