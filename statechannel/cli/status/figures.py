"""Figures of `statechannel status`, computed from the log and the registry, without I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from statechannel.audit.incident import Incident, IncidentKind, newest, without_repaired
from statechannel.audit.incidents import ChannelIncidents
from statechannel.audit.log_times import LogTimes, VerdictRates
from statechannel.audit.registry_story import RegistryStory
from statechannel.audit.verdict_file import Observe
from statechannel.audit.views import LogViews
from statechannel.cli.brokers import leader_name, members
from statechannel.cli.kit.registry import Registry
from statechannel.cli.kit.remarks import Remarks
from statechannel.engine.membership import Member
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.states import Flow, State
from statechannel.protocol.view import Judgement

INCIDENTS = 8
GAP_OVER_S = 1.0
_NOT_ON_REQUEST = frozenset({Flow.SHUTDOWN, Flow.TRANSFER, Flow.REPAIR})
"""Flows whose Unassigned record means that a bundle was served, and was to be served on."""


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

    def observers(self) -> list[Observe]:
        return [self.times.observe, self.rates.observe, self.incidents.observe]

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        for observer in self.observers():
            observer(record, judgement)


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
    declined = _declined(live, registry, inputs.incidents)
    return {
        "channel": channel,
        "bootstrap_servers": bootstrap_servers,
        "context": context or None,
        "at_ms": at_ms,
        "blind_since_ms": None,
        **leadership(registry, inputs.story, at_ms),
        "tentative": views.tentative,
        "stopped": {
            str(part.view.partition): {"offset": part.stop.offset, "format": part.stop.format}
            for part in views.parts
            if part.stop is not None
        },
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
        "without_owner": _without_owner(views, inputs.times, {row["bundle"] for row in declined}),
        "orphans": sum(key.owner is not None and key.owner not in registry.members.alive for key in live),
        "without_service": _without_service(live, registry, inputs),
        "debts": debts,
        "oldest_debt_ms": debts[0]["age_ms"] if debts else None,
        "in_flight": _in_flight(views, registry, inputs.times, at_ms),
        "dismissed": [item.fields() for item in registry.dismissed],
        "repair_paused": [
            _pause(member, registry) for member in registry.members.alive.values() if member.info.get("repair_paused")
        ],
        "declines": [
            {
                "broker": count.broker,
                "times": count.times,
                "waiting": len(count.waiting),
                "bundle": count.bundle,
                "reason": count.reason,
                "age_ms": max(0, at_ms - count.newest_ms),
            }
            for count in inputs.incidents.declines
        ],
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
        "brokers": [row | _late(row, views, registry, inputs.times) for row in members(registry, views, notes)],
        "rates": inputs.rates.per_minute(max(inputs.rates.newest_ms, inputs.story.newest_ms)),
        "incidents_older": max(0, len(every) - incidents),
        "incidents": [
            {"at_ms": incident.at_ms, "kind": incident.kind.value, "message": incident.message}
            for incident in newest(every, incidents)
        ],
    }


def _pause(member: Member, registry: Registry) -> dict[str, Any]:
    """Why and for how long a broker does not repair, by its own clock and the time since it was heard, and since when."""
    sent_ms, resumes_ms = (member.info.get(name) for name in ("sent_at_ms", "repair_resumes_at_ms"))
    left_ms = None
    if type(sent_ms) is int and type(resumes_ms) is int:
        left_ms = max(0, resumes_ms - sent_ms - max(0, registry.read_at_ms - member.heard_at_ms))
    lost_ms = [
        lost.last_heard_ms
        for lost in registry.members.lost.values()
        if (lost.broker, lost.incarnation) not in registry.members.gone
    ]
    why = member.info["repair_paused"]
    return {"broker": member.broker, "why": why, "left_ms": left_ms, "lost_since_ms": min(lost_ms, default=None)}


def _without_service(live: Sequence[KeyState], registry: Registry, inputs: StatusInputs) -> dict[str, Any] | None:
    """Bundles that no broker serves until they are repaired, as the broker that owns or should take each is lost; None: none.

    Each is without service since its lost owner was last heard, or since the gap began that a lost destination should have ended.
    """
    lost: dict[str, None] = {}
    since_ms: list[int] = []
    owners = 0
    many = 0
    for key in live:
        broker = key.owner or _waits_for(key)["waits_for_broker"]
        if broker is None or broker in registry.members.alive:
            continue
        many += 1
        owners += key.state is State.ASSIGNED
        lost[broker] = None
        gone = registry.members.lost.get(broker)
        heard_ms = None if gone is None or key.owner is None else gone.last_heard_ms
        began_ms = inputs.incidents.open_gap_since_ms(key.name)
        since_ms += [began_ms] if began_ms is not None else [heard_ms] if heard_ms is not None else []
    if not many:
        return None
    return {"bundles": many, "assigned": owners, "brokers": sorted(lost), "since_ms": min(since_ms, default=None)}


def _without_owner(views: LogViews, times: LogTimes, declined: Collection[str]) -> dict[str, Any] | None:
    """Bundles that lost their owner though no unload was requested, the first of them, and when that was; None: there are none.

    Args:
        declined: Bundles that are reported as declined already.
    """
    waiting = [
        (times.of(part.view.partition, key.offset), key.name)
        for part in views.parts
        for key in part.view.live()
        if key.state is State.UNASSIGNED and key.flow in _NOT_ON_REQUEST and key.name not in declined
    ]
    if not waiting:
        return None
    known = [(at_ms, name) for at_ms, name in waiting if at_ms is not None]
    since_ms, bundle = min(known) if known else waiting[0]
    return {"bundles": len(waiting), "since_ms": since_ms, "bundle": bundle}


def _declined(live: Sequence[KeyState], registry: Registry, incidents: ChannelIncidents) -> list[dict[str, Any]]:
    """Bundles without an owner that running processes declined, the longest unserved first.

    A process that is shutting down declines everything, and one that started later has not been asked.
    """
    takers = {broker for broker, member in registry.members.alive.items() if member.accepting}
    rows: list[dict[str, Any]] = []
    for key in live:
        declined = incidents.declined.get(key.name)
        if declined is None or key.owner is not None:
            continue
        by = {
            broker: reason
            for (broker, incarnation), reason in declined.reasons.items()
            if (member := registry.members.alive.get(broker)) is not None
            and member.incarnation == incarnation
            and member.info.get("draining") is not True
        }
        if by:
            not_asked = sorted(takers - by.keys())
            rows.append({"bundle": key.name, "since_ms": declined.since_ms, "by": by, "not_asked": not_asked})
    return sorted(rows, key=lambda row: row["since_ms"])


def leadership(registry: Registry, story: RegistryStory, at_ms: int) -> dict[str, Any]:
    """The leader with its term and since when; or for how long there has been none."""
    leader = registry.leader
    process = None if leader is None else story.processes.get(leader.broker)
    leads_ms = None if process is None else process.leads_since_ms
    term = None if leader is None else leader.info.get("term")
    since = max(story.led_ms or 0, story.heard_from_ms)  # without heartbeats there was no leader
    without_ms = None if leader is not None or not since else max(0, at_ms - since)
    return {
        "leader": leader_name(registry),
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


def _in_flight(views: LogViews, registry: Registry, times: LogTimes, at_ms: int) -> list[dict[str, Any]]:
    operations = []
    for part in views.parts:
        for key in part.view.in_flight:
            since_ms = times.of(part.view.partition, key.offset)
            waits = _waits_for(key)
            operations.append(
                {
                    "bundle": key.name,
                    "state": None if key.state is None else key.state.value,
                    "from": key.from_,
                    "to": key.to,
                    "operation": key.operation,
                    "age_ms": None if since_ms is None else max(0, at_ms - since_ms),
                    **waits,
                    "waits_for_repair": waits["waits_for_broker"] not in (None, *registry.members.alive),
                }
            )
    return sorted(operations, key=lambda operation: -(operation["age_ms"] or 0))


def _waits_for(key: KeyState) -> dict[str, str | None]:
    """The broker and the hook that end a state in which no broker serves a bundle."""
    waits: dict[State | None, tuple[str | None, str]] = {
        State.RELEASING: (key.from_, "on_release"),
        State.ASSIGNING: (key.to, "on_own"),
        State.SPLITTING: (key.from_, "on_split"),
    }
    broker, hook = waits.get(key.state, (None, None))
    return {"waits_for_broker": broker, "waits_for_hook": hook}
