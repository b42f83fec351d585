"""Processes of the brokers by their heartbeats, by log time: when each was heard or stood still, and incidents of the last hour.

`engine.membership` has the current members, this has the history.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from statechannel.protocol.bounded import remember
from statechannel.protocol.log import RecordRead
from statechannel.stories.incident import (
    KEPT_MAX,
    ForgedRecords,
    Incident,
    IncidentKind,
    RegistrySilence,
    forged_of,
    seconds,
)

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
    """Feed it the heartbeats in log order (`stories.registry.heartbeats`).

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


_SKEWS = 30
_TOLD_WITHOUT_LEADER_MS = 1_000
_QUIET_MODES = ("starting", "settling")


def _safe_since_ms(process: RegisteredProcess, info: Mapping[str, Any], at_ms: int) -> int | None:
    """Log time at which the process entered safe mode, by its own clock and how far that is behind the log's."""
    since_ms, behind_ms = info.get("safe_since_ms"), process.clock_behind_ms
    if type(since_ms) is not int or behind_ms is None:
        return None
    return min(at_ms, max(process.first_ms, since_ms + behind_ms))


@dataclass(slots=True)
class RegisteredProcess:
    """One process, from its heartbeats.

    Attributes:
        first_ms, last_ms: Log times of its first and newest heartbeat.
        info: The newest one.
        left: It sent a goodbye.
        lost: Silent for longer than its expiry, and not heard since.
        leads_since_ms: Log time since which it claims leadership; None while it does not.
        old_claim: It was lost, and is heard again with the claim of before, while another process leads: it does not count.
        claim: Offset of its leadership claim, its term; None if that was not seen.
        forgeries: The incident of the forged records that it has read; it is counted up, and does not push others out.
        pause: The incident of its present pause of repair; its text is replaced as more brokers are lost.
        heard_before_ms: Log time of the heartbeat before the newest.
        still_at_ms: Log time at which it was last heard after a standstill.
        skews_ms: Log time minus its own clock, of the newest heartbeats; the least one has the least delay in it.
    """

    broker: str
    incarnation: str
    first_ms: int
    last_ms: int
    info: Mapping[str, Any]
    left: bool = False
    lost: bool = False
    leads_since_ms: int | None = None
    old_claim: bool = False
    claim: int | None = None
    forgeries: Incident | None = None
    pause: Incident | None = None
    mode_since_ms: int = 0
    heard_before_ms: int = 0
    still_at_ms: int | None = None
    skews_ms: deque[int] = field(default_factory=lambda: deque(maxlen=_SKEWS))

    @property
    def clock_behind_ms(self) -> int | None:
        """How far its clock is behind the log's (negative: ahead); None if its heartbeats have no time."""
        return min(self.skews_ms, default=None)


