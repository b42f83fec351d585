"""Figures of `statechannel status`, computed from the log and the registry, without I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from statechannel.audit.incidents import ChannelIncidents
from statechannel.audit.log_times import LogTimes, VerdictRates
from statechannel.audit.views import LogViews
from statechannel.cli.brokers import members, silence_of
from statechannel.cli.kit.remarks import Remarks
from statechannel.conditions.facts import (
    ConditionLimits,
    Facts,
    MovingBundle,
    broker_rows,
    bundle_facts,
    is_unowned,
    leader_of,
    pauses_of,
)
from statechannel.conditions.table import current, reasons_of, verdict_of
from statechannel.protocol.log import RecordRead
from statechannel.protocol.states import State
from statechannel.protocol.view import Judgement
from statechannel.replay.part import Observer
from statechannel.stories.incident import Incident, IncidentKind, newest, without_repaired
from statechannel.stories.processes import RegistryStory
from statechannel.stories.registry import Registry

INCIDENTS = 8
GAP_OVER_S = 1.0


@dataclass(slots=True)
class StatusInputs:
    """Observers of log and registry.

    Attributes:
        story: Of the registry.
        times: Of the channel's records.
        gap_over_ms: Shorter gaps in service are not incidents.
    """

    story: RegistryStory
    times: LogTimes = field(default_factory=LogTimes)
    rates: VerdictRates = field(default_factory=VerdictRates)
    gap_over_ms: float = GAP_OVER_S * 1_000
    incidents: ChannelIncidents = field(init=False)

    def __post_init__(self) -> None:
        self.incidents = ChannelIncidents(self.gap_over_ms, writers=self.story.writers)

    def observers(self) -> list[Observer]:
        return [self.times.observe, self.rates.observe, self.incidents.observe]

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        for observer in self.observers():
            observer(record, judgement)


def with_health(fields: Mapping[str, Any], limits: ConditionLimits) -> dict[str, Any]:
    """The figures of `status`, led by the verdict and its reasons."""
    problems = reasons_of(current(cast("Facts", fields), limits))
    reasons = [{"reason": problem.code, "message": problem.sentence, "due_to": problem.due_to} for problem in problems]
    return {"health": verdict_of(problems).value, "problems": reasons, **fields}


def figures(
    views: LogViews,
    registry: Registry,
    inputs: StatusInputs,
    notes: Remarks,
    *,
    channel: str,
    bootstrap_servers: str,
    context: str = "",
    drains: Sequence[Incident] = (),
    incidents: int = INCIDENTS,
) -> dict[str, Any]:
    """The document that `status --output json` prints (design/cli.md). Ages are computed from `registry.read_at_ms`."""
    at_ms = registry.read_at_ms
    live = views.live()
    dismissed = [Incident(item.at_ms, IncidentKind.DISMISSED, item.sentence) for item in registry.dismissed]
    of_both = without_repaired([*inputs.story.incidents, *inputs.incidents.all()])
    every = [*of_both, *drains, *dismissed, *notes.changes]
    debts = _debts(views, inputs.times, at_ms)
    rows = members(registry, views, notes)
    declined = inputs.incidents.declines.bundle_rows(rows)
    owned = Counter(key.owner for key in live if key.owner is not None)
    bundles = bundle_facts(_moving(views, inputs), owned, rows, {row["bundle"] for row in declined}, at_ms)
    return {
        "channel": channel,
        "bootstrap_servers": bootstrap_servers,
        "context": context or None,
        "at_ms": at_ms,
        "blind_since_ms": None,
        **leadership(registry, inputs.story, at_ms),
        "tentative": views.tentative,
        "stopped": stopped_of(views),
        "partitions": [
            {
                "partition": part.view.partition,
                "applied": part.view.applied,
                "newest_record_ago_ms": max(0, at_ms - newest_ms) if newest_ms else None,
                "debts": len(part.view.ledger.open),
                "in_flight": len(part.view.in_flight),
                "restated_below": None if part.head is None else part.head.first,
            }
            for part, newest_ms in zip(views.parts, views.newest_ms, strict=True)
        ],
        "bundles": len(live),
        "assigned": sum(key.state is State.ASSIGNED for key in live),
        "unassigned": sum(key.state in (None, State.UNASSIGNED) for key in live),
        "without_owner": bundles["without_owner"],
        "orphans": sum(key.owner is not None and key.owner not in registry.members.alive for key in live),
        "without_service": bundles["without_service"],
        "debts": debts,
        "oldest_debt_ms": debts[0]["age_ms"] if debts else None,
        "in_flight": bundles["in_flight"],
        "dismissed": [item.fields() for item in registry.dismissed],
        "repair_paused": pauses_of(registry.members, silence_of(registry), at_ms),
        "declines": inputs.incidents.declines.count_rows(at_ms),
        "disowned": [forged.sentence(broker) for broker, forged in inputs.story.forged_at(at_ms)],
        "doubled": inputs.story.doubled_at(at_ms),
        "declined_bundles": declined,
        "deleted_namespaces": [
            {
                "namespace": item.namespace,
                "bundles": item.bundles,
                "by": inputs.incidents.requesters.get(item.operation or ""),
            }
            | {"ago_ms": max(0, at_ms - item.at_ms)}
            for item in inputs.incidents.deletions
        ],
        "remarks": [*([] if registry.future is None else [registry.future.sentence]), *notes.cluster],
        "brokers": [row | _late(row, views, registry, inputs.times) for row in rows],
        "rates": inputs.rates.per_minute(max(inputs.rates.newest_ms, inputs.story.newest_ms)),
        "incidents_older": max(0, len(every) - incidents),
        "incidents": [
            {"at_ms": incident.at_ms, "kind": incident.kind.value, "message": incident.message}
            for incident in newest(every, incidents)
        ],
    }


def stopped_of(views: LogViews) -> dict[str, Any]:
    """The record of a newer format at which reading stopped, by partition."""
    stops = {str(part.view.partition): part.stop for part in views.parts if part.stop is not None}
    return {partition: {"offset": stop.offset, "format": stop.format} for partition, stop in stops.items()}


def _moving(views: LogViews, inputs: StatusInputs) -> list[MovingBundle]:
    return [
        MovingBundle(
            key.name, key.state, key.from_, key.to, inputs.times.of(part.view.partition, key.offset),
            inputs.incidents.open_gap_since_ms(key.name), key.operation, key.flow,
        )
        for part in views.parts
        for key in (*part.view.in_flight, *(key for key in part.view.live() if is_unowned(key.state, key.flow)))
        if key.state is not None
    ]  # fmt: skip


def registry_facts(registry: Registry, story: RegistryStory) -> Facts:
    """What the registry alone says, for conditions."""
    at_ms = registry.read_at_ms
    return cast("Facts", {
        "at_ms": at_ms, "blind_since_ms": None, **leadership(registry, story, at_ms), "doubled": story.doubled_at(at_ms),
        "disowned": [forged.sentence(broker) for broker, forged in story.forged_at(at_ms)],
        "brokers": broker_rows(registry.members, {}, {}, silence_of(registry)),
    })  # fmt: skip


def leadership(registry: Registry, story: RegistryStory, at_ms: int) -> dict[str, Any]:
    """The leader with its term and since when; or for how long there has been none."""
    leader = registry.leader
    process = None if leader is None else story.processes.get(leader.broker)
    leads_ms = None if process is None else process.leads_since_ms
    term = None if leader is None else leader.info.get("term")
    since = max(story.led_ms or 0, story.heard_from_ms)  # without heartbeats there was no leader
    without_ms = None if leader is not None or not since else max(0, at_ms - since)
    return {
        "leader": leader_of(registry.members),
        "term": term if isinstance(term, int) and term >= 0 else None if process is None else process.claim,
        "leading_for_ms": None if leads_ms is None else max(0, at_ms - leads_ms),
        "no_leader_for_ms": without_ms,
    }


def _late(row: dict[str, Any], views: LogViews, registry: Registry, times: LogTimes) -> dict[str, int | None]:
    """Age of the first record that a broker had not applied at its last heartbeat."""
    member = registry.members.alive.get(row["broker"])
    applied = None if member is None else member.info.get("applied")
    if member is None or not isinstance(applied, dict):
        return {"lag_ms": None}
    waits = [0]
    for part in views.parts:
        at = applied.get(str(part.view.partition))
        if isinstance(at, int) and at < part.view.applied:
            first_ms = times.of(part.view.partition, at + 1)
            # What came after its heartbeat it may have read long since: only what was there by then counts.
            waits.append(0 if first_ms is None else member.heard_at_ms - first_ms)
    return {"lag_ms": max(waits)}


def _debts(views: LogViews, times: LogTimes, at_ms: int) -> list[dict[str, Any]]:
    debts = []
    for part in views.parts:
        for key, debt in part.view.ledger.open.items():
            since_ms = times.of(part.view.partition, debt.since_offset)
            debts.append(
                {
                    "key": key.name,
                    "partition": part.view.partition,
                    "since_offset": debt.since_offset,
                    "age_ms": None if since_ms is None else max(0, at_ms - since_ms),
                }
            )
    return sorted(debts, key=lambda debt: -(debt["age_ms"] or 0))
