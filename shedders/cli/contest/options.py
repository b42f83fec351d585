"""What the commands of `simulate` share: the extra that they need, seeds, pictures."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from shedders.cli.results import write_file
from statechannel.cli.kit.failures import CommandError
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shedders.contest.plots import Plot

NEEDED: Final = ("numpy", "matplotlib")
SEEDS_MAX: Final = 1_000
SEED_MAX: Final = 2**31
FORMS: Final = ("svg", "png")
_NEXT = re.compile(r",(?=[a-z][a-z-]*(?:[,;\s]|$)|[a-z]+/)")
_SPAN = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", re.ASCII)

Contenders = Annotated[
    list[str] | None,
    typer.Option(
        "--contenders",
        metavar="NAMES",
        help="`default`, `all`, or names with commas or blanks between them; may be repeated. `simulate list` has them.",
    ),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", metavar="N", min=1, max=256, help="Processes.")]
Seeds = Annotated[str, typer.Option("--seeds", metavar="SEEDS", help="Such as 1-5 or 1,2,7; six and more can be sure.")]
OutFolder = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", metavar="DIR", help="Results, tables, plots and the page go there; runs that are there are kept."
    ),
]


def need_extra() -> None:
    """Refuse at once where the simulator's libraries are not installed.

    Raises:
        CommandError: One of them is not.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise CommandError(
            f"the simulator needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint="Install the extra `simulate`: pip install 'statechannel[simulate]'.",
            code=ExitCode.EXTRA_MISSING,
        )


def parse_seeds(text: str) -> list[int]:
    """Seeds in the order given, each once: `1-5`, `1,2,7`.

    Raises:
        CommandError: They are none, or too many.
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        told = _SPAN.fullmatch(part.strip())
        first, last = (-1, -1) if told is None else (int(told[1]), int(told[2] or told[1]))
        if not 0 <= first <= last <= SEED_MAX or last - first >= SEEDS_MAX - len(found):
            many = 0 <= first <= last <= SEED_MAX
            raise CommandError(
                f"--seeds {text}: {'too many' if many else 'no'} seeds",
                hint=f"Say 1-5 or 1,2,7: at most {SEEDS_MAX} whole numbers of 0 to {SEED_MAX}.",
                code=ExitCode.USAGE,
            )
        found |= dict.fromkeys(range(first, last + 1))
    return list(found)


def contender_names(given: Sequence[str]) -> str:
    """Names with blanks between them; what follows a comma is a name of its own, unless it is a setting of the one before."""
    return _NEXT.sub(" ", " ".join(given)) if given else "default"


def check_contenders(given: Sequence[str]) -> None:
    """Refuse names that mean nothing before anything takes long.

    Raises:
        StateChannelError: A contender is none.
    """
    from shedders.contest.contenders import contenders

    contenders(contender_names(given))


def write_pictures(folder: Path, name: str, picture: Plot) -> list[Path]:
    """A plot in all forms."""
    paths = [folder / f"{name}.{form}" for form in FORMS]
    for path, form in zip(paths, FORMS, strict=True):
        write_file(path, picture.of(form))
    return paths
