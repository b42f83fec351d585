"""Runs decisions without doing them: one cycle after the other, each on what the moves of the last one leave.

The balancer decides by the same function, `decide`: a dry run of a snapshot is what would have been done on the cluster that it
was taken from, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from shedders.decision.booked_moves import Booked, adjusted, arrived, on_the_way
from shedders.decision.budget import NO_RULES, DecisionRules, allowed
from shedders.decision.placing import Pipeline
from shedders.errors import StrategyFailedError
from shedders.filters.destinations import Takers, told
from shedders.model.cluster import Cluster
from shedders.model.cuts import children
from shedders.model.exchanges import together
from shedders.model.moved_cluster import EVERY_S, after_moves, after_splits
from shedders.model.plan import BundleMove, Left, Placed, Plan, SplitPlan
from shedders.model.registry import SheddingMaker
from shedders.model.strategy import SplitAlgorithm
from shedders.split.settings import SplitSettings
from shedders.split.triggers import SplitWhen
from statechannel.errors import StateChannelError


class Fault(NamedTuple):
    """Why a strategy may not ask for a move or a split: a stable word, and a sentence for people."""

    word: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.word}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class CheckedMove:
    """A move of a plan, with the destination that it will have.

    Attributes:
        move: Its destination is None where it stays: a filter refused the one that was planned, or nobody takes it.
        planned: The destination that the strategy named.
        refused: Why the bundle stays; None if it goes.
    """

    move: BundleMove
    planned: str | None
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision with all destinations.

    Attributes:
        cluster: What it was made from, as the channel and the reports have it; `booked`: what was on its way.
        plan: As the strategy gave it.
        checked: The plan's moves in order, with the destinations that the filters allow and the placement chose.
        placed: What the placement answered, in the order of the moves that the strategy left open.
        memory: What the strategy is given next time, as it comes back out of JSON.
        placing_memory: The same of the placement strategy.
    """

    cluster: Cluster
    booked: Sequence[Booked]
    plan: Plan
    checked: Sequence[CheckedMove]
    placed: Sequence[Placed]
    memory: Mapping[str, Any]
    placing_memory: Mapping[str, Any]

    def after(self, every_s: float) -> Cluster:
        """The cluster before the next decision: what was on its way and what moves now has arrived."""
        return after_moves(arrived(self.cluster, self.booked), self.moves, every_s=every_s)

    @property
    def moves(self) -> Sequence[BundleMove]:
        """The moves to make."""
        return [one.move for one in self.checked if one.refused is None]


def decide(
    cluster: Cluster,
    shedding: SheddingMaker,
    memory: Mapping[str, Any],
    pipeline: Pipeline,
    *,
    booked: Sequence[Booked] = (),
    guarded: bool = True,
) -> Decision:
    """Decide once.

    Args:
        memory: What the strategy gave last time; empty at first.
        pipeline: Filters that check what the strategy names, and the placement that chooses where bundles go that it only
            unloads; its memory is carried on.
        booked: Moves on their way. The shedder sees the loads as they will be; filters and placement are given the reports,
            and what is on its way.
        guarded: A bundle goes to nobody whose load is not known, and by a placement's choice only to who ends below its source
            (decision record 49). Pulsar has no such rule: off, a decision is what Pulsar's would be.

    A move or split that no strategy may ask for is left out with the reason, and the bundles that would be exchanged for it, too;
    the others are made, and what the strategy remembers is kept. With `upstream` filters the other half of an exchange goes by
    itself, as in Pulsar, whose channel drops the one move.

    Raises:
        StrategyFailedError: A strategy raises, plans anything for a cluster that is to be left alone, or remembers what JSON
            cannot hold.
    """
    going, seen = on_the_way(booked), adjusted(cluster, booked)
    strategy = shedding(pipeline.can_take(cluster, going))
    try:
        plan = strategy.plan(seen, memory)
    except Exception as error:
        raise StrategyFailedError("shedding", strategy.name, f"fails: {error!r}") from error
    fault = _left_alone(seen, plan)
    if fault is not None:
        raise StrategyFailedError("shedding", strategy.name, fault)
    wrong = _with_partners(plan.moves, nonsensical_moves(seen, plan.moves), upstream=pipeline.settings.upstream)
    plan = _sensible_splits(seen, plan, wrong)
    kept = carried("shedding", strategy.name, plan.memory)
    both = pipeline.name == strategy.name
    if both:
        # It sheds and places: what it has just planned is what it places by.
        pipeline.memory = kept
    takers = Takers(seen, pipeline.settings.taker_max_age_s, plan.scores) if guarded else None
    sensible = [move for number, move in enumerate(plan.moves) if number not in wrong]
    found, placed = _with_destinations(cluster, sensible, pipeline, going, takers)
    rest = iter(found)
    checked = [
        CheckedMove(replace(move, destination=None), move.destination, str(wrong[number]))
        if number in wrong
        else next(rest)
        for number, move in enumerate(plan.moves)
    ]
    pipeline.memory = carried("placement", pipeline.name, pipeline.memory)
    return Decision(cluster, booked, plan, checked, placed, pipeline.memory if both else kept, pipeline.memory)


