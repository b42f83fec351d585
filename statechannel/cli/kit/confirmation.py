"""Questions before a command destroys or moves something, and dry runs (design/cli.md#questions-and-dry-runs)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import option
from statechannel.cli.kit.output import Output, print_json, say, stdout
from statechannel.errors import UsageError

if TYPE_CHECKING:
    from statechannel.queries.connection import Connection

Yes = Annotated[bool, option("--yes -y", "Do not ask for confirmation.")]
DryRun = Annotated[bool, option("--dry-run", "Show what would happen; change nothing.")]


@dataclass(frozen=True, slots=True)
class Effect:
    """What a command would do.

    Attributes:
        sentences: For people.
        facts: The same for programs.
    """

    sentences: Sequence[str]
    facts: Mapping[str, Any] = field(default_factory=dict)


def confirm(
    effect: Callable[[], Effect],
    *,
    connection: Callable[[], Connection],
    yes: bool,
    dry_run: bool,
    output: Output,
    final: bool = False,
) -> bool:
    """Whether the command goes on; False after a dry run, whose result has been printed.

    A person at a terminal is asked, unless `yes`. Without a terminal the command goes on, unless nothing undoes it.

    Args:
        effect: Computed only where it is shown; raises the error of a command that would be refused.
        connection: Names where it would happen; called after `effect`.
        final: Nothing undoes the command.

    Raises:
        CommandError, UsageError: The person refused, or cannot be asked.
    """
    if dry_run:
        _print(effect(), connection(), output)
        return False
    if yes:
        return True
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        if final:
            raise UsageError(
                "this cannot be undone and needs a confirmation, and there is no terminal to ask on; nothing was changed",
                hint="Confirm it with --yes; --dry-run shows what would happen.",
            )
        return True
    for sentence in (*effect().sentences, f"on {connection().place}"):
        say(sentence)
    if not _agrees():
        raise CommandError("not confirmed; nothing was changed", hint="--yes skips the question.")
    return True


def count_of(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _agrees() -> bool:
    """Ask; standard output stays free for the result."""
    sys.stderr.write("Go on? [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        raise typer.Abort
    return answer.strip().lower() in ("y", "yes")


def say_dry_run(place: str) -> None:
    """Say that this was a dry run, and of what."""
    say(f"dry run on {place}: nothing was changed")


def _print(effect: Effect, connection: Connection, output: Output) -> None:
    if output is Output.JSON:
        print_json({"dry_run": True, **connection.place_fields, "would": list(effect.sentences), **effect.facts})
        return
    for sentence in effect.sentences:
        stdout().print(sentence, markup=False)
    say_dry_run(connection.place)
