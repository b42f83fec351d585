"""One timed replay in a process of its own: `python -m tests.bench.replay_worker MODE BOOTSTRAP CHANNEL END`.

Modes: `bare` only consumes, `parse` consumes and parses the JSON, `parse-json` does so with Python's own module,
`replica` is the library's reader with the core's replica, `engine` the library's reader with the whole engine as a
runtime steps it.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaError, TopicPartition

from statechannel.broker.driver import Driver
from statechannel.broker.observe.collector import ReplayGcPause
from statechannel.engine.config import EngineConfig, Identity
from statechannel.engine.effects import Effect, RestartReading
from statechannel.engine.engine import Engine
from statechannel.engine.inputs import PartitionOpened, PositionReached
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.reader import LogReader, ReaderTuning
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.kafka.topics import verify_topics
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from statechannel.protocol.replica import Replica
from tests.bench.measure import resident_bytes

BATCH = ReaderTuning().batch_records
TIMEOUT_S = 600.0


class Stopwatch:
    """Wall time, and CPU time of all threads of this process."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

        self._facts: dict[str, float] = {}

    def stop(self) -> None:
        """What comes from here on does not count."""
        self._facts = self.facts()

    def facts(self) -> dict[str, float]:
        """Seconds since the start, or until the stop."""
        return self._facts or {"wall_s": time.perf_counter() - self._wall_s, "cpu_s": time.process_time() - self._cpu_s}


PARSERS: dict[str, Callable[[Any], Any]] = {"bare": len, "parse": orjson.loads, "parse-json": json.loads}


def floor(settings: ClientSettings, topic: str, end: int, take: Callable[[Any], Any]) -> dict[str, Any]:
    """A client with the library's settings and style (poll, then drain), and nothing else."""
    watch = Stopwatch()
    consumer = Consumer(settings.consumer_config("bench-floor"))
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen = 0
    while seen < end:
        first = consumer.poll(0.1)
        if first is None:
            continue
        batch = [first, *consumer.consume(BATCH - 1, 0)]
        for message in batch:
            if message.error() is not None:
                if message.error().code() != KafkaError._PARTITION_EOF:
                    raise SystemExit(str(message.error()))
                continue
            seen += 1
            take(message.value())
    facts = watch.facts()
    consumer.close()
    return {"records": seen, **facts}


def replica(settings: ClientSettings, topics: ChannelTopics, end: int) -> dict[str, Any]:
    """The library's reader and the core's replica until it is caught up."""
    infos = verify_topics(settings, topics, timeout_s=30).topics
    calm = ReplayGcPause()
    watch = Stopwatch()
    calm.begin()  # as the runtime does while a member joins
    built = Replica(0, 1, compaction_lag_s=3600, kept_records_max=1_000_000)
    done = threading.Event()

    def sink(inputs: list[Any]) -> None:
        now_s = time.monotonic()
        for item in inputs:
            if isinstance(item, RecordsRead):
                for record in item.records[built.read_many(now_s, item.records) :]:
                    built.read(now_s, record)
            elif isinstance(item, RecordRead):
                built.read(now_s, item)
            elif isinstance(item, PartitionOpened):
                built.opened(now_s, item.first_offset, item.end_offset)
            elif isinstance(item, PositionReached):
                built.reached(now_s, item.position)
        if built.caught_up and built.position >= end:
            done.set()

    reader = LogReader(settings, {Topic.CHANNEL: infos[topics.channel]}, sink, group_id=topics.reader_group)
    reader.start()
    if not done.wait(TIMEOUT_S):
        raise SystemExit(f"the replay did not end within {TIMEOUT_S:g} s")
    calm.end()
    facts = watch.facts()
    reader.close()
    view = built.view
    return {
        "records": built.position,
        "bundles": sum(1 for _ in view.live()),
        "assigned": sum(view.load.values()),
        "debts": len(view.ledger.open),
        **facts,
    }


def engine(settings: ClientSettings, topics: ChannelTopics, end: int) -> dict[str, Any]:
    """The library's reader, inbox and driver, and the whole engine, until it has caught up with the channel."""
    infos = verify_topics(settings, topics, timeout_s=30).topics
    calm = ReplayGcPause()
    watch = Stopwatch()
    calm.begin()
    identity = Identity("bench", "bench-1", bytes(16), time.time_ns() // 1_000_000, {})
    built = Engine(identity, EngineConfig(partitions=1))

    async def replay() -> None:
        caught_up = asyncio.Event()

        def look() -> None:
            if built.replicas[0].caught_up:
                caught_up.set()

        def failed(error: Exception, _: object) -> None:
            raise SystemExit(f"the engine failed: {error!r}")

        def perform(effect: Effect) -> None:
            if isinstance(effect, RestartReading):  # a cleaned log is read once more, leniently
                reader.restart(effect.topic, effect.partition)

        driver = Driver(built, perform=perform, on_failure=failed, on_progress=look)
        driver.start()
        reader = LogReader(
            settings, {Topic.CHANNEL: infos[topics.channel]}, driver.inbox.offer, group_id=topics.reader_group
        )
        reader.start()
        await asyncio.wait_for(caught_up.wait(), TIMEOUT_S)
        calm.end()
        watch.stop()
        driver.stop()
        reader.close()

    asyncio.run(replay())
    replica, view = built.replicas[0], built.replicas[0].view
    if replica.position < end:
        raise SystemExit(f"the engine read to {replica.position} of {end}")
    return {
        "records": replica.position,
        "bundles": sum(1 for _ in view.live()),
        "assigned": sum(view.load.values()),
        "debts": len(view.ledger.open),
        **watch.facts(),
    }


def main(mode: str, bootstrap: str, channel: str, end: int) -> None:
    settings, topics = ClientSettings(bootstrap), ChannelTopics(channel)
    if mode in ("replica", "engine"):
        facts = (replica if mode == "replica" else engine)(settings, topics, end)
    else:
        facts = floor(settings, topics.channel, end, PARSERS[mode])
    facts["rss_mib"] = resident_bytes() / 2**20
    print(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
