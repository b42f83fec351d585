"""Command `statechannel split`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import orjson
import typer

from statechannel.broker.request_record import Addressee, RequestCommand
from statechannel.cli.kit.broker_request import BrokerRequest, broker_request
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, Reason
from statechannel.cli.lookup import require_name
from statechannel.errors import ExitCode
from statechannel.protocol.bundle import FULL_UPPER, MAX_CHILDREN, bounds_at, even_bounds, parse_key

app = typer.Typer(add_completion=False, rich_markup_mode=None)

EXTENSION = "balancer"
"""The owner's extension that has the algorithms, and unloads children."""


@app.command()
@broker_request
def split(
    _: Connect,
    name: Annotated[str, typer.Argument(metavar="BUNDLE|TOPIC")],
    own_flags: Sequence[str],
    at: Annotated[
        list[str] | None,
        typer.Option("--at", metavar="HASH", help="Split at this hash (0x... or decimal); may be repeated."),
    ] = None,
    parts: Annotated[
        int | None, typer.Option("--parts", min=2, max=MAX_CHILDREN, help="Number of equal parts.")
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithm",
            metavar="NAME",
            help="Split algorithm of the owner's balancer; its settings: --set NAME=VALUE.",
        ),
    ] = None,
    unload_children: Annotated[
        bool, typer.Option("--unload-children", help="Unload the children, so that they are placed again.")
    ] = False,
    reason: Reason = None,
) -> BrokerRequest:
    """Split a bundle in one record: into halves, into equal parts, at given hashes, or by an algorithm."""
    require_name(name)
    _check_choice(at, parts, algorithm, own_flags)
    if algorithm is not None:
        asked = {"algorithm": algorithm, "settings": _settings(own_flags)}
        return _of_owner(name, asked, reason, f"{name} split by {algorithm}", unload_children=unload_children)
    cuts = [_hash(text) for text in at or ()]
    _check_range(name, cuts, parts or 2)
    done = f"{name} split into {len(cuts) + 1 if cuts else parts or 2} parts"
    where = {"at": cuts or None, "parts": None if cuts else parts or 2}
    if unload_children:
        return _of_owner(name, where, reason, done, unload_children=True)
    return BrokerRequest(RequestCommand.SPLIT, {"name": name, **where, "reason": reason}, done)


def _check_choice(at: list[str] | None, parts: int | None, algorithm: str | None, flags: Sequence[str]) -> None:
    choices = [("--at", bool(at)), ("--parts", parts is not None), ("--algorithm", algorithm is not None)]
    names = [option for option, is_given in choices if is_given]
    if len(names) > 1:
        raise CommandError(f"{' and '.join(names)} exclude each other", hint="Use one of them.", code=ExitCode.USAGE)
    if flags and algorithm is None:
        raise CommandError(
            f"--set {flags[0]} is not a valid setting",
            hint="Use --set GROUP.NAME=VALUE; settings of an algorithm need --algorithm NAME.",
            code=ExitCode.USAGE,
        )


def _of_owner(
    name: str, asked: dict[str, Any], reason: str | None, done: str, *, unload_children: bool
) -> BrokerRequest:
    """A split by the owner's balancer: it knows the topics of the bundle, and waits for the split."""
    args = {"extension": EXTENSION, "ask": "split", "to": Addressee.OWNER.value, "name": name, "reason": reason}
    text = f"{done}, children unloaded" if unload_children else done
    return BrokerRequest(
        RequestCommand.EXTENSION,
        {
            **args,
            **{key: value for key, value in asked.items() if value is not None},
            "unload_children": unload_children,
        },
        text,
    )


def _settings(flags: Sequence[str]) -> dict[str, Any]:
    """Settings for the owner: texts, except `none`, lists and tables."""
    settings: dict[str, Any] = {}
    for flag in flags:
        name, equals, text = flag.partition("=")
        if not equals or not name.strip():
            raise CommandError(
                f"--set {flag}: not of the form NAME=VALUE",
                hint="Example: --set max_msg_rate=5000",
                code=ExitCode.USAGE,
            )
        settings[name.strip()] = _value(text.strip())
    return settings


def _value(text: str) -> Any:
    if text.lower() == "none":
        return None
    if text[:1] in ("[", "{"):
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            return text
    return text


def _hash(text: str) -> int:
    try:
        value = int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        value = -1
    if not 0 <= value <= FULL_UPPER:
        raise CommandError(
            f"--at {text} is not a hash",
            hint="Use 0x00000000 to 0xffffffff, or the same as a decimal number.",
            code=ExitCode.USAGE,
        )
    return value


def _check_range(name: str, cuts: list[int], parts: int) -> None:
    """Check hashes against the bounds in the bundle's name, before any request."""
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
            str(error), hint=f"`statechannel positions {name}` shows its topics' hashes.", code=ExitCode.USAGE
        ) from error
