"""One run of either level, from a seed to its result."""

from __future__ import annotations

import shlex
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from statechannel.sim.options import draw_engine
from statechannel.sim.protocol import ProtocolWorld
from statechannel.sim.protocol_options import draw_protocol
from statechannel.sim.trace import SimTrace
from statechannel.sim.violation import Violation
from statechannel.sim.world import SimWorld

PROTOCOL, ENGINE = "protocol", "engine"
LEVELS = (PROTOCOL, ENGINE)


@dataclass(frozen=True, slots=True)
class SimCase:
    """What to run; a case says everything, so the same case gives the same trace.

    Attributes:
        overrides: Options that differ from those that the seed draws.
        skip: Numbers of steps (protocol) or of planned faults and commands (engine) that are left out.
    """

    level: str
    seed: int
    overrides: tuple[tuple[str, Any], ...] = ()
    skip: frozenset[int] = frozenset()

    def options(self) -> Any:
        """The options of the run."""
        drawn: Any = draw_protocol(self.seed) if self.level == PROTOCOL else draw_engine(self.seed)
        return replace(drawn, **dict(self.overrides))

    def command(self, program: Sequence[str] = ("statechannel.sim",)) -> str:
        """The command that replays this case."""
        words = ["python", "-m", *program, "--level", self.level, "--seed", str(self.seed)]
        for name, value in self.overrides:
            words += ["--set", f"{name}={value}"]
        if self.skip:
            words += ["--skip", ranges(self.skip)]
        return shlex.join(words)


@dataclass(slots=True)
class SimResult:
    """What came of a run."""

    case: SimCase
    kind: str | None = None
    detail: str = ""
    digest: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    planned: int = 0


def run(case: SimCase, *, keep: bool = False) -> SimResult:
    """Run a case; a violation, or a crash of the code under test, is part of the result."""
    trace = SimTrace(keep=keep)
    result = SimResult(case, counts=trace.counts, lines=trace.lines)
    try:
        if case.level == PROTOCOL:
            protocol = ProtocolWorld(case.seed, case.options(), trace, case.skip)
            result.planned = protocol.options.steps
            protocol.run()
        else:
            world = SimWorld(case.seed, case.options(), trace, case.skip)
            try:
                world.run()
            finally:
                result.planned = world.faults.planned
    except Violation as violation:
        result.kind, result.detail = violation.kind, violation.detail
    except Exception as error:
        result.kind = f"crash {type(error).__name__}"
        result.detail = f"{error} at {traceback.format_exc(limit=-2).splitlines()[-3].strip()}"
    trace.add(f"ended: {result.kind} {result.detail}")
    result.digest = trace.digest
    return result


def parse_overrides(case: SimCase, words: list[str]) -> SimCase:
    """A case with `name=value` options applied.

    Raises:
        ValueError: No such option, or a value of the wrong type.
    """
    known = {one.name: type(getattr(case.options(), one.name)) for one in fields(case.options())}
    pairs = []
    for word in words:
        name, _, text = word.partition("=")
        if name not in known:
            raise ValueError(f"there is no option {name}; known are {', '.join(known)}")
        kind = known[name]
        pairs.append((name, text in ("1", "True", "true", "on") if kind is bool else kind(text)))
    return replace(case, overrides=(*case.overrides, *pairs))


def ranges(numbers: frozenset[int]) -> str:
    """`1-4,7`: numbers as ranges."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def parse_ranges(text: str) -> frozenset[int]:
    """Numbers from `1-4,7`.

    Raises:
        ValueError: Not of that form.
    """
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)


def parse_case(words: list[str]) -> SimCase:
    """A case from the words of a corpus line: `LEVEL SEED [name=value ...] [skip=RANGES]`.

    Raises:
        ValueError: Not of that form.
    """
    level, seed = words[0], int(words[1])
    if level not in LEVELS:
        raise ValueError(f"{level} is no level; known are {', '.join(LEVELS)}")
    case = SimCase(level, seed)
    for word in words[2:]:
        if word.startswith("skip="):
            case = replace(case, skip=parse_ranges(word.removeprefix("skip=")))
        else:
            case = parse_overrides(case, [word])
    return case
