"""Local audit engine: the audit of an export file in this process, by the rules of `statechannel.replay.auditor`.

Also the owner of a bundle at a moment, for `lookup --as-of`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from statechannel.audit.engine import (
    DEFAULT_COMPACTION_LAG_MS,
    ArchiveSource,
    AuditQuestion,
    AuditResult,
    ExportSource,
    ProgressBar,
    ReadMode,
    Source,
    check_question,
    not_in_full,
)
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.gaps import Gap, Gaps, gap_fields, with_standstill
from statechannel.audit.history import History
from statechannel.audit.moments import AsOf
from statechannel.audit.observers import Observers
from statechannel.audit.origins import as_rows, put_together
from statechannel.audit.overlaps import Succession, Successions, WrittenAgain
from statechannel.audit.ownership import Owners, move_fields
from statechannel.audit.rejections import race_counts, rejected_document
from statechannel.audit.transfer.export_file import ExportedRecords, ExportFile, read_export, size_bytes, verdict_file
from statechannel.audit.transfer.line import format_verdict
from statechannel.audit.views import LogViews, NotInLogError
from statechannel.errors import ExitCode
from statechannel.protocol.bundle import partition_of
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement
from statechannel.replay import auditor
from statechannel.replay.part import JoinObserver, Listeners, Observer, PartitionAudit, each_of
from statechannel.stories.processes import Unheard, WritersHeard


def answer(question: AuditQuestion, *, progress: ProgressBar) -> AuditResult:
    """The local engine: reads one export file in one process, without holding its records in memory.

    Raises:
        AuditQuestionError: The log cannot answer the question, or is an archive.
        ExportFileError: The file is malformed.
    """
    check_question(question)
    wants = question.wants
    all_observers = Observers(wants)
    complete: dict[str, Any] = {}
    with (
        open_export(question.source, progress) as export,
        progress("judging", export.records, unit="records") as advance,
    ):
        body = audit_export(
            export,
            read=question.read,
            as_of=question.as_of,
            compaction_lag_ms=question.compaction_lag_ms,
            verdicts=question.verdicts,
            observers=[observer] if (observer := all_observers.observe()) is not None else [],
            join_observer=all_observers.join_observer,
            each_part=all_observers.ended,
            tell_complete=complete.update,
            progress=advance,
        )
        named, cuts = True, None
        if all_observers.history is not None:
            named = any(all_observers.history.is_named(records) for records in export.partitions.values())
        if wants.cuts and question.as_of is not None:
            partitions = sorted(export.header.end_offsets)
            cuts = {number: question.as_of.cut(export.partitions.get(number, ())) for number in partitions}
    count = all_observers.count_gaps() if wants.gap_count else None
    return AuditResult(
        body,
        complete=complete,
        gaps=all_observers.end_gaps() if wants.gaps else None,
        gap_count=count,
        gap_sums=all_observers.gap_sums.rows() if wants.gaps else None,
        races=list(race_counts(all_observers.races)) if all_observers.races else None,
        history=all_observers.history.rows if all_observers.history else None,
        named=named,
        owned=sorted(all_observers.owned, key=lambda row: row["bundle"]) if wants.owned else None,
        moves=list(move_fields(all_observers.moves.counts.items())) if all_observers.moves else None,
        cuts=cuts,
        rejected=rejected_document(all_observers.rejections) if all_observers.rejections else None,
        origins=put_together([as_rows(all_observers.origins)]) if all_observers.origins else None,
        states=[line for _, line in sorted(all_observers.states)] if wants.states else None,
    )


@contextmanager
def open_export(source: Source, progress: ProgressBar) -> Iterator[ExportFile]:
    """The log as an export file: the named one, or a temporary export of the live topic."""
    if isinstance(source, ArchiveSource):
        raise AuditQuestionError("The local engine does not read archives.", hint="Add `--engine spark`.")
    if isinstance(source, ExportSource):
        yield read_log(source.path, progress, made_here=source.made_here)
        return
    with tempfile.TemporaryDirectory(prefix="statechannel-audit-") as folder:
        path = Path(folder) / "export.jsonl"
        source.export(path)
        yield read_log(path, progress, made_here=True)


def read_log(path: Path, progress: ProgressBar, *, made_here: bool = False) -> ExportFile:
    """`read_export` with a progress bar."""
    with progress(f"reading {path.name}", size_bytes(path), unit="bytes") as advance:
        return read_export(path, made_here=made_here, progress=advance)


def audit_export(
    export: ExportFile,
    *,
    read: ReadMode = ReadMode.AUTO,
    as_of: AsOf | None = None,
    compaction_lag_ms: int = DEFAULT_COMPACTION_LAG_MS,
    verdicts: Path | None = None,
    observers: Sequence[Observer] = (),
    join_observer: JoinObserver | None = None,
    each_part: Callable[[PartitionAudit], None] = lambda _: None,
    tell_complete: Callable[[dict[str, Any]], None] = lambda _: None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Audit an export file; see `AuditQuestion`.

    Args:
        each_part: Called with the findings of each partition, in order.
        tell_complete: Called with the completeness of the log (`statechannel.replay.auditor.completeness`).
        progress: Called now and then with the number of records read.

    Raises:
        AuditQuestionError: A full read, or verdicts, of a log with gaps; verdicts of a join read.
        ExportFileError: The verdicts cannot be written.
    """
    with ExitStack() as stack:
        watching = list(observers)
        if verdicts is not None:
            write = stack.enter_context(verdict_file(verdicts))  # created only if the audit succeeds
            watching.append(lambda record, judgement: write(format_verdict(record, judgement)))
        try:
            return auditor.audit(
                _with_progress(export.partitions, progress),
                end_offsets=export.header.end_offsets,
                first_offsets=export.header.first_offsets,
                read=ReadMode.FULL if verdicts is not None else read,
                now_ms=export.header.exported_at_ms,
                compaction_lag_ms=compaction_lag_ms,
                as_of=as_of,
                observe=each_of(watching),
                join_observer=join_observer,
                each_part=each_part,
                tell_complete=tell_complete,
            )
        except auditor.GapsError as error:
            raise not_in_full(str(export.path), str(error), verdicts=verdicts is not None) from error


