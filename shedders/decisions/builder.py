"""Decision records, built from decisions of `shedders.decision.dry_run`, placements, splits and skipped cycles. Pure.

The balancer decides by the functions of a dry run, and this takes their answers as they are: what a record says is what was
reckoned with, shortened where there is no room.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

from shedders.decision.budget import Budget, BudgetSettings
from shedders.decision.dry_run import CheckedMove, Decision, SplitDecision
from shedders.decisions.record import (
    VALUE_MAX_BYTES,
    DecisionRecord,
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
BALANCE: Final = "Balance"
"""Reason of a split that the leader's strategy wants; upstream's leader wants none."""


@dataclass(frozen=True, slots=True)
class RecordBounds:
    """How large a record may be; what is cut is counted in it.

    Attributes:
        record_bytes: Longest value.
        text_chars: Longest sentence.
        memory_bytes: So much may come on top for what the strategy remembers, up to `VALUE_MAX_BYTES` in all: the next leader
            needs all of it or has none, and it grows with the cluster.
    """

    record_bytes: int = 128 * 1024
    text_chars: int = 500
    memory_bytes: int = 512 * 1024

    def __post_init__(self) -> None:
        bytes_fit = RECORD_MIN_BYTES <= self.record_bytes <= VALUE_MAX_BYTES
        if not bytes_fit or not TEXT_MIN_CHARS <= self.text_chars <= TEXT_MAX_CHARS:
            raise ValueError(
                f"a record has {RECORD_MIN_BYTES} to {VALUE_MAX_BYTES} bytes, a sentence {TEXT_MIN_CHARS} to "
                f"{TEXT_MAX_CHARS} characters"
            )
        if self.memory_bytes < 0:
            raise ValueError(f"memory of {self.memory_bytes} bytes")

    @property
    def beyond_bytes(self) -> int:
        """What memory may take on top of `record_bytes`."""
        return min(self.memory_bytes, VALUE_MAX_BYTES - self.record_bytes)


@dataclass(frozen=True, slots=True)
class Occasion:
    """Who decides, when, and by what.

    Attributes:
        id: A ULID.
        cycle: 1, 2, 3, ... of this leader and subject.
        at_ms: Estimate of the log's time.
        took_ms: Time that the decision took.
        trigger: `cycle`, `new-leader`, `policy`, `children`, `request`.
        strategy: Shedder, placement or split algorithm, by the subject.
        placement: Of a shedding decision: what chose destinations that were left open.
        settings: All settings that were used, of filters and budget, too; JSON-able.
        tell_settings: Write them down, not only their fingerprint: in a leader's first record, and when they change.
        drain: Of a drain's decisions.
        contradictions: Policies that cannot be kept as they stand; told with what was left alone.
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
    tell_settings: bool = False
    placement: str | None = None
    manager: str = "extensible"
    trigger: str = "cycle"
    took_ms: float | None = None
    drain: DrainPart | None = None
    contradictions: Sequence[Left] = ()


@dataclass(frozen=True, slots=True)
class Executed:
    """What was begun for one bundle.

    Attributes:
        operation: Id on the channel; None where none was begun.
        outcome: A stable word for how it stands: `started`, `rejected`, `unknown`, `dry-run`, ...
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
        on_the_way: Before it.
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
"""Words for cycles in which no strategy was asked, or its answer not used, with upstream's label and reason.

Missing or old load data, too few brokers and cool-downs are none of these: the strategy finds them, and its record has upstream's
reason (`NoLoadData`, `OutDatedData`, `NoBrokers`, `CoolDown`) with `skipped` null.
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
    bounds: RecordBounds | None = None,
) -> DecisionRecord:
    """The record of a shedding decision.

    Args:
        executed: By bundle, what was begun.
        unasked: By bundle, why its owner was not asked for the split that the plan wants.
    """
    plan = decision.plan
    held = dict(unasked)
    if budget is not None:
        held |= {one.name: f"{one.reason}: {one.why}" for one in budget.held}
    draft = _Draft(occasion, Subject.SHED, bounds, budget)
    return draft.record(
        _Found(
            plan.label.value,
            plan.reason.value,
            plan.why,
            brokers=decision.cluster.brokers,
            plan=plan,
            moves=decision.checked,
            held=held,
            splits=[SplitPlan(one.bundle, (), BALANCE, one.why) for one in plan.splits],
            placed=decision.placed,
            left=[*plan.left, *occasion.contradictions],
            executed=executed,
            memory=decision.memory,
        )
    )


def split_record(
    occasion: Occasion,
    decision: SplitDecision,
    *,
    executed: Mapping[str, Executed] = NOTHING_DONE,
    bounds: RecordBounds | None = None,
) -> DecisionRecord:
    """The record of a look at what should be split; bundles left whole are those left alone."""
    splits = [one for one in decision.splits if one.positions]
    left = [Left(one.bundle, one.reason, one.why) for one in decision.splits if not one.positions]
    label, reason = (Label.SUCCESS, splits[0].reason) if splits else (Label.SKIP, Reason.UNKNOWN.value)
    why = decision.why or f"{len(splits)} to be split, {len(left)} left whole"
    brokers = decision.cluster.brokers
    found = _Found(label.value, reason, why, brokers=brokers, splits=splits, left=left, executed=executed)
    return _Draft(occasion, Subject.SPLIT, bounds, None).record(found)


