"""Blocks of `statechannel status`, the most important first: verdict, incidents, brokers, operations; counters last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from rich.console import Group, RenderableType
from rich.text import Text

from statechannel.audit.log_times import WINDOWS_MIN, grouped
from statechannel.cli.kit.fitted_tables import Cell, Column, Tone, cell, toned
from statechannel.cli.kit.output import is_wide, make_facts, make_rows, make_table, when
from statechannel.cli.kit.screen import counted
from statechannel.clocks import duration
from statechannel.conditions.facts import NO_LIMITS, ChannelHealth, Facts
from statechannel.conditions.table import current_of
from statechannel.printable import term_text

_SHOWN = 50
INCIDENTS_MAX = 200
_DELETED_SHOWN = 3
_DELETED_LATELY_MS = 3_600_000
_LAG_SHOWN_MS = 1_000
_TONES = {
    ChannelHealth.HEALTHY: Tone.GOOD,
    ChannelHealth.DEGRADED: Tone.WARNING,
    ChannelHealth.DOWN: Tone.BAD,
    ChannelHealth.UNKNOWN: Tone.BAD,
}


def status_display(fields: dict[str, Any], rows: int, *, counters: bool = True) -> RenderableType:
    """The document that `status --output json` prints, for people.

    Args:
        rows: Greatest number in each table.
        counters: With the tables of partitions and rates.
    """
    parts = [_verdict(fields)]
    if fields["incidents"]:
        parts.append(_incidents(fields, rows))
    rows = min(rows, _SHOWN)
    parts += [_brokers(fields["brokers"], rows), make_facts(_facts(fields))]
    if fields["in_flight"]:
        parts.append(_in_flight(fields["in_flight"], rows))
    if fields["debts"]:
        parts.append(_awaiting_repair(fields["debts"], rows))
    if counters or is_wide():
        parts += [_partitions(fields), _rates(fields)]
    else:
        parts.append(Text("(`-o wide` also shows: partitions, records per minute)", style=Tone.QUIET))
    return Group(*[line for part in parts for line in (Text(), part)][1:])


def _verdict(fields: dict[str, Any]) -> RenderableType:
    verdict = ChannelHealth(fields["health"])
    problems = [("  " if row["due_to"] else "") + row["message"] for row in fields["problems"]] or [_well(fields)]
    first, *others = problems
    facts: list[tuple[str | Cell, str]] = [(Cell(verdict.value.upper(), tone=_TONES[verdict]), first)]
    facts += [("", text) for text in others]
    for deleted in fields.get("deleted_namespaces", ())[-_DELETED_SHOWN:]:
        if deleted["ago_ms"] <= _DELETED_LATELY_MS:
            by = f" by {deleted['by']}" if deleted["by"] else ""
            ago = f"was deleted{by} {duration(deleted['ago_ms'])} ago"
            facts.append(("", f"namespace {deleted['namespace']} {ago}: its clients get no owner"))
    for uneven in current_of("unspread", cast("Facts", fields), NO_LIMITS):
        facts.append(("", f"{uneven.message}. {uneven.next_step}"))
    return make_facts(facts)


def _well(fields: dict[str, Any]) -> str:
    alive = sum(row["state"] not in ("lost", "left") for row in fields["brokers"])
    brokers = "1 broker is alive" if alive == 1 else f"{alive} brokers are alive"
    owned = f"{fields['assigned']} of {fields['bundles']} bundles have an owner"
    return f"{brokers}, {fields['leader']} leads; {owned}"


def _incidents(fields: dict[str, Any], at_most: int) -> RenderableType:
    incidents, older = fields["incidents"], fields.get("incidents_older", 0)
    table = make_table(
        ("when", Column("last incidents", text=True)),
        [(when(row["at_ms"]), row["message"]) for row in incidents[:at_most]],
        footer=False,
    )
    if older and at_most >= len(incidents):
        wanted = min(INCIDENTS_MAX, len(incidents) + older)
        return Group(table, Text(f"and {older} older (`--incidents {wanted}`)", style=Tone.QUIET))
    return counted(table, len(incidents) + older, at_most)


def _facts(fields: dict[str, Any]) -> Iterator[tuple[str, object]]:
    named = f" (context {fields['context']})" if fields["context"] else ""
    yield "channel", f"{fields['channel']} at {fields['bootstrap_servers']}{named}"
    yield "leader", _leader(fields)
    unserved = fields.get("without_service") or {"bundles": 0, "assigned": 0}
    of_lost = f", {unserved['bundles']} without service" if unserved["bundles"] else ""
    assigned = fields["assigned"] - unserved["assigned"]
    yield "bundles", f"{fields['bundles']}: {assigned} assigned, {fields['unassigned']} unassigned{of_lost}"
    yield "in flight", _with_oldest(len(fields["in_flight"]), [row["age_ms"] for row in fields["in_flight"]])
    oldest = fields["oldest_debt_ms"]
    if fields["debts"]:
        age = "" if oldest is None else f", the oldest for {duration(oldest)}"
        yield "keys awaiting repair", f"{len(fields['debts'])}{age}"
    if fields["tentative"]:
        topics = fields.get("topics") or {}
        lost = topics.get("heads_lost") or topics.get("positions_lost")
        why = "records were deleted" if lost else "the log was compacted"
        yield "tentative", f"yes: {why}, and no heartbeat vouches for the remaining records"
    for text in fields["remarks"]:
        yield "remark", text


def _leader(fields: dict[str, Any]) -> str:
    if fields["leader"] is None:
        without_ms = fields["no_leader_for_ms"]
        return "none" + ("" if without_ms is None else f", for {duration(without_ms)}")
    since = "" if fields["leading_for_ms"] is None else f", for {duration(fields['leading_for_ms'])}"
    return f"{fields['leader']}{since}{term_text(fields['term'])}"


def _with_oldest(many: int, ages_ms: list[int | None]) -> str:
    known = [age for age in ages_ms if age is not None]
    return f"{many}, the oldest for {duration(max(known))}" if known else str(many)


def _brokers(brokers: Sequence[dict[str, Any]], at_most: int) -> RenderableType:
    marked = any(row["remarks"] for row in brokers)
    rows = sorted(brokers, key=_trouble) if len(brokers) > at_most else brokers  # trouble is seen where not all can be
    table = make_rows(
        (
            "broker",
            Column("state", of=lambda row: toned(row["state"])),
            Column("mode", of=lambda row: toned(row["mode"])),
            Column("phase", 2),
            Column("leader", of="leading"),
            "bundles",
            Column("lag", 1, text=False, of=_lag),
            Column("heard", of=lambda row: f"{duration(row['heard_ago_ms'])} ago"),
            Column("remarks", text=True) if marked else None,
        ),
        rows[:at_most],
        empty="no broker is alive",
        footer=False,
    )
    return counted(table, len(rows), at_most, "`statechannel brokers`")


def _trouble(row: dict[str, Any]) -> tuple[bool, bool, bool, str]:
    """The leader comes first; then those in trouble, the lost ones last, as the verdict names them too."""
    is_alive, is_well = row["state"] == "alive", row["mode"] == "normal"
    return not row["leading"], is_alive and is_well, not is_alive, row["broker"]


def _lag(row: dict[str, Any]) -> str:
    if row["lag_records"] is None:
        return cell(None)
    late = f" ({duration(row['lag_ms'])})" if (row["lag_ms"] or 0) >= _LAG_SHOWN_MS else ""
    return f"{row['lag_records']}{late}"


def _in_flight(operations: Sequence[dict[str, Any]], at_most: int) -> RenderableType:
    table = make_rows(
        (
            Column("in flight", of="bundle"),
            Column("state", of=lambda row: toned(row["state"])),
            "from",
            "to",
            Column("for", of=lambda row: duration(row["age_ms"])),
            Column("operation", 4),
        ),
        operations[:at_most],
        footer=False,
    )
    return counted(table, len(operations), at_most)


def _awaiting_repair(owed: Sequence[dict[str, Any]], at_most: int) -> RenderableType:
    table = make_table(
        ("key awaiting repair", "since offset", "for"),
        [(row["key"], row["since_offset"], duration(row["age_ms"])) for row in owed[:at_most]],
        footer=False,
    )
    return counted(table, len(owed), at_most)


def _partitions(fields: dict[str, Any]) -> RenderableType:
    return make_rows(
        (
            "partition",
            Column("applied offset", of="applied"),
            Column("newest record", of=_newest_record),
            Column("awaiting repair", 1, of="debts"),
            Column("in flight", 1, of="in_flight"),
        ),
        fields["partitions"],
        footer=False,
    )


def _newest_record(row: dict[str, Any]) -> str | None:
    return None if row["newest_record_ago_ms"] is None else f"{duration(row['newest_record_ago_ms'])} ago"


def _rates(fields: dict[str, Any]) -> RenderableType:
    return make_table(
        ("records per minute", *(f"last {window} min" for window in WINDOWS_MIN)),
        [(name, *(f"{rate:g}" for rate in row)) for name, row in grouped(fields["rates"]).items()],
    )
