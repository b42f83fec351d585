"""Dry runs of decisions: one cycle after the other, each on the cluster that the moves of the last one result in.

The balancer uses the same function, `decide`: a dry run of a snapshot gives what the balancer would have done on that cluster,
bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from shedders.decision.booked_moves import NO_RULES, Booked, DecisionRules, adjusted, allowed, arrived, on_the_way
from shedders.decision.placing import Pipeline
from shedders.errors import StrategyFailedError
from shedders.filters.destinations import Takers, describe
from shedders.model.cluster import Cluster
from shedders.model.cuts import children
from shedders.model.moved_cluster import EVERY_S, after_moves, after_splits
from shedders.model.plan import BundleMove, Left, Placed, Plan, SplitPlan, together
from shedders.model.strategy import SheddingMaker, SplitAlgorithm
from shedders.split.triggers import SplitSettings, SplitWhen
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
        move: Its destination is None if the bundle stays: a filter refused the planned one, or no broker may take it.
        refused: Why the bundle stays; None if it goes.
    """

    move: BundleMove
    planned: str | None
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision with all destinations.

    Attributes:
        cluster: Its input, as the channel and the reports have it; `booked`: the moves in flight.
        checked: The plan's moves in order, with the destinations that the filters allow and the placement chose.
        placed: The placement's answers, in the order of the moves that the strategy left open.
        memory: The strategy's memory for the next decision, as decoded from JSON.
        placing_memory: The same of the placement strategy.
        seen: The cluster as the strategy saw it, with the moves in flight counted; None if no strategy has looked at it.
    """

    cluster: Cluster
    booked: Sequence[Booked]
    plan: Plan
    checked: Sequence[CheckedMove]
    placed: Sequence[Placed]
    memory: Mapping[str, Any]
    placing_memory: Mapping[str, Any]
    seen: Cluster | None = None

    def after(self, every_s: float) -> Cluster:
        """The cluster before the next decision: moves in flight and those of this decision have arrived."""
        return after_moves(arrived(self.cluster, self.booked), self.moves, every_s=every_s)

    @property
    def moves(self) -> Sequence[BundleMove]:
        return [checked.move for checked in self.checked if checked.refused is None]


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
        memory: The memory of the strategy's last plan; empty at first.
        pipeline: Filters that check the strategy's destinations, and the placement that chooses destinations for bundles that
            are only unloaded; its memory is carried on.
        booked: Moves in flight. The shedder sees the loads as they will be; filters and placement get the reports and the
            moves in flight.
        guarded: No bundle goes to a broker of unknown load; a placement may choose only brokers that end below the source
            (decision record 49). Pulsar has no such rule: off, a decision is what Pulsar's would be.

    An invalid move or split is left out with the reason, together with the bundles that would be exchanged for it;
    the others are made, and the strategy's memory is kept. With `upstream` filters the other half of an exchange goes on
    alone, as in Pulsar, whose channel drops the invalid move.

    Raises:
        StrategyFailedError: A strategy raises, plans anything for a cluster that is to be left alone, or its memory cannot
            be encoded as JSON.
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
        # It sheds and places: its placement continues from the plan that it has just made.
        pipeline.memory = kept
    takers = Takers(seen, pipeline.settings.taker_max_age_s, plan.scores) if guarded else None
    sensible = [move for number, move in enumerate(plan.moves) if number not in wrong]
    with_destinations, placed = _with_destinations(cluster, sensible, pipeline, going, takers)
    rest = iter(with_destinations)
    checked = [
        CheckedMove(replace(move, destination=None), move.destination, str(wrong[number]))
        if number in wrong
        else next(rest)
        for number, move in enumerate(plan.moves)
    ]
    if pipeline.memory is not kept:
        pipeline.memory = carried("placement", pipeline.name, pipeline.memory)
    kept = pipeline.memory if both else kept
    return Decision(cluster, booked, plan, checked, placed, kept, pipeline.memory, seen)


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
        rules: Moves that they do not allow are refused. While shedding is off the memory does not change either, as the
            balancer does not run its strategy then.
    """
    for _ in range(cycles):
        decision = carried_out(decide(cluster, shedding, memory, pipeline, booked=booked), rules)
        if rules.off is not None:
            decision = replace(decision, memory=memory)
        yield decision
        memory = decision.memory
        cluster = decision.after(every_s)
        # By then the reports count the moves that were in flight.
        booked = ()


