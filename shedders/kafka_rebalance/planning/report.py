"""Tables of a plan: overview, goals, brokers, moves. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from shedders.kafka_rebalance.planning.plan import GoalStatus
from shedders.kafka_rebalance.planning.units import amount
from shedders.model.amounts import are, count, rate, size
from shedders.model.grid import Grid

if TYPE_CHECKING:
    from shedders.kafka_rebalance.planning.estimate import Estimate
    from shedders.kafka_rebalance.planning.plan import (
        BrokerChange,
        BrokerFigures,
        GoalOutcome,
        GoalSpread,
        PartitionMove,
        ReassignmentPlan,
    )

BROKERS_SHOWN: Final = 30
MOVES_SHOWN: Final = 50
_STATUS: Final = {
    GoalStatus.MET: "met",
    GoalStatus.IMPROVED: "improved, not met",
    GoalStatus.UNMET: "not met",
    GoalStatus.INFEASIBLE: "infeasible",
    GoalStatus.NO_DATA: "no data",
    GoalStatus.NOT_REACHED: "not reached",
}
_ASKED: Final = {
    "subjects": "brokers",
    "brokers": "among brokers",
    "offline_brokers": "going offline:",
    "topics": "topics",
    "excluded_topics": "without topics",
}
_ASKED_ONE: Final = {
    "replication_factor": "replication factor",
    "moves_max": "max moves",
    "bytes_max": "max bytes",
}
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_SHORT: Final = 120


def overview(plan: ReassignmentPlan, told: Estimate) -> Grid:
    """Overview of a plan."""
    return Grid("", ("plan", plan.id), tuple(_overview(plan, told)))


def _overview(plan: ReassignmentPlan, told: Estimate) -> Iterator[tuple[str, str]]:
    yield "cluster", f"{plan.cluster_id or '(no id)'}, {count(len(plan.brokers), 'broker')}"
    yield "request", asked_said(plan.request)
    yield "moves", moves_said(plan.moves)
    if plan.copied_bytes:
        into = max(plan.brokers, key=lambda one: (one.bytes_in, -one.id), default=None)
        most = "" if into is None or not into.bytes_in else f"; most to broker {into.id}: {size(into.bytes_in)}"
        yield "copied", f"{size(plan.copied_bytes)}{most}"
    if plan.goals:
        yield "goals", goals_said(plan.goals)
    if plan.moves:
        most, *rest = told.sentences()
        yield "duration", f"about {length(told.duration_s)}; {most}"
        for one in rest:
            yield " ", one
    if plan.made_at_ms:
        yield (
            "made",
            f"{datetime.fromtimestamp(plan.made_at_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S}Z, in {length(plan.took_s)}",
        )
    if not plan.complete:
        yield "search", "ended early; this is the best plan found, see the remarks"
    for remark in plan.remarks:
        yield "remark", remark


def asked_said(request: Mapping[str, Any]) -> str:
    """Request without defaults: `remove-brokers; brokers 3`."""
    named = [
        f"{text} {', '.join(map(str, values))}"
        for name, text in _ASKED.items()
        if isinstance(values := request.get(name), list | tuple) and values
    ]
    single = [f"{text} {request[name]}" for name, text in _ASKED_ONE.items() if request.get(name) is not None]
    return "; ".join([str(request.get("mode", "-")), *named, *single])


def moves_said(moves: Sequence[PartitionMove]) -> str:
    """Counts of moves by kind: `12 partitions: 9 replicas to copy, 3 leader switches`."""
    if not moves:
        return "no moves"
    found = Counter[str]()
    for one in moves:
        found["copy"] += len(one.added)
        found["drop"] += max(0, len(one.removed) - len(one.added))
        found["switch"] += one.leader_before != one.leader_after
        found["order"] += one.leader_before == one.leader_after and not one.added and not one.removed
    parts = [
        f"{count(found['copy'], 'replica')} to copy" if found["copy"] else "",
        f"{count(found['drop'], 'replica')} to remove" if found["drop"] else "",
        f"{count(found['switch'], 'new leader')}" if found["switch"] else "",
        f"{found['order']} with a new order of replicas only" if found["order"] else "",
    ]
    return f"{count(len(moves), 'partition')}: {', '.join(one for one in parts if one)}"


def goals_said(goals: Iterable[GoalOutcome]) -> str:
    """Counts of goals by status, with the names of those not met: `4 met; not met: disk`."""
    by_status: dict[GoalStatus, list[str]] = {}
    for one in goals:
        by_status.setdefault(one.status, []).append(one.name)
    met = by_status.pop(GoalStatus.MET, [])
    rest = [f"{_STATUS[status]}: {', '.join(names)}" for status, names in by_status.items()]
    return "; ".join([f"{len(met)} met", *rest])


def goals_grid(plan: ReassignmentPlan) -> Grid:
    """Table of the goals before and after, in order, with the reasons of those not met."""
    notes = tuple(f"{', '.join(names)}: {why}" for why, names in _witnesses(plan.goals).items())
    headers = ("goal", "kind", "range", "status", "violations", "lowest", "highest", "deviation", "steps", "s")
    return Grid("Goals", headers, tuple(_goal(one) for one in plan.goals), notes)


def _witnesses(goals: Iterable[GoalOutcome]) -> Mapping[str, list[str]]:
    """Names of unmet goals by witness, as many share one."""
    found: dict[str, list[str]] = {}
    for one in goals:
        if one.witness:
            found.setdefault(one.witness, []).append(one.name)
    return found


def _goal(one: GoalOutcome) -> tuple[str, ...]:
    def told(field: str) -> str:
        return _both(one, lambda spread: amount(getattr(spread, field), one.unit))

    return (
        one.name,
        "hard" if one.hard else "soft",
        f"{one.range_share:.4g}" if one.range_share else "-",
        _STATUS[one.status],
        _both(one, lambda spread: str(spread.violations)),
        told("low"),
        told("high"),
        told("std"),
        str(one.moves),
        f"{one.took_s:.2f}",
    )


def _both(one: GoalOutcome, told: Callable[[GoalSpread], str]) -> str:
    if one.before is None or one.after is None:
        return "-"
    before, after = told(one.before), told(one.after)
    return before if before == after else f"{before} -> {after}"


def brokers_grid(plan: ReassignmentPlan, *, most: int | None = BROKERS_SHOWN) -> Grid:
    """Table of the brokers before and after.

    Args:
        plan: The plan.
        most: Most rows, for the brokers with most data in and out; None: all.
    """
    chosen = sorted(
        plan.brokers, key=lambda one: (-one.bytes_in - one.bytes_out, -one.replicas_in - one.replicas_out, one.id)
    )
    if most is not None:
        chosen = chosen[:most]
    left = len(plan.brokers) - len(chosen)
    notes = (f"and {left} more with less data in and out",) if left else ()
    rows = tuple(_broker(one) for one in sorted(chosen, key=lambda one: one.id))
    headers = ("broker", "rack", "replicas", "leaders", "disk", "bytes in", "bytes out", "incoming", "outgoing")
    return Grid("Brokers, before and after", headers, rows, notes)


def _broker(one: BrokerChange) -> tuple[str, ...]:
    def told(field: str, text: Callable[[float], str]) -> str:
        return _changed(one.before, one.after, field, text)

    return (
        f"{one.id}" if one.alive else f"{one.id} (down)",
        one.rack or "-",
        told("replicas", str),
        told("leaders", str),
        told("disk_bytes", size),
        told("bytes_in_per_s", rate),
        told("bytes_out_per_s", rate),
        _passes(one.replicas_in, one.bytes_in),
        _passes(one.replicas_out, one.bytes_out),
    )


def _passes(replicas: int, data: int) -> str:
    if not replicas:
        return "-"
    return f"{replicas}: {size(data)}" if data else str(replicas)


def _changed(before: BrokerFigures, after: BrokerFigures, field: str, text: Callable[[float], str]) -> str:
    told = ["-" if value is None else text(value) for value in (getattr(before, field), getattr(after, field))]
    return told[0] if told[0] == told[1] else " -> ".join(told)


def moves_grid(moves: Iterable[PartitionMove], *, most: int | None = MOVES_SHOWN, more: str = "") -> Grid:
    """Table of moves, with sizes and goals.

    Args:
        moves: Moves to list.
        most: Most rows; None: all.
        more: Advice for seeing the others, for people.
    """
    found = list(moves)
    shown = found if most is None else found[:most]
    left = len(found) - len(shown)
    headers = ("partition", "replicas", "moves", "leader", "size", "copied", "for")
    notes = (f"and {left} more{f': {more}' if more else ''}",) if left else ()
    return Grid("Moves", headers, tuple(_move(one) for one in shown), notes)


def _move(one: PartitionMove) -> tuple[str, ...]:
    def listed(replicas: Sequence[int]) -> str:
        return ",".join(map(str, replicas))

    return (
        f"{one.topic}-{one.partition}",
        f"{listed(one.before)} -> {listed(one.after)}",
        steps_said(one),
        str(one.leader_after)
        if one.leader_before == one.leader_after
        else f"{_who(one.leader_before)} -> {one.leader_after}",
        "-" if one.size_bytes is None else size(one.size_bytes),
        "-" if one.size_bytes is None and one.added else size(one.copied_bytes),
        ", ".join(one.goals) or "-",
    )


def steps_said(one: PartitionMove) -> str:
    """Steps of a move: `1 -> 4`, `+4` for one more replica, `-1` for one less."""
    pairs = [f"{old} -> {new}" for old, new in zip(one.removed, one.added, strict=False)]
    paired = len(pairs)
    more = [f"+{new}" for new in one.added[paired:]] + [f"-{old}" for old in one.removed[paired:]]
    return ", ".join([*pairs, *more]) or ("order" if one.leader_before == one.leader_after else "leader")


def _who(broker: int | None) -> str:
    return "none" if broker is None else str(broker)


def length(duration_s: float) -> str:
    """A duration, for people."""
    if duration_s < _SHORT:
        return f"{duration_s:.1f} s" if duration_s < _MINUTE_S / 6 else f"{duration_s:.0f} s"
    minutes = duration_s / _MINUTE_S
    return f"{minutes:.0f} min" if minutes < _SHORT else f"{duration_s / _HOUR_S:.1f} h"


def infeasible_said(plan: ReassignmentPlan) -> str:
    """Sentence on hard goals that are not met: names and witnesses."""
    names = ", ".join(one.name for one in plan.infeasible)
    many = len(plan.infeasible)
    return f"{count(many, 'hard goal')} {are(many)} not met: {names}"
