"""`statechannel override pin|cordon|exclude|shedding|threshold|end|list`: policies that expire.

An override takes precedence over the policy of the same kind and name until it expires.
"""

from __future__ import annotations

from typing import Annotated

import typer

from shedders.cli.policy import command
from shedders.cli.policy.command import KindWord, NameWord
from shedders.cli.policy.write import By, Force_, put, report_result, take_away
from shedders.cli.times import parse_length_ms
from shedders.policies.kinds import CLUSTER, PolicyKind, name_and_words, value_from
from shedders.policies.record import made_key
from statechannel.cli.kit.live_log import now_ms
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Policies that expire: pin, cordon, exclude, shedding, threshold; list, end.",
)

For = Annotated[str, typer.Option("--for", metavar="LENGTH", help="Time until it expires, e.g. 90s, 30m, 2h, 7d.")]
Why = Annotated[str, typer.Option("--why", help="Reason of the override, for people.")]


@app.command()
@with_connection
def pin(
    connect: Connect,
    subject: Annotated[str, typer.Argument(metavar="BUNDLE|NAMESPACE")],
    broker: Annotated[str, typer.Argument(metavar="BROKER")],
    length: For,
    why: Why,
    by: By = None,
    force: Force_ = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Restrict a bundle or namespace to this broker; bundles on other brokers are not moved by the pin."""
    _put(connect, PolicyKind.PIN, [subject, broker], length, why, by, output, force=force)


@app.command()
@with_connection
def cordon(
    connect: Connect,
    broker: Annotated[str, typer.Argument(metavar="BROKER")],
    length: For,
    why: Why,
    by: By = None,
    force: Force_ = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Assign no bundles to a broker."""
    _put(connect, PolicyKind.CORDON, [broker], length, why, by, output, force=force)


@app.command()
@with_connection
def exclude(
    connect: Connect,
    namespace: Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE")],
    length: For,
    why: Why,
    by: By = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Exclude a namespace from shedding."""
    _put(connect, PolicyKind.EXCLUDE, [namespace], length, why, by, output)


@app.command()
@with_connection
def shedding(
    connect: Connect,
    state: Annotated[str, typer.Argument(metavar="on|off")],
    length: For,
    why: Why,
    by: By = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Switch automatic moves off or on."""
    _put(connect, PolicyKind.SHEDDING, [state], length, why, by, output)


@app.command()
@with_connection
def threshold(
    connect: Connect,
    name: Annotated[str, typer.Argument(metavar="SETTING", help="shedding.STRATEGY.NAME, filters.NAME, ...")],
    value: Annotated[str, typer.Argument(metavar="VALUE")],
    length: For,
    why: Why,
    by: By = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Override a setting, such as a threshold."""
    _put(connect, PolicyKind.SETTING, [name, value], length, why, by, output)


@app.command()
@with_connection
def end(
    connect: Connect,
    kind: KindWord,
    name: NameWord = CLUSTER,
    force: Force_ = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """End an override before it expires, unless the remaining policies contradict each other."""
    policy_kind, name = command.named("setting" if kind == "threshold" else kind, name)
    report_result(take_away(connect(), made_key(policy_kind, name, override=True), force=force), output)


app.command("list")(command.list_overrides)


def _put(
    connect: Connect,
    kind: PolicyKind,
    words: list[str],
    length: str,
    why: str,
    by: str | None,
    output: Output,
    *,
    force: bool = False,
) -> None:
    name, rest = name_and_words(kind, words)
    value = value_from(kind, rest)
    until_ms = now_ms() + parse_length_ms(length, "--for")
    key = made_key(kind, name, override=True)
    report_result(put(connect(), key, value, by=by, why=why, until_ms=until_ms, force=force), output)
