"""Joining readers: lenient views against the twin, and replicas driven live while the cleaner is at work."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest

from statechannel.protocol.joiner import Joiner
from statechannel.protocol.keys import Writer
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.replica import Phase, Replica
from statechannel.protocol.view import View
from tests.twin import judge, loggen
from tests.twin.compaction import clean_once
from tests.twin.join import Lenient
from tests.twin.judge import Judge
from tests.twin.wire import Line
from tests.unit.core.against_twin import (
    KNOBS,
    by_partition,
    check_counters,
    debts_of,
    read,
    record_of,
    seeds,
    states_of,
    without_made_up_id,
    words_of,
)


def check_lenient(lines: Sequence[Line], partition: int, partitions: int) -> None:
    """Both lenient readers hold the same, and what was left out of the log changes nothing in how they read it."""
    joiner, twin = Joiner(partition, partitions), Lenient(partition, partitions)
    for line in lines:
        joiner.read(line.offset, line.key, line.value)
        twin.read(line)
    check_late(joiner, lines)
    assert joiner.stopped == (twin.stopped[1] if twin.stopped else 0)
    held = {key.decode(): offset for key, offset in joiner.last.items()}
    if not twin.stopped:  # the twin counts the record that stopped it, which no caught-up reader is told of
        assert held == twin.last
    view = joiner.view()
    expected = {key: without_made_up_id(state) for key, state in twin.states().items()}
    assert {key: without_made_up_id(state) for key, state in states_of(view).items()} == expected
    for key in view.keys.values():
        assert key.settled == held.get(key.name, -1)
    assert not view.ledger.open


def check_late(joiner: Joiner, lines: Sequence[Line]) -> None:
    """Records that are decoded late, and only where it matters, leave the same as those that are decoded at once."""
    chance = Random(len(lines))
    late = Joiner(joiner.partition, joiner.partitions)
    records = [record_of(line) for line in lines if line.offset <= joiner.applied]
    while records:
        size = chance.choice((1, 2, 7, 40, len(records)))
        late.read_late(records[:size])
        records = records[size:]
        if chance.random() < 0.3:
            late.settle()
    late.settle()
    assert {key: held.offset for key, held in late.held.items()} == {
        key: held.offset for key, held in joiner.held.items()
    }
    assert [*late.last.items()] == [*joiner.last.items()]
    assert (late.nulls, late.applied) == (joiner.nulls, joiner.applied)
    assert states_of(late.view()) == states_of(joiner.view())


@pytest.mark.parametrize("seed", seeds(25))
def test_lenient_views_of_any_log(seed: int) -> None:
    """Whole, cut, compacted, with records missing anywhere, and in any order: offsets need not even make sense."""
    log = loggen.generate(seed, KNOBS["wild"])
    rng = Random(f"arbitrary {seed}")
    partitions = len(log.end_offsets)
    for partition, lines in by_partition(log).items():
        check_lenient(lines, partition, partitions)
        check_lenient(lines[: rng.randint(0, len(lines))], partition, partitions)
        for share in (0.1, 0.5, 0.9):
            check_lenient([line for line in lines if rng.random() < share], partition, partitions)
        shuffled = rng.sample(lines, len(lines))
        renumbered = [
            Line(partition, offset, line.timestamp_ms, line.key, line.value) for offset, line in enumerate(shuffled)
        ]
        check_lenient(renumbered, partition, partitions)
    for compaction in range(3):
        for partition, lines in by_partition(log.compacted(compaction, KNOBS["wild"])).items():
            check_lenient(lines, partition, partitions)


@pytest.mark.parametrize("seed", seeds(15))
def test_lenient_reading_to_a_debt_free_offset_then_strictly_is_strict_reading(seed: int) -> None:
    """Section 5, at every offset at which a clean heartbeat could stand, on a log that the cleaner may have been at."""
    log = loggen.generate(seed, KNOBS["junky"])
    rng = Random(f"join {seed}")
    for partition, lines in by_partition(log).items():
        twin = Judge(partition, len(log.end_offsets))
        full = View(partition, len(log.end_offsets))
        processes = [processes_of(full) for line in lines if read(full, line)]
        history = [(words(twin, line), twin.states(), twin.debts()) for line in lines]
        free = [offset for offset, (_, _, debts) in enumerate(history) if not debts]
        for clean_to in rng.sample(free, min(8, len(free))):
            head = clean_once(lines[: clean_to + 1], rng, lines[clean_to].timestamp_ms, 600_000, whole=True)
            joiner = Joiner(partition, len(log.end_offsets))
            for line in head:
                joiner.read(line.offset, line.key, line.value)
            view = joiner.view()
            check_counters(view, history[clean_to][1])
            for line in lines[clean_to + 1 :]:
                assert words_of(read(view, line)) == history[line.offset][0], line
                assert states_of(view) == history[line.offset][1]
                assert debts_of(view) == history[line.offset][2]
                for name, known in processes_of(view).items():
                    true = processes[line.offset][name]
                    assert all(mine in (None, theirs) for mine, theirs in zip(known, true, strict=True)), (line, name)
            check_counters(view, history[-1][1])


def processes_of(view: View) -> dict[str, tuple[Writer | None, Writer | None]]:
    """Who wrote the accepted record of each key, and whose record made it the owner: a joiner may not know."""
    return {key.name: (key.writer, key.server) for key in view.existing()}


def words(twin: Judge, line: Line) -> tuple[str, int | None, str | None]:
    verdict = twin.read(line)
    assert verdict is not None
    return verdict.verdict, verdict.version, verdict.state


def test_a_joiner_does_not_take_the_splitter_for_whoever_resumed_since() -> None:
    """A child of a split is served by its parent's process; a resumption that was cleaned away may have changed that."""
    whole, halves = "0x00000000_0xffffffff", ["0x00000000_0x80000000", "0x80000000_0xffffffff"]
    parent, child = f"t/n/{whole}", f"t/n/{halves[0]}"
    steps: list[tuple[str, str, int, dict[str, object]]] = [
        ("t/n", "i1", 1, {"state": "Active", "base": None, "children": [whole]}),
        (parent, "i1", 2, {"state": "Assigning", "base": f"r0/{whole}", "from": None, "to": "A"}),
        (parent, "i1", 3, {"state": "Assigned", "base": "r1", "from": None, "to": "A"}),
        (parent, "i1", 4, {"state": "Splitting", "base": "r2", "from": "A", "to": None}),
        (parent, "i1", 5, {"state": "Deleted", "base": "r3", "from": "A", "to": None, "children": halves}),
        (child, "i2", 7, {"state": "Assigned", "base": f"r4/{halves[0]}", "from": None, "to": "A"}),
        (child, "i2", 8, {"state": "Releasing", "base": "r5", "from": "A", "to": "B"}),
    ]
    full, joiner = View(0, 1), Joiner(0, 1)
    for offset, (key, incarnation, version, fields) in enumerate(steps):
        head = {"format": 1, "kind": "proposal", "id": f"r{offset}", "covers": offset - 1, "version": version}
        value = json.dumps(head | {"by": {"broker": "A", "incarnation": incarnation}} | fields).encode()
        assert full.read(offset, key.encode(), value).verdict == "accepted"
        if offset in (0, 4, 6):  # what the cleaner leaves
            joiner.read(offset, key.encode(), value)
    served, joined = full.get(child), joiner.view().get(child)
    assert served is not None
    assert joined is not None
    assert served.server == Writer("A", "i2")
    assert joined.server is None


