"""Timing of hand-overs: duration of each phase by log time, and of the gap in service."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from statechannel.protocol.bounded import remember
from statechannel.protocol.states import IN_FLIGHT, Flow, State

if TYPE_CHECKING:
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.record import Record

_PHASES = {State.ASSIGNING: "acquire", State.RELEASING: "release", State.SPLITTING: "split"}
FLOWS = frozenset(flow.value for flow in Flow)
LOST = "lost"


class _Handover(NamedTuple):
    """A bundle in flight.

    Attributes:
        since_ms: Log time of its newest record.
        unserved_ms: Since when it is unserved; -1 if it may be served, or never was.
        seen_s: When this process saw the first record (monotonic).
    """

    state: State
    since_ms: int
    began_ms: int
    unserved_ms: int
    cause: str
    seen_s: float


class HandoverPhase(NamedTuple):
    """The end of a phase, and of the hand-over if complete.

    Attributes:
        phase: `acquire`, `release` or `split`.
        whole_s: From the first record; None if the hand-over continues.
        gap_s: Length of the gap in service; None if it has not ended, or there was none.
        cause: Of the gap: the flow, or `lost`.
    """

    flow: str
    phase: str
    phase_s: float
    whole_s: float | None
    gap_s: float | None
    cause: str
    began_ms: int
    since_ms: int


class HandoverTimings:
    """Follows accepted records. Hand-overs that began earlier are not timed."""

    def __init__(self, at_once_max: int = 100_000) -> None:
        self._max = at_once_max
        self._flying: dict[bytes, _Handover] = {}

    def accepted(self, record: Record, read: RecordRead, now_s: float) -> HandoverPhase | None:
        """Apply an accepted record; returns what it ended."""
        key, state, at_ms = read.key or b"", record.state, read.timestamp_ms
        before = self._flying.pop(key, None)
        flying = state in IN_FLIGHT
        if before is None and not flying:
            return None
        flow = flow_of(record)
        unserved_ms, cause = (-1, flow) if before is None else (before.unserved_ms, before.cause)
        if record.forced:
            lost_ms = _last_heard_ms(record)
            if lost_ms is not None:
                cause, unserved_ms = LOST, min(lost_ms, unserved_ms) if unserved_ms >= 0 else lost_ms
        elif state is State.RELEASING and record.to is not None:
            unserved_ms = at_ms
        if flying:
            first = before or _Handover(state, at_ms, at_ms, -1, cause, now_s)
            flight = _Handover(state, at_ms, first.began_ms, unserved_ms, cause, first.seen_s)
            remember(self._flying, key, flight, self._max)
        if before is None:
            return None
        served = state is State.ASSIGNED
        return HandoverPhase(
            flow,
            _PHASES.get(before.state, "none"),
            max(0, at_ms - before.since_ms) / 1_000,
            None if flying else max(0, at_ms - before.began_ms) / 1_000,
            max(0, at_ms - unserved_ms) / 1_000 if served and unserved_ms >= 0 else None,
            cause,
            before.began_ms,
            before.since_ms,
        )

    def restart(self) -> None:
        self._flying.clear()

    def __len__(self) -> int:
        return len(self._flying)

    def oldest_s(self, now_s: float) -> float:
        """Age of the oldest; 0 without any. Scans all."""
        return max((now_s - handover.seen_s for handover in self._flying.values()), default=0.0)


def flow_of(record: Record) -> str:
    flow = record.text("flow")
    return flow if flow in FLOWS else "other"


def _last_heard_ms(record: Record) -> int | None:
    lost = record.raw.get("lost")
    value = lost.get("last_heard_ms") if isinstance(lost, dict) else None
    return value if type(value) is int and value > 0 else None
