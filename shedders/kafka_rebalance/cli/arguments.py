"""Arguments of `partitions`: options, parsers of broker ranges, goals and amounts, and the options of `plan` as a request."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

from shedders.kafka_rebalance.planning.request import (
    CPU_MAX,
    BrokerCapacity,
    Capacities,
    GoalChoice,
    PlanMode,
    PlanRequest,
    read_capacities,
)
from shedders.kafka_rebalance.settings import NAME, PartitionsSettings, configured
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.listing import parse_length_ms
from statechannel.cli.kit.options import argument, option
from statechannel.errors import ExitCode
from statechannel.extras import install_command

if TYPE_CHECKING:
    from statechannel.cli.kit.options import Connect
    from statechannel.settings import Settings


Window = Annotated[str | None, option("--window LENGTH", "Average the samples of this time before now, e.g. 6h.")]


def usage_error(message: str, hint: str) -> CommandError:
    return CommandError(message, hint=hint, code=ExitCode.USAGE)


KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY
BROKERS_MAX: Final = 100_000
SHARE_MAX: Final = 1_000
ID_MAX: Final = 2**31 - 1
_SPAN: Final = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", re.ASCII)
_LOG_DIR: Final = re.compile(r"([0-9]{1,10}):(/.{0,4095})", re.ASCII)
_GOAL: Final = re.compile(r"([a-z][a-z0-9-]*)(?:=([0-9.]{1,20}%?))?", re.ASCII)
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


def parse_brokers(text: str | None, option: str) -> tuple[int, ...]:
    """Distinct ids in ascending order: `1-6,9`; None: none."""
    ids: set[int] = set()
    for part in () if text is None else text.split(","):
        match = _SPAN.fullmatch(part.strip())
        first, last = (-1, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
        if not 0 <= first <= last <= ID_MAX or last - first >= BROKERS_MAX:
            raise usage_error(
                f"{option} {text}: not broker ids", "Use 4,5 or 1-6,9: whole numbers; ranges in ascending order."
            )
        ids.update(range(first, last + 1))
    return tuple(sorted(ids))


def parse_log_dirs(values: Sequence[str], option: str) -> tuple[tuple[int, str], ...]:
    """Log directories of brokers, `3:/var/lib/kafka/d2`, each once."""
    dirs = []
    for text in values:
        match = _LOG_DIR.fullmatch(text.strip())
        if match is None or int(match[1]) > ID_MAX:
            raise usage_error(
                f"{option} {text}: not a log directory of a broker",
                "Use ID:PATH, e.g. 3:/var/lib/kafka/d2; repeat the option for several.",
            )
        dirs.append((int(match[1]), match[2]))
    return tuple(dict.fromkeys(dirs))


def parse_goals(values: Sequence[str]) -> tuple[GoalChoice, ...]:
    """Goals in the order of the options, each once: `disk=10%,leaders`; the option may be repeated."""
    goals: list[GoalChoice] = []
    for part in (part.strip() for text in values for part in text.split(",")):
        match = _GOAL.fullmatch(part)
        share = None if match is None or match[2] is None else _share(match[2])
        if match is None or (share is not None and not 0 <= share <= SHARE_MAX):
            raise usage_error(
                f"--goals {part}: not a goal with a range",
                "Use disk, disk=0.1 or disk=10%, separated by commas; a range is 0 or more. "
                "`statechannel partitions goals list` shows the names.",
            )
        if any(goal.name == match[1] for goal in goals):
            raise usage_error(f"--goals: {match[1]} is duplicated", "Name each goal once.")
        goals.append(GoalChoice(name=match[1], range_share=share))
    return tuple(goals)


def _share(text: str) -> float:
    """`0.1` and `10%` are one tenth; -1: not a number."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return -1.0


def parse_amount(text: str, option: str) -> int:
    """Bytes as people write them: `500GB`, `1.5TiB`, `400K`, `1000000`; K is 1,000 and Ki is 1,024, in either case."""
    return _amount(text, text, f"{option} {text}: not an amount of data", "500GB, 1.5TiB, 400K or 1000000")


