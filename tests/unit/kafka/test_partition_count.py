"""Over how many partitions a channel distributes its keys, by what its log says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from statechannel.audit.transfer.import_plan import ImportPlan, PlannedNamespace
from statechannel.kafka import partition_count
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import TopicPolicyError
from statechannel.kafka.tail import Span
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.kafka.topics import TopicInfo
from statechannel.protocol.bundle import namespace_bounds
from statechannel.protocol.codec import HEARTBEAT_KEY, IMPORT_KEY, encode
from statechannel.protocol.log import RecordRead, Topic
from tests.support.imports import KilledError, Log, empty_log, importer_for, run_import, survey

PLAN = ImportPlan(
    tuple(PlannedNamespace(f"t/n{n}", 2, 1, tuple(namespace_bounds(2)), ("b1", None)) for n in range(8)), "import-1"
)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Any:
    def used(log: Log, in_kafka: int) -> int:
        class Tail:
            def __init__(self, *_: object, **__: object) -> None: ...

            def __enter__(self) -> Tail:
                return self

            def __exit__(self, *_: object) -> None: ...

            def span(self) -> Span:
                return Span(0, 0, len(log[0]))

            def end_of(self, partition: int) -> int:
                return len(log.get(partition, ()))

            def records(self, span: Span) -> Iterator[RecordRead]:
                for offset in range(span.start, span.end):
                    yield RecordRead(Topic.CHANNEL, 0, offset, 0, *log[0][offset])

        monkeypatch.setattr(partition_count, "PartitionTail", Tail)
        info = TopicInfo("c", "id", in_kafka, 1, {})
        return partition_count.as_used(ClientSettings("h:1"), ChannelTopics("c"), info, timeout_s=1).partitions

    return used


def heartbeat(**more: object) -> tuple[bytes, bytes]:
    by = {"broker": "b1", "incarnation": "x"}
    fields = {"format": 1, "kind": "heartbeat", "id": "h1", "covers": 0, "by": by, "clean_to": 0}
    return HEARTBEAT_KEY, encode(fields | more)


def test_a_new_channel_has_the_partitions_of_its_topic(used: Any) -> None:
    assert used(empty_log(3), 3) == 3
    assert used({0: [(IMPORT_KEY, b"junk"), (IMPORT_KEY, b'{"partitions": 2}'), (IMPORT_KEY, None)]}, 3) == 3


def test_heartbeats_name_the_number(used: Any) -> None:
    assert used({0: [heartbeat(partitions=2)], 1: [heartbeat()]}, 3) == 2
    assert used({0: [heartbeat()], 1: [heartbeat()]}, 3) == 2, "those of older versions lie in each partition"


def test_an_imported_channel_has_the_partitions_of_the_import(used: Any) -> None:
    log = empty_log(3)
    run_import(importer_for(PLAN, 3), log)
    assert used(log, 4) == 3


@pytest.mark.parametrize("records", [1, 2, 4, 9])
def test_so_has_one_whose_import_was_killed_and_it_goes_on(used: Any, records: int) -> None:
    log, left = empty_log(3), iter(range(records))

    def killed(_: object) -> None:
        if next(left, None) is None:
            raise KilledError

    with pytest.raises(KilledError):
        run_import(importer_for(PLAN, 3), log, before_append=killed)
    assert used(log, 4) == 3
    again = importer_for(PLAN, 3, "i2")
    run_import(again, log)
    assert again.counts.present + again.counts.written == PLAN.records
    assert used(log, 4) == 3
    third = importer_for(PLAN, 3, "i3")
    survey(third, log)
    assert third.counts.present == PLAN.records


@pytest.mark.parametrize("in_kafka", [1, 2])
def test_a_topic_with_fewer_partitions_than_its_channel_uses_is_refused(used: Any, in_kafka: int) -> None:
    with pytest.raises(TopicPolicyError, match="its channel uses 3") as caught:
        used({0: [heartbeat(partitions=3)]}, in_kafka)
    assert caught.value.hint
