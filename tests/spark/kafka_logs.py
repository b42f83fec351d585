"""Logs in a real Kafka for the tests of the jobs: written, read back, and what a table says of them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewTopic

from spark.core.store import SnapshotStore
from spark.core.streaming import Streaming
from spark.jobs.table_view import TableViewOptions, run
from statechannel.errors import StateChannelError
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.tail import PartitionTail
from statechannel.protocol.log import RecordRead, Topic
from tests.spark.channel_frames import archived
from tests.support.pure_table import audited
from tests.support.waits import WAIT_S, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
CHANNEL = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "min.compaction.lag.ms": str(HOUR_MS),
}

UNCOMPILED_CONF = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}
"""Tables of some rows do not pay for the compilation of their queries; the jobs of the first walk (tests/docs) run with it."""
UNCOMPILED = tuple(word for name, value in UNCOMPILED_CONF.items() for word in ("--conf", f"{name}={value}"))


class LogInKafka:
    """One topic.

    Args:
        settings: Of the topic, beside those of a channel's.
    """

    def __init__(self, bootstrap: str, name: str, partitions: int = 1) -> None:
        self.bootstrap, self.name, self.partitions = bootstrap, name, partitions
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True, "log_level": 0}
        )

    def create(self, **settings: str) -> None:
        config = CHANNEL | {name.replace("_", "."): value for name, value in settings.items()}
        topic = NewTopic(self.name, self.partitions, 1, config=config)
        wait_until(lambda: self.admin.create_topics([topic])[self.name].exception() is None)
        wait_until(lambda: self._seen() == self.partitions)

    def keep_for(self, lag_s: int) -> None:
        """The cleaner leaves records alone until they are so old, from now on."""
        change = ConfigEntry("min.compaction.lag.ms", str(lag_s * 1_000), incremental_operation=AlterConfigOpType.SET)
        wanted = ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=[change])
        self.admin.incremental_alter_configs([wanted])[wanted].result(WAIT_S)

    def _seen(self) -> int:
        topic = self.admin.list_topics(timeout=WAIT_S).topics.get(self.name)
        return 0 if topic is None else len(topic.partitions)

    def delete(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result(WAIT_S)
        wait_until(lambda: self._seen() == 0)

    def trim(self, partition: int, before: int) -> None:
        place = TopicPartition(self.name, partition, before)
        self.admin.delete_records([place])[place].result(WAIT_S)

    def write(self, records: Iterable[RecordRead]) -> None:
        """They get the offsets that they have if the topic is as long as the first one's says."""
        for record in records:
            self._producer.produce(self.name, record.value, record.key, record.partition)
            self._producer.poll(0)
        assert self._producer.flush(WAIT_S) == 0

    def read(self) -> list[RecordRead]:
        records: list[RecordRead] = []
        for partition in range(self.partitions):
            client = ClientSettings(self.bootstrap)
            with PartitionTail(client, Topic.CHANNEL, self.name, partition, group_id=f"{self.name}-reader") as tail:
                records += tail.records(tail.span())
        return records


@dataclass
class Job:
    """The job in this process, on one topic and one table."""

    session: SparkSession
    log: LogInKafka
    folder: Path
    streaming: dict[str, Any] = field(default_factory=dict)
    mine: dict[str, Any] = field(default_factory=dict)

    def streaming_with(self, **options: Any) -> Streaming:
        given = {"available_now": True, "retries": 0} | self.streaming | options
        client = ClientSettings(self.log.bootstrap)
        return Streaming(client, self.log.name, str(self.folder / "checkpoint"), **given)

    def run(self, stop: threading.Event | None = None, **options: Any) -> dict[str, Any]:
        """Read what is there; the pointer's meta."""
        table = TableViewOptions(str(self.folder / "table"), **self.mine)
        run(self.session, self.streaming_with(**options), table, stop or threading.Event())
        return self.meta()

    @contextmanager
    def failing(self, **options: Any) -> Iterator[list[StateChannelError]]:
        """The job at work in another thread, from its first snapshot on; at the end of the block, what ended it."""
        ended: list[StateChannelError] = []
        stop = threading.Event()

        def work() -> None:
            try:
                self.run(stop, available_now=False, trigger_s=0.2, **options)
            except StateChannelError as error:
                ended.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            wait_until((self.folder / "table/view/LATEST").exists)
            yield ended
            thread.join(WAIT_S)
        finally:
            stop.set()
            thread.join(WAIT_S)

    def meta(self) -> dict[str, Any]:
        pointer = SnapshotStore(str(self.folder / "table" / "view")).latest()
        assert pointer is not None
        return pointer.meta

    def positions(self) -> dict[int, int]:
        return {int(number): place["position"] for number, place in self.meta()["partitions"].items()}

    def rows(self) -> list[dict[str, Any]]:
        return archived(self.folder / "table")

    def check(self, records: Sequence[RecordRead]) -> None:
        """The table has what the audit says of these records, all of them once, up to where it stands."""
        ends = self.positions()
        read = [r for r in records if r.offset < ends[r.partition]]
        answer, verdicts = audited(read, ends)
        assert self.meta()["digest"] == answer["digest"]
        rows = self.rows()
        expected = sorted((r.partition, r.offset, r.key, r.value) for r in read)
        assert [(row["partition"], row["offset"], row["key"], row["value"]) for row in rows] == expected
        assert {(row["partition"], row["offset"]): row["verdict"] for row in rows} == verdicts
