"""The junk of faults is rejected where its keys belong, and a record that Kafka may take back is known to be one."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.protocol.view import View
from tests.faults import faults_of_topics
from tests.faults.faults_in_debt import write_junk
from tests.faults.faults_of_topics import Transaction

PARTITIONS = 5
KNOWN = {f"faults/n{number}/0x00000000_0xffffffff": ["Assigned", "b1", 3] for number in range(8)}


class Written:
    """Keeps what a producer is given."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes, bytes]] = []

    def produce(self, _: str, value: bytes, key: str | bytes, partition: int, **_more: Any) -> None:
        self.records.append((partition, key if isinstance(key, bytes) else key.encode(), value))

    def flush(self, _: float) -> int:
        return 0

    def init_transactions(self, _: float) -> None: ...

    def begin_transaction(self) -> None: ...

    def commit_transaction(self, _: float) -> None: ...

    def abort_transaction(self, _: float) -> None: ...


def test_junk_is_written_where_readers_hold_its_keys() -> None:
    producer = Written()
    write_junk(producer, "faults", PARTITIONS, KNOWN)  # type: ignore[arg-type]
    verdicts = [
        View(partition, PARTITIONS).read(0, key, value).verdict.value for partition, key, value in producer.records
    ]
    assert len({partition for partition, _, _ in producer.records}) > 1
    assert len(verdicts) == 4
    assert "wrong-partition" not in verdicts


@pytest.mark.parametrize(("end", "kept"), [("commit", True), ("abort", False), ("open", False)])
def test_only_a_committed_record_stays(monkeypatch: pytest.MonkeyPatch, end: str, kept: bool) -> None:
    producers: list[Written] = []

    def make(_: object) -> Written:
        producers.append(Written())
        return producers[-1]

    monkeypatch.setattr(faults_of_topics, "Producer", make)
    world: Any = SimpleNamespace(
        kafka=SimpleNamespace(address="kafka", channel="faults"),
        copy=SimpleNamespace(partitions=[[], []]),
        uncommitted=set(),
    )
    for _ in range(2):
        asyncio.run(Transaction("kafka", 0, end=end).begin(world))
    notes = {value for producer in producers for _, _, value in producer.records}
    assert len(notes) == len(producers) == 2, "each transaction is known by its own"
    assert world.uncommitted == (set() if kept else notes)
