"""Commands `statechannel brokers`: members of the cluster; and `statechannel repair resume`, after many were lost at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from rich.console import RenderableType

from statechannel.audit.views import LogViews
from statechannel.cli.kit.confirmation import Effect
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import Column, toned
from statechannel.cli.kit.options import Connect, OutputAs, Reason, argument, commands, with_connection
from statechannel.cli.kit.output import Output, make_rows
from statechannel.cli.kit.remarks import Remarks, remarks
from statechannel.cli.kit.requests import BrokerRequest, confirmed_request
from statechannel.cli.kit.screen import EVERY_S, Draw, EndsAfter, Every, Watch, counted, show_result
from statechannel.clocks import duration
from statechannel.conditions.facts import broker_rows, leader_api_of, leader_of
from statechannel.engine.membership import LostMember, Member
from statechannel.errors import ExitCode
from statechannel.operations.table import RequestCommand
from statechannel.queries.channel_view import read_channel
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import recent_requests
from statechannel.queries.registry import read_registry
from statechannel.stories.registry import Registry

brokers_app = commands()


@brokers_app.command()
@with_connection
def brokers(
    connect: Connect,
    watch: Watch = False,
    every: Every = EVERY_S,
    max_seconds: EndsAfter = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """List the live brokers, and those lost and not back; with --watch continuously."""
    connection = connect()

    def read() -> tuple[Draw, dict[str, Any]]:
        registry = read_registry(connection, all_lost=True).without(recent_requests(connection).dismissals)
        views = read_channel(connection)
        rows = members(registry, views, remarks(connection, registry.members.alive))
        document = {
            "brokers": rows,
            "leader": leader_of(registry.members),
            "leader_api": leader_api_of(registry.members),
            "tentative": views.tentative,
        }
        return lambda most: counted(_table(rows[:most]), len(rows), most), document

    show_result(read, output, watch=watch, every_s=every, max_s=max_seconds)


def _table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    columns = (
        "broker",
        Column("state", of=lambda row: toned(row["state"])),
        Column("mode", of=lambda row: toned(row["mode"])),
        Column("phase", 2),
        Column(
            "accepting", 1, of=lambda row: "no (cordoned)" if row["accepting"] and row["cordoned"] else row["accepting"]
        ),
        Column("leader", of="leading"),
        "bundles",
        Column("lag", 1, of="lag_records"),
        Column("heard", of=lambda row: f"{duration(row['heard_ago_ms'])} ago"),
        Column("software", 4),
        Column("extensions", 4, of=_extensions),
        Column(
            "URLs",
            5,
            text=False,
            of=lambda row: " ".join([*row["urls"].values(), *filter(None, [row["http"], row["api"]])]),
        ),
        Column("remarks", text=True) if any(row["remarks"] for row in rows) else None,
    )
    return make_rows(columns, rows, empty="no broker is alive")


def _extensions(row: Mapping[str, Any]) -> str | None:
    return None if row["extensions"] is None else ", ".join(row["extensions"]) or "none"


def silence_of(registry: Registry) -> Callable[[Member | LostMember], int]:
    """For how long a member was silent when the registry was read."""
    return lambda member: (
        registry.read_at_ms - (member.last_heard_ms if isinstance(member, LostMember) else member.heard_at_ms)
    )


def members(registry: Registry, views: LogViews, notes: Remarks) -> list[dict[str, Any]]:
    """Every member for the JSON output, the lost ones last."""
    owned = Counter(key.owner for key in views.live() if key.owner is not None)
    applied = {part.view.partition: part.view.applied for part in views.parts}
    return [
        {**row, "remarks": notes.brokers.get(row["broker"]), "cordoned": row["broker"] in notes.cordoned}
        for row in broker_rows(registry.members, owned, applied, silence_of(registry))
    ]


repair_app = commands("Repair of bundles that lost their owner.", alone=True)


@repair_app.command()
@confirmed_request
def resume(_: Connect) -> BrokerRequest:
    """Resume repair after a pause because many brokers were lost at once."""
    return BrokerRequest(
        RequestCommand.RESUME_REPAIR,
        {},
        "repair resumed",
        effect=_effect_of_resume,
        results={"not-paused": "repair was not paused: there was nothing to resume"},
    )


def _effect_of_resume(connection: Connection) -> Effect:
    registry = read_registry(connection, all_lost=True)
    paused = None if registry.leader is None else registry.leader.info.get("repair_paused")
    lost = sorted(registry.members.lost)
    facts = {"paused": paused, "lost": lost}
    if paused is None:
        return Effect(["repair is not paused: there is nothing to resume"], facts)
    return Effect(
        [f"repair is paused: {paused}", f"it would reassign the bundles of {', '.join(lost) or 'lost brokers'}"], facts
    )


@confirmed_request
def dismiss(_: Connect, broker: Annotated[str, argument("BROKER")], reason: Reason = None) -> BrokerRequest:
    """Dismiss a lost broker that will not come back: `status`, `doctor` and `brokers` stop to show it as lost.

    It may start again at any time, as another process.
    """
    return BrokerRequest(
        RequestCommand.DISMISS_BROKER,
        {"broker": broker, "reason": reason},
        f"{broker} dismissed: `status`, `doctor` and `brokers` no longer show it as lost",
        effect=lambda connection: _effect_of_dismissal(connection, broker),
    )


def _effect_of_dismissal(connection: Connection, broker: str) -> Effect:
    """What would happen.

    Raises:
        CommandError: The leader would refuse.
    """
    registry = read_registry(connection, all_lost=True)
    lost = registry.members.lost.get(broker)
    if broker in registry.members.alive:
        raise CommandError(
            f"rejected (broker-alive): {broker} is alive: only a broker that was lost can be dismissed",
            hint="`statechannel drain` empties a broker before it is stopped.",
            code=ExitCode.REJECTED,
        )
    if lost is None:
        raise CommandError(
            f"rejected (broker-not-lost): {broker} is not known as lost",
            hint="`statechannel brokers` lists those that are alive, and those lost and not back.",
            code=ExitCode.REJECTED,
        )
    ago = duration(max(0, registry.read_at_ms - lost.last_heard_ms))
    return Effect(
        [f"{broker}, last heard {ago} ago, would no longer be shown as lost; its bundles are repaired as ever"],
        {"broker": broker, "incarnation": lost.incarnation, "lost": [broker]},
    )
