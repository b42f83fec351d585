"""Simulated cluster in virtual time: a contender's manager on a trace, step by step.

The order in each step: events of the trace; demand of clients; readings and reports; bundles without owner are
looked up and placed; brokers split their own bundles; the leader decides, and its moves are made. Then the loads are measured.
Processes shorter than a step end within it; their cost for clients is computed by `Costs`.

The same trace and contender give the same outcome, bit for bit, in any process (`RunOutcome.digest`).
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shedders.contest.bundles import (
    BYTES_IN,
    BYTES_OUT,
    CPU,
    MSG_IN,
    MSG_OUT,
    NOBODY,
    RESOURCES,
    BundleTable,
    ContestChannel,
    bounds_of,
)
from shedders.contest.manager import Manager, ManagerView
from shedders.contest.measures import RESOURCE_ROWS, MachineCapacity, Meter
from shedders.contest.outcome import RunOutcome, Timing
from shedders.contest.reports import Reports
from shedders.contest.trace import CORE, TraceEvent, TraceEventKind, absent_at_start
from shedders.contest.zones import PolicyZones
from shedders.model.cluster import Bundle, TopicLoad
from statechannel.engine.cluster_view import BrokerSeen

if TYPE_CHECKING:
    from shedders.contest.contenders import Contender
    from shedders.contest.trace import Demand, Floats, Ints, Trace
    from shedders.model.plan import BundleMove

LOOKUPS_S = 60.0
"""All bundles of a namespace that is created are looked up within this."""
MIB = 2.0**20
_TINY = 1e-12
_AVERAGE_PART = 0.25


def simulate(trace: Trace, contender: Contender, *, progress: Callable[[float], None] | None = None) -> RunOutcome:
    """Run a contender on a trace.

    Args:
        progress: Called now and then with the completed share, 0 to 1.

    Raises:
        StateChannelError: A setting or strategy of the contender cannot be used.
    """
    begun_s = time.perf_counter()
    world = ContestWorld(trace, contender)
    for step in range(trace.steps):
        world.step(step)
        if progress is not None and step % 16 == 0:
            progress((step + 1) / trace.steps)
    took = sorted(world.decisions_ms)
    timing = Timing(
        run_s=time.perf_counter() - begun_s,
        decisions=len(took),
        decision_ms_p50=took[len(took) // 2] if took else 0.0,
        decision_ms_max=took[-1] if took else 0.0,
    )
    return RunOutcome(
        scenario=trace.name,
        seed=trace.seed,
        contender=contender.name,
        steps=trace.steps,
        step_s=trace.step_s,
        measures=world.meter.measures(),
        moves=world.meter.moves,
        series=world.meter.series(),
        remarks=[f"{text} ({count} times)" for text, count in sorted(world.manager.remarks.items())],
        timing=timing,
    )


class _PendingLookup(NamedTuple):
    """A lookup that clients make from a time on, until the bundle has an owner."""

    from_s: float
    bundle: str


@dataclass(slots=True)
class _Brokers:
    alive: set[int] = field(default_factory=set)
    leaving: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    lossy: dict[int, float] = field(default_factory=dict)


class ContestWorld:
    """Cluster in virtual time: one contender on one trace.

    Attributes:
        decisions_ms: Wall time of each decision.
        handed_over: Bundles that brokers handed over when they left; the moves of `meter` are the balancer's.
    """

    def __init__(self, trace: Trace, contender: Contender) -> None:
        self._trace = trace
        self._now_s = 0.0
        self._names = [machine.name for machine in trace.machines]
        self._number = {name: number for number, name in enumerate(self._names)}
        self._table = BundleTable(trace.units)
        self._channel = ContestChannel()
        self.manager = Manager(contender, self._view, lambda: self._now_s, self._topics)
        self._reports = Reports(trace.machines, self._table, self.manager.report_settings())
        self._capacity = MachineCapacity(trace.machines)
        self._zones = PolicyZones(trace.policies, self._names, self._table)
        self._extra_cpu: Floats = np.zeros(len(self._names))
        self.meter = Meter(trace, self._names)
        self._brokers = _Brokers()
        self._lookups: list[_PendingLookup] = []
        self._random = np.random.Generator(np.random.PCG64([trace.seed, 0x51]))
        # Apart from lookups, of which there are more or fewer by what a contender does: the same reports are lost for all.
        self._losses = np.random.Generator(np.random.PCG64([trace.seed, 0x52]))
        self._events = sorted(trace.events, key=lambda event: event.at_s)
        self._events_applied = 0
        self._unit_demand: Demand | None = None
        self._bundle_demand: Floats = np.zeros((RESOURCES, 0))
        self._decide_s = self._split_s = 0.0
        self._view_now: ManagerView | None = None
        self._queued: deque[BundleMove] = deque()
        self._busy_until_s: list[float] = []
        self._splitting: list[float] = []
        self._split_refused: dict[str, float] = {}
        self.decisions_ms: list[float] = []
        self.handed_over = 0
        self.manager.plan_restart([event.broker for event in self._events if event.planned])
        self._start()

    # --- the start --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        absent = absent_at_start(self._events)
        self._brokers.alive.update(number for name, number in self._number.items() if name not in absent)
        later = {event.namespace for event in self._events if event.what is TraceEventKind.CREATE}
        for index, namespace in enumerate(self._trace.namespaces):
            if namespace.name not in later:
                self._create(index, spread_s=0.0)
        interval_s = self.manager.settings.interval_s
        # A leader has watched for a while before it decides (`settle_s`).
        self._decide_s = max(interval_s, self.manager.settings.settle_s)
        self._split_s = self.manager.settings.split_interval_s

    def _create(self, index: int, spread_s: float) -> None:
        namespace = self._trace.namespaces[index]
        bundles = self._channel.create(namespace.name, bounds_of(namespace.bundles, namespace.bounds))
        self._table.add_namespace(index, bundles)
        owners = namespace.owners or [None] * len(bundles)
        awaited = []
        for bundle, owner in zip(bundles, owners, strict=True):
            number = None if owner is None else self._number.get(owner)
            if owner is None or number not in self._brokers.alive:
                awaited.append(bundle)
            else:
                self._channel.assign(bundle, owner)
                self._table.owner[self._table.number[bundle]] = number
        self._look_up(awaited, spread_s)

    def _look_up(self, bundles: Sequence[str], spread_s: float) -> None:
        for place in self._random.permutation(len(bundles)):
            self._lookups.append(_PendingLookup(self._now_s + float(self._random.random()) * spread_s, bundles[place]))

    # --- one step ---------------------------------------------------------------------------------------------------

    def step(self, step: int) -> None:
        self._now_s = step * self._trace.step_s
        self._apply_events()
        self._unit_demand = self._trace.demand(step)
        self._bundle_demand = self._table.demand(self._unit_demand)
        self._read()
        self._extra_cpu[:] = 0.0
        self._place()
        self._start_moves()
        if self._now_s >= self._split_s - 1e-9:
            self._split_s = self._now_s + self.manager.settings.split_interval_s
            self._split()
        if self._now_s >= self._decide_s - 1e-9:
            self._decide_s = self._now_s + self.manager.settings.interval_s
            self._decide()
        self._measure()

    def _apply_events(self) -> None:
        while self._events_applied < len(self._events) and self._events[self._events_applied].at_s <= self._now_s:
            event = self._events[self._events_applied]
            self._events_applied += 1
            self._apply_event(event, self._number.get(event.broker, NOBODY))
            self._drop_cached_views()

    def _apply_event(self, event: TraceEvent, number: int) -> None:
        brokers = self._brokers
        match event.what:
            case TraceEventKind.JOIN:
                if number not in brokers.alive:
                    brokers.alive.add(number)
                    self._reports.start_broker(number)
                    self.manager.record_join(event.broker)
            case TraceEventKind.LOST:
                self._lose(number)
            case TraceEventKind.LEAVE:
                if event.planned:
                    self.manager.begin_restart()
                self._leave(number)
            case TraceEventKind.SLOW:
                self._capacity.slow_down(number, event.factor, event.resources)
            case TraceEventKind.SILENT:
                (brokers.silent.discard if event.factor else brokers.silent.add)(number)
            case TraceEventKind.LOSSY:
                brokers.lossy[number] = event.factor
            case TraceEventKind.LYING:
                self._reports.distort(number, event.factor)
            case TraceEventKind.CREATE:
                names = [namespace.name for namespace in self._trace.namespaces]
                self._create(names.index(event.namespace), LOOKUPS_S)

    def _lose(self, number: int) -> None:
        if number not in self._brokers.alive:
            return
        self._brokers.alive.discard(number)
        lost = list(self._table.served_by(number))
        for bundle in lost:
            self._channel.remove_owner(bundle)
            self._record_gap(bundle, self._trace.costs.loss_detect_s)
            self._record_owner(bundle, NOBODY)
        self._drop_cached_views()
        self._look_up(lost, 0.0)

    def _leave(self, number: int) -> None:
        """Shut a broker down: hand over all its bundles first."""
        if number not in self._brokers.alive:
            return
        self._brokers.leaving.add(number)
        self._drop_cached_views()
        left = []
        for bundle in list(self._table.served_by(number)):
            broker = self.manager.hand_over(bundle, self._names[number], self._takers(), self._channel.bundle_counts())
            if broker is None or broker == self._names[number]:
                left.append(bundle)
                self._channel.unload(bundle)
                self._record_owner(bundle, NOBODY)
            else:
                self.handed_over += 1
                self.manager.record_arrival(self._channel.transfer(bundle, broker), shed=False)
                self._record_gap(bundle, self._gap_s())
                self._record_owner(bundle, self._number[broker])
        self._brokers.alive.discard(number)
        self._brokers.leaving.discard(number)
        self._look_up(left, 0.0)

    # --- what brokers do --------------------------------------------------------------------------------------------

    def _alive(self) -> Ints:
        return np.array(sorted(self._brokers.alive), dtype=np.int64)

    def _takers(self) -> list[str]:
        return [self._names[number] for number in sorted(self._brokers.alive - self._brokers.leaving)]

    def _loads(self) -> tuple[Floats, Floats]:
        """Use of each broker by its demand, and its load."""
        use = self._table.by_broker(self._bundle_demand, len(self._names))
        use[CPU] += self._extra_cpu
        return use, self._capacity.loads(use)

    def _read(self) -> None:
        use, loads = self._loads()
        served_share = 1.0 / np.maximum(1.0, loads)
        use = use * served_share
        use[CPU] += self._capacity.idle_cpu * np.minimum(1.0, self._capacity.factor[RESOURCE_ROWS["cpu"]])
        served = self._table.owner >= 0
        rates = self._bundle_demand[[MSG_IN, MSG_OUT, BYTES_IN, BYTES_OUT]] * np.where(
            served, served_share[np.maximum(self._table.owner, 0)], 0.0
        )
        alive = self._alive()
        delivered = dict.fromkeys(sorted(self._brokers.silent), False)
        for number in sorted(self._brokers.lossy):
            if float(self._losses.random()) < self._brokers.lossy[number]:
                delivered[number] = False
        if self._reports.read(
            self._now_s, self._channel.offset, rates, use, [int(broker) for broker in alive], delivered
        ):
            self.manager.forget_arrivals()
        self._drop_cached_views()

    def _place(self) -> None:
        waiting, self._lookups = self._lookups, []
        later = []
        for lookup in waiting:
            if lookup.from_s > self._now_s or self._table.owner[self._table.number[lookup.bundle]] >= 0:
                later += [lookup] if lookup.from_s > self._now_s else []
                continue
            broker = self.manager.place(lookup.bundle, self._takers(), self._channel.bundle_counts())
            if broker is None or self._number[broker] not in self._brokers.alive:
                later.append(lookup)
                continue
            self.manager.record_arrival(self._channel.assign(lookup.bundle, broker))
            self._record_owner(lookup.bundle, self._number[broker])
        self._lookups += later

    def _split(self) -> None:
        for plan in self.manager.splits(self._split_candidates()):
            self._split_bundle(plan.bundle, plan.positions)

    def _split_candidates(self) -> list[Bundle]:
        """Bundles that may be over a limit; all others are not looked at."""
        limits, table = self.manager.split_limits, self._table
        rates = self._bundle_demand
        if not self._reports.has_read(len(table)):
            return []
        # An average may be over a limit that this moment's figures are below.
        part = 1.0 if limits.measure == "now" else _AVERAGE_PART
        over = (
            (table.topics > limits.max_topics)
            | ((table.sessions > limits.max_sessions) & (limits.max_sessions > 0))
            | (rates[MSG_IN] + rates[MSG_OUT] > limits.max_msg_rate * part)
            | (rates[BYTES_IN] + rates[BYTES_OUT] > limits.max_bandwidth_mib * MIB * part)
        ) & (table.owner >= 0)
        return [self._reported_bundle(int(number)) for number in np.flatnonzero(over)]

    def _reported_bundle(self, number: int) -> Bundle:
        top = self._reports.owner_knowledge(number)
        owner = self._names[int(self._table.owner[number])]
        return Bundle(top.name, owner, stats=top.stats, averages=top.averages, topics=self._topics(top.name))

    def _split_bundle(self, bundle: str, positions: Sequence[int]) -> bool:
        """Split a bundle; False if it has no owner or no positions."""
        number = self._table.number[bundle]
        owner = int(self._table.owner[number])
        if owner < 0 or not positions:
            return False
        self._record_gap(bundle, self._trace.costs.split_gap_s)
        share, sessions = self._share(number), int(self._table.sessions[number])
        children = self._channel.split(bundle, positions)
        self._table.split(bundle, children)
        self.manager.record_split(bundle, sorted(positions))
        self.meter.record_split(bundle, children)
        self._bundle_demand = (
            self._table.demand(self._unit_demand) if self._unit_demand is not None else self._bundle_demand
        )
        for child in children:
            self._reports.record_owner_change(self._table.number[child], [owner], self._channel.offset, self._now_s)
        self._drop_cached_views()
        if self.manager.decides_after_splits:
            # They are offered at once (`trigger_gap_s` of the balancer is less than a step).
            self._decide_s = min(self._decide_s, self._now_s + self._trace.step_s)
        if self.manager.split_limits.unload_children:
            self._place_children(children, owner)
        else:
            # Clients look their topics up and connect again, even though all children stay.
            self.meter.record_split_off(share, sessions)
            self._extra_cpu[owner] += self._reconnect_cpu(sessions)
        return True

    def _place_children(self, children: Sequence[str], owner: int) -> None:
        """Unload the children of a split, and place them within this step: `unload_gap_s` has how long they are unserved."""
        for child in children:
            self._channel.unload(child)
            self._record_gap(child, self._trace.costs.unload_gap_s)
            self._record_owner(child, NOBODY)
        self._look_up(children, 0.0)
        self._place()
        for child in children:
            number = self._table.number[child]
            now = int(self._table.owner[number])
            if now == owner:
                self.meter.record_split_off(self._share(number), 0)
            elif now != NOBODY:
                source, destination = self._names[owner], self._names[now]
                self.meter.record_move(
                    self._now_s, child, source, destination, self._share(number), "placed after a split"
                )

    # --- what the leader does ---------------------------------------------------------------------------------------

    def _decide(self) -> None:
        decided = self.manager.decide()
        self.decisions_ms.append(decided.took_ms)
        self._queued += decided.moves
        if self._start_moves():
            self.meter.rounds_s.append(self._now_s)
        for bundle in decided.splits:
            self._request_split(bundle)

    def _start_moves(self) -> int:
        """Start as many queued moves as there is room for within this step, and return their number.

        Live brokers have `moves_at_once` under way, each for as long as its bundle has no owner. Pulsar has no such bound.
        """
        started, end_s = 0, self._now_s + self._trace.step_s
        at_once = self.manager.moves_at_once
        while self._queued:
            begins_s = self._now_s
            if at_once is not None and len(self._busy_until_s) >= at_once:
                begins_s = max(begins_s, self._busy_until_s[0])
                if begins_s >= end_s:
                    break
                heapq.heappop(self._busy_until_s)
            move = self._queued.popleft()
            if self._move(move):
                started += 1
                if at_once is not None:
                    heapq.heappush(self._busy_until_s, begins_s + self._gap_s())
        return started

    def _request_split(self, bundle: str) -> None:
        """Ask the owner for a split that the strategy wants, as the live leader does.

        No more than `splits_at_once` are under way, and none within `split_again_s` of one that was not possible.
        """
        limits, number = self.manager.settings, self._table.number.get(bundle)
        self._splitting = [until_s for until_s in self._splitting if until_s > self._now_s]
        if number is None or self._table.owner[number] < 0 or not self._reports.has_read(number + 1):
            return
        if not limits.splitting or self._now_s - self._split_refused.get(bundle, -math.inf) < limits.split_again_s:
            return
        if len(self._splitting) >= limits.splits_at_once:
            return
        self._splitting.append(self._now_s + self._trace.costs.split_gap_s)
        if not self._split_bundle(bundle, self.manager.split_positions(self._reported_bundle(number))):
            self._split_refused[bundle] = self._now_s

    def _move(self, move: BundleMove) -> bool:
        """Make a move; False if it is no longer possible."""
        number, taker = self._table.number.get(move.bundle), self._number.get(move.destination or "")
        if (
            number is None
            or taker not in self._brokers.alive
            or int(self._table.owner[number]) != self._number[move.source]
            or not self.manager.is_booked(move.bundle)
        ):
            self.manager.record_failure(
                move.bundle, "it is not there any more, its destination is not, or it waited too long"
            )
            return False
        self._record_gap(move.bundle, self._gap_s())
        self.meter.record_move(
            self._now_s, move.bundle, move.source, str(move.destination), self._share(number), move.why
        )
        self.manager.record_arrival(self._channel.transfer(move.bundle, str(move.destination)))
        self._record_owner(move.bundle, taker)
        return True

    def _share(self, number: int) -> float:
        """A bundle's part of the cluster's bytes or messages, whichever is more."""
        rates = self._bundle_demand
        messages = float(rates[MSG_IN, number] + rates[MSG_OUT, number]) / max(float(rates[:2].sum()), _TINY)
        size = float(rates[BYTES_IN, number] + rates[BYTES_OUT, number]) / max(float(rates[2:4].sum()), _TINY)
        return max(messages, size)

    # --- bookkeeping ------------------------------------------------------------------------------------------------

    def _record_owner(self, bundle: str, broker: int) -> None:
        number = self._table.number[bundle]
        before = int(self._table.owner[number])
        self._table.owner[number] = broker
        self._reports.record_owner_change(number, [before, broker], self._channel.offset, self._now_s)
        if broker >= 0:
            sessions = int(self._table.sessions[number])
            self.meter.reconnects += sessions
            self._extra_cpu[broker] += self._reconnect_cpu(sessions)
        self._view_now = None

    def _reconnect_cpu(self, sessions: int) -> float:
        """CPU of sessions that connect within a step, in percent of a core."""
        return sessions * self._trace.costs.reconnect_cpu_s / self._trace.step_s * CORE

    def _gap_s(self) -> float:
        """How long a bundle has no owner when this manager moves it."""
        costs = self._trace.costs
        return costs.unload_gap_s if self.manager.unloads else costs.transfer_gap_s

    def _record_gap(self, bundle: str, gap_s: float) -> None:
        number = self._table.number[bundle]
        if number < self._bundle_demand.shape[1]:
            requested = self._bundle_demand[[BYTES_IN, BYTES_OUT], number].sum()
            self.meter.record_gap(gap_s, float(requested) * gap_s)

    def _drop_cached_views(self) -> None:
        self._view_now = None
        self.manager.drop_cached_inputs()

    def _measure(self) -> None:
        use, loads = self._loads()
        live = self._table.live & (self._table.owner < 0)
        requested = self._bundle_demand[[BYTES_IN, BYTES_OUT]].sum(axis=0)
        total_bytes, step_s = float(requested.sum()), self._trace.step_s
        served_share = 1.0 / np.maximum(1.0, loads)
        refused = float(((1 - served_share) * (use[BYTES_IN] + use[BYTES_OUT])).sum())
        alive = self._alive()
        unserved = float(requested[live].sum()) * step_s
        parts = list(self._zones.parts(self._bundle_demand, alive, self._capacity, self._topic_demand))
        misplaced = self._zones.misplaced(alive)
        self.meter.step(loads, parts, total_bytes * step_s, refused * step_s, unserved, int(live.sum()), misplaced)

    def _topic_demand(self, bundles: Ints) -> Floats:
        demand = self._unit_demand
        units = self._table.units_in(bundles)
        return np.zeros((RESOURCES, 0)) if demand is None else np.stack([row[units] for row in demand])

    def _view(self) -> ManagerView:
        cached = self._view_now
        if cached is None:
            alive = sorted(self._brokers.alive)
            machines, leaving = self._trace.machines, self._brokers.leaving
            brokers = [
                BrokerSeen(
                    self._names[broker],
                    self._names[broker],
                    broker not in leaving,
                    True,
                    0.0,
                    {}
                    if machines[broker].domain is None
                    else {"properties": {"failure-domain": machines[broker].domain}},
                )
                for broker in alive
            ]
            loads = self._reports.loads(alive, self._names, self._now_s)
            tops = self._reports.tops(alive, self._names, self._now_s)
            seen, held = self._channel.live_bundles(), self._channel.bundle_counts()
            cached = ManagerView(brokers, seen, loads, tops, held, self._channel.offset, self._trace.policies)
            self._view_now = cached
        return cached

    def _topics(self, bundle: str) -> Sequence[TopicLoad]:
        if self._unit_demand is None:
            return ()
        namespace, demand = bundle.rpartition("/")[0], self._unit_demand
        position = self._trace.units.position
        return [
            TopicLoad(
                f"persistent://{namespace}/u-{unit}",
                int(position[unit]),
                float(demand.msg_rate_in[unit]),
                float(demand.msg_rate_out[unit]),
                float(demand.msg_throughput_in[unit]),
                float(demand.msg_throughput_out[unit]),
            )
            for unit in self._table.units_of(bundle)
        ]
