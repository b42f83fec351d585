"""Conversion of the options of `partitions plan` to a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shedders.kafka_rebalance.cli.arguments import parse_amount, parse_brokers, parse_goals
from shedders.kafka_rebalance.planning.request import BrokerCapacity, Capacities, PlanMode, PlanRequest
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.times import parse_length_ms
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from shedders.kafka_rebalance.settings import PartitionsSettings

_LONGEST = "a search may not take longer."
_CAPACITIES = ("disk", "bytes-in", "bytes-out", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Values of the options of `partitions plan` that make up the request."""

    add_brokers: str | None = None
    remove_brokers: str | None = None
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
    )


def _mode(asked: PlanOptions) -> tuple[PlanMode, tuple[int, ...]]:
    """Mode, and the brokers that it applies to."""
    named = {
        PlanMode.ADD_BROKERS: asked.add_brokers,
        PlanMode.REMOVE_BROKERS: asked.remove_brokers,
        PlanMode.DEMOTE: asked.demote,
        PlanMode.FIX_OFFLINE: asked.fix_offline or None,
        PlanMode.REPLICATION_FACTOR: asked.replication_factor,
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
        for capacity in asked.capacity:
            default = _with(default, capacity)
            if named.count(capacity.partition("=")[0]) > 1:
                raise CommandError(
                    f"--capacity: {capacity.partition('=')[0]} is duplicated",
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
    from shedders.kafka_rebalance.planning.request import read_capacities

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
    amount = parse_amount(value.removesuffix("/s"), f"--capacity {name}")
    match name:
        case "disk":
            return replace(default, disk_bytes=amount)
        case "bytes-in":
            return replace(default, bytes_in_per_s=amount)
        case _:
            return replace(default, bytes_out_per_s=amount)


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
