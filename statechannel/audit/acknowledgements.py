"""Acknowledgements of forged records: a person has looked at one, and says why it needs no more attention. Pure.

They are records of the requests topic (design/requests-topic.md), which operators write to and which is kept for a week. An
acknowledgement hides nothing: the record stays in every list, and only ceases to be a problem of `status` and `doctor`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from statechannel.audit.writers import ForgedRecords
from statechannel.protocol.bounded import remember
from statechannel.protocol.log import RecordRead, Topic

FORMAT: Final = 1
KIND: Final = "acknowledgement"
_MARK: Final = b'"acknowledgement"'
_HELD_MAX: Final = 100_000
_TEXT_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What one person said of one record.

    Attributes:
        topic: Role of the record's topic, such as `channel`.
        timestamp_ms: Log time of the record, so that a record of a re-created topic is another one; None: it was not known.
        by, reason: In the person's own words.
        at_ms: Log time of the acknowledgement; None: it is not written yet.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    by: str
    reason: str
    at_ms: int | None = None

    @property
    def place(self) -> tuple[str, int, int]:
        """Where the record is."""
        return self.topic, self.partition, self.offset

    def fields(self) -> dict[str, Any]:
        """For the JSON output, beside the record."""
        return {"by": self.by, "at_ms": self.at_ms, "reason": self.reason}


def acknowledged_sentence(fields: Mapping[str, Any]) -> str:
    """`Acknowledgement.fields` for people."""
    return f"acknowledged {by_whom(fields)}"


def by_whom(fields: Mapping[str, Any]) -> str:
    """The same without its verb."""
    return f"by {fields['by']} at {_time(fields['at_ms'])}: {fields['reason']}"


def encode(item: Acknowledgement, identifier: str, written_at_ms: int) -> bytes:
    """Value of the record; its key is the identifier."""
    return orjson.dumps(
        {
            "format": FORMAT,
            "kind": KIND,
            "id": identifier,
            "topic": item.topic,
            "partition": item.partition,
            "offset": item.offset,
            "timestamp_ms": item.timestamp_ms,
            "by": item.by,
            "reason": item.reason,
            "written_at_ms": written_at_ms,
        }
    )


def decode(value: bytes | None, at_ms: int) -> Acknowledgement | None:
    """The acknowledgement in a record of the requests topic; None: it is another record, or malformed.

    Args:
        at_ms: Log time of the record.
    """
    if value is None or _MARK not in value:
        return None
    try:
        loaded = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(loaded, dict) or loaded.get("format") != FORMAT or loaded.get("kind") != KIND:
        return None
    topic, by, reason = (loaded.get(name) for name in ("topic", "by", "reason"))
    partition, offset, timestamp_ms = (loaded.get(name) for name in ("partition", "offset", "timestamp_ms"))
    if not all(isinstance(text, str) and text for text in (topic, by, reason)):
        return None
    if type(partition) is not int or type(offset) is not int:
        return None
    if timestamp_ms is not None and type(timestamp_ms) is not int:
        return None
    return Acknowledgement(
        str(topic), partition, offset, timestamp_ms, str(by)[:_TEXT_MAX], str(reason)[:_TEXT_MAX], at_ms
    )


class Acknowledgements:
    """What was acknowledged; of several for one record the first counts.

    Args:
        items: The oldest first.
    """

    def __init__(self, items: Iterable[Acknowledgement] = ()) -> None:
        self._by_place: dict[tuple[str, int, int], tuple[Acknowledgement, ...]] = {}
        for item in items:
            held = self._by_place.get(item.place, ())
            if all(other.timestamp_ms != item.timestamp_ms for other in held):
                remember(self._by_place, item.place, (*held, item)[-2:], _HELD_MAX)

    @classmethod
    def of_records(cls, records: Iterable[RecordRead]) -> Acknowledgements:
        """Those among the records of the requests topic."""
        items = (decode(record.value, record.timestamp_ms) for record in records)
        return cls(item for item in items if item is not None)

    def of(self, topic: str, partition: int, offset: int, timestamp_ms: int | None) -> Acknowledgement | None:
        """That of a record; None: it was not acknowledged."""
        held = self._by_place.get((topic, partition, offset), ())
        return next(
            (item for item in held if None in (timestamp_ms, item.timestamp_ms) or item.timestamp_ms == timestamp_ms),
            None,
        )

    def of_report(self, forged: ForgedRecords) -> Acknowledgement | None:
        """That of the newest record that a broker reports as forged: with a newer one its report is open again."""
        return self.of(forged.topic, forged.partition, forged.offset, forged.timestamp_ms)

    def marked(self, forgeries: Mapping[str, Any]) -> dict[str, Any]:
        """A list of forged records (`statechannel.audit.forgeries.put_together`), each with its acknowledgement or None."""
        rows = []
        for row in forgeries["newest"]:
            item = self.of(Topic.CHANNEL.value, row["partition"], row["offset"], row["timestamp_ms"])
            rows.append({**row, "acknowledged": None if item is None else item.fields()})
        return {**forgeries, "newest": rows, "acknowledged": sum(row["acknowledged"] is not None for row in rows)}


def _time(at_ms: int | None) -> str:
    if at_ms is None:
        return "an unknown time"
    try:
        return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (OverflowError, ValueError, OSError):
        return f"{at_ms}ms"
