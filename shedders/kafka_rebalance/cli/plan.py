"""`statechannel partitions plan|show|layout`: plan a rebalance, show a plan, save a cluster's layout; nothing is changed."""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shedders.cli.options import say_written, show_grid, write_file
from shedders.kafka_rebalance.cli.arguments import (
    PlanOptions,
    Window,
    expanded,
    need_extra,
    parse_percent,
    partitions_settings,
    request_of,
    usage_error,
)
from shedders.kafka_rebalance.planning.estimate import estimate
from shedders.kafka_rebalance.planning.report import brokers_grid, dir_moves_grid, goals_grid, moves_grid, overview
from shedders.model.amounts import count
from statechannel import clocks
from statechannel.cli.kit.fitted_tables import cell
from statechannel.cli.kit.listing import parse_length_ms
from statechannel.cli.kit.options import Connect, OutputAs, argument, option, with_connection
from statechannel.cli.kit.output import Output, print_json, say, stdout
from statechannel.cli.kit.progress import bar, progress
from statechannel.errors import ExitCode
from statechannel.files import check_writable

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaddata.samples.partitions import ClusterLayout, PartitionLoads
    from shedders.kafka_rebalance.planning.plan import LogDirMove, PartitionMove, ReassignmentPlan
    from shedders.kafka_rebalance.planning.request import PlanRequest
    from shedders.kafka_rebalance.settings import PartitionsSettings


_OTHERS: Final = "use --limit, --topic or --broker to see others"

