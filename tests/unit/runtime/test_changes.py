"""Changes come from accepted records only: whole logs, cleaned logs, slow consumers."""

import asyncio
import tracemalloc
from collections.abc import Iterator

import orjson
import pytest

from statechannel.broker.changes import (
    Change,
    ChangesError,
    LiveChanges,
    PastReader,
    StreamEnd,
    _portion,
    accepted_of,
    clean_points,
)
from statechannel.broker.host_platform import HostClocks, HostPlatform
from statechannel.engine.inputs import Now
from statechannel.kafka.tail import Span
from statechannel.protocol import codec
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.view import View
from tests.support.cold_start_logs import cold_start_log
from tests.support.lone_engine import BUNDLE as STARTED_COLD
from tests.support.lone_engine import mark

NS = "a/b"
WHOLE = "0x00000000_0xffffffff"
BUNDLE = f"{NS}/{WHOLE}"


class Log:
    """Writes well-formed records, one a call."""

    def __init__(self) -> None:
        self.records: list[RecordRead] = []

    def put(self, key: str, **fields: object) -> str:
        offset = len(self.records)
        record_id = f"R{offset}"
        by = {"broker": "b1", "incarnation": "i1"}
        value = {"format": 1, "kind": "proposal", "id": record_id, "covers": offset - 1, "by": by, **fields}
        self.records.append(RecordRead(Topic.CHANNEL, 0, offset, 1_000 + offset, key.encode(), orjson.dumps(value)))
        return record_id

    def flow(self) -> None:
        """Create, assign; then one record that is rejected, and a heartbeat that vouches for all."""
        ring = self.put(NS, version=1, base=None, state="Active", children=[WHOLE])
        own = self.put(
            BUNDLE,
            version=2,
            base=f"{ring}/{WHOLE}",
            state="Assigning",
            **{"from": None, "to": "b1", "operation": "op1", "flow": "assignment", "reason": "lookup"},
        )
        self.put(BUNDLE, version=2, base=f"{ring}/{WHOLE}", state="Assigning", **{"from": None, "to": "b2"})
        self.put(BUNDLE, version=3, base=own, state="Assigned", **{"from": None, "to": "b1", "operation": "op1"})
        self.heartbeat(3)

    def heartbeat(self, clean_to: int) -> None:
        self.put(codec.HEARTBEAT_KEY.decode(), kind="heartbeat", clean_to=clean_to)


def changes(records: list[RecordRead], since: int = 0, oldest_kept_ms: int = 0) -> list[Change]:
    return list(accepted_of(lambda: records, 0, 1, since, oldest_kept_ms))


def test_only_accepted_records_with_all_that_they_say() -> None:
    log = Log()
    log.flow()
    result = changes(log.records)
    assert [(c.offset, str(c.state)) for c in result] == [(0, "Active"), (1, "Assigning"), (3, "Assigned")]
    assert result[0].derived[0][:3] == (BUNDLE, "Unassigned", 1)
    assert (result[1].operation, result[1].flow, result[1].reason) == ("op1", "assignment", "lookup")
    assert result[1].to == "b1"
    assert result[1].timestamp_ms == 1_001
    assert result[1].to_json()["from"] is None
    assert orjson.loads(orjson.dumps(result[0].to_json()))["derived"][0]["state"] == "Unassigned"
    for since in range(6):
        assert changes(log.records, since=since) == [change for change in result if change.offset >= since]


def test_a_split_makes_bundles_of_the_owner_at_the_next_version() -> None:
    log = Log()
    log.flow()
    halves = ["0x00000000_0x80000000", "0x80000000_0xffffffff"]
    fields = {"from": "b1", "to": None, "lost": {"broker": "b9"}}
    splitting = log.put(BUNDLE, version=4, base="R3", state="Splitting", children=halves, **fields)
    log.put(BUNDLE, version=5, base=splitting, state="Deleted", children=halves, **(fields | {"lost": "b9"}))
    begun, ended = changes(log.records, since=5)
    assert (begun.lost, ended.lost) == ({"broker": "b9"}, None)
    assert list(ended.derived) == [(f"{NS}/{half}", "Assigned", 6, "b1") for half in halves]
    assert ended.derived == tuple(ended.derived)
    assert ended.derived != 7
    assert ended.derived != tuple(ended.derived)[:1]
    assert (ended.derived[0], ended.derived[1]) == (ended.derived[-2], ended.derived[-1])
    for outside in (2, -3):
        with pytest.raises(IndexError):
            ended.derived[outside]
    assert not Change.of(codec.decode(log.records[1].value or b"", namespace=False), log.records[1]).derived  # type: ignore[arg-type]


