"""Arguments of `partitions`: parsers of broker ranges, goals and amounts, and the options of `plan` as a request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from shedders.kafka_rebalance.planning.request import (
    BrokerCapacity,
    Capacities,
    GoalChoice,
    PlanMode,
    PlanRequest,
    read_capacities,
)
from shedders.kafka_rebalance.settings import NAME, PartitionsSettings, configured
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.times import parse_length_ms
from statechannel.errors import ExitCode
from statechannel.extras import install_command

if TYPE_CHECKING:
    from statechannel.settings import Settings

Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="PATTERN", help="Topics that must not move (RE2, whole name); may be repeated."),
]

BROKERS_MAX: Final = 100_000
SHARE_MAX: Final = 1_000
ID_MAX: Final = 2**31 - 1
_SPAN: Final = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", re.ASCII)
_LOG_DIR: Final = re.compile(r"([0-9]{1,10}):(/.{0,4095})", re.ASCII)
_GOAL: Final = re.compile(r"([a-z][a-z0-9-]*)(?:=([0-9.]{1,20})(%?))?", re.ASCII)
_AMOUNT: Final = re.compile(
    r"([0-9]{1,18}|[0-9]{1,3}(?:_[0-9]{3}){1,5})(\.[0-9]{1,6})?\s*([kmgtp]i?)?B?", re.ASCII | re.IGNORECASE
)
_BITS: Final = re.compile(r".*[0-9]\s*[kmgtpKMGTP]?[iI]?b(?:its?)?(?:ps|/s)?", re.ASCII)
_PERCENT: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)%?", re.ASCII)
_UNITS: Final = {"": 1} | {
    f"{prefix}{binary}": (1024 if binary else 1000) ** power
    for power, prefix in enumerate("kmgtp", 1)
    for binary in ("", "i")
}
_MEANING: Final = "K is 1,000, Ki is 1,024 bytes; M, G, T and P likewise"
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


def parse_log_dirs(values: Sequence[str], option: str) -> tuple[tuple[int, str], ...]:
    """Log directories of brokers, `3:/var/lib/kafka/d2`, each once.

    Raises:
        CommandError: One is malformed.
    """
    dirs = []
    for text in values:
        match = _LOG_DIR.fullmatch(text.strip())
        if match is None or int(match[1]) > ID_MAX:
            raise CommandError(
                f"{option} {text}: not a log directory of a broker",
                hint="Use ID:PATH, e.g. 3:/var/lib/kafka/d2; repeat the option for several.",
                code=ExitCode.USAGE,
            )
        dirs.append((int(match[1]), match[2]))
    return tuple(dict.fromkeys(dirs))


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
    """Bytes as people write them: `500GB`, `1.5TiB`, `400K`, `1000000`; K is 1,000 and Ki is 1,024, in either case.

    Raises:
        CommandError: The text is not an amount, or not positive.
    """
    amount = _bytes_of(text)
    if amount is None:
        raise CommandError(
            f"{option} {text}: not an amount of data",
            hint=f"{_bits_hint(text)}Use 500GB, 1.5TiB, 400K or 1000000 ({_MEANING}).",
            code=ExitCode.USAGE,
        )
    return amount


def parse_rate(text: str, option: str) -> int:
    """Bytes per second: as an amount, `/s` may follow: `20MB/s`, `400KiB/s`, `400K`, `400000`.

    Raises:
        CommandError: The text is not a rate, or not positive.
    """
    amount = _bytes_of(text.strip().removesuffix("/s"))
    if amount is None:
        raise CommandError(
            f"{option} {text}: not bytes per second",
            hint=f"{_bits_hint(text)}Use 20MB/s, 400K, 400KiB/s or 400000 ({_MEANING}).",
            code=ExitCode.USAGE,
        )
    return amount


def _bytes_of(text: str) -> int | None:
    """None: the text is not a positive amount of bytes that is in bounds."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None or text.strip().endswith("b"):
        return None
    number = f"{match[1].replace('_', '')}{match[2] or ''}"
    amount = int(Decimal(number) * _UNITS[(match[3] or "").lower()])
    return amount if 0 < amount <= _AMOUNT_MAX else None


def _bits_hint(text: str) -> str:
    return "Write B for bytes; b stands for bits. " if _BITS.fullmatch(text.strip()) else ""


def parse_percent(text: str, option: str) -> float:
    """A share: `50` and `50%` are one half.

    Raises:
        CommandError: The text is not a percentage, or negative.
    """
    match = _PERCENT.fullmatch(text.strip())
    if match is None or float(match[1]) > 100 * SHARE_MAX:
        raise CommandError(f"{option} {text}: not a percentage", hint="Use 0, 10 or 50%.", code=ExitCode.USAGE)
    return float(Decimal(match[1]) / 100)


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
            hint=f"Install the extra `{extra}`: `{install_command(extra)}`.",
            code=ExitCode.EXTRA_MISSING,
        )


def partitions_settings(settings: Settings) -> PartitionsSettings:
    """Settings of `partitions` in the settings of a command.

    Raises:
        SettingsError: A setting is unknown, malformed or out of bounds.
    """
    return configured(settings.extensions.get(NAME, {}))


