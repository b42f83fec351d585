"""`statechannel policy set|get|list|history|delete|kinds|export|import`, and `statechannel override` for policies that expire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from shedders.balancer.active_strategies import is_known
from shedders.cli.balancers import unapplied_at
from shedders.cli.policy import write
from shedders.cli.policy.transfer import export_policies, import_policies
from shedders.cli.policy.write import (
    Force_,
    book_of,
    changes_of,
    nothing_there,
    put,
    report_result,
    sentence,
    shown,
    take_away,
)
from shedders.policies.contradictions import Contradiction
from shedders.policies.effective import EffectivePolicies, Force, PolicyEntry
from shedders.policies.kinds import CLUSTER, RULES, PolicyKind, canonical, kind_of, name_and_words, value_from
from shedders.policies.record import made_key
from shedders.policies.topic import PolicyChange, PolicyChanges, policy_changes
from statechannel.audit.engine import ExportSource
from statechannel.cli.audit.options import read_at_ms
from statechannel.cli.kit.channel_view import bundle_of
from statechannel.cli.kit.confirmation import DryRun, Effect, Yes, confirm
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import Column
from statechannel.cli.kit.listing import Person, SinceTime, UntilTime, hint_of_authors, time_window
from statechannel.cli.kit.options import By, Connect, OutputAs, Reason, RequiredReason, with_connection
from statechannel.cli.kit.output import Output, print_json, print_table, say, when
from statechannel.cli.kit.requests import require_name
from statechannel.cli.kit.side_files import FileBeside, SideRole, require_export, side_records
from statechannel.cli.kit.times import parse_length_ms, parse_until_ms
from statechannel.clocks import now_ms
from statechannel.errors import ExitCode
from statechannel.protocol.bundle import split_topic

policy_app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Policies of balancing and placement: set, get, list, history, delete, kinds, export, import.",
)

KindWord = Annotated[str, typer.Argument(metavar="KIND", help="`statechannel policy kinds` lists them.")]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME VALUE...", help="NAME is omitted for kinds that apply to the whole cluster."),
]
NameWord = Annotated[str, typer.Argument(metavar="[NAME]", help="Omitted for kinds that apply to the whole cluster.")]


@policy_app.command("set")
@with_connection
def set_(
    connect: Connect,
    kind: KindWord,
    words: Words = None,
    reason: Reason = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="TIME", help="Write an override that expires then: a time, or a duration such as 30m."
        ),
    ] = None,
    by: By = None,
    force: Force_ = False,
    dry_run: DryRun = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Write a policy; every broker applies it within one second.

    With --until it is an override: until it expires, it takes precedence over the policy of that name, which is kept.
    """
    policy_kind = kind_of(kind)
    name, rest = name_and_words(policy_kind, _with_bundle(connect, policy_kind, words or ()))
    value = value_from(policy_kind, rest)
    until_ms = None if until is None else parse_until_ms(until, now_ms())
    key = made_key(policy_kind, name, override=until is not None)
    done = put(connect(), key, value, by=by, why=reason, until_ms=until_ms, force=force, dry_run=dry_run)
    report_result(done, connect(), output)


