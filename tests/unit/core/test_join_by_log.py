"""Where the log vouches by itself: the newest clean heartbeat serves if nothing above it can have been cleaned (section 5)."""

from dataclasses import dataclass, field
from random import Random

import orjson
import pytest

from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.replica import Phase, Replica
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, LoneEngine, heartbeat, mark

LAG_S = 100.0
NOW_S = 1_000.0
OLD_MS, YOUNG_MS = 950_000, 950_001
"""Log times at the end of the reading (1,000 s by Kafka's clock): as old as half the lag, and a little younger."""


def junk(version: int = 9) -> bytes:
    head = {"format": 1, "kind": "proposal", "id": "junk", "covers": -1, "by": {"broker": "z", "incarnation": "z-1"}}
    return orjson.dumps(head | {"version": version, "base": "zz", "state": "Deleted"})


@dataclass
class Log:
    """Records by offset; 0 is always missing, so that nobody reads strictly from the start."""

    records: list[RecordRead] = field(default_factory=list)

    def put(self, offset: int, key: bytes, value: bytes | None, ms: int = YOUNG_MS) -> "Log":
        self.records.append(RecordRead(Topic.CHANNEL, 0, offset, ms, key, value))
        return self


def base() -> Log:
    """A namespace and a heartbeat at offset 2 that vouches for it; junk after it, which a lenient reader believes."""
    return Log().put(1, NAMESPACE, CREATED, 1).put(2, b"!heartbeat", heartbeat("b-1", 1)).put(3, NAMESPACE, junk())


def joined(log: Log, *, clock_ms: float | None = 0.0, end: int | None = None, **bounds: int) -> Replica:
    replica = Replica(0, 1, compaction_lag_s=LAG_S, **({"kept_records_max": 100} | bounds))
    if clock_ms is not None:
        replica.learn_clock(clock_ms)
    replica.opened(NOW_S, 0, log.records[-1].offset + 1 if end is None else end)
    for record in log.records:
        replica.read(NOW_S, record)
    if end is not None:
        replica.reached(NOW_S, end)
    return replica


def state(replica: Replica) -> tuple[str, int] | None:
    held = replica.view.get(NAMESPACE.decode())
    return None if held is None or held.state is None else (held.state.value, held.version)


def test_the_newest_clean_heartbeat_serves_without_waiting() -> None:
    replica = joined(base())
    assert replica.caught_up
    assert state(replica) == ("Active", 1)
    assert replica.position == 4
    assert "through offset 1" in replica.why
    assert [key.name for key in replica.view.ledger.open] == [NAMESPACE.decode()]


@pytest.mark.parametrize(
    ("log", "caught_up"),
    [
        pytest.param(base().put(4, b"!note", b"", OLD_MS), False, id="something above is as old as half the lag"),
        pytest.param(base().put(4, b"!note", b"", YOUNG_MS), True, id="all above are younger"),
        pytest.param(base().put(5, b"!note", b""), True, id="an offset behind a young record never held one"),
        pytest.param(
            Log().put(1, NAMESPACE, CREATED, 1).put(2, b"!note", b"", OLD_MS).put(4, b"!heartbeat", heartbeat("b-1", 2)), False,
            id="an offset behind an old record may have been cleaned",
        ),
        pytest.param(
            Log().put(1, NAMESPACE, CREATED, 1).put(2, b"!note", b"").put(4, b"!heartbeat", heartbeat("b-1", 2)), True,
            id="an offset behind a young record, right above",
        ),
        pytest.param(base().put(4, b"!cold-start", mark("c-1", 3)), False, id="a mark lies above"),
        pytest.param(base().put(4, b"!cold-start", mark("c-1", 1)), True, id="a void mark lies above"),
        pytest.param(base().put(4, b"!cold-start", b"junk"), True, id="junk on the key of the marks"),
        pytest.param(base().put(4, b"!cold-start", None), True, id="a null on the key of the marks"),
        pytest.param(base().put(4, b"!cold-start", mark("c-1", 4)), True, id="a mark of somebody who read itself"),
        pytest.param(
            base().put(4, b"!cold-start", mark("c-1", 3)).put(5, b"!heartbeat", heartbeat("b-1", 4)), True,
            id="a heartbeat has seen the mark",
        ),
        pytest.param(
            base().put(4, b"!cold-start", mark("c-1", 3)).put(5, b"!heartbeat", heartbeat("b-1", 3)), False,
            id="a heartbeat has not seen the mark",
        ),
        pytest.param(base().put(4, b"!heartbeat", heartbeat("b-1", -1)), True, id="a later one that is not clean"),
        pytest.param(base().put(4, b"!heartbeat", b"junk"), True, id="a later one that is none"),
        pytest.param(
            Log().put(1, NAMESPACE, CREATED).put(2, b"!heartbeat", heartbeat("b-1", 2)), False,
            id="one that vouches for itself",
        ),
        pytest.param(
            Log().put(1, NAMESPACE, CREATED).put(2, b"!heartbeat", heartbeat("b-1", -1)), False, id="none is clean"
        ),
        pytest.param(
            Log().put(2, NAMESPACE, CREATED).put(3, b"!heartbeat", heartbeat("b-1", 0)), False,
            id="the gap reaches above it",
        ),
        pytest.param(
            Log().put(2, NAMESPACE, CREATED).put(3, b"!heartbeat", heartbeat("b-1", 1)), True,
            id="the gap ends below it",
        ),
        pytest.param(
            base().put(4, b"!note", b"", OLD_MS).put(5, b"!heartbeat", heartbeat("b-1", 4)), True,
            id="the old one is vouched for by a later heartbeat",
        ),
        pytest.param(
            Log().put(1, NAMESPACE, CREATED, 1).put(2, b"!heartbeat", heartbeat("b-1", 1), OLD_MS), False,
            id="the heartbeat itself is old",
        ),
    ],
)  # fmt: skip
def test_when_the_log_vouches(log: Log, caught_up: bool) -> None:
    # Not to the end as of the start: such a heartbeat would serve in any case.
    log.put(log.records[-1].offset + 1, b"!note", b"").put(log.records[-1].offset + 1, b"!note", b"")
    replica = joined(log)
    assert (replica.phase is Phase.CAUGHT_UP) is caught_up
    assert replica.phase in (Phase.CAUGHT_UP, Phase.WAITING)


