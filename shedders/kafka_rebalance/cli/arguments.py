"""Parsers of arguments of `partitions`: broker ranges, goals with ranges, amounts of data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from shedders.kafka_rebalance.planning.request import GoalChoice
from shedders.kafka_rebalance.settings import NAME, PartitionsSettings, configured
from statechannel.cli.kit.failures import CommandError
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from statechannel.settings import Settings


BROKERS_MAX: Final = 100_000
SHARE_MAX: Final = 1_000
ID_MAX: Final = 2**31 - 1
_SPAN: Final = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", re.ASCII)
_GOAL: Final = re.compile(r"([a-z][a-z0-9-]*)(?:=([0-9.]{1,20})(%?))?", re.ASCII)
_AMOUNT: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?)\s*([kMGTP]?i?)B?", re.ASCII)
_UNITS: Final = {"": 1} | {
    f"{prefix}{binary}": (1024 if binary else 1000) ** power
    for power, prefix in enumerate("kMGTP", 1)
    for binary in ("", "i")
}
_AMOUNT_MAX: Final = 2**62


def parse_brokers(text: str, option: str) -> tuple[int, ...]:
    """Distinct ids in ascending order: `1-6,9`.

    Raises:
        CommandError: The text has no ids, or too many.
    """
    ids: set[int] = set()
    for part in text.split(","):
        match = _SPAN.fullmatch(part.strip())
        first, last = (-1, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
        if not 0 <= first <= last <= ID_MAX or last - first >= BROKERS_MAX:
            raise CommandError(
                f"{option} {text}: not broker ids",
                hint="Use 4,5 or 1-6,9: whole numbers; ranges in ascending order.",
                code=ExitCode.USAGE,
            )
        ids.update(range(first, last + 1))
    return tuple(sorted(ids))


def parse_goals(values: Sequence[str]) -> tuple[GoalChoice, ...]:
    """Goals in the order of the options, each once: `disk=10%,leaders`; the option may be repeated.

    Raises:
        CommandError: A goal is malformed or duplicated.
    """
    goals: list[GoalChoice] = []
    for part in (part.strip() for text in values for part in text.split(",")):
        match = _GOAL.fullmatch(part)
        share = None
        try:
            if match is not None and match[2] is not None:
                share = float(match[2]) / (100 if match[3] else 1)
        except ValueError:
            match = None
        if match is None or (share is not None and not 0 <= share <= SHARE_MAX):
            raise CommandError(
                f"--goals {part}: not a goal with a range",
                hint="Use disk, disk=0.1 or disk=10%, separated by commas; a range is 0 or more. "
                "`statechannel partitions goals list` shows the names.",
                code=ExitCode.USAGE,
            )
        if any(goal.name == match[1] for goal in goals):
            raise CommandError(f"--goals: {match[1]} is duplicated", hint="Name each goal once.", code=ExitCode.USAGE)
        goals.append(GoalChoice(name=match[1], range_share=share))
    return tuple(goals)


def parse_amount(text: str, option: str) -> int:
    """Bytes: `500GB`, `1.5TiB`, `1000000`.

    Raises:
        CommandError: The text is not an amount, or not positive.
    """
    match = _AMOUNT.fullmatch(text.strip())
    amount = 0 if match is None else round(float(match[1]) * _UNITS[match[2]]) if match[2] in _UNITS else 0
    if not 0 < amount <= _AMOUNT_MAX:
        raise CommandError(
            f"{option} {text}: not an amount of data", hint="Use 500GB, 1.5TiB or 1000000.", code=ExitCode.USAGE
        )
    return amount


EXTRA: Final = "partitions"
NEEDED: Final = {"numpy": "numpy", "kafka": "kafka-python"}
"""Required modules, with the names of their packages."""


def need_extra(*modules: str, extra: str = EXTRA) -> None:
    """Check that libraries are installed.

    Args:
        modules: Names of the required modules; none: all of `NEEDED`.
        extra: Extra that installs them.

    Raises:
        CommandError: A module is missing.
    """
    missing = [NEEDED.get(module, module) for module in modules or NEEDED if find_spec(module) is None]
    if missing:
        raise CommandError(
            f"this needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint=f"Install the extra `{extra}`: pip install 'statechannel[{extra}]'.",
            code=ExitCode.EXTRA_MISSING,
        )


def partitions_settings(settings: Settings) -> PartitionsSettings:
    """Settings of `partitions` in the settings of a command.

    Raises:
        SettingsError: A setting is unknown, malformed or out of bounds.
    """
    return configured(settings.extensions.get(NAME, {}))
