"""Over how many partitions a channel distributes its keys: what its newest records say counts, not what Kafka has by now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from statechannel.kafka import partition_count
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import TopicPolicyError
from statechannel.kafka.partition_count import FIRST_WINDOW, SCANNED_MAX, as_used
from statechannel.kafka.tail import Span
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.kafka.topics import TopicInfo
from statechannel.protocol.codec import HEARTBEAT_KEY
from statechannel.protocol.log import RecordRead, Topic


class Log:
    """Partition 0 of a channel: heartbeats by offset, each with the number that it names; all else is bundles.

    Attributes:
        ends: Of the other partitions.
        read: How many offsets were asked for.
    """

    def __init__(self, end: int, heartbeats: dict[int, int | None], ends: tuple[int, ...] = (), low: int = 0) -> None:
        self.low, self.end, self.heartbeats = low, end, heartbeats
        self.ends = (end, *ends)
        self.read = 0

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.ends = ()

    def span(self) -> Span:
        return Span(self.low, self.low, self.end)

    def end_of(self, partition: int) -> int:
        return self.ends[partition]

    def records(self, span: Span) -> Iterator[RecordRead]:
        assert self.low <= span.start <= span.end <= self.end
        self.read += span.end - span.start
        named = dict.fromkeys((span.start, span.end - 1), 0) | self.heartbeats
        for offset in sorted(offset for offset in named if span.start <= offset < span.end):
            if offset in self.heartbeats:
                yield RecordRead(Topic.CHANNEL, 0, offset, 7, HEARTBEAT_KEY, heartbeat(self.heartbeats[offset]))
            else:
                yield RecordRead(Topic.CHANNEL, 0, offset, 7, b"t/n/0x00000000_0xffffffff", b"{}")


def heartbeat(partitions: int | None) -> bytes:
    names: dict[str, Any] = {} if partitions is None else {"partitions": partitions}
    head = {"format": 1, "kind": "heartbeat", "id": "a", "covers": 0, "by": {"broker": "b", "incarnation": "i"}}
    return json.dumps(head | {"clean_to": -1} | names).encode()


def used(monkeypatch: pytest.MonkeyPatch, log: Log, in_kafka: int) -> int:
    monkeypatch.setattr(partition_count, "PartitionTail", lambda *_, **__: log)
    info = TopicInfo("c", "id", in_kafka, 1, {})
    return as_used(ClientSettings("h:1"), ChannelTopics("c"), info, timeout_s=1.0).partitions


FIRST_BACK = 10_000 - FIRST_WINDOW
"""The oldest offset that the first look at a log of 10,000 records reads."""


@pytest.mark.parametrize(
    ("log", "in_kafka", "expected"),
    [
        (Log(9, {3: 2}), 4, 2),
        (Log(9, {3: 2, 5: 3}), 4, 2),  # a single heartbeat at the end decides nothing
        (Log(10_000, {0: 3, FIRST_BACK - 1: 3, FIRST_BACK: 2}), 4, 2),  # but the newest ones count
        (Log(10_000, {5_000: 3}), 4, 3),  # a flood lies behind it
        (Log(10_000, {0: 3}), 4, 3),
        (Log(10_000, {7: 3}, low=7), 4, 3),  # retention took what lay before it
        (Log(9, {3: 4}), 4, 4),
        (Log(9, {}, (0, 0)), 3, 3),  # a new channel, or an import
        (Log(0, {}), 1, 1),
        (Log(0, {}, (0,)), 2, 2),
        # Heartbeats of older versions name no number, and lie in each partition that is used.
        (Log(9, {3: None}, (1, 0)), 3, 2),
        (Log(9, {3: None}, (5, 7)), 3, 3),
        (Log(9, {3: None}, (0, 0)), 3, 1),
        (Log(10_000, {9_900: None, 4: 2}, (0,)), 2, 2),
        (Log(10_000, {5_000: None}, (0,)), 2, 1),
        (Log(10_000, {9_999: None}, (0,)), 2, 1),
    ],
)
def test_the_channels_own_number_counts(
    monkeypatch: pytest.MonkeyPatch, log: Log, in_kafka: int, expected: int
) -> None:
    assert used(monkeypatch, log, in_kafka) == expected


@pytest.mark.parametrize(("offset", "expected"), [(9 * SCANNED_MAX - 1, 2), (FIRST_WINDOW, 3)])
def test_not_all_of_a_long_log_is_read(monkeypatch: pytest.MonkeyPatch, offset: int, expected: int) -> None:
    """Brokers write a heartbeat every second: where the last hundred thousand records have none, nobody writes any."""
    log = Log(10 * SCANNED_MAX, {offset: 2}, (0, 0))
    assert used(monkeypatch, log, 3) == expected
    assert log.read < 2 * SCANNED_MAX


def test_a_topic_with_fewer_partitions_than_its_channel_uses_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TopicPolicyError):
        used(monkeypatch, Log(9, {3: 3}, (9,)), 2)


def test_the_tail_is_of_the_first_partition_and_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    log = Log(9, {3: 2})

    def opened(_: object, topic: Topic, name: str, partition: int, **how: object) -> Log:
        asked.append((topic, name, partition, *how.values()))
        return log

    monkeypatch.setattr(partition_count, "PartitionTail", opened)
    info = TopicInfo("c", "id", 4, 3, {"a": "b"})
    found = as_used(ClientSettings("h:1"), ChannelTopics("c"), info, timeout_s=1.0)
    assert found == TopicInfo("c", "id", 2, 3, {"a": "b"})
    assert asked == [(Topic.CHANNEL, "c", 0, "c-reader", 1.0)]
    assert log.ends == (), "closed"
