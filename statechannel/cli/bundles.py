"""Commands `statechannel namespace create|list|show|delete`, `bundles` and `lookup`: what exists, and who serves it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from statechannel.audit.views import NAMESPACES, NotInLogError
from statechannel.broker.request_record import RequestCommand
from statechannel.cli.kit.channel_view import locate, not_found, read_channel
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import Column, toned
from statechannel.cli.kit.options import Connect, OutputAs, Timeout, with_connection
from statechannel.cli.kit.output import (
    Output,
    columns,
    make_table,
    moment,
    print_facts,
    print_json,
    print_table,
    progress,
    stdout,
)
from statechannel.cli.kit.registry import Registry, read_registry
from statechannel.cli.kit.requests import (
    BrokerRequest,
    RequestAnswer,
    ask,
    broker_request,
    require_name,
    require_success,
)
from statechannel.cli.kit.screen import EVERY_S, Block, EndsAfter, Every, Watch, show_result
from statechannel.engine.commands import BoundTo, Outcome, Owned, Undetermined, Unowned
from statechannel.errors import ExitCode
from statechannel.protocol.bundle import MAX_CHILDREN, is_bundle, is_namespace, split_topic
from statechannel.protocol.keys import KeyState
from statechannel.protocol.states import State

namespace_app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Namespaces: create, list, show, delete.")

Name = Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE")]


@namespace_app.command("create")
@broker_request
def create_namespace(
    connect: Connect,
    name: Name,
    bundles: Annotated[
        int | None, typer.Option("--bundles", "-n", min=1, max=MAX_CHILDREN, help="Number of bundles; default 4.")
    ] = None,
) -> BrokerRequest:
    """Create a namespace, with the same bundle boundaries as Pulsar."""
    _require_namespace(name)
    count = bundles or connect().settings.lookups.default_bundles
    args = {"namespace": name, "bundles": count}
    return BrokerRequest(
        RequestCommand.CREATE_NAMESPACE, args, f"{name} created with {count} bundle{'' if count == 1 else 's'}"
    )


@namespace_app.command("delete")
@broker_request
def delete_namespace(_: Connect, name: Name) -> BrokerRequest:
    """Unload all bundles of a namespace and delete it."""
    _require_namespace(name)
    return BrokerRequest(RequestCommand.DELETE_NAMESPACE, {"namespace": name}, f"{name} deleted")


@namespace_app.command("list")
@with_connection
def list_namespaces(connect: Connect, output: OutputAs = Output.TABLE) -> None:
    """List the namespaces."""
    views = read_channel(connect())
    rows = [_namespace_fields(key) for key in views.existing() if key.is_namespace and key.state is State.ACTIVE]
    if output is Output.JSON:
        print_json({"namespaces": rows, "tentative": views.tentative})
        return
    print_table(
        ("namespace", "bundles", "served", Column("in flight", 1), Column("version", 2)),
        columns(rows, "namespace", "bundles", "served", "in_flight", "version"),
        empty="no namespaces",
    )


@namespace_app.command("show")
@with_connection
def show_namespace(connect: Connect, name: Name, output: OutputAs = Output.TABLE) -> None:
    """Show one namespace: its states, owners, and the bundles that were split."""
    _require_namespace(name)
    views = read_channel(connect())
    key = views.key(name)
    if key is None or key.state is not State.ACTIVE:
        was = " (it was deleted)" if key is not None else ""
        raise not_found(f"namespace {name} does not exist{was}", hint=NAMESPACES)
    fields = _namespace_fields(key) | _namespace_details(key) | {"tentative": views.tentative}
    if output is Output.JSON:
        print_json(fields)
        return
    titles = ("version", "bundles", "served", "in_flight", "splits", "created_by")
    print_facts([("namespace", name), *((title.replace("_", " "), fields[title]) for title in titles)])
    stdout().print()
    print_table(("state", "bundles"), list(fields["states"].items()))
    stdout().print()
    print_table(("owner", "bundles"), list(fields["owners"].items()), empty="no bundle has an owner")


def _namespace_fields(key: KeyState) -> dict[str, Any]:
    live = [] if key.ring is None else list(key.ring.live.values())
    return {
        "namespace": key.name,
        "version": key.version,
        "bundles": len(live),
        "served": sum(bundle.owner is not None for bundle in live),
        "in_flight": sum(bundle.state in (State.ASSIGNING, State.RELEASING, State.SPLITTING) for bundle in live),
    }


def _namespace_details(key: KeyState) -> dict[str, Any]:
    ring = key.ring
    live = [] if ring is None else list(ring.live.values())
    states = Counter(bundle.state.value for bundle in live if bundle.state is not None)
    owners = Counter(bundle.owner for bundle in live if bundle.owner is not None)
    return {
        "splits": 0 if ring is None else len(ring.parents),
        "created_by": None if key.writer is None else key.writer.broker,
        "operation": key.operation,
        "states": dict(sorted(states.items())),
        "owners": dict(sorted(owners.items())),
    }


def _require_namespace(name: str) -> None:
    if not is_namespace(name):
        raise CommandError(
            f"`{name}` is not a namespace",
            hint="Use tenant/namespace; both are 1 to 128 of A-Za-z0-9_=:.-",
            code=ExitCode.USAGE,
        )


_SHOWN = ("owner", "next", "generation", "version", "operation")

bundles_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@bundles_app.command()
@with_connection
def bundles(
    connect: Connect,
    namespace: Annotated[str | None, typer.Option("--namespace", metavar="TENANT/NAMESPACE")] = None,
    broker: Annotated[
        str | None, typer.Option("--broker", metavar="ID", help="Only bundles served by this broker.")
    ] = None,
    state: Annotated[str | None, typer.Option("--state", help="Only bundles in this state.")] = None,
    watch: Watch = False,
    every: Every = EVERY_S,
    max_seconds: EndsAfter = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """List the live bundles; with --watch continuously."""
    connection = connect()

    def read() -> tuple[list[Block], dict[str, Any]]:
        views = read_channel(connection)
        if namespace is not None:
            key = views.key(namespace)
            if key is None or key.state is not State.ACTIVE:
                raise not_found(f"namespace {namespace} does not exist", hint=NAMESPACES)
        rows = [
            bundle_fields(key)
            for key in views.live()
            if (namespace is None or key.namespace == namespace)
            and (broker is None or key.owner == broker)
            and (state is None or (key.state is not None and key.state.value.lower() == state.lower()))
        ]
        block = Block("bundles", len(rows), lambda most: _table(rows[:most]))
        return [block], {"bundles": rows, "tentative": views.tentative}

    show_result(read, output, watch=watch, every_s=every, max_s=max_seconds)


def _table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    return make_table(
        (
            "bundle",
            "state",
            "served by",
            Column("destination", 1),
            Column("generation", 2),
            Column("version", 2),
            Column("operation", 4),
        ),
        [(row["bundle"], toned(row["state"]), *(row[name] for name in _SHOWN)) for row in rows],
        empty="no bundles",
    )


def bundle_fields(key: KeyState) -> dict[str, Any]:
    bound_for = key.bound_for
    return {
        "bundle": key.name,
        "state": None if key.state is None else key.state.value,
        "owner": key.owner,
        "next": bound_for if bound_for != key.owner else None,
        "generation": key.generation,
        "version": key.version,
        "id": key.accepted_id,
        "operation": key.operation,
        "flow": key.flow,
        "offset": key.offset,
    }


lookup_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@lookup_app.command()
@with_connection
def lookup(
    connect: Connect,
    name: Annotated[str, typer.Argument(metavar="TOPIC|BUNDLE")],
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Only read the log; assign nothing. Needs no broker.")
    ] = False,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="AGE|TIME|OFFSET",
            help="Show who owned it then, by the log: 10m (ago), 2026-01-01T00:00:00Z, or an offset; inclusive.",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="F", help="With --as-of: read this export file, not the topic.")
    ] = None,
    timeout: Timeout = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Look up the broker that serves a topic or bundle; assigns the bundle if it has no owner."""
    require_name(name)
    if file is not None and as_of is None:
        raise CommandError(
            "--file requires --as-of", hint="A lookup of now asks the channel: omit --file.", code=ExitCode.USAGE
        )
    if as_of is not None:
        _look_back(connect, name, as_of, file, table=output is Output.TABLE)
        return
    connection = connect()
    if read_only:
        answer = RequestAnswer("", _from_log(connection, name), name=name)
    else:
        wait_s = timeout or connection.settings.lookups.timeout_s
        answer = ask(connection, RequestCommand.LOOKUP, {"name": name, "read_only": False}, timeout_s=wait_s)
    if output is Output.JSON:
        print_json(answer.fields())
        require_success(answer)
        return
    require_success(answer)
    outcome = answer.outcome
    if isinstance(outcome, Owned):
        stale = None if outcome.stale_age_s is None else f"{outcome.stale_age_s:.1f} s old"
        rows: list[tuple[str, Any]] = [
            ("bundle", outcome.bundle),
            ("broker", outcome.broker),
            ("generation", str(outcome.generation)),
        ]
        rows += [(f"{protocol} URL", url) for protocol, url in sorted(outcome.urls.items())]
        print_facts(rows + ([("view", stale)] if stale else []))
    elif isinstance(outcome, BoundTo):
        print_facts([("broker", outcome.broker), ("why", "the namespace is bound to it by rule")])


