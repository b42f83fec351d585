"""Tables of `statechannel status`, printed once or refreshed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from statechannel.audit.log_times import WINDOWS_MIN, grouped
from statechannel.cli.kit.fitted_tables import cell
from statechannel.cli.kit.output import duration, make_table, moment

_SHOWN = 50
_LAG_SHOWN_MS = 1_000


def render(fields: dict[str, Any], *, at_most: int = _SHOWN) -> RenderableType:
    """All of it, the most important first.

    Args:
        at_most: Maximum number of rows of each table; the rest is counted.
    """
    return Group(*_blocks(fields, at_most))


def _blocks(fields: dict[str, Any], at_most: int) -> Iterator[RenderableType]:
    yield from _head(fields)
    yield Text()
    yield from _brokers(fields, at_most)
    yield Text()
    yield make_table(
        ("partition", "applied offset", "newest record", "debts", "in flight"),
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
    )
    yield Text()
    rates = grouped(fields["rates"])
    yield make_table(
        ("records per minute", *(f"last {window} min" for window in WINDOWS_MIN)),
        [(name, *(f"{rate:g}" for rate in row)) for name, row in rates.items()],
    )
    if fields["in_flight"]:
        yield Text()
        yield make_table(
            ("in flight", "state", "from", "to", "for", "operation"),
            [
                (row["bundle"], row["state"], row["from"], row["to"], duration(row["age_ms"]), row["operation"])
                for row in fields["in_flight"][:at_most]
            ],
        )
        yield from _more(len(fields["in_flight"]), at_most)
    if fields["debts"]:
        yield Text()
        yield make_table(
            ("in debt", "since offset", "for"),
            [(row["key"], row["since_offset"], duration(row["age_ms"])) for row in fields["debts"][:at_most]],
        )
        yield from _more(len(fields["debts"]), at_most)
    if fields["incidents"]:
        yield Text()
        yield make_table(
            ("when", "last incidents"), [(moment(row["at_ms"]), row["said"]) for row in fields["incidents"]]
        )


def _head(fields: dict[str, Any]) -> Iterator[RenderableType]:
    if fields["blind_since_ms"] is not None:
        blind = duration(max(0, fields["at_ms"] - fields["blind_since_ms"]))
        since = moment(fields["blind_since_ms"])
        yield Text(
            f"BLIND since {since}, for {blind}: Kafka does not answer. The figures below are from then.",
            style="bold reverse",
        )
    oldest = fields["oldest_debt_ms"]
    rows = [
        ("channel", f"{fields['channel']} at {fields['bootstrap_servers']}"),
        ("leader", _leader(fields)),
        ("bundles", f"{fields['bundles']}: {fields['assigned']} assigned, {fields['unassigned']} unassigned"),
        ("in flight", _with_oldest(len(fields["in_flight"]), [row["age_ms"] for row in fields["in_flight"]])),
        ("owner lost", fields["orphans"]),
        ("debts", f"{len(fields['debts'])}" + ("" if oldest is None else f", the oldest {duration(oldest)} old")),
    ]
    if fields["tentative"]:
        rows.append(("tentative", "yes: the log was compacted, and no heartbeat vouches for the remaining records"))
    rows += [("remark", text) for text in fields["remarks"]]
    rows += [(f"repair paused by {row['broker']}", row["why"]) for row in fields["repair_paused"]]
    rows += [
        (f"partition {partition}", f"needs format {stop['format']} from offset {stop['offset']} on")
        for partition, stop in fields["stopped"].items()
    ]
    yield make_table(("what", "value"), [(what, str(value)) for what, value in rows])


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


def _brokers(fields: dict[str, Any], at_most: int) -> Iterator[RenderableType]:
    headers = ("broker", "state", "mode", "phase", "leader", "bundles", "lag", "heard")
    marked = any(row["remarks"] for row in fields["brokers"])
    # Who is in trouble is seen where not all can be.
    rows = sorted(fields["brokers"], key=_trouble) if len(fields["brokers"]) > at_most else fields["brokers"]
    yield make_table(
        (*headers, "remarks") if marked else headers,
        [
            (
                row["broker"],
                row["state"],
                row["mode"],
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
    )
    yield from _more(len(rows), at_most)


def _trouble(row: dict[str, Any]) -> tuple[bool, bool, bool, str]:
    return row["state"] == "alive", row["mode"] == "normal", not row["leading"], row["broker"]


def _lag(row: dict[str, Any]) -> str:
    if row["lag_records"] is None:
        return cell(None)
    late = f" ({duration(row['lag_ms'])})" if (row["lag_ms"] or 0) >= _LAG_SHOWN_MS else ""
    return f"{row['lag_records']}{late}"


def _more(many: int, at_most: int) -> Iterator[RenderableType]:
    if many > at_most:
        yield Text(f"and {many - at_most} more (`--output json` lists all)")
