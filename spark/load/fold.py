"""The newest report of each broker in each load topic, by the rules of the brokers' own view (`loaddata.view.table_view`). Pure.

The view is fed headers only: figures stay where Spark has them. Its clock is the log's, record by record, so that a replay
gives the same view whenever it runs.

Beside the view stands when each broker was heard last: a report that comes late, or is dropped for its clock or for want of
room, has no usable figures, but its writer lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from loaddata.report.record import InvalidReportReason, ReportHeader, ReportKind
from loaddata.view.table_view import Arrival, Fate, TableView, ViewRules
from spark.load.rows import plain_headers
from statechannel.protocol.side_record import InvalidRecord, SideRecord

FOLD_COLUMNS: Final = (
    "kind",
    "offset",
    "log_time_ms",
    "tombstone",
    "headers",
    "broker",
    "incarnation",
    "seq",
    "written_at_ms",
    "size_bytes",
    "reason",
)
"""What the fold needs of a row; no key: it is the broker's name wherever it is one."""


class ReportMeta(NamedTuple):
    """A report without its figures."""

    header: ReportHeader


class JudgedRecord(NamedTuple):
    """What became of one record.

    Attributes:
        reason: Why it was dropped; empty where it was not.
    """

    kind: str
    offset: int
    fate: str
    reason: str


class LastReport(NamedTuple):
    """The last sign of life of a broker whose report is held.

    Attributes:
        offset: That of the report, or of a later one that did not take its place.
        log_age_s: How old the log's own clock proves it to be.
    """

    offset: int
    log_age_s: float


class Life(NamedTuple):
    """A record that decodes, of the broker that is its key.

    Attributes:
        log_time_ms: None while no time of the log that can be believed says how old it is.
    """

    offset: int
    log_time_ms: int | None


@dataclass(slots=True)
class TopicFold:
    """One topic.

    Attributes:
        position: Next offset: all records below it have been taken in.
        log_clock_ms: Where the log's clock stands: the time of its last record. Not the latest time of any: a Kafka broker
            whose clock was wrong for a while is forgotten as soon as another one appends.
    """

    view: TableView[ReportMeta]
    position: int = 0
    log_clock_ms: int = 0
    _lives: dict[str, Life] = field(default_factory=dict)
    _timeless: list[str] = field(default_factory=list)

    def read(self, row: Mapping[str, Any]) -> tuple[Fate, str]:
        """Take one record in; its fate, and why it was dropped."""
        log_time_ms: int = row["log_time_ms"]
        record = SideRecord(
            (row["broker"] or "").encode(),
            None if row["tombstone"] else bytes(row["size_bytes"]),  # the view asks only how long it is
            plain_headers(row["headers"]),
            row["offset"],
            log_time_ms,
        )
        report = _report_of(row)
        fate = self.view.read(record, report, Arrival(now_s=log_time_ms / 1_000))
        self.position = row["offset"] + 1
        reason = str(self.view.last_reason) if fate is Fate.DROPPED else ""
        if reason != InvalidReportReason.CLOCK:
            self.log_clock_ms = log_time_ms
        if isinstance(report, ReportMeta):
            self._lives_on(
                report.header.broker, record.offset, None if reason == InvalidReportReason.CLOCK else log_time_ms
            )
        return fate, reason

    def _lives_on(self, broker: str, offset: int, log_time_ms: int | None) -> None:
        """Note a sign of life; where its writer's clock and the log's differ, the next time that is agreed on dates it."""
        if log_time_ms is not None:
            for name in self._timeless:
                if name in self._lives:
                    self._lives[name] = Life(self._lives[name].offset, log_time_ms)
            self._timeless.clear()
        if broker in self.view:
            if log_time_ms is None and self._lives[broker].log_time_ms is not None:
                self._timeless.append(broker)
            self._lives[broker] = Life(offset, log_time_ms)

    def forget_gone(self) -> None:
        """Drop the signs of life of those of whom no report is held."""
        if len(self._lives) > len(self.view):
            self._lives = {name: live for name, live in self._lives.items() if name in self.view}
            self._timeless = [name for name in self._timeless if name in self._lives]

    def restore_heard(self, heard: Mapping[str, Sequence[int | None]]) -> None:
        """Restore the signs of life of a snapshot, as `heard_since` returned them."""
        for name, (offset, log_time_ms) in heard.items():
            if offset is None or name not in self.view or offset <= self._lives[name].offset:
                continue
            self._lives[name] = Life(offset, log_time_ms)
            if log_time_ms is None:
                self._timeless.append(name)

    def heard_since(self) -> dict[str, Life]:
        """Signs of life that lie behind the report that is held, by broker."""
        seen = self.view.held(0.0)
        return {name: self._lives[name] for name, report in seen.items() if self._lives[name].offset != report.offset}

    def winners(self) -> list[int]:
        return [report.offset for report in self.view.held(0.0).values()]

    def held(self) -> dict[str, LastReport]:
        """How each broker whose report is held was heard last."""
        return {name: self._holding(self._lives[name]) for name in self.view.held(0.0)}

    def _holding(self, life: Life) -> LastReport:
        age_ms = 0 if life.log_time_ms is None else max(0, self.log_clock_ms - life.log_time_ms)
        return LastReport(life.offset, age_ms / 1_000)