def _look_back(connect: Connect, name: str, as_of: str, file: Path | None, *, table: bool) -> None:
    """Print who owned a topic or bundle at a moment: what `audit history` has in its last line before it."""
    # Lookups of now do not need the audit.
    from statechannel.audit.local import open_export, owner_then
    from statechannel.cli.audit.options import moment_of, source_of

    source = source_of(file, None, None, connect)
    when = moment_of(as_of, source)
    shown = moment(when.time_ms) if when.offset is None else f"offset {when.offset}"
    try:
        with open_export(source, progress) as export:
            then = owner_then(export, name, when)
    except NotInLogError as error:
        raise not_found(
            f"{error}, as of {shown}", hint="`audit history` lists when it was created or split."
        ) from error
    key, since, changed = then.key, then.since or {}, then.changed or {}
    if not table:
        recorded = ("by", "action", "reason", "decision")
        fields = {"name": name, "as_of": as_of, "as_of_ms": when.time_ms, "partition": then.partition}
        fields |= {"last_offset": then.last_offset, **bundle_fields(key)}
        fields |= {"since_offset": since.get("since_offset"), "since_ms": since.get("since_ms")}
        print_json(
            fields | {"changed_ms": changed.get("timestamp_ms")} | {what: changed.get(what) for what in recorded}
        )
        return
    state = "-" if key.state is None else key.state.value
    to = f" to {key.bound_for}" if key.bound_for not in (None, key.owner) else ""
    rows: list[tuple[str, Any]] = [
        ("as of", f"{shown}, inclusive (last offset {then.last_offset} of partition {then.partition})"),
        ("bundle", key.name),
        ("owner", key.owner or "no broker"),
        ("generation", key.generation),
        ("owner since", _place(since.get("since_ms"), since.get("since_offset")) if key.owner else None),
        ("state", f"{state}{to}"),
        ("state since", _place(changed.get("timestamp_ms"), key.offset)),
        ("written by", changed.get("by")),
        ("why", "; ".join(filter(None, (changed.get("action"), changed.get("reason")))) or None),
        ("operation", key.operation),
        ("decision", changed.get("decision")),
    ]
    print_facts([row for row in rows if row[1] is not None])


