"""Auditor of a finished log, or a prefix of it: reads it like a replica, and counts its findings (audit.md).

Pure: records in, answer out. The local engine and the Spark jobs call the same functions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from statechannel.protocol.digest import digest
from statechannel.protocol.states import State
from statechannel.protocol.verdict import REJECTIONS, Verdict
from statechannel.replay.part import PartReader
from statechannel.replay.survey import (
    STRICT,
    CompleteFrom,
    FormatStop,
    ReadFacts,
    has_gaps,
    join_facts,
    known_of,
    story_facts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.overruling import MarkedColdStart
    from statechannel.protocol.view import View
    from statechannel.replay.part import JoinObserver, Observer, PartitionAudit


class GapsError(ValueError):
    """A full read of a log with gaps was requested."""


class Moment(Protocol):
    """Prefix of an audit: the records up to an offset (the same in each partition), or up to a time."""

    @property
    def offset(self) -> int | None: ...

    def __call__(self, record: RecordRead) -> bool:
        """Whether the record lies in the prefix; the first that does not ends its partition's."""
        ...


def audit_part(
    partition: int,
    partitions: int,
    records: Iterable[RecordRead],
    facts: ReadFacts = STRICT,
    observe: Observer | None = None,
    join_observer: JoinObserver | None = None,
) -> PartitionAudit:
    """Read a partition, or only the records of some of its namespaces, in the order of their offsets."""
    part = PartReader(partition, partitions, facts, observe, join_observer)
    part.read(records)
    return part.result()


@dataclass(slots=True)
class AuditFindings:
    """Findings of an audit in one part of a log, or their sum over several parts.

    Attributes:
        owners: Number of bundles served by each broker.
        bundles: Live ones. `namespaces`: Active ones.
        debts: Partition, key, and row of the answer.
        stops: By partition.
        cold_starts: Partition and cold start.
        heads_lost: By partition, first offset of a log from whose head records were deleted that no broker has restated.
    """

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    owners: Counter[str] = field(default_factory=Counter)
    bundles: int = 0
    namespaces: int = 0
    debts: list[tuple[int, bytes, dict[str, Any]]] = field(default_factory=list)
    stops: dict[int, FormatStop] = field(default_factory=dict)
    cold_starts: list[tuple[int, MarkedColdStart]] = field(default_factory=list)
    tentative: bool = False
    heads_lost: dict[int, int] = field(default_factory=dict)

    def add(self, other: AuditFindings) -> None:
        self.verdicts.update(other.verdicts)
        self.owners.update(other.owners)
        self.bundles += other.bundles
        self.namespaces += other.namespaces
        self.debts += other.debts
        self.stops |= other.stops
        self.cold_starts += other.cold_starts
        self.tentative |= other.tentative
        self.heads_lost |= other.heads_lost


def findings_of(part: PartitionAudit) -> AuditFindings:
    partition = part.view.partition
    findings = AuditFindings(
        verdicts=Counter(part.verdicts), debts=[*_debts(partition, part.view)], tentative=part.tentative
    )
    for key in part.view.existing():
        if key.lower < 0:
            findings.namespaces += key.state is State.ACTIVE
        elif key.state is not State.DELETED:
            findings.bundles += 1
            if key.owner is not None:
                findings.owners[key.owner] += 1
    if part.stop is not None:
        findings.stops[partition] = part.stop
    if part.head_lost:
        findings.heads_lost[partition] = part.head_lost
    findings.cold_starts = [(partition, cold_start) for cold_start in part.cold_starts]
    return findings


def _debts(partition: int, view: View) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    for key, debt in view.ledger.open.items():
        yield (
            partition,
            key.key,
            {
                "key": key.name,
                "since_offset": debt.since_offset,
                "newest_offset": debt.newest_offset,
                "highest_version": debt.highest_version,
            },
        )


def summary(
    findings: AuditFindings, *, digest: str, records: int, end_offsets: Mapping[int, int], read: str
) -> dict[str, Any]:
    """The audit's answer (audit.md)."""
    verdicts = findings.verdicts
    answer: dict[str, Any] = {
        "digest": digest,
        "records": records,
        "accepted": verdicts[Verdict.ACCEPTED],
        "duplicates": verdicts[Verdict.DUPLICATE],
        "rejected": {reason.value: verdicts[reason] for reason in REJECTIONS if verdicts[reason]},
        "asserts": {"equal": verdicts[Verdict.ASSERT_EQUAL], "stale": verdicts[Verdict.ASSERT_STALE]},
        "purged": verdicts[Verdict.PURGED],
        "debts": [debt for _, _, debt in sorted(findings.debts, key=lambda debt: debt[:2])],
        "namespaces": findings.namespaces,
        "bundles": findings.bundles,
        "owners": dict(sorted(findings.owners.items())),
        "read": read,
        "end_offsets": {str(partition): end for partition, end in sorted(end_offsets.items())},
    }
    if findings.cold_starts:
        answer["cold_starts"] = [_cold_start_fields(*each) for each in sorted(findings.cold_starts, key=_place_of)]
    if findings.tentative:
        answer["tentative"] = True
    if findings.heads_lost:
        answer["heads_lost"] = {str(partition): first for partition, first in sorted(findings.heads_lost.items())}
    if findings.stops:
        answer["stopped"] = {
            str(partition): {"offset": stop.offset, "format": stop.format}
            for partition, stop in sorted(findings.stops.items())
        }
    return answer


