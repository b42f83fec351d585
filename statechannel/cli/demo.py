"""Command `statechannel demo`: a cluster on this machine, from start to audit."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.folders import make_folder
from statechannel.cli.kit.output import say
from statechannel.demo.chapters import run_demo
from statechannel.demo.cluster import DemoCluster
from statechannel.demo.load_story import LaunchStory
from statechannel.demo.narrator import Narrator
from statechannel.demo.series import missing_plotter
from statechannel.demo.story import Story
from statechannel.errors import ExitCode
from statechannel.extras import install_command

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster running, and print how to use it.")] = False,
    balance: Annotated[
        bool, typer.Option("--balance", help="Show load balancing instead: a namespace suddenly becomes much busier.")
    ] = False,
    plots: Annotated[
        Path | None,
        typer.Option(
            "--plots",
            metavar="FOLDER",
            help="With --balance: folder for the plot and its data; else ./statechannel-demo-balance.",
        ),
    ] = None,
    quiet_s: Annotated[
        float,
        typer.Option(
            "--quiet-seconds", min=5, max=600, help="With --balance: time from broker start to the load increase."
        ),
    ] = 45.0,
    own_ms: Annotated[
        int, typer.Option("--own-ms", min=0, max=5_000, help="Simulated preparation time of a bundle.")
    ] = 300,
    release_ms: Annotated[int, typer.Option("--release-ms", min=0, max=5_000, help="Simulated release latency.")] = 50,
) -> None:
    """Start Kafka and brokers, move and split bundles, kill a broker, audit everything; about a minute on an idle machine.

    With --balance: generated load with a hot spot, balancing, and a plot at the end; two minutes.
    """
    folder = plots or Path("statechannel-demo-balance")
    if balance:
        _check_plotter(wanted=plots is not None)
        make_folder(folder)
    with _terminated_as_interrupted():
        cluster, narrator = DemoCluster.make(own_ms=own_ms, release_ms=release_ms), Narrator()
        story = LaunchStory(cluster, narrator, folder=folder, quiet_s=quiet_s) if balance else Story(cluster, narrator)
        broken = run_demo(story, keep=keep)
    if broken:
        raise CommandError(
            f"{len(broken)} of the demo's promises did not hold: {broken[0]}",
            hint="This is a bug; the folder named above has the brokers' logs.",
            code=ExitCode.FAILED,
        )


def _check_plotter(*, wanted: bool) -> None:
    """Say that there will be no plot before the demo runs, not after.

    Raises:
        CommandError: A plot was asked for.
    """
    missing = missing_plotter()
    if not missing:
        return
    hint = f"Install the extra `simulate`: `{install_command('simulate')}`."
    if wanted:
        raise CommandError(f"--plots needs a plotter: {missing}", hint=hint, code=ExitCode.EXTRA_MISSING)
    say(f"there will be no plot at the end, only its data: {missing}. {hint}")


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Make SIGTERM end the demo like Ctrl-C, with its clean-up."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
