"""Trace from load reports of a real cluster: its demand over time, independent of owners.

- A broker takes part from its first report until its tombstone. One whose report expired was lost when it last reported.
- A bundle reported among the heaviest has the figures of its newest report until the next; once an overlapping bundle is
  reported, it counts as split and ends. Its CPU is its share, by messages and bytes, of what its broker's traffic uses.
- The load of a broker in excess of its known bundles belongs to unnamed bundles. They are in separate namespaces,
  `unseen/NUMBER`, as many as the broker has in addition to the known ones, and share it evenly.

Figures hold until the next report, without interpolation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from loaddata.bulk import uncollected
from loaddata.report.record import BrokerLoadReport, ReportKind, TopBundlesReport
from shedders.contest.history import DecodedHistory, HistoryError, decoded
from shedders.contest.scenario import STEPS_MAX, TOPICS_MAX
from shedders.contest.timeline import SETTLE_S, settled_spans, together
from shedders.contest.trace import Costs, Demand, Namespace, TraceEvent, TraceEventKind, TraceMachine, Units
from shedders.contest.trace_parts import MESSAGE_CPU, UnitTraffic, busy_cpu, machine_of, namespaces_of, places
from statechannel.protocol.bundle import namespace_bounds, parse_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loaddata.model.broker_load import BrokerLoad
    from loaddata.model.bundle_load import BundleStats
    from shedders.contest.trace import Floats, Ints

    Rows = NDArray[np.int32]
    from shedders.contest.history import HistoryEntry


GATHER_S: Final = 900.0
"""Longest interval between reports of quiet brokers; brokers that report within it exist from the start."""
SHORT_S: Final = 6 * 3_600.0
CELLS_MAX: Final = 100_000_000
UNSEEN_PARTS: Final = 2
UNSEEN_BUNDLES_MAX: Final = 10_000
_RATES: Final = ("msg_rate_in", "msg_rate_out", "msg_throughput_in", "msg_throughput_out")
_CHANNELS: Final = len(Demand._fields)
_NOBODY: Final = -1


def from_history(
    records: Iterable[tuple[int, bytes | None, bytes | None, ReportKind]],
    *,
    name: str = "history",
    step_s: float | None = None,
) -> FromHistory:
    """The trace.

    Args:
        records: `history.LoadRecord`s or plain tuples like them, in any order; `history.read_history` reads files of them.
        step_s: Between two steps; None: 20 s of histories up to six hours, else 60 s.

    Raises:
        HistoryError: It has no load report of a broker, or is too long.
    """
    with uncollected():
        return _trace_of(decoded(records), name, step_s)


def _trace_of(decoded_history: DecodedHistory, name: str, step_s: float | None) -> FromHistory:
    if not any(isinstance(entry.report, BrokerLoadReport) for entry in decoded_history.entries):
        why = f": {decoded_history.problems[0]}" if decoded_history.problems else ""
        raise HistoryError(name, f"it has no load report of a broker{why}")
    span_s = (decoded_history.entries[-1].at_ms - decoded_history.entries[0].at_ms) / 1e3
    return FromHistory(
        LoadHistory.of(decoded_history.entries),
        span_s,
        step_s or (20.0 if span_s <= SHORT_S else 60.0),
        name,
        list(decoded_history.problems),
    )


class FromHistory:
    """See the module, and `trace.Trace`.

    Attributes:
        remarks: What had to be assumed, and what was left out.
    """

    seed = 0

    def __init__(self, past: LoadHistory, span_s: float, step_s: float, name: str, remarks: list[str]) -> None:
        self.name, self.remarks, self.step_s, self.costs = name, remarks, step_s, Costs()
        self.about = f"Load reports of {len(past.brokers)} brokers over {span_s / 3_600:.1f} h."
        self.steps = max(1, int(span_s // step_s))
        things = len(past.bundles) + len(past.brokers)
        if self.steps > STEPS_MAX or self.steps * things > CELLS_MAX:
            why = f"{self.steps:,} steps of {things:,} brokers and bundles are too many"
            raise HistoryError(name, why, hint="Use longer steps, or fewer hours.")
        self._past = past
        # Those that report early count from the start.
        self._since_s = min(GATHER_S, span_s / 2)
        self._early = {name for name, broker in past.brokers.items() if broker.at_s[0] <= self._since_s}
        self.machines: Sequence[TraceMachine] = list(self._machines())
        self._number = {machine.name: number for number, machine in enumerate(self.machines)}
        end_s = self.steps * step_s
        self.events: Sequence[TraceEvent] = sorted(
            (event for event in self._events() if event.at_s < end_s), key=lambda event: (event.at_s, event.broker)
        )
        upsets = together([event.at_s for event in self.events], SETTLE_S, end_s)
        self.disturbances: Sequence[float] = [last for _, last in upsets]
        self.judged: Sequence[tuple[float, float]] = settled_spans(upsets, SETTLE_S, end_s)
        namespaces, self.units, self._of_unit, self._part = self._laid_out()
        self.namespaces: Sequence[Namespace] = namespaces
        self._reports, self._report_rows = self._broker_rows()
        self._told, self._told_rows, self._told_by = self._bundle_rows()

    # --- machines and events ----------------------------------------------------------------------------------------

    def _machines(self) -> Iterator[TraceMachine]:
        for name, broker in self._past.brokers.items():
            machine, assumed = machine_of(name, broker.fullest)
            self.remarks += [] if assumed is None else [assumed]
            yield machine

    def _events(self) -> Iterator[TraceEvent]:
        for name, broker in self._past.brokers.items():
            if name not in self._early:
                yield TraceEvent(broker.at_s[0], TraceEventKind.JOIN, name)
            for absence in broker.absences():
                yield TraceEvent(absence.at_s, TraceEventKind.LOST if absence.lost else TraceEventKind.LEAVE, name)
                back_s = broker.back_s(absence)
                if back_s is not None:
                    yield TraceEvent(back_s, TraceEventKind.JOIN, name)

    # --- units ------------------------------------------------------------------------------------------------------

    def _laid_out(self) -> tuple[list[Namespace], Units, Ints, Floats]:
        """Namespaces, and units; of each unit the column of its demand, and its part of that."""
        ranges, owners = self._first_bundles()
        namespaces, gaps = namespaces_of(ranges, owners)
        if gaps:
            self.remarks.append(f"{gaps} parts of rings were never told of: bundles without load are put there")
        rows = [*self._told_units(namespaces), *self._unseen_units(namespaces)]
        if len(rows) > TOPICS_MAX:
            raise HistoryError(
                self.name, f"{len(rows):,} units, at most {TOPICS_MAX:,}", hint="Use fewer brokers, or less time."
            )
        columns = [np.array(column, np.int64) for column in zip(*(row[:4] for row in rows), strict=True)]
        return namespaces, Units(*columns[:3]), columns[3], np.array([row[4] for row in rows])

    def _first_bundles(self) -> tuple[dict[str, list[tuple[int, int]]], dict[str, str | None]]:
        """Initial bundles of the trace: those reported first, without overlaps."""
        taken: dict[str, list[tuple[int, int]]] = defaultdict(list)
        owners: dict[str, str | None] = {}
        for key, bundle in sorted(self._past.bundles.items(), key=lambda bundle: (bundle[1].at_s[0], bundle[0])):
            parts = parse_key(key.encode())
            if parts is None:
                continue
            space, own = taken[parts.namespace], (parts.lower, parts.upper)
            if not any(low < own[1] and own[0] < high for low, high in space):
                space.append(own)
                owners[key] = bundle.brokers[0] if bundle.brokers[0] in self._early else None
        return taken, owners

    def _told_units(self, namespaces: Sequence[Namespace]) -> Iterator[tuple[int, int, int, int, float]]:
        space = {namespace.name: number for number, namespace in enumerate(namespaces)}
        for column, (key, bundle) in enumerate(self._past.bundles.items()):
            parts = parse_key(key.encode())
            if parts is not None:
                at = places(parts.lower, parts.upper)
                sessions = max(1, bundle.sessions // len(at))
                yield from ((space[parts.namespace], place, sessions, column, 1 / len(at)) for place in at)

    def _unseen_units(self, namespaces: list[Namespace]) -> Iterator[tuple[int, int, int, int, float]]:
        """Adds a namespace for each broker."""
        tenant = "unseen"
        while any(namespace.name.startswith(f"{tenant}/") for namespace in namespaces):
            tenant += "-"
        named = Counter(name for bundle in self._past.bundles.values() for name in set(bundle.brokers))
        for number, (name, broker) in enumerate(self._past.brokers.items()):
            most = max(load.bundles for load in broker.loads)
            count = max(1, min(most - named[name], UNSEEN_BUNDLES_MAX))
            owner = name if name in self._early else None
            namespaces.append(Namespace(f"{tenant}/{number + 1}", count, owners=(owner,) * count))
            at = [place for low, high in pairwise(namespace_bounds(count)) for place in places(low, high, UNSEEN_PARTS)]
            column = len(self._past.bundles) + number
            yield from ((len(namespaces) - 1, place, 1, column, 1 / len(at)) for place in at)

    # --- demand -----------------------------------------------------------------------------------------------------

    def _broker_rows(self) -> tuple[Rows, Floats]:
        """Rows of figures, the last of each telling whether it is there; and which of them counts in which step."""
        rows: list[list[float]] = []
        newest = np.zeros((self.steps, len(self._past.brokers)), np.int32)
        for number, (broker, machine) in enumerate(zip(self._past.brokers.values(), self.machines, strict=True)):
            moments = broker.moments()
            newest[:, number] = self._rows_in_time([at_s for at_s, _ in moments], len(rows), early=True)
            rows += [[0.0] * (_CHANNELS + 1) if load is None else _row(load, machine) for _, load in moments]
        return newest, np.array([*rows, [0.0] * (_CHANNELS + 1)])

    def _bundle_rows(self) -> tuple[Rows, Floats, Ints]:
        """The same for bundles, with the broker that reported each row."""
        rows: list[list[float]] = []
        by: list[int] = []
        newest = np.zeros((self.steps, len(self._past.bundles)), np.int32)
        for column, bundle in enumerate(self._past.bundles.values()):
            newest[:, column] = self._rows_in_time(bundle.at_s, len(rows), early=not bundle.split_off)
            for at_s, name, stats in zip(bundle.at_s, bundle.brokers, bundle.stats, strict=True):
                rows.append([0.0] * _CHANNELS if stats is None else self._figures(stats, name, at_s))
                by.append(self._number.get(name, _NOBODY))
        return newest, np.array([*rows, [0.0] * _CHANNELS]), np.array([*by, _NOBODY], np.int64)

    def _rows_in_time(self, at_s: Sequence[float], first: int, *, early: bool) -> Ints:
        """For each step the newest row that is not behind it; -1, the last row of all, before there is one."""
        rows = np.searchsorted(np.array(at_s), np.arange(self.steps) * self.step_s, side="right") - 1
        if early and at_s[0] <= self._since_s:
            rows = np.maximum(rows, 0)
        return np.where(rows >= 0, first + rows, -1)

    def _figures(self, stats: BundleStats, broker_name: str, at_s: float) -> list[float]:
        own = UnitTraffic(*(float(getattr(stats, name)) for name in _RATES))
        rates = [own.msg_rate_in, own.msg_rate_out, own.msg_throughput_in, own.msg_throughput_out]
        broker: PastBroker | None = self._past.brokers.get(broker_name)
        if broker is None:
            return [*rates, own.msg_rate * MESSAGE_CPU, 0.0]
        load = broker.at(at_s)
        whole = _row(load, self.machines[self._number[broker_name]])
        share = min(1.0, own.share(load.msg_rate, load.msg_throughput))
        return [*rates, share * whole[4], share * whole[5]]

    def demand(self, step: int) -> Demand:
        if not 0 <= step < self.steps:
            raise IndexError(f"{self.name} has steps 0 to {self.steps - 1}, not {step}")
        known, by = self._told_rows[self._told[step]], self._told_by[self._told[step]]
        reports = self._report_rows[self._reports[step]]
        there = reports[:, _CHANNELS] > 0
        held = (by != _NOBODY) & there[by]
        columns = []
        for channel in range(_CHANNELS):
            mine = known[:, channel]
            rest = np.maximum(reports[:, channel] - _sums(by[held], mine[held], len(there)), 0.0) * there
            # What belongs to brokers that are gone is served by others, and stands in their reports.
            astray, whole = _total(mine[~held]), _total(rest)
            if whole > 0:
                rest *= max(0.0, 1 - astray / whole)
            columns.append(np.concatenate([mine, rest])[self._of_unit] * self._part)
        return Demand(*columns)


def _row(load: BrokerLoad, machine: TraceMachine) -> list[float]:
    busy = busy_cpu(machine, load)
    cpu = load.msg_rate * MESSAGE_CPU if busy is None else busy
    return [*(float(getattr(load, name)) for name in _RATES), cpu, load.direct_memory.usage, 1.0]


def _total(values: Floats) -> float:
    return float(_sums(np.zeros(len(values), np.int64), values, 1)[0])


def _sums(where: Ints, values: Floats, count: int) -> Floats:
    """Added up one after the other; without values numpy would give whole numbers."""
    return np.bincount(where, weights=values, minlength=count).astype(np.float64)


LOST_S: Final = 1_800.0
"""A tombstone this long after the last report is due to its expiry: the broker had died."""


class Absence(NamedTuple):
    """A broker is not there from a time on, until its next report."""

    at_s: float
    lost: bool


@dataclass
class PastBroker:
    """Reports of one broker, and its tombstones; by time."""

    at_s: list[float] = field(default_factory=list)
    loads: list[BrokerLoad] = field(default_factory=list)
    gone_s: list[float] = field(default_factory=list)

    def absences(self) -> Iterator[Absence]:
        """When it went; further tombstones of one that is gone say nothing."""
        seen = 0
        for gone_s in self.gone_s:
            count = bisect_right(self.at_s, gone_s)
            if count > seen:
                last_s = self.at_s[count - 1]
                lost = gone_s - last_s >= LOST_S
                yield Absence(last_s if lost else gone_s, lost)
                seen = count

    def back_s(self, absence: Absence) -> float | None:
        """When it reported again."""
        count = bisect_right(self.at_s, absence.at_s)
        return self.at_s[count] if count < len(self.at_s) else None

    def at(self, time_s: float) -> BrokerLoad:
        """Its newest report at a time; before the first one that."""
        return self.loads[max(0, bisect_right(self.at_s, time_s) - 1)]

    def moments(self) -> list[tuple[float, BrokerLoad | None]]:
        """Its reports, and None where it went."""
        points: list[tuple[float, BrokerLoad | None]] = [*zip(self.at_s, self.loads, strict=True)]
        points += [(absence.at_s, None) for absence in self.absences()]
        return sorted(points, key=lambda point: point[0])

    @property
    def fullest(self) -> BrokerLoad:
        """The newest report among those that know the most limits."""
        return max(
            reversed(self.loads),
            key=lambda load: sum(part.limit > 0 for part in (load.cpu, load.bandwidth_in, load.bandwidth_out)),
        )


@dataclass
class PastBundle:
    """Reports of one bundle: times, brokers and figures (None: it was split).

    Attributes:
        split_off: Another one was there in its place before.
    """

    at_s: list[float] = field(default_factory=list)
    brokers: list[str] = field(default_factory=list)
    stats: list[BundleStats | None] = field(default_factory=list)
    sessions: int = 0
    split_off: bool = False

    def add(self, at_s: float, broker: str, stats: BundleStats | None) -> None:
        """Once more."""
        self.at_s.append(at_s)
        self.brokers.append(broker)
        self.stats.append(stats)
        self.sessions = max(self.sessions, 0 if stats is None else stats.sessions)


@dataclass
class LoadHistory:
    """All of it.

    Attributes:
        brokers: Those that reported, by name, sorted.
        bundles: By key, sorted.
    """

    brokers: dict[str, PastBroker]
    bundles: dict[str, PastBundle]

    @staticmethod
    def of(entries: Sequence[HistoryEntry]) -> LoadHistory:
        """History from entries, by time."""
        brokers: dict[str, PastBroker] = defaultdict(PastBroker)
        bundles = _Bundles()
        for at_ms, name, report in entries:
            at_s = (at_ms - entries[0].at_ms) / 1e3
            if report is None:
                brokers[name].gone_s.append(at_s)
            elif isinstance(report, TopBundlesReport):
                for bundle in report.bundles:
                    bundles.add(bundle.name, at_s, name, bundle.stats)
            else:
                brokers[name].at_s.append(at_s)
                brokers[name].loads.append(report.load)
        return LoadHistory(
            {name: broker for name, broker in sorted(brokers.items()) if broker.loads},
            dict(sorted(bundles.all.items())),
        )


class _Bundles:
    def __init__(self) -> None:
        self.all: dict[str, PastBundle] = {}
        self._live: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        self._ended: dict[str, list[tuple[int, int]]] = defaultdict(list)

    def add(self, key: str, at_s: float, broker: str, stats: BundleStats) -> None:
        parts = parse_key(key.encode())
        if parts is None or parts.is_namespace or parts.lower >= parts.upper:
            return
        own, live, ended = (parts.lower, parts.upper), self._live[parts.namespace], self._ended[parts.namespace]
        if key not in live:
            # Whatever overlaps it was split, and is there no more.
            for other in [other for other, its in live.items() if _overlap(own, its)]:
                self.all[other].add(at_s, broker, None)
                ended.append(live.pop(other))
            live[key] = own
            self.all.setdefault(key, PastBundle(split_off=any(_overlap(own, its) for its in ended)))
        self.all[key].add(at_s, broker, stats)


def _overlap(range_: tuple[int, int], other: tuple[int, int]) -> bool:
    return range_[0] < other[1] and other[0] < range_[1]
