"""Command `statechannel demo`: a cluster on this machine, from start to audit."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import commands, option
from statechannel.demo.story import run_demo
from statechannel.errors import ExitCode

app = commands()


@app.command()
def demo(
    keep: Annotated[bool, option("--keep", "Leave the cluster running, and print how to use it.")] = False,
) -> None:
    """Start Kafka and brokers, move and split bundles, kill a broker, audit everything; about a minute on an idle machine."""
    with _terminated_as_interrupted():
        failed = run_demo(keep=keep)
    if failed:
        raise CommandError(
            f"{len(failed)} of the demo's checks failed: {failed[0]}",
            hint="The folder named above has the logs of Kafka and the brokers.",
            code=ExitCode.FAILED,
        )


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