def written_again(export: ExportFile, lost: Successions, **how: Any) -> WrittenAgain:
    """When lost processes wrote again; reads the log once more, as `audit_export` does, if an owner was lost."""
    again = WrittenAgain(lost.taken())
    if lost.rows:
        audit_export(export, observers=[again.observe], **how)
    return again


def _with_progress(
    partitions: Mapping[int, ExportedRecords], progress: Callable[[int], None] | None
) -> dict[int, Sequence[RecordRead]]:
    """Records that report progress over all partitions."""
    if progress is None:
        return dict(partitions)
    streams: dict[int, Sequence[RecordRead]] = {}
    before = 0
    for number, records in sorted(partitions.items()):
        streams[number] = records.with_progress(lambda done, base=before: progress(base + done))  # type: ignore[misc]
        before += len(records)
    return streams


@dataclass(frozen=True, slots=True)
class OwnerThen:
    """Who owned a bundle at a moment of the log.

    Attributes:
        last_offset: Offset of the last record before the moment, in its partition; -1 without one.
        since: Row of `Owners`: by which record the owner serves; None without an owner.
        changed: Row of `History`: the record that made this state; None if the log no longer has it.
        at_ms: The moment; of an offset the log time of the last record.
        gap: The gap in service of the bundle that contains the moment, as the whole log shows it, in the form of the JSON output.
        unheard: The owner at this moment, if it was not heard after it and is not lost yet: a gap may yet begin before it.
        heard_again: A lost owner (broker, incarnation, lost_ms) whose process was heard again, at `heard_ms`: at this moment,
            which lies between them, it may have served the bundle.
    """

    key: KeyState
    partition: int
    last_offset: int
    since: Mapping[str, Any] | None
    changed: Mapping[str, Any] | None
    at_ms: int = 0
    gap: Mapping[str, Any] | None = None
    heard_again: Mapping[str, Any] | None = None
    unheard: Unheard | None = None


class NotInLogThenError(NotInLogError):
    """The log has no such namespace, bundle or topic at the moment.

    Attributes:
        ended: Row of `History`: the record that deleted or split it; None: the log shows none until then.
    """

    def __init__(self, message: str, *, hint: str, ended: Mapping[str, Any] | None) -> None:
        super().__init__(message, hint=hint)
        self.ended = ended


