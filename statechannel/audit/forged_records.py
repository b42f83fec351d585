"""Forged records, as heartbeats report them: records in a process's name that it has read and did not write. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

FORGED_SHOWN_MS: Final = 3_600_000
"""How long reports of forged records are shown as a problem after the newest record: as long as the registry keeps heartbeats."""
FORGED_HINT: Final = (
    "Find out who may write to the topic (`kafka-acls.sh --list --topic NAME`) and remove the right; "
    "`statechannel audit origins` lists changes without an origin."
)
_TOPIC_SHOWN = 20


class ForgedRecords(NamedTuple):
    """How many forged records a broker reports, and the place and log time of the newest one."""

    records: int
    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    def is_shown(self, at_ms: int) -> bool:
        """Whether the report is shown as a problem at a log time."""
        return at_ms - self.timestamp_ms <= FORGED_SHOWN_MS

    def sentence(self, broker: str) -> str:
        records = "1 record" if self.records == 1 else f"{self.records} records"
        return (
            f"{broker} has read {records} in its own name that it did not write, "
            f"the newest in the {self.topic} at partition {self.partition}, offset {self.offset}"
        )


def forged_of(info: Mapping[str, Any], at_ms: int) -> ForgedRecords | None:
    """The report of a heartbeat; None if it has none, or a malformed one.

    Args:
        at_ms: Time of the heartbeat, for one that does not have the time of the newest.
    """
    fields = info.get("forged")
    if not isinstance(fields, dict):
        return None
    records, topic, partition, offset = (fields.get(name) for name in ForgedRecords._fields[:4])
    if not isinstance(topic, str) or not all(
        type(number) is int and number >= 0 for number in (records, partition, offset)
    ):
        return None
    newest_ms = fields.get("timestamp_ms")
    if type(newest_ms) is not int:
        newest_ms = at_ms
    return ForgedRecords(records, topic[:_TOPIC_SHOWN], partition, offset, newest_ms) if records else None  # type: ignore[arg-type]
