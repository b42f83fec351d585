"""The bulk of a replay takes in exactly what `View.read` takes in, record by record."""

from __future__ import annotations

import random
from zlib import crc32

import orjson
import pytest

from statechannel.protocol import bulk_fold
from statechannel.protocol.bulk_fold import read_many
from statechannel.protocol.codec import COLD_START_KEY
from statechannel.protocol.digest import digest, digest_of, line
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.replica import Phase, Replica
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from statechannel.replay.auditor import AuditFindings, audit_part, findings_of
from statechannel.replay.part import PartReader
from statechannel.replay.survey import ReadFacts, join_facts
from tests.bench.records import LogMaker
from tests.support.accelerator import TAKER_NAMES, TAKERS
from tests.twin import loggen
from tests.unit.core.against_twin import KNOBS, by_partition, debts_of, fingerprint, record_of, seeds

CASES = [pytest.param(name, seed, id=f"{name}-{seed}") for name in KNOBS for seed in seeds(8)]


@pytest.fixture(autouse=True, params=TAKER_NAMES)
def _taker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test here is one of the Python code, and one of the accelerator."""
    monkeypatch.setattr(bulk_fold, "take_plain_moves", TAKERS[request.param]())


def settled(view: View) -> dict[bytes, tuple[int, bool]]:
    return {name: (key.settled, key.purged) for name, key in view.keys.items()}


def one_by_one(partition: int, partitions: int, records: list[RecordRead]) -> View:
    view = View(partition, partitions)
    for record in records:
        if view.read(record.offset, record.key, record.value).verdict is Verdict.UNSUPPORTED_FORMAT:
            break
    return view


@pytest.mark.parametrize(("knobs", "seed"), CASES)
def test_bulk_and_single_records_end_alike(knobs: str, seed: int) -> None:
    chance = random.Random(seed)
    log = loggen.generate(seed, KNOBS[knobs])
    for partition, lines in by_partition(log).items():
        records = [record_of(line) for line in lines]
        expected = one_by_one(partition, len(log.end_offsets), records)
        view, position = View(partition, len(log.end_offsets)), 0
        while position < len(records):
            end = position + chance.randint(1, 40)
            reached = read_many(view, records[position:], position, end)
            if reached < min(end, len(records)):
                if records[reached].key != COLD_START_KEY:
                    break  # a newer format
                # Left to the reader, who starts over there; here it is read on, to compare the rest, too.
                _, _, offset, _, key, value = records[reached]
                view.read(offset, key, value)
                reached += 1
            position = reached
        assert view.applied == expected.applied
        assert fingerprint(view) == fingerprint(expected)
        assert debts_of(view) == debts_of(expected)
        assert settled(view) == settled(expected)
        assert digest([view]) == digest([expected])


@pytest.mark.parametrize(("knobs", "seed"), CASES)
def test_parts_read_in_bulk_in_pieces_end_as_the_whole_read_record_by_record(knobs: str, seed: int) -> None:
    """Whatever way a log is parted by namespace, with gaps and without, the parts together find what the whole finds."""
    chance = random.Random(seed)
    log = loggen.generate(seed, KNOBS[knobs])
    partitions = len(log.end_offsets)
    for of_log in (log, log.compacted(seed, KNOBS[knobs])):
        for partition, lines in by_partition(of_log).items():
            records = [record_of(line) for line in lines]
            oldest_kept_ms = chance.choice([0, log.exported_at_ms - 3_600_000])
            facts = join_facts(records, oldest_kept_ms=oldest_kept_ms)
            if of_log is log and chance.random() < 0.5:
                facts = ReadFacts(-1, facts.stop)
            whole = audit_part(partition, partitions, records, facts, lambda *_: None)
            expected = findings_of(whole)
            findings, lines_found = AuditFindings(), {}
            ways = chance.randint(1, 5)
            for number in range(ways):
                part = PartReader(partition, partitions, facts)
                mine = [record for record in records if crc32(namespace_of(record.key)) % ways == number]
                while mine:
                    size = chance.randint(1, 40)
                    part.read(mine[:size])
                    mine = mine[size:]
                audit = part.result()
                findings.add(findings_of(audit))
                lines_found |= {key.key: line(key) for key in audit.view.existing()}
            assert sorted(findings.debts, key=lambda debt: debt[1]) == sorted(expected.debts, key=lambda debt: debt[1])
            assert +findings.verdicts == +expected.verdicts
            assert (findings.owners, findings.bundles, findings.namespaces) == (
                expected.owners,
                expected.bundles,
                expected.namespaces,
            )
            assert (findings.stops, findings.tentative) == (expected.stops, expected.tentative)
            assert digest_of(text for _, text in sorted(lines_found.items())) == digest([whole.view])


@pytest.mark.parametrize(("knobs", "seed"), CASES)
def test_a_lenient_reading_in_bulk_ends_as_one_record_by_record(knobs: str, seed: int) -> None:
    """Whatever the cleaner left, however it is delivered, and however little may be kept."""
    chance = random.Random(seed)
    log = loggen.generate(seed, KNOBS[knobs])
    for partition, lines in by_partition(log.compacted(seed, KNOBS[knobs])).items():
        records = [record_of(line) for line in lines if line.offset > 0]
        if not records:
            continue
        end = records[-1].offset + 1
        clean_to = orjson.dumps(HEARTBEAT | {"clean_to": end - 1, "covers": end - 1})
        after = RecordRead(Topic.CHANNEL, partition, end, records[-1].timestamp_ms, b"!heartbeat", clean_to)
        bounds = {"kept_records_max": chance.choice([3, 1_000]), "kept_max_bytes": chance.choice([2_000, 1_000_000])}
        lag_s = chance.choice([1, 60, 3_600, 10**6])
        replicas = [Replica(partition, len(log.end_offsets), compaction_lag_s=lag_s, **bounds) for _ in range(2)]
        for replica in replicas:
            replica.opened(0.0, 0, end)
            replica.reached(0.0, records[0].offset)
        plain, bulk = replicas
        left = [*records]
        while left:
            size = chance.choice((1, 2, 5, 30, len(left)))
            portion, left = left[:size], left[size:]
            for record in portion:
                plain.read(0.0, record)
            for record in portion[bulk.read_many(0.0, portion) :]:
                bulk.read(0.0, record)
            assert (bulk.phase, bulk.position, bulk.timestamp_ms) == (plain.phase, plain.position, plain.timestamp_ms)
            assert aside_of(bulk) == aside_of(plain)
        for replica in replicas:
            replica.read(0.0, after)
        assert (bulk.phase, bulk.why) == (plain.phase, plain.why)
        assert (bulk.marks.newest, bulk.marks.mark) == (plain.marks.newest, plain.marks.mark)
        assert (fingerprint(bulk.view), settled(bulk.view)) == (fingerprint(plain.view), settled(plain.view))
        assert digest([bulk.view]) == digest([plain.view])


HEARTBEAT = {"format": 1, "kind": "heartbeat", "id": "h", "by": {"broker": "b", "incarnation": "b-1"}}


def aside_of(replica: Replica) -> object:
    aside = replica._aside
    return aside and (
        aside.clean_to,
        aside.floor,
        aside._bytes,
        aside._newest_ms,
        [record.offset for record in aside._kept],
    )


def namespace_of(key: bytes | None) -> bytes:
    return b"" if key is None else b"/".join(key.split(b"/")[:2])


def test_the_log_of_the_benchmark_is_what_it_says() -> None:
    maker = LogMaker(6_000, namespaces=2, bundles=50)
    records = [RecordRead(Topic.CHANNEL, 0, at, at, *body) for at, body in enumerate(maker.make())]
    replica = Replica(0, 1, compaction_lag_s=3600, kept_records_max=10)
    replica.opened(0.0, 0, len(records))
    taken = replica.read_many(0.0, records)
    assert taken == len(records) - 1
    assert replica.phase is Phase.READING
    replica.read(0.0, records[-1])
    assert replica.caught_up
    view = one_by_one(0, 1, records)
    assert fingerprint(replica.view) == fingerprint(view)
    assert settled(replica.view) == settled(view)
    verdicts = [
        View.read(scratch, record.offset, record.key, record.value).verdict
        for scratch in [View(0, 1)]
        for record in records
    ]
    assert verdicts.count(Verdict.ACCEPTED) == maker.expected.accepted
    assert verdicts.count(Verdict.STALE_VERSION) == maker.expected.rejected
    assert verdicts.count(Verdict.ASSERT_EQUAL) == maker.expected.asserts
    assert verdicts.count(Verdict.CONTROL) == maker.expected.heartbeats


def test_a_gap_and_a_newer_format_are_left_to_the_reader() -> None:
    records = [RecordRead(Topic.CHANNEL, 0, at, 7, b"!heartbeat", b"{}") for at in (0, 1, 3)]
    view = View(0, 1)
    assert read_many(view, records, 0, 10) == 2
    assert view.applied == 1
    newer = RecordRead(Topic.CHANNEL, 0, 2, 7, b"t/ns", b'{"format":2}')
    assert read_many(view, [newer], 2, 10) == 2
    assert view.applied == 1
