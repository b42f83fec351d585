"""Tables of a plan: overview, goals, brokers, moves. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from shedders.kafka_rebalance.planning.plan import GoalStatus, amount
from shedders.model.amounts import Grid, count, rate, size

if TYPE_CHECKING:
    from shedders.kafka_rebalance.planning.estimate import Estimate
    from shedders.kafka_rebalance.planning.plan import (
        BrokerChange,
        BrokerFigures,
        GoalOutcome,
        GoalSpread,
        LogDirMove,
        PartitionMove,
        ReassignmentPlan,
    )

BROKERS_SHOWN: Final = 30
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
    "staying_topics": "may stay:",
}
_ASKED_ONE: Final = {"replication_factor": "replication factor", "moves_max": "max moves", "bytes_max": "max bytes"}
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_SHORT: Final = 120


def overview(plan: ReassignmentPlan, estimate: Estimate) -> Grid:
    return Grid("", ("plan", plan.id), tuple(_overview(plan, estimate)))


def _overview(plan: ReassignmentPlan, estimate: Estimate) -> Iterator[tuple[str, str]]:
    yield "cluster", f"{plan.cluster_id or '(no id)'}, {count(len(plan.brokers), 'broker')}"
    yield "request", asked_said(plan.request)
    yield "moves", moves_said(plan.moves)
    if plan.dir_moves:
        yield "log directories", dir_moves_said(plan.dir_moves)
    if plan.copied_bytes:
        into = max(plan.brokers, key=lambda change: (change.bytes_in, -change.id), default=None)
        most = "" if into is None or not into.bytes_in else f"; most to broker {into.id}: {size(into.bytes_in)}"
        yield "copied", f"{size(plan.copied_bytes)}{most}"
    if plan.goals:
        yield "goals", goals_said(plan.goals)
    for goal in plan.goals:
        if goal.worsened_by and goal.before is not None and goal.after is not None:
            yield "worse", worse_said(goal, goal.before, goal.after)
    if not plan.empty:
        most, *rest = estimate.sentences()
        yield "duration", f"about {length(estimate.duration_s)}; {most}"
        for sentence in rest:
            yield " ", sentence
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
    dirs = [f"{broker}:{path}" for broker, path in request.get("log_dirs") or ()]
    single = [f"{text} {request[name]}" for name, text in _ASKED_ONE.items() if request.get(name) is not None]
    migrates = request.get("mode") == "rebalance" and request.get("topics") and request.get("brokers")
    return "; ".join(
        [
            str(request.get("mode", "-")),
            *([f"log directories {', '.join(dirs)}"] if dirs else []),
            *named,
            *single,
            *(["all replicas of these topics go there"] if migrates else []),
        ]
    )


def moves_said(moves: Sequence[PartitionMove]) -> str:
    """Counts of moves by kind: `12 partitions: 9 replicas to copy, 3 leader switches`."""
    if not moves:
        return "no moves between brokers"
    counts = Counter[str]()
    for move in moves:
        counts["copy"] += len(move.added)
        counts["drop"] += max(0, len(move.removed) - len(move.added))
        counts["switch"] += move.leader_before != move.leader_after
        counts["order"] += move.leader_before == move.leader_after and not move.added and not move.removed
    parts = [
        f"{count(counts['copy'], 'replica')} to copy" if counts["copy"] else "",
        f"{count(counts['drop'], 'replica')} to remove" if counts["drop"] else "",
        f"{count(counts['switch'], 'new leader')}" if counts["switch"] else "",
        f"{counts['order']} with a new order of replicas only" if counts["order"] else "",
    ]
    return f"{count(len(moves), 'partition')}: {', '.join(part for part in parts if part)}"


def dir_moves_said(moves: Sequence[LogDirMove]) -> str:
    """Counts of moves between log directories: `3 replicas to another directory of the same broker: 40.0 GB`."""
    between = [move for move in moves if move.before is not None]
    placed = len(moves) - len(between)
    parts = [
        f"{count(len(between), 'replica')} to another directory of the same broker: "
        f"{size(sum(move.size_bytes for move in between))}"
        if between
        else "",
        f"of {count(placed, 'arriving replica')} the directory is chosen" if placed else "",
    ]
    return "; ".join(part for part in parts if part)


def dir_moves_grid(moves: Sequence[LogDirMove], *, most: int | None, more: str) -> Grid:
    rows = tuple(
        (
            f"{move.topic}-{move.partition}",
            str(move.broker),
            move.before or "(arrives)",
            move.after,
            size(move.size_bytes),
        )
        for move in moves[:most]
    )
    headers = ("partition", "broker", "from", "to", "size")
    return Grid("Moves between log directories", headers, rows, _left(moves, most, more))


def _left(moves: Sequence[Any], most: int | None, more: str) -> tuple[str, ...]:
    """Note on the moves that a table does not have."""
    left = len(moves[most:]) if most is not None else 0
    return (f"and {left} more{f': {more}' if more else ''}",) if left else ()


def goals_said(goals: Iterable[GoalOutcome]) -> str:
    """Counts of goals by status, with the names of those not met: `4 met; not met: disk`."""
    by_status: dict[GoalStatus, list[str]] = {}
    for goal in goals:
        by_status.setdefault(goal.status, []).append(goal.name)
    met = by_status.pop(GoalStatus.MET, [])
    rest = [f"{_STATUS[status]}: {', '.join(names)}" for status, names in by_status.items()]
    return "; ".join([f"{len(met)} met", *rest])


def worse_said(goal: GoalOutcome, before: GoalSpread, after: GoalSpread) -> str:
    """What got worse, and for which goals: `bytes-out: highest 2.1 MB/s -> 3.0 MB/s (2.17 -> 3.09 of the mean), for disk`."""
    causes = ", ".join(goal.worsened_by)
    for word, field, worse in (
        ("highest", "high", after.high > before.high),
        ("lowest", "low", after.low < before.low),
    ):
        if worse and after.furthest > before.furthest:
            earlier, later = getattr(before, field), getattr(after, field)
            means = (
                f" ({earlier / before.mean:.2f} -> {later / after.mean:.2f} of the mean)"
                if before.mean and after.mean
                else ""
            )
            return f"{goal.name}: {word} {_arrow(amount(earlier, goal.unit), amount(later, goal.unit))}{means}, for {causes}"
    beyond = _arrow(amount(before.excess, goal.unit), amount(after.excess, goal.unit))
    return f"{goal.name}: {beyond} beyond its range in all, for {causes}"


def goals_grid(plan: ReassignmentPlan) -> Grid:
    notes = tuple(f"{', '.join(names)}: {why}" for why, names in _witnesses(plan.goals).items())
    headers = ("goal", "kind", "range", "status", "violations", "lowest", "highest", "deviation", "steps", "s")
    return Grid("Goals", headers, tuple(_goal(goal) for goal in plan.goals), notes)


def _witnesses(goals: Iterable[GoalOutcome]) -> Mapping[str, list[str]]:
    names: dict[str, list[str]] = {}
    for goal in goals:
        if goal.witness:
            names.setdefault(goal.witness, []).append(goal.name)
    return names


def _goal(goal: GoalOutcome) -> tuple[str, ...]:
    def both_texts(field: str) -> str:
        return _both(goal, lambda spread: amount(getattr(spread, field), goal.unit))

    return (
        goal.name,
        "hard" if goal.hard else "soft",
        f"{goal.range_share:.4g}" if goal.range_share else "-",
        _STATUS[goal.status],
        _both(goal, lambda spread: str(spread.violations)),
        both_texts("low"),
        both_texts("high"),
        both_texts("std"),
        str(goal.moves),
        f"{goal.took_s:.2f}",
    )


def _both(goal: GoalOutcome, text_of: Callable[[GoalSpread], str]) -> str:
    if goal.before is None or goal.after is None:
        return "-"
    return _arrow(text_of(goal.before), text_of(goal.after))


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def brokers_grid(plan: ReassignmentPlan, *, most: int | None = BROKERS_SHOWN) -> Grid:
    """Table of the brokers before and after.

    Args:
        most: Most rows, for the brokers with most data in and out; None: all.
    """
    chosen = sorted(
        plan.brokers,
        key=lambda change: (-change.bytes_in - change.bytes_out, -change.replicas_in - change.replicas_out, change.id),
    )
    if most is not None:
        chosen = chosen[:most]
    left = len(plan.brokers) - len(chosen)
    notes = (f"and {left} more with less data in and out",) if left else ()
    rows = tuple(_broker(change) for change in sorted(chosen, key=lambda change: change.id))
    headers = ("broker", "rack", "replicas", "leaders", "disk", "bytes in", "bytes out", "incoming", "outgoing")
    return Grid("Brokers, before and after", headers, rows, notes)


def _broker(change: BrokerChange) -> tuple[str, ...]:
    def both_texts(field: str, text: Callable[[float], str]) -> str:
        return _changed(change.before, change.after, field, text)

    return (
        f"{change.id}" if change.alive else f"{change.id} (down)",
        change.rack or "-",
        both_texts("replicas", str),
        both_texts("leaders", str),
        both_texts("disk_bytes", size),
        both_texts("bytes_in_per_s", rate),
        both_texts("bytes_out_per_s", rate),
        _passes(change.replicas_in, change.bytes_in),
        _passes(change.replicas_out, change.bytes_out),
    )


def _passes(replicas: int, data: int) -> str:
    if not replicas:
        return "-"
    return f"{replicas}: {size(data)}" if data else str(replicas)


def _changed(before: BrokerFigures, after: BrokerFigures, field: str, text: Callable[[float], str]) -> str:
    values = (getattr(before, field), getattr(after, field))
    return _arrow(*("-" if value is None else text(value) for value in values))


def moves_grid(moves: Sequence[PartitionMove], *, most: int | None = None, more: str = "") -> Grid:
    """Table of moves, with sizes and goals.

    Args:
        most: Most rows; None: all.
        more: Advice for seeing the others, for people.
    """
    headers = ("partition", "replicas", "moves", "leader", "size", "copied", "for")
    return Grid("Moves", headers, tuple(_move(move) for move in moves[:most]), _left(moves, most, more))


def _move(move: PartitionMove) -> tuple[str, ...]:
    def listed(replicas: Sequence[int]) -> str:
        return ",".join(map(str, replicas))

    return (
        f"{move.topic}-{move.partition}",
        f"{listed(move.before)} -> {listed(move.after)}",
        steps_said(move),
        _arrow("none" if move.leader_before is None else str(move.leader_before), str(move.leader_after)),
        "-" if move.size_bytes is None else size(move.size_bytes),
        "-" if move.size_bytes is None and move.added else size(move.copied_bytes),
        ", ".join(move.goals) or "-",
    )


def steps_said(move: PartitionMove) -> str:
    """Steps of a move: `1 -> 4`, `+4` for one more replica, `-1` for one less."""
    pairs = [f"{old} -> {new}" for old, new in zip(move.removed, move.added, strict=False)]
    paired = len(pairs)
    more = [f"+{new}" for new in move.added[paired:]] + [f"-{old}" for old in move.removed[paired:]]
    return ", ".join([*pairs, *more]) or ("order" if move.leader_before == move.leader_after else "leader")


def length(duration_s: float) -> str:
    if duration_s < _SHORT:
        return f"{duration_s:.1f} s" if duration_s < _MINUTE_S / 6 else f"{duration_s:.0f} s"
    minutes = duration_s / _MINUTE_S
    return f"{minutes:.0f} min" if minutes < _SHORT else f"{duration_s / _HOUR_S:.1f} h"
