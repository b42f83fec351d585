"""What the registry shows of the processes that write to the channel: when each was heard, and when it stood still. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from statechannel.protocol.bounded import remember
from statechannel.protocol.log import RecordRead

_PROCESSES_MAX = 100_000
_TIMES_MAX = 100_000
STILL_LEAST_MS = 2_000
_STILL_NEAR_MS = 1_500
_STILL_MAX = 100
EXPIRY_MS = 6_000
"""The default of `membership.expiry_s`, for processes whose heartbeats do not say their own."""
_EXPIRY_MAX_S = 3_600
_LATE_MS = 1_500
"""Heartbeats come every second."""


class Unheard(NamedTuple):
    """An owner that sent no heartbeat lately, and that the log does not show as lost.

    Attributes:
        last_ms: Log time of its last heartbeat.
        silent_ms: Time since, when the registry was read.
        expiry_ms: It is lost after so long a silence.
    """

    broker: str
    last_ms: int
    silent_ms: int
    expiry_ms: int

    def sentence(self) -> str:
        heard = f"{self.broker} was last heard {self.silent_ms / 1_000:.1f} s before the log was read"
        if self.silent_ms > self.expiry_ms:
            return f"{heard}: it is lost, and no repair is in the log yet: a gap from {_clock(self.last_ms)} on"
        return (
            f"{heard}, and is not lost before {self.expiry_ms / 1_000:g} s: this may yet become a gap, from "
            f"{_clock(self.last_ms)} on"
        )


def _clock(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%H:%M:%S}.{at_ms % 1_000:03d}Z"


def still_ms_between(before: Mapping[str, Any], info: Mapping[str, Any]) -> int:
    """Time by the process's own clock in which it made no heartbeat; one that is cut off from Kafka goes on making them."""
    beats = [(fields.get("seq"), fields.get("sent_at_ms")) for fields in (before, info)]
    (first, first_ms), (last, last_ms) = beats
    if not (type(first) is int and type(last) is int and type(first_ms) is int and type(last_ms) is int):
        return 0
    return (last_ms - first_ms) // (last - first) if last > first else 0


class TimesHeard:
    """Times of a process's records, the newest ones; they may come in any order.

    Args:
        most: How many are kept, at least.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._times_ms = array("q")
        self._sorted = True

    def note(self, at_ms: int) -> None:
        times = self._times_ms
        self._sorted = self._sorted and (not times or times[-1] <= at_ms)
        times.append(at_ms)
        if len(times) >= 2 * self._most:
            self._sort()
            del self._times_ms[: -self._most]

    @property
    def last_ms(self) -> int:
        """The newest time."""
        self._sort()
        return self._times_ms[-1]

    def first_after_ms(self, at_ms: int) -> int | None:
        """The first time after a moment; None: there is none."""
        self._sort()
        number = bisect_right(self._times_ms, at_ms)
        return self._times_ms[number] if number < len(self._times_ms) else None

    def _sort(self) -> None:
        if not self._sorted:
            self._times_ms = array("q", sorted(self._times_ms))
            self._sorted = True


@dataclass(slots=True)
class WritersHeard:
    """Feed it the heartbeats in log order (`statechannel.engine.membership.decode_member`).

    Attributes:
        since_ms: The heartbeats are complete from this log time on; 0: from the beginning; None: there is none.
        newest_ms: Log time of the newest heartbeat: the last one of the log.
        read_ms: When the registry was read; 0: not known, and the newest heartbeat counts.
        positions_lost: By partition, highest offset that brokers had read and that the log does not have, unless restated.
    """

    since_ms: int | None = None
    newest_ms: int = 0
    read_ms: int = 0
    positions_lost: Mapping[int, int] = field(default_factory=dict)
    _expiry_ms: dict[tuple[str, str], int] = field(default_factory=dict)
    _beat: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    _still: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    _left_ms: dict[tuple[str, str], int | None] = field(default_factory=dict)
    _heard_ms: dict[tuple[str, str], TimesHeard] = field(default_factory=dict)
    _last_ms: dict[tuple[str, str], int] = field(default_factory=dict)

    def observe(self, record: RecordRead, info: Mapping[str, Any]) -> None:
        """Apply one valid heartbeat."""
        if self.since_ms is None:
            self.since_ms = 0 if record.offset == 0 else record.timestamp_ms
        if record.timestamp_ms < self.newest_ms:  # Kafka's clock was set back: no time that is still to come counts
            self._last_ms = {name: min(last_ms, record.timestamp_ms) for name, last_ms in self._last_ms.items()}
        self.newest_ms = record.timestamp_ms
        process = info["broker"], info["incarnation"]
        times = self._heard_ms.get(process)
        if times is None:
            times = TimesHeard(_TIMES_MAX)
            remember(self._heard_ms, process, times, _PROCESSES_MAX)
        self._note_standstill(process, times, info)
        times.note(record.timestamp_ms)
        remember(self._last_ms, process, record.timestamp_ms, _PROCESSES_MAX)
        expiry_s = info.get("expiry_s")
        if isinstance(expiry_s, int | float) and 0 < expiry_s < _EXPIRY_MAX_S:
            remember(self._expiry_ms, process, round(expiry_s * 1_000), _PROCESSES_MAX)
        if info.get("leaving") is not True:
            remember(self._left_ms, process, None, _PROCESSES_MAX)
        elif self._left_ms.get(process) is None:
            remember(self._left_ms, process, record.timestamp_ms, _PROCESSES_MAX)

    def _note_standstill(self, process: tuple[str, str], times: TimesHeard, info: Mapping[str, Any]) -> None:
        beat = {name: info.get(name) for name in ("seq", "sent_at_ms")}
        still_ms = still_ms_between(self._beat.get(process, {}), beat)
        remember(self._beat, process, beat, _PROCESSES_MAX)
        if still_ms > STILL_LEAST_MS:
            known = [*self._still.get(process[0], ()), (times.last_ms, still_ms)]
            remember(self._still, process[0], known[-_STILL_MAX:], _PROCESSES_MAX)

    def stood_still_ms(self, broker: str | None, lost_ms: int) -> int | None:
        """How long a lost broker's process did not run, from about when it was last heard; None: it is not known to have been so.

        A process that was only cut off goes on making heartbeats, which the registry gets later.
        """
        known = self._still.get(broker or "", ())
        return next((still_ms for at_ms, still_ms in known if abs(at_ms - lost_ms) <= _STILL_NEAR_MS), None)

    def heard_after_ms(self, process: tuple[str, str], at_ms: int) -> int | None:
        """Log time of a process's first heartbeat after a moment; None: there is none."""
        times = self._heard_ms.get(process)
        return None if times is None else times.first_after_ms(at_ms)

    def unheard_since(self, broker: str, at_ms: int) -> Unheard | None:
        """An owner that was not heard after a moment, and said no goodbye; None: it was, or did, or is not known."""
        own = [(last_ms, process) for process, last_ms in self._last_ms.items() if process[0] == broker]
        last_ms, process = max(own, default=(0, ("", "")))
        if not own or last_ms > at_ms or self._left_ms.get(process) is not None:
            return None
        silent_ms = max(self.read_ms, self.newest_ms) - last_ms
        return Unheard(broker, last_ms, silent_ms, self._expiry_ms.get(process, EXPIRY_MS))

    def unheard_now(self, brokers: Iterable[str]) -> list[Unheard]:
        """Those of these owners that had missed heartbeats when the registry was read."""
        at_ms = max(self.read_ms, self.newest_ms) - _LATE_MS
        return [late for broker in sorted(brokers) if (late := self.unheard_since(broker, at_ms)) is not None]
