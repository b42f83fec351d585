"""Any cut of a log into batches gives the verdicts and the view of the whole: decisions and fold of the job, without Spark."""

from __future__ import annotations

from random import Random

import pytest

from spark.channel.fold import FoldPlan, GroupFold
from statechannel.protocol.codec import newer_format
from statechannel.protocol.digest import digest
from statechannel.protocol.log import RecordRead
from statechannel.replay.survey import FormatStop, ReadFacts
from tests.support.cold_start_logs import cold_start_log
from tests.support.pure_table import LAG_MS, PureTable, audited
from tests.twin import loggen
from tests.twin.compaction import compact
from tests.unit.core.against_twin import KNOBS, record_of, seeds

CASES = [pytest.param(name, seed, id=f"{name}-{seed}") for name in KNOBS for seed in seeds(6)]


def batches(records: list[RecordRead], generator: Random) -> list[list[RecordRead]]:
    """Cut by chance; some batches come twice, some begin again further back, all in any order."""
    result, at = [], 0
    while at < len(records):
        end = min(len(records), at + generator.choice([1, 2, 5, 20, 60]))
        back = generator.choice([0, 0, 0, 7, at])
        piece = records[max(0, at - back) : end]
        result += [piece] * generator.choice([1, 1, 2])
        at = end
    for piece in result:
        generator.shuffle(piece)
    return result


@pytest.mark.parametrize(("knobs", "seed"), CASES)
def test_any_cut_is_as_good_as_none(knobs: str, seed: int) -> None:
    log = loggen.generate(seed, KNOBS[knobs])
    records = [record_of(line) for line in log.lines]
    table = PureTable(len(log.end_offsets), records)
    for piece in batches(list(records), Random(seed)):
        table.process(piece)
    answer, verdicts = audited(records, log.end_offsets)
    stopped = {int(number): item["offset"] for number, item in answer.get("stopped", {}).items()}
    expected = {
        place: verdict for place, verdict in verdicts.items() if place[0] not in stopped or place[1] < stopped[place[0]]
    }
    assert table.digest() == answer["digest"]
    assert table.verdicts() == expected
    assert {number: place.stop.offset for number, place in table.places.items() if place.stop} == stopped
    assert not table.missing


@pytest.mark.parametrize("seed", seeds(6))
def test_it_goes_on_behind_an_upgrade(seed: int) -> None:
    """The newer version understands what has stopped this one: here as junk, which any version could say of it."""
    log = loggen.generate(seed, KNOBS["newer"])
    records = [record_of(line) for line in log.lines]
    known = [r._replace(value=b"junk") if newer_format(r.key, r.value) else r for r in records]
    table = PureTable(len(log.end_offsets), records)
    for piece in batches(list(records), Random(seed)):
        table.process(piece)
    assert any(place.stop for place in table.places.values())
    table.topic = known
    for piece in batches(known, Random(seed)):
        table.process(piece)
    answer, verdicts = audited(known, log.end_offsets)
    assert table.verdicts() == verdicts
    assert table.digest() == answer["digest"]
    assert not any(place.stop for place in table.places.values())


def missed(table: PureTable, records: list[RecordRead]) -> set[tuple[int, int]]:
    return {(r.partition, r.offset) for r in records} - set(table.verdicts())


@pytest.mark.parametrize("seed", seeds(20))
def test_the_cleaner_between_batches(seed: int) -> None:
    """The view is that of a broker that joins now; what was missed lies in the stretches that are told of."""
    generator = Random(seed)
    log = loggen.generate(seed, KNOBS[generator.choice(["honest", "junky"])])
    lines = log.lines
    records = [record_of(line) for line in lines]
    ends = log.end_offsets
    table = PureTable(len(ends))
    at = 0
    while at < len(lines):
        at = min(len(lines), at + generator.choice([5, 40, 120]))
        table.now_ms = max(line.timestamp_ms for line in lines[:at])
        left = compact(lines[:at], generator, table.now_ms, LAG_MS, rounds=generator.choice([0, 0, 2]))
        lines = [*left, *lines[at:]]
        at = len(left)
        table.topic = [record_of(line) for line in left]
        table.process(table.topic)
    answer, verdicts = audited(table.topic, ends, table.now_ms)
    held = table.verdicts()
    for place, verdict in held.items():
        assert verdict is None or verdicts.get(place, verdict) == verdict
    for number, offset in missed(table, records):
        assert any(
            rule.partition == number and rule.from_offset <= offset <= rule.to_offset for rule in table.missing
        ), f"nobody tells that offset {offset} of partition {number} is missing"
    assert table.missing or None not in held.values()
    if not table.tentative and not answer.get("tentative"):
        assert table.digest() == answer["digest"]


