"""Decision records, built from decisions of `shedders.decision.dry_run`, placements, splits and skipped cycles. Pure.

The balancer decides with the functions of a dry run. A record has their results as they are. What does not fit is left out and
counted (`shedders.decisions.size_limits`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

from shedders.decision.booked_moves import Budget, BudgetSettings
from shedders.decision.distance import DistanceReader, DistanceToBest
from shedders.decision.dry_run import CheckedMove, Decision, SplitDecision
from shedders.decisions.record import (
    VALUE_MAX_BYTES,
    DecisionRecord,
    DistancePart,
    DrainPart,
    Inputs,
    LeftEntry,
    MoveEntry,
    OutcomeRecord,
    PlacedEntry,
    RecordedBudget,
    SplitEntry,
    Subject,
)
from shedders.decisions.size_limits import Room, Shortener, brokers_first, extremes_first, finite, word
from shedders.model.cluster import Cluster
from shedders.model.plan import Label, Left, Placed, Plan, Reason, SplitPlan

RECORD_MIN_BYTES: Final = 16_384
TEXT_MIN_CHARS: Final = 20
TEXT_MAX_CHARS: Final = 1_000
_CUT_BYTES: Final = 512
_BEST_MAX: Final = 16
_POSITIONS_MAX: Final = 64
BALANCE: Final = "Balance"  # reason of a split that the leader's strategy wants; upstream's leader wants none


@dataclass(frozen=True, slots=True)
class RecordBounds:
    """How large a record may be; what is cut is counted in it.

    Attributes:
        memory_bytes: Additional bytes for the strategy's memory, up to `VALUE_MAX_BYTES` in all: the next leader
            needs all of it or has none, and it grows with the cluster.
    """

    record_bytes: int = 128 * 1024
    text_chars: int = 500
    memory_bytes: int = 640 * 1024

    def __post_init__(self) -> None:
        bytes_fit = RECORD_MIN_BYTES <= self.record_bytes <= VALUE_MAX_BYTES
        if not bytes_fit or not TEXT_MIN_CHARS <= self.text_chars <= TEXT_MAX_CHARS:
            raise ValueError(
                f"a record has {RECORD_MIN_BYTES} to {VALUE_MAX_BYTES} bytes, a sentence {TEXT_MIN_CHARS} to "
                f"{TEXT_MAX_CHARS} characters"
            )
        if self.memory_bytes < 0:
            raise ValueError(f"memory_bytes is negative: {self.memory_bytes}")

    @property
    def beyond_bytes(self) -> int:
        """What memory may take on top of `record_bytes`."""
        return min(self.memory_bytes, VALUE_MAX_BYTES - self.record_bytes)


@dataclass(frozen=True, slots=True)
class Occasion:
    """The circumstances of a decision: who decides, when, and with which settings.

    Attributes:
        cycle: 1, 2, 3, ... of this leader and subject.
        at_ms: Estimate of the log's time.
        trigger: `cycle`, `new-leader`, `policy`, `children`, `request`.
        strategy: Shedder, placement or split algorithm, by the subject.
        placement: Of a shedding decision: what chose destinations that were left open.
        settings: All settings that were used, those of filters and budget included; JSON-able.
        write_settings: Write them to the record, not only their fingerprint: in a leader's first record, and when they change.
        contradictions: Policies that contradict each other; recorded among `left`.
    """

    id: str
    term: int
    leader: str
    cycle: int
    at_ms: int
    inputs: Inputs
    strategy: str
    profile: str
    settings: Mapping[str, Any]
    write_settings: bool = False
    placement: str | None = None
    manager: str = "extensible"
    trigger: str = "cycle"
    took_ms: float | None = None
    drain: DrainPart | None = None
    contradictions: Sequence[Left] = ()


@dataclass(frozen=True, slots=True)
class Executed:
    """The operation that was started for one bundle.

    Attributes:
        operation: Id on the channel; None where none was started.
        outcome: A stable word for its state: `started`, `rejected`, `unknown`, `dry-run`, ...
    """

    operation: str | None
    outcome: str = "started"
    why: str | None = None


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """The budget around one decision.

    Attributes:
        left: After it.
        held: Moves of the plan that have to wait.
        on_the_way: Moves in flight before it.
    """

    settings: BudgetSettings
    left: Budget
    held: Sequence[Left] = ()
    on_the_way: int = 0


NOTHING_DONE: Mapping[str, Executed] = {}
NOTHING_REFUSED: Mapping[str, str] = {}

SKIPPED: Mapping[str, tuple[Label, Reason]] = {
    "safe-mode": (Label.SKIP, Reason.UNKNOWN),
    "joining": (Label.SKIP, Reason.UNKNOWN),
    "shedding-off": (Label.SKIP, Reason.ADMIN),
    "policies-unread": (Label.SKIP, Reason.ADMIN),
    "unusable-policies": (Label.SKIP, Reason.ADMIN),
    "strategy-failed": (Label.FAILURE, Reason.UNKNOWN),
    "internal-error": (Label.FAILURE, Reason.UNKNOWN),
}
"""Words for cycles in which no strategy ran, or its plan was not used, with upstream's label and reason.