def _report_of(row: Mapping[str, Any]) -> ReportMeta | InvalidRecord | None:
    if row["reason"]:
        return InvalidRecord(InvalidReportReason(row["reason"]), "")
    if row["tombstone"]:
        return None
    return ReportMeta(ReportHeader(row["broker"], row["incarnation"], row["seq"], row["written_at_ms"]))


@dataclass(slots=True)
class LoadFold:
    """Both topics."""

    rules: ViewRules = field(default_factory=ViewRules)
    topics: dict[ReportKind, TopicFold] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind in ReportKind:
            self.topics.setdefault(kind, TopicFold(TableView(self.rules)))

    def restore(
        self,
        kind: ReportKind,
        rows: Iterable[Mapping[str, Any]],
        *,
        position: int,
        log_clock_ms: int,
        heard: Mapping[str, Sequence[int | None]],
    ) -> None:
        """Begin with what a snapshot holds.

        Args:
            rows: Of the snapshot, with the columns of `FOLD_COLUMNS` that a report has.
            heard: Offset and time of later signs of life, by broker.
        """
        fold = TopicFold(TableView(self.rules))
        empty = dict.fromkeys(FOLD_COLUMNS)
        for row in sorted(rows, key=lambda row: int(row["offset"])):
            fold.read({**empty, **row, "tombstone": False, "reason": ""})
        fold.restore_heard(heard)
        fold.view.fates.clear()
        fold.view.dropped.clear()
        fold.position, fold.log_clock_ms = position, log_clock_ms
        self.topics[kind] = fold

    def fold(self, rows: Sequence[Mapping[str, Any]]) -> list[JudgedRecord]:
        """Take a batch in, in log order; what lies below the positions was taken in before, and is left out."""
        judged = []
        for row in sorted(rows, key=lambda row: (row["kind"], row["offset"])):
            fold = self.topics[ReportKind(row["kind"])]
            if row["offset"] >= fold.position:
                fate, reason = fold.read(row)
                judged.append(JudgedRecord(row["kind"], row["offset"], str(fate), reason))
        for fold in self.topics.values():
            fold.forget_gone()
        return judged

    def passed(self, kind: ReportKind, position: int) -> None:
        """Everything below this offset was read: retention and compaction leave gaps, at the end, too."""
        fold = self.topics[kind]
        fold.position = max(fold.position, position)

    def winners(self) -> list[tuple[str, int]]:
        return [(str(kind), offset) for kind, fold in self.topics.items() for offset in fold.winners()]
