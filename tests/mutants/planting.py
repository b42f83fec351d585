"""Planting a bug in the core for a while.

The simulator's omniscient reader is spared, or a bent rule would bend what it is measured against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

from statechannel.sim.options import ENDS
from statechannel.sim.runs import SimCase, SimResult, run
from statechannel.sim.truth import Truth

Make = Callable[[Callable[..., Any]], Callable[..., Any]]
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class PlantMisfitError(Exception):
    """A planted bug does not fit the code any more; that it breaks shows nothing."""


class Patcher:
    """Replaces functions for as long as it is open."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._truth_reads = False
        judge = Truth.judge

        def spared(truth: Truth, record: Any) -> Any:
            self._truth_reads = True
            try:
                return judge(truth, record)
            finally:
                self._truth_reads = False

        self.put(Truth, "judge", spared)

    def bend(self, owner: Any, name: str, make: Make) -> None:
        """Replace `owner.name` by what `make` makes of it, for all but the omniscient reader."""
        original = getattr(owner, name)
        bent = make(original)
        if not _takes_arguments_of(bent, original):
            raise PlantMisfitError(f"{name}: it takes {signature(original)}, and what replaces it {signature(bent)}")

        def spared(*args: Any, **kwargs: Any) -> Any:
            return (original if self._truth_reads else bent)(*args, **kwargs)

        static = isinstance(owner.__dict__.get(name), staticmethod) if isinstance(owner, type) else False
        self._set(owner, name, staticmethod(spared) if static else spared)

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute by a value."""
        self._set(owner, name, value)

    def _set(self, owner: Any, name: str, value: Any) -> None:
        before = owner.__dict__[name]
        setattr(owner, name, value)
        self._stack.callback(setattr, owner, name, before)


def _takes_arguments_of(bent: Callable[..., Any], original: Callable[..., Any]) -> bool:
    parameters = signature(original).parameters.values()
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    named = {parameter.name: parameter for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY}
    try:
        signature(bent).bind(*positional, **named)
    except TypeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Plant:
    """A planted bug.

    Attributes:
        level: The simulator that has to catch it; or `interleavings`, whose search finds what is too rare in random runs.
        what: What is wrong, for people.
        end: The rare end of a run that shows it (an option of the engine's level); None: any run may.
        needs: An option of the engine's level without which no run shows it.
    """

    name: str
    level: str
    what: str
    bend: Callable[[Patcher], None]
    end: str | None = None
    needs: str | None = None

    def options(self) -> tuple[tuple[str, bool], ...]:
        """Options that make its end likely, without the other ends, and what it needs."""
        ends = () if self.end is None else tuple((end, end == self.end) for end in ENDS)
        return ends if self.needs is None else (*ends, (self.needs, True))


PLANTED: dict[str, Plant] = {}


def plant(
    level: str, what: str, *, end: str | None = None, needs: str | None = None
) -> Callable[[Callable[[Patcher], None]], Callable[[Patcher], None]]:
    """Register a bug under its function's name."""

    def register(bend: Callable[[Patcher], None]) -> Callable[[Patcher], None]:
        name = bend.__name__.strip("_").replace("_", "-")
        PLANTED[name] = Plant(name, level, what, bend, end, needs)
        return bend

    return register


def nothing(_: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does nothing any more."""
    return lambda *_args, **_kwargs: None


@contextmanager
def planted(name: str) -> Iterator[None]:
    """With this bug in place.

    Raises:
        ValueError: There is no such bug.
    """
    if name not in PLANTED:
        raise ValueError(f"there is no planted bug {name}; known are {', '.join(sorted(PLANTED))}")
    with ExitStack() as stack:
        PLANTED[name].bend(Patcher(stack))
        yield


def run_planted(name: str, case: SimCase, *, keep: bool = False) -> SimResult:
    """Run a case with this bug in place."""
    with planted(name):
        return run(case, keep=keep)
