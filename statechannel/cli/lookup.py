"""Command `statechannel lookup`: who serves a topic or bundle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from statechannel.cli.kit.options import Connect, OutputAs, Timeout, argument, commands, option, with_connection
from statechannel.cli.kit.output import Output, print_facts, print_json
from statechannel.cli.kit.progress import TERMINAL
from statechannel.cli.kit.requests import RequestAnswer, ask, require_name, require_place, require_success
from statechannel.clocks import duration, moment
from statechannel.engine.commands import BoundTo, NotFound, Outcome, Owned, Undetermined, Unowned
from statechannel.errors import UsageError
from statechannel.operations.table import RequestCommand
from statechannel.protocol.bundle import is_bundle, split_topic
from statechannel.protocol.states import State
from statechannel.queries.connection import Connection
from statechannel.queries.registry import read_registry
from statechannel.stories.registry import Registry

if TYPE_CHECKING:  # what the broker answers has no state of a key, and lookups of now do not need the audit
    from statechannel.audit.local import OwnerThen
    from statechannel.protocol.keys import KeyState

lookup_app = commands()


@lookup_app.command()
@with_connection
def lookup(
    connect: Connect,
    name: Annotated[str, argument("TOPIC|BUNDLE")],
    read_only: Annotated[bool, option("--read-only", "Only read the log; assign nothing. Needs no broker.")] = False,
    as_of: Annotated[
        str | None,
        option(
            "--as-of AGE|TIME|OFFSET",
            "Show who owned it then, by the log: 10m (ago), 2026-01-01T00:00:00Z, or an offset; inclusive.",
        ),
    ] = None,
    file: Annotated[Path | None, option("--file F", "With --as-of: read this export file, not the topic.")] = None,
    timeout: Timeout = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Look up the broker that serves a topic or bundle; assigns the bundle if it has no owner."""
    (require_place if read_only or as_of is not None else require_name)(name)  # the other one assigns the bundle
    if file is not None and as_of is None:
        raise UsageError("--file requires --as-of", hint="A lookup of now asks the channel: omit --file.")
    if as_of is not None:
        _look_back(connect, name, as_of, file, table=output is not Output.JSON)
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
    if isinstance(answer.outcome, NotFound) and answer.outcome.reason == "unknown-namespace":
        _require_not_deleted(connection, name)
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


def _require_not_deleted(connection: Connection, name: str) -> None:
    """Say who deleted the namespace of a topic or bundle, if the log shows it."""
    from statechannel.audit.incidents import ChannelIncidents
    from statechannel.cli.bundles import deleted
    from statechannel.queries.channel_view import read_channel

    incidents = ChannelIncidents(0, with_gaps=False)
    namespace = _namespace_of(name)
    read_channel(connection, [incidents.observe])
    if any(item.namespace == namespace for item in incidents.deletions):
        raise deleted(connection, incidents, namespace)


def _namespace_of(name: str) -> str:
    return name.rpartition("/")[0] if is_bundle(name) else (split_topic(name) or ("", ""))[0]


def _from_log(connection: Connection, name: str) -> Outcome:
    registry = read_registry(connection)
    tenant, _, broker = _namespace_of(name).partition("/")
    if tenant in connection.settings.lookups.bound_tenants and broker in registry.members.alive:
        return BoundTo(broker, registry.members.alive[broker].urls)
    from statechannel.queries.channel_view import locate, read_channel

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


def _look_back(connect: Connect, name: str, as_of: str, file: Path | None, *, table: bool) -> None:
    """Print who owned a topic or bundle at a moment: what `audit history` has in its last line before it."""
    from statechannel.audit.engine import LOCAL, ReadMode
    from statechannel.cli.audit.options import source_of
    from statechannel.queries.audit import owner_at, owner_fields
    from statechannel.queries.audit_log import AuditLog

    source = source_of(file, None, None, connect)
    asked = AuditLog(source, None, ReadMode.AUTO, 0, LOCAL, {}, connect, TERMINAL)
    then, when, shown = owner_at(asked, name, as_of)
    if table:
        _print_then(then, shown)
    else:
        print_json(owner_fields(then, name, as_of, when))


def _print_then(then: OwnerThen, shown: str) -> None:
    key, since, changed = then.key, then.since or {}, then.changed or {}
    state = "-" if key.state is None else key.state.value
    to = f" to {key.bound_for}" if key.bound_for not in (None, key.owner) else ""
    unheard = None if then.unheard is None or then.gap is not None else then.unheard.sentence()
    rows: list[tuple[str, Any]] = [
        ("as of", f"{shown}, inclusive (last offset {then.last_offset} of partition {then.partition})"),
        ("bundle", key.name),
        ("owner", key.owner or "no broker"),
        ("not served", None if then.gap is None or key.owner is None else _unserved(key.owner, then.gap)),
        ("not certain", unheard),
        ("heard again", None if then.heard_again is None else _heard_again(then.heard_again)),
        ("generation", key.generation),
        ("owner since", _place(since.get("since_ms"), since.get("since_offset")) if key.owner else None),
        ("state", f"{state}{to}"),
        ("state since", _place(changed.get("timestamp_ms"), key.offset)),
        ("written by", changed.get("by")),
        ("why", "; ".join(filter(None, (changed.get("action"), changed.get("reason")))) or None),
        ("note", changed.get("note") or None),
        ("operation", key.operation),
        ("started by", None if changed.get("began") is None else _began(changed["began"])),
        ("decision", changed.get("decision")),
    ]
    print_facts([row for row in rows if row[1] is not None])


def _began(began: Mapping[str, Any]) -> str:
    """The first record of an operation."""
    what = "; ".join(filter(None, (began["action"], began["reason"])))
    return f"{began['by']} at offset {began['offset']}" + (f": {what}" if what else "")


def _unserved(owner: str, gap: Mapping[str, Any]) -> str:
    """The gap in service that contains the moment."""
    began = f"{owner} was last heard {moment(gap['start_ms'])}" if gap["cause"] == "owner-lost" else gap["why"]
    ended = "which has not ended" if gap["end_ms"] is None else f"until {moment(gap['end_ms'])}"
    still_ms = gap["stood_still_ms"]
    still = "" if still_ms is None else f"; its process stood still for {duration(still_ms)}"
    return f"{began}, gap {ended}" + (f" (then {gap['to']})" if gap["to"] else "") + still


def _heard_again(lost: Mapping[str, Any]) -> str:
    from statechannel.audit.overlaps import HeardIn

    what = "wrote again" if lost["heard_in"] == HeardIn.LOG else "was heard again"
    return (
        f"{lost['broker']} was lost, but {what} at {moment(lost['heard_ms'])}: it may have served the bundle, at most until then "
        "(`statechannel audit overlaps`)"
    )


def _place(at_ms: int | None, offset: int | None) -> str:
    """Time and offset of a record, as far as the log still has them."""
    if at_ms is None:
        return "unknown: the record was compacted"
    return f"{moment(at_ms)} (offset {offset})"
