"""Faults of a real Kafka node that are not signals: a disk that is slow, a clock that jumps."""

import asyncio
import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from statechannel.protocol.log import RecordRead, Topic
from tests.faults.kafka_clock import ClockSpan, set_clock, true_times
from tests.faults.kafka_nodes import KafkaNodes

CHANNEL = "faults"
MS = 1_000_000


def write_one(address: str) -> tuple[float, float]:
    """How long a record took, and how far its log time is ahead of the machine's clock."""
    reports = []
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    before_s = time.time()
    producer.produce(CHANNEL, b"x", on_delivery=lambda error, written: reports.append((error, written.timestamp()[1])))
    producer.flush(60)
    ((error, at_ms),) = reports
    assert error is None
    return time.time() - before_s, at_ms / 1_000 - before_s


@pytest.mark.kafka
def test_a_slow_disk_holds_appends_back_and_a_clock_jumps_while_the_node_runs(tmp_path: Path):
    async def main() -> None:
        kafka = KafkaNodes(tmp_path, 1)
        await kafka.start()
        try:
            client = AdminClient({"bootstrap.servers": kafka.address})
            names = [CHANNEL, f"{CHANNEL}-registry", f"{CHANNEL}-requests"]
            own = {"message.timestamp.type": "LogAppendTime"}
            for future in client.create_topics([NewTopic(name, 1, config=own) for name in names]).values():
                future.result()
            await kafka.learn_topics(CHANNEL)
            write_one(kafka.address)
            node = kafka.nodes[0]
            await kafka.flush_each(on=True)
            held_back = node.slow_disk(2)
            slow_s = max(write_one(kafka.address)[0] for _ in range(3))
            held_back.lift()
            await kafka.flush_each(on=False)
            assert slow_s > 0.4
            if shutil.which("javac") is None:
                return
            agent, pid = kafka.clock_agent(), node.server.pid
            for offset_s in (20.0, -4.0, 0.0):
                assert set_clock(pid, agent, offset_s)
                took_s, ahead_s = write_one(kafka.address)
                assert -0.1 <= ahead_s - offset_s <= took_s + 0.1
        finally:
            await kafka.close()

    asyncio.run(main())


def at(ms: int) -> RecordRead:
    return RecordRead(Topic.CHANNEL, 0, 0, ms, b"k", b"v")


@pytest.mark.parametrize(
    ("stamped_ms", "seen_ms", "true_ms"),
    [
        (30_000, 30_010, 30_000),
        (60_000, 60_010, 60_000),
        (82_000, 62_030, 62_000),
        (42_000, 62_030, 62_000),
        (62_000, 62_030, 62_000),
        (62_000, 69_000, 62_000),
        (90_000, 90_010, 90_000),
    ],
    ids=["before", "at its edge", "ahead", "behind", "another node's", "seen late", "after"],
)
def test_log_times_are_put_right_by_what_the_clock_was(stamped_ms, seen_ms, true_ms):
    wall_ns = 7 * MS
    spans = [ClockSpan(offset_s, 60_000 * MS - wall_ns, 70_000 * MS - wall_ns) for offset_s in (20.0, -20.0)]
    records = true_times([(at(stamped_ms), seen_ms * MS - wall_ns)], spans, wall_ns)
    assert [record.timestamp_ms for record in records] == [true_ms]
