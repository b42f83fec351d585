"""Runs of contenders on traces, and their outcomes: measures, series for plots, and wall times, which do not repeat."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field

from shedders.contest.contenders import Contender

FORMAT = 1
POINTS_MAX = 720
"""Most points of a series; longer runs are reduced to the worst of each stretch."""


class ResultPart(BaseModel):
    """Base of all parts of results."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Measures(ResultPart):
    """Measures of a run.

    A broker's load is its demand over what its machine can really do, the largest of CPU, both directions of the network, and
    direct memory; 1 is full. Figures of balance are over the judged spans of the trace; all others over the whole run. With
    policies that divide the brokers, balance is that of each part by itself, the worst of them at each moment.
    """

    max_over_mean: float = Field(description="Largest load over the mean load, mean over time.")
    max_over_mean_worst: float = Field(description="The same, 99th percentile over time.")
    max_over_bound: float = Field(
        description="Largest load over the least that any placement could have, however bundles are split: the larger of the "
        "whole demand over the whole capacity, of the scarcest resource, and of the largest topic on the machine that fits it "
        "best; mean over time. The bound is the same for all contenders."
    )
    std: float = Field(description="Standard deviation of the loads, mean over time.")
    bound_over_mean: float = Field(
        description="What `max_over_mean` could at best be (`max_over_bound` 1), mean over time."
    )
    overloaded_broker_s: float = Field(description="Broker seconds above the overload line.")
    moved_share: float = Field(
        description="Traffic of the bundles moved by the balancer, in parts of the cluster's, summed up. Children of a split "
        "that are placed on another broker count; those that stay do not."
    )
    moved_share_per_h: float = Field(description="The same an hour, within the judged spans.")
    split_share: float = Field(
        description="Traffic of bundles that were split and stay with their broker, in parts of the cluster's, summed up."
    )
    churn_share: float = Field(
        description="`moved_share` and `split_share` together: traffic whose clients had to look it up and connect again."
    )
    returned_share_1h: float = Field(
        description="Load that only went back: moves to a broker that the bundle had left within an hour, as a share of "
        "`moved_share`."
    )
    returned_share_6h: float = Field(description="The same within 6 hours.")
    returned_share_24h: float = Field(description="The same within 24 hours.")
    returned_moves_1h: int = Field(description="Moves that only went back within an hour.")
    returned_moves_6h: int = Field(description="The same within 6 hours.")
    returned_moves_24h: int = Field(description="The same within 24 hours.")
    moves: int = Field(description="Bundles moved by the balancer.")
    returns: int = Field(
        description="Moves back to the broker that a bundle had left within 30 minutes: 0 by construction where a strategy "
        "never moves anything back in that time; see `returned_share_1h`."
    )
    rounds: int = Field(description="Decisions that moved something.")
    rounds_to_settle: float | None = Field(
        description="Decisions with moves from a disturbance until the largest load stays within 1.10 of the bound for five "
        "minutes, the worst over disturbances; None: one was never settled."
    )
    settle_s: float | None = Field(description="The same in seconds.")
    splits: int = Field(description="Bundles split.")
    unavailable_bundle_s: float = Field(description="Seconds without an owner, over all bundles; splits included.")
    unavailable_share: float = Field(description="Share of the traffic requested while its bundle had no owner.")
    refused_share: float = Field(description="Share of the traffic that exceeded the capacity of its broker.")
    reconnects: int = Field(description="Sessions that had to reconnect, those of bundles that were split among them.")
    misplaced_bundle_s: float = Field(
        description="Seconds of bundles on brokers that isolation or a pin forbids; 0 without such policies."
    )


class MoveMade(ResultPart):
    """One move of the balancer; `share`: of the cluster's traffic."""

    at_s: float
    bundle: str
    source: str
    destination: str
    share: float
    why: str = ""


class PlotSeries(ResultPart):
    """Series of a run for plots.

    Attributes:
        loads: By broker; None while it is not there.
        max_over_mean, max_over_bound: At each point.
    """

    at_s: list[float]
    loads: dict[str, list[float | None]]
    max_over_mean: list[float]
    max_over_bound: list[float]


class Timing(ResultPart):
    """Wall time; not part of the digest.

    Attributes:
        decision_ms_p50, decision_ms_max: Of a decision of the shedding strategy.
    """

    run_s: float
    decisions: int
    decision_ms_p50: float
    decision_ms_max: float


class RunOutcome(ResultPart):
    """One run: a contender on a trace."""

    format: int = FORMAT
    scenario: str
    seed: int
    contender: str
    steps: int
    step_s: float
    measures: Measures
    moves: list[MoveMade]
    series: PlotSeries
    remarks: list[str] = Field(default=[], description="Problems, such as a strategy that failed.")
    timing: Timing

    def digest(self) -> str:
        """SHA-256 of all that repeats bit for bit: everything but the timing."""
        fields: dict[str, Any] = self.model_dump(mode="json", exclude={"timing"})
        return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()


OURS: Final = "ours"
"""Name of our default contender, the reference of comparisons."""


class SourceKind(StrEnum):
    SCENARIO = "scenario"
    """A scenario, by its name or file; each seed makes another trace of it."""
    SNAPSHOT = "snapshot"
    """A cluster at a moment, by its file; each seed makes other noise around it."""


@dataclass(frozen=True, slots=True)
class TraceSource:
    """Source of traces.

    Attributes:
        where: Name of a scenario, or path of a file.
        digest: Digest of its content, to detect stale results.
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
    generated: bool = False
    hours: float = 2.0


@dataclass(frozen=True, slots=True)
class ContestRun:
    source: TraceSource
    seed: int
    contender: Contender

    @property
    def title(self) -> str:
        return f"{self.contender.name} on {self.source.name}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a run.

    Attributes:
        outcome: None if it failed. Its moves and series may have been removed, see `thinned`.
        digest: Digest of the repeatable part of the whole outcome.
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
        bare = PlotSeries(at_s=[], loads={}, max_over_mean=[], max_over_bound=[])
        thin = self.outcome.model_copy(update={"moves": [], "series": bare})
        return RunResult(self.run, thin, self.error, self.digest, self.kept)