@policy_app.command()
@with_connection
def delete(
    connect: Connect,
    kind: KindWord,
    name: NameWord = CLUSTER,
    override: Annotated[
        bool, typer.Option("--override", help="Delete the override of that name before it expires.")
    ] = False,
    reason: Reason = None,
    by: By = None,
    force: Force_ = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Delete a policy, unless the remaining policies contradict each other."""
    policy_kind, name = named(kind, name)
    key = made_key(policy_kind, name, override=override)

    def effect() -> Effect:
        done = take_away(connect(), key, force=force, by=by, why=reason, dry_run=True)
        replaced = done.replaced
        value = f", now {shown(replaced.value)}" if replaced is not None and replaced.value else ""
        return Effect([f"{key.text} would be deleted{value}"], done.fields())

    if confirm(effect, connection=connect, yes=yes, dry_run=dry_run, output=output):
        report_result(take_away(connect(), key, force=force, by=by, why=reason), connect(), output)


@policy_app.command()
@with_connection
def get(connect: Connect, kind: KindWord, name: NameWord = CLUSTER, output: OutputAs = Output.TABLE) -> None:
    """Show one policy and its override."""
    policy_kind, name = named(kind, name)
    effective = book_of(connect()).at(now_ms())
    short = name.removeprefix("parts.") if policy_kind is PolicyKind.SETTING else name
    entries = _judged(effective.find(policy_kind, name) or effective.find(policy_kind, short))
    if not entries:
        raise nothing_there(effective, made_key(policy_kind, name))
    if output is Output.JSON:
        print_json({"kind": str(policy_kind), "name": name, "entries": [entry.fields() for entry in entries]})
        return
    _show(entries)


@policy_app.command()
@with_connection
def history(
    connect: Connect,
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help="Only policies of this kind.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this policy, and its override.")] = None,
    by: Person = None,
    since: SinceTime = None,
    until: UntilTime = None,
    file: FileBeside = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """List every record of the policies that the topic still has: who set or deleted what, when and why."""
    policy_kind, full_name = (None if kind is None else kind_of(kind)), name
    if kind is not None and name is not None:
        policy_kind, full_name = named(kind, name)
    window = time_window(since, until, now_ms() if file is None else read_at_ms(ExportSource(file)))
    changes = changes_of(connect())[0] if file is None else _changes_beside(file)
    rows = changes.of(policy_kind, full_name)
    if name is not None and not rows:
        raise CommandError(
            f"the topic has no record of {kind} {name}",
            hint="`statechannel policy history` lists all records; records of a deleted policy are kept for seven days.",
            code=ExitCode.NOT_FOUND,
        )
    if by is not None:
        authors = {str(change.fields()["by"]) for change in rows} - {"None"}
        if by not in authors:
            hint = hint_of_authors(by, authors) or (f"Known: {', '.join(sorted(authors))}." if authors else "")
            raise CommandError(f"no record is by {by}", hint=hint, code=ExitCode.NOT_FOUND)
        rows = [change for change in rows if change.fields()["by"] == by]
    rows = [change for change in rows if window.has(change.offset, change.logged_at_ms)]
    if output is Output.JSON:
        print_json({"whole": changes.is_whole, "changes": [change.fields() for change in rows]})
        return
    if not changes.is_whole:
        say(
            "note: offsets of the topic are missing: compaction leaves only the newest of older changes of a policy, "
            "and transactions take offsets, too"
        )
    _show_changes(rows)


def _changes_beside(export: Path) -> PolicyChanges:
    side = side_records(export, SideRole.POLICIES)
    if side is None:
        require_export(export)
        raise CommandError(
            f"there is no file of policies for {export}",
            hint="`statechannel export FILE --with-topics` writes them; a channel without policies has no topic of them.",
            code=ExitCode.NOT_FOUND,
        )
    changes = policy_changes(side.records, low=0 if not side.since_ms else 1, end=side.end, headers=side.headers())
    if any(change.what == "deleted" and change.deleted_by is None for change in changes.rows):
        say("note: who deleted a policy is not in exports of earlier versions, nor recorded by every client")
    return changes


@policy_app.command("list")
@with_connection
def list_(
    connect: Connect,
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Show only policies of this kind.")] = None,
    overrides: Annotated[bool, typer.Option("--overrides", help="Show only overrides.")] = False,
    lapsed: Annotated[bool, typer.Option("--lapsed", help="Include expired overrides.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Check the policies against the live cluster.")] = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """List the policies."""
    only = None if kind is None else kind_of(kind)
    _list(connect(), only, output, overrides=overrides, lapsed=lapsed, check=check)


@with_connection
def list_overrides(
    connect: Connect,
    lapsed: Annotated[bool, typer.Option("--lapsed", help="Include expired overrides.")] = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """List the overrides."""
    _list(connect(), None, output, overrides=True, lapsed=lapsed, check=False)


def _list(
    connection: Connection, only: PolicyKind | None, output: Output, *, overrides: bool, lapsed: bool, check: bool
) -> None:
    effective = book_of(connection).at(now_ms())
    entries = _selected(effective, only, overrides=overrides, lapsed=lapsed)
    troubles = [sentence(contradiction) for contradiction in _contradictions(effective, connection, check=check)]
    if output is Output.JSON:
        print_json(_document(effective, entries, troubles if check else None))
        return
    what = "override" if overrides else "policy"
    _show(entries, empty=f"there is no {what}" if only is None else f"there is no {what} of kind {only}")
    unknown = [
        f"setting {entry.key.name} is unknown here: brokers that do not know it make no automatic moves"
        for entry in entries
        if entry.force is Force.UNKNOWN
    ]
    for text in (*effective.closed, *unknown, *troubles):
        say(f"note: {text}")
    for text in unapplied_at(connection, effective):
        say(f"note: {text}")
    if check and not troubles:
        say("no contradictions")
    if effective.junk:
        counts = ", ".join(f"{number} {reason}" for reason, number in effective.junk.items())
        say(f"note: unusable records: {counts}")


def _selected(
    effective: EffectivePolicies, only: PolicyKind | None, *, overrides: bool, lapsed: bool
) -> list[PolicyEntry]:
    return _judged(
        entry
        for entry in (*effective.entries, *(effective.lapsed if lapsed else ()))
        if (only is None or entry.key.kind is only) and (entry.key.override or not overrides)
    )


def _document(
    effective: EffectivePolicies, entries: Iterable[PolicyEntry], troubles: list[str] | None
) -> dict[str, Any]:
    return {
        "policies": [entry.fields() for entry in entries],
        "position": effective.position,
        "junk": dict(effective.junk),
        "closed": list(effective.closed),
        "contradictions": troubles,
    }


def policies_document(connection: Connection, *, overrides: bool, lapsed: bool = False) -> dict[str, Any]:
    """The policies, or the overrides alone, as `policy list` and `override list` print them in JSON."""
    effective = book_of(connection).at(now_ms())
    return _document(effective, _selected(effective, None, overrides=overrides, lapsed=lapsed), None)


@policy_app.command()
def kinds(output: OutputAs = Output.TABLE) -> None:
    """List the kinds of policies and their syntax."""
    if output is Output.JSON:
        print_json(
            {
                "kinds": [
                    {
                        "kind": str(kind),
                        "about": rule.about,
                        "name": rule.named,
                        "fields": [{"name": field.name, "about": field.about} for field in rule.fields],
                    }
                    for kind, rule in RULES.items()
                ]
            }
        )
        return
    print_table(
        ("kind", "NAME", "VALUE", "about"),
        [(str(kind), rule.named, rule.form, rule.about) for kind, rule in RULES.items()],
    )


policy_app.command("export")(export_policies)
policy_app.command("import")(import_policies)


def _with_bundle(connect: Connect, kind: PolicyKind, words: Sequence[str]) -> list[str]:
    """The words with a topic's bundle in place of the topic, where the kind is about bundles."""
    name, rule = (words[0] if words else ""), RULES[kind]
    of_bundles = kind in (PolicyKind.PIN, PolicyKind.QUOTA)
    if not of_bundles or rule.is_name(name) or split_topic(name) is None:
        return list(words)
    require_name(name)
    value_from(kind, words[1:])  # refused before Kafka is asked
    return [bundle_of(connect(), name), *words[1:]]


def named(kind: str, name: str) -> tuple[PolicyKind, str]:
    """Parse kind and full name.

    Raises:
        BadPolicyError, CommandError: The kind is unknown, or the name is invalid for it.
    """
    policy_kind = kind_of(kind)
    if policy_kind is PolicyKind.SETTING:
        name = canonical(name)
    elif name == CLUSTER and not RULES[policy_kind].is_name(CLUSTER):
        raise CommandError(
            f"the name of a policy of kind {policy_kind} is {RULES[policy_kind].named}", code=ExitCode.USAGE
        )
    return policy_kind, made_key(policy_kind, name).name


def _judged(entries: Iterable[PolicyEntry]) -> list[PolicyEntry]:
    """The entries; settings of strategies that are not installed here are not marked as in force."""
    return [
        replace(entry, force=Force.UNKNOWN)
        if entry.key.kind is PolicyKind.SETTING and entry.force is Force.IN_FORCE and not is_known(entry.key.name)
        else entry
        for entry in entries
    ]


def _contradictions(effective: EffectivePolicies, connection: Connection, *, check: bool) -> Iterable[Contradiction]:
    if not check:
        return ()
    cluster = write.live_cluster(connection)
    if not cluster.brokers:
        raise CommandError(
            "no broker is alive, so the policies cannot be checked",
            hint="Start one with `statechannel broker run --id ID`, or list them without --check.",
            code=ExitCode.NO_BROKER,
        )
    return effective.contradictions(cluster)


def _show_changes(changes: Iterable[PolicyChange]) -> None:
    print_table(
        (
            "time",
            "change",
            "kind",
            "name",
            Column("value", text=True),
            Column("until", 2),
            Column("by", 1),
            Column("why", text=True),
            Column("offset", 4),
        ),
        [
            (
                when(change.logged_at_ms),
                f"{change.what}{' (override)' if change.key is not None and change.key.override else ''}",
                None if change.key is None else str(change.key.kind),
                None if change.key is None else change.key.name,
                change.trouble or (None if change.record is None else shown(change.record.value)),
                None if change.record is None else when(change.record.until_ms),
                change.by or "not recorded",
                change.why or ("not recorded" if change.record is None and change.deleted_by is None else None),
                change.offset,
            )
            for change in changes
        ],
        empty="no record of a policy",
    )


def _show(entries: Iterable[PolicyEntry], empty: str = "") -> None:
    print_table(
        (
            "kind",
            "name",
            Column("value", text=True),
            "state",
            Column("until", 2),
            Column("by", 2),
            Column("why", text=True),
            Column("since", 4),
        ),
        [
            (
                str(entry.key.kind),
                entry.key.name,
                shown(entry.value) if entry.value else entry.trouble,
                f"{entry.force}{' (override)' if entry.key.override else ''}",
                when(entry.until_ms),
                entry.author.text,
                entry.why,
                when(entry.logged_at_ms),
            )
            for entry in entries
        ],
        empty=empty,
    )


override_app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Policies that expire: pin, cordon, exclude, shedding, threshold; list, end.",
)

