"""The commands of the model, at their own scope or a larger one."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.model_checker import Answer, checker

FOLDER = Path(__file__).parents[2] / "design" / "evidence" / "model"
MODEL, TRACE = FOLDER / "channel.als", FOLDER / "trace.als"
SLOW = "Slow"
"""Commands whose names begin so take minutes: only on request."""
_CLAIM = re.compile(r"(\d+) Version, (\d+) Record expect 0")


def answers(scope: int | None = None, only: str | None = None, *, slow: bool = False) -> Iterator[Answer]:
    """Run them in the order of the file.

    Args:
        scope: Records of a log, in commands that expect no counterexample, and have fewer.
        only: The name of one command.
        slow: With those that take minutes.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(shutil.copy(MODEL, folder))
        if scope is not None:
            file.write_text(widened(file.read_text(), scope))
        with checker(file) as alloy:
            wanted = [name for name in alloy.commands if slow or not name.startswith(SLOW)] if only is None else [only]
            yield from map(alloy.run, wanted)


def widened(text: str, records: int) -> str:
    """The model with at least so many records, and as many versions, in each command that expects no counterexample."""

    def wider(scope: re.Match[str]) -> str:
        return f"{max(records, int(scope[1]))} Version, {max(records, int(scope[2]))} Record expect 0"

    return _CLAIM.sub(wider, text)
