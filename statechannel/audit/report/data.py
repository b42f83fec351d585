"""Data of an audit report, collected in two passes over an export file, in bounded memory.

The first pass is the audit itself, with all sums; it also counts the records of each bundle.
The second reads the namespaces of the selected bundles again, for their timelines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import Any

from statechannel.audit.engine import DEFAULT_COMPACTION_LAG_MS, ProgressBar, ReadMode
from statechannel.audit.gaps import with_standstill
from statechannel.audit.history import subject_of
from statechannel.audit.local import audit_export, written_again
from statechannel.audit.moments import AsOf
from statechannel.audit.overlaps import Successions, overlap_rows, overlap_sums
from statechannel.audit.report.charts import GapsFound, RejectedFound, shown, shown_row
from statechannel.audit.report.incident_list import LogIncidents, summary_of
from statechannel.audit.report.ownership import OTHERS, Area, HeatMap, area_fields, heat_names
from statechannel.audit.report.time_buckets import WHOLE_LOG, ReportWindow
from statechannel.audit.report.timelines import KeyTimelines, TreeSeen, choose, lane_fields
from statechannel.audit.transfer.export_file import ExportFile
from statechannel.audit.views import NotInLogError
from statechannel.protocol.bundle import KeyParts, parse_key, partition_of
from statechannel.protocol.log import RecordRead
from statechannel.protocol.overruling import MarkedColdStart
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View
from statechannel.replay.auditor import audit_part
from statechannel.replay.part import JoinObserver, Listeners, PartitionAudit, each_of
from statechannel.replay.survey import ReadFacts
from statechannel.stories.bundle import overlap
from statechannel.stories.incident import Incident
from statechannel.stories.processes import WritersHeard
from statechannel.stories.requests import PersonAction

REPORT_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ReportLimits:
    """Limits of a report; the page mentions each limit that was reached.

    Attributes:
        points: Buckets of time in a chart, and marks on a timeline.
        bundles: Timelines, including those of ancestors and namespaces.
        rows: Of each table.
    """

    points: int = 400
    bundles: int = 100
    rows: int = 1_000
    brokers: int = 40
    heat_rows: int = 1_000
    heat_columns: int = 240


@dataclass(frozen=True, slots=True)
class ReportQuestion:
    """Input of a report.

    Attributes:
        wanted: Bundles, namespaces or topics whose timelines are shown; empty: those with the longest gaps and most records.
        window: Part of the log's time that is shown; the log is judged as a whole.
        registry: Incidents of the registry, where it could be read.
        persons: Who requested each operation, where requests could be read.
        writers: What the registry shows of the processes.
        actions: What persons did, in order; None: the topics that say so were not read.
    """

    read: ReadMode = ReadMode.AUTO
    as_of: AsOf | None = None
    compaction_lag_ms: int = DEFAULT_COMPACTION_LAG_MS
    wanted: Sequence[str] = ()
    limits: ReportLimits = field(default_factory=ReportLimits)
    window: ReportWindow = WHOLE_LOG
    registry: Sequence[Incident] = ()
    persons: Mapping[str, str] = field(default_factory=dict)
    writers: WritersHeard | None = None
    actions: Sequence[PersonAction] | None = None


class _Overview(JoinObserver):
    """Observers of the first pass."""

    def __init__(self, limits: ReportLimits, window: ReportWindow, writers: WritersHeard | None) -> None:
        self.incidents = LogIncidents(writers)
        self.gaps = GapsFound(limits.rows, limits.points, window, self.incidents.channel.add_gap)
        self.rejected = RejectedFound(limits.points, window)
        self.tree = TreeSeen(window)
        self.successions = Successions()
        self._window = window
        self.areas: dict[int, Area] = {}
        self.verdicts: Counter[str] = Counter()
        self.facts: dict[int, ReadFacts] = {}
        self.first: dict[int, int] = {}
        self._points = limits.points

    def joined(self, view: View, *, sure: bool) -> None:
        if not sure:
            return
        self.tree.joined(view)
        self._area(view.partition).joined(view)

    def overruled(self, cold_start: MarkedColdStart, view: View) -> None:
        self._area(view.partition).overruled(cold_start.timestamp_ms, view)
        self.incidents.channel.overruled(cold_start, view)
        self.tree.joined(view)

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        self.first.setdefault(record.partition, record.offset)
        self.verdicts[judgement.verdict.value] += 1
        self._area(record.partition).observe(record, judgement)
        self.gaps.finder.observe(record, judgement)
        self.incidents.observe(record, judgement)
        self.rejected.observe(record, judgement)
        self.successions.observe(record, judgement)
        self.tree.observe(record, judgement)

    def ended(self, part: PartitionAudit) -> None:
        """End of a partition: note how it was read, so that its timelines are read the same way."""
        partition = part.view.partition
        self._area(partition)
        lenient_to = -1 if part.strict_from is None else part.strict_from - 1
        if partition in self.first:
            lenient_to = self.first[partition] - 1
        self.facts[partition] = ReadFacts(lenient_to, part.stop, part.tentative, tuple(part.cold_starts))

    def _area(self, partition: int) -> Area:
        area = self.areas.get(partition)
        if area is None:
            area = self.areas[partition] = Area(self._points, window=self._window)
        return area


def report_data(export: ExportFile, question: ReportQuestion, *, progress: ProgressBar) -> dict[str, Any]:
    """All data of the page, as JSON values.

    Raises:
        AuditQuestionError: A requested name is invalid.
        NotInLogError: The log has no such bundle; the message is the name.
    """
    wanted = [subject_of(name)[0] for name in question.wanted]
    limits = question.limits
    overview, complete = _Overview(limits, question.window, question.writers), dict[str, Any]()
    with progress("judging", export.records, unit="records") as advance:
        answer = audit_export(
            export,
            read=question.read,
            as_of=question.as_of,
            compaction_lag_ms=question.compaction_lag_ms,
            observers=[overview.observe],
            join_observer=Listeners([overview.gaps.finder, overview]),
            each_part=overview.ended,
            tell_complete=complete.update,
            progress=advance,
        )
    now_ms = max((area.now_ms for area in overview.areas.values()), default=0)
    still_open = overview.gaps.end(now_ms)
    for area in overview.areas.values():
        area.end(now_ms)
    for name, parts in zip(question.wanted, wanted, strict=True):
        if not _is_in_log(name, parts, overview.tree.records):
            raise NotInLogError(name)
    chosen = choose(overview.tree.records, overview.gaps.by_bundle, wanted, limits.bundles)
    areas = list(overview.areas.values())
    area_of_all = area_fields(areas, overview.gaps.unserved, points=limits.points, brokers=limits.brokers)
    gaps = overview.gaps.fields(still_open, limits.rows)
    gaps["rows"] = [with_standstill(row, question.writers) for row in gaps["rows"]]
    heat = _heat_map(question, overview, wanted, area_of_all)
    lanes = _lanes(export, question, overview, chosen, heat, progress)
    _name_persons(gaps["rows"], lanes, question.persons)
    window = question.window
    overview.incidents.channel.requesters = question.persons
    report = {
        "report": REPORT_FORMAT,
        "topic": export.header.topic,
        "exported_at_ms": export.header.exported_at_ms,
        "window": None if window == WHOLE_LOG else window._asdict(),
        "answer": answer,
        "complete": complete,
        "registry_read": question.writers is not None,
        "verdicts": {verdict.value: overview.verdicts[verdict.value] for verdict in Verdict},
        "partitions": [_partition(overview, number, complete) for number in sorted(export.header.end_offsets)],
        "limits": asdict(limits),
        "incidents": overview.incidents.rows(window, question.registry),
        "area": area_of_all,
        "gaps": gaps,
        "rejected": overview.rejected.fields(limits.rows),
        "actions": _actions(question),
        "overlaps": _overlaps(export, question, overview.successions),
        "keys_all": len(overview.tree.records),
        "heat": heat.fields(),
        "lanes": lanes,
    }
    return report | {"summary": summary_of(report)}


def _overlaps(export: ExportFile, question: ReportQuestion, successions: Successions) -> dict[str, Any]:
    """Times in which two processes may have served a bundle; if an owner was lost, the log is read once more for them."""
    lag_ms = question.compaction_lag_ms
    again = written_again(export, successions, read=question.read, as_of=question.as_of, compaction_lag_ms=lag_ms)
    every = overlap_rows(successions.rows, again, question.writers)
    rows = [row for row in every if question.window.overlaps(row["since_ms"], row["until_ms"])]
    return {"sums": overlap_sums(rows), "rows": [shown_row(row) for row in rows[-question.limits.rows :]]}


def _actions(question: ReportQuestion) -> dict[str, Any] | None:
    """What persons did in the window: the newest; what changes nothing is left out."""
    if question.actions is None:
        return None
    chosen = [row for row in question.actions if not row.question and question.window.holds(row.at_ms)]
    return {"all": len(chosen), "rows": [shown_row(row.fields()) for row in chosen[-question.limits.rows :]]}


def _name_persons(
    gaps: Iterable[dict[str, Any]], lanes: Iterable[Mapping[str, Any]], persons: Mapping[str, str]
) -> None:
    """Add who requested an operation to its gaps and marks."""
    for gap in gaps:
        person = gap["requested_by"] = persons.get(gap["operation"])
        if person is not None:
            gap["why"] = f"{gap['why']}; requested by {shown(person)}"
    for mark in (mark for lane in lanes for mark in lane["marks"]):
        person = persons.get(mark.get("operation"))
        if person is not None:
            mark["note"] = "; ".join(filter(None, (f"requested by {shown(person)}", mark.get("note"))))


def _heat_map(
    question: ReportQuestion, overview: _Overview, wanted: Sequence[KeyParts], area: Mapping[str, Any]
) -> HeatMap:
    limits = question.limits
    owners = {broker["name"]: index for index, broker in enumerate(area["brokers"])}
    names = heat_names(overview.tree.records, overview.gaps.by_bundle, wanted, limits.heat_rows)
    return HeatMap(
        names,
        owners,
        owners.get(OTHERS, len(owners)),
        area["first_ms"],
        area["last_ms"],
        limits.heat_columns,
        question.window,
    )


def _is_in_log(name: str, parts: KeyParts, keys: Iterable[bytes]) -> bool:
    """Whether the log has the bundle of that exact name, or a record of the namespace or the topic."""
    if parse_key(name.encode()) is not None and not parts.is_namespace:
        return any(key == name.encode() for key in keys)
    return any((known := parse_key(key)) is not None and overlap(known, parts) for key in keys)


def _partition(overview: _Overview, number: int, complete: Mapping[str, Any]) -> dict[str, Any]:
    facts, area = overview.facts[number], overview.areas[number]
    gapped = complete.get("complete_from", {})
    return {
        "partition": number,
        "first_offset": overview.first.get(number),
        "first_ms": area.first_ms,
        "gapped": str(number) in gapped,
        "complete_from": gapped.get(str(number)),
        "tentative": facts.tentative,
        "stopped": None if facts.stop is None else {"offset": facts.stop.offset, "format": facts.stop.format},
    }


def _lanes(
    export: ExportFile,
    question: ReportQuestion,
    overview: _Overview,
    chosen: Sequence[str],
    heat: HeatMap,
    progress: ProgressBar,
) -> list[dict[str, Any]]:
    """Read again, for timelines and the heat map, the namespaces that have any."""
    lanes = KeyTimelines(chosen, question.limits.points, question.window)
    observe, joins = each_of([lanes.observe, heat.observe]), Listeners([lanes, heat])
    partitions = len(export.header.end_offsets)
    by_partition: dict[int, set[bytes]] = {}
    for namespace in {*lanes.namespaces, *(name.rpartition("/")[0] for name in heat.rows)}:
        by_partition.setdefault(partition_of(namespace, partitions), set()).add(namespace.encode())
    total = sum(len(export.partitions.get(number, ())) for number in by_partition)
    done = 0
    with progress("timelines", total, unit="records") as advance:
        for number, namespaces in sorted(by_partition.items()):
            records = export.partitions.get(number)
            if records is None:
                continue
            base = done
            counted = records.with_progress(lambda read, base=base: advance(base + read))  # type: ignore[misc]
            some = _of_namespaces(counted, namespaces, question.as_of or AsOf())
            audit_part(number, partitions, some, overview.facts[number], observe, joins)
            done += len(records)
    every = []
    for name, lane in lanes.lanes.items():
        parts = parse_key(name.encode())
        bounds = () if parts is None or parts.is_namespace else (parts.lower, parts.upper)
        namespace = name if parts is None else parts.namespace
        every.append(lane_fields(name, lane, partition_of(namespace, partitions), bounds))
    return every


def _of_namespaces(
    records: Iterable[RecordRead], namespaces: set[bytes], inside: Callable[[RecordRead], bool]
) -> Iterator[RecordRead]:
    for record in takewhile(inside, records):
        if record.key is not None and b"/".join(record.key.split(b"/", 2)[:2]) in namespaces:
            yield record


def complete_from(partitions: Sequence[Mapping[str, Any]]) -> int | None:
    """The log time from which on the report is complete for every partition with records; None: never."""
    judged = [partition for partition in partitions if partition["first_ms"] is not None]
    if not judged or any(partition["tentative"] for partition in partitions):
        return None
    late: list[int] = [partition["complete_from"]["timestamp_ms"] for partition in judged if partition["complete_from"]]
    first: list[int] = [partition["first_ms"] for partition in judged]
    return max(late, default=min(first))