For = Annotated[str, typer.Option("--for", metavar="LENGTH", help="Time until it expires, e.g. 90s, 30m, 2h, 7d.")]


@override_app.command()
@with_connection
def pin(
    connect: Connect,
    subject: Annotated[str, typer.Argument(metavar="BUNDLE|TOPIC|NAMESPACE")],
    broker: Annotated[str, typer.Argument(metavar="BROKER")],
    length: For,
    reason: RequiredReason,
    by: By = None,
    force: Force_ = False,
    dry_run: DryRun = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Restrict a bundle or namespace to this broker; bundles on other brokers are not moved by the pin."""
    _put(connect, PolicyKind.PIN, [subject, broker], length, reason, by, output, force=force, dry_run=dry_run)


@override_app.command()
@with_connection
def cordon(
    connect: Connect,
    broker: Annotated[str, typer.Argument(metavar="BROKER")],
    length: For,
    reason: RequiredReason,
    by: By = None,
    force: Force_ = False,
    dry_run: DryRun = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Assign no bundles to a broker."""
    _put(connect, PolicyKind.CORDON, [broker], length, reason, by, output, force=force, dry_run=dry_run)


@override_app.command()
@with_connection
def exclude(
    connect: Connect,
    namespace: Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE")],
    length: For,
    reason: RequiredReason,
    by: By = None,
    dry_run: DryRun = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Exclude a namespace from shedding."""
    _put(connect, PolicyKind.EXCLUDE, [namespace], length, reason, by, output, dry_run=dry_run)


@override_app.command()
@with_connection
def shedding(
    connect: Connect,
    state: Annotated[str, typer.Argument(metavar="on|off")],
    length: For,
    reason: RequiredReason,
    by: By = None,
    dry_run: DryRun = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Switch automatic moves off or on."""
    _put(connect, PolicyKind.SHEDDING, [state], length, reason, by, output, dry_run=dry_run)


@override_app.command()
@with_connection
def threshold(
    connect: Connect,
    name: Annotated[str, typer.Argument(metavar="SETTING", help="shedding.STRATEGY.NAME, filters.NAME, ...")],
    value: Annotated[str, typer.Argument(metavar="VALUE")],
    length: For,
    reason: RequiredReason,
    by: By = None,
    dry_run: DryRun = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Override a setting, such as a threshold."""
    _put(connect, PolicyKind.SETTING, [name, value], length, reason, by, output, dry_run=dry_run)


@override_app.command()
@with_connection
def end(
    connect: Connect,
    kind: KindWord,
    name: NameWord = CLUSTER,
    reason: Reason = None,
    by: By = None,
    force: Force_ = False,
    dry_run: DryRun = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """End an override before it expires, unless the remaining policies contradict each other."""
    policy_kind, name = named("setting" if kind == "threshold" else kind, name)
    key = made_key(policy_kind, name, override=True)
    done = take_away(connect(), key, force=force, by=by, why=reason, dry_run=dry_run)
    report_result(done, connect(), output)


override_app.command("list")(list_overrides)


def _put(
    connect: Connect,
    kind: PolicyKind,
    words: list[str],
    length: str,
    reason: str,
    by: str | None,
    output: Output,
    *,
    force: bool = False,
    dry_run: bool = False,
) -> None:
    name, rest = name_and_words(kind, _with_bundle(connect, kind, words))
    value = value_from(kind, rest)
    until_ms = now_ms() + parse_length_ms(length, "--for")
    key = made_key(kind, name, override=True)
    done = put(connect(), key, value, by=by, why=reason, until_ms=until_ms, force=force, dry_run=dry_run)
    report_result(done, connect(), output)
