"""`statechannel partitions plan`: planner of a rebalance; nothing is changed."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shedders.cli.results import say_written
from shedders.kafka_rebalance.cli.arguments import need_extra, partitions_settings
from shedders.kafka_rebalance.cli.outcome import (
    OutputFiles,
    ReassignmentOut,
    Replace,
    RollbackOut,
    document,
    print_next,
    print_plan,
    refuse_existing,
    say_infeasible,
)
from shedders.kafka_rebalance.cli.request import PlanOptions, request_of
from shedders.kafka_rebalance.cli.source import seen
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, bar, print_json, say
from statechannel.cli.kit.times import parse_length_ms
from statechannel.errors import ExitCode
from statechannel.files import check_writable

if TYPE_CHECKING:
    from shedders.kafka_rebalance.cli.source import PlanSource
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
    from shedders.kafka_rebalance.planning.request import PlanRequest

LayoutFile = Annotated[
    Path | None,
    typer.Option(
        "--layout", metavar="FILE", help="Plan for a file of `partitions layout` instead of the live cluster."
    ),
]
Window = Annotated[
    str | None, typer.Option("--window", metavar="LENGTH", help="Average the samples of this time before now, e.g. 6h.")
]
LoadsFile = Annotated[
    Path | None,
    typer.Option("--loads", metavar="FILE|TABLE", help="Loads from the Spark job partition-loads, instead of samples."),
]


@with_connection
def plan(
    connect: Connect,
    add_brokers: Annotated[
        str | None,
        typer.Option("--add-brokers", metavar="IDS", help="Move replicas to these new brokers only, e.g. 4,5."),
    ] = None,
    remove_brokers: Annotated[
        str | None,
        typer.Option("--remove-brokers", metavar="IDS", help="Move all replicas off these brokers, and no others."),
    ] = None,
    demote: Annotated[
        str | None, typer.Option("--demote", metavar="IDS", help="Move leaderships off these brokers; copies no data.")
    ] = None,
    fix_offline: Annotated[bool, typer.Option("--fix-offline", help="Move offline replicas only.")] = False,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            metavar="N",
            min=1,
            max=32,
            help="New replication factor of the --topics: add or remove replicas.",
        ),
    ] = None,
    goals: Annotated[
        list[str] | None,
        typer.Option(
            "--goals",
            metavar="NAME[=RANGE],...",
            help="Goals in order, e.g. rack-awareness,disk=10%. Default: all; see `partitions goals list`.",
        ),
    ] = None,
    brokers: Annotated[
        str | None, typer.Option("--brokers", metavar="IDS", help="Place replicas on these brokers only, e.g. 1-6,9.")
    ] = None,
    offline_brokers: Annotated[
        str | None,
        typer.Option(
            "--offline-brokers", metavar="IDS", help="Brokers going offline: move all replicas off them, in any mode."
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude", metavar="PATTERN", help="Topics that must not move (RE2, whole name); may be repeated."
        ),
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topics", metavar="PATTERN", help="Topics that may move (RE2, whole name); may be repeated."),
    ] = None,
    window: Window = None,
    time_budget: Annotated[
        str | None,
        typer.Option(
            "--time-budget",
            metavar="LENGTH",
            help="Time limit of the search, e.g. 30s; then the best plan so far is used.",
        ),
    ] = None,
    max_moves: Annotated[
        int | None, typer.Option("--max-moves", metavar="N", min=1, max=10**9, help="Most replicas to move.")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", metavar="AMOUNT", help="Most data to copy, e.g. 500GB.")
    ] = None,
    replicas_max: Annotated[
        int | None, typer.Option("--replicas-max", metavar="N", min=1, max=10**9, help="Most replicas on a broker.")
    ] = None,
    capacity: Annotated[
        list[str] | None,
        typer.Option(
            "--capacity",
            metavar="NAME=AMOUNT",
            help="Capacity of each broker: disk, bytes-in, bytes-out or cpu; may be repeated.",
        ),
    ] = None,
    capacities: Annotated[
        Path | None, typer.Option("--capacities", metavar="FILE", help="TOML file with capacities per broker.")
    ] = None,
    layout: LayoutFile = None,
    loads: LoadsFile = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Output file. Default: ./partition-plan-ID.json.")
    ] = None,
    reassignment: ReassignmentOut = None,
    rollback: RollbackOut = None,
    replace_: Replace = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Plan a rebalance of a Kafka cluster and write the plan to a file; nothing is moved."""
    files = OutputFiles(reassignment=reassignment, rollback=rollback, replace=replace_)
    files.check(out, read=(layout, loads, capacities))
    if out is None:
        check_writable(Path("partition-plan.json"))  # its name is known only after the search
    if window is not None and (layout or loads):
        raise CommandError(
            f"--window applies to samples, and {'--loads' if loads else '--layout'} replaces samples",
            hint="Omit --window.",
            code=ExitCode.USAGE,
        )
    settings = partitions_settings(connect.settings())
    request = request_of(
        PlanOptions(
            add_brokers=add_brokers,
            remove_brokers=remove_brokers,
            demote=demote,
            fix_offline=fix_offline,
            replication_factor=replication_factor,
            goals=goals or (),
            brokers=brokers,
            offline_brokers=offline_brokers,
            exclude=exclude or (),
            topics=topics or (),
            time_budget=time_budget,
            moves_max=max_moves,
            bytes_max=max_bytes,
            replicas_max=replicas_max,
            capacities=capacities,
            capacity=capacity or (),
        ),
        settings,
    )
    window_s = None if window is None else parse_length_ms(window, "--window", beyond="use a shorter one.") / 1_000
    need_extra("numpy")
    source = seen(connect, settings, file=layout, window_s=window_s, loads=loads)
    result = _planned(source, request)
    path = out or Path(f"partition-plan-{result.id}.json")
    _write(path, result, files, own_name=out is None)
    if output is Output.JSON:
        print_json({"file": str(path), **document(result, settings)})
    else:
        print_plan(result, settings)
        _print_next(path, result, live=source.live)
    if result.infeasible:
        say_infeasible(result)
        raise typer.Exit(ExitCode.REJECTED)


def _planned(source: PlanSource, request: PlanRequest) -> ReassignmentPlan:
    from shedders.kafka_rebalance.planning.planner import plan_partitions

    with bar() as shown:
        result = plan_partitions(
            source.layout,
            source.loads,
            request,
            now_s=time.monotonic,
            progress=lambda goal, done, total: shown.show("goal", f"planning: {goal}", done, total),
        )
    return replace(result, made_at_ms=time.time_ns() // 1_000_000)


def _write(path: Path, result: ReassignmentPlan, files: OutputFiles, *, own_name: bool) -> None:
    from shedders.kafka_rebalance.planning.plan_file import write_plan

    if own_name and path.exists():
        say(f"note: {path} exists already: the same moves were planned before; it is overwritten")
    elif not own_name:
        refuse_existing(path, replace=files.replace)
    write_plan(path, result)
    say_written([path, *files.write(result)])


def _print_next(path: Path, result: ReassignmentPlan, *, live: bool) -> None:
    if not result.moves:
        return
    name = shlex.quote(str(path))
    accept = " --accept-unmet" if result.infeasible else ""
    commands = [f"statechannel partitions show {name} --details"]
    if live:
        commands.append(f"statechannel partitions apply {name}{accept} --execute")
    print_next(commands)
