"""Conformance rules of each kind of strategy, for `shedders.conformance.checker`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from math import isfinite
from typing import Any, NoReturn, cast

from shedders.conformance.clusters import MEMORIES, ConformanceCase, cases, topic_bundles
from shedders.decision.dry_run import carried, nonsense
from shedders.model.cluster import Bundle, Cluster
from shedders.model.cuts import CannotSplitError, ends
from shedders.model.moved_cluster import after_moves
from shedders.model.plan import Label, Placed, Plan
from shedders.model.strategy import Placing, Shedding, SplitAlgorithm, instantiate, shedding_maker

CYCLES = 6

Rule = Callable[[], str | None]
"""Check of one rule, which returns what was tried."""


class BrokenError(Exception):
    """A rule is broken; the message has how."""


class ConformanceRules:
    """Rules for one strategy.

    Args:
        name: Name of its entry point.
    """

    kind = ""

    def __init__(self, name: str, strategy: type[Any]) -> None:
        self._name = name
        self._found = strategy

    def rules(self) -> Iterator[tuple[str, Rule]]:
        raise NotImplementedError


class SheddingRules(ConformanceRules):
    kind = "shedding"

    def rules(self) -> Iterator[tuple[str, Rule]]:
        yield "its plans are consistent and have reasons", self._sensible
        yield "it moves nothing from or to brokers without valid load", self._never_blind
        yield "it moves no bundle that must stay, and none to a closed destination", self._obeys
        yield "its answers are repeatable, from a new instance and with shuffled dictionaries", self._repeats
        yield "it changes neither the cluster nor the memory that is passed to it", self._changes_nothing
        yield f"its memory survives JSON over {CYCLES} cycles", self._remembers
        yield "it tolerates a foreign memory", self._copes

    def _maker(self) -> Shedding:
        return shedding_maker(self._found, self._found.Settings())(lambda _bundle, _broker: None)

    def _plans(self) -> Iterator[tuple[ConformanceCase, Plan]]:
        """Plans of each case over several cycles, as many strategies act only after several hits."""
        for case in cases():
            memory: Mapping[str, Any] = {}
            for _ in range(CYCLES):
                plan = self._maker().plan(case.cluster, memory)
                yield case, plan
                memory = carried(self.kind, self._name, plan.memory)

    def _sensible(self) -> str | None:
        moves = 0
        for case, plan in self._plans():
            fault = nonsense(case.cluster, plan) or _form(self._name, plan)
            if fault is not None:
                broken(f"{case.about}: {fault}")
            moves += len(plan.moves)
        return f"{moves} moves checked"

    def _never_blind(self) -> str | None:
        for case, plan in self._plans():
            for move in plan.moves:
                if move.source in case.blind or move.destination in case.blind:
                    broken(f"{case.about}: moves {move.bundle} from {move.source} to {move.destination}")
            mentioned = {left.name for left in plan.left}
            if case.blind & case.cluster.brokers.keys() and not case.blind <= mentioned:
                broken(
                    f"{case.about}: the plan does not list {', '.join(sorted(case.blind - mentioned))} as left alone"
                )
        return None

    def _obeys(self) -> str | None:
        for case, plan in self._plans():
            for move in plan.moves:
                if move.bundle in case.still:
                    broken(f"{case.about}: moves {move.bundle}")
                if move.destination in case.closed:
                    broken(f"{case.about}: moves {move.bundle} to {move.destination}")
        return None

    def _repeats(self) -> str | None:
        for case in cases():
            first = self._maker().plan(case.cluster, {})
            same = self._maker()
            for about, plan in (
                ("again", same.plan(case.cluster, {})),
                ("a third time, by the same instance", same.plan(case.cluster, {})),
                ("with dictionaries in another order", self._maker().plan(shuffled(case.cluster), {})),
            ):
                if answer_text(plan) != answer_text(first):
                    broken(f"{case.about}: answers differ {about}")
        return None

    def _changes_nothing(self) -> str | None:
        for case in cases():
            memory: dict[str, Any] = {"hits": 1, "usage": {"b00:8080": 0.5}}
            before = answer_text(case.cluster), answer_text(memory)
            self._maker().plan(case.cluster, memory)
            if (answer_text(case.cluster), answer_text(memory)) != before:
                broken(f"{case.about}: its arguments were changed")
        return None

    def _remembers(self) -> str | None:
        moved = 0
        for case in cases():
            cluster, memory = case.cluster, dict[str, Any]()
            for _ in range(CYCLES):
                plan = self._maker().plan(cluster, memory)
                memory = carried(self.kind, self._name, plan.memory)
                cluster = after_moves(cluster, plan.moves)
                moved += len(plan.moves)
        return f"{moved} moves made"

    def _copes(self) -> str | None:
        base = next(cases()).cluster
        for memory in MEMORIES:
            plan = self._maker().plan(base, memory)
            fault = nonsense(base, plan) or _form(self._name, plan)
            if fault is not None:
                broken(f"memory {memory}: {fault}")
        return f"{len(MEMORIES)} memories"


class PlacementRules(ConformanceRules):
    kind = "placement"

    def rules(self) -> Iterator[tuple[str, Rule]]:
        yield "it names one of the candidates or no broker, with a reason", self._names_candidates
        yield "without candidates it names no broker", self._nobody
        yield "its answers are repeatable, also with shuffled dictionaries", self._places_again
        yield "it counts or ignores bundles in flight to a broker, and does not fail", self._booked
        yield "it tolerates a foreign memory", self._places_with_memory

    def _place(
        self, case: ConformanceCase, names: Sequence[str], memory: Mapping[str, Any], booked: Any = None
    ) -> Placed | None:
        bundle = next(iter(sorted(case.cluster.bundles.items())), (None, None))[1]
        if bundle is None:
            return None
        strategy = cast("Placing", instantiate(self.kind, self._found, self._found.Settings()))
        placed = strategy.place(case.cluster, bundle, list(names), booked or {}, memory)
        self._sound(case, bundle, names, placed)
        return placed

    def _sound(self, case: ConformanceCase, bundle: Bundle, names: Sequence[str], placed: Placed) -> None:
        if placed.bundle != bundle.name:
            broken(f"{case.about}: answers for {placed.bundle} instead of {bundle.name}")
        if placed.broker is not None and placed.broker not in names:
            broken(f"{case.about}: names {placed.broker}, which is not a candidate")
        if placed.broker is not None and placed.broker not in placed.best:
            broken(f"{case.about}: {placed.broker} is not among the best, {list(placed.best)}")
        if not placed.why:
            broken(f"{case.about}: gives no reason")
        carried(self.kind, self._name, placed.memory)

    def _names_candidates(self) -> str | None:
        for case in cases():
            for names in (case.cluster.broker_names, case.cluster.broker_names[:1], case.cluster.broker_names[-2:]):
                memory: Mapping[str, Any] = {}
                for _ in range(CYCLES):
                    placed = self._place(case, names, memory)
                    memory = {} if placed is None else carried(self.kind, self._name, placed.memory)
        return None

    def _nobody(self) -> str | None:
        for case in cases():
            placed = self._place(case, [], {})
            if placed is not None and placed.broker is not None:
                broken(f"{case.about}: names {placed.broker}")
        return None

    def _places_again(self) -> str | None:
        for case in cases():
            names = case.cluster.broker_names
            first = self._place(case, names, {})
            other = self._place(replace(case, cluster=shuffled(case.cluster)), names, {})
            if answer_text(first) != answer_text(self._place(case, names, {})) or answer_text(first) != answer_text(
                other
            ):
                broken(f"{case.about}: answers differ")
        return None

    def _booked(self) -> str | None:
        for case in cases():
            names, bundles = case.cluster.broker_names, sorted(case.cluster.bundles)
            self._place(case, names, {}, dict.fromkeys(names[:1], bundles[:20]))
            self._place(case, names, {}, {"gone:8080": ["no/such/0x00000000_0x00000001"]})
        return None

    def _places_with_memory(self) -> str | None:
        case = next(cases())
        for memory in MEMORIES:
            self._place(case, case.cluster.broker_names, memory)
        return f"{len(MEMORIES)} memories"


class SplitRules(ConformanceRules):
    kind = "split"

    def rules(self) -> Iterator[tuple[str, Rule]]:
        yield "its positions lie strictly inside, ascending and distinct; or it refuses with a hint", self._inside
        yield "its answers do not depend on the order of topics", self._same_for_any_order

    def _inside(self) -> str | None:
        seen = 0
        for about, bundle in topic_bundles():
            lower, upper = ends(bundle)
            positions = list(positions_of(self._algorithm(), bundle))
            if not all(lower < place < upper for place in positions):
                broken(f"{about}: {positions} is not strictly inside {bundle.name}")
            if positions != sorted(set(positions)):
                broken(f"{about}: {positions} is not ascending and distinct")
            seen += len(positions)
        return f"{seen} positions"

    def _same_for_any_order(self) -> str | None:
        for about, bundle in topic_bundles():
            turned = replace(bundle, topics=tuple(reversed(bundle.topics)))
            if list(positions_of(self._algorithm(), turned)) != list(positions_of(self._algorithm(), bundle)):
                broken(f"{about}: answers differ")
        return None

    def _algorithm(self) -> SplitAlgorithm:
        return cast("SplitAlgorithm", instantiate(self.kind, self._found, self._found.Settings()))


def shuffled(cluster: Cluster) -> Cluster:
    """The same cluster with its dictionaries in the opposite order."""
    return replace(
        cluster,
        brokers={name: cluster.brokers[name] for name in reversed(list(cluster.brokers))},
        bundles={name: cluster.bundles[name] for name in reversed(list(cluster.bundles))},
    )


def positions_of(algorithm: SplitAlgorithm, bundle: Bundle) -> Sequence[int]:
    """Split positions; empty if the algorithm refuses properly."""
    try:
        return algorithm.positions(bundle)
    except CannotSplitError:
        return ()


def _form(name: str, plan: Plan) -> str | None:
    if plan.strategy != name:
        return f"the plan names `{plan.strategy}` as its strategy"
    if bool(plan.moves) != (plan.label is Label.SUCCESS):
        return f"{len(plan.moves)} moves and the label {plan.label}"
    if not plan.why or not all(move.why for move in plan.moves) or not all(left.why for left in plan.left):
        return "a reason is missing"
    if not all(isfinite(move.load) and move.load >= 0 for move in plan.moves):
        return "the load of a move is negative or not finite"
    return None


def answer_text(value: Any) -> str:
    fields = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    return json.dumps(fields, sort_keys=True, default=_plain)


def _plain(value: object) -> object:
    return sorted(map(repr, value)) if isinstance(value, set | frozenset) else repr(value)


def broken(how: str) -> NoReturn:
    raise BrokenError(how)
