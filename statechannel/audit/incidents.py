"""Incidents in a channel's log: lost owners with their repair, long gaps, cold starts. Pure folds.

Incidents in the registry are in `registry_incidents`; both are merged by time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from statechannel.audit.gaps import Gap, GapCause, Gaps, lost_of
from statechannel.protocol.bounded import remember
from statechannel.protocol.cold_start_marks import Mark, Marks
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement

KEPT_MAX = 200
"""Number of newest incidents that are kept."""


class IncidentKind(StrEnum):
    """Kind of an incident."""

    OWNER_LOST = "owner-lost"
    GAP = "gap"
    DRAIN = "drain"
    COLD_START = "cold-start"
    LEADER = "leader"
    LOST = "lost"
    STARTED = "started"
    LEFT = "left"
    MODE = "mode"
    REPAIR_PAUSED = "repair-paused"
    SILENCE = "silence"


class Incident(NamedTuple):
    """One incident. `message` is a sentence; `at_ms` the log's time at which it began."""

    at_ms: int
    kind: IncidentKind
    message: str


def newest(incidents: Iterable[Incident], wanted: int) -> list[Incident]:
    """The newest incidents, the newest first."""
    return sorted(incidents, key=lambda incident: -incident.at_ms)[:wanted]


def seconds(length_ms: float) -> str:
    """A duration as text."""
    return f"{length_ms / 1_000:.1f} s" if length_ms < 120_000 else f"{length_ms / 60_000:.1f} min"  # noqa: PLR2004


@dataclass(slots=True)
class _Lost:
    """A lost broker, and the repairs of its bundles by partition and offset."""

    broker: str
    last_heard_ms: int
    by: dict[str, None]
    bundles: set[KeyState]
    repairs: set[tuple[int, int]]
    newest_ms: int


class ChannelIncidents:
    """Incidents in a channel's log. Feed it an audit's observations in log order.

    Args:
        gap_over_ms: Shorter gaps in service are not incidents.
    """

    def __init__(self, gap_over_ms: float) -> None:
        self._gap_over_ms = gap_over_ms
        self._gaps = Gaps()
        self._lost: dict[tuple[str, str | None], _Lost] = {}
        self._long: dict[tuple[str, int, int], Gap] = {}
        self._cold_starts: dict[tuple[int, int], Incident] = {}
        self._marks: dict[int, Marks] = {}

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        """Apply one judged record."""
        if judgement.verdict is Verdict.CONTROL:
            self._control(record)
            return
        self._gaps.observe(record, judgement)
        change = judgement.record
        if judgement.verdict is not Verdict.ACCEPTED or change is None or judgement.key is None:
            return
        lost = lost_of(change) if change.forced else None
        if lost is not None:
            name = (lost.broker, lost.incarnation)
            held = self._lost.get(name)
            if held is None:
                held = _Lost(lost.broker, lost.last_heard_ms, {}, set(), set(), record.timestamp_ms)
                remember(self._lost, name, held, KEPT_MAX)
            held.by[change.broker] = None
            held.bundles.add(judgement.key)
            held.repairs.add((record.partition, record.offset))
            held.newest_ms = record.timestamp_ms
        self._note_gaps()

    def _note_gaps(self) -> None:
        for gap in self._gaps.closed:
            if (gap.length_ms or 0) > self._gap_over_ms:
                remember(self._long, (gap.bundle, gap.partition, gap.start_offset), gap, KEPT_MAX)
        self._gaps.closed.clear()  # a display that stays open must not grow

    def _control(self, record: RecordRead) -> None:
        control = self._marks.setdefault(record.partition, Marks()).control_read(record)
        if isinstance(control, Mark):
            self._cold_start(record, control)

    def _cold_start(self, record: RecordRead, mark: Mark) -> None:
        message = (
            f"cold start: {mark.writer} accepted its view of partition {record.partition}, through offset "
            f"{mark.through}, as the truth"
        )
        remember(
            self._cold_starts,
            (record.partition, record.offset),
            Incident(record.timestamp_ms, IncidentKind.COLD_START, message),
            KEPT_MAX,
        )

    def all(self) -> list[Incident]:
        """All kept incidents, in no particular order."""
        incidents = list(self._cold_starts.values())
        incidents += [self._of_lost(lost) for lost in self._lost.values()]
        incidents += [
            _of_gap(gap) for gap in self._long.values() if gap.cause is not GapCause.OWNER_LOST or not gap.repaired
        ]
        return incidents

    def _of_lost(self, lost: _Lost) -> Incident:
        many = len(lost.bundles)
        took = f"; the last one {seconds(lost.newest_ms - lost.last_heard_ms)} after it was last heard"
        gaps = [
            gap.length_ms or 0
            for gap in self._long.values()
            if gap.cause is GapCause.OWNER_LOST and (gap.partition, gap.start_offset) in lost.repairs
        ]
        longest = f"; the longest gap in service was {seconds(max(gaps))}" if gaps else ""
        message = f"{lost.broker} was lost; {' and '.join(lost.by)} repaired {_bundles(many)}{took}{longest}"
        return Incident(lost.last_heard_ms, IncidentKind.OWNER_LOST, message)


def _bundles(many: int) -> str:
    return "1 bundle" if many == 1 else f"{many} bundles"


def _of_gap(gap: Gap) -> Incident:
    return Incident(
        gap.start_ms, IncidentKind.GAP, f"no broker served {gap.bundle} for {seconds(gap.length_ms or 0)}: {gap.why}"
    )
