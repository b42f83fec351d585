"""Arguments of `partitions` as people write them: broker ranges, goals with ranges, amounts of data."""

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
    """Ids in ascending order, each once: `1-6,9`.

    Raises:
        CommandError: They are none, or too many.
    """
    found: set[int] = set()
    for part in text.split(","):
        told = _SPAN.fullmatch(part.strip())
        first, last = (-1, -1) if told is None else (int(told[1]), int(told[2] or told[1]))
        if not 0 <= first <= last <= ID_MAX or last - first >= BROKERS_MAX:
            raise CommandError(
                f"{option} {text}: no ids of brokers",
                hint="Say 4,5 or 1-6,9: whole numbers, a smaller one before a larger one.",
                code=ExitCode.USAGE,
            )
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def parse_goals(given: Sequence[str]) -> tuple[GoalChoice, ...]:
    """Goals in the order given, each once: `disk=10%,leaders`; the option may be repeated.

    Raises:
        CommandError: One is written otherwise, or stands there twice.
    """
    found: list[GoalChoice] = []
    for part in (one.strip() for text in given for one in text.split(",")):
        told = _GOAL.fullmatch(part)
        share = None
        try:
            if told is not None and told[2] is not None:
                share = float(told[2]) / (100 if told[3] else 1)
        except ValueError:
            told = None
        if told is None or (share is not None and not 0 <= share <= SHARE_MAX):
            raise CommandError(
                f"--goals {part}: no goal with a range",
                hint="Say disk, disk=0.1 or disk=10%, with commas between goals; a range is 0 or more. "
                "`statechannel partitions goals list` has the names.",
                code=ExitCode.USAGE,
            )
        if any(one.name == told[1] for one in found):
            raise CommandError(
                f"--goals: {told[1]} stands there twice", hint="Each goal has one place.", code=ExitCode.USAGE
            )
        found.append(GoalChoice(name=told[1], range_share=share))
    return tuple(found)


def parse_amount(text: str, option: str) -> int:
    """Bytes: `500GB`, `1.5TiB`, `1000000`.

    Raises:
        CommandError: It is none, or not positive.
    """
    told = _AMOUNT.fullmatch(text.strip())
    amount = 0 if told is None else round(float(told[1]) * _UNITS[told[2]]) if told[2] in _UNITS else 0
    if not 0 < amount <= _AMOUNT_MAX:
        raise CommandError(
            f"{option} {text}: no amount of data", hint="Say 500GB, 1.5TiB or 1000000.", code=ExitCode.USAGE
        )
    return amount


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


def partitions_settings(settings: Settings) -> PartitionsSettings:
    """What holds of them.

    Raises:
        SettingsError: A setting is unknown, malformed or out of bounds.
    """
    return configured(settings.extensions.get(NAME, {}))
