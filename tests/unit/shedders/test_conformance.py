"""The conformance suite: ours keep every rule, and every rule catches who breaks it."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any, ClassVar

import pytest
from pydantic import Field

from shedders.conformance.checker import RuleFinding, conform
from shedders.conformance.clusters import cases, uneven
from shedders.conformance.rules import CYCLES
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import BundleMove, Label, Left, Placed, Plan, Reason
from shedders.model.strategy import PLACEMENT, SHEDDING, SPLIT, StrategySettings
from tests.support.strategies import declared

OURS = [
    (kind, name, where)
    for kind, group in (("shedding", SHEDDING), ("placement", PLACEMENT), ("split", SPLIT))
    for name, where in declared()[group].items()
]


def loaded(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


@cache
def findings_of(kind: str, name: str, where: str) -> Sequence[RuleFinding]:
    return conform(kind, name, loaded(where), hashes=False)  # property/test_shedders_hash_seed.py tries those of all


@pytest.mark.parametrize(("kind", "name", "where"), OURS, ids=[f"{kind}-{name}" for kind, name, _ in OURS])
def test_ours_keep_every_rule(kind: str, name: str, where: str) -> None:
    findings = findings_of(kind, name, where)
    assert [(finding.rule, finding.how) for finding in findings if not finding.passed] == []
    assert len(findings) >= 5


def test_the_suite_sees_moves() -> None:
    """A suite on which nothing ever moves would pass whatever is wrong."""
    movers = set()
    for kind, name, where in OURS:
        if kind == "shedding":
            findings = findings_of(kind, name, where)
            how = next(
                finding.how
                for finding in findings
                if finding.rule.startswith("its plans are consistent and have reasons")
            )
            movers |= {name} if int(how.split()[0]) else set()
    assert movers == {name for kind, name, _ in OURS if kind == "shedding"}


class Settings(StrategySettings):
    """Of the strategies here."""

    share: float = Field(default=0.5, ge=0, description="Not used.")


class Mine:
    """What every strategy has."""

    name: ClassVar[str] = "mine"
    Settings: ClassVar[type[StrategySettings]] = Settings

    def __init__(self, settings: StrategySettings) -> None:
        self.settings = settings


class Good(Mine):
    """Moves the first bundle of the broker with most to the one with fewest, if both have a sound report."""

    def plan(self, cluster: Cluster, memory: Mapping[str, Any]) -> Plan:
        del memory
        left = [Left(name, "blind", "no sound report") for name in cluster.broker_names if not self.sees(cluster, name)]
        names = [name for name in cluster.broker_names if self.sees(cluster, name)]
        if cluster.safe is not None or len(names) < 2:
            return Plan(self.name, Label.SKIP, Reason.NO_BROKERS, "nobody to choose from", left=left)
        names.sort(key=lambda name: (len(cluster.bundles_of[name]), name))
        open_ = [name for name in names if cluster.brokers[name].accepting and name not in cluster.policies.cordons]
        for bundle in cluster.bundles_of[names[-1]]:
            if open_[:1] not in ([], names[-1:]) and self.may_go(cluster, bundle):
                move = BundleMove(bundle.name, names[-1], open_[0], Reason.OVERLOADED, 1.0, "most to fewest")
                return Plan(self.name, Label.SUCCESS, Reason.OVERLOADED, "one goes", [move], left)
        return Plan(self.name, Label.SKIP, Reason.NO_BUNDLES, "none may go", left=left)

    def sees(self, cluster: Cluster, name: str) -> bool:
        broker = cluster.brokers[name]
        load = broker.load
        return load is not None and 0 <= load.cpu.usage < 1e9 and not broker.load_lapsed and broker.load_age_s < 60

    def may_go(self, cluster: Cluster, bundle: Bundle) -> bool:
        policies = cluster.policies
        return not (
            bundle.in_flight
            or bundle.name in cluster.recent.bundles
            or bundle.name in policies.pins
            or bundle.namespace in policies.excluded
            or not bundle.averages.short.msg_rate >= 0
        )


def broken_rules(strategy: type[Any], kind: str = "shedding") -> list[str]:
    return [
        finding.rule.split(",")[0] for finding in conform(kind, "mine", strategy, hashes=False) if not finding.passed
    ]


def test_a_good_stranger_passes() -> None:
    assert broken_rules(Good) == []


def variant(**members: Any) -> type[Any]:
    return type("Variant", (Good,), {"__doc__": "Good.", **members})


def after(change: Callable[[Plan, Cluster, Any], Plan]) -> type[Any]:
    """Good, with another plan."""
    return variant(plan=lambda self, cluster, memory: change(Good.plan(self, cluster, memory), cluster, memory))


class Silent(StrategySettings):
    share: float = 0.5


def writing(plan: Plan, cluster: Cluster, memory: Any) -> Plan:
    memory["mine"] = 1
    return plan


CALLS = itertools.count()


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (variant(name="other"), "its name is that of its entry point"),
        (variant(Settings=Silent), "its settings have descriptions and reject unknown names"),
        (
            after(lambda plan, *_: replace(plan, moves=[*plan.moves, *plan.moves])),
            "its plans are consistent and have reasons",
        ),
        (after(lambda plan, *_: replace(plan, why="")), "its plans are consistent and have reasons"),
        (variant(sees=lambda *_: True), "it moves nothing from or to brokers without valid load"),
        (variant(may_go=lambda self, cluster, bundle: not bundle.in_flight), "it moves no bundle that must stay"),
        (
            after(lambda plan, cluster, _: replace(plan, why=f"first: {next(iter(cluster.bundles), 'none')}")),
            "its answers are repeatable",
        ),
        (after(lambda plan, *_: replace(plan, stats={"seen": float(next(CALLS))})), "its answers are repeatable"),
        (after(writing), "it changes neither the cluster nor the memory that is passed to it"),
        (
            after(lambda plan, *_: replace(plan, memory={"seen": {1, 2}})),
            f"its memory survives JSON over {CYCLES} cycles",
        ),
        (
            after(lambda plan, _, memory: replace(plan, memory={"hits": memory.get("hits", 0) + 1})),
            "it tolerates a foreign memory",
        ),
    ],
)
def test_each_rule_catches_who_breaks_it(broken: type[Any], rule: str) -> None:
    assert rule in broken_rules(broken)


class First(Mine):
    """Takes the first candidate."""

    def choose(self, cluster: Cluster, candidates: Sequence[str]) -> str | None:
        return min(candidates, default=None)

    def place(
        self,
        cluster: Cluster,
        bundle: Bundle,
        candidates: Sequence[str],
        booked: Mapping[str, Sequence[str]],
        memory: Mapping[str, Any],
    ) -> Placed:
        chosen = self.choose(cluster, candidates)
        return Placed(bundle.name, chosen, "the first", () if chosen is None else (chosen,), memory=memory)


class Elsewhere(First):
    """Takes the first of all."""

    def choose(self, cluster: Cluster, candidates: Sequence[str]) -> str | None:
        return min(cluster.broker_names, default=None)


class InOrder(First):
    """Takes the first in the dictionary."""

    def choose(self, cluster: Cluster, candidates: Sequence[str]) -> str | None:
        return next((name for name in cluster.brokers if name in candidates), None)


class Counting(First):
    """Reads what is on its way, and trips over it."""

    def place(self, cluster: Cluster, bundle: Bundle, candidates: Any, booked: Any, memory: Any) -> Placed:
        sum(cluster.bundles[name].averages.short.msg_rate for names in booked.values() for name in names)
        return super().place(cluster, bundle, candidates, booked, memory)


def test_placements_are_tried_too() -> None:
    assert broken_rules(First, "placement") == []
    assert "it names one of the candidates or no broker" in broken_rules(Elsewhere, "placement")
    assert "without candidates it names no broker" in broken_rules(Elsewhere, "placement")
    assert broken_rules(InOrder, "placement") == ["its answers are repeatable"]
    assert broken_rules(Counting, "placement") == ["it counts or ignores bundles in flight to a broker"]


class Middle(Mine):
    """Cuts at the topics in the middle."""

    def positions(self, bundle: Bundle) -> Sequence[int]:
        return [topic.position for topic in bundle.topics]


def test_split_algorithms_are_tried_too() -> None:
    expected = ["its positions lie strictly inside", "its answers do not depend on the order of topics"]
    assert broken_rules(Middle, "split") == expected


def test_impure_modules_are_found_by_what_they_import(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "impure_strategy.py").write_text(
        "import random\nfrom shedders.split.algorithms import SplitRange\n\n\n"
        'class Impure(SplitRange):\n    """Cuts anywhere."""\n\n    name = "impure"\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    findings = conform("split", "impure", loaded("impure_strategy:Impure"), hashes=False)
    assert [finding.how for finding in findings if not finding.passed] == ["its module imports random"]


def test_the_same_answers_whatever_the_hash_seed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hashing_strategy.py").write_text(
        "from shedders.split.algorithms import SplitRange\n\n\n"
        'class Hashing(SplitRange):\n    """Cuts where the hash of the name says."""\n\n    name = "hashing"\n\n'
        "    def positions(self, bundle):\n        found = super().positions(bundle)\n"
        "        return [one - hash(bundle.name) % 99_991 for one in found if one > 99_999]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    findings = conform("split", "hashing", loaded("hashing_strategy:Hashing"))
    assert "its answers do not depend on the hash seed" in [finding.rule for finding in findings if not finding.passed]


def test_the_clusters_are_what_they_say() -> None:
    names = [case.about for case in cases()]
    assert len(names) == len(set(names)) >= 25
    base = uneven()
    rates = [base.brokers[name].load.msg_rate for name in base.broker_names]  # type: ignore[union-attr]
    assert rates[0] > 2 * max(rates[1:])
    assert rates[-1] == 0
