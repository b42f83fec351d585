"""What is said of an export file before it is read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from statechannel.audit.export_file import read_header
from statechannel.audit.export_line import BadLine
from statechannel.cli.output import say


def remark_unchained(path: Path) -> None:
    """Say that an edit of this file would not be seen; whoever reads it says what else is wrong with it."""
    with suppress(OSError, BadLine):
        if path.is_file() and read_header(path).digest is None:
            say(f"note: {path} carries no digest of its records: whether it was edited cannot be seen")
