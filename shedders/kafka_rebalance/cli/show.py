"""`statechannel partitions show`: tables of a plan, or of a reassignment file of Kafka's tool."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shedders.cli.results import say_written
from shedders.kafka_rebalance.cli.arguments import partitions_settings
from shedders.kafka_rebalance.cli.outcome import (
    OutputFiles,
    ReassignmentOut,
    Replace,
    RollbackOut,
    document,
    print_plan,
    say_infeasible,
)
from shedders.kafka_rebalance.cli.plan import LayoutFile
from shedders.kafka_rebalance.cli.source import seen
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, print_json
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shedders.kafka_rebalance.planning.plan import PartitionMove, ReassignmentPlan
    from shedders.kafka_rebalance.settings import PartitionsSettings


@with_connection
def show(
    connect: Connect,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Plan file, or JSON of kafka-reassign-partitions.")],
    details: Annotated[bool, typer.Option("--details", help="List the moves of replicas.")] = False,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="PATTERN", help="List only moves of these topics (RE2, whole name); may be repeated."
        ),
    ] = None,
    broker: Annotated[
        list[int] | None,
        typer.Option(
            "--broker",
            metavar="ID",
            min=0,
            max=2**31 - 1,
            help="List only moves from or to this broker; may be repeated.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, max=10**9, help="Most moves to list; 0: all.")
    ] = 50,
    all_brokers: Annotated[bool, typer.Option("--all-brokers", help="List all brokers, even hundreds.")] = False,
    layout: LayoutFile = None,
    reassignment: ReassignmentOut = None,
    rollback: RollbackOut = None,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help="Draw the load of each broker before and after: .png or .svg."),
    ] = None,
    replace_: Replace = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Show a plan: moves, amounts, and goals and brokers before and after."""
    files = OutputFiles(reassignment=reassignment, rollback=rollback, picture=picture, replace=replace_)
    files.check(read=(file, layout))
    settings = partitions_settings(connect.settings())
    plan = _plan(connect, settings, file, layout)
    chosen = None
    if details or topic or broker:
        chosen = _chosen(plan.moves, topic or (), broker or ())
    if output is Output.JSON:
        print_json({"file": str(file), **document(plan, settings, details=_first(chosen, limit))})
    else:
        print_plan(plan, settings, details=chosen, most=limit or None, all_brokers=all_brokers)
    say_written(files.write(plan))
    if output is Output.TABLE:
        say_infeasible(plan)


def _first(moves: Sequence[PartitionMove] | None, limit: int) -> Sequence[PartitionMove] | None:
    return moves if moves is None or not limit else moves[:limit]


def _plan(connect: Connect, settings: PartitionsSettings, file: Path, layout: Path | None) -> ReassignmentPlan:
    from loaddata.samples.strict_json import read_raw
    from shedders.kafka_rebalance.errors import PlanUnusableError
    from shedders.kafka_rebalance.planning.plan_file import parse_plan
    from shedders.kafka_rebalance.planning.reassignment import looks_like_reassignment

    raw = read_raw(file, lambda message, hint: PlanUnusableError(message, hint=hint))
    if looks_like_reassignment(raw):
        return _foreign_plan(connect, settings, raw, file, layout)
    if layout is not None:
        raise CommandError(
            "--layout applies to files of kafka-reassign-partitions; a plan includes its layout",
            hint="Omit --layout.",
            code=ExitCode.USAGE,
        )
    return parse_plan(raw, str(file))


def _foreign_plan(
    connect: Connect, settings: PartitionsSettings, raw: bytes, file: Path, layout: Path | None
) -> ReassignmentPlan:
    """A reassignment of another tool, as a plan without goals."""
    from shedders.kafka_rebalance.planning.broker_figures import broker_changes
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
    from shedders.kafka_rebalance.planning.reassignment import moves_of, parse_reassignment, to_json

    wanted = parse_reassignment(raw, str(file))
    source = seen(connect, settings, file=layout)
    moves = moves_of(wanted, source.layout, source.loads, where=str(file))
    same = len(wanted) - len(moves)
    fingerprint = source.layout.fingerprint()
    return ReassignmentPlan(
        id=hashlib.sha256(fingerprint.encode() + to_json(moves)).hexdigest()[:16],
        cluster_id=source.layout.cluster_id,
        layout=fingerprint,
        request={"mode": "given by Kafka's own tool"},
        brokers=broker_changes(source.layout, source.loads, moves),
        moves=moves,
        remarks=(f"{same} of the {len(wanted)} partitions of the file stay as they are",) if same else (),
    )


def _chosen(moves: Sequence[PartitionMove], topics: Sequence[str], brokers: Sequence[int]) -> Sequence[PartitionMove]:
    from shedders.model.patterns import compiled

    patterns = compiled(topics)
    if isinstance(patterns, str):
        raise CommandError(f"--topic: {patterns}", hint="Use a regular expression (RE2).", code=ExitCode.USAGE)
    wanted = set(brokers)
    return [
        move
        for move in moves
        if (not topics or patterns.matches(move.topic))
        and (not wanted or not wanted.isdisjoint({*move.before, *move.after}))
    ]
