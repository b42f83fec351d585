"""A small cluster as a value, and what may happen to it: each thing by itself, in any order.

What a process writes goes through its client in order, lands, is reported, and is read by each process when that one gets to it.
A process may die, sleep, lose its connections, or hear nothing of what it has written; the rest goes on, and time passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from statechannel.engine.commands import Done, Lookup, Outcome, Owned, Rejected, Started
from statechannel.engine.effects import Append, CallHook, Complete, Effect, RestartReading, StandForLeader, StopEngine
from statechannel.engine.engine import Engine
from statechannel.engine.inputs import (
    Appended,
    AppendFailed,
    CommandReceived,
    HookFinished,
    Input,
    LeadershipChanged,
    PartitionOpened,
    PositionReached,
    Tick,
)
from statechannel.protocol.bundle import parse_key
from statechannel.protocol.codec import HEARTBEAT_KEY
from statechannel.protocol.log import RecordsRead, Topic
from statechannel.protocol.states import State
from statechannel.protocol.verdict import REJECTIONS, Verdict
from statechannel.sim.trace import Violation, check_opened, opened_by
from tests.interleavings.automaton import Automaton, EngineFacts, facts_of, now_at, split_effects
from tests.interleavings.checks import check_cold_start, check_service, check_view, is_replaced
from tests.interleavings.state import ClusterState, Danger, Process, Setting, Stray, Write, new_process

TOPIC, LOOKUP_TOKEN = "t/n/a", 50
PATIENCE_S = 120.0
"""Of every command: longer than all that may happen, so that no answer comes from a time-out."""
STEP_S = 0.5
PERIOD_S = 12.0
"""Time that passes at once, unless a process wants to do something before."""
SESSION_S = 3.0
"""Who is away for so long has lost the leader's seat."""
ABSENT_S = 6.0
"""Absent for so long that its bundles may be another's (`member_expiry_s`)."""


_DEATHS = {
    State.RELEASING: Danger.RELEASING_DEATH,
    State.ASSIGNING: Danger.ASSIGNING_DEATH,
    State.SPLITTING: Danger.SPLITTING_DEATH,
}


class Move(NamedTuple):
    """Something that may happen next; `act` takes a cluster there."""

    name: str
    slot: int
    act: Callable[[Cluster], None]