def test_the_cleaner_cases_are_not_all_tentative() -> None:
    """The test above shows something: of its logs some join, some in the end without a doubt."""
    joined = 0
    for seed in seeds(20):
        log = loggen.generate(seed, KNOBS["honest"])
        records = [record_of(line) for line in log.lines]
        now_ms = log.exported_at_ms
        table = PureTable(len(log.end_offsets), now_ms=now_ms)
        half = len(records) // 2
        table.process(records[:half])
        # The cleaner runs when the first half is old, and the log goes on.
        table.topic = [record_of(line) for line in log.compacted(seed, KNOBS["honest"]).lines]
        table.process(table.topic)
        answer, _ = audited(table.topic, log.end_offsets, now_ms)
        if table.missing and not table.tentative and not answer.get("tentative"):
            joined += 1
            assert table.digest() == answer["digest"]
    assert joined > 0


class TestColdStart:
    @pytest.mark.parametrize("differs", [False, True])
    @pytest.mark.parametrize("seed", range(8))
    def test_any_cut_gives_the_same(self, differs: bool, seed: int) -> None:
        records, alone = cold_start_log(differs=differs)
        whole = PureTable(1, records)
        whole.process(records)
        table = PureTable(1, records)
        for piece in batches(list(records), Random(seed)):
            table.process(piece)
        assert table.digest() == whole.digest() == digest([alone.engine.replicas[0].view])
        assert table.verdicts() == whole.verdicts()
        assert table.differences == whole.differences
        assert bool(table.differences) is differs
        assert not table.missing

    def test_behind_its_heartbeat_verdicts_are_those_of_the_brokers(self) -> None:
        records, alone = cold_start_log(differs=True)
        table = PureTable(1, records)
        table.process(records)
        mark = alone.written(b"!cold-start")[0]
        moves = [
            offset
            for offset, record in enumerate(records)
            if offset > mark and not (record.key or b"!").startswith(b"!")
        ]
        assert len(moves) >= 2
        assert {table.verdicts()[0, offset] for offset in moves} == {"accepted"}

    @pytest.mark.parametrize("end", range(5, 16))
    def test_a_heartbeat_that_vouches_for_less_than_was_read(self, end: int) -> None:
        """The first heartbeat behind the mark is lost; the one that is read says `clean_to` as that one did."""
        records, _ = cold_start_log(differs=True)
        first, second = [r for r in records if r.key == b"!heartbeat"][1:3]
        moved = [
            r._replace(value=b"") if r is first else r._replace(value=first.value) if r is second else r
            for r in records
        ]
        cut, whole = PureTable(1, moved), PureTable(1, moved)
        whole.process(moved)
        for piece in (moved[:end], moved[end:]):
            cut.process(piece)
        assert len(whole.differences) == 1
        assert (cut.digest(), cut.verdicts(), cut.differences) == (whole.digest(), whole.verdicts(), whole.differences)

    def test_on_a_log_whose_head_was_cleaned_since(self) -> None:
        records, alone = cold_start_log(differs=True)
        mark = alone.written(b"!cold-start")[0]
        table = PureTable(1)
        table.process(records[: mark - 2])
        table.topic = records[1:]
        table.process(records[mark - 2 :])
        assert table.digest() == digest([alone.engine.replicas[0].view])
        assert len(table.verdicts()) == len(records)
        assert len(table.differences) == 1


class TestGroup:
    def test_nothing_is_read_behind_a_stop(self) -> None:
        fold = GroupFold(0, FoldPlan(1, facts=ReadFacts(stop=FormatStop(3, 2))))
        assert fold.read(2, b"a/b", b"junk") is not None
        assert fold.read(3, b"a/b", b'{"format":2}') is None
        assert fold.read(4, b"a/b", b"junk") is None

    def test_what_is_older_is_read_but_not_archived(self) -> None:
        fold = GroupFold(0, FoldPlan(1, position=5, joins=True, facts=ReadFacts(6)))
        assert [fold.read(offset, b"a/b", b"junk") is None for offset in (4, 5, 7)] == [True, False, False]
        assert [row.settled for row in fold.rows()] == [4 + 1]

    def test_a_view_that_is_kept_gets_nothing(self) -> None:
        fold = GroupFold(0, FoldPlan(1, position=5, keeps=True))
        line = fold.read(5, b"a/b", None)
        assert line is not None
        assert line.verdict is None
        assert list(fold.rows()) == []