def carried_out(decision: Decision, rules: DecisionRules) -> Decision:
    """The decision with the moves refused that the rules do not allow; the balancer uses the same function."""
    left = allowed(decision.cluster, decision.moves, decision.booked, rules).left
    if not left:
        return decision
    faults = {entry.name: f"{entry.reason}: {entry.why}" for entry in left}
    checked = [
        checked_move
        if checked_move.refused is not None or checked_move.move.bundle not in faults
        else replace(
            checked_move, move=replace(checked_move.move, destination=None), refused=faults[checked_move.move.bundle]
        )
        for checked_move in decision.checked
    ]
    return replace(decision, checked=checked)


def place_all(
    cluster: Cluster, bundles: Iterable[str], pipeline: Pipeline, *, booked: Sequence[Booked] = ()
) -> Sequence[Placed]:
    """Place bundles one after the other, each counted for those after it.

    Raises:
        StrategyFailedError: The strategy raises, or its memory cannot be encoded as JSON.
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
    """One search for bundles to split.

    Attributes:
        splits: Bundles to split, in order, then those left whole.
        why: Why no bundle was examined; None if they were.
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
    """Search again and again: memory is carried on, and the splits of each search are made before the next (`after_splits`).

    Raises:
        StrategyFailedError: The memory cannot be encoded as JSON.
    """
    for _ in range(cycles):
        search = SplitWhen(settings, algorithm).plan(cluster, memory)
        memory = carried("split", algorithm.name, search.memory)
        yield SplitDecision(cluster, search.plans, search.why, memory)
        cluster = after_splits(cluster, search.plans, every_s=every_s)


def split_named(cluster: Cluster, bundles: Iterable[str], algorithm: SplitAlgorithm) -> SplitDecision:
    """Where the given bundles would be cut, whether they are over a limit or not.

    Raises:
        StrategyFailedError: The algorithm raises something other than an error for people.
    """
    plans = []
    for name in bundles:
        bundle = cluster.bundles[name]
        try:
            positions = list(algorithm.positions(bundle))
            if positions:
                children(bundle, positions)
        except StateChannelError as error:
            plans.append(SplitPlan(name, (), "algorithm-failed", str(error)))
            continue
        except Exception as error:
            raise StrategyFailedError("split", algorithm.name, f"fails: {error!r}") from error
        reason, why = (
            ("Admin", "requested")
            if positions
            else ("no-positions", f"{algorithm.name} finds no place, {bundle.topics_known}")
        )
        plans.append(SplitPlan(name, positions, reason, why))
    return SplitDecision(cluster, plans, None, {})


def carried(kind: str, strategy: str, memory: Mapping[str, Any]) -> dict[str, Any]:
    """A strategy's memory after a round trip through JSON, as a snapshot and a new leader get it.

    Raises:
        StrategyFailedError: It cannot be encoded as JSON.
    """
    try:
        decoded: dict[str, Any] = json.loads(json.dumps(dict(memory), allow_nan=False, sort_keys=True))
    except (TypeError, ValueError, RecursionError) as error:
        raise StrategyFailedError(kind, strategy, f"has a memory that cannot be encoded as JSON: {error}") from error
    return decoded


def nonsense(cluster: Cluster, plan: Plan) -> str | None:
    """The first invalid move or split of a plan; None if all are valid."""
    alone = _left_alone(cluster, plan)
    if alone is not None:
        return alone
    wrong = nonsensical_moves(cluster, plan.moves) or nonsensical_splits(cluster, plan)
    return next(map(str, wrong.values()), None)


def nonsensical_moves(cluster: Cluster, moves: Sequence[BundleMove]) -> dict[int, Fault]:
    """Invalid moves: by their place in the plan, why."""
    faults: dict[int, Fault] = {}
    seen: set[str] = set()
    for number, move in enumerate(moves):
        bundle = cluster.bundles.get(move.bundle)
        if bundle is None or bundle.owner != move.source:
            faults[number] = Fault("not-owned", f"moves {move.bundle} away from {move.source}, which does not own it")
        elif bundle.in_flight:
            faults[number] = Fault("in-flight", f"moves {move.bundle}, which is in flight already")
        elif move.destination == move.source:
            faults[number] = Fault("same-broker", f"moves {move.bundle} to where it is")
        elif move.bundle in seen:
            faults[number] = Fault("twice", f"moves {move.bundle} twice")
        else:
            seen.add(move.bundle)
    return faults


