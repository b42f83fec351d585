"""What turns a function with options into a job: a command of `statechannel spark run`, and a program of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from statechannel.cli.kit.failures import guarded


def job_app(command: Callable[..., Any]) -> typer.Typer:
    """The app that an entry point of the group `spark.jobs` names; the command's docstring is its help."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(command)
    return app


def job_main(app: typer.Typer, name: str, argv: Sequence[str] | None = None) -> int:
    """Run a job as a program: `python -m spark.jobs.NAME`, or from `spark-submit`.

    Args:
        app: The job's app.
        name: What the usage line calls it.
        argv: Arguments; None takes those of the process. `--debug` shows where in the code an error happened.

    Returns:
        The exit code; an error is printed on standard error.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    words = [word for word in arguments if word != "--debug"]

    def run() -> Any:
        return typer.main.get_command(app).main(words, name, standalone_mode=False)

    return guarded(run, debug=debug)
