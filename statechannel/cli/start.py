"""Where the console script begins: Ctrl-C while the command's own modules are still being loaded is an end like any other."""

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
