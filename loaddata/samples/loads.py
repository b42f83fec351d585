"""The load of each partition that goals work with: averages of samples over a window, and how complete they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

CPU_UNITS = 1_000_000
"""A whole broker's CPU. Loads are whole numbers, so that a move and its inverse leave sums exactly as they were."""


class PartitionResource(StrEnum):
    """What a partition takes of a broker."""

    DISK = "disk"
    BYTES_IN = "bytes-in"
    BYTES_OUT = "bytes-out"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoad:
    """Load of a partition's leader; None: not known. See `formulas` for what a follower carries.

    Attributes:
        disk_bytes: Size of one replica.
        bytes_in_per_s: From clients to the leader.
        bytes_out_per_s: From the leader to clients.
        cpu_units: Millionths of a broker's CPU.
        completeness: Part of the window's minutes that have a sample, 0 to 1, the least over the resources that are known.
    """

    disk_bytes: int | None = None
    bytes_in_per_s: int | None = None
    bytes_out_per_s: int | None = None
    cpu_units: int | None = None
    completeness: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoads:
    """All partitions' loads.

    Attributes:
        of: By topic and partition. Partitions that are not in it have no known load.
        from_ms: Start of the window (wall clock); 0: no window, sizes as they are now.
        to_ms: Its end.
        source: Where they are from, for people.
    """

    of: Mapping[tuple[str, int], PartitionLoad] = field(default_factory=lambda: MappingProxyType({}))
    from_ms: int = 0
    to_ms: int = 0
    source: str = ""
