"""What the watch over topics finds while a member runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from statechannel.kafka import topic_watch
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.topic_watch import TopicFindings, TopicWatch
from statechannel.kafka.topics import TopicInfo

CHANNEL, REQUESTS = "c", "c-requests"


def answer(value: object) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(value, KafkaException):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


def refusal(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


class Cluster:
    """An admin client of a Kafka whose topics a test changes; None as an offset: that query gets no answer."""

    def __init__(self) -> None:
        self.ids = {CHANNEL: "C", REQUESTS: "R"}
        self.partitions = {CHANNEL: 2, REQUESTS: 1}
        self.firsts: dict[tuple[str, int], int | None] = {}
        self.end: int | None = 100

    def describe_topics(self, names: Any, **_: object) -> dict[str, Future[Any]]:
        return {name: self._describe(name) for name in names.topic_names}

    def _describe(self, name: str) -> Future[Any]:
        if name not in self.ids:
            return answer(refusal(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return answer(SimpleNamespace(topic_id=self.ids[name], partitions=[object()] * self.partitions[name]))

    def list_offsets(
        self, wanted: Mapping[TopicPartition, OffsetSpec], **_: object
    ) -> dict[TopicPartition, Future[Any]]:
        earliest = OffsetSpec.earliest()._value  # type: ignore[no-untyped-call]
        return {
            at: self._offset(self.firsts.get((at.topic, at.partition), 0) if spec._value == earliest else self.end)
            for at, spec in wanted.items()
        }

    @staticmethod
    def _offset(offset: int | None) -> Future[Any]:
        if offset is None:
            return answer(refusal(KafkaError._TIMED_OUT))
        return answer(SimpleNamespace(offset=offset))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(topic_watch, "AdminHandle", lambda _: SimpleNamespace(client=made))
    return made


def opened(*names: str) -> list[TopicInfo]:
    known = {CHANNEL: ("C", 2), REQUESTS: ("R", 1)}
    return [TopicInfo(name, *known[name], 1, {}) for name in names]


def watch(names: Iterable[str] = (CHANNEL, REQUESTS), **how: Any) -> TopicWatch:
    return TopicWatch(ClientSettings("127.0.0.1:1"), opened(*names), interval_s=5.0, compacted={CHANNEL}, **how)


POSITIONS = {(CHANNEL, 0): 7, (CHANNEL, 1): 0, (REQUESTS, 0): 3}


def look(watching: TopicWatch, now_s: float = 0.0) -> TopicFindings:
    """One round, from its queries to its findings."""
    assert watching.poll(now_s, POSITIONS) is None
    findings = watching.poll(now_s, POSITIONS)
    assert findings is not None
    return findings


# --- the head of a log ----------------------------------------------------------------------------------------------


def test_a_log_that_begins_at_zero_has_its_head(cluster: Cluster) -> None:
    assert not look(watch()).first_offsets


def test_a_partition_of_the_channel_that_begins_later_has_lost_its_head(cluster: Cluster) -> None:
    watching = watch()
    cluster.firsts[CHANNEL, 1] = 41
    assert look(watching).first_offsets == {(CHANNEL, 1): 41}
    assert look(watching, 5.0).first_offsets == {(CHANNEL, 1): 41}, "as long as it is so"


def test_retention_of_the_other_topics_is_no_loss(cluster: Cluster) -> None:
    cluster.firsts[REQUESTS, 0] = 3
    assert not look(watch()).first_offsets


def test_without_an_answer_about_the_head_nothing_is_known(cluster: Cluster) -> None:
    cluster.firsts[CHANNEL, 0] = None
    findings = look(watch())
    assert findings.answered
    assert not findings.first_offsets


# --- identity and ends ----------------------------------------------------------------------------------------------


def test_a_topic_that_was_made_anew_is_broken_at_once(cluster: Cluster) -> None:
    cluster.ids[REQUESTS] = "S"
    assert list(look(watch()).broken) == [(REQUESTS, 0)]


def test_an_end_before_the_position_counts_when_it_is_seen_twice_in_a_row(cluster: Cluster) -> None:
    watching = watch()
    cluster.end = 5
    assert not look(watching, 0.0).broken
    cluster.end = 100
    assert not look(watching, 10.0).broken
    cluster.end = 5
    assert not look(watching, 20.0).broken, "twice ever is not twice in a row"
    assert list(look(watching, 30.0).broken) == [(CHANNEL, 0)]
