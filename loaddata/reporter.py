"""What one broker reports of itself, and when. No clock, no Kafka: times go in, records come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from loaddata.broker_load import BrokerLoad
from loaddata.ownership import OwnChanges
from loaddata.report_record import (
    BrokerLoadReport,
    Header,
    Kind,
    TopBundlesReport,
    Undecodable,
    decode_broker_load,
    decode_top_bundles,
    encode_broker_load,
    encode_top_bundles,
)
from loaddata.reporting import Cause, Due, Held, ReportRules, load_due, top_due
from loaddata.table_view import LoadRecord
from loaddata.tombstone import LEAVING, Headers, Tombstone, parse_tombstone
from loaddata.top_bundles import TopBundle


class Written(NamedTuple):
    """A record to be written.

    Attributes:
        value: None for a tombstone.
    """

    kind: Kind
    key: bytes
    value: bytes | None
    headers: Headers
    due: Due


@dataclass(frozen=True, slots=True)
class ReporterRules:
    """Bounds of a reporter.

    Attributes:
        fresh_s: A report of its own younger than this must not be buried.
        repeat_s: Shortest time between two reports of one kind that tombstones provoke, so that a wrong writer of
            tombstones and this broker do not keep each other busy.
    """

    report: ReportRules = field(default_factory=ReportRules)
    settle_s: float = 5.0
    fresh_s: float = 1_800.0
    repeat_s: float = 10.0


@dataclass(slots=True)
class _Line:
    """What was reported of one kind.

    Attributes:
        offset: Where the newest report of this process lies in the topic, once it was read back; -1 before.
        forced: Why the next report is due whatever the figures say.
        buried: A tombstone lies behind the newest report; its reason.
        provoked_s: When a tombstone last made this broker report.
    """

    seq: int = 0
    at_s: float = 0.0
    offset: int = -1
    forced: Due | None = None
    buried: str | None = None
    provoked_s: float | None = None


class Reporter:
    """Decides at every tick, numbers the reports, and answers tombstones of its own fresh ones.

    Args:
        broker: Id of this broker, the key of its reports.
        incarnation: This process.
    """

    def __init__(self, broker: str, incarnation: str, rules: ReporterRules | None = None) -> None:
        self._broker = broker
        self._incarnation = incarnation
        self._rules = rules or ReporterRules()
        self._lines = {kind: _Line() for kind in Kind}
        self._held: Held | None = None
        self._told_sample: int | None = None
        self.own = OwnChanges(self._rules.settle_s)

    def force(self, why: str, kinds: Sequence[Kind] = tuple(Kind), cause: Cause = Cause.FORCED) -> None:
        """Report at the next tick whatever the figures say."""
        for kind in kinds:
            self._lines[kind].forced = Due(cause, why)

    def tick(
        self, load: BrokerLoad, top: Sequence[TopBundle], *, sample: int, now_s: float, now_ms: int
    ) -> list[Written]:
        """The reports that are due.

        Args:
            load: This broker's load now.
            top: Its heaviest bundles now.
            sample: Number of the reading that both were made from, counted up.
            now_s: Monotonic.
            now_ms: Wall time.

        Raises:
            UnwritableReportError: A report would be refused by its readers.
        """
        if self.own.ripen(now_s):
            self.force("this broker's bundles have changed", cause=Cause.OWNERSHIP)
        self._answer_tombstones(now_s)
        written: list[Written] = []
        due = self._lines[Kind.BROKER_LOAD].forced or load_due(self._held, load, now_s, self._rules.report)
        if due is not None:
            told = replace(load, reported_at_ms=now_ms)
            value = encode_broker_load(BrokerLoadReport(self._header(Kind.BROKER_LOAD, now_ms), told))
            written.append(self._written(Kind.BROKER_LOAD, value, due, now_s))
            self._held = Held(load, now_s)
        due = self._lines[Kind.TOP_BUNDLES].forced or top_due(self._told_sample, sample)
        if due is not None:
            value = encode_top_bundles(TopBundlesReport(self._header(Kind.TOP_BUNDLES, now_ms), top))
            written.append(self._written(Kind.TOP_BUNDLES, value, due, now_s))
            self._told_sample = sample
        return written

    def _answer_tombstones(self, now_s: float) -> None:
        for kind, line in self._lines.items():
            waits = line.provoked_s is not None and now_s - line.provoked_s < self._rules.repeat_s
            if line.buried is not None and not waits:
                self.force(f"a fresh report was buried {line.buried}", [kind], Cause.TOMBSTONED)
                line.provoked_s, line.buried = now_s, None

    def _header(self, kind: Kind, now_ms: int) -> Header:
        seq = self._lines[kind].seq + 1
        return Header(self._broker, self._incarnation, seq, now_ms, dict(self.own.settled))

    def _written(self, kind: Kind, value: bytes, due: Due, now_s: float) -> Written:
        line = self._lines[kind]
        line.seq += 1
        line.at_s, line.forced = now_s, None
        return Written(kind, self._broker.encode(), value, (), due)

    def read_back(self, kind: Kind, record: LoadRecord, now_s: float) -> None:
        """Look at a record of a load topic: this broker's own, or what buries it.

        Compaction keeps nothing but the newest record of a key. So a tombstone that lies behind a fresh report takes it from
        everybody who joins later, even if those who hold the report do not honour it: the report is written again.
        """
        if record.key != self._broker.encode():
            return
        line = self._lines[kind]
        if record.value is not None:
            report = _DECODE[kind](record.key, record.value)
            if not isinstance(report, Undecodable) and report.header.incarnation == self._incarnation:
                line.offset = max(line.offset, record.offset)
                line.buried = None  # this one lies above whatever buried the one before
            return
        fresh = line.seq > 0 and now_s - line.at_s <= self._rules.fresh_s
        if fresh and record.offset > line.offset:
            tombstone = parse_tombstone(record.headers)
            line.buried = "without a reason" if tombstone is None else f"({tombstone.reason})"

    def leave(self, now_ms: int) -> list[Written]:
        """Tombstones of what this process has reported and read back: the last it writes."""
        due = Due(Cause.FORCED, "this broker leaves")
        return [
            Written(kind, self._broker.encode(), None, Tombstone(LEAVING, line.offset, now_ms).headers(), due)
            for kind, line in self._lines.items()
            if line.offset >= 0
        ]


_DECODE = {Kind.BROKER_LOAD: decode_broker_load, Kind.TOP_BUNDLES: decode_top_bundles}