class Cluster:
    """A cluster that moves on from a state.

    Attributes:
        live: Engines as objects, by slot, while time passes; otherwise states are looked up in the automaton.
        seen: Dangerous moments that the move went through.
        interrupted: Something has happened while time passes after which every order is tried again.
    """

    def __init__(self, automaton: Automaton, setting: Setting, state: ClusterState) -> None:
        self.automaton = automaton
        self.setting = setting
        self.time_s = state.time_s
        self.channel = state.channel
        self.registry = state.registry
        self.processes = list(state.processes)
        self.budget = state.budget
        self.holder = state.holder
        self.unheard_s = state.unheard_s
        self.strays = state.strays
        self.refused = state.refused
        self.open = state.open
        self.rewritten = state.rewritten
        self.live: dict[int, Engine] = {}
        self.seen: Counter[Danger] = Counter()
        self.interrupted = False
        self._cut: int | None = None
        self._stalled: int | None = None

    def freeze(self) -> ClusterState:
        """The state that was reached; engines become states of the automaton again."""
        for slot, engine in self.live.items():
            self._set(slot, state=self.automaton.add(engine))
        self.live = {}
        return ClusterState(
            self.time_s,
            self.channel,
            self.registry,
            tuple(self.processes),
            self.budget,
            self.holder,
            self.unheard_s,
            self.strays,
            self.refused,
            self.open,
            self.rewritten,
        )

    def facts(self, slot: int) -> EngineFacts:
        engine = self.live.get(slot)
        return self.automaton.facts[self.processes[slot].state] if engine is None else facts_of(engine)

    def alive(self) -> Iterator[int]:
        return (slot for slot, process in enumerate(self.processes) if process.alive)

    def _set(self, slot: int, **values: object) -> None:
        self.processes[slot] = self.processes[slot]._replace(**values)

    # --- what may happen --------------------------------------------------------------------------------------------

    def moves(self) -> Iterator[Move]:
        """All that may happen next, but for the passing of time."""
        budget = self.budget
        for slot, process in enumerate(self.processes):
            if not process.alive:
                if budget.starts:
                    yield Move("starts", slot, partial(Cluster._start_anew, slot=slot))
                continue
            yield from self._deliveries(slot, process)
            if process.hooks and budget.hook_errors:
                yield Move("hook fails", slot, partial(Cluster._fail_hook, slot=slot))
            if process.hooks and budget.hook_hangs:
                yield Move("hook hangs", slot, partial(Cluster._hang_hook, slot=slot))
            if budget.lookups:
                yield Move("is asked", slot, partial(Cluster._ask, slot=slot))
            if process.writes and budget.timeouts:
                yield Move("writes time out", slot, partial(Cluster._time_out, slot=slot))
            if budget.reopens and self.facts(slot).caught_up:
                yield Move("reads from the beginning", slot, partial(Cluster._reopen, slot=slot))
            if budget.crashes:
                yield Move("dies", slot, partial(Cluster._spend_on_crash, slot=slot))
        for index in range(len(self.strays)):
            yield Move(f"stray {index} lands", -1, partial(Cluster._land_stray, index=index))
        if self.holder is None:
            for slot in self.alive():
                if self.processes[slot].stands:
                    yield Move("is elected", slot, partial(Cluster._elect, slot=slot))
        elif budget.pushes:
            yield Move("the seat is taken away", -1, Cluster._push)

    def _deliveries(self, slot: int, process: Process) -> Iterator[Move]:
        if process.position < self.channel.end:
            yield Move("reads", slot, partial(Cluster.read, slot=slot))
        if process.heard < self.registry.end:
            yield Move("hears", slot, partial(Cluster.hear, slot=slot))
        if process.writes:
            yield Move("record lands", slot, partial(Cluster.land, slot=slot))
        if process.reports:
            yield Move("report comes", slot, partial(Cluster.report, slot=slot))
        for hook in process.hooks:
            yield Move("hook ends", slot, partial(Cluster.finish_hook, slot=slot, hook=hook))
        if process.seats:
            yield Move("hears of the seat", slot, partial(Cluster.deliver_seat, slot=slot))

    def owes_nothing(self, slot: int) -> bool:
        """Whether all that a process could take in by now is taken in."""
        process = self.processes[slot]
        return not (
            process.reports or process.seats or process.position < self.channel.end or process.heard < self.registry.end
        )

    def is_calm(self) -> bool:
        """Whether nothing moves unless time passes or a fault comes."""
        if any(self.processes[slot].writes or self.processes[slot].hooks for slot in self.alive()):
            return False
        if self.holder is None and any(self.processes[slot].stands for slot in self.alive()):
            return False
        return all(self.owes_nothing(slot) for slot in self.alive())

    def periods(self) -> Iterator[Move]:
        """The ways in which time may pass."""
        budget = self.budget
        if not budget.periods:
            return
        busy = [slot for slot in self.alive() if not self.owes_nothing(slot)]
        held_up = [slot for slot in self.alive() if self.processes[slot].writes or self.processes[slot].hooks]
        if self.is_calm():
            yield Move("time passes", -1, partial(Cluster.pass_time, spent=("periods",)))
        for slot in self.alive():
            if any(other != slot for other in (*busy, *held_up)):
                continue
            process = self.processes[slot]
            asleep, cut = process.away_s > 0.0 and not process.cut, process.cut
            if asleep or (budget.sleeps and not cut):
                spent = () if asleep else ("sleeps",)
                yield Move("sleeps", slot, partial(Cluster.pass_time, spent=("periods", *spent), asleep=slot))
            if cut or (budget.cuts and not asleep):
                spent = () if cut else ("cuts",)
                yield Move("is cut off", slot, partial(Cluster.pass_time, spent=("periods", *spent), cut=slot))
            if budget.stalls and held_up and not busy:
                yield Move("waits long", slot, partial(Cluster.pass_time, spent=("periods", "stalls"), stalled=slot))

    def deliver_background(self) -> None:
        """Unless the scope is fine: an awake process takes in at once what is new in the registry, and heartbeats."""
        moved = not self.setting.fine
        while moved:
            moved = False
            for slot in list(self.alive()):
                if self.processes[slot].away_s:
                    continue
                act = self._idle_move(slot)
                if act is not None:
                    act(slot)
                    moved = True

    def _idle_move(self, slot: int) -> Callable[[int], None] | None:
        process = self.processes[slot]
        if process.heard < self.registry.end:
            return self.hear
        if self._heartbeat_waits(slot):
            return self._land_and_report if not process.reports else self.land
        if 0 <= process.position < self.channel.end and self.facts(slot).caught_up:
            record = self.channel.upto(process.position + 1).last
            if record is not None and record.key == HEARTBEAT_KEY:
                return self.read
        return None

    def _land_and_report(self, slot: int) -> None:
        self.land(slot)
        self.report(slot)

    # --- deliveries -------------------------------------------------------------------------------------------------

    def read(self, slot: int) -> None:
        """The next record, or all of them while it joins; then that this is the end, where it is."""
        process = self.processes[slot]
        if process.position < 0:
            self._set(slot, position=0)
            self._feed(slot, PartitionOpened(Topic.CHANNEL, 0, 0, self.channel.end))
            if self._left_reading(slot):
                return
            process = self.processes[slot]
        if process.position < self.channel.end:
            if self.facts(slot).caught_up:
                record = self.channel.upto(process.position + 1).last
                self._set(slot, position=process.position + 1)
                if record is not None:
                    self._feed(slot, record)
            else:
                records = tuple(self.channel.records(process.position))
                self._set(slot, position=self.channel.end)
                self._feed(slot, records[0] if len(records) == 1 else RecordsRead(records))
        if not self._left_reading(slot) and self.processes[slot].position == self.channel.end:
            self._feed(slot, PositionReached(Topic.CHANNEL, 0, self.channel.end, now_at(self.time_s).mono_s))

    def _left_reading(self, slot: int) -> bool:
        process = self.processes[slot]
        return not process.alive or process.position < 0

    def hear(self, slot: int) -> None:
        """All that is new in the registry."""
        process = self.processes[slot]
        if process.heard < 0:
            self._feed(slot, PartitionOpened(Topic.REGISTRY, 0, 0, self.registry.end))
        records = self.registry.records(max(process.heard, 0))
        self._set(slot, heard=self.registry.end)
        for record in records:
            if self.processes[slot].alive:
                self._feed(slot, record)
        if self.processes[slot].alive:
            self._feed(slot, PositionReached(Topic.REGISTRY, 0, self.processes[slot].heard, now_at(self.time_s).mono_s))

    def land(self, slot: int) -> None:
        """The first record of a client reaches the log."""
        process = self.processes[slot]
        write, writes = process.writes[0], process.writes[1:]
        report = Appended(write.token, self.channel.end, write.session)
        self._set(slot, writes=writes, reports=(*process.reports, report))
        self._append(process.name, write.key, write.value)

    def report(self, slot: int) -> None:
        reports = self.processes[slot].reports
        self._set(slot, reports=reports[1:])
        if isinstance(reports[0], Appended) and reports[0].offset < self.processes[slot].position:
            self.seen[Danger.READ_BEFORE_REPORT] += 1
        self._feed(slot, reports[0])

    def finish_hook(self, slot: int, hook: int) -> None:
        self._set(slot, hooks=tuple(other for other in self.processes[slot].hooks if other != hook))
        self._feed(slot, HookFinished(hook))

    def deliver_seat(self, slot: int) -> None:
        seats = self.processes[slot].seats
        self._set(slot, seats=seats[1:])
        self._feed(slot, LeadershipChanged(elected=seats[0]))

    def command(self, slot: int, event: CommandReceived) -> None:
        self.open |= {event.token}
        self._feed(slot, event)

    # --- faults -----------------------------------------------------------------------------------------------------

    def _spend(self, *names: str) -> None:
        self.budget = self.budget.less(*names)

    def _fail_hook(self, slot: int) -> None:
        self._spend("hook_errors")
        hook, *rest = self.processes[slot].hooks
        self._set(slot, hooks=tuple(rest))
        self._feed(slot, HookFinished(hook, "planned failure"))

    def _hang_hook(self, slot: int) -> None:
        """It never ends."""
        self._spend("hook_hangs")
        self._set(slot, hooks=self.processes[slot].hooks[1:])

    def _ask(self, slot: int) -> None:
        self._spend("lookups")
        self.command(slot, CommandReceived(LOOKUP_TOKEN + slot, Lookup(TOPIC, PATIENCE_S)))

    def _time_out(self, slot: int) -> None:
        """The client gives up: each record may land later, or never; what comes after is another session."""
        self._spend("timeouts")
        process = self.processes[slot]
        failed = tuple(
            AppendFailed(write.token, "timed out", write.session, never_written=False) for write in process.writes
        )
        self._give_up(slot)
        self._set(slot, reports=(*process.reports, *failed), session=process.session + 1)

    def _give_up(self, slot: int) -> None:
        process = self.processes[slot]
        self.strays += tuple(Stray(process.name, write.key, write.value, write.session) for write in process.writes)
        self._set(slot, writes=())

    def _spend_on_crash(self, slot: int) -> None:
        self._spend("crashes")
        self.crash(slot)

    def crash(self, slot: int) -> None:
        """The process is gone; what its client had may still land."""
        process, facts = self.processes[slot], self.facts(slot)
        for key in self.channel.truth.view.in_flight:
            if process.name.split("#")[0] in (key.from_, key.to):
                self.seen[_DEATHS[key.state]] += 1
        if facts.leading:
            self.seen[Danger.LEADER_DEATH] += 1
        if facts.cold:
            self.seen[Danger.COLD_DEATH] += 1
        self._give_up(slot)
        self._set(slot, alive=False, reports=(), hooks=(), seats=(), stands=False)
        self.live.pop(slot, None)

    def _reopen(self, slot: int) -> None:
        """Its reader's thread ended, and another opens the partition."""
        self._spend("reopens")
        self._set(slot, position=-1)

    def start(self, slot: int, number: int) -> None:
        """A new process of this broker."""
        broker = self.processes[slot].name.split("#")[0]
        self.processes[slot] = new_process(self.automaton, self.setting.config, broker, number, self.time_s)

    def _start_anew(self, slot: int) -> None:
        self._spend("starts")
        if self.channel.truth.view.in_flight:
            self.seen[Danger.START_IN_FLIGHT] += 1
        self._start_again(slot)

    def _start_again(self, slot: int) -> None:
        self.start(slot, int(self.processes[slot].name.split("#")[1]) + 1)

    def _land_stray(self, index: int) -> None:
        stray = self.strays[index]
        # A session keeps its order: what lies before it lands no more.
        self.strays = tuple(
            other
            for place, other in enumerate(self.strays)
            if place > index or (other.writer, other.session) != (stray.writer, stray.session)
        )
        before = self.channel
        if any(self.facts(slot).cold for slot in self.alive()):
            self.seen[Danger.COLD_LATE] += 1
        self._append(stray.writer, stray.key, stray.value)
        verdict = self.channel.truth.verdicts[-1]
        if verdict is not Verdict.CONTROL:
            self.seen[Danger.LATE_RECORD] += 1
        if verdict is Verdict.ACCEPTED:
            self.seen[Danger.LATE_ACCEPTED] += 1
        if self.channel.truth.debts[-1] - (before.truth.debts[-1] if before.end else frozenset()):
            self.seen[Danger.LATE_OWED] += 1

    # --- election ---------------------------------------------------------------------------------------------------

    def _elect(self, slot: int) -> None:
        self.holder = self.processes[slot].name
        self._set(slot, seats=(*self.processes[slot].seats, True))
        if any(self.facts(other).leading for other in self.alive() if other != slot):
            self.seen[Danger.SECOND_ELECTED] += 1

    def _vacate(self) -> None:
        for slot in self.alive():
            if self.processes[slot].name == self.holder:
                self._set(slot, seats=(*self.processes[slot].seats, False))
        self.holder = None
        self.unheard_s = 0.0

    def _push(self) -> None:
        self._spend("pushes")
        self._vacate()

    # --- time -------------------------------------------------------------------------------------------------------

    def pass_time(
        self,
        *,
        spent: tuple[str, ...],
        asleep: int | None = None,
        cut: int | None = None,
        stalled: int | None = None,
        most_s: float = PERIOD_S,
    ) -> None:
        """Let time pass until a process wants to write, to call a hook, to answer, or to lead.

        Args:
            spent: What this takes of the budget.
            asleep: Slot of a process that takes nothing in.
            cut: Slot of one that reaches nothing, and knows that time passes.
            stalled: Slot of one whose records do not land and whose hooks do not end.
            most_s: No more time than this passes.
        """
        self._spend(*spent)
        self._go_live()
        self._cut, self._stalled, self.interrupted = cut, stalled, False
        end_s = self.time_s + most_s
        while self.time_s < end_s and not self.interrupted:
            self.time_s += STEP_S
            self._free_seat(asleep if asleep is not None else cut)
            for slot in list(self.alive()):
                if slot == asleep:
                    self._set(slot, away_s=self.processes[slot].away_s + STEP_S)
                elif self.processes[slot].alive:
                    self._live_on(slot)
        self._cut = self._stalled = None

    def _go_live(self) -> None:
        for slot in self.alive():
            if slot not in self.live:
                self.live[slot] = self.automaton.take(self.processes[slot].state)

    def _free_seat(self, absent: int | None) -> None:
        """Who has the seat and is not heard for a session loses it."""
        if self.holder is None:
            return
        heard = any(self.processes[slot].name == self.holder for slot in self.alive() if slot != absent)
        self.unheard_s = 0.0 if heard else self.unheard_s + STEP_S
        if self.unheard_s >= SESSION_S:
            self._vacate()
            self.interrupted = self.interrupted or any(self.processes[slot].stands for slot in self.alive())

    def _live_on(self, slot: int) -> None:
        if now_at(self.time_s).mono_s >= self.live[slot].wake_at_s:
            self._feed(slot, Tick())
        if slot == self._cut:
            if self.processes[slot].alive:
                self._set(slot, away_s=self.processes[slot].away_s + STEP_S, cut=True)
            return
        if self.processes[slot].alive and self.processes[slot].heard < self.registry.end:
            self.hear(slot)
        while self.processes[slot].alive and slot != self._stalled and self._heartbeat_waits(slot):
            self.land(slot)
        while self.processes[slot].alive and self.processes[slot].reports:
            self.report(slot)
        while self.processes[slot].alive and 0 <= self.processes[slot].position < self.channel.end:
            self.read(slot)
        if self.processes[slot].alive and self.processes[slot].position == self.channel.end:
            self._feed(slot, PositionReached(Topic.CHANNEL, 0, self.channel.end, now_at(self.time_s).mono_s))

    def _heartbeat_waits(self, slot: int) -> bool:
        writes = self.processes[slot].writes
        return bool(writes) and writes[0].key == HEARTBEAT_KEY

    # --- effects ----------------------------------------------------------------------------------------------------

    def _feed(self, slot: int, event: Input) -> None:
        process = self.processes[slot]
        if process.away_s and slot != self._cut:
            if process.away_s >= ABSENT_S and self.facts(slot).serving:
                self.seen[Danger.OWNER_WAKES] += 1
                if is_replaced(process, self.facts(slot), self.channel):
                    self.seen[Danger.REPLACED_WAKES] += 1
            if process.away_s >= SESSION_S and self.facts(slot).leading and self.holder != process.name:
                self.seen[Danger.LEADER_WAKES] += 1
            self._set(slot, away_s=0.0, cut=False)
        engine = self.live.get(slot)
        inspect = partial(self._inspect, slot)
        if engine is None:
            step = self.automaton.step(process.state, self.time_s, event, inspect)
            effects, events, rewrites = step.effects, step.events, step.flag
            self._set(slot, state=step.state)
        else:
            effects, events = split_effects(engine.step(now_at(self.time_s), event))
            rewrites = inspect(engine, events)
        self.rewritten = self.rewritten or rewrites
        if "cold-start.began" in events:
            self.seen[Danger.COLD_START] += 1
        for effect in effects:
            self._perform(slot, effect)
        if self.processes[slot].alive:
            check_opened(self.processes[slot].opened, self.facts(slot).holdings)
        self._check_service(slot)

    def _perform(self, slot: int, effect: Effect) -> None:
        process = self.processes[slot]
        match effect:
            case Append(token, Topic.CHANNEL, _, key, value):
                if self.facts(slot).in_doubt and parse_key(key) is not None:
                    raise Violation("doubt", f"{process.name} writes {key!r} while a cold start is in doubt")
                self._set(slot, writes=(*process.writes, Write(token, key, value, process.session)))
                self.interrupted = self.interrupted or key != HEARTBEAT_KEY
            case Append(_, Topic.REGISTRY, _, key, value):
                if slot != self._cut:
                    self.registry = self.registry.append(Topic.REGISTRY, self.time_s, key, value)
            case RestartReading(Topic.CHANNEL):
                self._set(slot, position=-1)
                self.interrupted = True
            case RestartReading():
                self._set(slot, heard=-1)
            case StandForLeader(stand):
                self._set(slot, stands=stand)
                if not stand and self.holder == process.name and slot != self._cut:
                    self._vacate()
                self.interrupted = self.interrupted or self.holder is None
            case CallHook(hook_id):
                waiting = (hook_id,) if hook_id else ()
                self._set(slot, hooks=(*process.hooks, *waiting), opened=opened_by(process.opened, effect))
                self.interrupted = self.interrupted or bool(waiting)
            case Complete(token, outcome):
                self._answered(process.name, token, outcome)
                self.interrupted = True
            case StopEngine(reason):
                self.seen[Danger.DEPARTURE] += reason == "closed"
                self.crash(slot)
                self.interrupted = True

    def _append(self, writer: str, key: bytes, value: bytes | None) -> None:
        self.channel = self.channel.append(Topic.CHANNEL, self.time_s, key, value)
        operation = self.channel.operations & self.refused
        if operation:
            raise Violation("answer", f"{min(operation)} was refused, and is accepted")
        if parse_key(key) is None:
            return
        if self.channel.truth.view.in_flight and any(not process.alive for process in self.processes):
            self.seen[Danger.DEAD_IN_FLIGHT] += 1
        if self.channel.truth.verdicts[-1] in REJECTIONS:
            self.seen[Danger.LOST_RACE] += 1

    def _answered(self, who: str, token: int, outcome: Outcome) -> None:
        if token not in self.open:
            raise Violation("answer", f"{who} answers {token} twice or unasked: {outcome}")
        self.open -= {token}
        if isinstance(outcome, Owned) and not self.rewritten:
            grant = self.channel.truth.grants.get((outcome.bundle, outcome.generation))
            if grant is None or grant.broker != outcome.broker:
                raise Violation("answer", f"{who} answers {outcome}, granted: {grant}")
        operations = self.channel.operations
        if isinstance(outcome, Rejected) and outcome.reason:
            self.refused |= self.setting.operations.get(token, frozenset())
            if self.refused & operations:
                raise Violation("answer", f"{who} refuses what was accepted: {outcome}")
        if isinstance(outcome, Done | Started) and outcome.operation and outcome.operation not in operations:
            raise Violation("answer", f"{who} says {outcome}, and nothing was accepted")

    # --- checks -----------------------------------------------------------------------------------------------------

    def _inspect(self, slot: int, engine: Engine, events: tuple[str, ...]) -> bool:
        """Whether a cold start has begun that may change what is accepted."""
        name = self.processes[slot].name
        rewrites = "cold-start.began" in events and check_cold_start(name, engine, self.channel)
        if not (rewrites or self.rewritten):
            check_view(name, engine, self.channel)
        return rewrites

    def _check_service(self, slot: int) -> None:
        process, mine = self.processes[slot], self.facts(slot)
        if process.alive and (mine.serving or mine.leading):
            others = {self.processes[other]: self.facts(other) for other in self.alive() if other != slot}
            self.seen.update(check_service(process, mine, others, self.channel, self.time_s, rewritten=self.rewritten))
