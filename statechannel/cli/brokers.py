"""Commands `statechannel brokers`: members of the cluster; and `statechannel repair resume`, after many were lost at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from statechannel.audit.views import LogViews
from statechannel.broker.request_record import RequestCommand
from statechannel.cli.kit.channel_view import read_channel
from statechannel.cli.kit.confirmation import Effect
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.dismissals import read_dismissals, without_dismissed
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import Column, toned
from statechannel.cli.kit.options import Connect, OutputAs, Reason, with_connection
from statechannel.cli.kit.output import Output, duration, make_table
from statechannel.cli.kit.registry import Registry, read_registry
from statechannel.cli.kit.remarks import Remarks, remarks
from statechannel.cli.kit.requests import BrokerRequest, confirmed_request
from statechannel.cli.kit.screen import EVERY_S, Block, EndsAfter, Every, Watch, show_result
from statechannel.engine.membership import Member
from statechannel.engine.troubles import UnplacedCause
from statechannel.errors import ExitCode

_HEADERS = (
    "broker",
    "state",
    "mode",
    Column("phase", 2),
    Column("accepting", 1),
    "leader",
    "bundles",
    Column("lag", 1),
    "heard",
    Column("software", 4),
    Column("extensions", 4),
    Column("URLs", 5, text=False),
)

brokers_app = typer.Typer(add_completion=False, rich_markup_mode=None)


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

    def read() -> tuple[list[Block], dict[str, Any]]:
        registry = without_dismissed(read_registry(connection, all_lost=True), read_dismissals(connection))
        views = read_channel(connection)
        rows = members(registry, views, remarks(connection, registry.members.alive))
        document = {"brokers": rows, "leader": leader_name(registry), "tentative": views.tentative}
        return [Block("brokers", len(rows), lambda most: _table(rows[:most]))], document

    show_result(read, output, watch=watch, every_s=every, max_s=max_seconds)


def _table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    marked = any(row["remarks"] for row in rows)
    return make_table(
        (*_HEADERS, Column("remarks", text=True)) if marked else _HEADERS,
        [
            (
                row["broker"],
                toned(row["state"]),
                toned(row["mode"]),
                row["phase"],
                "no (cordoned)" if row["accepting"] and row["cordoned"] else row["accepting"],
                row["leading"],
                row["bundles"],
                row["lag_records"],
                f"{duration(row['heard_ago_ms'])} ago",
                row["software"],
                "-" if row["extensions"] is None else ", ".join(row["extensions"]) or "none",
                " ".join([*row["urls"].values(), *filter(None, [row["http"]])]),
                *([row["remarks"]] if marked else []),
            )
            for row in rows
        ],
        empty="no broker is alive",
    )


def leader_name(registry: Registry) -> str | None:
    return None if registry.leader is None else registry.leader.broker


def members(registry: Registry, views: LogViews, notes: Remarks) -> list[dict[str, Any]]:
    """Every member for the JSON output, the lost ones last."""
    load: dict[str, int] = {}
    for key in views.live():
        if key.owner is not None:
            load[key.owner] = load.get(key.owner, 0) + 1
    leader = leader_name(registry)
    rows = [
        _alive(member, registry, views, load.get(member.broker, 0), leading=member.broker == leader)
        for _, member in sorted(registry.members.alive.items())
    ]
    for broker, lost in sorted(registry.members.lost.items()):
        left = (lost.broker, lost.incarnation) in registry.members.gone
        rows.append(
            {
                "broker": broker,
                "incarnation": lost.incarnation,
                "state": "left" if left else "lost",
                "mode": None,
                "phase": None,
                "accepting": False,
                "draining": False,
                "leading": False,
                "bundles": load.get(broker, 0),
                "lag_records": None,
                "heard_ago_ms": max(0, registry.read_at_ms - lost.last_heard_ms),
                "started_at_ms": None,
                "software": None,
                "extensions": None,
                "urls": {},
                "http": None,
                "blocked": None,
                "hooks_failed": {},
                "unplaced": None,
                "canary": None,
            }
        )
    return [
        row | {"remarks": notes.of(row["broker"], row["bundles"]), "cordoned": row["broker"] in notes.cordoned}
        for row in rows
    ]


def _alive(member: Member, registry: Registry, views: LogViews, bundles: int, *, leading: bool) -> dict[str, Any]:
    info = member.info
    return {
        "broker": member.broker,
        "incarnation": member.incarnation,
        "state": "draining" if info.get("draining") is True else "alive",
        "mode": info.get("mode"),
        "phase": info.get("phase"),
        "accepting": member.accepting,
        "draining": info.get("draining") is True,
        "leading": leading,
        "bundles": bundles,
        "lag_records": _lag(info.get("applied"), views),
        "heard_ago_ms": max(0, registry.read_at_ms - member.heard_at_ms),
        "started_at_ms": info.get("started_at_ms"),
        "software": info.get("software"),
        "extensions": None if member.extensions is None else sorted(member.extensions),
        "urls": dict(member.urls),
        "http": member.info.get("http"),
        "blocked": _blocked(info, max(0, registry.read_at_ms - member.heard_at_ms)),
        "hooks_failed": _hooks_failed(info, max(0, registry.read_at_ms - member.heard_at_ms)),
        "unplaced": _unplaced(info, max(0, registry.read_at_ms - member.heard_at_ms)),
        "canary": _canary(info, max(0, registry.read_at_ms - member.heard_at_ms)),
    }


def _blocked(info: Mapping[str, Any], heard_ago_ms: int) -> dict[str, Any] | None:
    """How often the event loop was blocked, and how long ago, by the broker's own clock and the time since it was heard."""
    blocked, sent_ms = info.get("blocked"), info.get("sent_at_ms")
    if not isinstance(blocked, dict) or type(sent_ms) is not int or type(blocked.get("at_ms")) is not int:
        return None
    times, blocked_s, place, hook = (blocked.get(name) for name in ("times", "seconds", "place", "hook"))
    if type(times) is not int or not isinstance(blocked_s, int | float) or not isinstance(place, str):
        return None
    return {
        "times": times,
        "seconds": blocked_s,
        "place": place,
        "hook": hook if isinstance(hook, str) else None,
        "ago_ms": max(0, sent_ms - blocked["at_ms"]) + heard_ago_ms,
    }


