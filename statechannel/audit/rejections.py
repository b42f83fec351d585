"""Rejected records by reason, writer and winner; and lost races, which are rejected proposals only.

Pure functions over an audit's observations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

from statechannel.audit.moments import WHOLE_LOG, LogWindow
from statechannel.protocol.log import RecordRead
from statechannel.protocol.verdict import REJECTIONS, Verdict
from statechannel.protocol.view import Judgement

GROUPS_MAX = 10_000
"""Maximum number of groups; junk under ever new names is counted under `OTHERS`."""
OTHERS = "(others)"
NEWEST_MAX = 50


class RejectionGroup(NamedTuple):
    reason: str
    writer: str | None  # None: the record is undecodable
    winner: str | None  # who wrote the accepted record that came first; None: nobody, or unknown


@dataclass(slots=True)
class RejectionTally:
    """Count, with first and last time."""

    records: int
    first_ms: int
    last_ms: int

    def add(self, other: RejectionTally) -> None:
        self.records += other.records
        self.first_ms = min(self.first_ms, other.first_ms)
        self.last_ms = max(self.last_ms, other.last_ms)


class Rejections:
    """Counts rejected records, and keeps the newest of them.

    Args:
        window: Only records in this part of the log.
        by: Only records of this broker; undecodable ones name none.

    Attributes:
        newest: For the JSON output: those with the newest timestamps of all partitions, at least `NEWEST_MAX` of
            them if available.
    """

    def __init__(self, *, window: LogWindow = WHOLE_LOG, by: str | None = None) -> None:
        self._window, self._by = window, by
        self.tallies: dict[RejectionGroup, RejectionTally] = {}
        self.newest: list[dict[str, Any]] = []

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        if judgement.verdict not in REJECTIONS:
            return
        decoded, key = judgement.record, judgement.key
        if self._by is not None and (decoded is None or decoded.broker != self._by):
            return
        if not self._window.has(record.offset, record.timestamp_ms):
            return
        winner = None if key is None or key.writer is None else key.writer.broker
        group = RejectionGroup(judgement.verdict.value, None if decoded is None else decoded.broker, winner)
        self.add(group, RejectionTally(1, record.timestamp_ms, record.timestamp_ms))
        self.newest.append(_row(record, judgement, group))
        if len(self.newest) >= 2 * NEWEST_MAX:
            self.newest = _newest(self.newest)

    def add(self, group: RejectionGroup, tally: RejectionTally) -> None:
        held = self.tallies.get(group)
        if held is None and len(self.tallies) >= GROUPS_MAX:
            group = RejectionGroup(group.reason, OTHERS, None)
            held = self.tallies.get(group)
        if held is None:
            self.tallies[group] = tally
        else:
            held.add(tally)


def _row(record: RecordRead, judgement: Judgement, group: RejectionGroup) -> dict[str, Any]:
    decoded = judgement.record
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": (record.key or b"").decode(errors="replace"),
        "reason": group.reason,
        "why": judgement.why,
        "writer": group.writer,
        "version": None if decoded is None else decoded.version,
        "state": None if decoded is None else decoded.state.value,
        "operation": None if decoded is None else decoded.text("operation"),
        "winner": winner_fields(judgement),
    }


def winner_fields(judgement: Judgement) -> dict[str, Any] | None:
    key = judgement.key
    if key is None or key.state is None:
        return None
    return {
        "id": key.accepted_id,
        "by": None if key.writer is None else key.writer.broker,
        "version": key.version,
        "state": key.state.value,
        "offset": key.offset,
        "operation": key.operation,
    }


def as_rows(rejections: Rejections) -> dict[str, Any]:
    """Rows of one part of a log, to be added to others."""
    return {
        "groups": [[*group, *astuple(tally)] for group, tally in rejections.tallies.items()],
        "newest": _newest(rejections.newest),
    }


def _newest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest rows by time; partitions are read one after the other, so the last row need not be the newest."""
    return sorted(rows, key=lambda row: (row["timestamp_ms"], row["partition"], row["offset"]))[-NEWEST_MAX:]


def added_up(parts: Iterable[Mapping[str, Any]]) -> Rejections:
    total = Rejections()
    for part in parts:
        for reason, writer, winner, *tally in part["groups"]:
            total.add(RejectionGroup(reason, writer, winner), RejectionTally(*tally))
        total.newest += part["newest"]
    return total


def rejected_document(rejections: Rejections) -> dict[str, Any]:
    """Document for the JSON output: by reason, by writer, both with the winner, and the newest; the most frequent first."""
    return {
        "records": sum(tally.records for tally in rejections.tallies.values()),
        "by_reason": [*_summed(rejections, "reason")],
        "by_writer": [*_summed(rejections, "writer")],
        "groups": [*_summed(rejections, "reason", "writer", "winner")],
        "newest": _newest(rejections.newest),
    }


def _summed(rejections: Rejections, *names: str) -> Iterator[dict[str, Any]]:
    sums: dict[tuple[str | None, ...], RejectionTally] = {}
    for group, tally in rejections.tallies.items():
        name = tuple(getattr(group, field) for field in names)
        held = sums.get(name)
        if held is None:
            sums[name] = RejectionTally(tally.records, tally.first_ms, tally.last_ms)
        else:
            held.add(tally)
    for name, tally in sorted(sums.items(), key=lambda item: (-item[1].records, *map(str, item[0]))):
        yield {
            **dict(zip(names, name, strict=True)),
            "records": tally.records,
            "first_ms": tally.first_ms,
            "last_ms": tally.last_ms,
        }


class LostRaces:
    """Counts rejected proposals by reason, writer and winner."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[Verdict, str, str | None]] = Counter()

    def observe(self, record: RecordRead, judgement: Judgement) -> None:  # noqa: ARG002 - the same for all observers
        decoded, key = judgement.record, judgement.key
        if judgement.verdict in REJECTIONS and decoded is not None and key is not None:
            winner = None if key.writer is None else key.writer.broker
            self.counts[judgement.verdict, decoded.broker, winner] += 1


def race_counts(races: LostRaces) -> Iterator[dict[str, Any]]:
    """Rejected proposals by reason, writer and winner, the most frequent first, then by name."""
    for (reason, writer, winner), count in sorted(
        races.counts.items(), key=lambda item: (-item[1], *map(str, item[0]))
    ):
        yield {"reason": reason.value, "writer": writer, "winner": winner, "count": count}
