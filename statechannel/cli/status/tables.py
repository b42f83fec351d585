"""Blocks of `statechannel status`, the most important first: verdict, incidents, brokers, operations; counters last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from statechannel.audit.acknowledgements import acknowledged_sentence, by_whom
from statechannel.audit.log_times import WINDOWS_MIN, grouped
from statechannel.cli.kit.fitted_tables import Column, Fact, FactList, Tone, cell, toned
from statechannel.cli.kit.output import duration, is_wide, make_facts, make_table, when
from statechannel.cli.kit.screen import Block, plain_block
from statechannel.cli.status.health import SLOW_NOTE_MS, ChannelHealth, unspread, waits_for

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


def status_blocks(fields: dict[str, Any], *, at_most: int = _SHOWN, counters: bool = True) -> list[Block]:
    """Blocks of the document that `status --output json` prints.

    Args:
        at_most: Maximum number of rows of each table; the rest is counted.
        counters: With the tables of partitions and rates.
    """
    blocks = [plain_block("verdict", _verdict(fields))]
    if fields["incidents"]:
        incidents = fields["incidents"]
        blocks.append(Block("incidents", min(at_most, len(incidents)), lambda rows: _incidents(fields, rows)))
    brokers = fields["brokers"]
    blocks.append(Block("brokers", min(at_most, len(brokers)), lambda rows: _brokers(brokers, rows)))
    blocks.append(plain_block("channel", make_facts(_facts(fields))))
    if fields["in_flight"]:
        operations = fields["in_flight"]
        blocks.append(Block("in flight", min(at_most, len(operations)), lambda rows: _in_flight(operations, rows)))
    if fields["debts"]:
        owed = fields["debts"]
        blocks.append(Block("awaiting repair", min(at_most, len(owed)), lambda rows: _awaiting_repair(owed, rows)))
    if counters or is_wide():
        blocks += [plain_block("partitions", _partitions(fields)), plain_block("rates", _rates(fields))]
    else:
        blocks.append(plain_block("", Text("(`-o wide` also shows: partitions, records per minute)", style=Tone.QUIET)))
    return blocks


def _verdict(fields: dict[str, Any]) -> RenderableType:
    verdict = ChannelHealth(fields["health"])
    problems = [problem["message"] for problem in fields["problems"]] or [_well(fields)]
    first, *others = problems
    facts = [Fact(verdict.value.upper(), first, head=_TONES[verdict]), *(Fact("", text) for text in others)]
    if fields["unasked"]:
        many = fields["unasked"]
        verb = "bundle had" if many == 1 else "bundles had"
        note = f"{many} {verb} an owner before the last stop and no client has looked {'it' if many == 1 else 'them'} up since"
        facts.append(Fact("", note))
    facts += [Fact("", text) for text in _acknowledged(fields)]
    for deleted in fields.get("deleted_namespaces", ())[-_DELETED_SHOWN:]:
        if deleted["ago_ms"] <= _DELETED_LATELY_MS:
            by = f" by {deleted['by']}" if deleted["by"] else ""
            ago = f"was deleted{by} {duration(deleted['ago_ms'])} ago"
            facts.append(Fact("", f"namespace {deleted['namespace']} {ago}: its clients get no owner"))
    oldest = fields["in_flight"][0] if fields["in_flight"] else None
    if oldest is not None and (oldest["age_ms"] or 0) >= SLOW_NOTE_MS and waits_for(oldest):
        facts.append(Fact("", f"{oldest['bundle']} is in flight for {duration(oldest['age_ms'])}: {waits_for(oldest)}"))
    uneven = unspread(fields)
    if uneven:
        facts.append(Fact("", f"{uneven}; `statechannel transfer` moves a bundle, the balancer spreads them"))
    return FactList(facts, is_wide())


def _acknowledged(fields: dict[str, Any]) -> Iterator[str]:
    """Forged records that persons have looked at: no problem any more, but never hidden."""
    forged = fields.get("forged", {"newest": ()})
    seen = [row for row in forged["newest"] if row.get("acknowledged") is not None]
    if seen:
        newest = seen[-1]
        many = "1 forged record was" if len(seen) == 1 else f"{len(seen):,} forged records were"
        which = f"{'' if len(seen) == 1 else 'the newest: '}partition {newest['partition']}, offset {newest['offset']}"
        yield f"{many} acknowledged ({which}) {by_whom(newest['acknowledged'])}"
    for report in fields.get("disowned_acknowledged", ()):
        yield f"{report['said']}; {acknowledged_sentence(report['acknowledged'])}"


def _well(fields: dict[str, Any]) -> str:
    alive = sum(row["state"] not in ("lost", "left") for row in fields["brokers"])
    brokers = "1 broker is alive" if alive == 1 else f"{alive} brokers are alive"
    owned = f"{fields['assigned']} of {fields['bundles']} bundles have an owner"
    return f"{brokers}, {fields['leader']} leads; {owned}"


def _incidents(fields: dict[str, Any], at_most: int) -> RenderableType:
    incidents, older = fields["incidents"], fields.get("incidents_older", 0)
    table = make_table(
        ("when", Column("last incidents", text=True)),
        [(when(row["at_ms"]), row["said"]) for row in incidents[:at_most]],
        footer=False,
    )
    if older and at_most >= len(incidents):
        wanted = min(INCIDENTS_MAX, len(incidents) + older)
        return Group(table, Text(f"and {older} older (`--incidents {wanted}`)", style=Tone.QUIET))
    return _counted(table, len(incidents) + older, at_most)


def _facts(fields: dict[str, Any]) -> Iterator[tuple[str, object]]:
    named = f" (context {fields['context']})" if fields["context"] else ""
    yield "channel", f"{fields['channel']} at {fields['bootstrap_servers']}{named}"
    yield "leader", _leader(fields)
    yield "bundles", f"{fields['bundles']}: {fields['assigned']} assigned, {fields['unassigned']} unassigned"
    yield "in flight", _with_oldest(len(fields["in_flight"]), [row["age_ms"] for row in fields["in_flight"]])
    if fields["orphans"]:
        yield "bundles of unreachable brokers", fields["orphans"]
    oldest = fields["oldest_debt_ms"]
    if fields["debts"]:
        age = "" if oldest is None else f", the oldest for {duration(oldest)}"
        yield "keys awaiting repair", f"{len(fields['debts'])}{age}"
    if fields["tentative"]:
        yield "tentative", "yes: the log was compacted, and no heartbeat vouches for the remaining records"
    for text in fields["remarks"]:
        yield "remark", text


def _leader(fields: dict[str, Any]) -> str:
    if fields["leader"] is None:
        without_ms = fields["no_leader_for_ms"]
        return "none" + ("" if without_ms is None else f", for {duration(without_ms)}")
    term = "" if fields["term"] is None else f", term {fields['term']}"
    since = "" if fields["leading_for_ms"] is None else f", for {duration(fields['leading_for_ms'])}"
    return f"{fields['leader']}{term}{since}"


def _with_oldest(many: int, ages_ms: list[int | None]) -> str:
    known = [age for age in ages_ms if age is not None]
    return f"{many}, the oldest for {duration(max(known))}" if known else str(many)


def _brokers(brokers: Sequence[dict[str, Any]], at_most: int) -> RenderableType:
    headers = (
        "broker",
        "state",
        "mode",
        Column("phase", 2),
        "leader",
        "bundles",
        Column("lag", 1, text=False),
        "heard",
    )
    marked = any(row["remarks"] for row in brokers)
    rows = sorted(brokers, key=_trouble) if len(brokers) > at_most else brokers  # trouble is seen where not all can be
    table = make_table(
        (*headers, Column("remarks", text=True)) if marked else headers,
        [
            (
                row["broker"],
                toned(row["state"]),
                toned(row["mode"]),
                row["phase"],
                row["leading"],
                row["bundles"],
                _lag(row),
                f"{duration(row['heard_ago_ms'])} ago",
                *([row["remarks"]] if marked else []),
            )
            for row in rows[:at_most]
        ],
        empty="no broker is alive",
        footer=False,
    )
    return _counted(table, len(rows), at_most)


def _trouble(row: dict[str, Any]) -> tuple[bool, bool, bool, str]:
    return row["state"] == "alive", row["mode"] == "normal", not row["leading"], row["broker"]


def _lag(row: dict[str, Any]) -> str:
    if row["lag_records"] is None:
        return cell(None)
    late = f" ({duration(row['lag_ms'])})" if (row["lag_ms"] or 0) >= _LAG_SHOWN_MS else ""
    return f"{row['lag_records']}{late}"


def _in_flight(operations: Sequence[dict[str, Any]], at_most: int) -> RenderableType:
    table = make_table(
        ("in flight", "state", "from", "to", "for", Column("operation", 4)),
        [
            (row["bundle"], toned(row["state"]), row["from"], row["to"], duration(row["age_ms"]), row["operation"])
            for row in operations[:at_most]
        ],
        footer=False,
    )
    return _counted(table, len(operations), at_most)


def _awaiting_repair(owed: Sequence[dict[str, Any]], at_most: int) -> RenderableType:
    table = make_table(
        ("key awaiting repair", "since offset", "for"),
        [(row["key"], row["since_offset"], duration(row["age_ms"])) for row in owed[:at_most]],
        footer=False,
    )
    return _counted(table, len(owed), at_most)


def _partitions(fields: dict[str, Any]) -> RenderableType:
    return make_table(
        ("partition", "applied offset", "newest record", Column("awaiting repair", 1), Column("in flight", 1)),
        [
            (
                row["partition"],
                row["applied"],
                "-" if row["newest_record_ago_ms"] is None else f"{duration(row['newest_record_ago_ms'])} ago",
                row["debts"],
                row["in_flight"],
            )
            for row in fields["partitions"]
        ],
        footer=False,
    )


def _rates(fields: dict[str, Any]) -> RenderableType:
    return make_table(
        ("records per minute", *(f"last {window} min" for window in WINDOWS_MIN)),
        [(name, *(f"{rate:g}" for rate in row)) for name, row in grouped(fields["rates"]).items()],
    )


def _counted(table: RenderableType, many: int, at_most: int) -> RenderableType:
    if many <= at_most:
        return table
    return Group(table, Text(f"and {many - at_most} more (`--output json` lists all)"))
