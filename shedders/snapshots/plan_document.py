"""JSON documents of the plan commands (shedders/plan.schema.json), a stable interface for other tools."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from shedders.decision.distance import DistanceToBest
from shedders.decision.dry_run import CheckedMove, Decision, SplitDecision
from shedders.decisions.record import DistancePart
from shedders.model.amounts import BYTES, LoadUnit
from shedders.model.cuts import children
from shedders.model.plan import Left, Placed
from shedders.snapshots.model import BalancingPart

FORMAT = 1

Remarks = Field(description="Sentences on oddities of the snapshot.")
Score = Annotated[float | None, Field(description="null: not finite, as an overloaded broker's may be.")]


class DocumentPart(BaseModel):
    """Base of all parts of a plan document."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class PlacedPart(DocumentPart):
    """Where a bundle goes, and why."""

    bundle: str
    broker: str | None = Field(description="null: no broker may take it.")
    why: str
    best: list[str] = Field(
        description="Brokers among which the choice was free (upstream picks one at random), sorted."
    )
    removed: dict[str, tuple[str, str]] = Field(description="Brokers that a filter took away: the filter, the reason.")
    scores: dict[str, Score]


class MovePart(DocumentPart):
    """One move."""

    bundle: str
    source: str
    destination: str | None = Field(description="null: the bundle stays.")
    planned: str | None = Field(
        description="The destination that the strategy named; null: it left that to the placement."
    )
    refused: str | None = Field(
        description="Why the bundle stays: the filter, or what else forbids it, and its reason; null where it goes."
    )
    reason: str = Field(description="Upstream's reason.")
    load: Score = Field(description="Traffic that goes along, in the strategy's own measure.")
    load_unit: LoadUnit = Field(BYTES, description="Unit of `load`.")
    swap: bool = Field(description="It is given back in exchange for others.")
    why: str


class SplitWantedPart(DocumentPart):
    """A bundle that should be split; its owner would decide where."""

    bundle: str
    why: str


class LeftPart(DocumentPart):
    """A broker or bundle that was looked at and left alone."""

    name: str
    reason: str = Field(description="A stable word.")
    why: str


class CyclePart(DocumentPart):
    """One decision."""

    cycle: int = Field(ge=1)
    now_ms: int
    label: str = Field(description="Upstream's label.")
    reason: str = Field(description="Upstream's reason.")
    why: str
    moves: list[MovePart]
    splits: list[SplitWantedPart] = Field(
        description="Bundles whose owners would be asked to split them; later cycles do not include the splits."
    )
    left: list[LeftPart]
    placed: list[PlacedPart] = Field(description="How destinations were found that the strategy left open.")
    scores: dict[str, Score]
    stats: dict[str, Score]
    distance: DistancePart | None = Field(
        None, description="Distance to the best, as in decision records; null: not known."
    )
    memory: dict[str, JsonValue] = Field(description="What the next decision is given.")


class ShedPlan(DocumentPart):
    """Answer of `shed plan`."""

    kind: Literal["shed-plan"] = "shed-plan"
    format: Literal[1] = 1
    strategy: str
    placement: str = Field(description="The strategy that chooses destinations that are left open.")
    profile: str
    settings: dict[str, JsonValue] = Field(description="Every setting of the strategy as it was used.")
    filters: dict[str, JsonValue] = Field(description="Settings of the filters as they were used.")
    balancing: BalancingPart = Field(
        description="Rules that applied to the plan: moves that they exclude are refused with `budget`, `unload-mode` or "
        "`shedding-off`. In unload mode destinations are predictions, and not sent to brokers."
    )
    remarks: list[str] = Remarks
    every_s: float = Field(description="Seconds from one cycle to the next.")
    cycles: list[CyclePart]


