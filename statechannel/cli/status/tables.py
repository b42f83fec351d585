"""How `statechannel status` looks: the figures as tables, to be printed once or shown again and again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from statechannel.audit.rates import WINDOWS_MIN, grouped
from statechannel.cli.kit.output import cell, duration, make_table, moment

_SHOWN = 50
_LAG_TOLD_MS = 1_000


def render(found: dict[str, Any], *, at_most: int = _SHOWN) -> RenderableType:
    """All of it, the most important first.

    Args:
        at_most: Rows of each table; how many more there are is said.
    """
    return Group(*_blocks(found, at_most))


def _blocks(found: dict[str, Any], at_most: int) -> Iterator[RenderableType]:
    yield from _head(found)
    yield Text()
    yield from _brokers(found, at_most)
    yield Text()
    yield make_table(
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
    yield Text()
    rates = grouped(found["rates"])
    yield make_table(
        ("records a minute", *(f"last {window} min" for window in WINDOWS_MIN)),
        [(name, *(f"{rate:g}" for rate in row)) for name, row in rates.items()],
    )
    if found["in_flight"]:
        yield Text()
        yield make_table(
            ("in flight", "state", "from", "to", "for", "operation"),
            [
                (one["bundle"], one["state"], one["from"], one["to"], duration(one["age_ms"]), one["operation"])
                for one in found["in_flight"][:at_most]
            ],
        )
        yield from _more(len(found["in_flight"]), at_most)
    if found["debts"]:
        yield Text()
        yield make_table(
            ("in debt", "since offset", "for"),
            [(one["key"], one["since_offset"], duration(one["age_ms"])) for one in found["debts"][:at_most]],
        )
        yield from _more(len(found["debts"]), at_most)
    if found["incidents"]:
        yield Text()
        yield make_table(
            ("when", "last incidents"), [(moment(one["at_ms"]), one["said"]) for one in found["incidents"]]
        )


def _head(found: dict[str, Any]) -> Iterator[RenderableType]:
    if found["blind_since_ms"] is not None:
        blind = duration(max(0, found["at_ms"] - found["blind_since_ms"]))
        since = moment(found["blind_since_ms"])
        yield Text(
            f"BLIND since {since}, for {blind}: Kafka does not answer. What follows is from then.", style="bold reverse"
        )
    oldest = found["oldest_debt_ms"]
    rows = [
        ("channel", f"{found['channel']} at {found['bootstrap_servers']}"),
        ("leader", _leader(found)),
        ("bundles", f"{found['bundles']}: {found['assigned']} assigned, {found['unassigned']} unassigned"),
        ("in flight", _with_oldest(len(found["in_flight"]), [one["age_ms"] for one in found["in_flight"]])),
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
    yield make_table(("what", "value"), [(what, str(value)) for what, value in rows])


def _leader(found: dict[str, Any]) -> str:
    if found["leader"] is None:
        without_ms = found["no_leader_for_ms"]
        return "none is heard" + ("" if without_ms is None else f", for {duration(without_ms)}")
    term = "" if found["term"] is None else f", term {found['term']}"
    since = "" if found["leading_for_ms"] is None else f", for {duration(found['leading_for_ms'])}"
    return f"{found['leader']}{term}{since}"


def _with_oldest(many: int, ages_ms: list[int | None]) -> str:
    known = [age for age in ages_ms if age is not None]
    return f"{many}, the oldest for {duration(max(known))}" if known else str(many)


def _brokers(found: dict[str, Any], at_most: int) -> Iterator[RenderableType]:
    headers = ("broker", "state", "mode", "phase", "leader", "bundles", "lag", "heard")
    marked = any(one["remarks"] for one in found["brokers"])
    # Who is in trouble is seen where not all can be.
    rows = sorted(found["brokers"], key=_trouble) if len(found["brokers"]) > at_most else found["brokers"]
    yield make_table(
        (*headers, "remarks") if marked else headers,
        [
            (
                one["broker"],
                one["state"],
                one["mode"],
                one["phase"],
                one["leading"],
                one["bundles"],
                _lag(one),
                f"{duration(one['heard_ago_ms'])} ago",
                *([one["remarks"]] if marked else []),
            )
            for one in rows[:at_most]
        ],
        empty="no broker is heard",
    )
    yield from _more(len(rows), at_most)


def _trouble(one: dict[str, Any]) -> tuple[bool, bool, bool, str]:
    return one["state"] == "alive", one["mode"] == "normal", not one["leading"], one["broker"]


def _lag(one: dict[str, Any]) -> str:
    if one["lag_records"] is None:
        return cell(None)
    late = f" ({duration(one['lag_ms'])})" if (one["lag_ms"] or 0) >= _LAG_TOLD_MS else ""
    return f"{one['lag_records']}{late}"


def _more(many: int, at_most: int) -> Iterator[RenderableType]:
    if many > at_most:
        yield Text(f"and {many - at_most} more (`--output json` has all)")