ReassignmentOut = Annotated[
    Path | None, option("--reassignment FILE", "Also write the plan as JSON for kafka-reassign-partitions.")
]
RollbackOut = Annotated[
    Path | None, option("--rollback FILE", "Also write the JSON that reverts the plan, for kafka-reassign-partitions.")
]
Replace = Annotated[bool, option("--replace", "Overwrite existing files.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFiles:
    """Files to write in addition to the plan; None: not requested."""

    reassignment: Path | None = None
    rollback: Path | None = None
    replace: bool = False

    def check(self, *more: Path | None, read: Sequence[Path | None] = ()) -> None:
        """Check that all files can be written, before any work is done."""
        named = [path for path in (self.reassignment, self.rollback, *more) if path is not None]
        if len({path.resolve() for path in named}) < len(named):
            raise usage_error("two results have the same file", "Name one file for each.")
        sources = {path.resolve() for path in read if path is not None}
        for path in named:
            if path.resolve() in sources:
                raise usage_error(f"{path} is an input of this command", "Name another file.")
        for target in named:
            refuse_existing(target, replace=self.replace)
            check_writable(target)

    def write(self, plan: ReassignmentPlan) -> list[Path]:
        """Write the files and return their paths, for people."""
        from shedders.kafka_rebalance.planning.plan_files import to_json

        if self.reassignment is not None:
            write_file(self.reassignment, to_json(plan.moves, "after", plan.dir_moves))
        if self.rollback is not None:
            write_file(self.rollback, to_json(plan.moves, "before", plan.dir_moves))
        return [path for path in (self.reassignment, self.rollback) if path is not None]


def refuse_existing(path: Path, *, replace: bool) -> None:
    try:
        there = path.exists()
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise usage_error(f"{path}: {error}", "Check the path.") from error
    if there and not replace:
        raise usage_error(f"{path} exists already", "Name another file, or use --replace.")


def print_plan(
    plan: ReassignmentPlan,
    settings: PartitionsSettings,
    *,
    details: Sequence[PartitionMove] | None = None,
    dir_details: Sequence[LogDirMove] = (),
    most: int | None = None,
    all_brokers: bool = False,
) -> None:
    show_grid(overview(plan, estimate(plan.moves, settings, plan.dir_moves)), gap=False)
    if plan.goals:
        show_grid(goals_grid(plan))
    if plan.brokers and plan.moves:
        show_grid(brokers_grid(plan, most=None) if all_brokers else brokers_grid(plan))
    if details is not None:
        show_grid(moves_grid(details, most=most, more=_OTHERS))
        if dir_details:
            show_grid(dir_moves_grid(dir_details, most=most, more=_OTHERS))


def document(
    plan: ReassignmentPlan,
    settings: PartitionsSettings,
    *,
    details: Sequence[PartitionMove] | None = None,
    dir_details: Sequence[LogDirMove] = (),
) -> dict[str, Any]:
    """JSON document of `--output json`: the plan, with its moves only if they are requested."""
    expected = estimate(plan.moves, settings, plan.dir_moves)
    fields: dict[str, Any] = {
        "id": plan.id,
        "cluster_id": plan.cluster_id,
        "made_at_ms": plan.made_at_ms,
        "complete": plan.complete,
        "request": dict(plan.request),
        "partitions": len(plan.moves),
        "replicas_to_copy": sum(len(move.added) for move in plan.moves),
        "copied_bytes": plan.copied_bytes,
        "dir_moves": len(plan.dir_moves),
        "dir_bytes": plan.dir_bytes,
        "new_leaders": sum(move.leader_before != move.leader_after for move in plan.moves),
        "estimate": asdict(expected) | {"assumed": list(expected.sentences())},
        "goals": [asdict(goal) for goal in plan.goals],
        "hard_goals_unmet": [goal.name for goal in plan.infeasible],
        "brokers": [asdict(broker) for broker in plan.brokers],
        "remarks": list(plan.remarks),
    }
    if details is not None:
        fields["moves"] = [
            asdict(move) | {"added": move.added, "removed": move.removed, "copied_bytes": move.copied_bytes}
            for move in details
        ]
        fields["moves_between_dirs"] = [asdict(move) for move in dir_details]
    return fields


def say_infeasible(plan: ReassignmentPlan) -> None:
    """Print the hard goals that are not met, with witnesses."""
    for goal in plan.infeasible:
        say(cell(f"not met: {goal.name}{f': {goal.witness}' if goal.witness else ''}"))


def print_next(commands: Sequence[str]) -> None:
    stdout().print()
    for line in ("Next:", *(f"    {command}" for command in commands)):
        stdout().print(line, markup=False)


LayoutFile = Annotated[
    Path | None, option("--layout FILE", "Plan for a file of `partitions layout` instead of the live cluster.")
]
LoadsFile = Annotated[
    Path | None, option("--loads FILE|TABLE", "Loads from the Spark job partition-loads, instead of samples.")
]


@with_connection
@expanded
def plan(
    connect: Connect,
    asked: PlanOptions,
    min_gain: Annotated[
        str | None,
        option(
            "--min-gain PERCENT",
            "Exit with 5 unless the plan removes this share of the excess of one of its goals, e.g. 10%; for timers.",
        ),
    ] = None,
    layout: LayoutFile = None,
    loads: LoadsFile = None,
    out: Annotated[Path | None, option("--out -o FILE", "Output file. Default: ./partition-plan-ID.json.")] = None,
    reassignment: ReassignmentOut = None,
    rollback: RollbackOut = None,
    replace_: Replace = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Plan a rebalance of a Kafka cluster and write the plan to a file; nothing is moved."""
    files = OutputFiles(reassignment=reassignment, rollback=rollback, replace=replace_)
    files.check(out, read=(layout, loads, asked.capacities))
    if out is None:
        check_writable(Path("partition-plan.json"))  # its name is known only after the search
    if asked.window is not None and (layout or loads):
        raise usage_error(
            f"--window applies to samples, and {'--loads' if loads else '--layout'} replaces samples", "Omit --window."
        )
    least = None if min_gain is None else parse_percent(min_gain, "--min-gain")
    settings = partitions_settings(connect.settings())
    request = request_of(asked, settings)
    need_extra("numpy")
    source = seen(connect, settings, file=layout, window_s=_window_s(asked.window), loads=loads)
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
    """Inputs of a plan."""

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
        loads: `kafka-loads/1`, or the table of the Spark job, in place of samples, or of the loads in the file.
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
    out: Annotated[Path, option("--out -o FILE", "Output file.")],
    window: Window = None,
    loads: LoadsFile = None,
    replace_: Replace = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Save the layout of a cluster and the loads of its partitions, for `plan --layout`."""
    refuse_existing(out, replace=replace_)
    check_writable(out)
    if window is not None and loads is not None:
        raise usage_error("--window applies to samples, and --loads replaces samples", "Omit --window.")
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
    file: Annotated[Path, argument("FILE", "Plan file, or JSON of kafka-reassign-partitions.")],
    details: Annotated[bool, option("--details", "List the moves of replicas.")] = False,
    topic: Annotated[
        list[str] | None,
        option("--topic PATTERN", "List only moves of these topics (RE2, whole name); may be repeated."),
    ] = None,
    broker: Annotated[
        list[int] | None,
        option("--broker ID", "List only moves from or to this broker; may be repeated.", min=0, max=2**31 - 1),
    ] = None,
    limit: Annotated[int, option("--limit N", "Most moves to list; 0: all.", min=0, max=10**9)] = 50,
    all_brokers: Annotated[bool, option("--all-brokers", "List all brokers, even hundreds.")] = False,
    layout: LayoutFile = None,
    reassignment: ReassignmentOut = None,
    rollback: RollbackOut = None,
    replace_: Replace = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Show a plan: moves, amounts, and goals and brokers before and after."""
    files = OutputFiles(reassignment=reassignment, rollback=rollback, replace=replace_)
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
        raise usage_error(
            "--layout applies to files of kafka-reassign-partitions; a plan includes its layout", "Omit --layout."
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
    moves, dir_moves, unlooked = moves_of(wanted, source.layout, source.loads, where=str(file))
    changed = {move.key for move in moves} | {move.key[:2] for move in dir_moves} | {each[:2] for each in unlooked}
    same = len(wanted) - len(changed)
    remarks = [f"{same} of the {count(len(wanted), 'partition')} of the file stay as they are"] if same else []
    if unlooked:
        topic, number, broker = unlooked[0]
        remarks.append(
            f"the present directories of {count(len(unlooked), 'replica')} that the file names one for are not known, such as of "
            f"{topic}-{number} on broker {broker}: what Kafka copies between disks there is not shown"
        )
    fingerprint = source.layout.fingerprint()
    return ReassignmentPlan(
        id=hashlib.sha256(fingerprint.encode() + to_json(moves, "after", dir_moves)).hexdigest()[:16],
        cluster_id=source.layout.cluster_id,
        layout=fingerprint,
        request={"mode": "given by Kafka's own tool"},
        brokers=broker_changes(source.layout, source.loads, moves),
        moves=moves,
        dir_moves=dir_moves,
        remarks=(*source.loads.remarks, *remarks),
    )


def _filter(topics: Sequence[str], brokers: Sequence[int]) -> Callable[[str, set[int]], bool]:
    """Whether a move of this topic and these brokers is to be listed."""
    from shedders.model.patterns import compiled

    patterns = compiled(topics)
    if isinstance(patterns, str):
        raise usage_error(f"--topic: {patterns}", "Use a regular expression (RE2).")
    wanted = set(brokers)

    def fits(topic: str, ids: set[int]) -> bool:
        return (not topics or patterns.matches(topic)) and (not wanted or not wanted.isdisjoint(ids))

    return fits
