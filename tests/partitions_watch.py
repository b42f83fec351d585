"""The autopilot through 30 days with failures, and with each of its rules broken: `python -m tests.partitions_watch`.

    python -m tests.partitions_watch --days 30 --seeds 20      # nothing may be wrong
    python -m tests.partitions_watch --planted                 # each planted fault must be noticed

Shows for each seed what was moved, and the fullest disk as a multiple of the mean in the second half of the time, beside the same
world without the autopilot. Ends with 1 where something is wrong, or a planted fault was not noticed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, Final
from unittest.mock import patch

from shedders.kafka_rebalance.execution.values import Key
from shedders.kafka_rebalance.watch import core, holds, watcher
from shedders.kafka_rebalance.watch.holds import HoldCode, HoldStage
from shedders.kafka_rebalance.watch.topic import WatchBook
from shedders.kafka_rebalance.watch.values import Spending, WatchState
from shedders.kafka_rebalance.watch.watcher import WatchEventKind
from tests.support.watch_world import GB, SETTINGS, World, live

SEEDS_MAX: Final = 6
DAYS: Final = 30
TIGHT: Final = SETTINGS.model_copy(update={"budget_bytes": 60 * GB, "quiet": ["10:00-20:00"]})
"""Plans that fill the budget, and that a quiet time interrupts for many hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFigures:
    """What a run shows."""

    seed: int
    faults: tuple[str, ...]
    moved: int
    starts: int
    resumes: int
    copied_bytes: float
    fullest: float
    fullest_without: float
    kinds: frozenset[WatchEventKind]


def measured(seed: int, days: int = DAYS) -> WatchFigures:
    """One seed, with the autopilot and without."""
    world, lives = live(seed, days=days)
    alone, _ = live(seed, days=days, watchers=0)
    return WatchFigures(
        seed=seed,
        faults=tuple(world.faults),
        moved=world.moved,
        starts=world.starts,
        resumes=world.resumes,
        copied_bytes=world.copied_bytes,
        fullest=_second_half(world),
        fullest_without=_second_half(alone),
        kinds=frozenset(event.kind for one in lives for event in one.events),
    )


