"""Events of the brokers in the stream `/v1/changes`: starts and ends of processes, leaders, modes.

They are derived from the heartbeats in the registry, by the fold that `status` and `doctor` use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from statechannel.audit.registry_story import RegistryStory
from statechannel.engine.membership import decode_member
from statechannel.http_api.change_sources import ChangeSource, Fold
from statechannel.kafka.client_settings import to_client, to_topics
from statechannel.kafka.tail import PartitionTail
from statechannel.protocol.log import RecordRead, Topic

if TYPE_CHECKING:
    from statechannel.settings import Settings

EVENT: Final = "event"
LEAD_IN_MAX: Final = 20_000
"""Heartbeats that are read before the first one wanted, to know who was there: ten minutes of a hundred brokers."""


class BrokerEvents:
    """Documents of the heartbeats by which something happened; the others have none.

    Args:
        expiry_s: Of processes whose heartbeats do not have their own.
    """

    def __init__(self, expiry_s: float) -> None:
        self._story = RegistryStory(expiry_s)

    def __call__(self, record: RecordRead) -> Mapping[str, Any] | None:
        """The document of a record; None: nothing happened by it."""
        info = decode_member(record.value)
        if info is None:
            return None
        self._story.observe(record, info)
        broker = info["broker"]
        events: list[dict[str, Any]] = [
            {
                "kind": incident.kind.value,
                "at_ms": incident.at_ms,
                "message": incident.message,
                "broker": incident.lost or broker,
            }
            for incident in self._story.incidents
        ]
        self._story.incidents.clear()
        if not events:
            return None
        return {
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "broker": info["broker"],
            "events": events,
        }


def events(settings: Settings) -> ChangeSource:
    """An entry point of `statechannel.change_sources`."""
    client, topics = to_client(settings), to_topics(settings)

    def open_tail() -> PartitionTail:
        name = topics.names[Topic.REGISTRY]
        timeout_s = settings.kafka.command_timeout_s
        return PartitionTail(client, Topic.REGISTRY, name, 0, group_id=topics.reader_group, timeout_s=timeout_s)

    def fold() -> Fold:
        return BrokerEvents(settings.membership.expiry_s)

    return ChangeSource(EVENT, open_tail, fold, LEAD_IN_MAX)
