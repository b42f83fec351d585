"""Trace from load reports of a real cluster: its demand over time, independent of owners.

- A broker takes part from its first report until its tombstone. One whose report expired was lost when it last reported.
- A bundle reported among the heaviest has the figures of its newest report until the next; once an overlapping bundle is
  reported, it counts as split and ends. Its CPU is its share, by messages and bytes, of what its broker's traffic uses.
- The load of a broker in excess of its known bundles belongs to unnamed bundles. They are in separate namespaces,
  `unseen/NUMBER`, as many as the broker has in addition to the known ones, and share it evenly.

Figures hold until the next report, without interpolation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from loaddata.bulk import uncollected
from loaddata.report.record import BrokerLoadReport
from shedders.contest.history import HistoryError, HistoryRecord, LoadHistory, decoded
from shedders.contest.scenario import STEPS_MAX, TOPICS_MAX
from shedders.contest.snapshot_trace import (
    MESSAGE_CPU,
    machine_of,
    namespaces_of,
    places,
    rates_of,
    reported,
    shares,
)
from shedders.contest.trace import (
    SETTLE_S,
    Demand,
    Namespace,
    Trace,
    TraceEvent,
    TraceEventKind,
    Units,
    settled_spans,
    sums,
    together,
    total,
)
from statechannel.protocol.bundle import namespace_bounds, parse_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loaddata.model.bundle_load import BundleStats
    from shedders.contest.trace import Floats, Ints

    Rows = NDArray[np.int32]


GATHER_S: Final = 900.0
"""Longest interval between reports of quiet brokers; brokers that report within it exist from the start."""
SHORT_S: Final = 6 * 3_600.0
CELLS_MAX: Final = 100_000_000
UNSEEN_PARTS: Final = 2
UNSEEN_BUNDLES_MAX: Final = 10_000
_CHANNELS: Final = len(Demand._fields)
_NOBODY: Final = -1


def from_history(records: Iterable[HistoryRecord], *, name: str = "history", step_s: float | None = None) -> Trace:
    """Make a trace of load reports.

    Args:
        records: In any order.
        step_s: Between two steps; None: 20 s of histories up to six hours, else 60 s.

    Raises:
        HistoryError: It has no load report of a broker, or is too long.
    """
    with uncollected():
        entries, problems = decoded(records)
        if not any(isinstance(entry.report, BrokerLoadReport) for entry in entries):
            why = f": {problems[0]}" if problems else ""
            raise HistoryError(name, [f"it has no load report of a broker{why}"])
        span_s = (entries[-1].at_ms - entries[0].at_ms) / 1e3
        step_s = step_s or (20.0 if span_s <= SHORT_S else 60.0)
        return _HistoryDemand(LoadHistory.of(entries), span_s, step_s, name, problems).trace()


class _HistoryDemand:
    """Machines, units and demand of a history.

    Attributes:
        remarks: What had to be assumed, and what was left out.
    """

    def __init__(self, past: LoadHistory, span_s: float, step_s: float, name: str, remarks: Sequence[str]) -> None:
        self.name, self.remarks, self.step_s, self.span_s = name, list(remarks), step_s, span_s
        self.steps = max(1, int(span_s // step_s))
        things = len(past.bundles) + len(past.brokers)
        if self.steps > STEPS_MAX or self.steps * things > CELLS_MAX:
            why = f"{self.steps:,} steps of {things:,} brokers and bundles are too many"
            raise HistoryError(name, [why], hint="Use longer steps, or fewer hours.")
        self._past = past
        # Those that report early count from the start.
        self._since_s = min(GATHER_S, span_s / 2)
        self._early = {name for name, broker in past.brokers.items() if broker.at_s[0] <= self._since_s}
        self._machines = [machine_of(name, broker.fullest, self.remarks) for name, broker in past.brokers.items()]
        self._number = {machine.name: number for number, machine in enumerate(self._machines)}
        self._namespaces, self._units, self._of_unit, self._part = self._laid_out()
        self._broker_newest, self._broker_figures = self._broker_rows()
        self._bundle_newest, self._bundle_figures, self._reporters = self._bundle_rows()

    def trace(self) -> Trace:
        end_s = self.steps * self.step_s
        events = sorted(
            (event for event in self._events() if event.at_s < end_s), key=lambda event: (event.at_s, event.broker)
        )
        upsets = together([event.at_s for event in events], SETTLE_S, end_s)
        return Trace(
            name=self.name,
            about=f"Load reports of {len(self._machines)} brokers over {self.span_s / 3_600:.1f} h.",
            seed=0,
            step_s=self.step_s,
            steps=self.steps,
            machines=self._machines,
            namespaces=self._namespaces,
            units=self._units,
            rows=self._demand,
            events=events,
            disturbances=[last for _, last in upsets],
            judged=settled_spans(upsets, SETTLE_S, end_s),
            remarks=self.remarks,
        )

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
            self.remarks.append(f"{gaps} parts of rings that were never reported: bundles without load are put there")
        rows = [*self._reported_units(namespaces), *self._unseen_units(namespaces)]
        if len(rows) > TOPICS_MAX:
            raise HistoryError(
                self.name, [f"{len(rows):,} units, at most {TOPICS_MAX:,}"], hint="Use fewer brokers, or less time."
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

    def _reported_units(self, namespaces: Sequence[Namespace]) -> Iterator[tuple[int, int, int, int, float]]:
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
        for number, (broker, machine) in enumerate(zip(self._past.brokers.values(), self._machines, strict=True)):
            moments = broker.moments()
            newest[:, number] = self._rows_in_time([at_s for at_s, _ in moments], len(rows), early=True)
            rows += [
                [0.0] * (_CHANNELS + 1) if load is None else [*reported(load, machine), 1.0] for _, load in moments
            ]
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
        rates = rates_of(stats)
        broker = self._past.brokers.get(broker_name)
        if broker is None:
            return [*rates, rates[:2].sum() * MESSAGE_CPU, 0.0]
        whole = reported(broker.at(at_s), self._machines[self._number[broker_name]])
        return [*rates, *np.minimum(shares(rates, whole[:4]), 1.0) * whole[4:]]

    def _demand(self, step: int) -> Floats:
        known, by = self._bundle_figures[self._bundle_newest[step]], self._reporters[self._bundle_newest[step]]
        reports = self._broker_figures[self._broker_newest[step]]
        there = reports[:, _CHANNELS] > 0
        held = (by != _NOBODY) & there[by]
        columns = []
        for channel in range(_CHANNELS):
            mine = known[:, channel]
            rest = np.maximum(reports[:, channel] - sums(by[held], mine[held], len(there)), 0.0) * there
            # What belongs to brokers that are gone is served by others, and stands in their reports.
            astray, whole = total(mine[~held]), total(rest)
            if whole > 0:
                rest *= max(0.0, 1 - astray / whole)
            columns.append(np.concatenate([mine, rest])[self._of_unit] * self._part)
        return np.stack(columns)
