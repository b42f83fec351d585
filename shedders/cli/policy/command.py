"""`statechannel policy set|get|list|delete|kinds|export|import`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

import typer

from shedders.balancer.setting_names import is_known
from shedders.cli.policy import write
from shedders.cli.policy.checks import sentence
from shedders.cli.policy.transfer import export_policies, import_policies
from shedders.cli.policy.write import By, Force_, book_of, nothing_there, put, shown, take_away, tell
from shedders.cli.times import parse_until_ms
from shedders.policies.contradictions import Contradiction
from shedders.policies.effective import EffectivePolicies, Force, PolicyEntry
from shedders.policies.kinds import CLUSTER, RULES, PolicyKind, canonical, kind_of, name_and_words, value_from
from shedders.policies.record import made_key
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.live_log import now_ms
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, moment, print_json, print_table, say
from statechannel.errors import ExitCode

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="What operators lay down for balancing and placement: set, get, list, delete, kinds, export, import.",
)

KindWord = Annotated[str, typer.Argument(metavar="KIND", help="`statechannel policy kinds` lists them.")]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME VALUE...", help="Left out of kinds that are about the whole cluster: NAME."),
]
NameWord = Annotated[str, typer.Argument(metavar="[NAME]", help="Left out of kinds about the whole cluster.")]


@app.command("set")
@with_connection
def set_(
    connect: Connect,
    kind: KindWord,
    words: Words = None,
    why: Annotated[str | None, typer.Option("--why", help="For people who read it.")] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="An override that ends then: a time, or a length such as 30m."),
    ] = None,
    by: By = None,
    force: Force_ = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Write a policy; every broker applies it within one second.

    With --until it is an override: it lies over the standing policy of that name until then, and leaves it as it is.
    """
    found = kind_of(kind)
    name, rest = name_and_words(found, words or ())
    value = value_from(found, rest)
    until_ms = None if until is None else parse_until_ms(until, now_ms())
    key = made_key(found, name, override=until is not None)
    tell(put(connect(), key, value, by=by, why=why, until_ms=until_ms, force=force), output)


