"""What crosses namespaces is settled here, before any of them is folded: gaps, stops, joins, cold starts. Pure.

The rules are the protocol's (section 5), for a reader that gets the log in batches: where the log goes on without a gap it judges
on; where it does not, or where somebody started cold, it joins as a broker does, out of the whole log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from spark.fold import Plan
from statechannel.core.marks import counts
from statechannel.core.survey import Facts, Stop, vouched

UNKNOWN_END: Final = 2**63 - 1


class Reading(StrEnum):
    """How a partition is read."""

    STRICT = "strict"  # every record is judged
    JOINING = "joining"  # nobody has vouched yet for what was read: the view is tentative


class Mark(NamedTuple):
    """A cold start whose clean heartbeat has not been read yet."""

    offset: int
    through: int


class Vouching(NamedTuple):
    """A heartbeat that decodes."""

    offset: int
    clean_to: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where the reading of one partition stands; kept beside each snapshot.

    Attributes:
        position: Offset of the next record.
        newest_ms: Log time of the newest record that was read.
        strict_from: Offset from which records were judged without a break.
        word: Offset of the newest record of somebody who knows the history: a heartbeat, or the mark of a cold start that counts.
        mark: See `Mark`.
        stop: Where a newer format stopped the reading.
        read_to: Offset behind the last reading of the whole log; 0: there was none, or nobody wrote it down.
        passed: A gap was passed over since that reading.
    """

    position: int = 0
    newest_ms: int = 0
    reading: Reading = Reading.STRICT
    strict_from: int = 0
    word: int = -1
    mark: Mark | None = None
    stop: Stop | None = None
    read_to: int = 0
    passed: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
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
    stop: Stop | None = None
    heartbeats: tuple[Vouching, ...] = ()
    marks: tuple[Mark, ...] = ()


class Why(StrEnum):
    """Why a partition joins."""

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
class Step:
    """What is to be done with one partition in one batch, and where its reading stands behind it."""

    plan: Plan
    place: Place
    why: Why | None = None
    missing: Missing | None = None


def why_join(place: Place, seen: Seen, *, oldest_kept_ms: int = -1, log_end: int = UNKNOWN_END) -> Why | None:
    """Whether the whole log has to be read for this batch, and why.

    Args:
        oldest_kept_ms: Records with a time up to this one may have hidden others from the cleaner.
        log_end: Next offset of the log when the batch began.
    """
    if place.reading is Reading.JOINING and not _reads_again(place, seen, oldest_kept_ms, log_end):
        return None
    if seen.gap_end >= 0:
        return Why.GAP
    if place.reading is Reading.JOINING:
        return Why.AGAIN
    mark = marked(place, seen)[0]
    if mark is None:
        return None
    confirmed = any(mark.offset <= one.clean_to < one.offset for one in seen.heartbeats)
    return Why.COLD_START if confirmed else None


def _reads_again(place: Place, seen: Seen, oldest_kept_ms: int, log_end: int) -> bool:
    """Whether a log that nobody has vouched for yet is read again.

    Who is far behind gets a gap with each batch. So that all readings add up to a small multiple of the log, each has to go
    at least twice as far as the one before, but where somebody may vouch, and at the end.
    """
    # Only somebody who vouches anew can end it, and not for a log that ends with old records: far behind, it is not tried.
    old = seen.newest_ms <= oldest_kept_ms
    if not old and any(0 <= one.clean_to < one.offset for one in seen.heartbeats):
        return True
    at_end = seen.last + 1 >= log_end
    if seen.gap_end < 0:
        # Only where the view lacks more than the tail, or nobody writes any more: of a live log every batch is at the end.
        return at_end and (old or place.passed)
    return at_end or seen.stop is not None or seen.last + 1 >= 2 * place.read_to


def marked(place: Place, seen: Seen) -> tuple[Mark | None, int]:
    """The mark of the newest cold start that counts, and the newest word of somebody who knows the history."""
    return newest_mark([*seen.heartbeats, *seen.marks], place.mark, place.word)


