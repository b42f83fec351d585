"""The reports of one broker, and their schedule. Without clock and Kafka: times go in, records come out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from loaddata.model.broker_load import BrokerLoad, ResourceWeights
from loaddata.model.bundle_load import TopBundle
from loaddata.model.figures import wall_ms
from loaddata.report.record import (
    LEAVING,
    BrokerLoadReport,
    ReportHeader,
    ReportKind,
    Tombstone,
    TopBundlesReport,
    UnwritableReportError,
    encode_broker_load,
    encode_top_bundles,
    parse_tombstone,
)
from loaddata.settings import LoadSettings
from loaddata.view.ownership import OwnChanges
from statechannel.protocol.side_record import Headers


class ReportCause(StrEnum):
    FIRST = "first"
    FORCED = "forced"
    OWNERSHIP = "ownership"
    TOMBSTONED = "tombstoned"
    UNCONFIRMED = "unconfirmed"
    AGE = "age"
    CHANGE = "change"
    SAMPLED = "sampled"


class DueReport(NamedTuple):
    """A report is due.

    Attributes:
        why: A sentence for people, with the numbers.
    """

    cause: ReportCause
    why: str


class WrittenReport(NamedTuple):
    """The last report that was written, with its time by this broker's monotonic clock."""

    load: BrokerLoad
    at_s: float


def change_percent(before: float, now: float) -> float:
    """Change in percent of the former value; from 0 to another value it is infinite (upstream `percentChange`)."""
    if before == 0:
        return 0.0 if now == 0 else math.inf
    return 100 * abs(before - now) / abs(before)


def changes(before: BrokerLoad, now: BrokerLoad, weights: ResourceWeights | None = None) -> dict[str, float]:
    """The four changes compared with the threshold; usage in percentage points, the others in percent."""
    if weights is None:
        usage = abs(before.max_resource_usage - now.max_resource_usage)
    else:
        usage = abs(before.weighted_max(weights) - now.weighted_max(weights))
    return {
        "resource usage": 100 * usage,
        "message rate": change_percent(before.msg_rate, now.msg_rate),
        "throughput": change_percent(before.msg_throughput, now.msg_throughput),
        "bundles": change_percent(before.bundles, now.bundles),
    }


def load_due(
    held: WrittenReport | None, now: BrokerLoad, now_s: float, settings: LoadSettings, weights: ResourceWeights
) -> DueReport | None:
    """Whether a load report is due by age or change; the comparisons are strict, as upstream's.

    Args:
        held: The last report; None before the first.
        now_s: Monotonic.
        weights: Those in force.
    """
    if held is None:
        return DueReport(ReportCause.FIRST, "nothing was reported yet")
    age_s = now_s - held.at_s
    max_age_s, threshold_percent = settings.report_max_age_s, settings.report_threshold_percent
    if age_s > max_age_s:
        return DueReport(ReportCause.AGE, f"the last report is {age_s:.1f} s old, more than {max_age_s:g} s")
    compared = weights if settings.report_compares == "weighted" else None
    name, change = max(changes(held.load, now, compared).items(), key=lambda pair: pair[1])
    if change > threshold_percent:
        return DueReport(ReportCause.CHANGE, f"{name} changed by {change:.1f}, more than {threshold_percent:g}")
    peak_share = settings.report_peak_percent / 100
    if peak_share and (held.load.peak_share >= peak_share) != (now.peak_share >= peak_share):
        share = f"{now.peak_share * 100:.0f} % of the last samples are at the peak, {held.load.peak_share * 100:.0f} % before"
        return DueReport(ReportCause.CHANGE, share)
    return None


def top_due(reported: tuple[int, float] | None, reading: int, now_s: float, interval_s: float) -> DueReport | None:
    """Whether a report of top bundles is due: its figures are newer than those of the last report, and some time has passed.

    Args:
        reported: Number of the reading of the last report, and when it was written; None before the first.
        reading: Number of the newest reading.
        now_s: Monotonic.
        interval_s: Shortest time between two reports; upstream's are as far apart as its statistics, a minute.
    """
    if reported is None:
        return DueReport(ReportCause.FIRST, "nothing was reported yet")
    last, at_s = reported
    if reading > last and now_s - at_s >= interval_s:
        return DueReport(ReportCause.SAMPLED, f"reading {reading} is newer than the reported {last}")
    return None


