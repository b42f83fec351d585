"""Imports of random logs, judged by the twin: same rings, owners as forced, every generation higher, from any interruption."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from statechannel.audit.errors import ImportRefusedError
from statechannel.audit.transfer.import_plan import ImportPlan, plan_import
from statechannel.audit.transfer.import_run import Importer, ImportWrite
from statechannel.protocol.codec import MAX_INT
from statechannel.protocol.joiner import Joiner
from statechannel.protocol.view import View
from statechannel.replay.auditor import audit_part
from statechannel.replay.survey import STRICT, has_gaps, join_facts
from tests.support.imports import KilledError, Log, empty_log, importer_for, run_import, survey
from tests.twin import loggen
from tests.twin.compaction import clean_once
from tests.twin.judge import Judge, State, live_bundles
from tests.twin.wire import Line, home
from tests.unit.core.against_twin import KNOBS, by_partition, read, record_of, seeds, states_of

HEADROOM = 1
"""The least that is allowed: what holds with it holds with more."""
SMALL = (9, 3, 57, 17)
"""Logs of a few namespaces; in the first and the third one was deleted."""
CASES = [pytest.param(name, seed, id=f"{name}-{seed}") for name in KNOBS for seed in seeds(6)]


def source_of(knobs: str, seed: int) -> tuple[list[View], list[Judge]]:
    """The accepted states of a random log, by the core and by the twin."""
    log = loggen.generate(seed, KNOBS[knobs])
    views, judges = [], []
    for partition, lines in by_partition(log).items():
        view, judge = View(partition, len(log.end_offsets)), Judge(partition, len(log.end_offsets))
        for line in lines:
            judge.read(line)
            if judge.stopped is not None:
                break
            read(view, line)
        views.append(view)
        judges.append(judge)
    return views, judges


def states_in(judges: list[Judge]) -> dict[str, State]:
    return {key: state for judge in judges for key, state in judge.states().items()}


def judged(log: Log) -> dict[str, State]:
    """What the twin makes of the target; nothing in it may be rejected but copies."""
    judges = []
    for partition, records in log.items():
        judge = Judge(partition, len(log))
        for offset, (key, value) in enumerate(records):
            judge.read(Line(partition, offset, 1_000 + offset, key, value))
        judges.append(judge)
    return states_in(judges)


def without_ids(states: dict[str, State]) -> dict[str, tuple[object, ...]]:
    return {key: (state.version, state.state, state.source, state.to, state.children) for key, state in states.items()}


def namespace_of(key: str) -> str:
    return "/".join(key.split("/")[:2])


def generations(judges: list[Judge]) -> tuple[dict[str, int], dict[str, int]]:
    """By namespace the highest version that was ever accepted in it, and that any broker was told to prepare for."""
    accepted: dict[str, int] = {}
    results: dict[str, int] = {}
    for judge in judges:
        for key, history in judge.accepted.items():
            name = namespace_of(key)
            for _, state in history:
                derived = 1 if state.state == "Deleted" and key != name else 0
                accepted[name] = max(accepted.get(name, 0), state.version + derived)
                prepared = state.version + {"Assigning": 1, "Splitting": 2}.get(state.state, derived)
                results[name] = max(results.get(name, 0), prepared)
    return accepted, results


def server_of(state: State) -> str | None:
    return {"Assigned": state.to, "Assigning": state.to, "Releasing": state.source, "Splitting": state.source}.get(
        state.state
    )


@pytest.mark.parametrize(("knobs", "seed"), CASES)
def test_rings_and_owners_are_those_of_the_source_and_every_generation_is_higher(knobs: str, seed: int) -> None:
    views, judges = source_of(knobs, seed)
    before, (highest, result) = states_in(judges), generations(judges)
    full = {name for name, version in highest.items() if version > MAX_INT - 20}
    only = {namespace_of(key) for key in before} - full
    if full or not before:
        with pytest.raises(ImportRefusedError, match="exceeds the maximum" if full else "no namespace"):
            plan_import(views, headroom=HEADROOM)
    if not only:
        return
    before = {key: state for key, state in before.items() if namespace_of(key) in only}
    plan = plan_import(views, only=only if full else (), headroom=HEADROOM)
    rng = Random(seed)
    log = empty_log(rng.choice([1, 2, 5]))
    importer = importer_for(plan, len(log))
    run_import(importer, log, window=rng.choice([1, 3, 100]), rng=rng)
    after = judged(log)
    assert states_of_all(importer) == after
    assert importer.counts.written == plan.records == sum(len(records) for records in log.values()) - 2 * len(log)
    for name in {namespace_of(key) for key in before}:
        assert after[name].state == before[name].state
        assert after[name].version > highest[name]
        old = live_bundles({key: item for key, item in before.items() if namespace_of(key) == name})
        new = live_bundles({key: item for key, item in after.items() if namespace_of(key) == name})
        assert old.keys() == new.keys()
        for bundle, state in old.items():
            owner = server_of(state)
            assert new[bundle].to == owner
            assert new[bundle].state == ("Unassigned" if owner is None else "Assigning")
            # The broker named prepares for its version + 1; one that is still to be named, for two above the bundle's.
            assert new[bundle].version > highest[name]
            assert new[bundle].version + (2 if owner is None else 1) > result[name]
    assert {namespace_of(key) for key in after} == {namespace_of(key) for key in before}
    for partition, records in log.items():
        assert all(key[:1] == b"!" or home(namespace_of(key.decode()), len(log)) == partition for key, _ in records)


def states_of_all(importer: Importer) -> dict[str, State]:
    return {key: state for view in importer.views for key, state in states_of(view).items()}


@cache
def small_source(seed: int) -> tuple[ImportPlan, int]:
    """A plan of not too many records, and a number of partitions."""
    plan = plan_import(source_of("honest", SMALL[seed % len(SMALL)])[0], headroom=HEADROOM)
    assert 16 <= plan.records <= 25
    return plan, 1 + seed % 3


@pytest.mark.parametrize("seed", seeds(4))
def test_who_joins_an_imported_log_that_was_cleaned_holds_what_full_readers_hold(seed: int) -> None:
    plan, partitions = small_source(seed)
    log = empty_log(partitions)
    run_import(importer_for(plan, partitions), log, rng=Random(seed), window=5)
    wanted, rng = judged(log), Random(f"cleaner {seed}")
    for _ in range(20):
        results: dict[str, State] = {}
        for partition, records in log.items():
            lines = [Line(partition, offset, offset, key, value) for offset, (key, value) in enumerate(records)]
            joiner = Joiner(partition, partitions)
            for line in clean_once(lines, rng, 10_000, 0, whole=rng.random() < 0.3):
                joiner.read(line.offset, line.key, line.value)
            results |= states_of(joiner.view())
        assert results == wanted


@pytest.mark.parametrize("knobs", ["honest", "junky"])
@pytest.mark.parametrize("seed", seeds(5))
def test_a_cleaned_log_that_somebody_vouches_for_gives_the_plan_of_the_whole_one(knobs: str, seed: int) -> None:
    whole = loggen.generate(seed, KNOBS[knobs])
    left = whole.compacted(seed, KNOBS[knobs])
    views = []
    for partition, lines in by_partition(left).items():
        records = [record_of(line) for line in lines]
        facts = STRICT
        oldest_kept_ms = left.exported_at_ms - KNOBS[knobs].lag_ms
        if has_gaps(records, left.end_offsets[partition], oldest_kept_ms=oldest_kept_ms):
            facts = join_facts(records, oldest_kept_ms=oldest_kept_ms)
        part = audit_part(partition, len(left.end_offsets), records, facts)
        if part.tentative:
            return  # nobody vouches: the command asks first
        views.append(part.view)
    full, judges = source_of(knobs, seed)
    if states_in(judges):
        only = {name for name, version in generations(judges)[0].items() if version <= MAX_INT - 20}
        assert not only or plan_import(views, only=only, headroom=1) == plan_import(full, only=only, headroom=1)


@pytest.mark.parametrize("seed", seeds(4))
def test_an_import_that_was_killed_goes_on_from_any_prefix_to_the_same_end(seed: int) -> None:
    plan, partitions = small_source(seed)
    whole: list[ImportWrite] = []
    log = empty_log(partitions)
    run_import(importer_for(plan, partitions), log, before_append=whole.append)
    wanted = without_ids(judged(log))
    for length in range(len(whole) + 1):
        rest = empty_log(partitions)
        for write in whole[:length]:
            rest[write.partition].append((write.key, write.value))
        again = importer_for(plan, partitions, f"again-{length}")
        run_import(again, rest)
        assert without_ids(judged(rest)) == wanted
        assert again.counts.present + again.counts.written == plan.records
        assert again.gone_on() == 0
        written = sum(len(records) for records in rest.values())
        assert written == len(whole), "nothing is written twice"


@pytest.mark.parametrize("seed", seeds(6))
def test_killed_again_and_again_with_late_copies_of_what_was_on_its_way(seed: int) -> None:
    plan, partitions = small_source(seed % 4)
    rng = Random(f"kills {seed}")
    log, late = empty_log(partitions), []
    for process in range(200):
        importer = importer_for(plan, partitions, f"p{process}")
        left = rng.randint(0, 6)

        def dying(write: ImportWrite) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                late.append(write)  # on its way when the process died: it comes now, later, or never
                raise KilledError

        try:
            run_import(importer, log, before_append=dying if process < 199 else lambda _: None)
            break
        except KilledError:
            for write in [record for record in late if rng.random() < 0.4]:
                log[write.partition].append((write.key, write.value))
    whole = empty_log(partitions)
    run_import(importer_for(plan, partitions), whole)
    assert without_ids(judged(log)) == without_ids(judged(whole))


@pytest.mark.parametrize("seed", seeds(4))
def test_two_imports_of_the_same_file_at_once_do_no_harm(seed: int) -> None:
    plan, partitions = small_source(seed)
    log = empty_log(partitions)
    other = importer_for(plan, partitions, "other")
    rng = Random(seed)

    def meanwhile(_: ImportWrite) -> None:
        # The other one has read up to here, and writes what it thinks is missing.
        if rng.random() < 0.1:
            second = importer_for(plan, partitions, f"other-{rng.getrandbits(40)}")
            survey(second, log)
            if second.stage == "marks":
                second.go_on()
                for partition in log:
                    if second._parts[partition].mark is not None:
                        log[partition].extend((w.key, w.value) for w in second.writes(partition, 3))

    run_import(other, log, before_append=meanwhile)
    whole = empty_log(partitions)
    run_import(importer_for(plan, partitions), whole)
    assert without_ids(judged(log)) == without_ids(judged(whole))
