"""Outcome of a simulation run: measures, series for plots, and wall times, separate as they do not repeat."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

FORMAT = 1
POINTS_MAX = 720
"""Most points of a series; longer runs are reduced to the worst of each stretch."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Measures(_Part):
    """Measures of a run.

    A broker's load is its demand over what its machine can really do, the largest of CPU and both directions of the network; 1
    is full. Figures of balance are over the judged spans of the trace; all others over the whole run.
    """

    max_over_mean: float = Field(description="Largest load over the mean load, mean over time.")
    max_over_mean_worst: float = Field(description="The same, 99th percentile over time.")
    max_over_bound: float = Field(
        description="Largest load over the least that any placement of these bundles could have: the larger of the cluster's "
        "whole demand over its whole capacity, and its largest bundle on its largest broker; mean over time."
    )
    std: float = Field(description="Standard deviation of the loads, mean over time.")
    bound_over_mean: float = Field(
        description="What `max_over_mean` could at best be (`max_over_bound` 1), mean over time."
    )
    overloaded_broker_s: float = Field(description="Broker seconds above the overload line.")
    moved_share: float = Field(
        description="Traffic of the bundles moved by the balancer, in parts of the cluster's, summed up."
    )
    moved_share_per_h: float = Field(description="The same an hour, within the judged spans.")
    moves: int = Field(description="Bundles moved by the balancer.")
    returns: int = Field(description="Moves back to the broker that a bundle had left within 30 minutes (A-B-A).")
    rounds: int = Field(description="Decisions that moved something.")
    rounds_to_settle: float | None = Field(
        description="Decisions with moves from a disturbance until the largest load stays within 1.10 of the bound for five "
        "minutes, the worst over disturbances; None: one was never settled."
    )
    settle_s: float | None = Field(description="The same in seconds.")
    splits: int = Field(description="Bundles split.")
    unavailable_bundle_s: float = Field(description="Seconds without an owner, over all bundles.")
    unavailable_share: float = Field(description="Share of the traffic requested while its bundle had no owner.")
    refused_share: float = Field(description="Share of the traffic that exceeded the capacity of its broker.")
    reconnects: int = Field(description="Sessions that had to reconnect.")


class MoveMade(_Part):
    """One move of the balancer; `share`: of the cluster's traffic."""

    at_s: float
    bundle: str
    source: str
    destination: str
    share: float
    why: str = ""


class PlotSeries(_Part):
    """For plots.

    Attributes:
        at_s: Time of each point.
        loads: By broker; None while it is not there.
        max_over_mean, max_over_bound: At each point.
    """

    at_s: list[float]
    loads: dict[str, list[float | None]]
    max_over_mean: list[float]
    max_over_bound: list[float]


class Timing(_Part):
    """Wall time; not part of the digest.

    Attributes:
        decision_ms_p50, decision_ms_max: Of a decision of the shedding strategy.
    """

    run_s: float
    decisions: int
    decision_ms_p50: float
    decision_ms_max: float


class RunOutcome(_Part):
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