def test_a_cleaned_log_is_joined_and_tells_what_follows_a_clean_point() -> None:
    log = Log()
    log.flow()
    owner = "R3"
    log.put(BUNDLE, version=4, base=owner, state="Releasing", **{"from": "b1", "to": None})
    cleaned = [record for record in log.records if record.offset != 1]
    assert clean_points(cleaned, 0) == [3]
    assert [str(c.state) for c in changes(cleaned, since=4)] == ["Releasing"]
    for since in (1, 2, 3):
        with pytest.raises(ChangesError) as refused:
            changes(cleaned, since=since)
        assert (refused.value.reason, refused.value.partition, refused.value.next_offset) == ("compacted", 0, 4)
    with pytest.raises(ChangesError) as refused:
        changes(cleaned[:1] + cleaned[2:3])
    assert (refused.value.reason, refused.value.next_offset) == ("compacted", None)


def test_a_joined_log_is_judged_from_there_on() -> None:
    log = Log()
    log.flow()
    log.put(BUNDLE, version=4, base="R3", state="Releasing", **{"from": "b1", "to": None})
    log.put(BUNDLE, version=4, base="R3", state="Releasing", **{"from": "b1", "to": "b2"})  # too late
    log.put(BUNDLE, version=5, base="R5", state="Unassigned", **{"from": "b1", "to": None})
    cleaned = [record for record in log.records if record.offset != 1]
    for since in range(4, 9):
        assert [change.offset for change in changes(cleaned, since)] == [offset for offset in (5, 7) if offset >= since]


def test_points_that_are_too_old_or_before_a_gap_are_no_clean_points() -> None:
    log = Log()
    log.flow()
    log.heartbeat(4)
    assert clean_points(log.records, 0) == [3, 4]
    assert clean_points(log.records, 1_004) == [4]
    assert clean_points(log.records, 2_000) == []
    assert clean_points([r for r in log.records if r.offset != 4], 0) == [4]


@pytest.mark.parametrize(("clean_to", "points"), [(-1, []), (0, [0]), (4, [4]), (5, []), (6, [])])
def test_a_point_lies_in_the_log_and_before_the_heartbeat_that_vouches_for_it(clean_to: int, points: list[int]) -> None:
    log = Log()
    log.flow()
    log.records.pop()
    log.put("x/y", version=1, base=None, state="Active", children=[WHOLE])
    log.heartbeat(clean_to)
    assert clean_points(log.records, 0) == points


@pytest.mark.parametrize(("oldest_kept_ms", "points"), [(1_002, [3, 4]), (1_003, [3, 4]), (1_004, [4]), (1_005, [])])
def test_records_older_than_the_lag_may_have_hidden_others_below_them(oldest_kept_ms: int, points: list[int]) -> None:
    log = Log()
    log.flow()
    log.heartbeat(4)
    assert clean_points(log.records, oldest_kept_ms) == points


def test_a_point_before_a_gap_is_none() -> None:
    log = Log()
    for number in range(4):
        log.put(f"x/n{number}", version=1, base=None, state="Active", children=[WHOLE])
    log.heartbeat(1)
    log.heartbeat(2)
    assert clean_points(log.records, 0) == [1, 2]
    for missing, points in ((0, [1, 2]), (1, [1, 2]), (2, [2]), (3, [])):
        assert clean_points([read for read in log.records if read.offset != missing], 0) == points


def test_a_log_without_gaps_is_told_across_a_cold_start() -> None:
    """What follows the mark is judged by the history that counts since: the one that members hold."""
    records, alone = cold_start_log(differs=True)
    view = alone.engine.replicas[0].view
    later = after(records, view, view.keys[STARTED_COLD])
    result = changes([*records, later])
    assert result[-1].offset == later.offset


