"""Request of a plan: mode, goals, brokers, topics, bounds, and the capacities of brokers with their file."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from loaddata.samples.strict_json import NUMBER_MAX, STRICT, cut, duplicates, located, read_raw, top_level, validated
from statechannel.errors import ExitCode, StateChannelError

CPU_MAX: Final = 1.0
"""The whole broker; what is larger is meant in another unit."""
_Capacity = Annotated[int, Field(gt=0, le=NUMBER_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCapacity:
    """Capacity of one broker. Bytes in and out include replication. CPU: 1.0 is the whole broker."""

    disk_bytes: _Capacity | None = None
    bytes_in_per_s: _Capacity | None = None
    bytes_out_per_s: _Capacity | None = None
    cpu: Annotated[float, Field(gt=0, le=CPU_MAX)] | None = CPU_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacities:
    """Capacities of all brokers: by name, else the default; an unknown disk size is read from the log directories."""

    default: BrokerCapacity = field(default_factory=BrokerCapacity)
    of: Mapping[int, BrokerCapacity] = field(default_factory=lambda: MappingProxyType({}))


_SIZE_MAX_BYTES: Final = 16 << 20
_FOREIGN_HINT: Final = (
    "It is read as Cruise Control's capacity.json: DISK in MB, NW_IN and NW_OUT in KB/s, CPU in percent."
)
_NAMES: Final = tuple(field.name for field in fields(BrokerCapacity))


class CapacityUnusableError(StateChannelError):
    """A file of capacities cannot be read or is invalid."""

    exit_code = ExitCode.BAD_EXPORT

    def __init__(self, message: str, hint: str = "") -> None:
        named = f"Use tables [default] and [brokers.ID] with the keys {', '.join(_NAMES)}; cpu is a share, such as 0.8."
        super().__init__(message, hint=hint or named)


class _File(BaseModel):
    model_config = STRICT
    default: BrokerCapacity = BrokerCapacity()
    brokers: dict[str, BrokerCapacity] = {}


_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
"""Each id in one way, so that no two tables are of one broker."""


def _plain(value: Any) -> Any:
    if not (type(value) in {int, float} or (isinstance(value, str) and re.fullmatch(r"[0-9.eE+-]+", value, re.ASCII))):
        raise ValueError("only digits")
    return value


_Number = Annotated[float, BeforeValidator(_plain), Field(ge=0, le=NUMBER_MAX)]


class _ForeignBroker(BaseModel):
    """An entry of Cruise Control's file; its numbers are texts, of a disk also one by directory."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    brokerId: Annotated[int, BeforeValidator(_plain)]  # noqa: N815
    capacity: dict[Literal["DISK", "CPU", "NW_IN", "NW_OUT"], _Number | dict[str, _Number]]
    doc: Any = None


class _ForeignFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    brokerCapacities: tuple[_ForeignBroker, ...]  # noqa: N815


_FOREIGN: Final = {
    "DISK": ("disk_bytes", 2**20),
    "CPU": ("cpu", 0.01),
    "NW_IN": ("bytes_in_per_s", 2**10),
    "NW_OUT": ("bytes_out_per_s", 2**10),
}
_CORES: Final = "num.cores"


def _of_cruise_control(raw: bytes, path: Path) -> dict[str, Any]:
    """The tables of a `capacity.json`: MiB, KiB/s and percent there; broker -1 is the default."""
    top_level(raw, path, CapacityUnusableError, hint=_FOREIGN_HINT)
    file = validated(raw, TypeAdapter(_ForeignFile), path, CapacityUnusableError, hint=_FOREIGN_HINT)
    if faults := list(duplicates("brokerCapacities", [entry.brokerId for entry in file.brokerCapacities])):
        raise CapacityUnusableError(located(path, faults), _FOREIGN_HINT)
    tables: dict[str, dict[str, float]] = {}
    for entry in file.brokerCapacities:
        own = tables[str(entry.brokerId)] = {}
        for name, value in entry.capacity.items():
            field_name, unit = _FOREIGN[name]
            number = sum(value.values()) if isinstance(value, dict) else value
            if name == "CPU":
                own[field_name] = 1.0 if isinstance(value, dict) and [*value] == [_CORES] else number * unit
            else:
                own[field_name] = round(number * unit)
    return {"default": tables.pop("-1", {}), "brokers": tables}


