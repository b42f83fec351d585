"""One incident of a channel or its registry, and its words; bundles that were declined; records that were forged. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from statechannel.protocol.bounded import remember

KEPT_MAX = 200
"""Number of newest incidents that are kept."""


class IncidentKind(StrEnum):
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


_REASON_MAX: Final = 300
DECLINED_MAX: Final = 10_000


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
        times = "once" if self.times == 1 else f"{self.times} times"
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.broker} declined bundles {times}, {self.bundle} the last{reason}"


@dataclass(slots=True)
class DeclinedBundle:
    """A bundle that brokers declined and that no broker has served since.

    Attributes:
        since_ms: Log time since which it has had no owner; of a bundle that never had one, of the first decline.
        reasons: By broker and incarnation, of its newest decline.
    """

    since_ms: int
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)


class Declines:
    """All of them, in the order of the log.

    Attributes:
        bundles: By name; the newest `DECLINED_MAX`.
        counts: By broker; the one that declined last comes last.
    """

    def __init__(self) -> None:
        self.bundles: dict[str, DeclinedBundle] = {}
        self.counts: dict[str, DeclineCount] = {}

    def note(self, bundle: str, process: tuple[str, str], reason: str | None, at_ms: int, since_ms: int | None) -> None:
        """A process declined a bundle.

        Args:
            process: Broker and incarnation.
            since_ms: Since when no broker has served it; None: never one has.
        """
        count = self.counts.get(process[0]) or DeclineCount(process[0])
        remember(self.counts, process[0], count, KEPT_MAX)
        count.times += 1
        count.bundle, count.newest_ms, count.reason = bundle, at_ms, (reason or "")[:_REASON_MAX]
        remember(count.waiting, bundle, None, KEPT_MAX)
        held = self.bundles.get(bundle) or DeclinedBundle(at_ms if since_ms is None else since_ms)
        remember(self.bundles, bundle, held, DECLINED_MAX)
        remember(held.reasons, process, count.reason, KEPT_MAX)

    def forget(self, bundles: Iterable[str]) -> None:
        """These are served, or gone."""
        for bundle in bundles:
            self.bundles.pop(bundle, None)
            for count in self.counts.values():
                count.waiting.pop(bundle, None)

    def forget_namespace(self, namespace: str) -> None:
        self.forget([name for name in self.bundles if name.startswith(f"{namespace}/")])

    def count_rows(self, at_ms: int) -> list[dict[str, Any]]:
        """The key `declines` of `status`."""
        return [
            {
                "broker": count.broker,
                "times": count.times,
                "waiting": len(count.waiting),
                "bundle": count.bundle,
                "reason": count.reason,
                "age_ms": max(0, at_ms - count.newest_ms),
            }
            for count in self.counts.values()
        ]

    def bundle_rows(self, brokers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The key `declined_bundles` of `status`: those that running processes declined, the longest unserved first.

        A process that is shutting down declines everything, and one that started later has not been asked.

        Args:
            brokers: Rows of brokers.
        """
        takers = {row["broker"] for row in brokers if row["accepting"]}
        asked = {(row["broker"], row["incarnation"]) for row in brokers if row["state"] == "alive"}
        rows = []
        for name, declined in self.bundles.items():
            by = {broker: reason for (broker, own), reason in declined.reasons.items() if (broker, own) in asked}
            if by:
                not_asked = sorted(takers - by.keys())
                rows.append({"bundle": name, "since_ms": declined.since_ms, "by": by, "not_asked": not_asked})
        return sorted(rows, key=lambda row: row["since_ms"])


FORGED_SHOWN_MS: Final = 3_600_000
"""How long reports of forged records are shown as a problem after the newest record: as long as the registry keeps heartbeats."""
_TOPIC_SHOWN = 20


class ForgedRecords(NamedTuple):
    """How many forged records a broker reports, and the place and log time of the newest one."""

    records: int
    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    def is_shown(self, at_ms: int) -> bool:
        """Whether the report is shown as a problem at a log time."""
        return at_ms - self.timestamp_ms <= FORGED_SHOWN_MS

    def sentence(self, broker: str) -> str:
        records = "1 record" if self.records == 1 else f"{self.records} records"
        return (
            f"{broker} has read {records} in its own name that it did not write, "
            f"the newest in the {self.topic} at partition {self.partition}, offset {self.offset}"
        )


def forged_of(info: Mapping[str, Any], at_ms: int) -> ForgedRecords | None:
    """The report of a heartbeat; None if it has none, or a malformed one.

    Args:
        at_ms: Time of the heartbeat, for one that does not have the time of the newest.
    """
    fields = info.get("forged")
    if not isinstance(fields, dict):
        return None
    records, topic, partition, offset = (fields.get(name) for name in ForgedRecords._fields[:4])
    if not isinstance(topic, str) or not all(
        type(number) is int and number >= 0 for number in (records, partition, offset)
    ):
        return None
    newest_ms = fields.get("timestamp_ms")
    if type(newest_ms) is not int:
        newest_ms = at_ms
    return ForgedRecords(records, topic[:_TOPIC_SHOWN], partition, offset, newest_ms) if records else None  # type: ignore[arg-type]
