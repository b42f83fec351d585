"""Answers of replicas at their HTTP endpoints (audit.md), and their comparison with the log at the same offsets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from statechannel.audit.difference import Parting, accepted_of, key_partition, side_fields, sides
from statechannel.audit.transfer.export_file import ExportFile
from statechannel.errors import StateChannelError
from statechannel.protocol.digest import digest_of, line
from statechannel.protocol.log import RecordRead
from statechannel.protocol.view import View
from statechannel.replay.part import PartReader
from statechannel.replay.survey import ReadFacts, facts_of

WORD_FORMAT = 1


class ReplicaWordError(StateChannelError):
    """The answer is not one of a replica."""


class PartWord(NamedTuple):
    """Answer for one partition."""

    applied: int  # offset through which the replica has applied it
    digest: str | None  # None: it does not know the accepted states
    why: str
    keys: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaWord:
    """The document of `/digest`, and the first line of `/dump`.

    Attributes:
        digest: Of all partitions; None if it does not know the accepted states of each.
    """

    broker: str
    incarnation: str
    partitions: Mapping[int, PartWord]
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class ReplicaDump:
    """The answer of `/dump`: the digest document, and the lines of the digest by key."""

    word: ReplicaWord
    lines: list[bytes]


def parse_word(body: bytes) -> ReplicaWord:
    """Read the document of a digest.

    Raises:
        ReplicaWordError: It is not a digest document.
    """
    try:
        word = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _bad(f"not JSON: {error}") from None
    if not isinstance(word, dict) or word.get("replica") != WORD_FORMAT:
        raise _bad(f"not a replica's digest document of format {WORD_FORMAT}")
    broker, incarnation, parts = word.get("broker"), word.get("incarnation"), word.get("partitions")
    if not isinstance(broker, str) or not isinstance(incarnation, str) or not isinstance(parts, dict) or not parts:
        raise _bad("`broker`, `incarnation` or `partitions` is missing")
    numbers = {}
    for name, part in parts.items():
        if not (name.isascii() and name.isdigit()) or not isinstance(part, dict):
            raise _bad(f"`partitions` holds {name!r}")
        numbers[int(name)] = _part(part)
    if sorted(numbers) != list(range(len(numbers))):
        raise _bad("`partitions` does not have all partitions")
    digest = word.get("digest")
    return ReplicaWord(broker, incarnation, numbers, digest if isinstance(digest, str) else None)


def _part(part: Mapping[str, Any]) -> PartWord:
    applied, digest, why = part.get("applied"), part.get("digest"), part.get("why")
    if type(applied) is not int or applied < -1 or not (digest is None or isinstance(digest, str)):
        raise _bad("`applied` or `digest` of a partition is invalid")
    keys = part.get("keys")
    return PartWord(applied, digest, why if isinstance(why, str) else "", keys if type(keys) is int else None)


def parse_dump(body: Iterable[bytes]) -> ReplicaDump:
    """Read a dump.

    Raises:
        ReplicaWordError: It is not a dump, it was truncated, or its lines do not match its digest.
    """
    every = iter(body)
    word = parse_word(next(every, b""))
    lines = list(every)
    for text in lines:
        try:
            fields = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise _bad(f"a line of the dump is not JSON: {text[:80]!r}") from None
        if not isinstance(fields, list) or len(fields) != 6 or not isinstance(fields[0], str):  # noqa: PLR2004
            raise _bad(f"a line of the dump is not [key, version, state, from, to, id]: {text[:80]!r}")
    keys = sum(part.keys or 0 for part in word.partitions.values())
    if len(lines) < keys:
        raise _bad(f"a truncated dump: {len(lines)} of its {keys} keys")
    if word.digest is not None and sha256(b"".join(lines)).hexdigest() != word.digest:
        raise _bad("a dump whose lines do not match its digest")
    return ReplicaDump(word, lines)


def _bad(what: str) -> ReplicaWordError:
    return ReplicaWordError(
        f"the answer is {what}.", hint="Check the address: it must be the HTTP endpoint of a broker of this channel."
    )


SHOWN_MAX = 100
"""Maximum number of differing keys that are examined; the rest is counted."""


class VerifyStatus(StrEnum):
    """Result for one partition of one replica."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNKNOWN = "unknown"  # the replica does not know the accepted states itself
    INCOMPLETE = "incomplete"  # the log does not tell them: it was compacted
    BEYOND = "beyond"  # the log ends before the replica's offset


@dataclass(slots=True)
class VerifiedPartition:
    """One partition of one replica.

    Attributes:
        recomputed: The digest by the log; None if it has none.
        first: The first difference, for the JSON output.
        differing: Number of differing keys, if a dump was examined.
        dump_applied: Offset of the dump by which they were found.
    """

    partition: int
    applied: int
    status: VerifyStatus
    digest: str | None
    recomputed: str | None = None
    why: str = ""
    differing: int | None = None
    dump_applied: int | None = None
    first: dict[str, Any] | None = None


