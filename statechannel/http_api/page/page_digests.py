"""Asks the replicas of all brokers for their digests, for open pages: at the endpoints that brokers publish, within bounds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import orjson

from statechannel.audit.verify import ReplicaWord, ReplicaWordError, parse_word
from statechannel.broker.observe.replica_digest import ReplicaCopy, copy_replicas, digest_document
from statechannel.errors import StateChannelError
from statechannel.http_api.page.replicas_compared import ReplicaComparison
from statechannel.http_client import fetch, is_http_url

if TYPE_CHECKING:
    from statechannel.engine.engine import Engine
    from statechannel.http_api.documents import BrokerRow

PATH: Final = "/digest"
DIGEST_MAX_BYTES: Final = 4 << 20
ASKED_AT_ONCE: Final = 8
BROKERS_MAX: Final = 100
"""Brokers that are asked in a round; the page says of the others that they were not."""
TRIES: Final = 3
"""How often a replica is asked in a round whose offset no other was at."""
TRY_S: Final = 0.3
OWN_REPLICA: Final = "this console"
_COPY_S: Final = 30.0

OwnDigest = Callable[[], Awaitable[ReplicaWord]]


class ReplicaDigestsRound:
    """Compares the replicas of all brokers, a round at a time.

    Args:
        broker: Id of the broker in whose process it runs; empty for a console.
        own: The word of the replica of this process.
        timeout_s: Bound of each answer.
    """

    def __init__(self, broker: str, own: OwnDigest, timeout_s: float) -> None:
        self._own_name = broker or OWN_REPLICA
        self._own = own
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE)
        self.comparison = ReplicaComparison(self._own_name)

    async def run(self, rows: Iterable[BrokerRow]) -> None:
        """Ask all brokers that are alive; those that lag a moment, again."""
        known = {row["broker"]: row for row in rows if row["state"] not in ("lost", "left")}
        asked = {name: row for name, row in sorted(known.items()) if name != self._own_name}
        left_out = dict.fromkeys(list(asked)[BROKERS_MAX:], f"no more than {BROKERS_MAX} brokers are asked")
        waiting = {name: asked[name] for name in asked if name not in left_out}
        self.comparison.begin()
        for turn in range(TRIES):
            if turn:
                await asyncio.sleep(TRY_S)
            words = await self._ask(waiting)
            behind = self.comparison.take({**left_out, **words}, time.time_ns() // 1_000_000)
            waiting = {name: row for name, row in waiting.items() if name in behind}
            if not waiting:
                return

    async def _ask(self, rows: Mapping[str, BrokerRow]) -> dict[str, ReplicaWord | str]:
        names = [self._own_name, *rows]
        words = await asyncio.gather(self._ask_self(), *(self._ask_broker(row) for row in rows.values()))
        return dict(zip(names, words, strict=True))

    async def _ask_self(self) -> ReplicaWord | str:
        try:
            return await self._own()
        except StateChannelError as error:
            return str(error)

    async def _ask_broker(self, row: BrokerRow) -> ReplicaWord | str:
        address = row["http"]
        if address is None or not is_http_url(address):
            return "it has no endpoint to be asked at: it runs without `observe.metrics_port`"
        async with self._turns:
            try:
                word = parse_word(await fetch(address + PATH, timeout_s=self._timeout_s, max_bytes=DIGEST_MAX_BYTES))
            except ReplicaWordError as error:
                return f"{address} answers something else: {error}"
            except StateChannelError as error:
                return f"{address}: {error}"
        if (word.broker, word.incarnation) != (row["broker"], row["incarnation"]):
            return f"{address} is another process: {word.broker}, {word.incarnation}"
        return word


async def copy_of(engine: Engine) -> ReplicaCopy:
    """A copy of the states of this process's replica; on the loop of the engine.

    Raises:
        CopyTimeoutError: They change too fast, or the loop is too busy.
    """
    return await copy_replicas(engine, timeout_s=_COPY_S)


def word_of(copy: ReplicaCopy) -> ReplicaWord:
    """What a replica says of itself, as its `/digest` does; takes long for many bundles: call it in a thread."""
    return parse_word(orjson.dumps(digest_document(copy)))
