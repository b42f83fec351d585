"""Events of the brokers in the stream `/v1/changes`: starts and ends of processes, leaders, modes, findings of canaries.

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
from statechannel.protocol.bounded import remember
from statechannel.protocol.log import RecordRead, Topic

if TYPE_CHECKING:
    from statechannel.settings import Settings

EVENT: Final = "event"
CANARY: Final = "canary"
LEAD_IN_MAX: Final = 20_000
"""Heartbeats that are read before the first one wanted, to know who was there: ten minutes of a hundred brokers."""
_BROKERS_MAX: Final = 2_000


class BrokerEvents:
    """Documents of the heartbeats by which something happened; the others have none.

    Args:
        expiry_s: Of processes whose heartbeats do not have their own.
    """

    def __init__(self, expiry_s: float) -> None:
        self._story = RegistryStory(expiry_s)
        self._canaries: dict[str, tuple[Any, ...]] = {}

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
        events += self._findings(record, info)
        if not events:
            return None
        return {
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "broker": info["broker"],
            "events": events,
        }

    def _findings(self, record: RecordRead, info: Mapping[str, Any]) -> list[dict[str, Any]]:
        canary, broker = info.get("canary"), str(info["broker"])
        if not isinstance(canary, dict):
            if self._canaries.pop(broker, None) is None:
                return []
            message = f"the canary of {broker} finds nothing any more"
            return [{"kind": CANARY, "at_ms": record.timestamp_ms, "message": message, "broker": broker}]
        finding: tuple[Any, ...] = tuple(canary.get(name) for name in ("bundle", "member", "reason", "since_ms"))
        if self._canaries.get(broker) == finding:
            return []
        remember(self._canaries, broker, finding, _BROKERS_MAX)
        bundle, member = canary.get("bundle"), canary.get("member")
        return [
            {
                "kind": CANARY,
                "at_ms": record.timestamp_ms,
                "message": f"{broker} asked {member} for {bundle}: {canary.get('message')}",
                "broker": broker,
                "bundle": bundle,
                "member": member,
                "reason": canary.get("reason"),
            }
        ]


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