def check_words(
    export: ExportFile, words: Sequence[ReplicaWord], *, compaction_lag_ms: int
) -> list[list[VerifiedPartition]]:
    """Compare digests in one pass over the log. By replica, in the order of their partitions."""
    places = {(number, part.applied) for word in words for number, part in word.partitions.items() if part.digest}
    recomputed: dict[tuple[int, int], str | VerifyStatus] = {}
    for partition, some in groupby(sorted(places), key=itemgetter(0)):
        offsets = [applied for _, applied in some]
        for applied, states in states_at(export, partition, offsets, compaction_lag_ms=compaction_lag_ms):
            recomputed[partition, applied] = states if isinstance(states, VerifyStatus) else digest_of(_lines(states))
    return [[_checked(number, part, recomputed) for number, part in sorted(word.partitions.items())] for word in words]


def _checked(number: int, part: Any, recomputed: Mapping[tuple[int, int], str | VerifyStatus]) -> VerifiedPartition:
    if part.digest is None:
        return VerifiedPartition(number, part.applied, VerifyStatus.UNKNOWN, None, why=part.why)
    digest = recomputed[number, part.applied]
    if isinstance(digest, VerifyStatus):
        return VerifiedPartition(number, part.applied, digest, part.digest)
    status = VerifyStatus.EQUAL if digest == part.digest else VerifyStatus.DIFFERENT
    return VerifiedPartition(number, part.applied, status, part.digest, digest)


def explain(export: ExportFile, checked: VerifiedPartition, dump: ReplicaDump, *, compaction_lag_ms: int) -> None:
    """Find the first difference between a replica and the log by a dump, which is of a later offset than the digest."""
    partition = checked.partition
    part = dump.word.partitions.get(partition)
    if part is None or part.digest is None:
        checked.why = "its dump does not have this partition" if part is None or not part.why else part.why
        return
    checked.dump_applied = part.applied
    partitions = len(export.header.end_offsets)
    lines = [line for line in dump.lines if key_partition(accepted_of(line).key, partitions) == partition]
    ((_, view),) = states_at(export, partition, [part.applied], compaction_lag_ms=compaction_lag_ms)
    if isinstance(view, VerifyStatus):
        checked.why = f"the log no longer holds the states at offset {part.applied} of its dump ({view})"
        return
    differing = list(sides(_lines(view), lines))
    checked.differing = len(differing)
    if not differing:
        checked.why = f"its dump, of offset {part.applied}, equals the log: the difference is gone"
        return
    shown = {accepted_of(log or own or b"").key: (log, own) for log, own in differing[:SHOWN_MAX]}
    offsets = {name: key.offset for name in shown if (key := view.get(name)) is not None}
    parting = Parting({name: own for name, (_, own) in shown.items()}, offsets)
    list(states_at(export, partition, [part.applied], compaction_lag_ms=compaction_lag_ms, observe=parting.observe))
    offset, name, how = parting.first()
    expected, actual = shown[name]
    checked.first = {"offset": offset, "key": name, "how": how, "log": _side(expected), "replica": _side(actual)}


def states_at(
    export: ExportFile,
    partition: int,
    places: Sequence[int],
    *,
    compaction_lag_ms: int,
    observe: Callable[[RecordRead, Any], None] | None = None,
) -> Iterator[tuple[int, View | VerifyStatus]]:
    """The accepted states at ascending offsets of a partition, each until the next is asked for; or why the log has none there.

    The partition is read once, unless some of the offsets need another kind of read.
    """
    records: Sequence[RecordRead] = export.partitions.get(partition, ())
    end = export.header.end_offsets.get(partition, 0)
    oldest_kept_ms = export.header.exported_at_ms - compaction_lag_ms
    first_offset = export.header.first_offsets.get(partition, 0)
    reader: PartReader | None = None
    read_as: ReadFacts | None = None
    begun = 0
    for applied in places:
        if applied >= end:
            yield applied, VerifyStatus.BEYOND
            continue
        until = bisect_right(records, applied, key=lambda record: record.offset)
        # What vouches for one place may lie behind another: each is read as if the log ended there.
        facts = facts_of(records[:until], applied + 1, oldest_kept_ms=oldest_kept_ms, first_offset=first_offset)
        if facts.tentative:
            yield applied, VerifyStatus.INCOMPLETE
            continue
        if reader is None or facts != read_as:
            reader, read_as, begun = PartReader(partition, len(export.header.end_offsets), facts, observe), facts, 0
        reader.read(records[begun:until])
        begun = until
        yield applied, reader.view


def _lines(view: View) -> Iterable[bytes]:
    """Lines of the digest, by key."""
    return sorted(line(key) for key in view.existing())  # a quote is below every letter of a key: as by the key


def _side(line: bytes | None) -> dict[str, Any] | None:
    return side_fields(None if line is None else accepted_of(line))


def checked_fields(checked: VerifiedPartition) -> dict[str, Any]:
    return asdict(checked) | {"status": checked.status.value}


def worst(every: Iterable[VerifiedPartition]) -> VerifyStatus:
    """The gravest status; equal if all are equal."""
    order = (VerifyStatus.DIFFERENT, VerifyStatus.BEYOND, VerifyStatus.INCOMPLETE, VerifyStatus.UNKNOWN)
    statuses = {part.status for part in every}
    return next((status for status in order if status in statuses), VerifyStatus.EQUAL)


def different(every: Iterable[VerifiedPartition]) -> Iterator[VerifiedPartition]:
    return (part for part in every if part.status is VerifyStatus.DIFFERENT)