def read_capacities(path: Path) -> Capacities:
    """Read a file of capacities, or Cruise Control's."""
    raw = read_raw(path, CapacityUnusableError, size_max_bytes=_SIZE_MAX_BYTES)
    if raw.lstrip().startswith(b"{"):
        document = _of_cruise_control(raw, path)
    else:
        try:
            document = tomllib.loads(raw.decode())
        except (ValueError, RecursionError) as error:  # includes invalid UTF-8 and invalid TOML
            raise CapacityUnusableError(f"{path} is not valid TOML: {cut(str(error))}") from error
    encoded = json.dumps(document, default=str).encode()  # strict values, lists and tables as in JSON
    file = validated(encoded, TypeAdapter(_File), path, CapacityUnusableError, hint="")
    named: Mapping[str, Any] = document.get("brokers", {})
    of = {_broker(name, path): _over(file.default, own, named[name]) for name, own in file.brokers.items()}
    return Capacities(default=file.default, of=MappingProxyType(dict(sorted(of.items()))))


def _over(default: BrokerCapacity, own: BrokerCapacity, named: Iterable[str]) -> BrokerCapacity:
    return replace(default, **{name: getattr(own, name) for name in named})


def _broker(name: str, path: Path) -> int:
    if not _ID.fullmatch(name) or int(name) >= 2**31:
        raise CapacityUnusableError(f"{path}: brokers.{cut(name)} is not a valid broker id")
    return int(name)


WORSEN_MAX_SHARE: Final = 0.5
"""Default of how far a goal may worsen a later one."""


class PlanMode(StrEnum):
    """Purpose of a plan, which restricts the moves and brokers."""

    REBALANCE = "rebalance"
    ADD_BROKERS = "add-brokers"
    REMOVE_BROKERS = "remove-brokers"
    DEMOTE = "demote"
    FIX_OFFLINE = "fix-offline"
    REPLICATION_FACTOR = "replication-factor"
    REMOVE_LOG_DIRS = "remove-log-dirs"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalChoice:
    """One goal with its range. `range_share` 0.1: each broker between 90 % and 110 % of the mean; None: the goal's own.

    For limits (hard goals of capacity) it is the part of the capacity that may be used.
    """

    name: str
    range_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """All inputs of a plan other than layout and loads; the same inputs give the same plan.

    Attributes:
        goals: Goals in order; empty: those of the mode.
        brokers: Ids of brokers that may get replicas (the broker range); empty: all live brokers. In a rebalance together with
            `topics`: all replicas of these topics go to these brokers.
        subjects: Brokers of the mode: to be added, removed or demoted.
        log_dirs: Log directories to be emptied, by broker and path, for the mode `remove-log-dirs`.
        offline_brokers: Brokers going offline: they get no replicas and lose theirs, in any mode.
        excluded_topics: Patterns (RE2, whole name) of topics whose replicas stay (the blacklist).
        staying_topics: Patterns of topics whose replicas stay, also on brokers and directories that are to be emptied.
        topics: Patterns of topics that may move; empty: all that are not excluded.
        time_budget_s: Time limit of the search; then the best plan so far is returned, marked incomplete.
        replicas_max: Limit of replicas on a broker, for `replica-capacity`.
        completeness_min: Least measured share of the window; other loads are treated as unknown.
        worsen_max_share: How far soft goals may bring a broker (or a topic on it) beyond the range of a later goal, as a share of
            the mean; what is further beyond already stays so. 0: they worsen no later goal; None: no bound.
    """

    mode: PlanMode = PlanMode.REBALANCE
    goals: tuple[GoalChoice, ...] = ()
    brokers: tuple[int, ...] = ()
    subjects: tuple[int, ...] = ()
    log_dirs: tuple[tuple[int, str], ...] = ()
    offline_brokers: tuple[int, ...] = ()
    excluded_topics: tuple[str, ...] = ()
    staying_topics: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    replication_factor: int | None = None
    replicas_max: int | None = None
    capacities: Capacities = field(default_factory=Capacities)
    moves_max: int | None = None
    bytes_max: int | None = None
    time_budget_s: float | None = None
    completeness_min: float = 0.0
    worsen_max_share: float | None = WORSEN_MAX_SHARE

    @property
    def migrates(self) -> bool:
        """Whether all replicas of the named topics are to be on the named brokers, and everything else is to stay."""
        return self.mode is PlanMode.REBALANCE and bool(self.topics) and bool(self.brokers)
