"""Once all faults are over the cluster has to become well by itself: whatever was begun ends, and every topic has an owner."""

from __future__ import annotations

from collections.abc import Iterable

from statechannel.engine.commands import Lookup, Owned
from statechannel.engine.inputs import CommandReceived
from statechannel.protocol.states import IN_FLIGHT, State
from statechannel.protocol.view import View
from statechannel.sim.trace import Violation
from tests.interleavings.automaton import Automaton
from tests.interleavings.cluster import STEP_S, Cluster
from tests.interleavings.state import ClusterState, Setting

BOUND_S = 40.0
"""The sum of expiry, session, pause after a mass loss, limit of what is in flight, scan and settling, rounded up; less than the
patience of any command, so that none is answered by a time-out."""
TOPICS = ("t/n/a", "t/n/b", "t/n/c", "t/n/d")
"""Their hashes lie in both halves of the ring."""
LOOKUP_S = 100.0
STRAYS_S = 3.0
"""So long after the last fault late records land, in a second recovery where there are any."""
FIRST_LOOKUP = 1_000_000


class Recovery(Cluster):
    """A cluster in which nothing fails any more, and time passes; where searches begin, it is also led there step by step."""

    def __init__(
        self, automaton: Automaton, setting: Setting, state: ClusterState, *, strays_land: bool = False
    ) -> None:
        super().__init__(automaton, setting, state)
        self._strays_land = strays_land
        self._asked: dict[int, str] = {}
        self._answers: dict[int, object] = {}

    def run(self, at_least_s: float = 0.0) -> float:
        """How long it takes until all is well; time passes for so long in any case."""
        began_s = self.time_s
        self._go_live()
        problems = ["not looked at yet"]
        while problems or self.time_s - began_s < at_least_s:
            if self.time_s - began_s > at_least_s + BOUND_S:
                raise Violation("stuck", f"after {BOUND_S:g} s: " + "; ".join(problems[:5]))
            self.time_s += STEP_S
            if not any(process.alive for process in self.processes):
                self._start_again(0)
                self._go_live()
            self._settle()
            if self._strays_land and self.strays and self.time_s - began_s >= STRAYS_S:
                self._land_stray(0)
            problems = self._problems()
            if not problems and not self._asked and any(True for _ in self._view().live()):
                self._look_up()
                problems = ["every topic is looked up"]
        self._check_answers()
        return self.time_s - began_s

    def deliver_all(self, slots: Iterable[int], *, hooks: bool = True) -> None:
        """These processes take in what there is, and write what they have, until nothing more moves."""
        slots = list(slots)
        for _ in range(1000):
            if self.holder is None:
                for candidate in [slot for slot in slots if self.processes[slot].stands][:1]:
                    self._elect(candidate)
            moves = [move for slot in slots for move in self._deliveries(slot, self.processes[slot])]
            moves = [move for move in moves if hooks or move.name != "hook ends"]
            if not moves:
                return
            moves[0].act(self)
        raise Violation("stuck", "processes go on for ever without any time")

    def cut_off(self, slot: int) -> None:
        """What this process writes to the registry is lost until time has passed."""
        self._cut = slot

    def _settle(self) -> None:
        """Every process takes in what there is, until nothing more moves."""
        self._free_seat(None)
        for slot in list(self.alive()):
            self._live_on(slot)
        self.deliver_all(list(self.alive()))

    def _look_up(self) -> None:
        token = FIRST_LOOKUP
        for slot in list(self.alive()):
            for topic in TOPICS:
                token += 1
                self._asked[token] = self.processes[slot].name
                self.command(slot, CommandReceived(token, Lookup(topic, LOOKUP_S)))

    def _answered(self, who: str, token: int, outcome: object) -> None:
        super()._answered(who, token, outcome)  # type: ignore[arg-type]
        if token in self._asked:
            self._answers[token] = outcome

    def _problems(self) -> list[str]:
        alive = list(self.alive())
        facts = {slot: self.facts(slot) for slot in alive}
        names = {self.processes[slot].name for slot in alive}
        problems = [f"{self.processes[slot].name} is not caught up" for slot in alive if not facts[slot].caught_up]
        problems += [f"{self.processes[slot].name} is not in normal mode" for slot in alive if not facts[slot].normal]
        problems += [
            f"{self.processes[slot].name} may not lead, or takes nothing" for slot in alive if not facts[slot].fit
        ]
        problems += [self.processes[slot].name for slot in alive if not self.owes_nothing(slot)]
        problems += ["late records are to land"] if self._strays_land and self.strays else []
        leaders = [self.processes[slot].name for slot in alive if facts[slot].leading]
        problems += [] if len(leaders) == 1 else [f"leaders: {leaders}"]
        served = {place for slot in alive for place in facts[slot].serving}
        view = self._view()
        if view.ledger.open:
            problems.append(f"debts: {[key.name for key in view.ledger.open]}")
        for key in view.live():
            if key.state in IN_FLIGHT:
                problems.append(f"in flight: {key!r}")
            elif key.state is State.ASSIGNED and (key.name, key.version) not in served:
                problems.append(f"not served: {key!r}")
        open_tokens = {token for token in self.open if self._asked.get(token, self.setting.askers.get(token)) in names}
        problems += [f"commands without an answer: {sorted(open_tokens)}"] if open_tokens else []
        return problems

    def _view(self) -> View:
        """What is accepted: by the whole log, or, where a cold start has changed that, by a process that has caught up."""
        views = (self.live[slot].replicas[0].view for slot in self.alive() if self.live[slot].caught_up)
        return next(views, self.channel.truth.view) if self.rewritten else self.channel.truth.view

    def _check_answers(self) -> None:
        served = {place: self.processes[slot].name for slot in self.alive() for place in self.facts(slot).serving}
        owners: dict[str, str] = {}
        for token, outcome in self._answers.items():
            if not isinstance(outcome, Owned):
                raise Violation("answer", f"{self._asked[token]} looks up and hears {outcome}")
            server = served.get((outcome.bundle, outcome.generation), "no process")
            if owners.setdefault(outcome.bundle, server) != server or server.split("#")[0] != outcome.broker:
                raise Violation("answer", f"{self._asked[token]} looks up and hears {outcome}; {server} serves it")
