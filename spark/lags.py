"""How far a query is behind, from the offsets that Spark tells as text."""

from __future__ import annotations

from typing import Any

import orjson

Partition = tuple[str, int]


def parse_offsets(text: object) -> dict[Partition, int]:
    """Next offset by topic and partition, of Kafka's sources; nothing for what is none of theirs."""
    try:
        loaded: Any = orjson.loads(text) if isinstance(text, str | bytes) else text
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(loaded, dict):
        return {}
    found: dict[Partition, int] = {}
    for topic, partitions in loaded.items():
        if not isinstance(partitions, dict):
            continue
        for number, offset in partitions.items():
            if str(number).isdigit() and isinstance(offset, int):
                found[topic, int(number)] = offset
    return found


def lags(read_to: object, end: object) -> dict[Partition, int]:
    """Records between where a batch ended and the end of the log when it began, by topic and partition.

    A partition that has not been read yet has no entry: how much of it the query wants is not known here.
    """
    positions = parse_offsets(read_to)
    return {
        partition: max(0, offset - positions[partition])
        for partition, offset in parse_offsets(end).items()
        if partition in positions
    }
