"""The newest report of each broker in each load topic, by the rules of the brokers' own view (`loaddata.table_view`). Pure.

The view is fed headers only: figures stay where Spark has them. Its clock is the log's, record by record, so that a replay
gives the same view whenever it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from loaddata.report_record import Header, Junk, Kind, Undecodable
from loaddata.table_view import Arrival, Fate, LoadRecord, TableView, ViewRules
from spark.load_rows import plain_headers

FOLD_COLUMNS: Final = (
    "kind",
    "offset",
    "log_time_ms",
    "key",
    "tombstone",
    "headers",
    "broker",
    "incarnation",
    "seq",
    "written_at_ms",
    "size_bytes",
    "reason",
    "why",
)
"""What the fold needs of a row."""


class Told(NamedTuple):
    """A report without its figures."""

    header: Header


class Judged(NamedTuple):
    """What became of one record.

    Attributes:
        reason: Why it was dropped; empty where it was not.
    """

    kind: str
    offset: int
    fate: str
    reason: str


class Holding(NamedTuple):
    """The report that is held of a broker.

    Attributes:
        log_age_s: How old the log's own clock proves it to be.
    """

    offset: int
    log_age_s: float


@dataclass(slots=True)
class TopicFold:
    """One topic.

    Attributes:
        position: Next offset: all records below it have been taken in.
        log_clock_ms: Where the log's clock stands: the time of its last record. Not the latest time of any: a Kafka broker
            whose clock was wrong for a while is forgotten as soon as another one appends.
    """

    view: TableView[Told]
    position: int = 0
    log_clock_ms: int = 0

    def read(self, row: Mapping[str, Any]) -> tuple[Fate, str]:
        """Take one record in; its fate, and why it was dropped."""
        log_time_ms: int = row["log_time_ms"]
        record = LoadRecord(
            row["key"],
            None if row["tombstone"] else bytes(row["size_bytes"]),  # the view asks only how long it is
            plain_headers(row["headers"]),
            row["offset"],
            log_time_ms,
        )
        fate = self.view.read(record, _found(row), Arrival(now_s=log_time_ms / 1_000))
        self.position = row["offset"] + 1
        reason = str(self.view.last_reason) if fate is Fate.DROPPED else ""
        if reason != Junk.CLOCK:
            self.log_clock_ms = log_time_ms
        return fate, reason

    def held(self) -> dict[str, Holding]:
        """What is held, by broker."""
        seen = self.view.held(self.log_clock_ms / 1_000)
        return {name: Holding(one.offset, one.age_s) for name, one in seen.items()}


def _found(row: Mapping[str, Any]) -> Told | Undecodable | None:
    if row["tombstone"]:
        return None
    if row["reason"]:
        return Undecodable(Junk(row["reason"]), row["why"] or "")
    return Told(Header(row["broker"], row["incarnation"], row["seq"], row["written_at_ms"]))


@dataclass(slots=True)
class LoadFold:
    """Both topics."""

    rules: ViewRules = field(default_factory=ViewRules)
    topics: dict[Kind, TopicFold] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind in Kind:
            self.topics.setdefault(kind, TopicFold(TableView(self.rules)))

    def restore(self, kind: Kind, rows: Iterable[Mapping[str, Any]], *, position: int, log_clock_ms: int) -> None:
        """Begin with what a snapshot holds.

        Args:
            rows: Of the snapshot, with the columns of `FOLD_COLUMNS` that a report has.
            position: Next offset.
            log_clock_ms: Where the log's clock stood.
        """
        fold = TopicFold(TableView(self.rules))
        empty = dict.fromkeys(FOLD_COLUMNS)
        for row in sorted(rows, key=lambda one: int(one["offset"])):
            fold.read({**empty, **row, "tombstone": False, "reason": "", "key": row["broker"].encode()})
        fold.view.fates.clear()
        fold.view.dropped.clear()
        fold.position, fold.log_clock_ms = position, log_clock_ms
        self.topics[kind] = fold

    def fold(self, rows: Sequence[Mapping[str, Any]]) -> list[Judged]:
        """Take a batch in, in log order; what lies below the positions was taken in before, and is left out."""
        judged = []
        for row in sorted(rows, key=lambda one: (one["kind"], one["offset"])):
            fold = self.topics[Kind(row["kind"])]
            if row["offset"] >= fold.position:
                fate, reason = fold.read(row)
                judged.append(Judged(row["kind"], row["offset"], str(fate), reason))
        return judged

    def passed(self, kind: Kind, position: int) -> None:
        """Nothing lies below this offset that was not taken in: retention and compaction leave gaps, at the end, too."""
        fold = self.topics[kind]
        fold.position = max(fold.position, position)

    def winners(self) -> list[tuple[str, int]]:
        """Kind and offset of every report that is held."""
        return [(str(kind), one.offset) for kind, fold in self.topics.items() for one in fold.held().values()]

    def counts(self) -> dict[Kind, Counter[str]]:
        """Records by what became of them; those dropped by reason, too."""
        return {
            kind: Counter({str(fate): count for fate, count in fold.view.fates.items()})
            + Counter({f"dropped: {why}": count for why, count in fold.view.dropped.items()})
            for kind, fold in self.topics.items()
        }
