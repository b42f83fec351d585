"""`statechannel demo`: a cluster on this machine, from nothing to the audit."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from statechannel.cli.exit_codes import ExitCode
from statechannel.cli.failures import CommandError
from statechannel.demo.cluster import Cluster
from statechannel.demo.narrator import Narrator
from statechannel.demo.run import run_demo

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster running, and tell how to go on.")] = False,
    own_ms: Annotated[int, typer.Option("--own-ms", min=0, max=5_000, help="What preparing a bundle takes.")] = 300,
    release_ms: Annotated[int, typer.Option("--release-ms", min=0, max=5_000, help="What letting go takes.")] = 50,
) -> None:
    """Start Kafka and brokers, move and split bundles, lose a broker, audit it all; about a minute on an idle machine."""
    with _terminated_as_interrupted():
        broken = run_demo(Cluster.make(own_ms=own_ms, release_ms=release_ms), Narrator(), keep=keep)
    if broken:
        raise CommandError(
            f"{len(broken)} of the demo's promises did not hold: {broken[0]}",
            hint="This is a bug; the folder named above has the brokers' logs.",
            code=ExitCode.FAILED,
        )


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does: with everything cleaned up."""

    def told(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, told)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
