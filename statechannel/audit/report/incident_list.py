"""Incidents of a report, from the channel's log alone, with those of the registry where it could be read; and their summary.

Heartbeats of the log tell who led, and when nothing was written; the processes' ids tell restarts. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from statechannel.audit.incidents import ChannelIncidents
from statechannel.audit.report.charts import shown
from statechannel.audit.report.time_buckets import ReportWindow
from statechannel.protocol.bounded import remember
from statechannel.protocol.codec import HEARTBEAT_KEY, decode_heartbeat
from statechannel.protocol.log import RecordRead
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement
from statechannel.stories.incident import KEPT_MAX, Incident, IncidentKind, RegistrySilence, seconds, without_repaired
from statechannel.stories.processes import WritersHeard

GAP_OVER_MS: Final = 1_000
"""Shorter gaps in service are not incidents."""
SILENT_MS: Final = 5_000
"""Heartbeats come every second; a longer silence is an incident."""
_SAME_MS: Final = 10_000
"""Changes within this time are the same one, seen in several partitions."""
_PROCESSES_MAX: Final = 2_000


class _Silence(NamedTuple):
    start_ms: int
    end_ms: int


@dataclass(slots=True)
class _Beats:
    """Heartbeats of one partition."""

    writer: str | None = None
    last_ms: int = 0
    last_offset: int = -1
    records: int = 0
    silences: list[_Silence] = field(default_factory=list)


class LogIncidents:
    """Feed it an audit's observations in log order, partition after partition.

    Args:
        writers: What the registry shows of the processes; None: it was not read.
    """

    def __init__(self, writers: WritersHeard | None = None) -> None:
        self.channel = ChannelIncidents(GAP_OVER_MS, with_gaps=False, writers=writers)
        self._beats: dict[int, _Beats] = {}
        self._leaders: list[Incident] = []
        self._processes: dict[tuple[str, str], int] = {}

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        self.channel.observe(record, judgement)
        beats = self._beats.setdefault(record.partition, _Beats())
        beats.records += 1
        if judgement.verdict is Verdict.CONTROL and record.key == HEARTBEAT_KEY:
            self._heartbeat(beats, record)
        elif judgement.verdict is Verdict.ACCEPTED and judgement.record is not None:
            self._process(judgement.record.broker, judgement.record.incarnation, record.timestamp_ms)

    def _heartbeat(self, beats: _Beats, record: RecordRead) -> None:
        heartbeat = decode_heartbeat(record.value)
        if heartbeat is None:
            return
        self._process(heartbeat.broker, heartbeat.incarnation, record.timestamp_ms)
        # Compaction removes heartbeats: only where no record is missing there was a silence.
        whole = record.offset - beats.last_offset == beats.records
        if beats.writer is not None and whole and record.timestamp_ms - beats.last_ms > SILENT_MS:
            beats.silences.append(_Silence(beats.last_ms, record.timestamp_ms))
            del beats.silences[:-KEPT_MAX]
        if beats.writer not in (None, heartbeat.broker):
            self._leads(heartbeat.broker, str(beats.writer), record.timestamp_ms)
        beats.writer, beats.last_ms = heartbeat.broker, record.timestamp_ms
        beats.last_offset, beats.records = record.offset, 0

    def _leads(self, broker: str, before: str, at_ms: int) -> None:
        message = f"{broker} leads, after {before}: it writes the log's heartbeats"
        if not any(other.message == message and abs(other.at_ms - at_ms) < _SAME_MS for other in self._leaders):
            self._leaders.append(Incident(at_ms, IncidentKind.LEADER, message))
            del self._leaders[:-KEPT_MAX]

    def _process(self, broker: str, incarnation: str, at_ms: int) -> None:
        name = (broker, incarnation)
        first_ms = self._processes.get(name)
        if first_ms is None:
            remember(self._processes, name, at_ms, _PROCESSES_MAX)
        elif at_ms < first_ms:
            self._processes[name] = at_ms

    def _restarts(self) -> Iterable[Incident]:
        seen: set[str] = set()
        for (broker, _), at_ms in sorted(self._processes.items(), key=lambda item: (item[1], item[0])):
            if broker in seen:
                yield Incident(
                    at_ms, IncidentKind.STARTED, f"{broker} was restarted: the first record of a new process"
                )
            seen.add(broker)

    def _silences(self) -> Iterable[Incident]:
        parts = [beats.silences for beats in self._beats.values() if beats.writer is not None]
        common = list(parts[0]) if parts else []
        for other in parts[1:]:
            common = [
                _Silence(max(a.start_ms, b.start_ms), min(a.end_ms, b.end_ms))
                for a in common
                for b in other
                if min(a.end_ms, b.end_ms) - max(a.start_ms, b.start_ms) > SILENT_MS
            ]
        for start_ms, end_ms in common:
            yield RegistrySilence(start_ms, end_ms - start_ms, set()).incident

    def rows(self, window: ReportWindow, registry: Sequence[Incident] = ()) -> list[dict[str, Any]]:
        """Incidents within the window, oldest first.

        Args:
            registry: Incidents of the registry. What both tell is taken from it.
        """
        from_log = [*self._leaders, *self._restarts(), *self._silences()]
        since_ms = min((incident.at_ms for incident in registry), default=None)
        earlier = [incident for incident in from_log if since_ms is None or incident.at_ms < since_ms]
        others = without_repaired([*self.channel.all(), *registry])
        kept = sorted(
            (incident for incident in (*earlier, *others) if window.holds(incident.at_ms)),
            key=lambda incident: (incident.at_ms, incident.kind.value),
        )
        return [
            {"at_ms": incident.at_ms, "kind": incident.kind.value, "message": shown(incident.message, 400)}
            for incident in kept[-2 * KEPT_MAX :]
        ]


_UNITS: Final = ((2 * 86_400_000, 86_400_000, "days"), (2 * 3_600_000, 3_600_000, "hours"))


def _span(length_ms: int) -> str:
    if length_ms < 1_000:  # noqa: PLR2004 - of units
        return f"{length_ms} ms"
    for least_ms, unit_ms, name in _UNITS:
        if length_ms >= least_ms:
            return f"{length_ms / unit_ms:.1f} {name}"
    return seconds(length_ms)


def summary_of(report: Mapping[str, Any]) -> list[str]:
    """The report in a few sentences."""
    area, gaps, kinds = report["area"], report["gaps"], Counter(row["kind"] for row in report["incidents"])
    if not area["first_ms"]:
        return ["The log has no judged records in this time."]
    worst = max(
        (row for row in gaps["rows"] if row["length_ms"] is not None), key=lambda row: row["length_ms"], default=None
    )
    forged = forged_sentences(report)
    sentences = [f"In {_span(area['last_ms'] - area['first_ms'])} there {_were(gaps['all'], 'gap')} in service"]
    if worst is not None:
        sentences[0] += f"; the longest was {_span(worst['length_ms'])} ({worst['bundle']}: {worst['why']})"
    sentences[0] += "."
    if gaps["open"]:
        many = gaps["open"]
        sentences.append(
            f"{'One gap is' if many == 1 else f'{many:,} gaps are'} still open: no broker serves these bundles."
        )
    names = (
        (IncidentKind.FORGED, "report of forged records"),
        (IncidentKind.OWNER_LOST, "lost broker"),
        (IncidentKind.SILENCE, "outage"),
        (IncidentKind.LEADER, "change of leader"),
        (IncidentKind.STARTED, "start"),
        (IncidentKind.COLD_START, "cold start"),
        (IncidentKind.GAP, "long gap in service"),
    )
    listed = [_count(kinds[kind.value], name) for kind, name in names if kinds[kind.value]]
    others = kinds.total() - sum(kinds[kind.value] for kind, _ in names)
    if others and listed:
        listed.append("1 other" if others == 1 else f"{others:,} others")
    elif others:
        listed.append(_count(others, "incident of other kinds"))
    sentences.append(f"Incidents: {', '.join(listed)}." if listed else "No broker was lost, and there was no outage.")
    rejected = report["rejected"]["all"]
    sentences.append(
        f"{_count(rejected, 'record')} {'was' if rejected == 1 else 'were'} rejected."
        if rejected
        else "No record was rejected."
    )
    return [*forged, *sentences]


def forged_sentences(report: Mapping[str, Any]) -> list[str]:
    """Before all else: what brokers have read in their own names and did not write."""
    reports = (row["message"] for row in report["incidents"] if row["kind"] == IncidentKind.FORGED.value)
    return [f"Forged: {message}." for message in reports]


def _count(many: int, what: str) -> str:
    if many == 1:
        return f"1 {what}"
    head, _, tail = what.partition(" of ")
    plural = f"{head}s of {tail}" if tail else f"{what}s"
    return f"{many:,} {plural}"


def _were(many: int, what: str) -> str:
    return f"was 1 {what}" if many == 1 else f"were {many:,} {what}s" if many else f"was no {what}"
