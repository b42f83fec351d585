"""Runs and their results: input and output of the runner, and input of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shedders.contest.contenders import Contender
from shedders.contest.outcome import RunOutcome

OURS: Final = "ours"
"""Name of our default contender, the reference of comparisons."""


class SourceKind(StrEnum):
    """Kind of a trace's source."""

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
    """Source of traces.

    Attributes:
        name: Name in results.
        where: Name of a scenario, or path of a file.
        digest: Digest of its content, to detect stale results.
        about: One line.
        steady: Nothing in it requires moves, so hardly anything should move.
        scale_out: Brokers join in it, and should get their share in few rounds.
        held_out: It was not used for tuning our strategy.
        hours: Length of a snapshot's trace.
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
    def title(self) -> str:
        """Title of the run, for people."""
        return f"{self.contender.name} on {self.source.name}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a run.

    Attributes:
        outcome: None if it failed. Its moves and series may have been removed, see `thinned`.
        error: Reason of a failure, else empty.
        digest: Digest of the repeatable part of the whole outcome.
        kept: Whether it is a stored result.
    """

    run: ContestRun
    outcome: RunOutcome | None
    error: str = ""
    digest: str = ""
    kept: bool = False

    def thinned(self) -> RunResult:
        """Copy without the data for plots, as hundreds of runs with a hundred brokers each would fill the memory."""
        if self.outcome is None:
            return self
        bare = self.outcome.series.model_copy(
            update={"at_s": [], "loads": {}, "max_over_mean": [], "max_over_bound": []}
        )
        thin = self.outcome.model_copy(update={"moves": [], "series": bare})
        return RunResult(self.run, thin, self.error, self.digest, self.kept)
