"""`statechannel policy set|get|list|history|delete|kinds|export|import`, and `statechannel override` for policies that expire."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from shedders.cli.policy import write
from shedders.cli.policy.transfer import export_policies, import_policies
from shedders.cli.policy.write import Force_, nothing_there, put, report_result, sentence, shown, take_away
from shedders.policies.contradictions import Contradiction
from shedders.policies.effective import EffectivePolicies, Force, PolicyEntry
from shedders.policies.kinds import CLUSTER, RULES, PolicyKind, canonical, kind_of, name_and_words, value_from
from shedders.policies.record import made_key
from shedders.policies.topic import PolicyChange, PolicyChanges, policy_changes
from shedders.queries.policies import as_known_here, book_of, changes_of, policies_document, selected, unapplied_at
from statechannel.audit.engine import ExportSource
from statechannel.cli.kit.channel_view import bundle_of
from statechannel.cli.kit.confirmation import DryRun, Effect, Yes, confirm
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import Column
from statechannel.cli.kit.listing import Person, SinceTime, UntilTime, parse_length_ms, parse_until_ms
from statechannel.cli.kit.options import (
    By,
    Connect,
    FileBeside,
    OutputAs,
    Reason,
    RequiredReason,
    argument,
    commands,
    option,
    with_connection,
)
from statechannel.cli.kit.output import Output, print_json, print_rows, print_table, say, when
from statechannel.cli.kit.progress import TERMINAL
from statechannel.cli.kit.requests import require_name
from statechannel.clocks import now_ms
from statechannel.errors import ExitCode, NotFoundError, UsageError
from statechannel.protocol.bundle import split_topic
from statechannel.queries.audit_log import hint_of_authors, read_at_ms, time_window
from statechannel.queries.connection import Connection
from statechannel.queries.side_files import SideRole, require_export, side_records

policy_app = commands("Policies of balancing and placement: set, get, list, history, delete, kinds, export, import.")

KindWord = Annotated[str, argument("KIND", "`statechannel policy kinds` lists them.")]
Words = Annotated[
    list[str] | None, argument("NAME VALUE...", "NAME is omitted for kinds that apply to the whole cluster.")
]
NameWord = Annotated[str, argument("[NAME]", "Omitted for kinds that apply to the whole cluster.")]


@policy_app.command("set")
@with_connection
def set_(
    connect: Connect,
    kind: KindWord,
    words: Words = None,
    reason: Reason = None,
    until: Annotated[
        str | None, option("--until TIME", "Write an override that expires then: a time, or a duration such as 30m.")
    ] = None,
    by: By = None,
    force: Force_ = False,
    dry_run: DryRun = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Write a policy; every broker applies it within one second.

    With --until it is an override: until it expires, it takes precedence over the policy of that name, which is kept.
    """
    until_ms = None if until is None else parse_until_ms(until, now_ms())
    _write(connect, kind_of(kind), words or (), until_ms, output, by=by, why=reason, force=force, dry_run=dry_run)


def _write(
    connect: Connect, kind: PolicyKind, words: Sequence[str], until_ms: int | None, output: Output, **how: Any
) -> None:
    name, rest = name_and_words(kind, _with_bundle(connect, kind, words))
    value, key = value_from(kind, rest), made_key(kind, name, override=until_ms is not None)
    report_result(put(connect(), key, value, until_ms=until_ms, **how), connect(), output)