def _place(at_ms: int | None, offset: int | None) -> str:
    """Time and offset of a record, as far as the log still has them."""
    if at_ms is None:
        return "unknown: the record was compacted"
    return f"{moment(at_ms)} (offset {offset})"


def _from_log(connection: Connection, name: str) -> Outcome:
    registry = read_registry(connection)
    namespace = name.rpartition("/")[0] if is_bundle(name) else (split_topic(name) or ("", ""))[0]
    tenant, _, broker = namespace.partition("/")
    if tenant in connection.settings.lookups.bound_tenants and broker in registry.members.alive:
        return BoundTo(broker, registry.members.alive[broker].urls)
    views = read_channel(connection)
    key = locate(views, name)
    if views.tentative:
        return Undetermined("tentative", f"{key.name}: the log alone does not show the owner")
    return _outcome(key, registry)


def _outcome(key: KeyState, registry: Registry) -> Outcome:
    if key.state is State.UNASSIGNED:
        return Unowned(key.name)
    owner = key.owner
    if owner is None or key.generation is None or key.state is State.RELEASING:
        return Undetermined("in-flight", f"{key.name} is {key.state}")
    member = registry.members.alive.get(owner)
    if member is None:
        return Undetermined("owner-not-heard", f"owner {owner} of {key.name} is lost")
    return Owned(key.name, owner, key.generation, member.urls)
