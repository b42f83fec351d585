"""Reads a finished log, or a prefix of it, the way a replica would, and counts what it finds (record format, audit).

Pure: records in, answer out. The local engine and the Spark jobs call the same functions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from statechannel.core import codec
from statechannel.core.digest import digest
from statechannel.core.joiner import Joiner
from statechannel.core.states import State
from statechannel.core.verdict import REJECTIONS, Verdict
from statechannel.core.view import Judgement, View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from statechannel.core.inputs import RecordRead

    Observer = Callable[[RecordRead, Judgement], None]


class Moment(Protocol):
    """What an audit looks at: the records up to an offset (the same in each partition), or up to a time."""

    @property
    def offset(self) -> int | None:
        """The offset, where one was named."""
        ...

    def __call__(self, record: RecordRead) -> bool:
        """Whether the record lies in the prefix; the first that does not ends its partition's."""
        ...


class Stop(NamedTuple):
    """Where a newer format stopped the reading of a partition."""

    offset: int
    format: int


@dataclass(slots=True)
class PartitionAudit:
    """What was found in one partition.

    Attributes:
        strict_from: Offset from which records were judged strictly; None if none was.
        tentative: The partition could only be read leniently: its accepted states may be wrong.
    """

    view: View
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    stop: Stop | None = None
    tentative: bool = False
    strict_from: int | None = 0


def has_gaps(records: Sequence[RecordRead], end_offset: int) -> bool:
    """Whether a partition's records are anything but all the offsets from 0 up to the end offset."""
    return len(records) != end_offset or (bool(records) and records[-1].offset != end_offset - 1)


def audit_full(
    partition: int, partitions: int, records: Iterable[RecordRead], observe: Observer | None = None
) -> PartitionAudit:
    """Judge every record from the first on; the log must have no gaps."""
    result = PartitionAudit(View(partition, partitions))
    _strictly(result, records, observe)
    return result


def audit_join(
    partition: int,
    partitions: int,
    records: Sequence[RecordRead],
    *,
    oldest_kept_ms: int,
    observe: Observer | None = None,
) -> PartitionAudit:
    """Read as a joining member would (protocol section 5), with the highest `clean_to` that the log offers.

    Args:
        oldest_kept_ms: Records above that point with a time stamp up to this one may have hidden others from the cleaner.
    """
    records = _until_stop(records)
    clean_to = highest_clean_to(records)
    late = [record for record in records if record.offset > clean_to]
    tentative = clean_to < 0 or any(record.timestamp_ms <= oldest_kept_ms for record in late)
    joiner = Joiner(partition, partitions)
    stop = None
    for record in records:
        if not tentative and record.offset > clean_to:
            break
        joiner.read(record.offset, record.key, record.value)
        if joiner.stopped:
            stop = Stop(record.offset, joiner.stopped)
            break
    result = PartitionAudit(
        joiner.view(), stop=stop, tentative=tentative, strict_from=None if tentative else clean_to + 1
    )
    if not tentative:
        _strictly(result, late, observe)
    return result


def _strictly(result: PartitionAudit, records: Iterable[RecordRead], observe: Observer | None) -> None:
    view = result.view
    for record in records:
        judgement = view.read(record.offset, record.key, record.value)
        result.verdicts[judgement.verdict] += 1
        if observe is not None:
            observe(record, judgement)
        if judgement.verdict is Verdict.UNSUPPORTED_FORMAT:
            result.stop = Stop(record.offset, judgement.format)
            return


def _until_stop(records: Sequence[RecordRead]) -> Sequence[RecordRead]:
    """The records up to and with the first of a newer format: nothing behind it is looked at."""
    for index, record in enumerate(records):
        if record.value is None or (record.key is not None and record.key.startswith(b"!")):
            continue
        if isinstance(codec.load_object(record.value), codec.NewerFormat):
            return records[: index + 1]
    return records


def highest_clean_to(records: Iterable[RecordRead]) -> int:
    """Highest usable `clean_to` of the heartbeats; -1 if there is none."""
    best = -1
    for record in records:
        if record.key == codec.HEARTBEAT_KEY:
            heartbeat = codec.decode_heartbeat(record.value)
            if heartbeat is not None and best < heartbeat.clean_to < record.offset:
                best = heartbeat.clean_to
    return best