@policy_app.command()
@with_connection
def delete(
    connect: Connect,
    kind: KindWord,
    name: NameWord = CLUSTER,
    override: Annotated[bool, option("--override", "Delete the override of that name before it expires.")] = False,
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
    entries = as_known_here(effective.find(policy_kind, name) or effective.find(policy_kind, short))
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
    kind: Annotated[str | None, argument("[KIND]", "Only policies of this kind.")] = None,
    name: Annotated[str | None, argument("[NAME]", "Only this policy, and its override.")] = None,
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
    window = time_window(since, until, now_ms() if file is None else read_at_ms(ExportSource(file)), TERMINAL)
    changes = changes_of(connect())[0] if file is None else _changes_beside(file)
    rows = changes.of(policy_kind, full_name)
    if name is not None and not rows:
        raise NotFoundError(
            f"the topic has no record of {kind} {name}",
            hint="`statechannel policy history` lists all records; records of a deleted policy are kept for seven days.",
        )
    if by is not None:
        authors = {str(change.fields()["by"]) for change in rows} - {"None"}
        if by not in authors:
            hint = hint_of_authors(by, authors) or (f"Known: {', '.join(sorted(authors))}." if authors else "")
            raise NotFoundError(f"no record is by {by}", hint=hint)
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
    side = side_records(export, SideRole.POLICIES, TERMINAL)
    if side is None:
        require_export(export)
        raise NotFoundError(
            f"there is no file of policies for {export}",
            hint="`statechannel export FILE --with-topics` writes them; a channel without policies has no topic of them.",
        )
    changes = policy_changes(side.records, low=0 if not side.since_ms else 1, end=side.end, headers=side.headers())
    if any(change.what == "deleted" and change.deleted_by is None for change in changes.rows):
        say("note: who deleted a policy is not in exports of earlier versions, nor recorded by every client")
    return changes


@policy_app.command("list")
@with_connection
def list_(
    connect: Connect,
    kind: Annotated[str | None, option("--kind KIND", "Show only policies of this kind.")] = None,
    overrides: Annotated[bool, option("--overrides", "Show only overrides.")] = False,
    lapsed: Annotated[bool, option("--lapsed", "Include expired overrides.")] = False,
    check: Annotated[bool, option("--check", "Check the policies against the live cluster.")] = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """List the policies."""
    only = None if kind is None else kind_of(kind)
    _list(connect(), only, output, overrides=overrides, lapsed=lapsed, check=check)


@with_connection
def list_overrides(
    connect: Connect,
    lapsed: Annotated[bool, option("--lapsed", "Include expired overrides.")] = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """List the overrides."""
    _list(connect(), None, output, overrides=True, lapsed=lapsed, check=False)


def _list(
    connection: Connection, only: PolicyKind | None, output: Output, *, overrides: bool, lapsed: bool, check: bool
) -> None:
    effective = book_of(connection).at(now_ms())
    entries = selected(effective, only, overrides=overrides, lapsed=lapsed)
    troubles = [sentence(contradiction) for contradiction in _contradictions(effective, connection, check=check)]
    if output is Output.JSON:
        print_json(policies_document(effective, entries, troubles if check else None))
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
    rules = [(str(kind), rule.named, rule.form, rule.about) for kind, rule in RULES.items()]
    print_table(("kind", "NAME", "VALUE", "about"), rules)


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
        BadPolicyError, UsageError: The kind is unknown, or the name is invalid for it.
    """
    policy_kind = kind_of(kind)
    if policy_kind is PolicyKind.SETTING:
        name = canonical(name)
    elif name == CLUSTER and not RULES[policy_kind].is_name(CLUSTER):
        raise UsageError(f"the name of a policy of kind {policy_kind} is {RULES[policy_kind].named}")
    return policy_kind, made_key(policy_kind, name).name


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
    print_rows(
        (
            Column("time", of=lambda row: when(row.logged_at_ms)),
            Column(
                "change",
                of=lambda row: f"{row.what}{' (override)' if row.key is not None and row.key.override else ''}",
            ),
            Column("kind", of=lambda row: None if row.key is None else str(row.key.kind)),
            Column("name", of=lambda row: None if row.key is None else row.key.name),
            Column("value", text=True, of=lambda row: row.trouble or (row.record and shown(row.record.value))),
            Column("until", 2, of=lambda row: None if row.record is None else when(row.record.until_ms)),
            Column("by", 1, of=lambda row: row.by or "not recorded"),
            Column("why", text=True, of=_why_changed),
            Column("offset", 4),
        ),
        changes,
        empty="no record of a policy",
    )


def _why_changed(change: PolicyChange) -> str | None:
    return change.why or ("not recorded" if change.record is None and change.deleted_by is None else None)


def _show(entries: Iterable[PolicyEntry], empty: str = "") -> None:
    print_rows(
        (
            Column("kind", of=lambda entry: str(entry.key.kind)),
            Column("name", of=lambda entry: entry.key.name),
            Column("value", text=True, of=lambda entry: shown(entry.value) if entry.value else entry.trouble),
            Column("state", of=lambda entry: f"{entry.force}{' (override)' if entry.key.override else ''}"),
            Column("until", 2, of=lambda entry: when(entry.until_ms)),
            Column("by", 2, of=lambda entry: entry.author.text),
            Column("why", text=True),
            Column("since", 4, of=lambda entry: when(entry.logged_at_ms)),
        ),
        entries,
        empty=empty,
    )


override_app = commands("Policies that expire: pin, cordon, exclude, shedding, threshold; list, end.")

For = Annotated[str, option("--for LENGTH", "Time until it expires, e.g. 90s, 30m, 2h, 7d.")]


class OverrideCommand(NamedTuple):
    """A command that writes an override.

    Attributes:
        words: Its arguments, by name: metavar, and help or None.
        forcible: Whether the policy may contradict others.
    """

    name: str
    kind: PolicyKind
    about: str
    words: Mapping[str, tuple[str, str | None]]
    forcible: bool = False


_BROKER = ("BROKER", None)
OVERRIDE_COMMANDS: Final = (
    OverrideCommand("pin", PolicyKind.PIN,
        "Restrict a bundle or namespace to this broker; bundles on other brokers are not moved by the pin.",
        {"subject": ("BUNDLE|TOPIC|NAMESPACE", None), "broker": _BROKER}, forcible=True),
    OverrideCommand("cordon", PolicyKind.CORDON, "Assign no bundles to a broker.", {"broker": _BROKER}, forcible=True),
    OverrideCommand("exclude", PolicyKind.EXCLUDE, "Exclude a namespace from shedding.",
        {"namespace": ("TENANT/NAMESPACE", None)}),
    OverrideCommand("shedding", PolicyKind.SHEDDING, "Switch automatic moves off or on.", {"state": ("on|off", None)}),
    OverrideCommand("threshold", PolicyKind.SETTING, "Override a setting, such as a threshold.",
        {"name": ("SETTING", "shedding.STRATEGY.NAME, filters.NAME, ..."), "value": ("VALUE", None)}),
)  # fmt: skip


def _override_options(
    length: For,
    reason: RequiredReason,
    by: By = None,
    force: Force_ = False,
    dry_run: DryRun = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """The options themselves, as a signature."""


def _override(row: OverrideCommand) -> Callable[..., None]:
    def write_override(connect: Connect, *, length: str, reason: str, output: Output, **values: Any) -> None:
        words = [values.pop(word) for word in row.words]
        until_ms = now_ms() + parse_length_ms(length, "--for")
        _write(connect, row.kind, words, until_ms, output, why=reason, **{"force": False, **values})

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    words = [
        inspect.Parameter(name, kind, annotation=Annotated[str, argument(metavar, text)])
        for name, (metavar, text) in row.words.items()
    ]
    options = inspect.signature(_override_options, eval_str=True).parameters.values()
    own = [option for option in options if row.forcible or option.name != "force"]
    every = [inspect.Parameter("connect", kind), *words, *own]
    write_override.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    write_override.__doc__ = row.about
    return with_connection(write_override)


for _row in OVERRIDE_COMMANDS:
    override_app.command(_row.name)(_override(_row))


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
