"""The rules of each kind of strategy; `shedders.conformance.checker` tries them."""

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
from shedders.model.registry import instantiate, shedding_maker
from shedders.model.strategy import Placing, Shedding, SplitAlgorithm

CYCLES = 6

Rule = Callable[[], str | None]
"""Tries something; says what was tried."""


class BrokenError(Exception):
    """A rule is broken; the message says how."""


class ConformanceRules:
    """The rules for one strategy.

    Args:
        name: Under which it is installed.
        found: Its class.
    """

    kind = ""

    def __init__(self, name: str, found: type[Any]) -> None:
        self._name = name
        self._found = found

    def rules(self) -> Iterator[tuple[str, Rule]]:
        """Each with a sentence for people."""
        raise NotImplementedError


class SheddingRules(ConformanceRules):
    """Of those that choose what moves."""

    kind = "shedding"

    def rules(self) -> Iterator[tuple[str, Rule]]:
        """Each with a sentence for people."""
        yield "it plans what makes sense, and says why", self._sensible
        yield "it moves nothing from or to brokers of which nothing sound is known", self._never_blind
        yield "it leaves alone what must stay, and names no closed destination", self._obeys
        yield "the same answer again, from a new instance, and for shuffled dictionaries", self._repeats
        yield "it changes neither the cluster nor the memory that it is given", self._changes_nothing
        yield f"memory goes through JSON, and {CYCLES} cycles go on from it", self._remembers
        yield "it copes with a memory that it did not write", self._copes

    def _maker(self) -> Shedding:
        return shedding_maker(self._found, self._found.Settings())(lambda _bundle, _broker: None)

    def _plans(self) -> Iterator[tuple[ConformanceCase, Plan]]:
        """Each case's plans over some cycles: many strategies only act when they have seen the same thing several times."""
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
        return f"{moves} moves looked at"

    def _never_blind(self) -> str | None:
        for case, plan in self._plans():
            for move in plan.moves:
                if move.source in case.blind or move.destination in case.blind:
                    broken(f"{case.about}: moves {move.bundle} from {move.source} to {move.destination}")
            mentioned = {left.name for left in plan.left}
            if case.blind & case.cluster.brokers.keys() and not case.blind <= mentioned:
                broken(
                    f"{case.about}: the plan does not say that it left {', '.join(sorted(case.blind - mentioned))} alone"
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
                if told(plan) != told(first):
                    broken(f"{case.about}: answers otherwise {about}")
        return None

    def _changes_nothing(self) -> str | None:
        for case in cases():
            memory: dict[str, Any] = {"hits": 1, "usage": {"b00:8080": 0.5}}
            before = told(case.cluster), told(memory)
            self._maker().plan(case.cluster, memory)
            if (told(case.cluster), told(memory)) != before:
                broken(f"{case.about}: what it was given is not as it was")
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
        return f"{moved} moves made on the way"

    def _copes(self) -> str | None:
        base = next(cases()).cluster
        for memory in MEMORIES:
            plan = self._maker().plan(base, memory)
            fault = nonsense(base, plan) or _form(self._name, plan)
            if fault is not None:
                broken(f"memory {memory}: {fault}")
        return f"{len(MEMORIES)} memories"


class PlacementRules(ConformanceRules):
    """Of those that choose where a bundle goes."""

    kind = "placement"

    def rules(self) -> Iterator[tuple[str, Rule]]:
        """Each with a sentence for people."""
        yield "it names one of the candidates, or nobody, and says why", self._names_candidates
        yield "without candidates it names nobody", self._nobody
        yield "the same answer again, and for shuffled dictionaries", self._places_again
        yield "what is on its way to a broker is counted or ignored, never a reason to fail", self._booked
        yield "it copes with a memory that it did not write", self._places_with_memory

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
            broken(f"{case.about}: speaks of {placed.bundle}, asked for {bundle.name}")
        if placed.broker is not None and placed.broker not in names:
            broken(f"{case.about}: names {placed.broker}, which is no candidate")
        if placed.broker is not None and placed.broker not in placed.best:
            broken(f"{case.about}: {placed.broker} is not among the best, {list(placed.best)}")
        if not placed.why:
            broken(f"{case.about}: does not say why")
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
            if told(first) != told(self._place(case, names, {})) or told(first) != told(other):
                broken(f"{case.about}: answers otherwise")
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
    """Of those that choose where a bundle is cut."""

    kind = "split"

    def rules(self) -> Iterator[tuple[str, Rule]]:
        """Each with a sentence for people."""
        yield "positions lie strictly inside, ascending, each once; or it refuses with a hint", self._inside
        yield "the same answer whatever the order of the topics", self._same_for_any_order

    def _inside(self) -> str | None:
        seen = 0
        for about, bundle in topic_bundles():
            lower, upper = ends(bundle)
            found = list(positions_of(self._algorithm(), bundle))
            if not all(lower < place < upper for place in found):
                broken(f"{about}: {found} is not strictly inside {bundle.name}")
            if found != sorted(set(found)):
                broken(f"{about}: {found} is not ascending, each once")
            seen += len(found)
        return f"{seen} positions"

    def _same_for_any_order(self) -> str | None:
        for about, bundle in topic_bundles():
            turned = replace(bundle, topics=tuple(reversed(bundle.topics)))
            if list(positions_of(self._algorithm(), turned)) != list(positions_of(self._algorithm(), bundle)):
                broken(f"{about}: answers otherwise")
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
    """Where it cuts; nowhere, where it refuses as it should."""
    try:
        return algorithm.positions(bundle)
    except CannotSplitError:
        return ()


def _form(name: str, plan: Plan) -> str | None:
    if plan.strategy != name:
        return f"the plan is said to be of `{plan.strategy}`"
    if bool(plan.moves) != (plan.label is Label.SUCCESS):
        return f"{len(plan.moves)} moves and the label {plan.label}"
    if not plan.why or not all(move.why for move in plan.moves) or not all(left.why for left in plan.left):
        return "something is not explained"
    if not all(isfinite(move.load) and move.load >= 0 for move in plan.moves):
        return "the load of a move is negative or not finite"
    return None


def told(value: Any) -> str:
    """An answer as text; equal for equal answers, NaN included."""
    fields = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    return json.dumps(fields, sort_keys=True, default=_plain)


def _plain(value: object) -> object:
    return sorted(map(repr, value)) if isinstance(value, set | frozenset) else repr(value)


def broken(how: str) -> NoReturn:
    """Say that a rule is broken."""
    raise BrokenError(how)
