"""The balancer's decisions, and how their moves ended, in the stream `/v1/changes`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from shedders.decisions.history import decision_read
from shedders.decisions.topic import describe_decision_topic
from statechannel.http_api.change_sources import ChangeSource, Fold
from statechannel.kafka.client_settings import to_client, to_topics
from statechannel.kafka.tail import PartitionTail, side_tail
from statechannel.kafka.topic_policy import decisions_topic
from statechannel.protocol.log import RecordRead
from statechannel.protocol.side_record import InvalidRecord

if TYPE_CHECKING:
    from statechannel.settings import Settings

DECISION: Final = "decision"
_LEFT_OUT: Final = {"memory", "settings"}
"""Fields for the next leader: they can be as large as all the rest."""


def decision_document(record: RecordRead) -> Mapping[str, Any]:
    """The document of a record of the topic: its own fields without those for the next leader, or why it cannot be read."""
    read = decision_read(record)
    place = {"offset": read.offset, "timestamp_ms": read.timestamp_ms}
    if isinstance(read.record, InvalidRecord):
        return place | {"unreadable": str(read.record.reason), "message": read.record.why}
    return place | read.record.model_dump(mode="json", exclude=_LEFT_OUT)


def decisions(settings: Settings) -> ChangeSource:
    """An entry point of `statechannel.change_sources`."""
    client, topic = to_client(settings), decisions_topic(to_topics(settings).channel)

    def open_tail() -> PartitionTail:
        timeout_s = settings.kafka.command_timeout_s
        describe_decision_topic(client, topic, timeout_s=timeout_s)
        return side_tail(client, topic, timeout_s)

    def fold() -> Fold:
        return decision_document

    return ChangeSource(DECISION, open_tail, fold)
