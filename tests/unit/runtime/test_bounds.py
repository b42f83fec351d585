"""What is bounded around the engine: bytes that wait, the length of a turn, idle subscribers, requests of a flood."""

import asyncio
import gc
import threading
import time

import orjson
import pytest

from statechannel.broker.changes import ChangesError, Derived, LiveChanges
from statechannel.broker.inbox import Inbox
from statechannel.broker.observe import collector
from statechannel.broker.observe.stalls import Stalls
from statechannel.engine.effects import Emit
from statechannel.operations.request_record import Reply, decode
from statechannel.protocol.bundle import bundle_key, children_of, namespace_bounds
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from statechannel.protocol.record import Kind, Record
from statechannel.protocol.replica import Phase, Replica
from statechannel.protocol.states import State
from tests.support.request_world import BUNDLE, World
from tests.support.waits import WAIT_S
from tests.unit.runtime.test_driver import Bench, Scripted, until
from tests.unit.runtime.test_driver import record as small


def sized(offset: int, size: int) -> RecordRead:
    return RecordRead(Topic.CHANNEL, 0, offset, 0, b"k", b"x" * size)


# --- the inbox ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("portion", [False, True])
def test_large_records_hold_the_reader_back_before_they_are_many(portion: bool) -> None:
    inbox = Inbox(1_000, lambda: None, limit_bytes=1_000)
    batch = [sized(0, 600), sized(1, 600)]
    inbox.offer([RecordsRead(batch, 1_200)] if portion else batch)
    assert (len(inbox), inbox.size_bytes) == (2, 1_200)
    thread = threading.Thread(target=inbox.offer, args=([sized(2, 10)],))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive(), "it waits for room"
    inbox.take(256)
    thread.join(WAIT_S)
    assert (len(inbox), inbox.size_bytes) == (1, 10)
    inbox.close()
    assert inbox.size_bytes == 0


# --- the driver -----------------------------------------------------------------------------------------------------


async def test_one_input_with_many_effects_leaves_others_their_turn() -> None:
    bench = Bench(Scripted(lambda _: [Emit(str(number)) for number in range(400)]), slice_s=0.002)
    perform = bench.driver._perform

    def slowly(effect: Emit) -> None:
        time.sleep(0.0005)
        perform(effect)

    bench.driver._perform = slowly
    bench.driver.inbox.offer([small(0), small(1)])
    turns = 0
    while len(bench.performed) < 800:
        turns += 1
        await asyncio.sleep(0)
    assert turns > 20
    assert [effect.event for effect in bench.performed] == [str(number) for number in range(400)] * 2  # type: ignore[union-attr]
    bench.driver.stop()


async def test_inputs_that_take_long_leave_others_their_turn_within_a_batch() -> None:
    bench = Bench(Scripted(lambda _: time.sleep(0.002) or []), slice_s=0.005)
    bench.driver.inbox.offer([small(number) for number in range(100)])
    turns = 0
    while bench.driver.steps < 100:
        turns += 1
        await asyncio.sleep(0)
    assert turns > 10
    bench.driver.stop()


async def test_evidence_keeps_the_beginning_of_large_values_only() -> None:
    def answer(given: object) -> list[Emit]:
        if isinstance(given, RecordRead) and given.offset == 2:
            raise ValueError("broken")
        return []

    bench = Bench(Scripted(answer), evidence_bytes=100)  # type: ignore[arg-type]
    bench.driver.inbox.offer([sized(0, 5_000), small(1), sized(2, 5_000)])
    await until(lambda: bool(bench.failures))
    recent = bench.failures[0][1]
    assert [len(item.value or b"") for item in recent if isinstance(item, RecordRead)] == [100, 1, 5_000]


async def test_the_longest_turn_and_the_longest_wait_for_one_are_told() -> None:
    bench = Bench(Scripted(lambda _: time.sleep(0.08) or []))
    bench.driver.inbox.offer([small(0)])
    await until(lambda: bench.driver.steps == 1)
    await asyncio.sleep(0)
    assert bench.driver.stalls.seen.burst_max_s >= 0.08
    assert bench.driver.stalls.seen.burst_cpu_max_s < 0.08, "it slept"
    bench.driver.stalls.reset()
    bench.driver.inbox.offer([])
    threading.Timer(0.02, bench.driver.inbox.push, args=(small(1),)).start()
    time.sleep(0.1)  # noqa: ASYNC251 - somebody holds the loop
    await until(lambda: bench.driver.steps == 2)
    assert bench.driver.stalls.seen.turn_max_s >= 0.05
    assert bench.driver.stalls.max_s >= 0.05
    assert bench.driver.stalls.to_json()["turn_max_ms"] >= 50
    bench.driver.stop()


def test_of_several_wishes_the_earliest_counts() -> None:
    stalls = Stalls()
    now_s = time.monotonic()
    stalls.due(now_s + 5)
    stalls.due(now_s - 1)
    stalls.due(now_s + 9)
    stalls.begin()
    assert stalls.seen.turn_max_s == pytest.approx(1, abs=0.2)
    stalls.begin()
    assert stalls.seen.turn_max_s == pytest.approx(1, abs=0.2), "nothing was due"


# --- a joining reader -----------------------------------------------------------------------------------------------


def test_large_records_make_a_waiting_reader_start_over() -> None:
    replica = Replica(0, 1, compaction_lag_s=3600, kept_records_max=1_000, kept_max_bytes=10_000)
    replica.opened(0.0, 0, 6)
    replica.read(0.0, sized(5, 10))
    assert replica.phase is Phase.WAITING
    for offset in range(6, 16):
        replica.read(0.0, sized(offset, 1_000))
    assert replica.phase is Phase.WAITING
    replica.read(0.0, sized(16, 1_000))
    assert (replica.phase, replica.why.startswith("more than 1000 records, or 10000 bytes")) == (Phase.START_OVER, True)