def test_no_point_before_a_cold_start_is_a_clean_point() -> None:
    log = Log()
    log.flow()
    head = log.records
    offset = len(head)
    started = RecordRead(Topic.CHANNEL, 0, offset, 1_000 + offset, codec.COLD_START_KEY, mark("gone", offset - 1))
    void = started._replace(value=mark("gone", offset - 3))
    assert clean_points([*head, void], 0) == [3]
    assert clean_points([*head, started], 0) == []


def after(records: list[RecordRead], view: View, key: KeyState) -> RecordRead:
    """A record that goes on with the state of a key, behind all others."""
    fields = {"format": 1, "kind": "proposal", "id": "later", "covers": view.applied, "state": "Assigning"}
    fields |= {"version": key.version + 1, "base": key.accepted_id, "by": {"broker": "b1", "incarnation": "i1"}}
    fields |= {"from": None, "to": "b1", "forced": True}
    last = records[-1]
    return last._replace(offset=last.offset + 1, key=key.key, value=orjson.dumps(fields))


@pytest.mark.parametrize(("cleaned", "since"), [(None, 0), (1, 4), (1, 6)], ids=["whole", "joined", "after"])
def test_a_newer_format_ends_the_stream_with_a_reason(cleaned: int | None, since: int) -> None:
    log = Log()
    log.flow()
    log.put(BUNDLE, format=2)
    log.heartbeat(5)
    with pytest.raises(ChangesError, match="format 2") as refused:
        changes([read for read in log.records if read.offset != cleaned], since=since)
    assert (refused.value.reason, refused.value.partition) == ("newer-format", 0)


class Tail:
    """The log of a test, of which a part is asked for."""

    def __init__(self, records: list[RecordRead]) -> None:
        self.log = records
        self.closed = 0

    def span(self) -> Span:
        return Span(0, 0, len(self.log))

    def records(self, span: Span) -> Iterator[RecordRead]:
        return iter(self.log[: span.end])

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("since", "until", "offsets"), [(0, 9, [0, 1, 3]), (1, 9, [1, 3]), (0, 3, [0, 1]), (0, 4, [0, 1, 3])]
)
async def test_the_past_is_read_up_to_a_position(since: int, until: int, offsets: list[int]) -> None:
    log = Log()
    log.flow()
    tail = Tail(log.records)
    past = PastReader(tail, 0, partitions=1, compaction_lag_s=3600)
    assert [change.offset async for change in past.read(since, until)] == offsets
    assert tail.closed == 1


@pytest.mark.parametrize(("at_ms", "available"), [(90_001, True), (90_000, False)])
async def test_what_is_older_than_the_lag_is_not_joined(at_ms: int, available: bool) -> None:
    log = Log()
    log.flow()
    log.put("x/y", version=1, base=None, state="Active", children=[WHOLE])
    tail = Tail([read._replace(timestamp_ms=at_ms) for read in log.records if read.offset != 1])
    platform = HostPlatform(clocks=HostClocks(now=lambda: Now(0.0, 100_000)))
    past = PastReader(tail, 0, partitions=1, compaction_lag_s=10.0, platform=platform)
    if available:
        assert [change.offset async for change in past.read(4, 9)] == [5]
    else:
        with pytest.raises(ChangesError):
            await anext(past.read(4, 9))
    assert tail.closed == 1


def deliver(live: LiveChanges, reads: list[RecordRead]) -> None:
    for read in reads:
        live.deliver(codec.decode(read.value or b"", namespace=b"/0x" not in (read.key or b"")), read)  # type: ignore[arg-type]


def test_what_waits_is_taken_without_waiting_and_then_the_end_is_said() -> None:
    log = Log()
    log.flow()
    live = LiveChanges()
    watcher, other = live.watch(2), live.watch(10)
    deliver(live, log.records[:2])
    assert [change.offset for change in watcher.take()] == [0, 1]
    assert list(watcher.take()) == []
    deliver(live, log.records[1:4])
    deliver(live, log.records[:1])  # comes too late: the stream has ended
    with pytest.raises(ChangesError) as ended:
        list(watcher.take())
    assert (ended.value.reason, ended.value.partition) == ("too-slow", 0)
    other.close()
    other.close()
    deliver(live, log.records[:1])
    assert len(list(other.take())) == 6  # none of those after it has closed


