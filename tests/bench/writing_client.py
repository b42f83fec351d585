"""A client that writes to one topic without pause, follows it from owner to owner, and notes the gaps between two acks."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Sequence

from tests.support.plane_client import LinkDownError, PlaneLink

PAUSE_S = 0.0005
ANSWER_S = 5.0


class WritingClient:
    """Writes in a thread of its own from the beginning of its block to the end of it.

    Args:
        urls: Data planes of all brokers.
    """

    def __init__(self, topic: str, urls: Sequence[str]) -> None:
        self._topic = topic
        self._urls = list(urls)
        self._longest_ns = 0
        self._acked = 0
        self._stopping = False
        self._began = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="writing-client", daemon=True)

    def __enter__(self) -> WritingClient:
        self._thread.start()
        if not self._began.wait(ANSWER_S * len(self._urls)):
            raise RuntimeError(f"no broker takes a write of {self._topic}")
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._thread.join(ANSWER_S * 2)

    def longest_ms(self) -> float:
        """The longest gap between two acks since it was asked last."""
        longest_ns, self._longest_ns = self._longest_ns, 0
        return longest_ns / 1e6

    async def _run(self) -> None:
        links = {url: PlaneLink(url) for url in self._urls}
        turn = itertools.cycle(self._urls)
        at, last_ns = next(turn), time.monotonic_ns()
        while not self._stopping:
            answer = await self._ask(links, at, "write")
            if answer.get("ok"):
                now_ns = time.monotonic_ns()
                if self._began.is_set():
                    self._longest_ns = max(self._longest_ns, now_ns - last_ns)
                last_ns = now_ns
                self._began.set()
                await asyncio.sleep(PAUSE_S)
                continue
            # As Pulsar's client: go where the old owner sends it, else ask some broker, which waits for the new owner.
            owner = answer.get("moved") or (await self._ask(links, next(turn), "lookup", wait_s=ANSWER_S)).get("url")
            at = owner or next(turn)
        for link in links.values():
            await link.close()

    async def _ask(self, links: dict[str, PlaneLink], url: str, do: str, **args: float) -> dict[str, object]:
        link = links.setdefault(url, PlaneLink(url))
        try:
            return await link.ask(do, ANSWER_S, topic=self._topic, **args)
        except LinkDownError:
            return {}
