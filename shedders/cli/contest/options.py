"""Helpers of the commands of `simulate`: the extra that they need, seeds, plots."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shedders.cli.options import write_file
from statechannel.cli.kit.failures import CommandError
from statechannel.errors import ExitCode
from statechannel.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shedders.contest.plots import Plot

NEEDED: Final = ("numpy", "matplotlib")
SEEDS_MAX: Final = 1_000
SEED_MAX: Final = 2**31
_NEXT = re.compile(r",(?=[a-z][a-z-]*(?:[,;\s]|$)|[a-z]+/)")
_SPAN = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", re.ASCII)


def need_extra() -> None:
    """Check that the simulator's libraries are installed.

    Raises:
        CommandError: One of them is not.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise CommandError(
            f"the simulator needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint=f"Install the extra `simulate`: `{install_command('simulate')}`.",
            code=ExitCode.EXTRA_MISSING,
        )


def parse_seeds(text: str) -> list[int]:
    """Distinct seeds in the order of the text: `1-5`, `1,2,7`.

    Raises:
        CommandError: The text has no seeds, or too many.
    """
    seeds: dict[int, None] = {}
    for part in text.split(","):
        match = _SPAN.fullmatch(part.strip())
        first, last = (-1, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
        if not 0 <= first <= last <= SEED_MAX or last - first >= SEEDS_MAX - len(seeds):
            many = 0 <= first <= last <= SEED_MAX
            raise CommandError(
                f"--seeds {text}: {'too many' if many else 'no'} seeds",
                hint=f"Use 1-5 or 1,2,7: at most {SEEDS_MAX} whole numbers from 0 to {SEED_MAX}.",
                code=ExitCode.USAGE,
            )
        seeds |= dict.fromkeys(range(first, last + 1))
    return list(seeds)


def contender_names(values: Sequence[str]) -> str:
    """Names separated by blanks; a comma separates names too, unless a setting of the name before follows it."""
    return _NEXT.sub(" ", " ".join(values)) if values else "default"


def write_plot(path: Path, plot: Plot) -> Path:
    write_file(path, plot.svg().encode())
    return path