def parse_rate(text: str, option: str) -> int:
    """Bytes per second: as an amount, `/s` may follow: `20MB/s`, `400KiB/s`, `400K`, `400000`."""
    number = text.strip().removesuffix("/s")
    return _amount(text, number, f"{option} {text}: not bytes per second", "20MB/s, 400K, 400KiB/s or 400000")


def _amount(text: str, number: str, refusal: str, examples: str) -> int:
    amount = _bytes_of(number)
    if amount is None:
        bits = "Write B for bytes; b stands for bits. " if _BITS.fullmatch(text.strip()) else ""
        raise usage_error(refusal, f"{bits}Use {examples} ({_MEANING}).")
    return amount


def _bytes_of(text: str) -> int | None:
    """None: the text is not a positive amount of bytes that is in bounds."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None or text.strip().endswith("b"):
        return None
    number = f"{match[1].replace('_', '')}{match[2] or ''}"
    amount = int(Decimal(number) * _UNITS[(match[3] or "").lower()])
    return amount if 0 < amount <= _AMOUNT_MAX else None


def parse_percent(text: str, option: str) -> float:
    """A share: `50` and `50%` are one half."""
    match = _PERCENT.fullmatch(text.strip())
    if match is None or float(match[1]) > 100 * SHARE_MAX:
        raise usage_error(f"{option} {text}: not a percentage", "Use 0, 10 or 50%.")
    return float(Decimal(match[1]) / 100)


EXTRA: Final = "partitions"
NEEDED: Final = {"numpy": "numpy", "kafka": "kafka-python"}
"""Required modules, with the names of their packages."""


def need_extra(*modules: str, extra: str = EXTRA) -> None:
    """Check that libraries are installed.

    Args:
        modules: Names of the required modules; none: all of `NEEDED`.
    """
    missing = [NEEDED.get(module, module) for module in modules or NEEDED if find_spec(module) is None]
    if missing:
        raise CommandError(
            f"this needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint=f"Install the extra `{extra}`: `{install_command(extra)}`.",
            code=ExitCode.EXTRA_MISSING,
        )


def partitions_settings(settings: Settings) -> PartitionsSettings:
    return configured(settings.extensions.get(NAME, {}))


_CAPACITIES: Final = {"disk": "disk_bytes", "bytes-in": "bytes_in_per_s", "bytes-out": "bytes_out_per_s", "cpu": "cpu"}
"""Fields of `BrokerCapacity`, by their names in the option."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of `partitions plan` that make up the request, and the window of its samples."""

    add_brokers: Annotated[
        str | None, option("--add-brokers IDS", "Move replicas to these new brokers only, e.g. 4,5.")
    ] = None
    remove_brokers: Annotated[
        str | None, option("--remove-brokers IDS", "Move all replicas off these brokers, and no others.")
    ] = None
    remove_log_dirs: Annotated[
        list[str] | None,
        option(
            "--remove-log-dirs ID:PATH", "Empty this log directory of a broker, into its other ones; may be repeated."
        ),
    ] = None
    demote: Annotated[str | None, option("--demote IDS", "Move leaderships off these brokers; copies no data.")] = None
    fix_offline: Annotated[bool, option("--fix-offline", "Move offline replicas only.")] = False
    replication_factor: Annotated[
        int | None,
        option(
            "--replication-factor N", "New replication factor of the --topics: add or remove replicas.", min=1, max=32
        ),
    ] = None
    goals: Annotated[
        list[str] | None,
        option(
            "--goals NAME[=RANGE],...",
            "Goals in order, e.g. rack-awareness,disk=10%. Default: all; see `partitions goals list`.",
        ),
    ] = None
    brokers: Annotated[str | None, option("--brokers IDS", "Place replicas on these brokers only, e.g. 1-6,9.")] = None
    offline_brokers: Annotated[
        str | None, option("--offline-brokers IDS", "Brokers going offline: move all replicas off them, in any mode.")
    ] = None
    exclude: Annotated[
        list[str] | None, option("--exclude PATTERN", "Topics that must not move (RE2, whole name); may be repeated.")
    ] = None
    may_stay: Annotated[
        list[str] | None,
        option(
            "--may-stay PATTERN",
            "Topics that stay even on brokers and disks that are emptied (RE2, whole name); may be repeated.",
        ),
    ] = None
    topics: Annotated[
        list[str] | None, option("--topics PATTERN", "Topics that may move (RE2, whole name); may be repeated.")
    ] = None
    window: Window = None
    time_budget: Annotated[
        str | None,
        option("--time-budget LENGTH", "Time limit of the search, e.g. 30s; then the best plan so far is used."),
    ] = None
    max_moves: Annotated[int | None, option("--max-moves N", "Most replicas to move.", min=1, max=10**9)] = None
    max_bytes: Annotated[str | None, option("--max-bytes AMOUNT", "Most data to copy, e.g. 500GB.")] = None
    replicas_max: Annotated[int | None, option("--replicas-max N", "Most replicas on a broker.", min=1, max=10**9)] = (
        None
    )
    capacity: Annotated[
        list[str] | None,
        option("--capacity NAME=AMOUNT", "Capacity of each broker: disk, bytes-in, bytes-out or cpu; may be repeated."),
    ] = None
    capacities: Annotated[
        Path | None, option("--capacities FILE", "Capacities per broker: TOML, or Cruise Control's capacity.json.")
    ] = None
    worsen_at_most: Annotated[
        str | None,
        option(
            "--worsen-at-most PERCENT",
            "How far goals may bring brokers beyond the ranges of later goals, in percent of the mean; 0: not at all.",
        ),
    ] = None


