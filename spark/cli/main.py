"""`statechannel spark run NAME` and `statechannel spark list`: jobs are found by entry point, and loaded only when called."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import typer
from typer.core import TyperGroup

from spark.core.session import check_installed
from spark.errors import SparkJobError
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import OutputAs
from statechannel.cli.kit.output import Output, print_json, print_table
from statechannel.errors import ExitCode

JOBS_GROUP = "spark.jobs"
"""Entry point group: name of the job = `module:app`, where `app` is a `typer.Typer` with one command (`spark.cli.job`)."""

_NO_HELP = "cannot be loaded: "


class Jobs(TyperGroup):
    """A group whose commands are the registered jobs."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the same for every caller
        """Names of all jobs; none is loaded for it."""
        return sorted(_registered())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        point = _registered().get(cmd_name)
        if point is None:
            return None
        command = _load(point)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The job of that name; the error for an unknown one lists those that exist."""
        if args and not args[0].startswith("-") and args[0] not in _registered():
            raise CommandError(
                f"unknown job {args[0]!r}",
                hint=f"Jobs: {', '.join(sorted(_registered())) or 'none is installed'}.",
                code=ExitCode.USAGE,
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """The list in the help; a job that cannot be loaded does not hide the others."""
        rows = [(name, what) for name, what, _ in _described()]
        if rows:
            with formatter.section("Jobs"):
                formatter.write_dl(rows)


app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)
run = typer.Typer(cls=Jobs, add_completion=False, rich_markup_mode=None, no_args_is_help=True)
app.add_typer(run, name="run", help="Run a job until it is done or stopped.")


@app.callback()
def spark() -> None:
    """Tables, the audit archive and replays of a channel, by Spark."""


@app.command("list")
def list_jobs(output: OutputAs = Output.TABLE) -> None:
    """List the jobs that are installed."""
    described = _described()
    if output is Output.JSON:
        print_json({"jobs": [{"job": name, "what": what, "from": value} for name, what, value in described]})
        return
    print_table(("job", "what it does", "from"), described, empty="no job is installed")


def _registered() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=JOBS_GROUP)}


def _described() -> list[tuple[str, str, str]]:
    """Name, first line of the help, and origin of each job."""
    jobs = []
    for name, point in sorted(_registered().items()):
        try:
            what = _load(point).get_short_help_str(limit=100)
        except SparkJobError as error:
            what = _NO_HELP + str(error)
        jobs.append((name, what, point.value))
    return jobs


def _load(point: metadata.EntryPoint) -> Any:
    try:
        return typer.main.get_command(point.load())
    except (ImportError, AttributeError) as error:
        check_installed()
        raise SparkJobError(
            f"the job `{point.name}` ({point.value}) cannot be loaded: {error}",
            hint="The package that registers it is broken or missing; install it again.",
            exit_code=ExitCode.SPARK_FAILED,
        ) from error