def run_cycles(
    cluster: Cluster,
    shedding: SheddingMaker,
    memory: Mapping[str, Any],
    pipeline: Pipeline,
    *,
    booked: Sequence[Booked] = (),
    rules: DecisionRules = NO_RULES,
    cycles: int = 1,
    every_s: float = EVERY_S,
) -> Iterator[Decision]:
    """Decide again and again: memory is carried on, and each decision's moves are made before the next (`after_moves`).

    Args:
        rules: What does not set out under them is refused. While nothing is shed at all nothing is remembered either, as the
            balancer does not ask its strategy then.
    """
    for _ in range(cycles):
        decision = carried_out(decide(cluster, shedding, memory, pipeline, booked=booked), rules)
        if rules.off is not None:
            decision = replace(decision, memory=memory)
        yield decision
        memory = decision.memory
        cluster = decision.after(every_s)
        # By then the reports count what was on its way.
        booked = ()


def carried_out(decision: Decision, rules: DecisionRules) -> Decision:
    """A decision with what does not set out refused, by the function by which the balancer carries it out."""
    left = allowed(decision.cluster, decision.moves, decision.booked, rules).left
    if not left:
        return decision
    faults = {one.name: f"{one.reason}: {one.why}" for one in left}
    checked = [
        one
        if one.refused is not None or one.move.bundle not in faults
        else replace(one, move=replace(one.move, destination=None), refused=faults[one.move.bundle])
        for one in decision.checked
    ]
    return replace(decision, checked=checked)


def place_all(
    cluster: Cluster, bundles: Iterable[str], pipeline: Pipeline, *, booked: Sequence[Booked] = ()
) -> Sequence[Placed]:
    """Place bundles one after the other, each counted for those after it.

    Args:
        bundles: Names of bundles of the cluster.

    Raises:
        StrategyFailedError: The strategy raises, or remembers what JSON cannot hold.
    """
    going = on_the_way(booked)
    placed = []
    for name in bundles:
        answer = pipeline.place(cluster, cluster.bundles[name], going)
        placed.append(answer)
        if answer.broker is not None and name not in going.get(answer.broker, ()):
            going.setdefault(answer.broker, []).append(name)
    pipeline.memory = carried("placement", pipeline.name, pipeline.memory)
    return placed


@dataclass(frozen=True, slots=True)
class SplitDecision:
    """One look at all bundles.

    Attributes:
        splits: Those to split in order, then those left whole.
        why: Why nothing was looked at; None if it was.
        memory: What the next look is given.
    """

    cluster: Cluster
    splits: Sequence[SplitPlan]
    why: str | None
    memory: Mapping[str, Any]


def run_splits(
    cluster: Cluster,
    settings: SplitSettings,
    algorithm: SplitAlgorithm,
    memory: Mapping[str, Any],
    *,
    cycles: int = 1,
    every_s: float = EVERY_S,
) -> Iterator[SplitDecision]:
    """Look again and again: memory is carried on, and each look's splits are made before the next (`after_splits`).

    Raises:
        StrategyFailedError: What is remembered cannot be held by JSON.
    """
    for _ in range(cycles):
        found = SplitWhen(settings, algorithm).plan(cluster, memory)
        memory = carried("split", algorithm.name, found.memory)
        yield SplitDecision(cluster, found.plans, found.why, memory)
        cluster = after_splits(cluster, found.plans, every_s=every_s)


