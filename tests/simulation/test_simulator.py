"""The simulator in each test run: old failures, some seeds within a time, planted bugs, determinism."""

import math
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.engine.lease import Lease
from statechannel.sim.checks import Forgeries, SimChecks
from statechannel.sim.runs import (
    ENGINE,
    LEVELS,
    PROTOCOL,
    SeedTally,
    SimCase,
    SimResult,
    parse_overrides,
    parse_ranges,
    ranges,
    run,
    shrink,
)
from statechannel.sim.trace import Violation
from tests.mutants import PLANTED, Patcher, Plant, PlantMisfitError, planted, run_planted
from tests.mutants.hunt import catch
from tests.support.waits import WAIT_S

CORPUS = Path(__file__).with_name("corpus.txt")
EXPLORED_FROM = os.environ.get("SIMULATION_FIRST_SEED")
SEEDS_S = {PROTOCOL: 4.0, ENGINE: 8.0} if EXPLORED_FROM is None else {PROTOCOL: 10.0, ENGINE: 20.0}
SEEDS_MIN = 5
"""Runs at least, however slow the machine is."""


def corpus() -> list[SimCase]:
    lines = [line.partition("#")[0].split() for line in CORPUS.read_text().splitlines()]
    return [case_of(*words) for words in lines if words]


def case_of(level: str, seed: str, *options: str) -> SimCase:
    """A line of the corpus: `LEVEL SEED [name=value ...] [skip=RANGES]`."""
    assert level in LEVELS
    skipped = [option.removeprefix("skip=") for option in options if option.startswith("skip=")]
    case = SimCase(level, int(seed), skip=parse_ranges(",".join(skipped)))
    return parse_overrides(case, [option for option in options if not option.startswith("skip=")])


def explain(result: SimResult) -> str:
    return f"{result.kind}: {result.detail}\nreplay: {result.case.command()}"


@pytest.mark.parametrize("case", corpus(), ids=lambda case: f"{case.level}-{case.seed}")
def test_old_failure(case: SimCase) -> None:
    result = run(case)
    assert result.kind is None, explain(result)


@pytest.mark.parametrize("level", LEVELS)
def test_seeds(level: str, record_property) -> None:
    """The same seeds in each run of the suite, for a bounded time; `make explore` begins elsewhere."""
    first = int(EXPLORED_FROM or "1")
    tally = SeedTally(next_seed=first)
    until_s = time.monotonic() + SEEDS_S[level]
    while time.monotonic() < until_s or tally.runs < SEEDS_MIN:
        result = run(SimCase(level, tally.next_seed))
        assert result.kind is None, explain(result)
        tally.add([result])
    record_property(f"{level} seeds", f"{tally.runs} from {first}")
    assert tally.counts[level]["joins completed"] > 0


FAST = {
    "base-unchecked": 0, "children-at-version-one": 0, "covers-ignored": 0, "duplicate-taken-for-clean": 0,
    "gap-ignored": 1, "paid-by-too-little": 0, "version-reset": 0, "no-assert-paid": 1,
    "resumed-at-the-same-generation": 1, "serving-before-the-verdict": 0, "stale-owner-on-time-out": 0,
    "repair-died": 3, "reaction-lost-at-the-switch": 2, "election-not-tied-to-the-loop": 1,
    "seat-kept-without-the-channel": 7, "no-offset-read-as-zero": 3, "followed-while-joining": 0,
    "stream-goes-on-when-read-anew": 15, "any-age-believed": 4, "log-not-believed": 1, "debts-left-for-the-tick": 1,
    "any-bytes-are-a-mark": 0, "lenient-once-started-over": 7, "left-while-joining": 141, "cold-start-of-its-own": 100,
    "newer-format-ignored": 13, "heartbeat-not-awaited": 0, "one-lane": 1, "debts-left-while-one-joins": 4,
    "parts-let-go-in-a-split": 9,
    "writes-to-the-end": 0, "lost-owner-named": 19, "cold-start-at-the-same-versions": 1,
    "number-taken-from-kafka": 0, "other-numbers-ignored": 0, "every-gap-is-compaction": 6, "no-gap-is-compaction": 0,
    "observer-trusts-the-silent": 20, "observer-announces-itself": 0,
}  # fmt: skip
"""The first seed that shows it; where a change moves that, one of those behind it has to."""


@pytest.mark.parametrize("name", FAST)
def test_planted_bug_is_caught(name: str) -> None:
    seeds, kind = catch(name, seeds_max=20, first=FAST[name])
    assert seeds, f"{name} ({PLANTED[name].what}) was not caught"
    assert kind


