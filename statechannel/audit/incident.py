"""One incident of a channel or its registry, and its words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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


@dataclass(slots=True)
class RegistrySilence:
    """A time without any heartbeat.

    Attributes:
        incarnations: Processes that were heard before it; of those `survived` if one is heard after it.
        restarted: Only new processes were heard since.
    """

    since_ms: int
    length_ms: int
    incarnations: set[str]
    survived: bool = False
    restarted: bool = False

    @property
    def incident(self) -> Incident:
        why = "Kafka was unavailable, or no broker was running"
        if self.survived:
            why = "Kafka was unavailable to all brokers, or all stood still"
        elif self.restarted and self.incarnations:
            why = "all brokers were restarted, no process of before has been heard since"
        return Incident(self.since_ms, IncidentKind.SILENCE, f"no heartbeats for {seconds(self.length_ms)}: {why}")
