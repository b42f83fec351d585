"""One incident of a channel or its registry, and its words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

KEPT_MAX = 200
"""Number of newest incidents that are kept."""


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
    DISMISSED = "dismissed"
    MODE = "mode"
    REPAIR_PAUSED = "repair-paused"
    SILENCE = "silence"
    STANDSTILL = "standstill"
    FORGED = "forged"
    POLICY = "policy"


class Incident(NamedTuple):
    """One incident.

    Attributes:
        at_ms: The log's time at which it began.
        message: A sentence.
        lost: The broker that it is about, of a loss (`LOST`, `OWNER_LOST`).
    """

    at_ms: int
    kind: IncidentKind
    message: str
    lost: str | None = None


def without_repaired(incidents: Iterable[Incident]) -> list[Incident]:
    """One incident for each lost broker: the log's, where that has the repair of its bundles, in place of the registry's."""
    every = list(incidents)
    repaired = {(incident.lost, incident.at_ms) for incident in every if incident.kind is IncidentKind.OWNER_LOST}
    return [
        incident
        for incident in every
        if incident.kind is not IncidentKind.LOST or (incident.lost, incident.at_ms) not in repaired
    ]


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


@dataclass(slots=True)
class DeclineCount:
    """How often a broker declined bundles, as a failing hook does.

    Attributes:
        waiting: Bundles that it declined and that no broker serves since; at most as many as incidents are kept.
        reason: Of the newest, by its record; empty without one.
        newest_ms: Log time of the newest; `bundle` is the one declined then.
    """

    broker: str
    times: int = 0
    waiting: dict[str, None] = field(default_factory=dict)
    bundle: str = ""
    reason: str = ""
    newest_ms: int = 0

    @property
    def message(self) -> str:
        """As a sentence."""
        times = "once" if self.times == 1 else f"{self.times} times"
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.broker} declined bundles {times}, {self.bundle} the last{reason}"
