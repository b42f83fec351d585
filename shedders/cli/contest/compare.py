"""`statechannel simulate compare`: all contenders on the same traces, from scenarios or from a real cluster."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from shedders.cli.contest.options import contender_names, need_extra, parse_seeds, write_plot
from shedders.cli.options import LIVE, make_folder, say_written, show_grid, snapshot_from, write_file
from shedders.snapshots.file import write_snapshot
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs, with_kafka
from statechannel.cli.kit.output import Output, print_json, say
from statechannel.cli.kit.progress import progress
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from shedders.contest.comparison import ContestComparison
    from shedders.contest.contenders import Contender
    from shedders.contest.outcome import RunResult, TraceSource


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Options of a comparison.

    Attributes:
        contenders: Values of the option; empty: the default contenders.
        again: Repeat runs whose results are in the folder.
        own_cluster: One snapshot of a real cluster: nothing is summed up over scenarios.
        command: Command line that repeats the comparison, for people.
    """

    contenders: Sequence[str]
    seeds: Sequence[int]
    jobs: int
    out: Path | None
    again: bool
    output: Output
    own_cluster: bool
    command: str


@with_kafka
def compare(
    connect: Connect,
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCENARIO|FILE]...", help="Names of scenarios, or scenario files. Default: all built-in scenarios."
        ),
    ] = None,
    contenders: Annotated[
        list[str] | None,
        typer.Option(
            "--contenders",
            metavar="NAMES",
            help="`default`, `all`, or names separated by commas or blanks; may be repeated. `simulate list` shows them.",
        ),
    ] = None,
    seeds: Annotated[
        str,
        typer.Option(
            "--seeds", metavar="SEEDS", help="Seeds, e.g. 1-5 or 1,2,7. Significance tests need at least six."
        ),
    ] = "1-5",
    jobs: Annotated[int, typer.Option("--jobs", "-j", metavar="N", min=1, max=256, help="Processes.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Folder for results, tables and plots. Results in it are reused."
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Repeat runs whose results are in --out.")] = False,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Include the held-out scenarios, which were not used for tuning.")
    ] = False,
    snapshot: Annotated[
        str | None,
        typer.Option(
            "--snapshot",
            metavar="FILE|live",
            help="A snapshot of your cluster (design/snapshot.md) instead of scenarios.",
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option("--hours", min=0.05, max=168, help="How long the load of a snapshot continues. Default: 2."),
    ] = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Compare contenders on the same traces: of scenarios, or of your cluster by a snapshot."""
    if snapshot is not None and (scenarios or held_out):
        raise CommandError(
            "scenarios and --snapshot are mutually exclusive", hint="Use one of them.", code=ExitCode.USAGE
        )
    if hours is not None and snapshot is None:
        raise CommandError(
            "--hours requires --snapshot", hint="The length of a scenario is fixed.", code=ExitCode.USAGE
        )
    chosen_seeds = parse_seeds(seeds)
    need_extra()
    asked = CompareOptions(
        contenders=contenders or (),
        seeds=chosen_seeds,
        jobs=jobs,
        out=None if out is None else make_folder(out),
        again=again,
        output=output,
        own_cluster=snapshot is not None,
        command=shlex.join(["statechannel", *sys.argv[1:]]),
    )
    if snapshot is None:
        contest(asked, scenario_sources(scenarios or [], held_out=held_out))
        return
    with scratch_folder(asked.out) as folder:
        source, as_it_is = own_source(snapshot, folder, connect, hours=hours or 2.0)
        contest(asked, [source], [as_it_is])


def own_source(where: str, folder: Path, connect: Connect, *, hours: float) -> tuple[TraceSource, Contender]:
    """Trace source of a snapshot, and a contender: the settings that its cluster uses now.

    Args:
        where: Path of the file, or `live`.
        folder: A live snapshot is written there, for every process to read.

    Raises:
        StateChannelError: The snapshot cannot be read, or cannot be converted to a trace.
    """
    from shedders.contest.snapshot_trace import present
    from shedders.contest.sources import make_trace, snapshot_source

    path, taken = Path(where), snapshot_from(where, connect)
    as_it_is = present(taken)
    if where == LIVE:
        path = folder / "live-snapshot.json"
        write_snapshot(taken, path)
    source = snapshot_source(path, hours=hours)
    # A snapshot without a trace is reported here, not by each run.
    trace = make_trace(source, 1)
    for remark in trace.remarks:
        say(f"note: {remark}")
    return replace(source, about=trace.about), as_it_is


def scenario_sources(names: Sequence[str], *, held_out: bool) -> list[TraceSource]:
    """Sources of scenarios by name or file; without any, of the usual ones.

    Raises:
        StateChannelError: A scenario cannot be read.
    """
    from shedders.contest.scenario import HELD_OUT
    from shedders.contest.sources import chosen_scenarios, usual_scenarios

    if not names:
        names, large = usual_scenarios(held_out=held_out)
        say(f"skipped large scenarios; name them to run them: {', '.join(large)}")
    elif held_out:
        names = [*names, *(name for name in usual_scenarios(held_out=True)[0] if name.startswith(HELD_OUT))]
    return chosen_scenarios(names)


@contextmanager
def scratch_folder(out: Path | None) -> Iterator[Path]:
    """Folder where worker processes read a trace: that of the results, else a temporary one."""
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="statechannel-simulate-") as folder:
        yield Path(folder)


def contest(asked: CompareOptions, sources: Sequence[TraceSource], extra: Sequence[Contender] = ()) -> None:
    """Run all contenders on all sources and show the results.

    Args:
        extra: Contenders in addition to those of the options.

    Raises:
        typer.Exit: Runs have failed, and were reported.
        StateChannelError: A contender is unknown, or results cannot be written.
    """
    from shedders.contest.contenders import contenders

    rans = run_field(asked, sources, [*contenders(contender_names(asked.contenders)), *extra])
    present(asked, rans)
    failed = [ran for ran in rans if ran.outcome is None]
    if failed:
        say(f"{len(failed)} of {len(rans)} runs failed; the first: {failed[0].run.title}: {failed[0].error}")
        raise typer.Exit(ExitCode.FAILED)


def run_field(asked: CompareOptions, sources: Sequence[TraceSource], field: Sequence[Contender]) -> list[RunResult]:
    """Run each contender on each source with each seed; finished runs are kept in the folder of the results.

    Raises:
        StateChannelError: Results cannot be written.
    """
    from shedders.contest.outcome import ContestRun
    from shedders.contest.runner import ResultStore, program_digest, run_all

    runs = [ContestRun(source, seed, contender) for source in sources for seed in asked.seeds for contender in field]
    store = None if asked.out is None else ResultStore(asked.out, program_digest(), overwrite=asked.again)
    shown_seed = asked.seeds[0]
    with progress(f"{len(runs)} runs", len(runs), unit="runs") as update:
        try:
            rans = run_all(
                runs, jobs=asked.jobs, store=store, progress=update, keeps_series=lambda run: run.seed == shown_seed
            )
        except KeyboardInterrupt:
            if asked.out is not None:
                say(f"finished runs are kept in {asked.out}: the same command continues with the others")
            raise
    kept = sum(ran.kept for ran in rans)
    if kept:
        say(f"{kept} of {len(rans)} runs were reused from --out (--again repeats them)")
    return rans


def present(asked: CompareOptions, rans: Sequence[RunResult]) -> None:
    """Compare runs, print the result, and write it to the folder."""
    from shedders.contest.comparison import compared

    comparison = compared(rans)
    _print(asked, comparison)
    if asked.out is not None:
        say_written(write_results(asked, asked.out, comparison, rans))


def _print(asked: CompareOptions, comparison: ContestComparison) -> None:
    from shedders.contest.tables import scenario_grid, summary_grids

    if asked.output is Output.JSON:
        print_json(comparison.model_dump(mode="json"))
        return
    grids = [scenario_grid(part, comparison.against) for part in comparison.scenarios]
    if not asked.own_cluster:
        grids += summary_grids(comparison, missed_only=True)
    for number, grid in enumerate(grids):
        show_grid(grid, gap=number > 0)


def write_results(
    asked: CompareOptions, out: Path, comparison: ContestComparison, rans: Sequence[RunResult]
) -> list[Path]:
    """Write document, tables and plots, and return the paths that people open."""
    from shedders.contest.plots import churn_picture, scenario_picture
    from shedders.contest.runner import file_name
    from shedders.contest.tables import markdown, scenario_grid, summary_grids

    grids = [] if asked.own_cluster else summary_grids(comparison)
    grids += [scenario_grid(part, comparison.against) for part in comparison.scenarios]
    drawn = [
        ran.outcome.model_copy(update={"scenario": ran.run.source.name}) for ran in rans if ran.outcome is not None
    ]
    drawn = [outcome for outcome in drawn if outcome.series.at_s]
    plots = make_folder(out / "plots")
    with progress("plots", len(comparison.scenarios) + 1, unit="files") as update:
        for number, part in enumerate(comparison.scenarios):
            mine = [outcome for outcome in drawn if outcome.scenario == part.scenario]
            if mine:
                write_plot(plots / f"{file_name(part.scenario)}.svg", scenario_picture(mine, title=part.scenario))
            update(number + 1)
        churn = write_plot(out / "churn.svg", churn_picture(comparison))
    contents = {
        out / "comparison.json": orjson.dumps(
            comparison.model_dump(mode="json"), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        ),
        out / "tables.md": f"# The contest\n\n    {asked.command}\n\n{markdown(grids)}".encode(),
    }
    for path, content in contents.items():
        write_file(path, content)
    return [*contents, churn, plots]
