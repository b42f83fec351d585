"""The command line of a version that does not exist yet: it reads and writes format 2 (`python -m tests.support.newer_broker`).

With NEWEST_FORMAT=3 in the environment it is the version after that. Which formats a version reads is no setting, so it is put
into the code that makes an engine's configuration.
"""

import os
from dataclasses import replace
from typing import Any

from statechannel.broker import assembly
from statechannel.cli import main as command_line
from statechannel.engine.config import EngineConfig

FORMAT = int(os.environ.get("NEWEST_FORMAT", "2"))


def _reads_two(settings: Any, **more: Any) -> EngineConfig:
    return replace(_to_engine(settings, **more), newest_format=FORMAT)


_to_engine = assembly.to_engine


if __name__ == "__main__":
    assembly.to_engine = _reads_two  # type: ignore[assignment]
    command_line.main()
