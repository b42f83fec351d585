"""What each mechanism of the default strategy is worth: drawn scenarios with all of them, and without each.

`python -m tests.bench ablation --draw SEED --count N`; scenarios are drawn as by `statechannel simulate generate`. A mechanism is
kept if more than `MORE_THAN` scenarios need it: without it they are less even by `EVENNESS` of max/bound, or their churn
(load moved or split) is larger by `CHURN` of it.
"""

import inspect
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from shedders.contest.comparison import MOVED_EQUAL
from shedders.contest.contenders import OURS, contender
from shedders.contest.generator import generated
from shedders.contest.outcome import ContestRun, Measures, RunResult, TraceSource
from shedders.contest.runner import play_here, run_all
from shedders.contest.sources import chosen_scenarios

EVENNESS: Final = 0.02
CHURN: Final = 0.1
MORE_THAN: Final = 2
PACKAGE: Final = "shedders.weighted_move"


class Part(NamedTuple):
    """A mechanism or constant of the strategy; `off` is the constant's value without it."""

    name: str
    module: str
    constant: str
    off: Any


PARTS: Final[Sequence[Part]] = (
    Part("noise in the tolerance", "memory", "SAFETY", 0.0),
    Part("readings smoothed", "memory", "SMOOTHED", 1),
    Part("new load where many bundles came or went", "memory", "PLACED", 1e9),
    Part("a way back is dear", "cycle", "BACK", 0.0),
    Part("moving on is dear", "cycle", "AGAIN", 0.0),
    Part("others' moves settle", "cycle", "SETTLED_S", 0.0),
    Part("a fixed cost of a move", "search", "MOVE_COST", 1e-6),
    Part("namespaces are spread", "search", "SPREAD", 0.0),
    Part("exchanges", "search", "EXCHANGED", 0),
    Part("a split is dear", "search", "SPLIT_PAID", 1.0),
    Part("jumps and witnesses", "evidence", "SURE", 1e9),
    Part("witnesses", "evidence", "WITNESSES", 2),
    Part("averages that jump", "evidence", "STEADY", 1e9),
    Part("peaks", "evidence", "AT_PEAK", 2.0),
    Part("capacities are raised", "evidence", "RAISE", 1.0),
    Part("direct memory", "direct_memory", "SCARCE", 1e9),
)


def run(draw: int, count: int, jobs: int = 1) -> Sequence[Any]:
    """Print the table of all parts; there are no figures to be kept."""
    with tempfile.TemporaryDirectory(prefix="statechannel-bench-") as folder:
        files = [Path(folder) / f"{number}.toml" for number in range(1, count + 1)]
        for number, file in enumerate(files, 1):
            file.write_bytes(generated(draw, number))
        print("\n".join(table(chosen_scenarios(map(str, files)), PARTS, jobs)))
    return ()


def table(sources: Sequence[TraceSource], parts: Sequence[Part], jobs: int = 1) -> Iterator[str]:
    """Lines of a Markdown table: all parts, then without each of them."""
    names = [OURS, *(part.name for part in parts)]
    runs = [ContestRun(source, 1, replace(contender(OURS), name=name)) for source in sources for name in names]
    off = {part.name: part for part in parts}
    rans = run_all(runs, jobs=jobs, keeps_series=lambda _: False, play=partial(play_without, off))
    measures = {name: [_measures(ran) for ran in rans if ran.run.contender.name == name] for name in names}
    worse = f"max/bound worse, better by {EVENNESS:g} | churn more, less by {CHURN:.0%}"
    yield f"| without | max/bound, mean of {len(sources)} | churn, mean | {worse} | kept |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, without in measures.items():
        means = f"{fmean(m.max_over_bound for m in without):.3f} | {fmean(m.churn_share for m in without):.0%}"
        pairs = list(zip(measures[OURS], without, strict=True))
        even = [(after.max_over_bound - before.max_over_bound) / EVENNESS for before, after in pairs]
        churn = [_more(before.churn_share, after.churn_share) / CHURN for before, after in pairs]
        needed = max(sum(change >= 1 for change in changes) for changes in (even, churn)) > MORE_THAN
        counts = [f"{sum(by >= 1 for by in changes)}, {sum(by <= -1 for by in changes)}" for changes in (even, churn)]
        rest = " | | |" if name == OURS else f" {' | '.join(counts)} | {'yes' if needed else 'no'} |"
        yield f"| {'nothing' if name == OURS else name} | {means} |{rest}"


def _measures(ran: RunResult) -> Measures:
    if ran.outcome is None:
        sys.exit(f"{ran.run.title}: {ran.error}")
    return ran.outcome.measures


def _more(before: float, after: float) -> float:
    """In parts of what it was before; 0 for what makes no difference in practice."""
    return 0.0 if abs(after - before) <= MOVED_EQUAL else (after - before) / max(before, MOVED_EQUAL)


def play_without(parts: Mapping[str, Part], run: ContestRun) -> RunResult:
    """Execute a run without the part that its contender is named after."""
    if run.contender.name not in parts:
        return play_here(run)
    with switched_off(parts[run.contender.name]):
        return play_here(run)


@contextmanager
def switched_off(part: Part) -> Iterator[None]:
    """Replace the constant in its module, and in those of the strategy that have imported it by name."""
    import_module(f"{PACKAGE}.strategy")  # with all its modules: what is imported meanwhile would keep `off`
    module, name = import_module(f"{PACKAGE}.{part.module}"), part.constant
    usual = getattr(module, name)
    loaded = [other for where, other in sys.modules.items() if where.startswith(PACKAGE) and hasattr(other, name)]
    importers = [other for other in loaded if not re.search(rf"^{name}\b", inspect.getsource(other), re.MULTILINE)]
    for user in (module, *importers):
        setattr(user, name, part.off)
    try:
        yield
    finally:
        for user in (module, *importers):
            setattr(user, name, usual)