def test_room_is_counted_in_bytes_and_given_back() -> None:
    log = Log()
    log.flow()
    sizes = [len(read.value or b"") for read in log.records]
    live = LiveChanges(limit_bytes=sizes[0] + sizes[1])
    watcher = live.watch(10)
    for _ in range(3):
        deliver(live, log.records[:2])
        assert len(list(watcher.take())) == 2
    deliver(live, log.records[:3])
    took = watcher.take()
    assert [next(took).offset, next(took).offset] == [0, 1]
    with pytest.raises(ChangesError):
        next(took)


def test_the_first_reason_for_an_end_is_the_one_that_is_said() -> None:
    live = LiveChanges()
    watcher = live.watch(10)
    live.interrupt(3, "is being joined")
    live.close(ChangesError("over", hint="", reason=StreamEnd.NOT_FOLLOWED))
    with pytest.raises(ChangesError) as ended:
        list(watcher.take())
    assert (ended.value.reason, ended.value.partition) == ("interrupted", 3)
    with pytest.raises(ChangesError, match="over"):
        list(live.watch(10).take())


def test_nobody_follows_while_changes_would_be_missed() -> None:
    why: list[str] = ["partition 0 is being joined"]
    live = LiveChanges(closed_why=lambda: why[0] if why else None)
    with pytest.raises(ChangesError, match="partition 0 is being joined") as refused:
        live.watch(10)
    assert refused.value.reason == "not-followed"
    why.clear()
    assert list(live.watch(10).take()) == []


async def test_slow_consumer_gets_what_waits_and_then_a_clear_error() -> None:
    log = Log()
    log.flow()
    live = LiveChanges()
    slow, fast = live.watch(1), live.watch(10)
    results = []
    for read in log.records[:2]:
        record = codec.decode(read.value or b"", namespace=read.offset == 0)
        live.deliver(record, read)  # type: ignore[arg-type]
    results = [(await fast.next()).offset, (await fast.next()).offset]
    assert results == [0, 1]
    assert (await slow.next()).offset == 0
    with pytest.raises(ChangesError, match="too slow"):
        await slow.next()
    waiting = asyncio.ensure_future(fast.next())
    await asyncio.sleep(0)
    live.interrupt(0, "is being joined")
    with pytest.raises(ChangesError, match="is being joined"):
        await waiting


def test_the_portions_in_which_the_past_is_read_leave_nothing_out() -> None:
    log = Log()
    before = log.put(NS, version=1, base=None, state="Active", children=[WHOLE])
    base, version = f"{before}/{WHOLE}", 2
    log_length = 1_200
    while len(log.records) < log_length:
        to = {"from": None, "to": None if version % 2 else "b1"}
        state = "Unassigned" if version % 2 else "Assigning"
        base = log.put(BUNDLE, version=version, base=base, state=state, forced=True, **to)
        version += 1
    result = accepted_of(lambda: log.records, 0, 1, 0, 0)
    offsets: list[int] = []
    while portion := _portion(result):
        offsets += [change.offset for change in portion]
    assert offsets == list(range(log_length))


def test_a_long_cleaned_log_is_read_and_not_kept() -> None:
    log = Log()
    log.flow()
    size = 0

    def records() -> Iterator[RecordRead]:
        yield from log.records[1:]
        for offset in range(len(log.records), 3_000):
            yield RecordRead(Topic.CHANNEL, 0, offset, 9_000, b"x/y", bytes(1_000))

    tracemalloc.start()
    try:
        state = list(accepted_of(records, 0, 1, 4, 0))
        size = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not state
    assert size < 1_000_000


def test_what_is_cleaned_between_two_readings_is_said() -> None:
    log = Log()
    log.flow()
    log.put("x/y", version=1, base=None, state="Active", children=[WHOLE])
    log.put("x/z", version=1, base=None, state="Active", children=[WHOLE])
    readings = iter([log.records[1:], log.records[1:], [*log.records[1:5], *log.records[6:]]])
    with pytest.raises(ChangesError, match=r"Offsets 5 to 5 .* compacted while"):
        list(accepted_of(lambda: next(readings), 0, 1, 4, 0))
