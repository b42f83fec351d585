"""Changes come from accepted records only: whole logs, cleaned logs, slow consumers."""

import asyncio
import tracemalloc
from collections.abc import Iterator

import orjson
import pytest

from statechannel.broker.changes import Change, ChangesError, LiveChanges, _portion, accepted_of, clean_points
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
    assert (result[1].operation, result[1].flow, result[1].reason, result[1].to) == (
        "op1",
        "assignment",
        "lookup",
        "b1",
    )
    assert result[1].timestamp_ms == 1_001
    assert result[1].to_json()["from"] is None
    assert orjson.loads(orjson.dumps(result[0].to_json()))["derived"][0]["state"] == "Unassigned"
    assert changes(log.records, since=2) == result[2:]


def test_a_cleaned_log_is_joined_and_tells_what_follows_a_clean_point() -> None:
    log = Log()
    log.flow()
    owner = "R3"
    log.put(BUNDLE, version=4, base=owner, state="Releasing", **{"from": "b1", "to": None})
    cleaned = [record for record in log.records if record.offset != 1]
    assert clean_points(cleaned, 0) == [3]
    assert [str(c.state) for c in changes(cleaned, since=4)] == ["Releasing"]
    with pytest.raises(ChangesError) as refused:
        changes(cleaned, since=2)
    assert "4" in refused.value.hint


def test_points_that_are_too_old_or_before_a_gap_are_no_clean_points() -> None:
    log = Log()
    log.flow()
    log.heartbeat(4)
    assert clean_points(log.records, 0) == [3, 4]
    assert clean_points(log.records, 1_004) == [4]
    assert clean_points(log.records, 2_000) == []
    assert clean_points([r for r in log.records if r.offset != 4], 0) == [4]


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


def test_a_newer_format_ends_the_stream_with_a_reason() -> None:
    log = Log()
    log.flow()
    log.put(BUNDLE, format=2)
    with pytest.raises(ChangesError, match="format 2"):
        changes(log.records)


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
        for offset in range(len(log.records), 20_000):
            yield RecordRead(Topic.CHANNEL, 0, offset, 9_000, b"x/y", b"x" * 1_000)

    tracemalloc.start()
    try:
        state = list(accepted_of(records, 0, 1, 4, 0))
        size = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not state
    assert size < 2_000_000


def test_what_is_cleaned_between_two_readings_is_said() -> None:
    log = Log()
    log.flow()
    log.put("x/y", version=1, base=None, state="Active", children=[WHOLE])
    log.put("x/z", version=1, base=None, state="Active", children=[WHOLE])
    readings = iter([log.records[1:], log.records[1:], [*log.records[1:5], *log.records[6:]]])
    with pytest.raises(ChangesError, match=r"Offsets 5 to 5 .* compacted while"):
        list(accepted_of(lambda: next(readings), 0, 1, 4, 0))