@app.command()
@with_connection
def delete(
    connect: Connect,
    kind: KindWord,
    name: NameWord = CLUSTER,
    override: Annotated[bool, typer.Option("--override", help="The override of that name, before its end.")] = False,
    force: Force_ = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Delete a policy, if what is left can be kept together."""
    found, name = named(kind, name)
    tell(take_away(connect(), made_key(found, name, override=override), force=force), output)


@app.command()
@with_connection
def get(connect: Connect, kind: KindWord, name: NameWord = CLUSTER, output: OutputAs = Output.TABLE) -> None:
    """Show one policy, and the override that lies over it."""
    found, name = named(kind, name)
    standing = book_of(connect()).at(now_ms())
    short = name.removeprefix("parts.") if found is PolicyKind.SETTING else name
    entries = _judged(standing.find(found, name) or standing.find(found, short))
    if not entries:
        raise nothing_there(standing, made_key(found, name))
    if output is Output.JSON:
        print_json({"kind": str(found), "name": name, "entries": [one.fields() for one in entries]})
        return
    _show(entries)


@app.command("list")
@with_connection
def list_(
    connect: Connect,
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only these.")] = None,
    overrides: Annotated[bool, typer.Option("--overrides", help="Only overrides.")] = False,
    lapsed: Annotated[
        bool, typer.Option("--lapsed", help="With those that have been taken back by themselves.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Look whether the live cluster can keep them.")] = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """List the policies."""
    only = None if kind is None else kind_of(kind)
    _list(connect(), only, output, overrides=overrides, lapsed=lapsed, check=check)


@with_connection
def list_overrides(
    connect: Connect,
    lapsed: Annotated[
        bool, typer.Option("--lapsed", help="With those that have been taken back by themselves.")
    ] = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """List the overrides."""
    _list(connect(), None, output, overrides=True, lapsed=lapsed, check=False)


def _list(
    connection: Connection, only: PolicyKind | None, output: Output, *, overrides: bool, lapsed: bool, check: bool
) -> None:
    standing = book_of(connection).at(now_ms())
    found = _judged(
        one
        for one in (*standing.entries, *(standing.lapsed if lapsed else ()))
        if (only is None or one.key.kind is only) and (one.key.override or not overrides)
    )
    troubles = [sentence(one) for one in _contradictions(standing, connection, check=check)]
    if output is Output.JSON:
        print_json(
            {
                "policies": [one.fields() for one in found],
                "position": standing.position,
                "junk": dict(standing.junk),
                "closed": list(standing.closed),
                "contradictions": troubles if check else None,
            }
        )
        return
    what = "override" if overrides else "policy"
    _show(found, empty=f"there is no {what}" if only is None else f"there is no {what} of kind {only}")
    unknown = [
        f"setting {one.key.name} is not known here: brokers that do not know it move nothing by themselves"
        for one in found
        if one.force is Force.UNKNOWN
    ]
    for one in (*standing.closed, *unknown, *troubles):
        say(f"note: {one}")
    if check and not troubles:
        say("nothing contradicts itself")
    if standing.junk:
        counts = ", ".join(f"{number} {reason}" for reason, number in standing.junk.items())
        say(f"note: records that cannot be used: {counts}")


@app.command()
def kinds(output: OutputAs = Output.TABLE) -> None:
    """List the kinds of policies and how each is written."""
    if output is Output.JSON:
        print_json(
            {
                "kinds": [
                    {
                        "kind": str(kind),
                        "about": rule.about,
                        "name": rule.named,
                        "fields": [{"name": one.name, "about": one.about} for one in rule.fields],
                    }
                    for kind, rule in RULES.items()
                ]
            }
        )
        return
    print_table(
        ("kind", "NAME", "VALUE", "about"), [(str(kind), one.named, one.form, one.about) for kind, one in RULES.items()]
    )


app.command("export")(export_policies)
app.command("import")(import_policies)


def named(kind: str, name: str) -> tuple[PolicyKind, str]:
    """Kind and whole name from what a person wrote.

    Raises:
        BadPolicyError, CommandError: There is no such kind, or it is no name of that kind.
    """
    found = kind_of(kind)
    if found is PolicyKind.SETTING:
        name = canonical(name)
    elif name == CLUSTER and not RULES[found].is_name(CLUSTER):
        raise CommandError(f"a policy of kind {found} is named by {RULES[found].named}", code=ExitCode.USAGE)
    return found, made_key(found, name).name


def _judged(entries: Iterable[PolicyEntry]) -> list[PolicyEntry]:
    """The entries; settings that mean nothing to what is installed here are not called in force."""
    return [
        replace(one, force=Force.UNKNOWN)
        if one.key.kind is PolicyKind.SETTING and one.force is Force.IN_FORCE and not is_known(one.key.name)
        else one
        for one in entries
    ]


def _contradictions(standing: EffectivePolicies, connection: Connection, *, check: bool) -> Iterable[Contradiction]:
    if not check:
        return ()
    cluster = write.live_cluster(connection)
    if not cluster.brokers:
        raise CommandError(
            "no broker is alive, so nobody can say whether the policies can be kept",
            hint="Start one with `statechannel broker run --id ID`, or list them without --check.",
            code=ExitCode.NO_BROKER,
        )
    return standing.contradictions(cluster)


def _show(entries: Iterable[PolicyEntry], empty: str = "") -> None:
    print_table(
        ("kind", "name", "value", "state", "until", "by", "why", "since"),
        [
            (
                str(one.key.kind),
                one.key.name,
                shown(one.value) if one.value else one.trouble,
                f"{one.force}{' (override)' if one.key.override else ''}",
                None if one.until_ms is None else moment(one.until_ms),
                one.by,
                one.why,
                moment(one.logged_at_ms),
            )
            for one in entries
        ],
        empty=empty,
    )
