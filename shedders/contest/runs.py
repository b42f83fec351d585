"""What is to be run, and what came of it: the two sides of the runner, and what a comparison is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shedders.contest.contenders import Contender
from shedders.contest.outcome import RunOutcome

OURS: Final = "ours"
"""Name of our own default among the contenders; the others are compared with it."""


class SourceKind(StrEnum):
    """What a trace is made of."""

    SCENARIO = "scenario"
    """A scenario, by its name or file; each seed makes another trace of it."""
    TRACE = "trace"
    """A saved trace, by its file; seed 1 is the trace as it is, others have a little noise (`varied`)."""
    SNAPSHOT = "snapshot"
    """A cluster at a moment, by its file; each seed makes other noise around it."""
    HISTORY = "history"
    """Load reports of a cluster, by their file; seeds as of a trace."""


@dataclass(frozen=True, slots=True)
class TraceSource:
    """Where traces come from.

    Attributes:
        name: As results have it.
        where: A scenario's name, or a file.
        digest: Of its content: results of another content are not taken for its own.
        about: One line.
        steady: Nothing happens in it that would call for moves, so hardly anything should move.
        scale_out: Brokers join in it, and are to get their share in few rounds.
        held_out: It was not looked at while our strategy was tuned.
        hours: How long a snapshot goes on.
    """

    kind: SourceKind
    name: str
    where: str
    digest: str
    about: str = ""
    steady: bool = False
    scale_out: bool = False
    held_out: bool = False
    hours: float = 2.0


@dataclass(frozen=True, slots=True)
class ContestRun:
    """One contender on one trace."""

    source: TraceSource
    seed: int
    contender: Contender

    @property
    def said(self) -> str:
        """For people."""
        return f"{self.contender.name} on {self.source.name}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of a run.

    Attributes:
        outcome: None if it failed. Its moves and series may have been left away, see `thinned`.
        error: Why it failed; empty if it did not.
        digest: Of the whole outcome, all that repeats bit for bit.
        kept: It was there already, and not run again.
    """

    run: ContestRun
    outcome: RunOutcome | None
    error: str = ""
    digest: str = ""
    kept: bool = False

    def thinned(self) -> RunResult:
        """Without what only plots need: hundreds of runs with a hundred brokers each would fill the memory."""
        if self.outcome is None:
            return self
        bare = self.outcome.series.model_copy(
            update={"at_s": [], "loads": {}, "max_over_mean": [], "max_over_bound": []}
        )
        thin = self.outcome.model_copy(update={"moves": [], "series": bare})
        return RunResult(self.run, thin, self.error, self.digest, self.kept)
