"""`statechannel status`: leader, lag, debts, what is in flight and for how long, modes."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Any

import typer

from statechannel.audit.views import LogViews
from statechannel.cli.brokers import leader_name, members
from statechannel.cli.channel_view import read_channel
from statechannel.cli.connection import Connection
from statechannel.cli.live_log import now_ms
from statechannel.cli.options import Connect, OutputAs, reaching
from statechannel.cli.output import Output, duration, print_json, print_table, stdout
from statechannel.cli.registry import Registry, read_registry
from statechannel.cli.remarks import remarks
from statechannel.core.inputs import RecordRead
from statechannel.core.states import State
from statechannel.core.view import Judgement

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_SHOWN = 50


class LogTimes:
    """Log time of every strictly judged record: sixteen bytes each."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[array[int], array[int]]] = {}

    def observe(self, record: RecordRead, _: Judgement) -> None:
        """Take in one record."""
        offsets, times = self._of.setdefault(record.partition, (array("q"), array("q")))
        offsets.append(record.offset)
        times.append(record.timestamp_ms)

    def of(self, partition: int, offset: int) -> int | None:
        """Time of a record; None where it was not judged strictly."""
        offsets, times = self._of.get(partition, (array("q"), array("q")))
        index = bisect_left(offsets, offset)
        return times[index] if index < len(offsets) and offsets[index] == offset else None


@app.command()
@reaching
def status(connect: Connect, output: OutputAs = Output.TABLE) -> None:
    """Show how the channel and its brokers are."""
    connection = connect()
    times = LogTimes()
    views = read_channel(connection, [times.observe])
    found = _status(connection, views, read_registry(connection), times)
    if output is Output.JSON:
        print_json(found)
    else:
        _show(found)


def _status(connection: Connection, views: LogViews, registry: Registry, times: LogTimes) -> dict[str, Any]:
    at_ms = now_ms()
    said = remarks(connection)
    brokers = members(registry, views, said)
    paused = [
        {"broker": member.broker, "why": member.info["repair_paused"]}
        for member in registry.members.alive.values()
        if member.info.get("repair_paused")
    ]
    found: dict[str, Any] = {
        "channel": connection.topics.channel,
        "bootstrap_servers": connection.client.bootstrap_servers,
        "leader": leader_name(registry),
        "tentative": views.tentative,
        "stopped": {
            str(part.view.partition): {"offset": part.stop.offset, "format": part.stop.format}
            for part in views.parts
            if part.stop is not None
        },
        "partitions": [
            {
                "partition": part.view.partition,
                "applied": part.view.applied,
                "newest_record_ago_ms": max(0, at_ms - newest_ms) if newest_ms else None,
                "debts": len(part.view.ledger.open),
                "in_flight": len(part.view.in_flight),
            }
            for part, newest_ms in zip(views.parts, views.newest_ms, strict=True)
        ],
        "bundles": len(views.live()),
        "assigned": sum(key.state is State.ASSIGNED for key in views.live()),
        "unassigned": sum(key.state in (None, State.UNASSIGNED) for key in views.live()),
        "orphans": _orphans(views, registry),
        "debts": _debts(views, times, at_ms),
        "in_flight": _in_flight(views, times, at_ms),
        "repair_paused": paused,
        "remarks": list(said.cluster),
        "brokers": brokers,
    }
    return found


def _orphans(views: LogViews, registry: Registry) -> int:
    """Bundles whose owner is not heard."""
    return sum(key.owner is not None and key.owner not in registry.members.alive for key in views.live())


def _debts(views: LogViews, times: LogTimes, at_ms: int) -> list[dict[str, Any]]:
    found = []
    for part in views.parts:
        for key, debt in part.view.ledger.open.items():
            since_ms = times.of(part.view.partition, debt.since_offset)
            found.append(
                {
                    "key": key.name,
                    "partition": part.view.partition,
                    "since_offset": debt.since_offset,
                    "age_ms": None if since_ms is None else max(0, at_ms - since_ms),
                }
            )
    return sorted(found, key=lambda debt: -(debt["age_ms"] or 0))


def _in_flight(views: LogViews, times: LogTimes, at_ms: int) -> list[dict[str, Any]]:
    found = []
    for part in views.parts:
        for key in part.view.in_flight:
            since_ms = times.of(part.view.partition, key.offset)
            found.append(
                {
                    "bundle": key.name,
                    "state": None if key.state is None else key.state.value,
                    "from": key.from_,
                    "to": key.to,
                    "operation": key.operation,
                    "age_ms": None if since_ms is None else max(0, at_ms - since_ms),
                }
            )
    return sorted(found, key=lambda one: -(one["age_ms"] or 0))


def _show(found: dict[str, Any]) -> None:
    oldest = found["debts"][0]["age_ms"] if found["debts"] else None
    rows = [
        ("channel", f"{found['channel']} at {found['bootstrap_servers']}"),
        ("leader", found["leader"] or "none is heard"),
        ("bundles", f"{found['bundles']}: {found['assigned']} assigned, {found['unassigned']} unassigned"),
        ("in flight", len(found["in_flight"])),
        ("owner not heard", found["orphans"]),
        ("debts", f"{len(found['debts'])}" + ("" if oldest is None else f", the oldest {duration(oldest)} old")),
    ]
    if found["tentative"]:
        rows.append(("tentative", "yes: the log was cleaned, and no heartbeat vouches for what is left"))
    rows += [("remark", text) for text in found["remarks"]]
    rows += [(f"repair paused by {one['broker']}", one["why"]) for one in found["repair_paused"]]
    rows += [
        (f"partition {partition}", f"needs format {stop['format']} from offset {stop['offset']} on")
        for partition, stop in found["stopped"].items()
    ]
    print_table(("what", "value"), [(what, str(value)) for what, value in rows])
    stdout().print()
    headers = ("broker", "state", "mode", "phase", "leader", "bundles", "lag", "heard")
    marked = any(one["remarks"] for one in found["brokers"])
    print_table(
        (*headers, "remarks") if marked else headers,
        [
            (
                one["broker"],
                one["state"],
                one["mode"],
                one["phase"],
                one["leading"],
                one["bundles"],
                one["lag_records"],
                f"{duration(one['heard_ago_ms'])} ago",
                *([one["remarks"]] if marked else []),
            )
            for one in found["brokers"]
        ],
        empty="no broker is heard",
    )
    stdout().print()
    print_table(
        ("partition", "applied offset", "newest record", "debts", "in flight"),
        [
            (
                one["partition"],
                one["applied"],
                "-" if one["newest_record_ago_ms"] is None else f"{duration(one['newest_record_ago_ms'])} ago",
                one["debts"],
                one["in_flight"],
            )
            for one in found["partitions"]
        ],
    )
    if found["in_flight"]:
        stdout().print()
        print_table(
            ("in flight", "state", "from", "to", "for", "operation"),
            [
                (one["bundle"], one["state"], one["from"], one["to"], duration(one["age_ms"]), one["operation"])
                for one in found["in_flight"][:_SHOWN]
            ],
        )
    if found["debts"]:
        stdout().print()
        print_table(
            ("in debt", "since offset", "for"),
            [(one["key"], one["since_offset"], duration(one["age_ms"])) for one in found["debts"][:_SHOWN]],
        )
