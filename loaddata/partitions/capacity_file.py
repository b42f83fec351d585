"""What brokers can carry, from a TOML file.

    [default]                        # of every broker
    bytes_in_per_s = 100_000_000
    bytes_out_per_s = 300_000_000

    [brokers.3]                      # stands over the default
    disk_bytes = 4_000_000_000_000
    cpu = 0.8

Fields are those of `Capacity`. What is not named is not limited; a disk's size is then taken from the log directories.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from loaddata.partitions.capacity import Capacities, Capacity
from loaddata.partitions.strict_json import NUMBER_MAX, STRICT, cut, read_raw, sentence, told
from statechannel.errors import ExitCode, StateChannelError

_SIZE_MAX_BYTES: Final = 16 << 20
_NAMES: Final = tuple(one.name for one in fields(Capacity))


class CapacityUnusableError(StateChannelError):
    """A file of capacities cannot be read, or says what cannot be."""

    def __init__(self, message: str, hint: str = "") -> None:
        named = f"Say it by [default] and [brokers.ID]; a broker has {', '.join(_NAMES)}."
        super().__init__(message, hint=hint or named, exit_code=ExitCode.BAD_EXPORT)


class _File(BaseModel):
    model_config = STRICT
    default: Capacity = Capacity()
    brokers: dict[str, Capacity] = {}


def read_capacities(path: Path) -> Capacities:
    """Read them.

    Raises:
        CapacityUnusableError: It cannot be read, or a capacity is unknown, no number, zero or less.
    """
    raw = read_raw(path, CapacityUnusableError, size_max_bytes=_SIZE_MAX_BYTES)
    try:
        document = tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:  # no UTF-8 and no TOML are among them
        raise CapacityUnusableError(f"{path} is no TOML: {cut(str(error))}") from error
    try:
        file = _File.model_validate_json(
            json.dumps(document, default=str)
        )  # strict values, lists and tables as in JSON
    except ValidationError as error:
        faults = [sentence(one) for one in error.errors(include_url=False)]
        raise CapacityUnusableError(told(path, faults)) from error
    named: Mapping[str, Any] = document.get("brokers", {})
    of = {_broker(name, path): _over(file.default, own, named[name]) for name, own in file.brokers.items()}
    faults = [
        f"{where}.{name}: more than 0 is wanted, found {value}"
        for where, one in {"default": file.default, **{f"brokers.{id_}": one for id_, one in of.items()}}.items()
        for name in _NAMES
        if (value := getattr(one, name)) is not None and not 0 < value <= NUMBER_MAX
    ]
    if faults:
        raise CapacityUnusableError(told(path, faults))
    return Capacities(default=file.default, of=MappingProxyType(dict(sorted(of.items()))))


def _over(default: Capacity, own: Capacity, named: Iterable[str]) -> Capacity:
    return replace(default, **{name: getattr(own, name) for name in named})


def _broker(name: str, path: Path) -> int:
    if not (name.isascii() and name.isdecimal() and len(name) <= 10):  # noqa: PLR2004 - digits of an id
        raise CapacityUnusableError(f"{path}: brokers.{cut(name)} is no id of a broker")
    return int(name)