_LONGEST = "a search may not take longer."
_CAPACITIES: Final = {"disk": "disk_bytes", "bytes-in": "bytes_in_per_s", "bytes-out": "bytes_out_per_s", "cpu": "cpu"}
"""Fields of `BrokerCapacity`, by their names in the option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Values of the options of `partitions plan` that make up the request."""

    add_brokers: str | None = None
    remove_brokers: str | None = None
    remove_log_dirs: Sequence[str] = ()
    demote: str | None = None
    fix_offline: bool = False
    replication_factor: int | None = None
    goals: Sequence[str] = ()
    brokers: str | None = None
    offline_brokers: str | None = None
    exclude: Sequence[str] = ()
    topics: Sequence[str] = ()
    time_budget: str | None = None
    moves_max: int | None = None
    bytes_max: str | None = None
    replicas_max: int | None = None
    capacities: Path | None = None
    capacity: Sequence[str] = ()
    worsen_at_most: str | None = None


def request_of(asked: PlanOptions, settings: PartitionsSettings) -> PlanRequest:
    """The request; options that are not set are taken from the settings.

    Raises:
        StateChannelError: Options are malformed or mutually exclusive, or the file of capacities is unusable.
    """
    mode, subjects = _mode(asked)
    _topics_fit(asked, mode)
    budget = asked.time_budget
    length_s = settings.plan.time_budget_s
    if budget is not None:
        length_s = parse_length_ms(budget, "--time-budget", beyond=_LONGEST) / 1_000
    return PlanRequest(
        mode=mode,
        goals=parse_goals(asked.goals),
        brokers=() if asked.brokers is None else parse_brokers(asked.brokers, "--brokers"),
        subjects=subjects,
        log_dirs=parse_log_dirs(asked.remove_log_dirs, "--remove-log-dirs"),
        offline_brokers=()
        if asked.offline_brokers is None
        else parse_brokers(asked.offline_brokers, "--offline-brokers"),
        excluded_topics=tuple(dict.fromkeys([*settings.plan.excluded_topics, *asked.exclude])),
        topics=tuple(dict.fromkeys(asked.topics)),
        replication_factor=asked.replication_factor,
        replicas_max=asked.replicas_max,
        capacities=_capacities(asked),
        moves_max=asked.moves_max,
        bytes_max=None if asked.bytes_max is None else parse_amount(asked.bytes_max, "--max-bytes"),
        time_budget_s=length_s,
        completeness_min=settings.sample.completeness_min,
        worsen_max_share=settings.plan.worsen_max_share
        if asked.worsen_at_most is None
        else parse_percent(asked.worsen_at_most, "--worsen-at-most"),
    )


def _mode(asked: PlanOptions) -> tuple[PlanMode, tuple[int, ...]]:
    """Mode, and the brokers that it applies to."""
    named = {
        PlanMode.ADD_BROKERS: asked.add_brokers,
        PlanMode.REMOVE_BROKERS: asked.remove_brokers,
        PlanMode.DEMOTE: asked.demote,
        PlanMode.FIX_OFFLINE: asked.fix_offline or None,
        PlanMode.REPLICATION_FACTOR: asked.replication_factor,
        PlanMode.REMOVE_LOG_DIRS: asked.remove_log_dirs or None,
    }
    modes = {mode: value for mode, value in named.items() if value is not None}
    if len(modes) > 1:
        raise CommandError(
            f"{' and '.join(f'--{mode}' for mode in modes)} are mutually exclusive",
            hint="Use one of them: each needs its own plan.",
            code=ExitCode.USAGE,
        )
    for mode, value in modes.items():
        return mode, parse_brokers(value, f"--{mode}") if isinstance(value, str) else ()
    return PlanMode.REBALANCE, ()


def _topics_fit(asked: PlanOptions, mode: PlanMode) -> None:
    if mode is PlanMode.REPLICATION_FACTOR and not asked.topics:
        raise CommandError(
            "--replication-factor requires --topics",
            hint="Add --topics PATTERN (RE2, whole name; may be repeated).",
            code=ExitCode.USAGE,
        )


def _capacities(asked: PlanOptions) -> Capacities:
    if asked.capacities is None:
        default = BrokerCapacity()
        named = [capacity.partition("=")[0] for capacity in asked.capacity]
        for name, capacity in zip(named, asked.capacity, strict=True):
            default = _with(default, capacity)
            if named.count(name) > 1:
                raise CommandError(
                    f"--capacity: {name} is duplicated",
                    hint="Use each name once; for capacities per broker, use --capacities FILE.",
                    code=ExitCode.USAGE,
                )
        return Capacities(default=default)
    if asked.capacity:
        raise CommandError(
            "--capacity and --capacities are mutually exclusive",
            hint="Put all capacities into the file.",
            code=ExitCode.USAGE,
        )
    return read_capacities(asked.capacities)


def _with(default: BrokerCapacity, text: str) -> BrokerCapacity:
    name, _, value = text.partition("=")
    if name not in _CAPACITIES or not value:
        raise CommandError(
            f"--capacity {text}: not a capacity",
            hint="Use disk=2TB, bytes-in=100MB, bytes-out=300MB (per second) or cpu=80%; per broker: --capacities FILE.",
            code=ExitCode.USAGE,
        )
    if name == "cpu":
        return replace(default, cpu=_share(value, text))
    parse = parse_amount if name == "disk" else parse_rate
    amount = parse(value, f"--capacity {name}")
    return replace(default, **{_CAPACITIES[name]: amount})


def _share(value: str, text: str) -> float:
    try:
        share = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise CommandError(
            f"--capacity {text}: must be more than 0 and at most 1",
            hint="Use cpu=0.8 or cpu=80%.",
            code=ExitCode.USAGE,
        )
    return share