def place_record(
    occasion: Occasion,
    cluster: Cluster,
    placed: Sequence[Placed],
    *,
    executed: Mapping[str, Executed] = NOTHING_DONE,
    bounds: RecordBounds | None = None,
) -> DecisionRecord:
    """The record of a batch of placements."""
    homeless = sum(one.broker is None for one in placed)
    label = Label.FAILURE if homeless else Label.SUCCESS
    reason = Reason.NO_BROKERS if homeless else Reason.UNKNOWN
    why = f"{len(placed) - homeless} placed" + (f"; for {homeless} no broker was found" if homeless else "")
    found = _Found(label.value, reason.value, why, brokers=cluster.brokers, placed=placed, executed=executed)
    return _Draft(occasion, Subject.PLACE, bounds, None).record(found)


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
        left: Brokers that were the reason.
    """
    label, reason = SKIPPED.get(skipped, (Label.SKIP, Reason.UNKNOWN))
    found = _Found(
        label.value, reason.value, why, brokers=brokers or {}, left=[*left, *occasion.contradictions], skipped=skipped
    )
    return _Draft(occasion, subject, bounds, budget).record(found)


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
class _Found:
    """What a decision found, before it is made to fit."""

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

    def named(self) -> Iterable[str]:
        """Brokers that the moves are about."""
        for one in self.moves:
            yield one.move.source
            if one.move.destination is not None:
                yield one.move.destination


class _Draft:
    """One record in the making."""

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

    def record(self, found: _Found) -> DecisionRecord:
        """Fill it, the most important first."""
        base = self._base(found)
        room = Room(self._bounds.record_bytes - len(base.model_dump_json().encode()) - _CUT_BYTES)
        self._executed, self._held = found.executed, found.held
        occasion, short = self._occasion, self._short
        inputs = occasion.inputs
        channel = room.table("inputs", inputs.channel, short.name, share=0.25, order=sorted(inputs.channel))
        counts = Counter(one.reason for one in found.left)
        ranked = sorted(counts, key=lambda reason: (-counts[reason], reason))
        left_counts = room.table("left_counts", counts, short.name, share=0.1, order=ranked)
        plan = found.plan
        stats = finite({} if plan is None else plan.stats)
        scores = finite({} if plan is None else plan.scores)
        stats = room.table("stats", stats, short.name, share=0.1, order=sorted(stats))
        moves = room.entries("moves", found.moves, self._move, share=0.8)
        splits = room.entries("splits", found.splits, self._split, share=0.8)
        order = extremes_first(scores, found.named())
        scores = room.table("scores", scores, short.name, share=0.5, order=order)
        placed = room.entries("placed", found.placed, self._placed, share=0.5)
        told = self._settings(room)
        memory = (
            found.memory
            if found.memory is not None and room.fits("memory", found.memory, self._bounds.beyond_bytes)
            else None
        )
        order_left = brokers_first(found.left, found.brokers)
        left = room.entries("left", found.left, self._left, share=1.0, order=order_left)
        cut = dict(room.cut)
        if short.count:
            cut["texts"] = short.count
        return base.model_copy(
            update={
                "inputs": inputs.model_copy(update={"channel": channel}),
                "settings": told,
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

    def _base(self, found: _Found) -> DecisionRecord:
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
            label=word(found.label),
            reason=word(found.reason),
            skipped=None if found.skipped is None else word(found.skipped),
            why=short.text(found.why),
            scores={},
            stats={},
            moves=[],
            splits=[],
            placed=[],
            left=[],
            left_counts={},
            budget=self._budget,
            cut={},
        )

    def _settings(self, room: Room) -> dict[str, Any] | None:
        if not self._occasion.tell_settings:
            return None
        told: dict[str, Any] = json.loads(json.dumps(self._occasion.settings, sort_keys=True, default=str))
        return told if room.fits("settings", told) else None

    def _move(self, checked: CheckedMove) -> MoveEntry:
        move, short = checked.move, self._short
        held = self._held.get(move.bundle)
        return MoveEntry(
            source=short.name(move.source),
            destination=_name(short, move.destination),
            planned=_name(short, checked.planned),
            reason=move.reason.value,
            load=float(move.load) if isfinite(move.load) else None,
            swap=move.swap,
            refused=short.maybe(checked.refused or held),
            **self._deed(move.bundle, move.why, made=checked.refused is None),
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
            best=[self._short.name(one) for one in list(placed.best)[:_BEST_MAX]],
            best_count=len(placed.best),
            removed=dict(sorted(Counter(self._short.name(name) for name, _ in placed.removed.values()).items())),
            **self._deed(placed.bundle, placed.why),
        )

    def _deed(self, bundle: str, why: str, *, made: bool = True) -> dict[str, Any]:
        # A move that was refused as it stands there twice has the name of the one that was made.
        done = self._executed.get(bundle) if made else None
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