def owner_then(
    export: ExportFile,
    name: str,
    as_of: AsOf | None,
    *,
    compaction_lag_ms: int = DEFAULT_COMPACTION_LAG_MS,
    writers: WritersHeard | None = None,
) -> OwnerThen:
    """The owner of a topic or bundle at a moment.

    Raises:
        NotInLogThenError: It did not exist then.
        AuditQuestionError: The log was compacted, and no longer shows it.
        ExportFileError: The file is malformed.
    """
    owners, history = Owners(), History(name)
    parts: list[PartitionAudit] = []
    owned: list[dict[str, Any]] = []

    def ended(part: PartitionAudit) -> None:
        parts.append(part)
        owned.extend(owners.owned_in(part))

    audit_export(
        export,
        as_of=as_of,
        compaction_lag_ms=compaction_lag_ms,
        observers=[owners.observe, history.observe],
        join_observer=Listeners([owners, history]),
        each_part=ended,
    )
    number = partition_of(history.namespace or "", len(parts))
    if parts[number].tentative:
        raise AuditQuestionError(
            f"Partition {number} was compacted, and no longer shows who owned {name} then.",
            hint="The archive does: `statechannel audit history NAME --as-of T --archive DIR --engine spark`.",
            exit_code=ExitCode.UNDETERMINED,
        )
    try:
        key = LogViews(tuple(parts), ()).locate(name)
    except NotInLogError as error:
        raise NotInLogThenError(str(error), hint=error.hint, ended=_ended(history, name)) from error
    moment = as_of or AsOf()
    cut = moment.cut(export.partitions.get(number, ()))
    ended_gaps: list[Gap] = []
    gaps, successions = Gaps(lambda gap: ended_gaps.append(gap) if gap.bundle == key.name else None), Successions()

    def of_bundle(record: RecordRead, judgement: Judgement) -> None:
        if judgement.key is not None and judgement.key.name == key.name:
            successions.observe(record, judgement)

    observers = [gaps.observe, of_bundle]
    audit_export(export, compaction_lag_ms=compaction_lag_ms, observers=observers, join_observer=gaps)
    again = written_again(export, successions, compaction_lag_ms=compaction_lag_ms)
    at_ms = moment.time_ms
    if at_ms is None:
        at_ms = 0
        for record in takewhile(moment, export.partitions.get(number, ())):
            at_ms = record.timestamp_ms
    return OwnerThen(
        key,
        number,
        cut.last_offset,
        next((row for row in owned if row["bundle"] == key.name), None),
        next((row for row in history.rows if row["offset"] == key.offset and row["verdict"] == Verdict.ACCEPTED), None),
        at_ms,
        _gap_at(at_ms, [*ended_gaps, *(gap for gap in gaps.open() if gap.bundle == key.name)], writers),
        _heard_again_at(at_ms, successions.rows, again, writers),
        None if key.owner is None or writers is None else writers.unheard_since(key.owner, at_ms),
    )


def _gap_at(at_ms: int, gaps: Iterable[Gap], writers: WritersHeard | None) -> Mapping[str, Any] | None:
    """The one of these gaps that contains a moment."""
    for gap in gaps:
        if gap.start_ms <= at_ms and (gap.end_ms is None or at_ms < gap.end_ms):
            return with_standstill(gap_fields(gap), writers)
    return None


def _heard_again_at(
    at_ms: int, lost: Iterable[Succession], again: WrittenAgain, writers: WritersHeard | None
) -> Mapping[str, Any] | None:
    """The lost owner that may have served at a moment, as it was heard again after it."""
    for row in lost:
        heard = again.heard(row, writers)
        if heard is not None and row.lost_ms <= at_ms < heard[0]:
            return {
                "broker": row.broker,
                "incarnation": row.incarnation,
                "lost_ms": row.lost_ms,
                "heard_ms": heard[0],
                "heard_in": heard[1].value,
            }
    return None


def _ended(history: History, name: str) -> Mapping[str, Any] | None:
    """The record that deleted or split a bundle, or deleted its namespace, if that was its last one."""
    own = [
        row
        for row in history.rows
        if row["verdict"] == Verdict.ACCEPTED and (row["relation"] == "namespace" or row["key"] == name)
    ]
    return own[-1] if own and own[-1]["state"] == State.DELETED else None


def first_created(export: ExportFile, namespace: str) -> Mapping[str, Any] | None:
    """Row of `History` of the record that first created a namespace, in the whole log; None: it never existed."""
    history = History(namespace)
    audit_export(export, observers=[history.observe], join_observer=history)
    return next(
        (
            row
            for row in history.rows
            if row["relation"] == "namespace" and row["verdict"] == Verdict.ACCEPTED and row["state"] == State.ACTIVE
        ),
        None,
    )