Missing or old load data, too few brokers and cool-downs are not among them: the strategy detects them, and its record has
upstream's reason (`NoLoadData`, `OutDatedData`, `NoBrokers`, `CoolDown`) with `skipped` null.
"""


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits; equal settings have equal ones, whatever their order."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def shed_record(
    occasion: Occasion,
    decision: Decision,
    *,
    executed: Mapping[str, Executed] = NOTHING_DONE,
    unasked: Mapping[str, str] = NOTHING_REFUSED,
    budget: BudgetUse | None = None,
    distances: DistanceReader | None = None,
    bounds: RecordBounds | None = None,
) -> DecisionRecord:
    """The record of a shedding decision.

    Args:
        executed: By bundle, the operation that was started.
        unasked: By bundle, why its owner was not asked for the split that the plan wants.
        distances: Of the cluster that was decided on; None: the distance to the best is not recorded.
    """
    plan = decision.plan
    waiting = {} if budget is None else {left.name: f"{left.reason}: {left.why}" for left in budget.held}
    held = {**unasked, **waiting}
    draft = _Draft(occasion, Subject.SHED, bounds, budget)
    return draft.record(
        _Content(
            plan.label.value,
            plan.reason.value,
            plan.why,
            brokers=decision.cluster.brokers,
            plan=plan,
            moves=decision.checked,
            held=held,
            splits=[SplitPlan(split.bundle, (), BALANCE, split.why) for split in plan.splits],
            placed=decision.placed,
            left=[*plan.left, *occasion.contradictions],
            executed=executed,
            memory=decision.memory,
            distance=None
            if distances is None
            else distances.of(move for move in decision.moves if move.bundle not in waiting),
        )
    )


def split_record(
    occasion: Occasion,
    decision: SplitDecision,
    *,
    executed: Mapping[str, Executed] = NOTHING_DONE,
    bounds: RecordBounds | None = None,
) -> DecisionRecord:
    """The record of a search for bundles to split; bundles that are not split are those left alone."""
    splits = [split for split in decision.splits if split.positions]
    left = [Left(split.bundle, split.reason, split.why) for split in decision.splits if not split.positions]
    label, reason = (Label.SUCCESS, splits[0].reason) if splits else (Label.SKIP, Reason.UNKNOWN.value)
    why = decision.why or f"{len(splits)} to be split, {len(left)} not split"
    brokers = decision.cluster.brokers
    content = _Content(label.value, reason, why, brokers=brokers, splits=splits, left=left, executed=executed)
    return _Draft(occasion, Subject.SPLIT, bounds, None).record(content)


def place_record(
    occasion: Occasion,
    cluster: Cluster,
    placed: Sequence[Placed],
    *,
    executed: Mapping[str, Executed] = NOTHING_DONE,
    bounds: RecordBounds | None = None,
) -> DecisionRecord:
    unplaced = sum(placement.broker is None for placement in placed)
    label = Label.FAILURE if unplaced else Label.SUCCESS
    reason = Reason.NO_BROKERS if unplaced else Reason.UNKNOWN
    why = f"{len(placed) - unplaced} placed" + (f"; no broker was found for {unplaced}" if unplaced else "")
    content = _Content(label.value, reason.value, why, brokers=cluster.brokers, placed=placed, executed=executed)
    return _Draft(occasion, Subject.PLACE, bounds, None).record(content)


def skipped_record(
    occasion: Occasion,
    skipped: str,
    why: str,
    *,
    subject: Subject = Subject.SHED,
    left: Sequence[Left] = (),
    brokers: Mapping[str, object] | None = None,
    budget: BudgetUse | None = None,
    bounds: RecordBounds | None = None,
) -> DecisionRecord:
    """The record of a cycle in which nothing was decided.

    Args:
        skipped: A stable word (`SKIPPED`); others are skips for reasons unknown.
    """
    label, reason = SKIPPED.get(skipped, (Label.SKIP, Reason.UNKNOWN))
    content = _Content(
        label.value, reason.value, why, brokers=brokers or {}, left=[*left, *occasion.contradictions], skipped=skipped
    )
    return _Draft(occasion, subject, bounds, budget).record(content)


def outcome_record(
    decision: str,
    bundle: str,
    result: str,
    why: str,
    *,
    operation: str | None,
    at_ms: int,
    term: int,
    leader: str,
    took_ms: float | None = None,
    bounds: RecordBounds | None = None,
) -> OutcomeRecord:
    """How a move ended.

    Args:
        decision: Id of the decision record that has the move.
    """
    short = Shortener((bounds or RecordBounds()).text_chars)
    return OutcomeRecord(
        decision=decision,
        bundle=short.name(bundle),
        operation=_name(short, operation),
        result=word(result),
        why=short.text(why),
        at_ms=at_ms,
        took_ms=_amount(took_ms),
        term=term,
        leader=short.name(leader),
    )


@dataclass(frozen=True, slots=True)
class _Content:
    """The contents of a decision, before they are shortened to fit."""

    label: str
    reason: str
    why: str
    brokers: Mapping[str, object]
    plan: Plan | None = None
    moves: Sequence[CheckedMove] = ()
    held: Mapping[str, str] = field(default_factory=dict)
    splits: Sequence[SplitPlan] = ()
    placed: Sequence[Placed] = ()
    left: Sequence[Left] = ()
    executed: Mapping[str, Executed] = field(default_factory=dict)
    skipped: str | None = None
    memory: Mapping[str, Any] | None = None
    distance: DistanceToBest | None = None

    def named(self) -> Iterable[str]:
        for move in self.moves:
            yield move.move.source
            if move.move.destination is not None:
                yield move.move.destination


class _Draft:
    def __init__(
        self, occasion: Occasion, subject: Subject, bounds: RecordBounds | None, budget: BudgetUse | None
    ) -> None:
        self._occasion = occasion
        self._subject = subject
        self._bounds = bounds or RecordBounds()
        self._short = Shortener(self._bounds.text_chars)
        self._budget = None if budget is None else _budget(budget)
        self._executed: Mapping[str, Executed] = {}
        self._held: Mapping[str, str] = {}

    def record(self, content: _Content) -> DecisionRecord:
        """Fill the record, the most important parts first."""
        base = self._base(content)
        room = Room(self._bounds.record_bytes - len(base.model_dump_json().encode()) - _CUT_BYTES)
        self._executed, self._held = content.executed, content.held
        occasion, short = self._occasion, self._short
        inputs = occasion.inputs
        channel = room.table("inputs", inputs.channel, short.name, share=0.25, order=sorted(inputs.channel))
        counts = Counter(entry.reason for entry in content.left)
        ranked = sorted(counts, key=lambda reason: (-counts[reason], reason))
        left_counts = room.table("left_counts", counts, short.name, share=0.1, order=ranked)
        plan = content.plan
        stats = finite({} if plan is None else plan.stats)
        scores = finite({} if plan is None else plan.scores)
        stats = room.table("stats", stats, short.name, share=0.1, order=sorted(stats))
        moves = room.entries("moves", content.moves, self._move, share=0.8)
        splits = room.entries("splits", content.splits, self._split, share=0.8)
        order = extremes_first(scores, content.named())
        scores = room.table("scores", scores, short.name, share=0.5, order=order)
        placed = room.entries("placed", content.placed, self._placed, share=0.5)
        settings = self._settings(room)
        memory = (
            content.memory
            if content.memory is not None and room.fits("memory", content.memory, self._bounds.beyond_bytes)
            else None
        )
        order_left = brokers_first(content.left, content.brokers)
        left = room.entries("left", content.left, self._left, share=1.0, order=order_left)
        cut = dict(room.cut)
        if short.count:
            cut["texts"] = short.count
        return base.model_copy(
            update={
                "inputs": inputs.model_copy(update={"channel": channel}),
                "settings": settings,
                "memory": memory,
                "scores": scores,
                "stats": stats,
                "moves": moves,
                "splits": splits,
                "placed": placed,
                "left": left,
                "left_counts": left_counts,
                "cut": dict(sorted(cut.items())),
            }
        )

    def _base(self, content: _Content) -> DecisionRecord:
        """The record without its lists and tables."""
        occasion, short = self._occasion, self._short
        return DecisionRecord(
            id=occasion.id,
            subject=self._subject.value,
            term=occasion.term,
            leader=short.name(occasion.leader),
            cycle=occasion.cycle,
            at_ms=occasion.at_ms,
            took_ms=_amount(occasion.took_ms),
            trigger=word(occasion.trigger),
            manager=word(occasion.manager),
            strategy=short.name(occasion.strategy),
            drain=occasion.drain,
            placement=None if occasion.placement is None else short.name(occasion.placement),
            profile=short.name(occasion.profile),
            fingerprint=fingerprint(occasion.settings),
            settings=None,
            memory=None,
            inputs=occasion.inputs.model_copy(update={"channel": {}}),
            label=word(content.label),
            reason=word(content.reason),
            skipped=None if content.skipped is None else word(content.skipped),
            why=short.text(content.why),
            scores={},
            stats={},
            distance=None if content.distance is None else DistancePart.of(content.distance, short.name),
            moves=[],
            splits=[],
            placed=[],
            left=[],
            left_counts={},
            budget=self._budget,
            cut={},
        )

    def _settings(self, room: Room) -> dict[str, Any] | None:
        if not self._occasion.write_settings:
            return None
        settings: dict[str, Any] = json.loads(json.dumps(self._occasion.settings, sort_keys=True, default=str))
        return settings if room.fits("settings", settings) else None

    def _move(self, checked: CheckedMove) -> MoveEntry:
        move, short = checked.move, self._short
        held = self._held.get(move.bundle)
        return MoveEntry(
            source=short.name(move.source),
            destination=_name(short, move.destination),
            planned=_name(short, checked.planned),
            reason=move.reason.value,
            load=float(move.load) if isfinite(move.load) else None,
            load_unit=move.load_unit,
            swap=move.swap,
            refused=short.maybe(checked.refused or held),
            **self._deed(move.bundle, move.why, accepted=checked.refused is None),
        )

    def _split(self, plan: SplitPlan) -> SplitEntry:
        positions = list(plan.positions)[:_POSITIONS_MAX]
        why = plan.why if len(plan.positions) == len(positions) else f"{len(plan.positions)} cuts; {plan.why}"
        return SplitEntry(
            positions=positions,
            reason=self._short.text(plan.reason),
            refused=self._short.maybe(self._held.get(plan.bundle)),
            **self._deed(plan.bundle, why),
        )

    def _placed(self, placed: Placed) -> PlacedEntry:
        score = None if placed.broker is None else placed.scores.get(placed.broker)
        return PlacedEntry(
            broker=_name(self._short, placed.broker),
            score=float(score) if score is not None and isfinite(score) else None,
            best=[self._short.name(name) for name in list(placed.best)[:_BEST_MAX]],
            best_count=len(placed.best),
            removed=dict(sorted(Counter(self._short.name(name) for name, _ in placed.removed.values()).items())),
            **self._deed(placed.bundle, placed.why),
        )

    def _deed(self, bundle: str, why: str, *, accepted: bool = True) -> dict[str, Any]:
        # A move that was refused as a duplicate has the name of the one that was executed.
        done = self._executed.get(bundle) if accepted else None
        return {
            "bundle": self._short.name(bundle),
            "why": self._short.text(why),
            "operation": None if done is None else _name(self._short, done.operation),
            "outcome": None if done is None else word(done.outcome),
            "outcome_why": None if done is None else self._short.maybe(done.why),
        }

    def _left(self, left: Left) -> LeftEntry:
        return LeftEntry(
            name=self._short.name(left.name), reason=self._short.name(left.reason), why=self._short.text(left.why)
        )


def _name(short: Shortener, name: str | None) -> str | None:
    return None if name is None else short.name(name)


def _amount(value: float | None) -> float | None:
    return float(value) if value is not None and isfinite(value) else None


def _budget(use: BudgetUse) -> RecordedBudget:
    return RecordedBudget(
        moves_max=use.settings.moves,
        moves_left=max(0, use.left.moves),
        load_percent_max=use.settings.load_percent,
        load_percent_left=_amount(use.left.load_percent) or 0.0,
        on_the_way=use.on_the_way,
    )
