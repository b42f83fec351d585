"""Replays a seed; from a failing one to a small trace: options switched off one at a time, a shorter run, fewer steps."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Protocol

from rich.console import Console

from statechannel.sim.runs import SimCase, SimResult, run

_SMALLER = {
    "steps": 40,
    "duration_s": 10,
    "brokers": 2,
    "members": 2,
    "partitions": 1,
    "namespaces": 1,
    "bundles": 1,
    "copies": 1,
}


class Run(Protocol):
    """Runs a case; `statechannel.sim.runs.run` does."""

    def __call__(self, case: SimCase, *, keep: bool = False) -> SimResult:
        """The result; `keep` its trace."""
        ...


class Shrinker:
    """Tries smaller cases for as long as they fail in the same way."""

    def __init__(self, result: SimResult, limit_s: float, tries_max: float, run: Run) -> None:
        self.best = result
        self._run = run
        self.tries = 0
        self._tries_max = tries_max
        self._until_s = time.monotonic() + limit_s

    @property
    def _is_over(self) -> bool:
        return self.tries >= self._tries_max or time.monotonic() > self._until_s

    def _fails(self, case: SimCase) -> bool:
        if self._is_over:
            return False
        self.tries += 1
        result = self._run(case)
        if result.kind != self.best.kind:
            return False
        self.best = result
        return True

    def shrink(self) -> SimResult:
        """The smallest failing case found, run once more with its trace kept."""
        before = None
        while before != self.best.case and not self._is_over:
            before = self.best.case
            for case in self._with_options():
                self._fails(case)
            self._drop_steps()
        return self._run(self.best.case, keep=True)

    def _with_options(self) -> Iterator[SimCase]:
        for one in fields(self.best.case.options()):
            value = getattr(self.best.case.options(), one.name)
            if value is True:
                yield self._set(one.name, value=False)
            elif one.name in _SMALLER and value > _SMALLER[one.name]:
                yield self._set(one.name, value=_SMALLER[one.name])
                yield self._set(one.name, value=max(_SMALLER[one.name], value // 2))
                yield self._set(one.name, value=max(_SMALLER[one.name], value * 3 // 4))

    def _set(self, name: str, *, value: object) -> SimCase:
        case = self.best.case
        kept = tuple(pair for pair in case.overrides if pair[0] != name)
        return replace(case, overrides=(*kept, (name, value)))

    def _drop_steps(self) -> None:
        size = max(1, self.best.planned // 2)
        while size >= 1 and not self._is_over:
            start = 0
            while start < self.best.planned:
                block = frozenset(range(start, min(start + size, self.best.planned)))
                if not block <= self.best.case.skip:
                    self._fails(replace(self.best.case, skip=self.best.case.skip | block))
                start += size
            size //= 2


def shrink(result: SimResult, limit_s: float, tries_max: float = math.inf, *, run: Run = run) -> SimResult:
    """Make a failing case small, within a time limit and a number of runs."""
    return Shrinker(result, limit_s, tries_max, run).shrink()


def replay(
    case: SimCase,
    console: Console,
    *,
    run: Run = run,
    program: Sequence[str] = ("statechannel.sim",),
    shrink_limit_s: float | None = None,
    quiet: bool = False,
) -> int:
    """Run one case and print its trace; the exit code is 1 if an invariant was broken.

    Args:
        program: Module, and arguments that belong to it, in the command that is printed for a failure.
        shrink_limit_s: Make a failing case smaller for this time; None: do not.
        quiet: No trace.
    """
    console.print(f"options: {case.options()}", highlight=False, markup=False)
    result = run(case, keep=True)
    if result.kind is not None and shrink_limit_s is not None and not case.overrides and not case.skip:
        console.print(f"fails with {result.kind}; making it smaller ...")
        result = shrink(result, shrink_limit_s, run=run)
        console.print(f"options: {result.case.options()}", highlight=False, markup=False)
    if not quiet:
        for line in result.lines:
            sys.stdout.write(line + "\n")
    sys.stdout.write(f"trace digest {result.digest}\n")
    if result.kind is None:
        console.print("no violation")
        return 0
    console.print(f"VIOLATION {result.kind}: {result.detail}", highlight=False, markup=False)
    console.print(f"replay: {result.case.command(program)}", highlight=False, markup=False)
    return 1
