"""The consumer group that elects: sessions time out, and a process that lost the seat hears of it late."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from statechannel.engine.inputs import LeadershipChanged
from statechannel.sim.options import SESSION_TIMEOUT_S

if TYPE_CHECKING:
    from statechannel.engine.inputs import Input
    from statechannel.sim.stage import SimStage

_INTERVAL_S = 0.5


class Candidate(Protocol):
    """A process that may be elected."""

    alive: bool

    @property
    def at_coordinator(self) -> bool: ...

    @property
    def halts_election(self) -> bool:
        """Whether it gives the seat up because of its loop."""
        ...

    def take(self, event: Input) -> None: ...


CandidateT = TypeVar("CandidateT", bound=Candidate)


class Election(Generic[CandidateT]):
    """Sticky: the seat moves only when its holder leaves, times out, or is pushed.

    Attributes:
        frozen: Keeps the seat whatever befalls it: an election that is not tied to the loop (an older version).
    """

    def __init__(self, stage: SimStage, rng: Random) -> None:
        self._stage = stage
        self._rng = rng
        self._wishes: dict[CandidateT, None] = {}
        self._seen_s: dict[CandidateT, float] = {}
        self._to_tell: dict[CandidateT, None] = {}
        self.holder: CandidateT | None = None
        self.frozen: CandidateT | None = None
        stage.events.after(_INTERVAL_S, self._tick)

    def stand(self, process: CandidateT, *, stand: bool) -> None:
        if stand:
            self._wishes[process] = None
            self._seen_s[process] = self._stage.events.now_s
            return
        self._wishes.pop(process, None)
        self._seen_s.pop(process, None)
        if self.holder is process:
            self._vacate()

    def push(self) -> None:
        """A rebalance for no good reason."""
        if self.holder is not None:
            self._stage.trace.count("rebalances")
            self._vacate()

    def _present(self, process: CandidateT) -> bool:
        return process is self.frozen or (process.at_coordinator and not process.halts_election)

    def _vacate(self) -> None:
        if self.holder is not None and self.holder is not self.frozen:
            self._to_tell[self.holder] = None
            self.holder = None

    def _tick(self) -> None:
        stage = self._stage
        now_s = stage.events.now_s
        stage.events.after(_INTERVAL_S, self._tick)
        for process in list(self._wishes):
            if self._present(process):
                self._seen_s[process] = now_s
            elif process.halts_election and self.holder is process and not self.frozen:
                stage.trace.count("seats given up by a hung loop")
                self._vacate()
            elif now_s - self._seen_s.get(process, 0.0) > SESSION_TIMEOUT_S and self.holder is process:
                stage.trace.count("leaders timed out")
                self._vacate()
            if not process.alive and self.holder is not process:
                del self._wishes[process]
                self._to_tell.pop(process, None)
        for process in [process for process in self._to_tell if process.at_coordinator]:
            del self._to_tell[process]
            process.take(LeadershipChanged(elected=False))
        if self.holder is None:
            fit = [p for p in self._wishes if self._present(p) and p not in self._to_tell]
            if fit:
                self.holder = self._rng.choice(fit)
                stage.trace.count("elections")
                chosen = self.holder
                stage.events.after(self._rng.uniform(0.0, 0.5), lambda: self._seat(chosen))

    def _seat(self, process: CandidateT) -> None:
        if self.holder is process:
            process.take(LeadershipChanged(elected=True))