@dataclass
class Truth:
    """What a full reader holds after each offset of a partition."""

    words: list[tuple[str, int | None, str | None]]
    states: list[dict[str, judge.State]]
    debts: list[list[judge.Debt]]

    @classmethod
    def of(cls, lines: Sequence[Line], partition: int, partitions: int) -> Truth:
        """Read a partition in full."""
        twin = Judge(partition, partitions)
        result = cls([], [], [])
        for line in lines:
            result.words.append(words(twin, line))
            result.states.append(twin.states())
            result.debts.append(twin.debts())
        return result


@dataclass
class Drive:
    """A replica that reads a topic which grows and is cleaned while it reads."""

    lines: list[Line]
    truth: Truth
    replica: Replica
    rng: Random
    lag_ms: int
    checked: int = 0

    def run(self, opens_at: int) -> Counter[Phase]:
        """Open the partition when `opens_at` records were written; read until its end."""
        log: list[Line] = []
        pending = list(self.lines)
        now_ms = self.lines[opens_at - 1].timestamp_ms if opens_at else self.lines[0].timestamp_ms - 1
        while pending and pending[0].timestamp_ms <= now_ms:
            log.append(pending.pop(0))
            if self.rng.random() < 0.2:
                log = clean_once(log, self.rng, log[-1].timestamp_ms, self.lag_ms, whole=self.rng.random() < 0.5)
        phases: Counter[Phase] = Counter()
        for _ in range(20_000):
            while pending and pending[0].timestamp_ms <= now_ms:
                log.append(pending.pop(0))
            end = log[-1].offset + 1 if log else 0
            if log and self.rng.random() < 0.1:
                log = clean_once(log, self.rng, now_ms, self.lag_ms, whole=self.rng.random() < 0.5)
            replica = self.replica
            if replica.phase in (Phase.CLOSED, Phase.START_OVER):
                replica.opened(now_ms / 1000, 0, end)
            self._deliver(log, end, now_ms / 1000)
            phases[replica.phase] += 1
            if replica.phase in (Phase.STOPPED, Phase.BROKEN):
                raise AssertionError(replica.why)
            if not pending and replica.position >= end:
                return phases
            slow = self.rng.random() < 0.02
            now_ms += self.rng.randrange(3 * self.lag_ms) if slow else self.rng.randrange(120_000)
        raise AssertionError(f"never came to the end: {self.replica.phase}, {self.replica.why}")

    def _deliver(self, log: list[Line], end: int, now_s: float) -> None:
        replica = self.replica
        ahead = [line for line in log if line.offset >= replica.position]
        count = self.rng.choice([1, 5, 100])
        for line in ahead[:count]:
            was_caught_up = replica.caught_up
            judgement = replica.read(now_s, record_of(line))
            if replica.phase is Phase.START_OVER:
                return
            assert judgement is not None or not was_caught_up
            if judgement is not None:
                assert words_of(judgement) == self.truth.words[line.offset], line
            self._check()
        if len(ahead) <= count and replica.phase is not Phase.START_OVER:
            replica.reached(now_s, end)
            self._check()

    def _check(self) -> None:
        replica = self.replica
        if not replica.caught_up or replica.position == 0:
            return
        accepted = self.truth.states[replica.position - 1]
        assert replica.applied == replica.view.applied == replica.position - 1
        assert states_of(replica.view) == accepted
        assert debts_of(replica.view) == self.truth.debts[replica.position - 1]
        check_counters(replica.view, accepted)
        self.checked += 1