def newest_mark(words: Iterable[Mark | Vouching], mark: Mark | None = None, word: int = -1) -> tuple[Mark | None, int]:
    """The same of words in any order, behind those that were read before."""
    for one in sorted(words, key=lambda spoken: spoken.offset):
        if isinstance(one, Mark):
            if not counts(one.through, one.offset, word):
                continue
            mark = one
        word = max(word, one.offset)
    return mark, word


def go_on(partitions: int, partition: int, place: Place, seen: Seen) -> Step:
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
    plan = Plan(partitions, place.position, facts=Facts(stop=stop), keeps=keeps)
    return Step(plan, after, missing=_missing(partition, place, seen, None))


def _missing(partition: int, place: Place, seen: Seen, strict_from: int | None) -> Missing | None:
    if seen.gap_end <= place.position:
        return None
    return Missing(partition, place.position, seen.gap_end - 1, place.newest_ms, seen.gap_end_ms, strict_from)


class Whole(NamedTuple):
    """The log of a partition from its beginning to the end of a batch.

    Attributes:
        newest_old: Offset of its last record that is at least as old as the compaction lag; -1 if none is.
        late: Reading took so long that the cleaner may have been at work meanwhile.
    """

    seen: Seen
    newest_old: int = -1
    late: bool = False


def facts_of_join(whole: Whole) -> Facts:
    """How a log is read as a joining member reads it."""
    seen = whole.seen
    mark = marked(Place(), seen)[0]
    if seen.gap_end < 0 and mark is None:
        return Facts(stop=seen.stop)
    clean_to = max((one.clean_to for one in seen.heartbeats if one.clean_to < one.offset), default=-1)
    # Where nothing was cleaned away, nothing was hidden, however old it is.
    facts = vouched(clean_to, -1 if seen.gap_end < 0 else whole.newest_old, seen.stop)
    # Who vouches has to have read the mark: before it, a member that was only paused may hold another history.
    unseen = mark is not None and mark.offset > clean_to
    return facts._replace(tentative=facts.tentative or whole.late or unseen)


def ends_cold_start(place: Place, seen: Seen, whole: Whole) -> Vouching | None:
    """The first heartbeat of the batch that vouches for a history in which the mark of a cold start counts.

    The first one, so that it does not matter for the archive how much more the same batch holds.
    """
    mark = marked(place, seen)[0]
    if mark is None or (whole.late and whole.seen.gap_end >= 0):
        return None
    least = mark.offset if whole.seen.gap_end < 0 else max(mark.offset, whole.newest_old)
    return next((one for one in seen.heartbeats if least <= one.clean_to < one.offset), None)


def join(partitions: int, partition: int, place: Place, seen: Seen, whole: Whole, why: Why) -> Step:
    """Make the view anew out of the whole log."""
    switch = -1
    if why is Why.COLD_START:
        heartbeat = ends_cold_start(place, seen, whole)
        if heartbeat is None:
            return go_on(partitions, partition, place, seen)  # this view stands until somebody vouches for another one
        facts = Facts(heartbeat.clean_to, whole.seen.stop)
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
    plan = Plan(partitions, place.position, joins=True, facts=facts, switch=switch)
    return Step(plan, after, why, _missing(partition, place, whole.seen, None if facts.tentative else strict_from))


def place_fields(place: Place) -> dict[str, Any]:
    """As JSON."""
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


def read_place(fields: dict[str, Any]) -> Place:
    """Out of JSON."""
    mark, stop = fields["cold_start"], fields["stopped"]
    return Place(
        position=fields["position"],
        newest_ms=fields["newest_ms"],
        reading=Reading(fields["reading"]),
        strict_from=fields["strict_from"],
        word=fields["word"],
        mark=None if mark is None else Mark(**mark),
        stop=None if stop is None else Stop(**stop),
        read_to=fields.get("read_to", 0),  # older pointers lack both
        passed=fields.get("passed", False),
    )
