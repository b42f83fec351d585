"""`statechannel partitions plan|show|layout`: plan a rebalance, show a plan, save a cluster's layout; nothing is changed."""

from __future__ import annotations

import hashlib
import shlex
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shedders.cli.results import say_written
from shedders.kafka_rebalance.cli.arguments import (
    Exclude,
    PlanOptions,
    need_extra,
    parse_percent,
    partitions_settings,
    request_of,
)
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
from shedders.model.amounts import count
from statechannel import clocks
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import cell
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, print_json, say
from statechannel.cli.kit.progress import bar, progress
from statechannel.cli.kit.times import parse_length_ms
from statechannel.errors import ExitCode
from statechannel.files import check_writable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loaddata.samples.partitions import ClusterLayout, PartitionLoads
    from shedders.kafka_rebalance.planning.plan import LogDirMove, PartitionMove, ReassignmentPlan
    from shedders.kafka_rebalance.planning.request import PlanRequest
    from shedders.kafka_rebalance.settings import PartitionsSettings


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
    remove_log_dirs: Annotated[
        list[str] | None,
        typer.Option(
            "--remove-log-dirs",
            metavar="ID:PATH",
            help="Empty this log directory of a broker, into its other ones; may be repeated.",
        ),
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
    exclude: Exclude = None,
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
    worsen_at_most: Annotated[
        str | None,
        typer.Option(
            "--worsen-at-most",
            metavar="PERCENT",
            help="How far goals may bring brokers beyond the ranges of later goals, in percent of the mean; 0: not at all.",
        ),
    ] = None,
    min_gain: Annotated[
        str | None,
        typer.Option(
            "--min-gain",
            metavar="PERCENT",
            help="Exit with 5 unless the plan removes this share of the excess of one of its goals, e.g. 10%; for timers.",
        ),
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
    least = None if min_gain is None else parse_percent(min_gain, "--min-gain")
    settings = partitions_settings(connect.settings())
    request = request_of(
        PlanOptions(
            add_brokers=add_brokers,
            remove_brokers=remove_brokers,
            remove_log_dirs=remove_log_dirs or (),
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
            worsen_at_most=worsen_at_most,
        ),
        settings,
    )
    need_extra("numpy")
    source = seen(connect, settings, file=layout, window_s=_window_s(window), loads=loads)
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
    if least is not None and (result.empty or result.gain_share < least):
        say(f"not worth it: the plan removes {result.gain_share:.1%} of a goal's excess; --min-gain is {least:.1%}")
        raise typer.Exit(ExitCode.NOT_FOUND)


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
    return replace(result, made_at_ms=clocks.now_ms())


def _write(path: Path, result: ReassignmentPlan, files: OutputFiles, *, own_name: bool) -> None:
    from shedders.kafka_rebalance.planning.plan_files import write_plan

    if own_name and path.exists():
        say(f"note: {path} exists already: the same moves were planned before; it is overwritten")
    elif not own_name:
        refuse_existing(path, replace=files.replace)
    write_plan(path, result)
    say_written([path, *files.write(result)])


def _print_next(path: Path, result: ReassignmentPlan, *, live: bool) -> None:
    if result.empty:
        return
    name = shlex.quote(str(path))
    accept = " --accept-unmet" if result.infeasible else ""
    commands = [f"statechannel partitions show {name} --details"]
    if live:
        commands.append(f"statechannel partitions apply {name}{accept} --execute")
    print_next(commands)


def _window_s(window: str | None) -> float | None:
    return None if window is None else parse_length_ms(window, "--window", beyond="use a shorter one.") / 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSource:
    """Inputs of a plan.

    Attributes:
        layout: Layout of the cluster.
        loads: Known loads of its partitions.
        live: Whether they are from the live cluster.
    """

    layout: ClusterLayout
    loads: PartitionLoads
    live: bool


def seen(
    connect: Connect,
    settings: PartitionsSettings,
    *,
    file: Path | None,
    window_s: float | None = None,
    loads: Path | None = None,
) -> PlanSource:
    """Read layout and loads, from the file if one is named.

    Args:
        connect: Finds the cluster.
        settings: Of the planner.
        file: `kafka-layout/1`.
        window_s: Time over which samples are averaged; None: from the settings.
        loads: `kafka-loads/1`, or the table of the Spark job, in place of samples, or of the loads in the file.

    Raises:
        StateChannelError: The file is unusable; Kafka is out of reach, denies access or is too old; the extra is missing.
    """
    result = _from_cluster(connect, settings, window_s, loads) if file is None else _from_file(file, settings, loads)
    for remark in result.layout.remarks:
        say(cell(f"note: {remark}"))
    if result.loads.source:
        say(cell(f"loads: {result.loads.source}"))
    return result


def _from_file(file: Path, settings: PartitionsSettings, loads: Path | None) -> PlanSource:
    from loaddata.samples.cluster_files import read_layout_file, read_loads_file

    layout, known = read_layout_file(file)
    if loads is not None:
        known = read_loads_file(loads, cluster=layout.cluster_id, completeness_min=settings.sample.completeness_min)
    return PlanSource(layout=layout, loads=known, live=False)


def _from_cluster(
    connect: Connect, settings: PartitionsSettings, window_s: float | None, file: Path | None
) -> PlanSource:
    need_extra("kafka")
    from loaddata.samples.admin import open_admin
    from loaddata.samples.kafka_cluster import loads_now, read_layout
    from loaddata.samples.sample_topic import SampleTopic

    connection = connect()
    sample = settings.sample
    window_s = window_s or sample.window_s
    topic = SampleTopic(connection.client, sample.topic, window_s=window_s, timeout_s=connection.timeout_s)
    timeout_s = max(connection.timeout_s, sample.timeout_s)
    with progress("reading the cluster", 3) as update, open_admin(connection.client, timeout_s=timeout_s) as admin:
        update(1)
        now_ms = clocks.now_ms()
        layout = read_layout(admin, now_ms=now_ms, timeout_s=timeout_s)
        update(2)
        loads = loads_now(
            admin,
            layout,
            topic,
            now_ms=now_ms,
            window_s=window_s,
            interval_s=sample.interval_s,
            completeness_min=sample.completeness_min,
            timeout_s=timeout_s,
            file=file,
        )
    return PlanSource(layout=layout, loads=loads, live=True)


@with_connection
def layout(
    connect: Connect,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Output file.")],
    window: Window = None,
    loads: LoadsFile = None,
    replace_: Replace = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Save the layout of a cluster and the loads of its partitions, for `plan --layout`."""
    refuse_existing(out, replace=replace_)
    check_writable(out)
    if window is not None and loads is not None:
        raise CommandError(
            "--window applies to samples, and --loads replaces samples", hint="Omit --window.", code=ExitCode.USAGE
        )
    settings = partitions_settings(connect.settings())
    source = seen(connect, settings, file=None, window_s=_window_s(window), loads=loads)
    from loaddata.samples.cluster_files import write_layout

    write_layout(out, source.layout, source.loads)
    partitions = sum(len(topic.partitions) for topic in source.layout.topics.values())
    if output is Output.JSON:
        print_json(
            {
                "file": str(out),
                "cluster_id": source.layout.cluster_id,
                "brokers": len(source.layout.brokers),
                "topics": len(source.layout.topics),
                "partitions": partitions,
                "with_load": len(source.loads.of),
                "source": source.loads.source,
            }
        )
        return
    known = f"{len(source.loads.of)} of them with a load from {source.loads.source or 'nowhere'}"
    say(f"{count(len(source.layout.brokers), 'broker')}, {count(partitions, 'partition')}, {known}: written to {out}")


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
    chosen: Sequence[PartitionMove] | None = None
    dirs: Sequence[LogDirMove] = ()
    if details or topic or broker:
        fits = _filter(topic or (), broker or ())
        chosen = [move for move in plan.moves if fits(move.topic, {*move.before, *move.after})]
        dirs = [move for move in plan.dir_moves if fits(move.topic, {move.broker})]
    most = limit or None
    if output is Output.JSON:
        first = None if chosen is None else chosen[:most]
        print_json({"file": str(file), **document(plan, settings, details=first, dir_details=dirs[:most])})
    else:
        print_plan(plan, settings, details=chosen, dir_details=dirs, most=most, all_brokers=all_brokers)
    say_written(files.write(plan))
    if output is not Output.JSON:
        say_infeasible(plan)


def _plan(connect: Connect, settings: PartitionsSettings, file: Path, layout: Path | None) -> ReassignmentPlan:
    from loaddata.samples.strict_json import read_raw
    from shedders.kafka_rebalance.errors import PlanUnusableError
    from shedders.kafka_rebalance.planning.plan_files import looks_like_reassignment, parse_plan

    raw = read_raw(file, PlanUnusableError)
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
    need_extra("numpy")
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
    from shedders.kafka_rebalance.planning.plan_files import moves_of, parse_reassignment, to_json
    from shedders.kafka_rebalance.planning.planner import broker_changes

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


def _filter(topics: Sequence[str], brokers: Sequence[int]) -> Callable[[str, set[int]], bool]:
    """Whether a move of this topic and these brokers is to be listed."""
    from shedders.model.patterns import compiled

    patterns = compiled(topics)
    if isinstance(patterns, str):
        raise CommandError(f"--topic: {patterns}", hint="Use a regular expression (RE2).", code=ExitCode.USAGE)
    wanted = set(brokers)

    def fits(topic: str, ids: set[int]) -> bool:
        return (not topics or patterns.matches(topic)) and (not wanted or not wanted.isdisjoint(ids))

    return fits