State = Annotated[Path | None, option("--state DIR", "Folder of plans and journals. Default: the user's state folder.")]
PlanId = Annotated[
    str | None, argument("[PLAN-ID]", "Id of a plan. Default: the plan that is being executed, else the newest.")
]
Throttle = Annotated[
    str | None,
    option("--throttle RATE", "Replication throttle per broker, e.g. 20MB/s, 400KiB/s or 400000; `none`: no throttle."),
]
Unthrottle = Annotated[
    bool | None,
    option(
        "--unthrottle", "Remove the throttle of moves in flight when the execution stops: they continue at full speed."
    ),
]
MovesPerBroker = Annotated[
    int | None,
    option(
        "--moves-per-broker N",
        "Most partitions in flight per broker, as source, destination or leader.",
        min=1,
        max=10_000,
    ),
]
AcceptUnmet = Annotated[bool, option("--accept-unmet", "Also execute a plan that leaves hard goals unmet.")]
Execute = Annotated[bool, option("--execute", "Execute the plan; without it, only show what would be done.")]


@dataclass(frozen=True, kw_only=True)
class PaceOptions:
    """Options of `partitions apply` that override settings of the pace; None: not set."""

    throttle_bytes_per_s: Throttle = None
    unthrottle: Unthrottle = None
    moves_per_broker: MovesPerBroker = None
    moves_max: Annotated[int | None, option("--moves-max N", "Most partitions in flight.", min=1, max=1_000_000)] = None
    bytes_in_flight: Annotated[
        str | None, option("--bytes-in-flight AMOUNT", "Most bytes in flight, e.g. 50GB or 512MiB.")
    ] = None
    one_replica: Annotated[
        bool | None,
        option("--one-replica/--all-replicas", "Move one replica of a partition at a time, or all together."),
    ] = None
    order: Annotated[
        str | None, option("--order plan|small-first|large-first", "Order in which partitions are moved.")
    ] = None