RARE = {
    "mark-ignored": 6,
    "equal-version-taken": 2,
    "lost-head-joined": 3,
    "head-not-restated": 0,
    "head-marked-at-once": 0,
    "unread-deletion-forgets": 6,
    "unread-deletion-is-all": 6,
    "views-not-compared": 0,
    "voucher-not-compared": 3,
    "no-deputy": 17,
    "heard-though-it-serves-nothing": 48,
    "no-probes": 8,
    "place-kept-unheard": 17,
    "shutdown-leaves-bundles": 3,
}
"""One of many seeds that show it."""


@pytest.mark.parametrize("name", RARE)
def test_what_only_a_rare_end_shows_is_caught(name: str) -> None:
    case = SimCase(ENGINE, RARE[name], overrides=PLANTED[name].options())
    assert run(case).kind is None, explain(run(case))
    assert run_planted(name, case).kind is not None


def test_every_bug_of_a_rare_end_has_its_seed() -> None:
    assert {name for name, bug in PLANTED.items() if bug.end is not None} == set(RARE)


def test_who_serves_by_the_record_of_another_process_is_seen_without_forgers_too() -> None:
    case = SimCase(ENGINE, 55, overrides=(("forgers", False),))
    assert run_planted("serving-by-anothers-record", case).kind == "serving"


PARENT, CHILD = "t/n/0x00000000_0xffffffff", "t/n/0x00000000_0x80000000"


@pytest.mark.parametrize("begins", [4, 7])
@pytest.mark.parametrize(
    ("bundle", "forged", "seen"),
    [
        (PARENT, [6], False),
        (PARENT, [2, 5, 9], False),
        (PARENT, [], True),
        (PARENT, [3, 4, 7, 8], True),
        (CHILD, [6], True),
    ],
)
def test_two_serve_one_bundle_only_where_a_release_between_them_was_forged(begins, bundle, forged, seen) -> None:
    """Whichever of them begins last: the former owner may read late the record by which it serves."""
    nothing: Any = SimpleNamespace()
    checks = SimChecks(nothing, nothing, Forgeries())
    checks._forged_versions[bundle.encode()] = forged
    last: Any = SimpleNamespace(name="b1#2")
    first: Any = SimpleNamespace(name="b0#3", served={PARENT: {4: 7, 7: 4}[begins]})
    if seen:
        with pytest.raises(Violation, match="still serves"):
            checks._lease(last, first, bundle, begins)
    else:
        checks._lease(last, first, bundle, begins)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bug_has_something_to_bend(name: str) -> None:
    with planted(name):
        pass


def test_a_planted_bug_that_does_not_fit_the_code_any_more_is_no_catch(monkeypatch: pytest.MonkeyPatch) -> None:
    def bend(patcher: Patcher) -> None:
        patcher.bend(Lease, "tick", lambda _: lambda _lease, _more: None)

    monkeypatch.setitem(PLANTED, "misfit", Plant("misfit", ENGINE, "takes an argument that nobody gives", bend))
    with pytest.raises(PlantMisfitError, match="tick"), planted("misfit"):
        pass


def test_there_are_planted_bugs_enough() -> None:
    assert len(PLANTED) >= 30
    assert {plant.level for plant in PLANTED.values()} == {*LEVELS, "interleavings"}


@pytest.mark.parametrize("level", LEVELS)
def test_same_seed_same_trace_whatever_the_hash_seed(level: str) -> None:
    words = [sys.executable, "-m", "statechannel.sim", "--level", level, "--seed", "7", "--quiet", "--no-shrink"]
    digests = set()
    for hash_seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        answer = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=WAIT_S)
        digests.add(next(line for line in answer.stdout.splitlines() if line.startswith("trace digest")))
    assert len(digests) == 1


def test_a_failing_case_shrinks_to_one_that_fails_alike() -> None:
    bent = partial(run_planted, "covers-ignored")
    seed = next(seed for seed in range(50) if bent(SimCase(PROTOCOL, seed)).kind is not None)
    failed = bent(SimCase(PROTOCOL, seed))
    small = shrink(failed, limit_s=math.inf, tries_max=120, run=bent)
    assert small.kind == failed.kind
    assert small.lines
    assert small.case.skip
    assert f"--seed {seed}" in small.case.command()
    assert bent(small.case).digest == small.digest


def test_state_survives_a_resume(tmp_path: Path) -> None:
    tally = SeedTally()
    tally.add([run(SimCase(PROTOCOL, 1)), run_planted("strict-joiner", SimCase(PROTOCOL, 1))])
    tally.save(tmp_path / "state")
    again = SeedTally.load(tmp_path / "state")
    assert again == tally


def test_ranges_round_trip() -> None:
    numbers = frozenset({1, 2, 3, 7, 9, 10})
    assert ranges(numbers) == "1-3,7,9-10"
    assert parse_ranges(ranges(numbers)) == numbers
    assert parse_ranges("") == frozenset()


def test_a_wrong_option_is_refused() -> None:
    with pytest.raises(ValueError, match="no option speed"):
        parse_overrides(SimCase("engine", 3), ["speed=9"])