def split_named(cluster: Cluster, bundles: Iterable[str], algorithm: SplitAlgorithm) -> SplitDecision:
    """Where bundles would be cut that somebody asks for, whether they are over a limit or not.

    Args:
        bundles: Names of bundles of the cluster.

    Raises:
        StrategyFailedError: The algorithm raises what is not meant for people.
    """
    found = []
    for name in bundles:
        bundle = cluster.bundles[name]
        try:
            positions = list(algorithm.positions(bundle))
            if positions:
                children(bundle, positions)
        except StateChannelError as error:
            found.append(SplitPlan(name, (), "algorithm-failed", str(error)))
            continue
        except Exception as error:
            raise StrategyFailedError("split", algorithm.name, f"fails: {error!r}") from error
        reason, why = (
            ("Admin", "asked for")
            if positions
            else ("no-positions", f"{algorithm.name} finds no place, {bundle.topics_known}")
        )
        found.append(SplitPlan(name, positions, reason, why))
    return SplitDecision(cluster, found, None, {})


def carried(kind: str, strategy: str, memory: Mapping[str, Any]) -> dict[str, Any]:
    """A strategy's memory as it comes back out of JSON, in which a snapshot and a new leader get it.

    Raises:
        StrategyFailedError: JSON cannot hold it.
    """
    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(memory), allow_nan=False, sort_keys=True))
    except (TypeError, ValueError, RecursionError) as error:
        raise StrategyFailedError(kind, strategy, f"remembers what JSON cannot hold: {error}") from error
    return found


def nonsense(cluster: Cluster, plan: Plan) -> str | None:
    """What of a plan no strategy may ask for, the first; None if it makes sense."""
    alone = _left_alone(cluster, plan)
    if alone is not None:
        return alone
    wrong = nonsensical_moves(cluster, plan.moves) or nonsensical_splits(cluster, plan)
    return next(map(str, wrong.values()), None)


def nonsensical_moves(cluster: Cluster, moves: Sequence[BundleMove]) -> dict[int, Fault]:
    """Moves that no strategy may ask for: by place, why."""
    found: dict[int, Fault] = {}
    seen: set[str] = set()
    for number, move in enumerate(moves):
        bundle = cluster.bundles.get(move.bundle)
        if bundle is None or bundle.owner != move.source:
            found[number] = Fault("not-owned", f"moves {move.bundle} away from {move.source}, which does not own it")
        elif bundle.in_flight:
            found[number] = Fault("in-flight", f"moves {move.bundle}, which is on its way already")
        elif move.destination == move.source:
            found[number] = Fault("same-broker", f"moves {move.bundle} to where it is")
        elif move.bundle in seen:
            found[number] = Fault("twice", f"moves {move.bundle} twice")
        else:
            seen.add(move.bundle)
    return found


def nonsensical_splits(cluster: Cluster, plan: Plan, wrong: Collection[int] = ()) -> dict[int, Fault]:
    """Splits that no strategy may ask for, likewise.

    Args:
        wrong: Moves, by place, that are not made: their bundles may be split.
    """
    moved = {move.bundle for number, move in enumerate(plan.moves) if number not in wrong}
    found: dict[int, Fault] = {}
    seen: set[str] = set()
    for number, split in enumerate(plan.splits):
        bundle = cluster.bundles.get(split.bundle)
        if bundle is None:
            found[number] = Fault("gone", f"splits {split.bundle}, which does not exist")
        elif bundle.owner is None:
            found[number] = Fault("not-owned", f"splits {split.bundle}, which nobody serves")
        elif bundle.in_flight:
            found[number] = Fault("in-flight", f"splits {split.bundle}, which is on its way")
        elif split.bundle in moved:
            found[number] = Fault("moved", f"moves and splits {split.bundle}")
        elif split.bundle in seen:
            found[number] = Fault("twice", f"splits {split.bundle} twice")
        else:
            seen.add(split.bundle)
    return found


def _left_alone(cluster: Cluster, plan: Plan) -> str | None:
    """Why nothing may be planned at all where something is."""
    if not (plan.moves or plan.splits) or cluster.safe is None:
        return None
    what = "moves" if plan.moves else "splits"
    return f"plans {what} although the cluster is to be left alone ({cluster.safe})"