def test_offsets_that_are_missing_at_the_end_lie_above_it() -> None:
    old = Log().put(1, NAMESPACE, CREATED, 1).put(2, b"!heartbeat", heartbeat("b-1", 1)).put(3, b"!note", b"", OLD_MS)
    assert joined(old, end=6).phase is Phase.WAITING
    assert joined(base(), end=6).caught_up, "behind a young record nothing was cleaned"
    assert joined(base(), end=4).caught_up


def test_without_kafkas_clock_nobody_knows_how_old_a_record_was() -> None:
    replica = joined(base(), clock_ms=None)
    assert replica.phase is Phase.WAITING
    replica.learn_clock(0.0)
    assert replica.caught_up


def test_the_age_is_that_at_the_end_of_the_reading() -> None:
    """What is read later is read in order, without gaps; and what lies below was all there when it was read."""
    replica = joined(base(), clock_ms=None)
    replica.read(NOW_S + 200, RecordRead(Topic.CHANNEL, 0, 4, 1_200_000, b"!note", b""))
    replica.learn_clock(0.0)
    assert replica.caught_up
    assert joined(base(), clock_ms=1.0).phase is Phase.WAITING  # a clock that is ahead: the junk was old


def test_a_heartbeat_that_comes_while_it_waits_serves_for_what_it_says() -> None:
    """Not for the end as of the start: it had not read the junk, and is behind it."""
    log = Log().put(1, NAMESPACE, CREATED).put(2, NAMESPACE, junk()).put(3, BUNDLE, b"junk")
    replica = joined(log)
    assert replica.phase is Phase.WAITING
    replica.read(NOW_S, RecordRead(Topic.CHANNEL, 0, 4, YOUNG_MS, b"!heartbeat", heartbeat("b-1", 1)))
    assert replica.caught_up
    assert state(replica) == ("Active", 1)


def test_a_joiner_is_not_starved_by_junk_that_goes_on() -> None:
    log = base()
    for offset in range(4, 50):
        log.put(offset, b"t/n%d" % offset, b"junk")
    assert joined(log).caught_up


def test_what_may_not_be_kept_is_taken_leniently_and_the_heartbeat_below_it_serves_no_more() -> None:
    log = base()
    for offset in range(4, 10):
        log.put(offset, b"!note", b"")
    assert joined(log, kept_records_max=8).caught_up
    assert joined(log, kept_records_max=7).phase is Phase.WAITING
    assert joined(log, kept_max_bytes=sum(len(record.value or b"") for record in log.records[1:])).caught_up
    assert joined(log, kept_max_bytes=100).phase is Phase.WAITING


def test_a_reading_that_took_longer_than_half_the_lag_starts_over() -> None:
    replica = Replica(0, 1, compaction_lag_s=LAG_S, kept_records_max=100)
    replica.learn_clock(0.0)
    replica.opened(NOW_S - LAG_S / 2 - 1, 0, 4)
    for record in base().records:
        replica.read(NOW_S, record)
    assert replica.phase is Phase.START_OVER


