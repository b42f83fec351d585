"""Gaps in service of cleaned logs, against a dumb fold of the twin over the whole log."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from statechannel.audit.gaps import Gap, GapCause, GapEnd, Gaps
from statechannel.replay.auditor import audit_part
from statechannel.replay.survey import CompleteFrom, has_gaps, join_facts, known_of, story_facts
from tests.twin import judge, loggen
from tests.twin.wire import Line
from tests.unit.core.against_twin import KNOBS, by_partition, record_of, seeds

LAG_MS = 3_600_000
SERVED = ("Assigned", "Splitting")


class TrueGap(NamedTuple):
    """A time in which nobody served a bundle that somebody had served before: offsets of its first and its last record."""

    bundle: str
    start: int
    end: int | None


def true_gaps(lines: list[Line], partition: int, partitions: int) -> list[TrueGap]:
    """All of them: looks at every state after every record."""
    reader = judge.Judge(partition, partitions)
    served: set[str] = set()
    open_: dict[str, int] = {}
    results = []
    for line in lines:
        reader.read(line)
        live = judge.live_bundles(reader.states())
        for name in [name for name in open_ if name not in live]:
            results.append(TrueGap(name, open_.pop(name), line.offset))
        served &= set(live)
        for name, state in live.items():
            if state.state in SERVED:
                served.add(name)
                if name in open_:
                    results.append(TrueGap(name, open_.pop(name), line.offset))
            elif name in served:
                open_.setdefault(name, line.offset)
    return results + [TrueGap(name, start, None) for name, start in open_.items()]


class Cleaned(NamedTuple):
    true: list[TrueGap]
    gaps: list[Gap]
    known: CompleteFrom


def cleaned_logs(number: int, *, steps: int = 160) -> list[Cleaned]:
    results = []
    for seed in seeds(number):
        knobs = replace(KNOBS["honest"] if seed % 2 else KNOBS["junky"], steps=steps, beat=6.0, pay=6.0)
        log = loggen.generate(seed + 4_100, knobs)
        whole, left = by_partition(log), by_partition(log.compacted(seed, knobs))
        oldest_kept_ms = log.exported_at_ms - LAG_MS
        for partition, lines in left.items():
            records = [record_of(line) for line in lines]
            if not has_gaps(records, log.end_offsets[partition], oldest_kept_ms=oldest_kept_ms):
                continue
            known = known_of(records, oldest_kept_ms=oldest_kept_ms)
            if known is None:
                continue
            facts = story_facts(join_facts(records, oldest_kept_ms=oldest_kept_ms), known)
            gaps = Gaps()
            audit_part(partition, len(log.end_offsets), records, facts, gaps.observe, gaps)
            true = true_gaps(whole[partition], partition, len(log.end_offsets))
            results.append(Cleaned(true, gaps.all(), known))
    return results


def test_a_cleaned_log_tells_every_gap_of_the_whole_log_and_no_other() -> None:
    """Where the log no longer tells whether anybody had served a bundle, the row says so; nothing else may be wrong."""
    open_at_the_start = uncertain = real = 0
    for log in cleaned_logs(40):
        lenient_to = log.known.story_from
        wanted = {(gap.bundle, gap.end): gap for gap in log.true if gap.end is None or gap.end > lenient_to}
        results = {(gap.bundle, gap.end_offset): gap for gap in log.gaps}
        assert len(results) == len(log.gaps)
        certain = {name for name, gap in results.items() if gap.certain}
        assert certain <= wanted.keys()
        assert wanted.keys() <= results.keys()
        for name, gap in results.items():
            if name not in wanted:
                uncertain += 1
                continue
            true = wanted[name]
            if gap.cause == "before-log":
                assert true.start <= gap.start_offset <= lenient_to
                open_at_the_start += true.start <= lenient_to
            else:
                assert gap.start_offset == true.start
            real += not gap.certain
    assert open_at_the_start > 3
    assert uncertain + real < open_at_the_start


class Lived(NamedTuple):
    """What a bundle went through in one gap, by the twin's states: times Unassigned, and accepted steps from Assigning to it."""

    unassigned_ms: int
    declines: int


def lived(lines: list[Line], partition: int, partitions: int, gap: Gap) -> Lived:
    """The dumb way: the bundle's state after every record of the gap."""
    reader = judge.Judge(partition, partitions)
    was, since_ms, unassigned_ms, declines = "", 0, 0, 0
    for line in lines:
        reader.read(line)
        if line.offset < gap.start_offset or (gap.end_offset is not None and line.offset > gap.end_offset):
            continue
        state = judge.live_bundles(reader.states()).get(gap.bundle)
        now = "" if state is None else state.state
        if line.key != gap.bundle.encode() or now == was:
            if state is not None:
                continue
        if was == "Unassigned":
            unassigned_ms += max(0, line.timestamp_ms - since_ms)
        declines += (was, now) == ("Assigning", "Unassigned")
        was, since_ms = now, line.timestamp_ms
    return Lived(unassigned_ms, declines)


def test_causes_and_the_split_of_the_time_are_those_of_the_states() -> None:
    """A hand-over with a decline in it is no transfer; time Unassigned on request is part of the time Unassigned."""
    declined = waited = 0
    for seed in seeds(12):
        log = loggen.generate(seed + 5_200, replace(KNOBS["honest"], steps=220))
        for partition, lines in by_partition(log).items():
            gaps = Gaps()
            audit_part(partition, len(log.end_offsets), [record_of(line) for line in lines], observe=gaps.observe)
            for gap in gaps.all():
                if gap.repaired or gap.end is GapEnd.OPEN:
                    continue
                truth = lived(lines, partition, len(log.end_offsets), gap)
                assert gap.unassigned_ms == truth.unassigned_ms, gap
                assert 0 <= gap.on_request_ms <= gap.unassigned_ms
                assert gap.end_ms is not None
                assert gap.length_ms == gap.end_ms - gap.start_ms - gap.on_request_ms
                if gap.cause in (GapCause.TRANSFER, GapCause.UNLOAD):
                    assert not truth.declines, gap
                if gap.cause is GapCause.TRANSFER:
                    assert gap.unassigned_ms == 0
                declined += gap.cause is GapCause.DECLINED
                waited += gap.unassigned_ms > 0
    assert declined
    assert waited > declined