def _place_of(each: tuple[int, MarkedColdStart]) -> tuple[int, int]:
    return each[0], each[1].offset


def _cold_start_fields(partition: int, cold_start: MarkedColdStart) -> dict[str, Any]:
    overruled = cold_start.overruled
    return {
        "partition": partition,
        "offset": cold_start.offset,
        "timestamp_ms": cold_start.timestamp_ms,
        "by": cold_start.mark.writer,
        "through": cold_start.mark.through,
        "overruled": None if overruled is None else [state._asdict() for state in overruled],
    }


def audit(
    by_partition: dict[int, Sequence[RecordRead]],
    *,
    end_offsets: Mapping[int, int],
    first_offsets: Mapping[int, int] = MappingProxyType({}),
    read: str,
    now_ms: int,
    compaction_lag_ms: int,
    as_of: Moment | None = None,
    observe: Observer | None = None,
    join_observer: JoinObserver | None = None,
    each_part: Callable[[PartitionAudit], None] = lambda _: None,
    tell_complete: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Audit a whole log.

    Args:
        by_partition: All records of each partition in order; partitions that are listed in `end_offsets` may be missing.
        first_offsets: First offset of each partition from whose head records were deleted.
        read: `full`, `join` or `auto`.
        now_ms: When the log was exported (milliseconds since 1970).
        as_of: True for records in the prefix; each partition is read up to its first other record.
        each_part: Called with the findings of each partition, in order.
        tell_complete: Called with the completeness of the log (`completeness`).

    Raises:
        GapsError: `full` was requested and a partition has gaps.
    """
    partitions = len(end_offsets)
    prefixes = {partition: prefix(by_partition.get(partition, ()), as_of) for partition in sorted(end_offsets)}
    ends = {
        partition: _end_of(len(records), by_partition.get(partition, ()), end_offsets[partition], as_of)
        for partition, records in prefixes.items()
    }
    oldest_kept_ms = now_ms - compaction_lag_ms
    gapped = [
        partition
        for partition, records in prefixes.items()
        if has_gaps(records, ends[partition], oldest_kept_ms=oldest_kept_ms)
    ]
    mode = reading_of(read, gapped)
    listened = observe is not None or join_observer is not None
    parts, complete = [], {}
    for partition, records in prefixes.items():
        facts = story = STRICT
        if partition in gapped:
            first_offset = first_offsets.get(partition, 0)
            facts = join_facts(records, oldest_kept_ms=oldest_kept_ms, first_offset=first_offset)
            whole = by_partition.get(partition, ()) if facts.tentative else records
            complete[partition] = known_of(whole, oldest_kept_ms=oldest_kept_ms)
            story = story_facts(facts, complete[partition])
        observers = (observe, join_observer)
        part = audit_part(partition, partitions, records, facts, *(observers if story == facts else ()))
        if story != facts and (listened or not all(story.is_lenient(mark.offset) for mark in part.cold_starts)):
            part.cold_starts = audit_part(partition, partitions, records, story, *observers).cold_starts
        parts.append(part)
        each_part(part)
    total = sum(len(records) for records in by_partition.values())
    findings = AuditFindings()
    for part in parts:
        findings.add(findings_of(part))
    tell_complete(completeness(complete, [part.view.partition for part in parts if part.tentative]))
    return summary(
        findings, digest=digest(part.view for part in parts), records=total, end_offsets=end_offsets, read=mode
    )


def completeness(gapped: Mapping[int, CompleteFrom | None], unsure: Sequence[int]) -> dict[str, Any]:
    """Completeness of logs with gaps: from where on each is complete, and which do not hold the answer.

    Args:
        gapped: Partitions with gaps, and from where on they are complete; None without a usable heartbeat.
        unsure: Partitions whose states at the moment of the audit are unknown.
    """
    if not gapped:
        return {}
    document: dict[str, Any] = {
        "complete_from": {
            str(partition): None if known is None else {"offset": known.states_from, "timestamp_ms": known.since_ms}
            for partition, known in sorted(gapped.items())
        }
    }
    if unsure:
        document["incomplete"] = sorted(unsure)
    return document


def reading_of(read: str, gapped: Sequence[int]) -> str:
    """How a log is read, for the answer: `full` or `join`.

    Args:
        read: `full`, `join` or `auto`.
        gapped: Partitions with gaps.

    Raises:
        GapsError: `full` was requested and a partition has gaps.
    """
    if read == "full" and gapped:
        raise GapsError(
            f"partition {gapped[0]} has gaps (compaction, deleted records or transaction markers), so it can only be read as a "
            "joiner does"
        )
    return "join" if read == "join" or gapped else "full"


def prefix(records: Sequence[RecordRead], as_of: Moment | None) -> Sequence[RecordRead]:
    """The records of a partition in the prefix: those before its first other record."""
    if as_of is None:
        return records
    for index, record in enumerate(records):
        if not as_of(record):
            return records[:index]
    return records


def _end_of(taken: int, records: Sequence[RecordRead], end_offset: int, as_of: Moment | None) -> int:
    """End of a prefix: a time ends right before the first later record."""
    if as_of is not None and as_of.offset is not None:
        return min(end_offset, as_of.offset + 1)
    return end_offset if taken == len(records) else records[taken].offset
