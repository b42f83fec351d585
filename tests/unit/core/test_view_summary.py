"""What a heartbeat says of its writer's view, and what a reader makes of it (protocol.md section 5)."""

from itertools import product

import orjson
import pytest

from statechannel.protocol import digest as digest_module
from statechannel.protocol.bundle import children_of, namespace_bounds
from statechannel.protocol.digest import ViewDigest, ViewSummary, line, partitions_in
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.replica import Phase, Replica
from statechannel.protocol.view import View
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, LoneEngine, heartbeat

NOW_S, LAG_S = 1_000.0, 100.0
HEARTBEAT = b"!heartbeat"
OTHER = ViewSummary(keys=7, digest="00000000000000ff")


def record(offset: int, key: bytes, value: bytes) -> RecordRead:
    return RecordRead(Topic.CHANNEL, 0, offset, 1_000_000 + offset, key, value)


def says(broker: str, covers: int, clean_to: int, summary: ViewSummary | None, partitions: int | None = 1) -> bytes:
    fields = orjson.loads(heartbeat(f"{broker}-1", clean_to)) | {"covers": covers}
    fields["by"] = {"broker": broker, "incarnation": f"{broker}-1"}
    fields |= {} if partitions is None else {"partitions": partitions}
    return orjson.dumps(fields | ({} if summary is None else summary._asdict()))


def reader(first: int = 0, end: int = 1, partitions: int = 1) -> Replica:
    replica = Replica(0, partitions, compaction_lag_s=LAG_S, kept_records_max=100)
    replica.learn_clock(0.0)
    replica.opened(NOW_S, first, end)
    return replica


def caught_up() -> Replica:
    replica = reader()
    replica.read(NOW_S, record(0, NAMESPACE, CREATED))
    return replica


def of(*records: tuple[bytes, bytes]) -> ViewSummary:
    """The summary of whoever has judged these records."""
    view = View(0, 1)
    for offset, (key, value) in enumerate(records):
        view.read(offset, key, value)
    return summary_of(ViewDigest(view))


def summary_of(digest: ViewDigest) -> ViewSummary:
    return digest.advance(100)


TRUE = of((NAMESPACE, CREATED))


# --- comparing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("theirs", "equal"), [(TRUE, True), (OTHER, False)])
def test_who_is_caught_up_compares_what_it_holds_at_the_same_offset(theirs: ViewSummary, equal: bool) -> None:
    replica = caught_up()
    replica.read(NOW_S, record(1, HEARTBEAT, says("b", 0, 0, theirs)))
    assert replica.compared["b"].is_equal is equal
    assert (replica.compared["b"].theirs, replica.compared["b"].own) == (theirs, TRUE)
    assert replica.caught_up, "who differs may be right: nobody stops"


@pytest.mark.parametrize(
    ("before", "after", "phase"),
    [
        ([], [TRUE], Phase.CAUGHT_UP),
        ([TRUE], [TRUE, OTHER], Phase.CAUGHT_UP),
        ([OTHER], [OTHER], Phase.CAUGHT_UP),
        ([TRUE], [OTHER], Phase.START_OVER),
        ([], [OTHER], Phase.START_OVER),
    ],
    ids=["nothing missed", "equal behind the gap", "differed before", "differs behind the gap", "never heard before"],
)
def test_a_reader_that_took_compacted_offsets_for_markers_starts_over_at_the_next_heartbeat(before, after, phase):
    """A true marker is skipped by all, so that all are equal behind it."""
    replica = caught_up()
    offset = 1
    for theirs in before:
        replica.read(NOW_S, record(offset, HEARTBEAT, says("b", offset - 1, 0, theirs)))
        offset += 1
    replica.complete_as_of(NOW_S)
    offset += 3  # without a record
    for theirs in after:
        replica.read(NOW_S + 1, record(offset, HEARTBEAT, says("b", offset - 1, 0, theirs)))
        offset += 1
    assert replica.phase is phase


@pytest.mark.parametrize(("away_s", "phase"), [(5.0, Phase.CAUGHT_UP), (15.0, Phase.START_OVER)])
def test_a_reader_that_was_paused_takes_no_missing_offset_for_a_marker(away_s: float, phase: Phase) -> None:
    """Meanwhile the compaction lag of the topic may have been another one."""
    replica = caught_up()
    replica.complete_as_of(NOW_S)
    replica.read(NOW_S + away_s, record(9, HEARTBEAT, says("b", 8, 0, TRUE)))
    assert replica.phase is phase


