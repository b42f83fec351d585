"""Console script: also handles Ctrl-C while the command's modules are still being loaded."""

from __future__ import annotations

import gc
import os
import sys

_INTERRUPTED = 130  # ExitCode.INTERRUPTED, whose module may not be loaded yet


def _open_closed_streams() -> None:
    """Give a process without standard streams (`>&-`) empty ones: else files and sockets would get their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def main() -> None:
    _open_closed_streams()
    gc.disable()  # until the command's modules are loaded: they stay, and looking through them takes a twentieth of a lookup
    try:
        from statechannel.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    run()
