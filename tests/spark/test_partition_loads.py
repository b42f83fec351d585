"""partition-loads on a real Kafka: the very same loads as the plain reader's, whatever way it is run and stopped."""

import random
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from loaddata.samples.averages import Averager, Window
from loaddata.samples.cluster_files import LoadsFileError, read_loads_file
from loaddata.samples.partitions import PartitionLoads as Loads
from loaddata.samples.partitions import PartitionSample
from loaddata.samples.sample_topic import InvalidSampleReason, ReadCounts, SampleTopic, encode, key_of
from spark.core.running import Work, run_query
from spark.core.store import SnapshotStore
from spark.core.streaming import Streaming
from spark.errors import TableFormatError, TopicBrokenError
from spark.partitions.loads import PartitionLoadsRun
from spark.partitions.options import PartitionBatchResult, PartitionLoadsOptions
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.topics import TopicAdmin
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S

pytestmark = pytest.mark.kafka

MINUTE_MS = 60_000
WINDOW_S = 600.0


class World:
    """One sample topic, its table, and the plain reader."""

    def __init__(self, session: Any, kafka: Kafka, name: str, folder: Path) -> None:
        self.settings = ClientSettings(kafka.bootstrap_servers)
        self.topic = SampleTopic(self.settings, name, partitions=3)
        self.topic.create()
        self.cluster = TopicAdmin(self.settings).cluster().cluster_id
        self.session, self.folder = session, folder
        self.kafka = kafka
        self.now_ms = time.time_ns() // 1_000_000
        self.taken: list[PartitionBatchResult] = []
        self._random = random.Random(7)

    def job(self, streaming: Mapping[str, Any] | None = None, **more: Any) -> PartitionLoadsRun:
        query = {"available_now": True, **(streaming or {})}
        return PartitionLoadsRun(
            self.session,
            Streaming(self.settings, "channel", str(self.folder / "checkpoint"), **query),
            PartitionLoadsOptions(
                **{"table": str(self.folder / "table"), "topic": self.topic.name, "window_s": WINDOW_S, **more}
            ),
            on_batch=self.taken.append,
            now_ms=lambda: self.now_ms,
        )

    def run(self, **more: Any) -> None:
        """The batch form: all that is there, then the end."""
        job = self.job(**more)
        stop = threading.Event()
        work = Work(job.take, stop)
        run_query(lambda: job.start(work), stop=stop, work=work, say=lambda _: None)

    def sample(self, topic: str, partition: int, minutes_ago: float, cluster: str | None = None) -> PartitionSample:
        draw = self._random

        def figure(most: float) -> float | None:
            return None if draw.random() < 0.2 else draw.random() * most

        return PartitionSample(
            cluster=self.cluster if cluster is None else cluster,
            broker=1,
            host="h",
            topic=topic,
            partition=partition,
            taken_at_ms=round(self.now_ms - minutes_ago * MINUTE_MS),
            disk_bytes=None if draw.random() < 0.2 else draw.randrange(2**40),
            bytes_in_per_s=figure(1e9),
            bytes_out_per_s=figure(1e6),
            cpu_share=figure(0.01),
        )

    def fill(self, count: int) -> None:
        """Samples with holes, twice in one minute, too old, and of another cluster; and junk."""
        draw = self._random
        samples = [
            self.sample(draw.choice("abc"), draw.randrange(4), draw.uniform(-1, WINDOW_S / 60 + 3))
            for _ in range(count)
        ]
        samples += [self.sample("young", 0, minutes_ago) for minutes_ago in (0, 1, 1, 2)]
        samples.append(self.sample("a", 0, 1, "another"))
        assert self.topic.write(samples).written == len(samples)
        raw = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        raw.produce(self.topic.name, b"junk", key_of("a", 0))
        home = encode(self.sample("a", 1, 1))
        for number in range(3):  # in two of three partitions it is not where its key belongs
            raw.produce(self.topic.name, home, key_of("a", 1), partition=number)
        assert raw.flush(WAIT_S) == 0

    def plain(self) -> tuple[Loads, int, ReadCounts]:
        """What the plain reader makes of the same."""
        window = Window.until(self.now_ms, window_s=WINDOW_S, interval_s=60)
        averager, counts = Averager(window), ReadCounts()
        for item in self.topic.read(0, counts=counts, cluster=self.cluster, on_part=averager.close_part):
            averager.add(item)
        return averager.loads(), averager.minutes, counts

    def agree(self) -> Loads:
        """The job's newest snapshot is what the plain reader says: as a file, and as a table."""
        expected, minutes, counts = self.plain()
        loads = read_loads_file(self.folder / "table", cluster=self.cluster)
        assert dict(loads.of) == dict(expected.of)
        assert (loads.from_ms, loads.to_ms) == (expected.from_ms, expected.to_ms)
        assert self.taken[-1].minutes == minutes
        assert self.taken[-1].partitions == len(expected.of)
        pointer = SnapshotStore(str(self.folder / "table" / "loads")).latest()
        folder = SnapshotStore(str(self.folder / "table" / "loads")).folder(pointer.sequence)
        rows = self.session.read.parquet(f"{folder.place}/partitions").collect()
        assert {(row["topic"], row["partition"]): row["disk_bytes"] for row in rows} == {
            place: load.disk_bytes for place, load in expected.of.items()
        }
        results: dict[str, int] = {}
        for taken in self.taken:
            for why, count in taken.records.items():
                results[why] = results.get(why, 0) + count
        assert results == {"": counts.samples} | {str(why): count for why, count in counts.junk.items()}
        return expected