def summary(parts: Sequence[PartitionAudit], *, records: int, end_offsets: dict[int, int], read: str) -> dict[str, Any]:
    """The audit's answer as the record format lists it."""
    verdicts: Counter[Verdict] = sum((part.verdicts for part in parts), Counter())
    owners: Counter[str] = Counter()
    bundles = 0
    namespaces = 0
    for part in parts:
        for key in part.view.existing():
            if key.lower < 0:
                namespaces += key.state is State.ACTIVE
            elif key.state is not State.DELETED:
                bundles += 1
                if key.owner is not None:
                    owners[key.owner] += 1
    answer: dict[str, Any] = {
        "digest": digest(part.view for part in parts),
        "records": records,
        "accepted": verdicts[Verdict.ACCEPTED],
        "duplicates": verdicts[Verdict.DUPLICATE],
        "rejected": {reason.value: verdicts[reason] for reason in REJECTIONS if verdicts[reason]},
        "asserts": {"equal": verdicts[Verdict.ASSERT_EQUAL], "stale": verdicts[Verdict.ASSERT_STALE]},
        "purged": verdicts[Verdict.PURGED],
        "debts": debts(parts),
        "namespaces": namespaces,
        "bundles": bundles,
        "owners": dict(sorted(owners.items())),
        "read": read,
        "end_offsets": {str(partition): end for partition, end in sorted(end_offsets.items())},
    }
    if any(part.tentative for part in parts):
        answer["tentative"] = True
    stopped = {
        str(part.view.partition): {"offset": part.stop.offset, "format": part.stop.format}
        for part in parts
        if part.stop is not None
    }
    if stopped:
        answer["stopped"] = stopped
    return answer


def debts(parts: Sequence[PartitionAudit]) -> list[dict[str, Any]]:
    """Open debts by partition and key."""
    found = []
    for part in sorted(parts, key=lambda part: part.view.partition):
        for key, debt in sorted(part.view.ledger.open.items(), key=lambda pair: pair[0].key):
            found.append(
                {
                    "key": key.name,
                    "since_offset": debt.since_offset,
                    "newest_offset": debt.newest_offset,
                    "highest_version": debt.highest_version,
                }
            )
    return found


def audit(
    by_partition: dict[int, Sequence[RecordRead]],
    *,
    end_offsets: dict[int, int],
    read: str,
    now_ms: int,
    compaction_lag_ms: int,
    as_of: Moment | None = None,
    observe: Observer | None = None,
) -> dict[str, Any]:
    """Audit a whole log.

    Args:
        by_partition: All records of each partition in order; partitions that are listed in `end_offsets` may be missing.
        read: `full`, `join` or `auto`.
        now_ms: When the log was exported (milliseconds since 1970).
        as_of: True for the records up to the moment asked for; each partition is read up to its first other record.

    Raises:
        ValueError: `full` was asked for and a partition has gaps.
    """
    partitions = len(end_offsets)
    prefixes = {partition: prefix(by_partition.get(partition, ()), as_of) for partition in sorted(end_offsets)}
    ends = {
        partition: _end_of(len(records), by_partition.get(partition, ()), end_offsets[partition], as_of)
        for partition, records in prefixes.items()
    }
    gapped = [partition for partition, records in prefixes.items() if has_gaps(records, ends[partition])]
    if read == "full" and gapped:
        raise ValueError(f"partition {gapped[0]} has gaps: it was compacted, so it can only be read as a joiner does")
    mode = "join" if read == "join" or gapped else "full"
    parts = []
    for partition, records in prefixes.items():
        if partition in gapped:
            parts.append(
                audit_join(partition, partitions, records, oldest_kept_ms=now_ms - compaction_lag_ms, observe=observe)
            )
        else:
            parts.append(audit_full(partition, partitions, records, observe))
    total = sum(len(records) for records in by_partition.values())
    return summary(parts, records=total, end_offsets=end_offsets, read=mode)


def prefix(records: Sequence[RecordRead], as_of: Moment | None) -> Sequence[RecordRead]:
    """The records of a partition up to the moment asked for: those before its first other record."""
    if as_of is None:
        return records
    for index, record in enumerate(records):
        if not as_of(record):
            return records[:index]
    return records


def _end_of(taken: int, records: Sequence[RecordRead], end_offset: int, as_of: Moment | None) -> int:
    """Where a prefix ends: a time ends right before the first later record."""
    if as_of is not None and as_of.offset is not None:
        return min(end_offset, as_of.offset + 1)
    return end_offset if taken == len(records) else records[taken].offset
