"""The extra that the commands of `partitions` need: refused at once, not in the middle, where it is missing."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from statechannel.cli.failures import CommandError
from statechannel.errors import ExitCode

EXTRA: Final = "partitions"
NEEDED: Final = {"numpy": "numpy", "kafka": "kafka-python"}
"""Modules, and the names under which they are installed."""


def need_extra(*modules: str, extra: str = EXTRA) -> None:
    """Refuse where libraries are not installed.

    Args:
        modules: Those that are wanted, as they are imported; none: all of `NEEDED`.
        extra: Brings them.

    Raises:
        CommandError: One of them is missing.
    """
    missing = [NEEDED.get(one, one) for one in modules or NEEDED if find_spec(one) is None]
    if missing:
        raise CommandError(
            f"this needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint=f"Install the extra `{extra}`: pip install 'statechannel[{extra}]'.",
            code=ExitCode.EXTRA_MISSING,
        )
