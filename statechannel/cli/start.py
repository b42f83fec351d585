"""Console script: also handles Ctrl-C while the command's modules are still being loaded."""

from __future__ import annotations

import sys

_INTERRUPTED = 130  # ExitCode.INTERRUPTED, whose module may not be loaded yet


def main() -> None:
    """Entry point of the console script."""
    try:
        from statechannel.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    run()
