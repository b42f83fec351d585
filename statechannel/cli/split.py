"""`statechannel split`."""

from __future__ import annotations

from typing import Annotated

import typer

from statechannel.cli.exit_codes import ExitCode
from statechannel.cli.failures import CommandError
from statechannel.cli.lookup import require_name
from statechannel.cli.options import Connect, Reason
from statechannel.cli.wish import Wish, wishing
from statechannel.core.bundle import FULL_UPPER, MAX_CHILDREN, bounds_at, even_bounds, parse_key
from statechannel.runtime.request_record import Asked

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@wishing
def split(
    _: Connect,
    name: Annotated[str, typer.Argument(metavar="BUNDLE|TOPIC")],
    at: Annotated[
        list[str] | None, typer.Option("--at", metavar="HASH", help="Cut here (0x... or decimal); may be repeated.")
    ] = None,
    parts: Annotated[int | None, typer.Option("--parts", min=2, max=MAX_CHILDREN, help="So many even parts.")] = None,
    reason: Reason = None,
) -> Wish:
    """Split a bundle in one record: into two halves, into even parts, or at hashes of your choice."""
    require_name(name)
    if at and parts is not None:
        raise CommandError("--at and --parts exclude each other", hint="Name one of them.", code=ExitCode.USAGE)
    cuts = [_hash(text) for text in at or ()]
    _check_range(name, cuts, parts or 2)
    args = {"name": name, "at": cuts or None, "parts": None if cuts else parts or 2, "reason": reason}
    return Wish(Asked.SPLIT, args, f"{name} split into {len(cuts) + 1 if cuts else parts or 2} parts")


def _hash(text: str) -> int:
    try:
        value = int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        value = -1
    if not 0 <= value <= FULL_UPPER:
        raise CommandError(
            f"--at {text} is no place on the ring",
            hint="Say 0x00000000 to 0xffffffff, or the same as a decimal number.",
            code=ExitCode.USAGE,
        )
    return value


def _check_range(name: str, cuts: list[int], parts: int) -> None:
    """What can be known without asking: a bundle's name says where it begins and ends."""
    key = parse_key(name.encode())
    if key is None or key.is_namespace:
        return
    try:
        if cuts:
            bounds_at(key.lower, key.upper, cuts)
        else:
            even_bounds(parts, key.lower, key.upper)
    except ValueError as error:
        raise CommandError(
            str(error), hint=f"`statechannel positions {name}` shows what lies where.", code=ExitCode.USAGE
        ) from error
