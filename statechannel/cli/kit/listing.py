"""Options shared by all lists of what happened: from when to when, and by whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from statechannel.audit.moments import AsOf, LogWindow, parse_window, was_yesterday
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.output import moment, say_once
from statechannel.errors import ExitCode

_AUTHORS_SHOWN = 5
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="AGE|TIME|OFFSET",
        help="Only from then on, inclusive: 10m (ago), 2026-01-01T00:00:00Z, or an offset.",
    ),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="AGE|TIME|OFFSET", help="Only up to then, inclusive, as --since.")
]
SinceTime = Annotated[
    str | None,
    typer.Option("--since", metavar="AGE|TIME", help="Only from then on: 15m (ago), 2h, 7d, 2026-01-01T00:00:00Z."),
]
UntilTime = Annotated[str | None, typer.Option("--until", metavar="AGE|TIME", help="Only up to then, as --since.")]


def _named(by: str | None) -> str | None:
    """Refuse an empty name, as an empty variable of a script gives it: it would select what has no author."""
    if by is not None and not by.strip():
        raise CommandError("--by is empty", hint="Name a broker or a person, or omit it.", code=ExitCode.USAGE)
    return by


Writer = Annotated[
    str | None, typer.Option("--by", metavar="BROKER", callback=_named, help="Only what this broker wrote.")
]
Person = Annotated[
    str | None, typer.Option("--by", metavar="PERSON", callback=_named, help="Only what this person did.")
]
Author = Annotated[
    str | None,
    typer.Option(
        "--by", metavar="BROKER|PERSON", callback=_named, help="Only what this broker began, or this person requested."
    ),
]


def hint_of_authors(by: str, authors: Iterable[str]) -> str:
    """Authors that may be meant by a name that no author has, as a sentence with a space; empty if there are none."""
    alike = sorted(
        {author for author in authors if author.partition("@")[0].casefold() == by.partition("@")[0].casefold()}
    )
    return f"Known: {', '.join(alike[:_AUTHORS_SHOWN])}. " if alike else ""


def remark_yesterday(name: str, text: str, side: AsOf, now_ms: int) -> None:
    """Say that a time of day is yesterday's: it may have been meant for today, and be in the future."""
    if side.time_ms is not None and was_yesterday(text, side, now_ms):
        say_once(f"note: {name} {text} means {moment(side.time_ms)}: today's was still to come at {moment(now_ms)}")


def window_between(since: str | None, until: str | None, now_ms: int) -> LogWindow:
    """`parse_window`, with its remarks on standard error.

    Raises:
        AuditQuestionError: As `parse_window`.
    """
    window = parse_window(since, until, now_ms=now_ms)
    for name, text, side in (("--since", since, window.since), ("--until", until, window.until)):
        if text is not None and side is not None:
            remark_yesterday(name, text, side, now_ms)
    return window


def time_window(since: str | None, until: str | None, now_ms: int) -> LogWindow:
    """The window of a list whose rows have no offsets of their own.

    Raises:
        CommandError: A side is an offset.
        AuditQuestionError: A side is neither a time nor an age, or they are in the wrong order.
    """
    window = window_between(since, until, now_ms)
    for name, text, side in (("--since", since, window.since), ("--until", until, window.until)):
        if side is not None and side.offset is not None:
            raise CommandError(
                f"{name} {text} is an offset: this list has only times",
                hint="Examples: 15m, 2h, 7d, 2026-01-01T00:00:00Z, 1767225600000ms.",
                code=ExitCode.USAGE,
            )
    return window