class PlacePlan(DocumentPart):
    """Answer of `place plan`."""

    kind: Literal["place-plan"] = "place-plan"
    format: Literal[1] = 1
    strategy: str
    profile: str
    settings: dict[str, JsonValue]
    filters: dict[str, JsonValue] = Field(description="Settings of the filters as they were used.")
    remarks: list[str] = Remarks
    placed: list[PlacedPart] = Field(description="In the order asked for; each counts for those after it.")
    memory: dict[str, JsonValue] = Field(description="What the next placement is given.")


class SplitPart(DocumentPart):
    """One bundle that should be split, or was looked at."""

    bundle: str
    positions: list[int] = Field(description="Split positions (hashes); empty: it is not split.")
    children: list[str] = Field(description="Keys of the parts; empty: it is not split.")
    reason: str
    why: str


class SplitPlanDocument(DocumentPart):
    """Answer of `split plan`."""

    kind: Literal["split-plan"] = "split-plan"
    format: Literal[1] = 1
    algorithm: str
    profile: str
    settings: dict[str, JsonValue] = Field(description="Settings of the algorithm as they were used.")
    splitting: dict[str, JsonValue] = Field(description="Settings of when to split as they were used.")
    remarks: list[str] = Remarks
    every_s: float
    cycles: list[SplitCycle]


class SplitCycle(DocumentPart):
    """One look at all bundles."""

    cycle: int = Field(ge=1)
    now_ms: int
    why: str | None = Field(description="Why no bundle was checked; null: all were.")
    splits: list[SplitPart] = Field(description="Bundles to split in order, then those not split.")
    memory: dict[str, JsonValue] = Field(description="What the next look is given.")


PlanDocument = Annotated[ShedPlan | PlacePlan | SplitPlanDocument, Field(discriminator="kind")]


def finite(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers by name, sorted; those that JSON cannot say become null."""
    return {name: value if isfinite(value) else None for name, value in sorted(scores.items())}


def cycle_part(number: int, decision: Decision, distance: DistanceToBest | None = None) -> CyclePart:
    plan = decision.plan
    return CyclePart(
        cycle=number,
        now_ms=decision.cluster.now_ms,
        label=plan.label.value,
        reason=plan.reason.value,
        why=plan.why,
        moves=[_move(move) for move in decision.checked],
        splits=[SplitWantedPart(bundle=split.bundle, why=split.why) for split in plan.splits],
        left=[_left(left) for left in plan.left],
        placed=[placed_part(placed_) for placed_ in decision.placed],
        scores=finite(plan.scores),
        stats=finite(plan.stats),
        distance=None if distance is None else DistancePart.of(distance),
        memory=dict(decision.memory),
    )


def _move(checked: CheckedMove) -> MovePart:
    move = checked.move
    return MovePart(
        bundle=move.bundle,
        source=move.source,
        destination=move.destination,
        planned=checked.planned,
        refused=checked.refused,
        reason=move.reason.value,
        load=move.load if isfinite(move.load) else None,
        load_unit=move.load_unit,
        swap=move.swap,
        why=move.why,
    )


def _left(left: Left) -> LeftPart:
    return LeftPart(name=left.name, reason=left.reason, why=left.why)


def placed_part(placed: Placed) -> PlacedPart:
    return PlacedPart(
        bundle=placed.bundle,
        broker=placed.broker,
        why=placed.why,
        best=list(placed.best),
        removed={name: tuple(removal) for name, removal in sorted(placed.removed.items())},
        scores=finite(placed.scores),
    )


def split_cycle(number: int, decision: SplitDecision) -> SplitCycle:
    bundles = decision.cluster.bundles
    return SplitCycle(
        cycle=number,
        now_ms=decision.cluster.now_ms,
        why=decision.why,
        splits=[
            SplitPart(
                bundle=split.bundle,
                positions=list(split.positions),
                children=list(children(bundles[split.bundle], split.positions)) if split.positions else [],
                reason=split.reason,
                why=split.why,
            )
            for split in decision.splits
        ],
        memory=dict(decision.memory),
    )
