"""Bundles on their way: how long each phase of a hand-over took by the log's own time, and for how long nobody served."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from statechannel.protocol.bounded import remember
from statechannel.protocol.states import IN_FLIGHT, State

if TYPE_CHECKING:
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.record import Record

_PHASES = {State.ASSIGNING: "acquire", State.RELEASING: "release", State.SPLITTING: "split"}
FLOWS = frozenset({"assignment", "transfer", "unload", "split", "repair", "namespace"})
LOST = "lost"


class _Flight(NamedTuple):
    """A bundle that has not come to rest.

    Attributes:
        since_ms: Log time of the record that it is at.
        began_ms: Log time of the first record.
        unserved_ms: Since when nobody serves it; -1 where somebody may, or nobody did before.
        seen_s: When this process saw the first record (monotonic).
    """

    state: State
    since_ms: int
    began_ms: int
    unserved_ms: int
    cause: str
    seen_s: float


class Landing(NamedTuple):
    """The end of a phase, and of the whole where the bundle came to rest.

    Attributes:
        phase: `acquire`, `release` or `split`.
        whole_s: From the first record; None where the bundle goes on.
        gap_s: For so long nobody served; None where that has not ended, or never was.
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


class Flights:
    """Follows accepted records. What it did not see begin, it does not time."""

    def __init__(self, at_once_max: int = 100_000) -> None:
        self._max = at_once_max
        self._flying: dict[bytes, _Flight] = {}

    def accepted(self, record: Record, read: RecordRead, now_s: float) -> Landing | None:
        """Take in an accepted record; what came to an end by it."""
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
            first = before or _Flight(state, at_ms, at_ms, -1, cause, now_s)
            flight = _Flight(state, at_ms, first.began_ms, unserved_ms, cause, first.seen_s)
            remember(self._flying, key, flight, self._max)
        if before is None:
            return None
        served = state is State.ASSIGNED
        return Landing(
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
        """A partition is read anew: nothing that was seen before counts."""
        self._flying.clear()

    def __len__(self) -> int:
        return len(self._flying)

    def oldest_s(self, now_s: float) -> float:
        """Age of the oldest; 0 without any. Walks over all."""
        return max((now_s - handover.seen_s for handover in self._flying.values()), default=0.0)


def flow_of(record: Record) -> str:
    """The flow as a word of a few, whatever its writer wrote."""
    flow = record.text("flow")
    return flow if flow in FLOWS else "other"


def _last_heard_ms(record: Record) -> int | None:
    lost = record.raw.get("lost")
    value = lost.get("last_heard_ms") if isinstance(lost, dict) else None
    return value if type(value) is int and value > 0 else None