def test_since_when_another_broker_differs_is_the_last_offset_at_which_it_did_not() -> None:
    replica = caught_up()
    for offset, theirs in ((1, TRUE), (2, OTHER), (3, OTHER)):
        replica.read(NOW_S, record(offset, HEARTBEAT, says("b", offset - 1, 0, theirs)))
    assert (replica.compared["b"].offset, replica.compared["b"].equal_at) == (2, 0)
    replica.read(NOW_S, record(4, HEARTBEAT, says("b", 3, 0, TRUE)))
    assert replica.compared["b"].is_equal


def test_a_heartbeat_from_before_the_last_change_is_compared_with_nothing() -> None:
    replica = reader()
    replica.read(NOW_S, record(0, HEARTBEAT, says("b", -1, -1, of())))
    assert replica.caught_up
    replica.read(NOW_S, record(1, NAMESPACE, CREATED))
    replica.read(NOW_S, record(2, HEARTBEAT, says("b", 0, 0, of())))
    assert replica.compared == {}
    replica.read(NOW_S, record(3, HEARTBEAT, says("b", 2, 2, TRUE)))
    assert replica.compared["b"].is_equal


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"keys": 7}, {"keys": "7", "digest": "00000000000000ff"}, {"keys": -1, "digest": "0" * 16},
        {"keys": 7, "digest": "ff"}, {"keys": 7, "digest": None}, {"keys": True, "digest": "0" * 16},
    ],
)  # fmt: skip
def test_a_heartbeat_without_a_summary_is_one_of_an_older_version(fields: dict) -> None:
    assert ViewSummary.read(fields) is None


@pytest.mark.parametrize("partitions", [None, 0, -1, "1", True, 1.0, 10**9])
def test_what_is_no_number_of_partitions_names_none(partitions: object) -> None:
    assert partitions_in({"partitions": partitions}) is None
    assert partitions_in({}) is None


# --- joining -------------------------------------------------------------------------------------------------------


def joining(*heartbeats: tuple[int, bytes], end: int = 3) -> Replica:
    """It lacks offset 0, and reads a namespace at offset 1."""
    replica = reader(end=end)
    replica.read(NOW_S, record(1, NAMESPACE, CREATED))
    for offset, value in heartbeats:
        replica.read(NOW_S, record(offset, HEARTBEAT, value))
    return replica


@pytest.mark.parametrize(
    ("theirs", "phase"), [(TRUE, Phase.CAUGHT_UP), (None, Phase.CAUGHT_UP), (OTHER, Phase.WAITING)]
)
def test_a_joiner_compares_what_it_read_with_what_its_voucher_holds(theirs: ViewSummary | None, phase: Phase) -> None:
    """On the word of a heartbeat that comes, and of one in the log."""
    waits = joining((2, says("b", 1, -1, None)), (3, says("b", 2, 2, theirs)))
    assert waits.phase is phase
    by_log = joining((2, says("b", 1, 1, theirs)))
    assert by_log.phase is phase
    if theirs is OTHER:
        assert not waits.compared["b"].is_equal
        assert waits.compared["b"].own == TRUE


def test_a_joiner_that_differs_joins_once_it_does_not() -> None:
    replica = joining((2, says("b", 1, -1, None)), (3, says("b", 2, 2, OTHER)))
    offset = 4
    while replica.phase is Phase.WAITING and offset < 50:
        replica.read(NOW_S, record(offset, HEARTBEAT, says("b", offset - 1, offset - 1, TRUE)))
        offset += 1
    assert replica.caught_up
    assert replica.applied == offset - 1
    assert replica.compared["b"].is_equal


def test_a_joiner_that_differs_may_still_be_made_to_start_cold() -> None:
    replica = joining((2, says("b", 1, 1, OTHER)))
    assert replica.phase is Phase.WAITING
    assert replica.assume() == [NAMESPACE.decode(), BUNDLE.decode()]
    assert replica.caught_up