class RegistryStory:
    """Feed it the heartbeats in log order.

    Args:
        expiry_s: Expiry of this reader; used for processes whose heartbeats do not have their own.

    Attributes:
        processes: Newest process of each broker id.
        doubled: Broker ids with two alternating processes, with the log time of the last alternation.
        newest_ms: Log time of the newest heartbeat of any process, the last one of the log; 0 without one.
        led_ms: Log time of the newest heartbeat of a leader; None without one.
        heard_from_ms: Log time of the first heartbeat, or of the first one after a complete silence.
        forgeries: What each process last said of forged records, by broker and incarnation; also of those that have ended.
        writers: When processes were heard, for questions to the log.
    """

    def __init__(self, expiry_s: float) -> None:
        self.writers = WritersHeard()
        self._expiry_ms = expiry_s * 1_000
        self.processes: dict[str, RegisteredProcess] = {}
        self.doubled: dict[str, int] = {}
        self.newest_ms = 0
        self.led_ms: int | None = None
        self.leader: str | None = None
        self._replaced: dict[tuple[str, str], None] = {}
        self.heard_from_ms = 0
        self._looked_ms = 0
        self.forgeries: dict[tuple[str, str], ForgedRecords] = {}
        self._silence: RegistrySilence | None = None
        self.incidents: deque[Incident] = deque(maxlen=KEPT_MAX)

    def forged_at(self, at_ms: int) -> list[tuple[str, ForgedRecords]]:
        """Brokers with what they said of forged records, as long as it is a problem."""
        return [(broker, forged) for (broker, _), forged in sorted(self.forgeries.items()) if forged.is_shown(at_ms)]

    def doubled_at(self, at_ms: int) -> list[str]:
        """Broker ids that two processes use now."""
        return [broker for broker, seen_ms in self.doubled.items() if at_ms - seen_ms < 2 * self._expiry_ms]

    def observe(self, record: RecordRead, info: Mapping[str, Any]) -> None:
        """Apply one valid heartbeat (`stories.registry.heartbeats`)."""
        self.writers.observe(record, info)
        at_ms = record.timestamp_ms
        self._pass_time(at_ms)
        process = self._process(info, at_ms, record.offset)
        if process is None:
            return
        self._explain_silence(process.incarnation)
        before = process.info
        silent_ms = at_ms - process.last_ms
        still_ms = still_ms_between(before, info)
        if still_ms > max(self._patience_ms(process) / 2, STILL_LEAST_MS):
            process.still_at_ms = at_ms
            message = f"{process.broker} stood still for {seconds(still_ms)}: its process or event loop did not run"
            self._add(process.last_ms, IncidentKind.STANDSTILL, message)
        if process.lost:
            process.lost = False
            process.old_claim = self._another_leads(process)
            self._add(at_ms, IncidentKind.LOST, f"{process.broker} is heard again, after {seconds(silent_ms)}")
        process.heard_before_ms, process.last_ms = process.last_ms, at_ms
        sent_ms = info.get("sent_at_ms")
        if type(sent_ms) is int:
            process.skews_ms.append(at_ms - sent_ms)
        self._changes(process, before, info, record)
        process.info = info

    def _process(self, info: Mapping[str, Any], at_ms: int, offset: int) -> RegisteredProcess | None:
        broker, incarnation = info["broker"], info["incarnation"]
        known = self.processes.get(broker)
        if known is not None and known.incarnation == incarnation:
            return known
        if (broker, incarnation) in self._replaced:  # of two processes in turns the later one counts
            remember(self.doubled, broker, at_ms, KEPT_MAX)
            return None
        if known is not None:
            remember(self._replaced, (broker, known.incarnation), None, 10 * KEPT_MAX)
        process = RegisteredProcess(broker, incarnation, at_ms, at_ms, info, mode_since_ms=at_ms)
        remember(self.processes, broker, process, 10 * KEPT_MAX)
        # What was running when the topic's memory began has not just started.
        if info["seq"] <= 1:
            again = "" if known is None else " again, as a new process"
            self._add(at_ms, IncidentKind.STARTED, f"{broker} started{again}")
        if info.get("leading") is True:
            self._leads(process, at_ms, offset if info["seq"] <= 1 else None)
        self._forged(process, None, info, at_ms)
        return process

    def _forged(
        self, process: RegisteredProcess, before: ForgedRecords | None, info: Mapping[str, Any], at_ms: int
    ) -> None:
        forged = forged_of(info, at_ms)
        if forged is None or (before is not None and forged.records <= before.records):
            return
        if process.forgeries is not None:
            self._drop(process.forgeries)
        remember(self.forgeries, (process.broker, process.incarnation), forged, KEPT_MAX)
        process.forgeries = Incident(forged.timestamp_ms, IncidentKind.FORGED, forged.sentence(process.broker))
        self.incidents.append(process.forgeries)

    def _changes(
        self, process: RegisteredProcess, before: Mapping[str, Any], info: Mapping[str, Any], record: RecordRead
    ) -> None:
        name, at_ms = process.broker, record.timestamp_ms
        leading = info.get("leading") is True
        process.old_claim = process.old_claim and leading and self._another_leads(process)
        if leading and not process.old_claim:
            if process.leads_since_ms is None:
                self._leads(process, at_ms, record.offset)
            self.led_ms = at_ms
        elif process.leads_since_ms is not None:
            process.leads_since_ms = None
        self._mode(process, before, info, at_ms)
        if before is not info:
            self._forged(process, forged_of(before, at_ms), info, at_ms)
        pause, paused = info.get("repair_paused"), before.get("repair_paused")
        if pause and pause != paused:
            began_ms = at_ms
            if process.pause is not None and paused:  # more brokers were lost meanwhile
                began_ms = process.pause.at_ms
                self._drop(process.pause)
            process.pause = Incident(began_ms, IncidentKind.REPAIR_PAUSED, f"{name} paused repair: {pause}")
            self.incidents.append(process.pause)
        elif paused and not pause:
            self._add(at_ms, IncidentKind.REPAIR_PAUSED, f"{name} repairs again")
        if info.get("draining") is True and before.get("draining") is not True:
            self._add(at_ms, IncidentKind.LEFT, f"{name} is shutting down, and hands over its bundles")
        if info.get("leaving") is True and not process.left:
            process.left, process.leads_since_ms = True, None
            self._add(at_ms, IncidentKind.LEFT, f"{name} left with a goodbye")

    def _mode(self, process: RegisteredProcess, before: Mapping[str, Any], info: Mapping[str, Any], at_ms: int) -> None:
        mode, was = info.get("mode"), before.get("mode")
        if mode == was:
            return
        entered_ms = _safe_since_ms(process, info, at_ms)
        if mode == "safe" or (mode in _QUIET_MODES and was == "normal" and entered_ms is not None):
            # What it wrote while it was cut off comes late or never: it has been in safe mode since it was last heard. One
            # that stood still protected nothing meanwhile: it noticed when it ran again.
            late = at_ms - process.heard_before_ms > self._patience_ms(process) / 2
            still = process.still_at_ms is not None and at_ms - process.still_at_ms <= self._patience_ms(process)
            process.mode_since_ms = process.heard_before_ms if late and not still else at_ms
            if entered_ms is not None:
                process.mode_since_ms = entered_ms
            why = "it reads what it missed" if still else "it lost its connection to Kafka"
            self._add(process.mode_since_ms, IncidentKind.MODE, f"{process.broker} is in safe mode: {why}")
        elif was in ("starting", None):
            return
        elif mode == "normal":
            took = seconds(at_ms - process.mode_since_ms)
            self._add(at_ms, IncidentKind.MODE, f"{process.broker} is back in normal mode, after {took}")
        elif mode not in _QUIET_MODES:
            self._add(at_ms, IncidentKind.MODE, f"{process.broker} is in the mode {mode}")
        elif was == "normal":
            process.mode_since_ms = at_ms

    def _another_leads(self, process: RegisteredProcess) -> bool:
        return any(other.leads_since_ms is not None for other in self.processes.values() if other is not process)

    def _leads(self, process: RegisteredProcess, at_ms: int, claim: int | None) -> None:
        process.leads_since_ms, process.claim = at_ms, claim
        without_ms = 0 if self.led_ms is None else at_ms - self.led_ms
        if claim is not None and self.leader is not None:
            late = f" {seconds(without_ms)} without a leader" if without_ms > _TOLD_WITHOUT_LEADER_MS else ""
            same = self.leader == process.broker
            message = f"{process.broker} leads again" if same else f"{process.broker} leads, after {self.leader}"
            self._add(at_ms, IncidentKind.LEADER, f"{message}{',' if late and same else ' and' if late else ''}{late}")
        elif claim is not None:
            self._add(at_ms, IncidentKind.LEADER, f"{process.broker} leads")
        self.leader, self.led_ms = process.broker, at_ms

    def _pass_time(self, at_ms: int) -> None:
        """Detect lost processes; a complete silence of all does not count, as for a member that was cut off."""
        silent_ms = at_ms - self.newest_ms if self.newest_ms else 0
        self.heard_from_ms = self.heard_from_ms or at_ms
        if silent_ms < 0:
            self._turn_back(at_ms)
        if silent_ms > self._expiry_ms / 2:
            self.heard_from_ms = at_ms
            self._silence = RegistrySilence(
                self.newest_ms, silent_ms, {process.incarnation for process in self.processes.values()}
            )
            self.incidents.append(self._silence.incident)
        self.newest_ms = at_ms
        if at_ms - self._looked_ms < 500:  # noqa: PLR2004 - often enough
            return
        self._looked_ms = at_ms
        for process in self.processes.values():
            if process.left or process.lost:
                continue
            if at_ms - max(process.last_ms, self.heard_from_ms) > self._patience_ms(process):
                process.lost = True
                process.leads_since_ms = None
                message = f"{process.broker} was lost without a goodbye"
                self.incidents.append(Incident(process.last_ms, IncidentKind.LOST, message, lost=process.broker))

    def _turn_back(self, at_ms: int) -> None:
        """Kafka's clock was set back: no time that is still to come counts, else no loss would be noticed until then."""
        self.heard_from_ms, self._looked_ms = min(self.heard_from_ms, at_ms), min(self._looked_ms, at_ms)
        self.led_ms = None if self.led_ms is None else min(self.led_ms, at_ms)
        for process in self.processes.values():
            process.last_ms = min(process.last_ms, at_ms)
            if process.leads_since_ms is not None:
                process.leads_since_ms = min(process.leads_since_ms, at_ms)
        for broker, seen_ms in self.doubled.items():
            self.doubled[broker] = min(seen_ms, at_ms)

    def _explain_silence(self, incarnation: str) -> None:
        """The first processes that are heard after a complete silence show what was away: Kafka or the brokers."""
        silence = self._silence
        if silence is None or silence.survived:
            return
        before, silence.survived = silence.incident, incarnation in silence.incarnations
        silence.restarted = not silence.survived
        if before in self.incidents:
            self.incidents[self.incidents.index(before)] = silence.incident

    def _drop(self, incident: Incident) -> None:
        if incident in self.incidents:
            self.incidents.remove(incident)

    def _patience_ms(self, process: RegisteredProcess) -> float:
        expiry_s = process.info.get("expiry_s")
        return expiry_s * 1_000 if isinstance(expiry_s, int | float) else self._expiry_ms

    def _add(self, at_ms: int, kind: IncidentKind, message: str) -> None:
        self.incidents.append(Incident(at_ms, kind, message))
