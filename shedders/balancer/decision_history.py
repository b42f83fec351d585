"""Decision history for a new leader: the newest decision, and the moves that earlier leaders made for a drain.

A drain outlives its leader, and only its cordon and the channel's state are kept. The channel has the remaining bundles, but not
the former ones; each batch of moves, however, is a decision record with the id of the drain.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from ulid import ULID

from shedders.decisions.record import AnyRecord, DecisionRecord, DrainPart
from shedders.decisions.topic import DecisionReader, newest_decision
from statechannel.protocol.side_record import InvalidRecord

if TYPE_CHECKING:
    from shedders.decisions.history import RecallBounds
    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topic_policy import SideTopic


EARLIER_MS: Final = 600_000
"""The id of a drain has the time of the requesting client, whose clock may be behind the log's by this much."""

_ID = re.compile(r"[0-9A-Za-z_-]{1,64}", re.ASCII)


def is_drain_id(text: object) -> bool:
    """Whether a value is a valid id of a drain: a short text that needs no escaping in JSON."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def moved_for(record: AnyRecord | InvalidRecord, drain: str, broker: str, own: Collection[str]) -> list[str]:
    """Bundles that a decision record moved for a drain.

    Args:
        own: Ids of decisions to ignore.
    """
    if not isinstance(record, DecisionRecord) or record.id in own or record.drain != DrainPart(id=drain, broker=broker):
        return []
    return [move.bundle for move in record.moves if move.refused is None]


def _since_ms(drain: str) -> int | None:
    try:
        return max(0, ULID.from_str(drain).milliseconds - EARLIER_MS)
    except ValueError:
        return None


class DecisionHistory:
    """Reader of earlier decisions, in a thread to keep the loop free.

    Args:
        now_s: Monotonic.
    """

    def __init__(
        self,
        client: ClientSettings,
        topic: SideTopic,
        timeout_s: float,
        bounds: Callable[[], RecallBounds],
        now_s: Callable[[], float],
    ) -> None:
        self._client = client
        self._topic = topic
        self._timeout_s = timeout_s
        self._bounds = bounds
        self._now_s = now_s

    async def newest(self) -> DecisionRecord | None:
        """The newest decision of a cycle; None if there is none within the bounds."""
        return await asyncio.to_thread(newest_decision, self._client, self._topic, self._timeout_s, self._bounds())

    async def moved(self, drain: str, broker: str, own: Collection[str]) -> Collection[str] | None:
        """Bundles that other leaders moved for a drain; None if reading took too long.

        Args:
            own: Ids of decisions to ignore.

        Raises:
            KafkaAdapterError: Kafka is unavailable, or refuses it.
        """
        return await asyncio.to_thread(self._read_moved, drain, broker, own)

    def _read_moved(self, drain: str, broker: str, own: Collection[str]) -> frozenset[str] | None:
        ends_s = self._now_s() + self._bounds().time_s
        bundles: set[str] = set()
        with DecisionReader(self._client, self._topic, timeout_s=self._timeout_s) as reader:
            for read in reader.read(since_ms=_since_ms(drain), about=[drain], stop=lambda: self._now_s() > ends_s):
                bundles.update(moved_for(read.record, drain, broker, own))
        return None if self._now_s() > ends_s else frozenset(bundles)