# --- subscribers ----------------------------------------------------------------------------------------------------


def created(bundles: int, offset: int = 0) -> tuple[Record, RecordRead]:
    children = children_of(namespace_bounds(bundles))
    record = Record(Kind.PROPOSAL, f"r{offset}", -1, "b", "b-1", {}, 1, None, State.ACTIVE)
    record.children = children
    return record, RecordRead(Topic.CHANNEL, 0, offset, 0, b"t/n", orjson.dumps(children))


async def test_a_subscriber_who_takes_nothing_is_left_behind_by_size_and_told_where() -> None:
    live = LiveChanges(limit_bytes=100_000)
    watcher = live.watch(10_000)
    record, read = created(2_000)
    for _ in range(50):
        live.deliver(record, read)
    assert len(watcher._items) == 100_000 // len(read.value or b"")
    for _ in range(len(watcher._items)):
        await watcher.next()
    with pytest.raises(ChangesError, match=r"too slow: .* offset 0 of partition 0"):
        await watcher.next()


async def test_one_change_larger_than_the_bound_is_told_all_the_same() -> None:
    live = LiveChanges(limit_bytes=10)
    watcher = live.watch(5)
    record, read = created(100)
    live.deliver(record, read)
    change = await watcher.next()
    live.deliver(record, read)
    assert await watcher.next() == change


async def test_what_is_derived_is_made_when_somebody_looks() -> None:
    live = LiveChanges()
    watcher = live.watch(5)
    live.deliver(*created(4))
    derived = (await watcher.next()).derived
    bounds = namespace_bounds(4)
    expected = tuple(
        Derived(bundle_key("t/n", bounds[index], bounds[index + 1]), State.UNASSIGNED, 1, None) for index in range(4)
    )
    assert derived == expected
    assert tuple(derived) == expected
    assert derived[1:3] == expected[1:3]
    assert derived[-1] == expected[-1]
    assert (len(derived), hash(derived), repr(derived)) == (4, hash(expected), repr(expected))
    with pytest.raises(IndexError):
        derived[4]


# --- the desk -------------------------------------------------------------------------------------------------------


def replies(world: World) -> dict[str, str]:
    results = [decode(record.value, 0) for record in world.log]
    return {item.id: str(item.outcome.get("reason", "")) for item in results if isinstance(item, Reply)}


@pytest.mark.parametrize("bound", [{"open_max": 3}, {"open_max_mib": 700 / 2**20}])
def test_requests_of_a_flood_are_refused_by_the_leader_and_kept_by_nobody(bound: dict[str, float]) -> None:
    world = World("b1", "b2", leading="b1")
    for broker in world.desks:
        world.desks[broker] = world.desk(broker, **bound)
    for number in range(10):
        world.ask(f"r{number}", "unload", name=BUNDLE, reason="x" * 40)
    world.turn()
    assert not replies(world), "nothing is written while it is read"
    world.desks["b1"].look(5.0)
    kept = len(world.desks["b1"])
    assert 0 < kept < 10
    assert len(world.desks["b2"]) == kept
    refused = {name: reason for name, reason in replies(world).items() if reason == "busy"}
    assert set(refused) == {f"r{number}" for number in range(kept, 10)}
    assert world.desks["b1"].refused == 10 - kept


# --- the collector --------------------------------------------------------------------------------------------------


def test_what_outlives_a_long_walk_is_left_out_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = gc.get_freeze_count()
    collector.gc_exclusion.begin()
    try:
        monkeypatch.setattr(collector, "LONG_WALK_S", 60.0)
        gc.collect()
        assert gc.get_freeze_count() == frozen
        monkeypatch.setattr(collector, "LONG_WALK_S", -1.0)
        gc.collect(1)
        assert gc.get_freeze_count() == frozen
        gc.collect()
        assert gc.get_freeze_count() > frozen + 1_000
    finally:
        collector.gc_exclusion.end()
        gc.unfreeze()
    assert collector.gc_exclusion._on_collection not in gc.callbacks


@pytest.mark.parametrize(
    ("embedders", "replaying", "running"),
    [
        ((700, 10, 10), collector.REPLAY_THRESHOLDS, collector.MEMBER_THRESHOLDS),
        ((20_000, 10, 10), collector.REPLAY_THRESHOLDS, (20_000, 10, 10)),
        ((90_000, 10, 10), (90_000, 10, 10), (90_000, 10, 10)),
        ((0, 10, 10), (0, 10, 10), (0, 10, 10)),
    ],
)
@pytest.mark.parametrize("stops", ["after its replay", "while it replays"])
def test_a_member_has_new_objects_walked_less_often_and_leaves_no_trace(
    embedders: collector.Thresholds, replaying: collector.Thresholds, running: collector.Thresholds, stops: str
) -> None:
    before = gc.get_threshold()
    gc.set_threshold(*embedders)
    calm, exclusion = collector.ReplayGcPause(), collector.GcExclusion()
    try:
        exclusion.begin()
        calm.begin()
        assert gc.get_threshold() == replaying
        if stops == "after its replay":
            calm.end(keep=False)
            assert gc.get_threshold() == running
        exclusion.end()
        calm.end(keep=False)
        assert gc.get_threshold() == embedders
    finally:
        gc.set_threshold(*before)


def test_a_member_that_tunes_nothing_leaves_the_thresholds() -> None:
    before = gc.get_threshold()
    exclusion = collector.GcExclusion()
    exclusion.begin(tunes=False)
    try:
        assert gc.get_threshold() == before
    finally:
        exclusion.end()
    assert gc.get_threshold() == before