def nonsensical_splits(cluster: Cluster, plan: Plan, wrong: Collection[int] = ()) -> dict[int, Fault]:
    """Invalid splits, likewise.

    Args:
        wrong: Invalid moves, by place: their bundles may be split.
    """
    moved = {move.bundle for number, move in enumerate(plan.moves) if number not in wrong}
    faults: dict[int, Fault] = {}
    seen: set[str] = set()
    for number, split in enumerate(plan.splits):
        bundle = cluster.bundles.get(split.bundle)
        if bundle is None:
            faults[number] = Fault("gone", f"splits {split.bundle}, which does not exist")
        elif bundle.owner is None:
            faults[number] = Fault("not-owned", f"splits {split.bundle}, which no broker serves")
        elif bundle.in_flight:
            faults[number] = Fault("in-flight", f"splits {split.bundle}, which is in flight")
        elif split.bundle in moved:
            faults[number] = Fault("moved", f"moves and splits {split.bundle}")
        elif split.bundle in seen:
            faults[number] = Fault("twice", f"splits {split.bundle} twice")
        else:
            seen.add(split.bundle)
    return faults


def _left_alone(cluster: Cluster, plan: Plan) -> str | None:
    if not (plan.moves or plan.splits) or cluster.safe is None:
        return None
    what = "moves" if plan.moves else "splits"
    return f"plans {what} although the cluster is to be left alone ({cluster.safe})"


def _with_partners(moves: Sequence[BundleMove], wrong: dict[int, Fault], *, upstream: bool) -> dict[int, Fault]:
    """Invalid moves, and those of the same exchange: half an exchange may be worse than none."""
    if not wrong or upstream:
        return wrong
    exchanges = {frozenset((move.source, move.destination)) for move in moves if move.swap}
    broken = {frozenset((moves[number].source, moves[number].destination)): why for number, why in wrong.items()}
    faults = dict(wrong)
    for number, move in enumerate(moves):
        pair = frozenset((move.source, move.destination))
        if number not in faults and pair in exchanges and pair in broken:
            faults[number] = Fault("swap", f"another bundle of the exchange may not move: {broken[pair]}")
    return faults


def _sensible_splits(cluster: Cluster, plan: Plan, wrong: Collection[int]) -> Plan:
    """The plan without its invalid splits, which are left alone."""
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
    """Apply filters and placement; each move counts for those after it, except with `upstream` filters."""
    if not moves:
        return [], []
    faults = {} if takers is None else _blind(moves, takers)
    _, refused = pipeline.permitted(cluster, [move for move in moves if move.bundle not in faults], going)
    faults |= {entry.name: f"{entry.reason}: {entry.why}" for entry in refused}
    checked_moves: list[CheckedMove] = []
    placed: list[Placed] = []
    for move in moves:
        fault = faults.get(move.bundle)
        if fault is not None:
            checked = CheckedMove(replace(move, destination=None), move.destination, fault)
        elif move.destination is not None:
            checked = CheckedMove(move, move.destination)
        else:
            checked = _chosen(cluster, move, pipeline, going, takers, placed)
        if checked.move.destination is not None and pipeline.counts_moves:
            going.setdefault(checked.move.destination, []).append(move.bundle)
            if takers is not None:
                takers.book(cluster.bundles[move.bundle], move.source, checked.move.destination)
        checked_moves.append(checked)
    return checked_moves, placed


def _blind(moves: Sequence[BundleMove], takers: Takers) -> dict[str, str]:
    """Moves to brokers of unknown load, by bundle; an exchange is refused as a whole."""
    faults: dict[str, str] = {}
    for group in together(moves):
        for move in group:
            fault = None if move.destination is None else takers.unknown(move.destination)
            if fault is not None:
                faults |= {partner.bundle: f"no-usable-report: {move.destination}: {fault}" for partner in group}
                break
    return faults


def _chosen(
    cluster: Cluster,
    move: BundleMove,
    pipeline: Pipeline,
    going: dict[str, list[str]],
    takers: Takers | None,
    placed: list[Placed],
) -> CheckedMove:
    """Let the placement choose for a move that the strategy left open."""
    bundle = cluster.bundles[move.bundle]
    among, faults = ([], {}) if takers is None else takers.open_to(bundle, move.source)
    if takers is not None and not among:
        return CheckedMove(move, None, f"no-taker: {describe(faults)}")
    # Upstream's placement chooses among all brokers, and may choose the source again; then nothing moves.
    all_brokers = takers is None or pipeline.settings.upstream
    answer = pipeline.place(cluster, pipeline.as_shed(bundle), going, None if all_brokers else among)
    placed.append(answer)
    if answer.broker is None:
        return CheckedMove(move, None, answer.why)
    if answer.broker == move.source:
        return CheckedMove(move, None, f"the placement would put it back: {answer.why}")
    if answer.broker in faults:
        return CheckedMove(move, None, f"no-taker: the placement chose {answer.broker}: {faults[answer.broker]}")
    return CheckedMove(replace(move, destination=answer.broker), None)
