"""One incident of a channel or its registry, and its words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from statechannel.audit.acknowledgements import Acknowledgements, acknowledged_sentence
from statechannel.audit.writers import Disowned

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
        disowned: Of forged records that a broker reports: which.
        lost: The broker that it is about, of a loss (`LOST`, `OWNER_LOST`).
    """

    at_ms: int
    kind: IncidentKind
    message: str
    disowned: Disowned | None = None
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


def without_listed(
    incidents: Iterable[Incident], forged: Sequence[Mapping[str, Any]], acknowledged: Acknowledgements
) -> list[Incident]:
    """The incidents of a registry, without reports of records that the log's own list of forged ones has.

    Other reports of forged records say who acknowledged them.
    """
    listed = [
        incident for incident in incidents if incident.disowned is None or not incident.disowned.is_listed(forged)
    ]
    return [_with_acknowledgement(incident, acknowledged) for incident in listed]


def _with_acknowledgement(incident: Incident, acknowledged: Acknowledgements) -> Incident:
    item = None if incident.disowned is None else acknowledged.of_report(incident.disowned.forged)
    if item is None:
        return incident
    return incident._replace(message=f"{incident.message}; {acknowledged_sentence(item.fields())}")


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
