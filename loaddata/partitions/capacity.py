"""What a broker can carry; goals that keep limits ask for it. None: not known, no limit is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Of one broker. Bytes in and out count clients and replication. CPU is one broker: 1.0."""

    disk_bytes: int | None = None
    bytes_in_per_s: int | None = None
    bytes_out_per_s: int | None = None
    cpu: float | None = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacities:
    """Of all brokers: those that are named, else the default, and a disk of unknown size from the log directories."""

    default: Capacity = field(default_factory=Capacity)
    of: Mapping[int, Capacity] = field(default_factory=lambda: MappingProxyType({}))
