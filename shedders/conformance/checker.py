"""Conformance suite of strategies: `statechannel strategy check NAME`, or `conform` in a test.

The rules are those of design/writing-a-strategy.md; each is tried on all clusters of `shedders.conformance.clusters`.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from pydantic import ValidationError

from shedders.conformance.clusters import cases, topic_bundles
from shedders.conformance.rules import (
    BrokenError,
    ConformanceRules,
    PlacementRules,
    Rule,
    SheddingRules,
    SplitRules,
    answer_text,
    broken,
    positions_of,
)
from shedders.model.strategy import Placing, SplitAlgorithm, StrategySettings, find, instantiate, shedding_maker

IMPURE = frozenset(
    {"asyncio", "datetime", "os", "random", "secrets", "socket", "subprocess", "threading", "time", "uuid"}
)
_HASH_SEEDS = ("1", "4242")
_HASH_TIMEOUT_S = 120.0
_RULES: dict[str, type[ConformanceRules]] = {rules.kind: rules for rules in (SheddingRules, PlacementRules, SplitRules)}


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """Result of one rule.

    Attributes:
        how: How the rule was broken, or what was tried if it passed.
    """

    kind: str
    rule: str
    passed: bool
    how: str


def conform(
    kind: str, name: str, strategy_class: type[Any] | None = None, *, hashes: bool = True
) -> Sequence[RuleFinding]:
    """Check all rules on a strategy.

    Args:
        kind: `shedding`, `placement` or `split`.
        strategy_class: Class of the strategy; None: the installed one of that name.
        hashes: Also run it in processes with other hash seeds.

    Raises:
        UnknownStrategyError: The name is unknown.
        StrategyFailedError: It cannot be imported, or lacks a part of its port.
    """
    strategy = find(kind, name) if strategy_class is None else strategy_class
    common = _Common(kind, name, strategy)
    rules: list[tuple[str, Rule]] = [
        ("its name is that of its entry point, and it has a docstring", common.naming),
        ("its settings have descriptions and reject unknown names", common.settings),
        ("it does no I/O, and uses neither clocks nor random numbers", common.pure),
        *_RULES[kind](name, strategy).rules(),
    ]
    if hashes:
        rules.append(("its answers do not depend on the hash seed", common.other_hash_seeds))
    return [_tried(kind, rule, attempt) for rule, attempt in rules]


def _tried(kind: str, rule: str, attempt: Rule) -> RuleFinding:
    try:
        how = attempt()
    except BrokenError as error:
        return RuleFinding(kind, rule, False, str(error))
    except Exception as error:
        return RuleFinding(kind, rule, False, f"raises {error!r}")
    return RuleFinding(kind, rule, True, how or "")


def answers(kind: str, strategy: type[Any]) -> list[Any]:
    """Answers of a strategy to all cases, as JSON values: the same in any process."""
    settings = strategy.Settings()
    results: list[Any] = []
    if kind == "split":
        algorithm = cast("SplitAlgorithm", instantiate(kind, strategy, settings))
        return [[about, list(positions_of(algorithm, bundle))] for about, bundle in topic_bundles()]
    for case in cases():
        if kind == "shedding":
            results.append([case.about, answer_text(shedding_maker(strategy, settings)(None).plan(case.cluster, {}))])
        else:
            placing = cast("Placing", instantiate(kind, strategy, settings))
            bundle = next(iter(case.cluster.bundles.values()), None)
            if bundle is not None:
                results.append(
                    [case.about, answer_text(placing.place(case.cluster, bundle, case.cluster.broker_names, {}, {}))]
                )
    return results


class _Common:
    """Rules of all kinds of strategies."""

    def __init__(self, kind: str, name: str, strategy: type[Any]) -> None:
        self._kind = kind
        self._name = name
        self._found = strategy

    def other_hash_seeds(self) -> str | None:
        """Compare with answers from other processes."""
        here = _digest(answers(self._kind, self._found))
        where = f"{self._found.__module__}:{self._found.__qualname__}"
        for seed in _HASH_SEEDS:
            command = [sys.executable, "-m", "shedders.conformance.checker", self._kind, where]
            ended = subprocess.run(
                command,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                timeout=_HASH_TIMEOUT_S,
                check=False,
            )
            if ended.returncode:
                broken(f"fails with PYTHONHASHSEED={seed}: {ended.stderr.strip().splitlines()[-1:]}")
            if ended.stdout.strip() != here:
                broken(f"answers differ with PYTHONHASHSEED={seed}")
        return "two other seeds"

    def naming(self) -> str | None:
        if self._found.name != self._name:
            broken(f"its name is `{self._found.name}`, installed as `{self._name}`")
        if not inspect.getdoc(self._found):
            broken("its class has no docstring")
        return "as its entry point"

    def settings(self) -> str | None:
        model = self._found.Settings
        if not (isinstance(model, type) and issubclass(model, StrategySettings)):
            broken("Settings is not a StrategySettings")
        silent = [name for name, field in model.model_fields.items() if not field.description]
        if silent:
            broken(f"settings without a description: {', '.join(silent)}")
        instantiate(self._kind, self._found, model())
        try:
            model.model_validate({"no_such_setting": 1})
        except ValidationError:
            return f"{len(model.model_fields)} settings"
        raise BrokenError("an unknown setting is accepted")

    def pure(self) -> str | None:
        try:
            tree = ast.parse(inspect.getsource(inspect.getmodule(self._found) or self._found))
        except (OSError, TypeError):
            return "its source is not available"
        seen = {
            alias.name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        seen |= {(node.module or "").partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        if seen & IMPURE:
            broken(f"its module imports {', '.join(sorted(seen & IMPURE))}")
        return "by what its module imports"


def _digest(results: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()


def _main(kind: str, where: str) -> None:
    """Entry point of a process with another hash seed."""
    module, _, name = where.partition(":")
    sys.stdout.write(_digest(answers(kind, getattr(import_module(module), name))) + "\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
