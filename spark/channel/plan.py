"""What crosses namespaces is settled here, before any of them is folded: gaps, stops, joins, cold starts. Pure.

The rules are the protocol's (section 5), for a reader that gets the log in batches: where the log goes on without a gap it judges
on; where it does not, or after a cold start, it joins as a broker does, from the whole log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from spark.channel.fold import FoldPlan
from statechannel.protocol.cold_start_marks import HeadMark, counts
from statechannel.replay.survey import FormatStop, ReadFacts, vouched, with_head


def incomplete(before: Iterable[Mapping[str, Any]], steps: Mapping[int, BatchStep]) -> list[dict[str, Any]]:
    """The entries behind a batch.

    Args:
        before: Those of the pointer before it.
        steps: What was done with each partition of the batch.
    """
    entries = [dict(entry) for entry in before]
    for number, step in sorted(steps.items()):
        if step.missing is not None:
            _add(entries, step.missing)
        if step.why in (JoinReason.GAP, JoinReason.AGAIN) and step.place.reading is Reading.STRICT:
            for entry in _open(entries, number):
                entry["strict_from"] = step.place.strict_from
    return entries


def _open(entries: Iterable[dict[str, Any]], partition: int) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry["partition"] == partition and entry["strict_from"] is None]


def _add(entries: list[dict[str, Any]], missing: Missing) -> None:
    """Without a voucher the stretch grows: a backlog has a gap in each batch."""
    growing = _open(entries, missing.partition)
    if growing:
        growing[-1] |= {"to_offset": missing.to_offset, "to_ms": missing.to_ms}
    else:
        entries.append(asdict(missing))


UNKNOWN_END: Final = 2**63 - 1


class Reading(StrEnum):
    STRICT = "strict"  # every record is judged
    JOINING = "joining"  # no member has vouched yet for what was read: the view is tentative


class ColdStartMark(NamedTuple):
    """A cold start whose clean heartbeat has not been read yet."""

    offset: int
    through: int


class Vouching(NamedTuple):
    offset: int
    clean_to: int


@dataclass(frozen=True, slots=True)
class ReadingPosition:
    """Where the reading of one partition stands; kept beside each snapshot.

    Attributes:
        position: Offset of the next record.
        newest_ms: Log time of the newest record that was read.
        strict_from: Offset from which records were judged without a break.
        word: Offset of the newest record of a member that knows the history: a heartbeat, or the mark of a valid cold start.
        mark: See `ColdStartMark`.
        stop: Where a newer format stopped the reading.
        read_to: Offset behind the last reading of the whole log; 0: there was none, or it was not recorded.
        passed: A gap was passed over since that reading.
    """

    position: int = 0
    newest_ms: int = 0
    reading: Reading = Reading.STRICT
    strict_from: int = 0
    word: int = -1
    mark: ColdStartMark | None = None
    stop: FormatStop | None = None
    read_to: int = 0
    passed: bool = False


@dataclass(frozen=True, slots=True)
class BatchContents:
    """What a batch holds of one partition, from its position on, up to the stop.

    Attributes:
        first, last: Offsets of its first and last record.
        gap_end: Offset behind the last gap in it (its first record included); -1 where it has none.
        gap_end_ms: Log time of the record there.
        stop: The first record of a newer format.
        heartbeats, marks: In the order of the log.
    """

    records: int
    first: int
    last: int
    oldest_ms: int
    newest_ms: int
    gap_end: int = -1
    gap_end_ms: int = 0
    stop: FormatStop | None = None
    heartbeats: tuple[Vouching, ...] = ()
    marks: tuple[ColdStartMark, ...] = ()


class JoinReason(StrEnum):
    GAP = "gap"
    AGAIN = "joining"
    COLD_START = "cold-start"


@dataclass(frozen=True, slots=True)
class Missing:
    """Records that were cleaned away before the archive came to them.

    Attributes:
        from_offset, to_offset: First and last offset of the stretch that has gaps.
        from_ms: Log time of the last record before it; 0 where there was none. `to_ms`: of the first record behind it.
        strict_from: Offset from which records have verdicts again.
    """

    partition: int
    from_offset: int
    to_offset: int
    from_ms: int
    to_ms: int
    strict_from: int | None


@dataclass(frozen=True, slots=True)
class BatchStep:
    """What is to be done with one partition in one batch, and where its reading stands behind it."""

    plan: FoldPlan
    place: ReadingPosition
    why: JoinReason | None = None
    missing: Missing | None = None


def why_join(
    place: ReadingPosition, seen: BatchContents, *, oldest_kept_ms: int = -1, log_end: int = UNKNOWN_END
) -> JoinReason | None:
    """Whether the whole log has to be read for this batch, and why.

    Args:
        oldest_kept_ms: Records with a time up to this one may have hidden others from the cleaner.
        log_end: Next offset of the log when the batch began.
    """
    if place.reading is Reading.JOINING and not _reads_again(place, seen, oldest_kept_ms, log_end):
        return None
    if seen.gap_end >= 0:
        return JoinReason.GAP
    if place.reading is Reading.JOINING:
        return JoinReason.AGAIN
    mark = marked(place, seen)[0]
    if mark is None:
        return None
    confirmed = any(mark.offset <= heartbeat.clean_to < heartbeat.offset for heartbeat in seen.heartbeats)
    return JoinReason.COLD_START if confirmed else None


def _reads_again(place: ReadingPosition, seen: BatchContents, oldest_kept_ms: int, log_end: int) -> bool:
    """Whether a log that no member has vouched for yet is read again.

    Who is far behind gets a gap with each batch. So that all readings add up to a small multiple of the log, each has to go
    at least twice as far as the one before, but where a member may vouch, and at the end.
    """
    # Only a new voucher can end it, and not for a log that ends with old records: far behind, it is not tried.
    old = seen.newest_ms <= oldest_kept_ms
    if not old and any(0 <= heartbeat.clean_to < heartbeat.offset for heartbeat in seen.heartbeats):
        return True
    at_end = seen.last + 1 >= log_end
    if seen.gap_end < 0:
        # Only where the view lacks more than the tail, or no member writes any more: of a live log every batch is at the end.
        return at_end and (old or place.passed)
    return at_end or seen.stop is not None or seen.last + 1 >= 2 * place.read_to


def marked(place: ReadingPosition, seen: BatchContents) -> tuple[ColdStartMark | None, int]:
    """The mark of the newest cold start that counts, and the newest word of a member that knows the history."""
    return newest_mark([*seen.heartbeats, *seen.marks], place.mark, place.word)


def newest_mark(
    words: Iterable[ColdStartMark | Vouching], mark: ColdStartMark | None = None, word: int = -1
) -> tuple[ColdStartMark | None, int]:
    """The same of words in any order, behind those that were read before."""
    for spoken in sorted(words, key=lambda spoken: spoken.offset):
        if isinstance(spoken, ColdStartMark):
            if not counts(spoken.through, spoken.offset, word):
                continue
            mark = spoken
        word = max(word, spoken.offset)
    return mark, word


def go_on(partitions: int, partition: int, place: ReadingPosition, seen: BatchContents) -> BatchStep:
    """Judge on from the snapshot; while joining, take records in without a verdict, whatever lacks between them."""
    stop = seen.stop
    mark, word = marked(place, seen)
    after = replace(
        place,
        position=seen.last + 1 if stop is None else stop.offset,
        newest_ms=seen.newest_ms,
        mark=mark,
        word=word,
        stop=stop,
        passed=place.passed or seen.gap_end >= 0,
    )
    keeps = place.reading is Reading.JOINING
    plan = FoldPlan(partitions, place.position, facts=ReadFacts(stop=stop), keeps=keeps)
    return BatchStep(plan, after, missing=_missing(partition, place, seen, None))


def _missing(partition: int, place: ReadingPosition, seen: BatchContents, strict_from: int | None) -> Missing | None:
    if seen.gap_end <= place.position:
        return None
    return Missing(partition, place.position, seen.gap_end - 1, place.newest_ms, seen.gap_end_ms, strict_from)


class WholeLog(NamedTuple):
    """The log of a partition from its beginning to the end of a batch.

    Attributes:
        newest_old: Offset of its last record that is at least as old as the compaction lag; -1 if none is.
        late: Reading took so long that the cleaner may have been at work meanwhile.
        first_offset: Of the log: above 0 records were deleted from its head.
        head: The newest mark of a lost head that counts, and its offset.
    """

    seen: BatchContents
    newest_old: int = -1
    late: bool = False
    first_offset: int = 0
    head: tuple[int, HeadMark] | None = None


def facts_of_join(whole: WholeLog) -> ReadFacts:
    """How a log is read as a joining member reads it."""
    seen = whole.seen
    mark = marked(ReadingPosition(), seen)[0]
    if seen.gap_end < 0 and mark is None:
        return ReadFacts(stop=seen.stop)
    clean_to = max(
        (heartbeat.clean_to for heartbeat in seen.heartbeats if heartbeat.clean_to < heartbeat.offset), default=-1
    )
    # Where nothing was cleaned away, nothing was hidden, however old it is.
    facts = vouched(clean_to, -1 if seen.gap_end < 0 else whole.newest_old, seen.stop)
    # Who vouches has to have read the mark: before it, a member that was only paused may hold another history.
    unseen = mark is not None and mark.offset > clean_to
    facts = facts._replace(tentative=facts.tentative or whole.late or unseen)
    return with_head(facts, whole.head, whole.first_offset)


def ends_cold_start(place: ReadingPosition, seen: BatchContents, whole: WholeLog) -> Vouching | None:
    """The first heartbeat of the batch that vouches for a history in which the mark of a cold start counts.

    The first one, so that it does not matter for the archive how much more the same batch holds.
    """
    mark = marked(place, seen)[0]
    if mark is None or (whole.late and whole.seen.gap_end >= 0):
        return None
    least = mark.offset if whole.seen.gap_end < 0 else max(mark.offset, whole.newest_old)
    return next((heartbeat for heartbeat in seen.heartbeats if least <= heartbeat.clean_to < heartbeat.offset), None)


def join(
    partitions: int, partition: int, place: ReadingPosition, seen: BatchContents, whole: WholeLog, why: JoinReason
) -> BatchStep:
    switch = -1
    if why is JoinReason.COLD_START:
        heartbeat = ends_cold_start(place, seen, whole)
        lenient_to = -1 if heartbeat is None else heartbeat.clean_to
        facts = with_head(ReadFacts(lenient_to, whole.seen.stop), whole.head, whole.first_offset)
        if heartbeat is None or facts.tentative:
            return go_on(partitions, partition, place, seen)  # this view stays until a member vouches for another one
        switch, strict_from = heartbeat.offset, place.strict_from
    else:
        facts = facts_of_join(whole)
        # What was archived before without a verdict stays as it is.
        strict_from = max(facts.lenient_to + 1, place.position)
    reading = Reading.JOINING if facts.tentative else Reading.STRICT
    position = seen.last + 1 if facts.stop is None else facts.stop.offset
    after = replace(
        place,
        position=position,
        newest_ms=seen.newest_ms,
        reading=reading,
        strict_from=strict_from,
        mark=None,
        word=marked(place, seen)[1],
        stop=facts.stop,
        read_to=position,
        passed=False,
    )
    plan = FoldPlan(partitions, place.position, joins=True, facts=facts, switch=switch)
    return BatchStep(plan, after, why, _missing(partition, place, whole.seen, None if facts.tentative else strict_from))


def place_fields(place: ReadingPosition) -> dict[str, Any]:
    return {
        "position": place.position,
        "newest_ms": place.newest_ms,
        "reading": place.reading.value,
        "strict_from": place.strict_from,
        "word": place.word,
        "cold_start": None if place.mark is None else place.mark._asdict(),
        "stopped": None if place.stop is None else place.stop._asdict(),
        "read_to": place.read_to,
        "passed": place.passed,
    }


def read_place(fields: dict[str, Any]) -> ReadingPosition:
    mark, stop = fields["cold_start"], fields["stopped"]
    return ReadingPosition(
        position=int(fields["position"]),
        newest_ms=int(fields["newest_ms"]),
        reading=Reading(fields["reading"]),
        strict_from=fields["strict_from"],
        word=fields["word"],
        mark=None if mark is None else ColdStartMark(**mark),
        stop=None if stop is None else FormatStop(**stop),
        read_to=fields.get("read_to", 0),  # older pointers lack both
        passed=fields.get("passed", False),
    )