def _hooks_failed(info: Mapping[str, Any], heard_ago_ms: int) -> dict[str, dict[str, Any]]:
    """Failures by hook, as far as they are well-formed."""
    hooks = info.get("hooks_failed")
    failures = (
        {name: _aged(info, fields, heard_ago_ms) for name, fields in hooks.items()} if isinstance(hooks, dict) else {}
    )
    return {
        name: failed
        for name, failed in failures.items()
        if failed is not None and _has(failed, {"times": int, "since_ms": int, "bundle": str, "error": str})
    }


def _unplaced(info: Mapping[str, Any], heard_ago_ms: int) -> dict[str, Any] | None:
    """Bundles for which its placement found no broker."""
    fields = _aged(info, info.get("unplaced"), heard_ago_ms)
    kinds = {"bundles": int, "bundle": str, "reason": str, "message": str, "since_ms": int}
    if fields is None or not _has(fields, kinds):
        return None
    known = [cause for cause in UnplacedCause if cause == fields.get("cause")]  # brokers of older versions do not say
    return fields | {"cause": known[0] if known else UnplacedCause.POLICIES}


def _canary(info: Mapping[str, Any], heard_ago_ms: int) -> dict[str, Any] | None:
    """What its canary reports."""
    fields = _aged(info, info.get("canary"), heard_ago_ms)
    kinds = {"findings": int, "bundle": str, "member": str, "reason": str, "message": str, "since_ms": int}
    return fields if fields is not None and _has(fields, kinds) else None


def _aged(info: Mapping[str, Any], fields: object, heard_ago_ms: int) -> dict[str, Any] | None:
    """The fields with `ago_ms` in place of `at_ms`, by the broker's own clock and the time since it was heard."""
    sent_ms = info.get("sent_at_ms")
    if not isinstance(fields, dict) or type(sent_ms) is not int or type(fields.get("at_ms")) is not int:
        return None
    kept = {name: value for name, value in fields.items() if name != "at_ms"}
    return kept | {"ago_ms": max(0, sent_ms - fields["at_ms"]) + heard_ago_ms}


def _has(fields: Mapping[str, Any], kinds: Mapping[str, type]) -> bool:
    return all(type(fields.get(name)) is kind for name, kind in kinds.items())


def _lag(applied: object, views: LogViews) -> int | None:
    """Records between the member's last heartbeat and the end of the log; heartbeats on the channel count."""
    if not isinstance(applied, dict):
        return None
    lag = 0
    for part in views.parts:
        at = applied.get(str(part.view.partition))
        lag += max(0, part.view.applied - at) if isinstance(at, int) else 0
    return lag


repair_app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Repair of bundles that lost their owner.")


@repair_app.callback()
def _group() -> None:
    """Repair of bundles that lost their owner."""


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
def dismiss(
    _: Connect, broker: Annotated[str, typer.Argument(metavar="BROKER")], reason: Reason = None
) -> BrokerRequest:
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