def test_a_replica_that_has_caught_up_equals_a_full_reader() -> None:
    """Honest heartbeats and asserts, any junk, legal compaction at any moment, also between two reads of a joiner."""
    outcomes: Counter[str] = Counter()
    for seed in seeds(30):
        log = loggen.generate(seed, KNOBS["junky"])
        for partition, lines in by_partition(log).items():
            if not lines:
                continue
            truth = Truth.of(lines, partition, len(log.end_offsets))
            for attempt in range(2):
                rng = Random(f"replica {seed} {attempt}")
                lag_ms = rng.choice([600_000, 1_800_000, 3_600_000])
                replica = Replica(partition, len(log.end_offsets), compaction_lag_s=lag_ms / 1000, kept_records_max=500)
                drive = Drive(lines, truth, replica, rng, lag_ms)
                phases = drive.run(rng.randint(0, len(lines)))
                outcomes[replica.phase] += 1
                outcomes["checked"] += drive.checked
                outcomes["joined leniently"] += replica.phase is Phase.CAUGHT_UP and phases[Phase.WAITING] > 0
    assert outcomes["joined leniently"] >= 20, outcomes
    assert outcomes["checked"] > 1000, outcomes


@pytest.mark.parametrize("seed", seeds(5))
def test_a_replica_of_a_whole_log_is_strict_from_the_start(seed: int) -> None:
    log = loggen.generate(seed, KNOBS["honest"])
    partitions = len(log.end_offsets)
    for partition, lines in by_partition(log).items():
        replica = Replica(partition, partitions, compaction_lag_s=3600, kept_records_max=10)
        replica.opened(0.0, 0, len(lines))
        for line in lines:
            assert not replica.caught_up
            assert replica.read(1.0, record_of(line)) is not None  # judged strictly, but nothing is done about it yet
        assert replica.caught_up
        assert states_of(replica.view) == (Truth.of(lines, partition, partitions).states[-1] if lines else {})


def test_a_newer_format_stops_a_replica_wherever_it_is() -> None:
    newer = Line(0, 3, 1, b"a/b", b'{"format":7}')
    lines = [Line(0, offset, 1, b"!note", b"x") for offset in range(3)]
    by = b'"by":{"broker":"b","incarnation":"i"}'
    heartbeat = b'{"format":1,"kind":"heartbeat","id":"H","covers":3,%b,"clean_to":3}' % by
    for first, end, gap in ((0, 4, False), (0, 3, False), (0, 4, True), (0, 3, True)):
        replica = Replica(0, 1, compaction_lag_s=3600, kept_records_max=10)
        replica.opened(0.0, 0, end)
        replica.reached(0.0, first)
        for line in [*lines[1 if gap else 0 :], newer, Line(0, 4, 1, b"!heartbeat", heartbeat)]:
            replica.read(1.0, record_of(line))
        assert (replica.phase, replica.newer_format) == (Phase.STOPPED, 7)
        assert "offset 3" in replica.why
        assert "format 7" in replica.why


