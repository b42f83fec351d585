"""Generated logs on a real Kafka, and what the core says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from statechannel.replay import auditor
from tests.support.kafka_adapter import make_channel
from tests.twin import loggen
from tests.unit.core.against_twin import KNOBS, record_of

if TYPE_CHECKING:
    from pathlib import Path

LAG_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class WrittenLog:
    """A channel of one partition with a log in it.

    Attributes:
        digest: Of the accepted states, as every broker has it.
    """

    channel: str
    records: int
    digest: str


def write_log(bootstrap_servers: str, channel: str, *, knobs: str = "wild", seed: int = 7) -> WrittenLog:
    """Create the channel's topics and write a log: races, junk, splits, heartbeats."""
    result = make_channel(bootstrap_servers, channel)
    lines = [record_of(line) for line in loggen.generate(seed, KNOBS[knobs]).lines if line.partition == 0]
    result.write(*((line.key or b"", line.value) for line in lines))
    read = result.read_all(len(lines))
    answer = auditor.audit({0: read}, end_offsets={0: len(read)}, read="auto", now_ms=0, compaction_lag_ms=LAG_MS)
    return WrittenLog(channel, len(read), answer["digest"])


def pointer_of(table: Path) -> dict[str, Any]:
    """What the newest snapshot of a table says of itself."""
    load: dict[str, Any] = orjson.loads((table / "view" / "LATEST").read_bytes())["meta"]
    return load
