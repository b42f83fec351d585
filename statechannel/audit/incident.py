"""One incident of a channel or its registry, and its words."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class IncidentKind(StrEnum):
    """Kind of an incident."""

    OWNER_LOST = "owner-lost"
    GAP = "gap"
    DECLINED = "declined"
    DRAIN = "drain"
    NAMESPACE_DELETED = "namespace-deleted"
    COLD_START = "cold-start"
    LEADER = "leader"
    LOST = "lost"
    STARTED = "started"
    LEFT = "left"
    MODE = "mode"
    REPAIR_PAUSED = "repair-paused"
    SILENCE = "silence"
    STANDSTILL = "standstill"
    FORGED = "forged"


class Incident(NamedTuple):
    """One incident. `message` is a sentence; `at_ms` the log's time at which it began."""

    at_ms: int
    kind: IncidentKind
    message: str


def newest(incidents: Iterable[Incident], wanted: int) -> list[Incident]:
    return sorted(incidents, key=lambda incident: -incident.at_ms)[:wanted]


def seconds(length_ms: float) -> str:
    return f"{length_ms / 1_000:.1f} s" if length_ms < 120_000 else f"{length_ms / 60_000:.1f} min"  # noqa: PLR2004