def _with_partners(moves: Sequence[BundleMove], wrong: dict[int, Fault], *, upstream: bool) -> dict[int, Fault]:
    """Moves that are left out, and those of the same exchange: half of it may be worse than nothing."""
    if not wrong or upstream:
        return wrong
    exchanges = {frozenset((move.source, move.destination)) for move in moves if move.swap}
    broken = {frozenset((moves[number].source, moves[number].destination)): why for number, why in wrong.items()}
    found = dict(wrong)
    for number, move in enumerate(moves):
        pair = frozenset((move.source, move.destination))
        if number not in found and pair in exchanges and pair in broken:
            found[number] = Fault("swap", f"a bundle that goes along may not: {broken[pair]}")
    return found


def _sensible_splits(cluster: Cluster, plan: Plan, wrong: Collection[int]) -> Plan:
    """The plan without the splits that make no sense, which are among those left alone then."""
    faults = nonsensical_splits(cluster, plan, wrong)
    if not faults:
        return plan
    left = [Left(plan.splits[number].bundle, *fault) for number, fault in faults.items()]
    splits = [split for number, split in enumerate(plan.splits) if number not in faults]
    return replace(plan, splits=splits, left=[*plan.left, *left])


def _with_destinations(
    cluster: Cluster,
    moves: Sequence[BundleMove],
    pipeline: Pipeline,
    going: dict[str, list[str]],
    takers: Takers | None,
) -> tuple[Sequence[CheckedMove], Sequence[Placed]]:
    """Let the filters refuse, and the placement choose; each move counts for those after it, but with `upstream` filters."""
    if not moves:
        return [], []
    faults = {} if takers is None else _blind(moves, takers)
    _, refused = pipeline.permitted(cluster, [move for move in moves if move.bundle not in faults], going)
    faults |= {one.name: f"{one.reason}: {one.why}" for one in refused}
    found: list[CheckedMove] = []
    placed: list[Placed] = []
    for move in moves:
        fault = faults.get(move.bundle)
        if fault is not None:
            one = CheckedMove(replace(move, destination=None), move.destination, fault)
        elif move.destination is not None:
            one = CheckedMove(move, move.destination)
        else:
            one = _chosen(cluster, move, pipeline, going, takers, placed)
        if one.move.destination is not None and pipeline.counts_moves:
            going.setdefault(one.move.destination, []).append(move.bundle)
            if takers is not None:
                takers.book(cluster.bundles[move.bundle], move.source, one.move.destination)
        found.append(one)
    return found, placed


def _blind(moves: Sequence[BundleMove], takers: Takers) -> dict[str, str]:
    """Moves to brokers whose load nobody knows, by bundle; what is exchanged goes together or not at all."""
    found: dict[str, str] = {}
    for group in together(moves):
        for move in group:
            fault = None if move.destination is None else takers.unknown(move.destination)
            if fault is not None:
                found |= {one.bundle: f"no-usable-report: {move.destination}: {fault}" for one in group}
                break
    return found


def _chosen(
    cluster: Cluster,
    move: BundleMove,
    pipeline: Pipeline,
    going: dict[str, list[str]],
    takers: Takers | None,
    placed: list[Placed],
) -> CheckedMove:
    """Have the placement choose for a move that the strategy left open."""
    bundle = cluster.bundles[move.bundle]
    among, faults = ([], {}) if takers is None else takers.open_to(bundle, move.source)
    if takers is not None and not among:
        return CheckedMove(move, None, f"no-taker: {told(faults)}")
    # Upstream's placement is asked about everybody, and may choose the source again; then nothing moves.
    everybody = takers is None or pipeline.settings.upstream
    answer = pipeline.place(cluster, pipeline.as_shed(bundle), going, None if everybody else among)
    placed.append(answer)
    if answer.broker is None:
        return CheckedMove(move, None, answer.why)
    if answer.broker == move.source:
        return CheckedMove(move, None, f"the placement would put it back: {answer.why}")
    if answer.broker in faults:
        return CheckedMove(move, None, f"no-taker: the placement chose {answer.broker}: {faults[answer.broker]}")
    return CheckedMove(replace(move, destination=answer.broker), None)
