"""Incidents in the registry's last hour, by log time: starts and ends of processes, leaders, modes, silence. A pure fold.

`engine.membership` has the current members, this has the history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from statechannel.audit.forged_records import ForgedRecords, forged_of
from statechannel.audit.incident import KEPT_MAX, Incident, IncidentKind, RegistrySilence, seconds
from statechannel.audit.writers import STILL_LEAST_MS, WritersHeard, still_ms_between
from statechannel.protocol.bounded import remember
from statechannel.protocol.log import RecordRead

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
        """Apply one valid heartbeat (`engine.membership.decode_member`)."""
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