@pytest.fixture
def world(session: Any, kafka: Kafka, topic_prefix: str, tmp_path: Path) -> World:
    return World(session, kafka, topic_prefix, tmp_path)


class KilledError(Exception):
    """As a kill behind the history and before the pointer."""


def die(*_: Any) -> None:
    raise KilledError


def test_batches_streams_and_ends_agree_with_the_plain_reader(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.fill(300)
    job = world.job()
    monkeypatch.setattr(job.table, "publish", die)
    with pytest.raises(Exception, match="KilledError"):
        job.start().awaitTermination(120)
    assert list((world.folder / "table" / "history").glob("dt=*/batch=000000000000"))
    with pytest.raises(LoadsFileError, match="no loads"):
        read_loads_file(world.folder / "table")

    # What no pointer covers is removed and read again. The batch form: all that is there, then the end.
    world.run()
    first = world.agree()
    assert len(first.of) == 13
    assert {
        str(InvalidSampleReason.NOT_JSON),
        str(InvalidSampleReason.OTHER_PLACE),
        str(InvalidSampleReason.OTHER_CLUSTER),
    } <= world.taken[0].records.keys()

    # It goes on at the pointer, in several batches; two minutes later old samples are out.
    world.fill(200)
    world.now_ms += 2 * MINUTE_MS
    world.run(streaming={"max_offsets_per_trigger": 120})
    assert len(world.taken) == 3
    assert dict(world.agree().of) != dict(first.of)

    # As a stream, and without its checkpoint.
    shutil.rmtree(world.folder / "checkpoint")
    world.fill(50)
    total = world.plain()[2]
    wanted = total.samples + sum(total.junk.values())
    stop = threading.Event()
    job = world.job({"available_now": False, "trigger_s": 0.2})
    errors: list[Exception] = []

    def attend() -> None:
        work = Work(job.take, stop)
        try:
            run_query(lambda: job.start(work), stop=stop, work=work, say=lambda _: None)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=attend)
    thread.start()
    try:
        ends_s = time.monotonic() + 120
        while sum(sum(item.records.values()) for item in world.taken) < wanted and not errors:
            assert time.monotonic() < ends_s
            time.sleep(0.05)
    finally:
        stop.set()
        thread.join(WAIT_S)
    assert not errors
    world.agree()


def test_topics_and_tables_that_will_not_do(world: World) -> None:
    with pytest.raises(TopicBrokenError, match="does not exist"):
        world.job(topic=f"{world.topic.name}-none").open()
    world.fill(10)
    world.run()
    store = SnapshotStore(str(world.folder / "table" / "loads"))

    def say(**more: str) -> None:
        pointer = store.latest()
        assert pointer is not None
        store.publish(pointer, pointer.meta | more)

    say(topic_id="other")
    with pytest.raises(TopicBrokenError, match="re-created"):
        world.job().open()
    world.taken.clear()
    world.run(accept_new_topic=True)
    world.agree()
    say(job="load-views")
    with pytest.raises(TableFormatError, match="load-views"):
        world.job().open()
