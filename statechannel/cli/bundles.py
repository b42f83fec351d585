"""Commands `statechannel namespace create|list|show|delete` and `bundles`: what exists, and who serves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from rich.console import RenderableType

from statechannel.audit.incidents import ChannelIncidents
from statechannel.audit.views import NAMESPACES, LogViews
from statechannel.cli.kit.confirmation import Effect, count_of
from statechannel.cli.kit.fitted_tables import Column, toned
from statechannel.cli.kit.options import Connect, OutputAs, Reason, argument, commands, option, with_connection
from statechannel.cli.kit.output import Output, make_rows, print_facts, print_json, print_rows, print_table, stdout
from statechannel.cli.kit.requests import (
    BrokerRequest,
    RequestAnswer,
    confirmed_request,
    rehearsed_request,
    require_success,
)
from statechannel.cli.kit.screen import EVERY_S, Draw, EndsAfter, Every, Watch, counted, show_result
from statechannel.clocks import moment
from statechannel.engine.commands import Rejected
from statechannel.errors import NotFoundError, UsageError
from statechannel.operations.table import RequestCommand
from statechannel.protocol.bundle import MAX_CHILDREN, is_namespace, is_new_namespace
from statechannel.protocol.keys import KeyState
from statechannel.protocol.states import State
from statechannel.queries.channel_view import bundle_row, namespace_details, namespace_row, read_channel, was_asked_for
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import read_requests
from statechannel.queries.registry import read_registry

namespace_app = commands("Namespaces: create, list, show, delete.")

Name = Annotated[str, argument("TENANT/NAMESPACE")]


@namespace_app.command("create")
@rehearsed_request
def create_namespace(
    connect: Connect,
    name: Name,
    bundles: Annotated[
        int | None, option("--bundles -n", "Number of bundles; default 4.", min=1, max=MAX_CHILDREN)
    ] = None,
    wait_for_broker: Annotated[
        float,
        option(
            "--wait-for-broker SECONDS",
            "Longest wait for a live broker, such as right after the start of the first one.",
            min=0,
            max=600,
        ),
    ] = 30.0,
    reason: Reason = None,
) -> BrokerRequest:
    """Create a namespace, with the same bundle boundaries as Pulsar."""
    _require_namespace(name, is_new_namespace)
    count = bundles or connect().settings.lookups.default_bundles
    args = {"namespace": name, "bundles": count} | ({} if reason is None else {"reason": reason})
    return BrokerRequest(
        RequestCommand.CREATE_NAMESPACE,
        args,
        f"{name} created with {count_of(count, 'bundle')}",
        effect=lambda connection: _effect_of_creation(connection, name, count),
        broker_within_s=wait_for_broker,
    )


def _effect_of_creation(connection: Connection, name: str, count: int) -> Effect:
    """What would happen.

    Raises:
        CommandError: A broker would refuse.
    """
    tenant, _, broker = name.partition("/")
    if tenant in connection.settings.lookups.bound_tenants and broker in read_registry(connection).members.alive:
        bound = Rejected("bound-namespace", f"{name} belongs to its broker by rule")
        require_success(RequestAnswer("", bound, name=name))
    views = read_channel(connection)
    key = views.key(name)
    if key is not None and key.state is State.ACTIVE:
        many = count_of(len(key.children or ()), "bundle")
        exists = Rejected("namespace-exists", f"{name} exists already, with {many}")
        require_success(RequestAnswer("", exists, name=name))
    before = "" if key is None else "; it was there before, and was deleted"
    return Effect(
        [f"{name} would be created with {count_of(count, 'bundle')}{before}"], {"namespace": name, "bundles": count}
    )


@namespace_app.command("delete")
@confirmed_request
def delete_namespace(_: Connect, name: Name, reason: Reason = None) -> BrokerRequest:
    """Unload all bundles of a namespace and delete it; nothing undoes it."""
    _require_namespace(name)
    return BrokerRequest(
        RequestCommand.DELETE_NAMESPACE,
        {"namespace": name} | ({} if reason is None else {"reason": reason}),
        f"{name} deleted",
        effect=lambda connection: _effect_of_deletion(connection, name),
        final=True,
        hints={"unknown-namespace": NAMESPACES},
    )


def _effect_of_deletion(connection: Connection, name: str) -> Effect:
    key = _existing(read_channel(connection), name)
    fields: dict[str, Any] = {**namespace_row(key), **namespace_details(key)}
    owners = ", ".join(f"{broker} {number}" for broker, number in fields["owners"].items())
    where = f" ({owners})" if owners else ""
    bundles = f"{count_of(fields['bundles'], 'bundle')}, {fields['served']} of them served{where}"
    return Effect([f"{name} would be deleted with its {bundles}; nothing undoes it"], fields)


@namespace_app.command("list")
@with_connection
def list_namespaces(connect: Connect, output: OutputAs = Output.TABLE) -> None:
    """List the namespaces."""
    views = read_channel(connect())
    rows = [namespace_row(key) for key in views.existing() if key.is_namespace and key.state is State.ACTIVE]
    if output is Output.JSON:
        print_json({"namespaces": rows, "tentative": views.tentative})
        return
    print_rows(
        ("namespace", "bundles", "served", Column("in flight", 1, of="in_flight"), Column("version", 2)),
        rows,
        empty="no namespaces",
    )


@namespace_app.command("show")
@with_connection
def show_namespace(connect: Connect, name: Name, output: OutputAs = Output.TABLE) -> None:
    """Show one namespace: its states, owners, and the bundles that were split."""
    _require_namespace(name)
    connection = connect()
    incidents = ChannelIncidents(0, with_gaps=False)
    views = read_channel(connection, [incidents.observe])
    if views.key(name) is not None and _is_gone(views, name):
        raise deleted(connection, incidents, name)
    key = _existing(views, name)
    fields: dict[str, Any] = {**namespace_row(key), **namespace_details(key), "tentative": views.tentative}
    if output is Output.JSON:
        print_json(fields)
        return
    titles = ("version", "bundles", "served", "in_flight", "splits", "created_by")
    print_facts([("namespace", name), *((title.replace("_", " "), fields[title]) for title in titles)])
    stdout().print()
    print_table(("state", "bundles"), list(fields["states"].items()))
    stdout().print()
    print_table(("owner", "bundles"), list(fields["owners"].items()), empty="no bundle has an owner")


def _existing(views: LogViews, name: str) -> KeyState:
    key = views.key(name)
    if key is None or _is_gone(views, name):
        was = " (it was deleted)" if key is not None else ""
        hint = NAMESPACES
        if key is not None:
            hint = f"`statechannel audit history {name}` shows what it had, and `audit diff` what was served before."
        raise NotFoundError(f"namespace {name} does not exist{was}", hint=hint)
    return key


def _is_gone(views: LogViews, name: str) -> bool:
    key = views.key(name)
    return key is None or key.state is not State.ACTIVE


def deleted(connection: Connection, incidents: ChannelIncidents, namespace: str) -> NotFoundError:
    """The error that a namespace was deleted: by whom and when, as far as log and requests still show it."""
    deletion = next((item for item in incidents.deletions if item.namespace == namespace), None)
    if deletion is None:
        return NotFoundError(f"namespace {namespace} does not exist (it was deleted)", hint=NAMESPACES)
    asked = read_requests(connection).get(deletion.operation or "")
    by = deletion.message(None if asked is None else asked.by or None)
    return NotFoundError(
        f"namespace {namespace} does not exist: {by}, {moment(deletion.at_ms)}",
        hint=f"`statechannel namespace create {namespace} --bundles {deletion.bundles}` creates it again, with equal bundles.",
    )


def _require_namespace(name: str, is_valid: Callable[[str], bool] = is_namespace) -> None:
    if not is_valid(name):
        raise UsageError(
            f"`{name}` is not a namespace",
            hint="Use tenant/namespace; both are 1 to 128 of A-Za-z0-9_=:.-"
            + (", and a new one is not . or .. alone" if is_namespace(name) else ""),
        )


bundles_app = commands()


@bundles_app.command()
@with_connection
def bundles(
    connect: Connect,
    namespace: Annotated[str | None, option("--namespace TENANT/NAMESPACE")] = None,
    broker: Annotated[str | None, option("--broker ID", "Only bundles served by this broker.")] = None,
    state: Annotated[str | None, option("--state", "Only bundles in this state.")] = None,
    unowned: Annotated[
        bool, option("--unowned", "Only bundles without an owner that had one, or were declined by a broker.")
    ] = False,
    watch: Watch = False,
    every: Every = EVERY_S,
    max_seconds: EndsAfter = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """List the live bundles; with --watch continuously."""
    connection = connect()

    def read() -> tuple[Draw, dict[str, Any]]:
        incidents = ChannelIncidents(0, with_gaps=False)
        views = read_channel(connection, [incidents.observe])
        if namespace is not None:
            key = views.key(namespace)
            if key is None or key.state is not State.ACTIVE:
                raise NotFoundError(f"namespace {namespace} does not exist", hint=NAMESPACES)
        rows = [
            {**bundle_row(key), "declined_by": _decliners(key, incidents)}
            for key in views.live()
            if (namespace is None or key.namespace == namespace)
            and (broker is None or key.owner == broker)
            and (state is None or (key.state is not None and key.state.value.lower() == state.lower()))
            and not (unowned and (key.owner is not None or not was_asked_for(key)))
        ]
        empty = "every bundle that had an owner has one" if unowned else "no bundles"
        document = {"bundles": rows, "tentative": views.tentative}
        return lambda most: counted(_table(rows[:most], empty), len(rows), most), document

    show_result(read, output, watch=watch, every_s=every, max_s=max_seconds)


def _decliners(key: KeyState, incidents: ChannelIncidents) -> list[str]:
    """Brokers that declined a bundle since it lost its owner."""
    declined = incidents.declines.bundles.get(key.name)
    return [] if declined is None or key.owner is not None else sorted({broker for broker, _ in declined.reasons})


def _table(rows: Sequence[Mapping[str, Any]], empty: str) -> RenderableType:
    declined_by = Column("declined by", of=lambda row: ", ".join(row["declined_by"]))
    return make_rows(
        (
            "bundle",
            Column("state", of=lambda row: toned(row["state"])),
            Column("served by", of="owner"),
            Column("destination", 1, of="next"),
            Column("generation", 2),
            Column("version", 2),
            Column("operation", 4),
            declined_by if any(row["declined_by"] for row in rows) else None,
        ),
        rows,
        empty=empty,
    )
