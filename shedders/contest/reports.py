"""Measurements and reports of simulated brokers, by the rules of `loaddata`, and what others know of them.

Readings, moving averages and the choice of reports are those of a live broker (`loaddata.model.broker_load`,
`loaddata.report.reporter`, `loaddata.model.bundle_load`); averages of bundles are kept as arrays, in the same order of operations
as `loaddata.model.bundle_load.pushed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from loaddata.model.broker_load import BrokerLoad, BrokerTraffic, HostUsage, PeakWindow, ResourceUsage, updated
from loaddata.model.bundle_load import (
    CACHE_STEP_BYTES,
    COUNT_STEP,
    LONG_SAMPLES,
    RATE_STEP,
    RECENT_SAMPLES,
    SHORT_SAMPLES,
    THROUGHPUT_STEP,
    BundleAverages,
    BundleStats,
    MessageAverage,
    TopBundle,
)
from loaddata.report.record import ReportedLoad, ReportedTopBundles
from loaddata.report.reporter import WrittenReport, load_due
from loaddata.settings import LoadSettings
from shedders.contest.bundles import BYTES_IN, BYTES_OUT, CPU, MEMORY, BundleTable
from shedders.contest.trace import CORE

if TYPE_CHECKING:
    from shedders.contest.trace import Floats, Ints, TraceMachine


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """How a contender's brokers measure and report.

    Attributes:
        on_ownership: A broker reports once its readings show a bundle that came or went, and others know that its report is
            older than that (Pulsar: neither).
        again_s: Time after which a report is renewed (`renewing` of the balancer); 0: never.
        keep_averages: A bundle's averages go with it (the leader of Pulsar's modular manager keeps them).
    """

    load: LoadSettings = field(default_factory=LoadSettings)
    on_ownership: bool = True
    again_s: float = 0.0
    keep_averages: bool = False


class _Averages:
    """Short and long averages of all bundles; four rows each, and how many samples are in them."""

    def __init__(self) -> None:
        self.short: Floats = np.zeros((4, 0))
        self.long: Floats = np.zeros((4, 0))
        self.samples: Ints = np.zeros(0, dtype=np.int64)

    def copy(self) -> _Averages:
        duplicate = _Averages()
        duplicate.short, duplicate.long, duplicate.samples = self.short.copy(), self.long.copy(), self.samples.copy()
        return duplicate

    def forget(self, number: int) -> None:
        """Forget the averages of a bundle, as its new owner measures it from the beginning."""
        if number < len(self.samples):
            self.samples[number] = 0

    def push(self, rates: Floats, count: int) -> None:
        """Add `count` samples of these rates: `loaddata.model.bundle_load.pushed`, for arrays."""
        self._fit(rates.shape[1])
        for _ in range(count):
            self.samples = np.minimum(self.samples + 1, LONG_SAMPLES)
            for rows, most in ((self.short, SHORT_SAMPLES), (self.long, LONG_SAMPLES)):
                n = np.minimum(self.samples, most).astype(np.float64)
                rows[:] = ((n - 1) * rows + rates) / n

    def _fit(self, count: int) -> None:
        more = count - self.short.shape[1]
        if more > 0:
            block = np.zeros((4, more))
            self.short = np.concatenate([self.short, block], axis=1)
            self.long = np.concatenate([self.long, block], axis=1)
            self.samples = np.concatenate([self.samples, np.zeros(more, dtype=np.int64)])


class _Frame:
    """Figures of all bundles at one moment, as reported by their brokers."""

    def __init__(self, rates: Floats, averages: _Averages, table: BundleTable, brokers: int) -> None:
        self._brokers = brokers
        self._rates = rates
        self._averages = averages.copy()
        self._owner = table.owner.copy()
        self._table = table
        self._of_broker: tuple[Ints, Ints] | None = None
        self._reported: dict[int, Sequence[TopBundle]] = {}

    def top(self, broker: int, settings: LoadSettings, factor: float) -> Sequence[TopBundle]:
        """The bundles that it reports, the lightest first, by the rules of `loaddata.model.bundle_load.top_bundles`."""
        reported = self._reported.get(broker)
        if reported is None:
            order, starts = self._sorted()
            mine = order[starts[broker] : starts[broker + 1]]
            if settings.top_bundles_max:
                mine = self._select(mine[self._rates[2, mine] + self._rates[3, mine] > 0], settings)
            reported = self._reported[broker] = _reported(self._table, self._rates, self._averages, mine, factor)
        return reported

    def _select(self, mine: Ints, settings: LoadSettings) -> Ints:
        chosen = np.zeros(len(mine), dtype=bool)
        chosen[-settings.top_bundles_max :] = True
        if settings.top_recent_max:
            recent = np.flatnonzero(~chosen & (self._averages.samples[mine] < RECENT_SAMPLES))
            chosen[recent[-settings.top_recent_max :]] = True
        if settings.top_by_resource_max:
            messages, sent = self._rates[0, mine] + self._rates[1, mine], self._rates[3, mine]
            for figures in (messages, sent):
                order = np.lexsort((self._table.place[mine], figures))
                chosen[order[-settings.top_by_resource_max :]] = True
        return mine[chosen]

    def _sorted(self) -> tuple[Ints, Ints]:
        """Bundles by broker, the lightest first, in upstream's order by buckets, equals by name; where each broker's begin."""
        if self._of_broker is None:
            rates, table, count = self._rates, self._table, self._rates.shape[1]
            bytes_in, bytes_out = (np.floor(rates[row] / THROUGHPUT_STEP + 0.5) for row in (2, 3))
            messages = np.floor((rates[0] + rates[1]) / RATE_STEP + 0.5)
            counts = (table.topics[:count] + table.sessions[:count]) // COUNT_STEP
            cache = rates[2] // CACHE_STEP_BYTES
            keys = (table.place[:count], cache, counts, messages, bytes_out, bytes_in, self._owner[:count])
            order = np.lexsort(keys)
            starts = np.searchsorted(self._owner[:count][order], np.arange(self._brokers + 1))
            self._of_broker = order, starts
        return self._of_broker


def _reported(
    table: BundleTable, rates: Floats, averages: _Averages, numbers: Ints | Sequence[int], factor: float
) -> Sequence[TopBundle]:
    now = (rates[:4, numbers] * factor).T.tolist()
    short, long = ((rows[:, numbers] * factor).T.tolist() for rows in (averages.short, averages.long))
    samples = averages.samples[numbers].tolist()
    topics, sessions = table.topics[numbers].tolist(), table.sessions[numbers].tolist()
    reports = []
    for place, number in enumerate(numbers):
        a, b, c, d = now[place]
        count, producers = samples[place], sessions[place] // 3
        stats = BundleStats(a, b, c, d, topics[place], sessions[place] - producers, producers, int(c))
        if count:
            known = BundleAverages(
                _average(short[place], count, SHORT_SAMPLES), _average(long[place], count, LONG_SAMPLES)
            )
            reports.append(TopBundle(table.names[number], stats, known))
        else:
            reports.append(TopBundle(table.names[number], stats))
    return reports


def _average(rates: Sequence[float], samples: int, most: int) -> MessageAverage:
    msg_in, msg_out, bytes_in, bytes_out = rates
    return MessageAverage(msg_in, msg_out, bytes_in, bytes_out, min(samples, most))


@dataclass(slots=True)
class _Broker:
    machine: TraceMachine
    load: BrokerLoad = field(default_factory=BrokerLoad)
    peak: PeakWindow = field(default_factory=PeakWindow)
    held: WrittenReport | None = None
    sampled_s: float | None = None
    changed_s: float = float("-inf")
    changed_offset: int = -1
    reported_offset: int = -1
    frame: _Frame | None = None
    frame_s: float = float("-inf")
    frame_offset: int = -1
    factor: float = 1.0
    frame_factor: float = 1.0


class Reports:
    """Measurements and reports of all brokers of a run.

    Args:
        machines: By number of the broker.
    """

    def __init__(self, machines: Sequence[TraceMachine], table: BundleTable, settings: ReportSettings) -> None:
        self._settings = settings
        self._clock, self._update = settings.load.sample_clock(), settings.load.update_rules()
        self._table = table
        self._brokers = [_Broker(machine) for machine in machines]
        self._averages = _Averages()
        self._rates: Floats = np.zeros((4, 0))
        self._sampled_s: float | None = None
        self._read_s = float("-inf")

    def start_broker(self, broker: int) -> None:
        self._brokers[broker] = _Broker(self._brokers[broker].machine)

    def distort(self, broker: int, factor: float) -> None:
        self._brokers[broker].factor = factor

    def record_owner_change(self, bundle: int, brokers: Sequence[int], offset: int, now_s: float) -> None:
        """A bundle came to one of these brokers, or went from it."""
        for number in brokers:
            if number >= 0:
                self._brokers[number].changed_s, self._brokers[number].changed_offset = now_s, offset
        if not self._settings.keep_averages:
            self._averages.forget(bundle)

    def has_read(self, count: int) -> bool:
        """Whether the last reading had at least `count` bundles."""
        return bool(self._rates.shape[1] >= count)

    def read(
        self, now_s: float, offset: int, rates: Floats, use: Floats, alive: Sequence[int], delivered: Mapping[int, bool]
    ) -> bool:
        """Take a reading and send reports, if one is due.

        Args:
            offset: Of the channel's last record.
            rates: What each bundle does, four rows.
            use: What each broker does: the six rows of demand, its idle use in CPU, limited by what it can do.
            alive: Numbers of the brokers that are there.
            delivered: Brokers that are silent (False), or whose report of this moment is lost.
        """
        settings = self._settings
        if now_s - self._read_s < settings.load.measure_interval_s - 1e-9:
            return False
        self._read_s = now_s
        count, self._sampled_s = self._clock.due(self._sampled_s, now_s)
        self._rates = rates
        self._averages.push(rates, count)
        table, brokers = self._table, len(self._brokers)
        frame = _Frame(rates, self._averages, table, brokers)
        owned = table.owner >= 0
        counts = np.bincount(table.owner[owned], minlength=brokers)
        topics = np.bincount(table.owner[owned], weights=table.topics[owned].astype(np.float64), minlength=brokers)
        for number in alive:
            broker = self._brokers[number]
            samples, broker.sampled_s = self._clock.due(broker.sampled_s, now_s)
            msg_in, msg_out, bytes_in, bytes_out = use[:4, number].tolist()
            traffic = BrokerTraffic(msg_in, msg_out, bytes_in, bytes_out, int(counts[number]), int(topics[number]))
            load = updated(
                broker.load,
                self._usage(broker, use[:, number]),
                _scaled(traffic, broker.factor),
                samples=samples,
                now_ms=_ms(now_s),
                rules=self._update,
            )
            broker.load = broker.peak.added(load, samples)
            if delivered.get(number, True):
                self._report(broker, frame, now_s, offset)
        return True

    def _report(self, broker: _Broker, frame: _Frame, now_s: float, offset: int) -> None:
        settings = self._settings
        if now_s <= broker.changed_s:
            # What came or went at this very moment does not show in the figures yet.
            offset = broker.changed_offset - 1
        due = load_due(broker.held, broker.load, now_s, settings.load, self._update.weights) is not None
        if settings.on_ownership and broker.reported_offset < broker.changed_offset and now_s > broker.changed_s:
            due = True
        last_s = float("-inf") if broker.held is None else broker.held.at_s
        again_s = broker.changed_s + settings.again_s
        if settings.again_s and last_s < again_s <= now_s:
            due = True
        if due:
            broker.held = WrittenReport(broker.load, now_s)
            broker.reported_offset = offset
        if now_s - broker.frame_s >= settings.load.top_interval_s - 1e-9:
            broker.frame, broker.frame_s, broker.frame_offset = frame, now_s, offset
            broker.frame_factor = broker.factor

    def loads(self, alive: Sequence[int], names: Sequence[str], now_s: float) -> dict[str, ReportedLoad]:
        reports = {}
        for number in alive:
            broker = self._brokers[number]
            if broker.held is not None:
                lapsed = self._settings.on_ownership and broker.reported_offset < broker.changed_offset
                load = broker.held.load
                reports[names[number]] = ReportedLoad(load, now_s - broker.held.at_s, lapsed)
        return reports

    def tops(self, alive: Sequence[int], names: Sequence[str], now_s: float) -> dict[str, ReportedTopBundles]:
        reports, settings = {}, self._settings
        for number in alive:
            broker = self._brokers[number]
            if broker.frame is not None:
                bundles = broker.frame.top(number, settings.load, broker.frame_factor)
                lapsed = settings.on_ownership and broker.frame_offset < broker.changed_offset
                as_of = {0: broker.frame_offset} if settings.on_ownership else None
                reports[names[number]] = ReportedTopBundles(bundles, now_s - broker.frame_s, lapsed, as_of)
        return reports

    def owner_knowledge(self, number: int) -> TopBundle:
        """What the owner of a bundle knows of it now; needs a reading."""
        return _reported(self._table, self._rates, self._averages, [number], 1.0)[0]

    def _usage(self, broker: _Broker, use: Floats) -> HostUsage:
        machine, factor = broker.machine, broker.factor
        busy = float(use[CPU]) / (CORE * machine.cores)
        return HostUsage(
            cpu=ResourceUsage(float(use[CPU]) * factor, CORE * machine.cores),
            memory=ResourceUsage(machine.memory_mib * min(0.9, 0.2 + busy / 2), machine.memory_mib),
            direct_memory=ResourceUsage(
                min(float(use[MEMORY]) * factor, machine.direct_memory_mib), machine.direct_memory_mib
            ),
            bandwidth_in=ResourceUsage(float(use[BYTES_IN]) * 8 / 1e3 * factor, machine.bandwidth_in_kbit),
            bandwidth_out=ResourceUsage(float(use[BYTES_OUT]) * 8 / 1e3 * factor, machine.bandwidth_out_kbit),
        )


def _scaled(traffic: BrokerTraffic, factor: float) -> BrokerTraffic:
    return BrokerTraffic(
        traffic.msg_rate_in * factor,
        traffic.msg_rate_out * factor,
        traffic.msg_throughput_in * factor,
        traffic.msg_throughput_out * factor,
        traffic.bundles,
        traffic.topics,
    )


def _ms(now_s: float) -> int:
    return 1_700_000_000_000 + round(now_s * 1000)
