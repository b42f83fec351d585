"""What one broker reports of itself, and when. No clock, no Kafka: times go in, records come out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from loaddata.broker_load import BrokerLoad
from loaddata.figures import wall_ms
from loaddata.ownership import OwnChanges
from loaddata.report_record import (
    BrokerLoadReport,
    Header,
    Kind,
    TopBundlesReport,
    UnwritableReportError,
    encode_broker_load,
    encode_top_bundles,
)
from loaddata.reporting import Cause, Due, Held, ReportRules, load_due, top_due
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


class Told(NamedTuple):
    """What there is to tell.

    Attributes:
        load: This broker's load.
        top: Gives its heaviest bundles, the lightest first; only called where they are due.
        reading: Number of the reading that both come from, counted up.
        measured_s: Monotonic time of that reading.
    """

    load: BrokerLoad
    top: Callable[[], Sequence[TopBundle]]
    reading: int
    measured_s: float


@dataclass(frozen=True, slots=True)
class ReporterRules:
    """Bounds of a reporter.

    Attributes:
        top_interval_s: Shortest time between two reports of top bundles.
        settle_s: How long figures need to show a bundle that came or went.
        stale_s: Figures older than this are not told: they would look fresh.
        fresh_s: A report of its own younger than this must not be buried.
        repeat_s: Shortest time between two reports of one kind that tombstones provoke, so that a wrong writer of
            tombstones and this broker do not keep each other busy.
        confirm_s: A report that was not read back for so long is written again: it may be lost.
    """

    report: ReportRules = field(default_factory=ReportRules)
    top_interval_s: float = 15.0
    settle_s: float = 5.0
    stale_s: float = 30.0
    fresh_s: float = 1_800.0
    repeat_s: float = 10.0
    confirm_s: float = 10.0


@dataclass(slots=True)
class _Line:
    """What was reported of one kind.

    Attributes:
        read_seq: Newest report of this process that was read back; 0 before. `offset`: where it lies, -1 before.
        forced: Why the next report is due whatever the figures say.
        buried: A tombstone lies behind the newest report; its reason.
        provoked_s: When a tombstone last made this broker report.
    """

    seq: int = 0
    at_s: float = 0.0
    read_seq: int = 0
    offset: int = -1
    forced: Due | None = None
    buried: str | None = None
    provoked_s: float | None = None


class Reporter:
    """Decides at every tick, numbers the reports, and answers tombstones of its own fresh ones.

    Args:
        broker: Id of this broker, the key of its reports.
        incarnation: This process.

    Attributes:
        report: When a changed load is told; may be changed.
        own: Which changes of ownership the figures take in.
        causes: Reports by kind and cause. `skipped`: reports that could not be written, by reason.
    """

    def __init__(self, broker: str, incarnation: str, rules: ReporterRules | None = None) -> None:
        self._broker = broker
        self._incarnation = incarnation
        self._rules = rules or ReporterRules()
        self._lines = {kind: _Line() for kind in Kind}
        self._held: Held | None = None
        self._told: tuple[int, float] | None = None
        self.report = self._rules.report
        self.own = OwnChanges(self._rules.settle_s)
        self.causes: Counter[tuple[Kind, Cause]] = Counter()
        self.skipped: Counter[str] = Counter()
        self.last_skipped = ""

    def force(self, why: str, kinds: Sequence[Kind] = tuple(Kind), cause: Cause = Cause.FORCED) -> None:
        """Report at the next tick whatever the figures say."""
        for kind in kinds:
            self._lines[kind].forced = Due(cause, why)

    def tick(self, told: Told, positions: Mapping[int, int], *, now_s: float, now_ms: int) -> list[Written]:
        """The reports that are due. A report that its readers would refuse is left out and counted.

        Args:
            positions: Offset through which each partition of the channel is applied now.
            now_s: Monotonic.
            now_ms: Wall time.
        """
        if self.own.ripen(positions, now_s):
            self.force("this broker's bundles have changed", cause=Cause.OWNERSHIP)
        if not now_s - told.measured_s <= self._rules.stale_s:
            self.skipped["stale"] += 1
            return []
        self._answer_tombstones(now_s)
        self._renew_unconfirmed(now_s)
        found = [self._broker_load(told, now_s, wall_ms(now_ms)), self._top_bundles(told, now_s, wall_ms(now_ms))]
        return [one for one in found if one is not None]

    def _broker_load(self, told: Told, now_s: float, now_ms: int) -> Written | None:
        line = self._lines[Kind.BROKER_LOAD]
        due = line.forced or load_due(self._held, told.load, now_s, self.report)
        if due is None:
            return None
        load = replace(told.load, reported_at_ms=now_ms)
        self._held = Held(told.load, now_s)
        header = self._header(Kind.BROKER_LOAD, now_ms)
        return self._written(Kind.BROKER_LOAD, due, now_s, lambda: encode_broker_load(BrokerLoadReport(header, load)))

    def _top_bundles(self, told: Told, now_s: float, now_ms: int) -> Written | None:
        line = self._lines[Kind.TOP_BUNDLES]
        due = line.forced or top_due(self._told, told.reading, now_s, self._rules.top_interval_s)
        if due is None:
            return None
        self._told = (told.reading, now_s)
        report = TopBundlesReport(self._header(Kind.TOP_BUNDLES, now_ms), told.top())
        return self._written(Kind.TOP_BUNDLES, due, now_s, lambda: encode_top_bundles(report))

    def _answer_tombstones(self, now_s: float) -> None:
        for kind, line in self._lines.items():
            waits = line.provoked_s is not None and now_s - line.provoked_s < self._rules.repeat_s
            if line.buried is not None and not waits:
                self.force(f"a fresh report was buried ({line.buried})", [kind], Cause.TOMBSTONED)
                line.provoked_s, line.buried = now_s, None

    def _renew_unconfirmed(self, now_s: float) -> None:
        """Only of the load: every broker reads that topic; the top bundles are told again soon anyway."""
        line = self._lines[Kind.BROKER_LOAD]
        if line.read_seq < line.seq and now_s - line.at_s >= self._rules.confirm_s and line.forced is None:
            why = f"report {line.seq} was not read back within {self._rules.confirm_s:g} s"
            self.force(why, [Kind.BROKER_LOAD], Cause.UNCONFIRMED)

    def _header(self, kind: Kind, now_ms: int) -> Header:
        seq = self._lines[kind].seq + 1
        return Header(self._broker, self._incarnation, seq, now_ms, dict(self.own.settled))

    def _written(self, kind: Kind, due: Due, now_s: float, encode: Callable[[], bytes]) -> Written | None:
        line = self._lines[kind]
        line.forced = None
        try:
            value = encode()
        except UnwritableReportError as error:
            self.skipped["unwritable"] += 1
            self.last_skipped = str(error)
            return None
        line.seq += 1
        line.at_s = now_s
        self.causes[kind, due.cause] += 1
        return Written(kind, self._broker.encode(), value, (), due)

    def read_back(self, kind: Kind, header: Header, offset: int) -> None:
        """Look at a report that was read from a load topic."""
        if header.broker != self._broker or header.incarnation != self._incarnation:
            return
        line = self._lines[kind]
        line.read_seq = max(line.read_seq, header.seq)
        line.offset = max(line.offset, offset)
        line.buried = None  # this one lies above whatever buried the one before

    def null_read(self, kind: Kind, key: bytes | None, headers: Headers, offset: int, now_s: float) -> None:
        """Look at a null that was read from a load topic.

        Compaction keeps nothing but the newest record of a key. So a null that lies behind a fresh report takes it from
        everybody who joins later, even if those who hold the report do not honour it: the report is written again.
        """
        line = self._lines[kind]
        if key != self._broker.encode() or line.seq == 0 or now_s - line.at_s > self._rules.fresh_s:
            return
        if offset > line.offset:
            tombstone = parse_tombstone(headers, offset)
            line.buried = "no reason" if tombstone is None else tombstone.reason

    def reopened(self, kind: Kind) -> None:
        """A load topic is read from its beginning (again): the old offsets say nothing about it."""
        self._lines[kind].offset = -1

    def on_its_way(self, kinds: Sequence[Kind]) -> bool:
        """Whether a report of these kinds is on its way: written, and not read back yet."""
        return any(self._lines[kind].read_seq < self._lines[kind].seq for kind in kinds)

    def leave(self, now_ms: int) -> list[Written]:
        """Tombstones of what this process has reported and read back: the last it writes."""
        due = Due(Cause.FORCED, "this broker leaves")
        return [
            Written(kind, self._broker.encode(), None, Tombstone(LEAVING, line.offset, wall_ms(now_ms)).headers(), due)
            for kind, line in self._lines.items()
            if line.offset >= 0
        ]
