"""Capacities of brokers, for goals with limits. None: unknown, without a limit."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from loaddata.samples.strict_json import NUMBER_MAX, STRICT, cut, read_raw, sentence, told
from statechannel.errors import ExitCode, StateChannelError


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCapacity:
    """Capacity of one broker. Bytes in and out include replication. CPU: 1.0 is the whole broker."""

    disk_bytes: int | None = None
    bytes_in_per_s: int | None = None
    bytes_out_per_s: int | None = None
    cpu: float | None = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacities:
    """Capacities of all brokers: by name, else the default; an unknown disk size is read from the log directories."""

    default: BrokerCapacity = field(default_factory=BrokerCapacity)
    of: Mapping[int, BrokerCapacity] = field(default_factory=lambda: MappingProxyType({}))


_SIZE_MAX_BYTES: Final = 16 << 20
_NAMES: Final = tuple(field.name for field in fields(BrokerCapacity))


class CapacityUnusableError(StateChannelError):
    """A file of capacities cannot be read or is invalid."""

    def __init__(self, message: str, hint: str = "") -> None:
        named = f"Use tables [default] and [brokers.ID] with the keys {', '.join(_NAMES)}."
        super().__init__(message, hint=hint or named, exit_code=ExitCode.BAD_EXPORT)


class _File(BaseModel):
    model_config = STRICT
    default: BrokerCapacity = BrokerCapacity()
    brokers: dict[str, BrokerCapacity] = {}


def read_capacities(path: Path) -> Capacities:
    """Read a file of capacities.

    Raises:
        CapacityUnusableError: The file cannot be read, or a capacity is unknown, not a number, or not positive.
    """
    raw = read_raw(path, CapacityUnusableError, size_max_bytes=_SIZE_MAX_BYTES)
    try:
        document = tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:  # includes invalid UTF-8 and invalid TOML
        raise CapacityUnusableError(f"{path} is not valid TOML: {cut(str(error))}") from error
    try:
        file = _File.model_validate_json(
            json.dumps(document, default=str)
        )  # strict values, lists and tables as in JSON
    except ValidationError as error:
        faults = [sentence(fault) for fault in error.errors(include_url=False)]
        raise CapacityUnusableError(told(path, faults)) from error
    named: Mapping[str, Any] = document.get("brokers", {})
    of = {_broker(name, path): _over(file.default, own, named[name]) for name, own in file.brokers.items()}
    faults = [
        f"{where}.{name}: expected more than 0, got {value}"
        for where, capacity in {
            "default": file.default,
            **{f"brokers.{id_}": capacity for id_, capacity in of.items()},
        }.items()
        for name in _NAMES
        if (value := getattr(capacity, name)) is not None and not 0 < value <= NUMBER_MAX
    ]
    if faults:
        raise CapacityUnusableError(told(path, faults))
    return Capacities(default=file.default, of=MappingProxyType(dict(sorted(of.items()))))


def _over(default: BrokerCapacity, own: BrokerCapacity, named: Iterable[str]) -> BrokerCapacity:
    return replace(default, **{name: getattr(own, name) for name in named})


def _broker(name: str, path: Path) -> int:
    if not (name.isascii() and name.isdecimal() and len(name) <= 10):  # noqa: PLR2004 - digits of an id
        raise CapacityUnusableError(f"{path}: brokers.{cut(name)} is not a valid broker id")
    return int(name)