def expanded(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the fields of its argument `asked`, a dataclass of options, as its options."""
    parameters = inspect.signature(command, eval_str=True).parameters
    group = parameters["asked"].annotation
    hints = get_type_hints(group, include_extras=True)
    names = [field.name for field in fields(group)]

    @wraps(command)
    def run(connect: Connect, **values: Any) -> Any:
        return command(connect, asked=group(**{name: values.pop(name) for name in names}), **values)

    options: list[inspect.Parameter] = []
    for parameter in parameters.values():
        own = [
            parameter.replace(name=field.name, annotation=hints[field.name], default=field.default, kind=KEYWORD)
            for field in fields(group)
        ]
        options += own if parameter.name == "asked" else [parameter]
    first, *others = options
    run.__signature__ = inspect.Signature([first, *(each.replace(kind=KEYWORD) for each in others)])  # type: ignore[attr-defined]
    return run


def request_of(asked: PlanOptions, settings: PartitionsSettings) -> PlanRequest:
    """The request; options that are not set are taken from the settings."""
    mode, subjects = _mode(asked)
    if mode is PlanMode.REPLICATION_FACTOR and not asked.topics:
        raise usage_error(
            "--replication-factor requires --topics", "Add --topics PATTERN (RE2, whole name; may be repeated)."
        )
    length_s = settings.plan.time_budget_s
    if asked.time_budget is not None:
        length_s = parse_length_ms(asked.time_budget, "--time-budget", beyond="a search may not take longer.") / 1_000
    return PlanRequest(
        mode=mode,
        goals=parse_goals(asked.goals or ()),
        brokers=parse_brokers(asked.brokers, "--brokers"),
        subjects=subjects,
        log_dirs=parse_log_dirs(asked.remove_log_dirs or (), "--remove-log-dirs"),
        offline_brokers=parse_brokers(asked.offline_brokers, "--offline-brokers"),
        excluded_topics=tuple(dict.fromkeys([*settings.plan.excluded_topics, *(asked.exclude or ())])),
        staying_topics=tuple(dict.fromkeys(asked.may_stay or ())),
        topics=tuple(dict.fromkeys(asked.topics or ())),
        replication_factor=asked.replication_factor,
        replicas_max=asked.replicas_max,
        capacities=_capacities(asked),
        moves_max=asked.max_moves,
        bytes_max=None if asked.max_bytes is None else parse_amount(asked.max_bytes, "--max-bytes"),
        time_budget_s=length_s,
        completeness_min=settings.sample.completeness_min,
        worsen_max_share=settings.plan.worsen_max_share
        if asked.worsen_at_most is None
        else parse_percent(asked.worsen_at_most, "--worsen-at-most"),
    )


def _mode(asked: PlanOptions) -> tuple[PlanMode, tuple[int, ...]]:
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
        raise usage_error(
            f"{' and '.join(f'--{mode}' for mode in modes)} are mutually exclusive",
            "Use one of them: each needs its own plan.",
        )
    for mode, value in modes.items():
        return mode, parse_brokers(value, f"--{mode}") if isinstance(value, str) else ()
    return PlanMode.REBALANCE, ()


def _capacities(asked: PlanOptions) -> Capacities:
    if asked.capacities is not None:
        if asked.capacity:
            raise usage_error("--capacity and --capacities are mutually exclusive", "Put all capacities into the file.")
        return read_capacities(asked.capacities)
    default, named = BrokerCapacity(), set[str]()
    for text in asked.capacity or ():
        default, name = _with(default, text), text.partition("=")[0]
        if name in named:
            raise usage_error(
                f"--capacity: {name} is duplicated",
                "Use each name once; for capacities per broker, use --capacities FILE.",
            )
        named.add(name)
    return Capacities(default=default)


def _with(default: BrokerCapacity, text: str) -> BrokerCapacity:
    name, _, value = text.partition("=")
    if name not in _CAPACITIES or not value:
        raise usage_error(
            f"--capacity {text}: not a capacity",
            "Use disk=2TB, bytes-in=100MB, bytes-out=300MB (per second) or cpu=80%; per broker: --capacities FILE.",
        )
    if name == "cpu":
        share = _share(value)
        if not 0 < share <= CPU_MAX:
            raise usage_error(f"--capacity {text}: must be more than 0 and at most 1", "Use cpu=0.8 or cpu=80%.")
        return replace(default, cpu=share)
    parse = parse_amount if name == "disk" else parse_rate
    amount = parse(value, f"--capacity {name}")
    return replace(default, **{_CAPACITIES[name]: amount})