def test_a_replica_that_is_too_slow_or_meets_a_gap_starts_over_and_waits_for_a_heartbeat() -> None:
    lines = [Line(0, offset, 1, b"!note", b"x") for offset in range(4)]

    def heartbeat(offset: int, clean_to: int) -> Line:
        by = '"by":{"broker":"b","incarnation":"i"}'
        value = f'{{"format":1,"kind":"heartbeat","id":"H","covers":3,{by},"clean_to":{clean_to}}}'
        return Line(0, offset, 1, b"!heartbeat", value.encode())

    replica = Replica(0, 1, compaction_lag_s=3600, kept_records_max=10)
    replica.opened(0.0, 0, 4)
    for line in lines[:3]:
        replica.read(1801.0, record_of(line))
    assert replica.phase is Phase.START_OVER
    replica.opened(1801.0, 0, 4)
    for line in lines[1:]:
        replica.read(1802.0, record_of(line))
    assert replica.phase is Phase.WAITING
    for vouching, caught_up in ((heartbeat(4, 2), False), (heartbeat(5, 5), False), (heartbeat(6, -1), False),
                                (heartbeat(7, 3), True)):  # fmt: skip
        replica.read(1803.0, record_of(vouching))
        assert (replica.caught_up, replica.position) == (caught_up, vouching.offset + 1)
    assert replica.read(3601.0, record_of(heartbeat(9, 8))) is None
    assert replica.phase is Phase.START_OVER
    assert "8 to 8" in replica.why


def test_a_gap_in_what_was_written_since_the_join_began_starts_it_over() -> None:
    """Below the end as of the start gaps are what compaction leaves; above it the reader was away for too long."""
    for missing_is_told in (True, False):
        replica = Replica(0, 1, compaction_lag_s=3600, kept_records_max=10)
        replica.opened(0.0, 0, 3)
        replica.read(1.0, RecordRead(Topic.CHANNEL, 0, 1, 1, b"!note", b"x"))
        replica.reached(1.0, 3)
        assert replica.phase is Phase.WAITING
        if missing_is_told:
            replica.reached(1801.0, 6)
        else:
            replica.read(1801.0, RecordRead(Topic.CHANNEL, 0, 6, 1, b"!note", b"x"))
        assert replica.phase is Phase.START_OVER
        assert "5 were compacted" in replica.why


def test_a_replica_keeps_no_more_than_it_may_while_it_waits() -> None:
    replica = Replica(0, 1, compaction_lag_s=3600, kept_records_max=2)
    replica.opened(0.0, 0, 6)
    replica.read(1.0, RecordRead(Topic.CHANNEL, 0, 5, 1, b"!note", b"x"))
    for offset, phase in ((6, Phase.WAITING), (7, Phase.WAITING), (8, Phase.START_OVER)):
        replica.read(1.0, RecordRead(Topic.CHANNEL, 0, offset, 1, b"!note", b"x"))
        assert replica.phase is phase


def test_a_cold_start_takes_what_was_read_for_the_truth() -> None:
    log = loggen.generate(3, KNOBS["honest"])
    partition, lines = max(by_partition(log).items(), key=lambda pair: len(pair[1]))
    part = clean_once(lines, Random("cold"), log.exported_at_ms + 10**9, 1, whole=True)
    replica = Replica(partition, len(log.end_offsets), compaction_lag_s=3600, kept_records_max=10)
    replica.opened(0.0, 0, len(lines) - 1)
    for line in part:
        replica.read(1.0, record_of(line))
    assert replica.phase is Phase.WAITING
    lenient = Lenient(partition, len(log.end_offsets))
    for line in part:
        lenient.read(line)
    asserted = replica.assume()
    assert replica.caught_up
    assert set(asserted) == set(lenient.last) | {key.name for key in replica.view.live()}
    taken, before = states_of(replica.view), lenient.states()
    live = {key.name for key in replica.view.live()}
    bound = max(state.version for state in before.values()) + 2 * replica.position
    for name, state in before.items():
        assert taken[name].version > bound if name in live else taken[name].version == state.version
    assert {name: replace(state, version=0) for name, state in taken.items()} == {
        name: replace(state, version=0) for name, state in before.items()
    }
    assert replica.assume() == []
    assert replica.caught_up


@pytest.mark.parametrize("caught_up", [True, False])
def test_offsets_that_go_back_break_a_replica(caught_up: bool) -> None:
    replica = Replica(0, 1, compaction_lag_s=3600, kept_records_max=2)
    replica.opened(0.0, 0, 2 if caught_up else 5)
    for offset in (0, 1):
        replica.read(1.0, RecordRead(Topic.CHANNEL, 0, offset, 1, b"!note", b"x"))
    assert replica.caught_up is caught_up
    assert replica.read(1.0, RecordRead(Topic.CHANNEL, 0, 0, 1, b"!note", b"x")) is None
    assert replica.phase is Phase.BROKEN
    assert replica.read(1.0, RecordRead(Topic.CHANNEL, 0, 2, 1, b"!note", b"x")) is None