def test_after_a_start_over_a_log_without_gaps_is_read_strictly() -> None:
    """Junk that a lenient reader would believe; the reader was cut off once, and the log is a whole one."""
    replica = Replica(0, 1, compaction_lag_s=LAG_S, kept_records_max=100)
    log = Log().put(0, NAMESPACE, CREATED).put(1, NAMESPACE, junk())
    replica.opened(NOW_S, 0, 2)
    replica.read(NOW_S, log.records[0])
    replica.start_over("somebody says so")
    replica.opened(NOW_S, 0, 2)
    for record in log.records:
        replica.read(NOW_S, record)
    assert replica.caught_up
    assert state(replica) == ("Active", 1)


def test_a_gap_that_was_met_is_remembered_for_the_next_reading_only() -> None:
    log = Log().put(0, NAMESPACE, CREATED).put(2, NAMESPACE, junk())
    replica = Replica(0, 1, compaction_lag_s=LAG_S, kept_records_max=100)
    phases = []
    for _ in range(2):
        replica.opened(NOW_S, 0, 3)
        for record in log.records:
            replica.read(NOW_S, record)
        phases.append(replica.phase)
    assert phases == [Phase.START_OVER, Phase.WAITING]
    replica.start_over("again")
    replica.opened(NOW_S, 0, 1)  # another copy of the partition, which was not cleaned
    replica.read(NOW_S, log.records[0])
    assert replica.caught_up


def test_a_broker_learns_kafkas_clock_from_its_own_registry_records() -> None:
    """The log of the smallest known case: junk above the newest clean heartbeat, everybody gone for 20 s (lag 1 h)."""
    channel = [(b"!heartbeat", b"", 1), (NAMESPACE, CREATED, 1), (b"!heartbeat", heartbeat("b-1", 1), 80_000),
               (NAMESPACE, junk(), 80_001)]  # fmt: skip
    alone = LoneEngine(channel, first=1)
    assert not alone.engine.caught_up
    alone.run(1)
    assert alone.engine.caught_up
    assert state(alone.engine.replicas[0]) == ("Active", 1)
    alone.run(30)
    assert "cold-start.began" not in alone.events


def dumb(records: list[RecordRead], end: int, now_ms: int) -> int | None:
    """The rule by the letter of the page, over all records at once: N, or None where the reader has to wait."""
    words, marks, best = [], [], -1
    for record in records:
        loaded = None
        try:
            loaded = orjson.loads(record.value or b"")
        except orjson.JSONDecodeError:
            continue
        if record.key == b"!heartbeat" and isinstance(loaded, dict):
            words.append(record.offset)
            if 0 <= loaded["clean_to"] < record.offset:
                best = max(best, loaded["clean_to"])
        if record.key == b"!cold-start" and isinstance(loaded, dict) and loaded["through"] < record.offset:
            if not any(loaded["through"] < word for word in words):
                words.append(record.offset)
                marks.append(record.offset)
    there = {record.offset: record.timestamp_ms for record in records}
    before_ms, missing = -1e9, []
    for offset in range(end):
        if offset in there:
            before_ms = there[offset]
        elif now_ms - before_ms >= LAG_S * 500:
            missing.append(offset)
    sees_all = best >= max([end - 1, *marks])
    young = all(now_ms - record.timestamp_ms < LAG_S * 500 for record in records if record.offset > best)
    vouches = young and not any(offset > best for offset in (*missing, *marks))
    return best if best >= 0 and (sees_all or vouches) else None


def test_the_rule_is_that_of_the_page() -> None:
    for seed in range(400):
        check_rule(Random(f"join by log {seed}"))


def check_rule(rng: Random) -> None:
    log = Log()
    ms = 900_000
    offset = 1
    for _ in range(rng.randint(1, 12)):
        ms += rng.choice((0, 1_000, 20_000, 60_000))
        roll = rng.random()
        if roll < 0.4:
            value = heartbeat("b-1", rng.choice((-1, offset - 1, max(-1, offset - rng.randint(1, 5)), offset)))
            log.put(offset, b"!heartbeat", value, ms)
        elif roll < 0.5:
            log.put(offset, b"!cold-start", rng.choice((mark("c-1", rng.randint(0, offset)), b"x", None)), ms)
        else:
            log.put(offset, *rng.choice(((NAMESPACE, CREATED), (NAMESPACE, junk()), (b"!note", b"x"))), ms)
        offset += rng.choice((1, 1, 1, 1, 2))
    now_ms = ms + rng.choice((0, 1_000, 30_000, 49_999, 50_000, 200_000))
    end = offset if rng.random() < 0.2 else log.records[-1].offset + 1
    replica = joined(log, clock_ms=now_ms - NOW_S * 1000, end=end)
    expected = dumb(log.records, end, now_ms)
    assert replica.caught_up == (expected is not None)
    if expected is not None:
        assert f"through offset {expected}" in replica.why