def _second_half(world: World) -> float:
    return mean(world.spreads[len(world.spreads) // 2 :])


# --- planted faults ---------------------------------------------------------------------------------------------------

Bend = Callable[[], Any]


def _without(*codes: HoldCode) -> Any:
    rules = tuple(replace(rule, check=lambda _view: None) if rule.code in codes else rule for rule in holds.HOLDS)
    return patch.object(holds, "HOLDS", rules)


def _nothing_rests() -> Any:
    return patch.object(WatchState, "resting", lambda *_: frozenset[Key]())


def _budget_unbounded() -> Any:
    return patch.object(WatchState, "left_bytes", lambda *_: 2**60)


def _spent_at_the_start() -> Any:
    def spend(**facts: Any) -> Spending:
        return Spending(**{**facts, "to_ms": facts["from_ms"]})

    return patch.object(core, "Spending", spend)


def _memory_lost() -> Any:
    original = WatchState.from_json

    def forgetful(document: Mapping[str, Any]) -> WatchState:
        return replace(original(document), spent=(), moved={})

    return patch.object(WatchState, "from_json", forgetful)


def _resumes_at_once() -> Any:
    original = core.first_hold

    def careless(view: Any, stages: Any) -> Any:
        checked = [stage for stage in stages if view.state.execution is None or stage is not HoldStage.HEALTH]
        return original(view, checked)

    return patch.object(core, "first_hold", careless)


def _never_pauses() -> Any:
    return patch.object(core, "_drive", lambda view, _execution: core.WatchStep(state=view.state))


def _nobody_alive() -> Any:
    return patch.object(WatchBook, "alive", lambda *_: None)


def _old_generations_write() -> Any:
    original = WatchBook._take_state

    def gullible(
        self: WatchBook, offset: int, at_ms: int, who: Any, generation: int, packed: str, *, left: bool
    ) -> None:
        newest = generation if self.holder is None else max(generation, self.holder.generation)
        original(self, offset, at_ms, who, newest, packed, left=left)

    return patch.object(WatchBook, "_take_state", gullible)


def _starts_before_it_writes() -> Any:
    original = watcher.PartitionWatcher._write

    def late(self: watcher.PartitionWatcher, now_ms: int, state: WatchState) -> None:
        begun = state.execution is not None and state.execution.began_at_ms == now_ms
        original(self, now_ms, replace(state, execution=None, spent=state.spent[:-1], moved={}) if begun else state)

    return patch.object(watcher.PartitionWatcher, "_write", late)


PLANTED: Final[Mapping[str, tuple[str, Bend]]] = {
    "nothing-rests": ("partitions that were moved may move again at once", _nothing_rests),
    "budget-unbounded": ("the budget is not looked at", _budget_unbounded),
    "spent-at-the-start": ("a plan leaves the window a window after its start, not after its end", _spent_at_the_start),
    "memory-lost": ("what was spent and moved is not kept in the topic", _memory_lost),
    "starts-before-it-writes": ("a plan starts before the topic has it", _starts_before_it_writes),
    "under-replication-ignored": (
        "it acts while partitions are under-replicated",
        lambda: _without(HoldCode.UNDER_REPLICATED, HoldCode.CALMING),
    ),
    "outages-ignored": (
        "it acts while brokers are missing",
        lambda: _without(HoldCode.MASS_OUTAGE, HoldCode.BROKERS_MISSING, HoldCode.UNDER_REPLICATED, HoldCode.CALMING),
    ),
    "quiet-ignored": ("it starts plans in quiet times", lambda: _without(HoldCode.QUIET)),
    "never-pauses": ("a plan goes on in quiet times", _never_pauses),
    "resumes-at-once": ("a plan is continued whatever the cluster's health", _resumes_at_once),
    "nobody-alive": ("a watcher takes over from one that lives", _nobody_alive),
    "old-generations-write": ("a watcher that was replaced may still write", _old_generations_write),
}

NEEDS_TIGHT: Final = frozenset({"spent-at-the-start", "budget-unbounded"})


@contextmanager
def planted(name: str) -> Iterator[None]:
    """With a rule broken."""
    with PLANTED[name][1]():
        yield


def noticed(name: str, *, days: int = DAYS, seeds: int = SEEDS_MAX) -> tuple[int, str] | None:
    """The first seed that shows a planted fault, with what it shows; None: none of them does."""
    for seed in range(1, seeds + 1):
        with planted(name):
            try:
                world, _ = live(seed, days=days, settings=TIGHT if name in NEEDS_TIGHT else SETTINGS, until_fault=True)
            except AssertionError as error:
                return seed, f"assertion: {error}"
        if world.faults:
            return seed, world.faults[0]
    return None


def main(arguments: list[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.partitions_watch", description=__doc__)
    parser.add_argument("--days", type=int, default=DAYS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--planted", action="store_true")
    asked = parser.parse_args(arguments)
    wrong = 0
    if asked.planted:
        for name, (what, _) in PLANTED.items():
            seen = noticed(name, days=asked.days)
            wrong += seen is None
            print(f"{name:28} {what:75} {'NOT NOTICED' if seen is None else f'seed {seen[0]}: {seen[1]}'}", flush=True)
        return min(wrong, 1)
    for seed in range(asked.seed, asked.seed + asked.seeds):
        figures = measured(seed, asked.days)
        wrong += bool(figures.faults) or figures.fullest >= figures.fullest_without
        print(
            f"seed {seed:4}: {figures.starts:3} plans, {figures.resumes:3} resumed, {figures.moved:4} moved, "
            f"{figures.copied_bytes / 1e9:6.0f} GB; fullest {figures.fullest:.3f}, without {figures.fullest_without:.3f}; "
            f"{'; '.join(figures.faults[:3]) or 'nothing wrong'}",
            flush=True,
        )
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