class ReportWrite(NamedTuple):
    """A record to be written.

    Attributes:
        value: None for a tombstone.
    """

    kind: ReportKind
    key: bytes
    value: bytes | None
    headers: Headers
    due: DueReport


class LoadSample(NamedTuple):
    """A reading to be reported.

    Attributes:
        top: Returns its heaviest bundles, the lightest first; only called if they are due.
        reading: Number of the reading that both come from, counted up.
    """

    load: BrokerLoad
    top: Callable[[], Sequence[TopBundle]]
    reading: int
    measured_s: float


@dataclass(slots=True)
class _Line:
    """The state of one kind of report.

    Attributes:
        read_seq: Newest report of this process that was read back; 0 before. `offset`: its offset, -1 before.
        forced: Why the next report is due, whatever the figures.
        tombstoned: Reason of a tombstone after the newest report.
        provoked_s: When this broker last answered a tombstone.
    """

    seq: int = 0
    at_s: float = 0.0
    read_seq: int = 0
    offset: int = -1
    forced: DueReport | None = None
    tombstoned: str | None = None
    provoked_s: float | None = None


class Reporter:
    """Schedule of a broker's reports: it numbers them, and answers tombstones of its own fresh ones.

    Args:
        broker: Id of this broker, the key of its reports.

    Attributes:
        weights: Weights of the resources in force, with which a changed load is compared; may be replaced.
        own: The changes of ownership that the figures count.
        causes: Reports by kind and cause. `skipped`: reports that could not be written, by reason.
    """

    def __init__(self, broker: str, incarnation: str, settings: LoadSettings | None = None) -> None:
        self._broker = broker
        self._incarnation = incarnation
        self._settings = settings = settings or LoadSettings()
        self._lines = {kind: _Line() for kind in ReportKind}
        self._held: WrittenReport | None = None
        self._reported: tuple[int, float] | None = None
        self.weights = settings.weights()
        self.own = OwnChanges(settings.settle_s)
        self.causes: Counter[tuple[ReportKind, ReportCause]] = Counter()
        self.skipped: Counter[str] = Counter()
        self.last_skipped = ""

    def force(
        self, why: str, kinds: Sequence[ReportKind] = tuple(ReportKind), cause: ReportCause = ReportCause.FORCED
    ) -> None:
        """Report at the next tick, whatever the figures."""
        for kind in kinds:
            self._lines[kind].forced = DueReport(cause, why)

    def tick(self, sample: LoadSample, positions: Mapping[int, int], *, now_s: float, now_ms: int) -> list[ReportWrite]:
        """The reports that are due. A report that its readers would refuse is left out and counted.

        Args:
            positions: Offset through which each partition of the channel is applied now.
            now_s: Monotonic.
            now_ms: Wall time.
        """
        if self.own.ripen(positions, now_s):
            self.force("this broker's bundles have changed", cause=ReportCause.OWNERSHIP)
        if not now_s - sample.measured_s <= self._settings.stale_s:
            self.skipped["stale"] += 1
            return []
        self._answer_tombstones(now_s)
        self._renew_unconfirmed(now_s)
        reports = [self._broker_load(sample, now_s, wall_ms(now_ms)), self._top_bundles(sample, now_s, wall_ms(now_ms))]
        return [report for report in reports if report is not None]

    def _broker_load(self, sample: LoadSample, now_s: float, now_ms: int) -> ReportWrite | None:
        line = self._lines[ReportKind.BROKER_LOAD]
        due = line.forced or load_due(self._held, sample.load, now_s, self._settings, self.weights)
        if due is None:
            return None
        load = replace(sample.load, reported_at_ms=now_ms)
        self._held = WrittenReport(sample.load, now_s)
        header = self._header(ReportKind.BROKER_LOAD, now_ms)
        return self._written(
            ReportKind.BROKER_LOAD, due, now_s, lambda: encode_broker_load(BrokerLoadReport(header, load))
        )

    def _top_bundles(self, sample: LoadSample, now_s: float, now_ms: int) -> ReportWrite | None:
        line = self._lines[ReportKind.TOP_BUNDLES]
        due = line.forced or top_due(self._reported, sample.reading, now_s, self._settings.top_interval_s)
        if due is None:
            return None
        self._reported = (sample.reading, now_s)
        report = TopBundlesReport(self._header(ReportKind.TOP_BUNDLES, now_ms), sample.top())
        return self._written(ReportKind.TOP_BUNDLES, due, now_s, lambda: encode_top_bundles(report))

    def _answer_tombstones(self, now_s: float) -> None:
        for kind, line in self._lines.items():
            waits = line.provoked_s is not None and now_s - line.provoked_s < self._settings.repeat_s
            if line.tombstoned is not None and not waits:
                self.force(f"a fresh report got a tombstone ({line.tombstoned})", [kind], ReportCause.TOMBSTONED)
                line.provoked_s, line.tombstoned = now_s, None

    def _renew_unconfirmed(self, now_s: float) -> None:
        """Only for the load, whose topic every broker reads; the top bundles are reported again soon anyway."""
        line = self._lines[ReportKind.BROKER_LOAD]
        if line.read_seq < line.seq and now_s - line.at_s >= self._settings.confirm_s and line.forced is None:
            why = f"report {line.seq} was not read back within {self._settings.confirm_s:g} s"
            self.force(why, [ReportKind.BROKER_LOAD], ReportCause.UNCONFIRMED)

    def _header(self, kind: ReportKind, now_ms: int) -> ReportHeader:
        seq = self._lines[kind].seq + 1
        return ReportHeader(self._broker, self._incarnation, seq, now_ms, dict(self.own.settled))

    def _written(
        self, kind: ReportKind, due: DueReport, now_s: float, encode: Callable[[], bytes]
    ) -> ReportWrite | None:
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
        return ReportWrite(kind, self._broker.encode(), value, (), due)

    def read_back(self, kind: ReportKind, header: ReportHeader, offset: int) -> None:
        if header.broker != self._broker or header.incarnation != self._incarnation:
            return
        line = self._lines[kind]
        line.read_seq = max(line.read_seq, header.seq)
        line.offset = max(line.offset, offset)
        line.tombstoned = None  # this report is newer than any tombstone before it

    def null_read(self, kind: ReportKind, key: bytes | None, headers: Headers, offset: int, now_s: float) -> None:
        """Process a null that was read from a load topic.

        Compaction keeps only the newest record of a key. So a null after a fresh report hides it from all later readers, even
        if present readers do not honour it: the report is written again.
        """
        line = self._lines[kind]
        if key != self._broker.encode() or line.seq == 0 or now_s - line.at_s > self._settings.ttl_s:
            return
        if offset > line.offset:
            tombstone = parse_tombstone(headers, offset)
            line.tombstoned = "no reason" if tombstone is None else tombstone.reason

    def reopened(self, kind: ReportKind) -> None:
        """A load topic is read from its beginning (again): the old offsets say nothing about it."""
        self._lines[kind].offset = -1

    def unconfirmed(self, kinds: Sequence[ReportKind]) -> bool:
        """Whether a report of these kinds was written and not read back yet."""
        return any(self._lines[kind].read_seq < self._lines[kind].seq for kind in kinds)

    def leave(self, now_ms: int) -> list[ReportWrite]:
        """Tombstones for the reports of this process that were read back: its last records."""
        due = DueReport(ReportCause.FORCED, "this broker leaves")
        return [
            ReportWrite(
                kind, self._broker.encode(), None, Tombstone(LEAVING, line.offset, wall_ms(now_ms)).headers(), due
            )
            for kind, line in self._lines.items()
            if line.offset >= 0
        ]