# --- the number of partitions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [0, 1])
def test_the_first_number_of_partitions_in_the_log_counts(end: int) -> None:
    """Found while it reads, or right after it: two that start together each take the number that Kafka has then."""
    late = reader(end=end, partitions=3)
    late.read(NOW_S, record(0, HEARTBEAT, says("b", -1, -1, None, partitions=1)))
    assert late.phase is Phase.BROKEN
    first = reader(end=end, partitions=1)
    first.read(NOW_S, record(0, HEARTBEAT, says("a", -1, -1, None, partitions=1)))
    first.read(NOW_S, record(1, HEARTBEAT, says("b", 0, 0, None, partitions=3)))
    assert first.caught_up
    assert first.other_counts == {"b": 3}
    first.read(NOW_S, record(2, HEARTBEAT, says("b", 1, 1, None, partitions=1)))
    assert first.other_counts == {}


@pytest.mark.parametrize("clean_to", [1, -1])
def test_a_reader_that_waits_stops_at_the_first_heartbeat_that_names_another_number(clean_to: int) -> None:
    """Whether it would end the wait or not; nothing named a number when the reader began."""
    replica = reader(end=2, partitions=3)
    replica.read(NOW_S, record(1, BUNDLE, b"?"))
    assert replica.phase is Phase.WAITING
    replica.read(NOW_S, record(2, HEARTBEAT, says("b", 1, clean_to, TRUE, partitions=1)))
    assert replica.phase is Phase.BROKEN


@pytest.mark.parametrize("order", ["".join(letters) for letters in product("13", repeat=4)])
def test_whichever_heartbeat_is_the_first_those_who_began_at_the_same_moment_end_with_one_number(order: str) -> None:
    """Each has found an empty log, and Kafka has told them different numbers."""
    readers = {number: reader(end=0, partitions=int(number)) for number in "13"}
    for offset, number in enumerate(order):
        value = says(f"b{number}", offset - 1, offset - 1, None, partitions=int(number))
        for replica in readers.values():
            replica.read(NOW_S, record(offset, HEARTBEAT, value))
    assert [number for number, replica in readers.items() if replica.caught_up] == [order[0]]


def test_a_heartbeat_that_names_no_number_stops_nobody() -> None:
    replica = reader(end=0, partitions=3)
    replica.read(NOW_S, record(0, HEARTBEAT, says("b", -1, -1, None, partitions=None)))
    assert replica.caught_up


# --- the digest ----------------------------------------------------------------------------------------------------


def test_the_digest_of_a_bundle_is_part_of_it() -> None:
    view = View(0, 1)
    view.read(0, NAMESPACE, CREATED)
    digest = ViewDigest(view)
    before = summary_of(digest)
    move = orjson.dumps({"format": 1, "kind": "proposal", "id": "m", "covers": 0, "by": {"broker": "b", "incarnation": "b-1"},
                         "version": 2, "base": f"{view.keys[NAMESPACE].record_id}/{BUNDLE.decode()[-21:]}", "state": "Assigning",
                         "from": None, "to": "b"})  # fmt: skip
    assert view.read(1, BUNDLE, move).verdict == "accepted"
    after = summary_of(digest)
    assert after.keys == before.keys
    assert after.digest != before.digest
    again = ViewDigest(view)
    assert again.advance(1) is None, "a portion at a time"
    assert summary_of(again) == after


def test_a_member_hashes_what_it_holds_a_bounded_portion_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A join of many keys, or a storm, must not hold up what else the loop has to do; a heartbeat names the version even so."""
    ranges = children_of(tuple(namespace_bounds(4096)))
    alone = LoneEngine([(NAMESPACE, orjson.dumps(orjson.loads(CREATED) | {"children": ranges, "version": 9}), 1_000)])
    replica = alone.engine.replicas[0]
    hashed: list[KeyState] = []
    monkeypatch.setattr(digest_module, "line", lambda key: hashed.append(key) or line(key))
    portions = []
    for _ in range(150):
        alone.run(0.1)
        portions.append(len(hashed))
        hashed.clear()
    assert 0 < max(portions) <= 2_000
    assert sum(portions) == 4097
    first, *_, last = [orjson.loads(alone.channel[at][1] or b"") for at in alone.written(HEARTBEAT)]
    assert "digest" not in first
    assert first["highest"] == 9
    assert last["keys"] == 4097 == replica.summary().keys
