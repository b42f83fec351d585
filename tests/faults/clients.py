"""Clients that write to every topic and look it up at every broker, and note each answer.

A topic's writer asks any broker who serves it, writes there, follows a hint to another, and asks again when nobody takes it.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.faults.brokers import Incarnation
from tests.faults.history import History, Lookup, Outage, Write
from tests.faults.registers import Call, CallKind, Outcome
from tests.support.plane_client import LinkDownError, PlaneLink

WRITE_INTERVAL_S = 0.2
RETRY_S = 0.1
ANSWER_S = 2.0
LOOKUP_S = 4.0
ASIDE_INTERVAL_S = 0.1
LATE_S = 30.0
LATE_MAX = 300
"""Questions aside that may wait for an answer."""
READ_SHARE = 0.5
"""So many reads for each write."""
DELAYED_SHARE, DELAYED_S = 0.02, 1.5
"""Share of writes that wait between the owner's check and the storage, and for how long at most."""


class Clients:
    """Runs until its task is cancelled.

    Args:
        brokers: The processes that may be asked, paused ones too: a client cannot know.
    """

    def __init__(
        self, topics: Sequence[str], brokers: Callable[[], Sequence[Incarnation]], history: History, rng: random.Random
    ) -> None:
        self.topics = list(topics)
        self._brokers, self._history, self._rng = brokers, history, rng
        self._links: dict[str, PlaneLink] = {}
        self._owner: dict[str, str] = {}
        self._outages: dict[str, Outage] = {}
        self._values = itertools.count(1)
        self.taken_ns: dict[str, int] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for index, topic in enumerate(self.topics):
                group.create_task(self._writer(topic, index))
            group.create_task(self._aside(group))

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()

    async def ask(self, url: str, do: str, timeout_s: float = ANSWER_S, **args: Any) -> dict[str, Any]:
        """One question to one broker; an answer of its own where there is none."""
        link = self._links.setdefault(url, PlaneLink(url))
        try:
            return await link.ask(do, timeout_s, **args)
        except LinkDownError as error:
            return {"ok": False, "why": str(error), "down": True}

    async def _writer(self, topic: str, index: int) -> None:
        await asyncio.sleep(WRITE_INTERVAL_S * index / len(self.topics))
        while True:
            taken = await self._write(topic)
            if taken and self._rng.random() < READ_SHARE:
                await self._read(topic, self._owner[topic], ANSWER_S)
            await asyncio.sleep(WRITE_INTERVAL_S if taken else RETRY_S)

    async def _write(self, topic: str) -> bool:
        begun_ns = time.monotonic_ns()
        url = self._owner.get(topic) or await self._look_up(topic, self._any_url())
        for _ in range(2):  # at the owner as it is known, then where that one says it has gone
            if url is None:
                break
            sent_ns = time.monotonic_ns()
            answer = await self._put(topic, url, ANSWER_S)
            if answer.get("ok"):
                self._took(topic, answer, sent_ns)
            if answer.get("stored"):
                self._owner[topic] = url
                return True
            url = answer.get("moved")
        self._owner.pop(topic, None)
        self._history.refused_writes += 1
        if topic in self.taken_ns and topic not in self._outages:
            self._outages[topic] = Outage(topic, begun_ns)
            self._history.outages.append(self._outages[topic])
        return False

    def _took(self, topic: str, answer: dict[str, Any], sent_ns: int) -> None:
        got_ns = time.monotonic_ns()
        write = Write(
            topic,
            answer["by"],
            answer["pid"],
            answer["bundle"],
            answer["generation"],
            sent_ns,
            answer["mono_ns"],
            got_ns,
        )
        self._history.writes.append(write)
        self.taken_ns[topic] = max(answer["mono_ns"], self.taken_ns.get(topic, 0))
        outage = self._outages.get(topic)
        # An answer that comes late, from before the outage, does not end it.
        if outage is not None and answer["mono_ns"] >= outage.start_ns:
            del self._outages[topic]
            outage.end_ns = got_ns

    async def _aside(self, group: asyncio.TaskGroup) -> None:
        """Write and look up at any broker, also one that just does not answer: what it says when it wakes counts."""
        room = asyncio.Semaphore(LATE_MAX)
        while True:
            await asyncio.sleep(ASIDE_INTERVAL_S)
            url = self._any_url()
            if url is not None:
                await room.acquire()
                group.create_task(self._aside_at(url, self._rng.choice(self.topics), room))

    async def _aside_at(self, url: str, topic: str, room: asyncio.Semaphore) -> None:
        try:
            sent_ns = time.monotonic_ns()
            writing, reading = self._put(topic, url, LATE_S), self._read(topic, url, LATE_S)
            answer, _, _ = await asyncio.gather(writing, reading, self._look_up(topic, url, LATE_S))
            if answer.get("ok"):
                self._took(topic, answer, sent_ns)
        finally:
            room.release()

    async def _put(self, topic: str, url: str, timeout_s: float) -> dict[str, Any]:
        """Have a broker write a new value to the topic's register, and note what came of it."""
        rng, value, sent_ns = self._rng, next(self._values), time.monotonic_ns()
        late = {"late_s": rng.uniform(0, DELAYED_S)} if rng.random() < DELAYED_SHARE else {}
        answer: dict[str, Any] = {"ok": False, "down": True}  # unless another comes before the run is over
        try:
            patience_s = timeout_s + sum(late.values())  # the time that this client itself asked for is no outage
            answer = await self.ask(url, "put", patience_s, topic=topic, value=value, **late)
        finally:
            outcome = Outcome.OK if answer.get("stored") else Outcome.FENCED if answer.get("ok") else _refusal(answer)
            self._note(CallKind.WRITE, topic, value, outcome, sent_ns, answer)
        return answer

    async def _read(self, topic: str, url: str, timeout_s: float) -> None:
        confirm, sent_ns = self._rng.random() < 0.5, time.monotonic_ns()
        answer = await self.ask(url, "get", timeout_s, topic=topic, confirm=confirm)
        kind = CallKind.CONFIRMED_READ if confirm else CallKind.READ
        outcome = Outcome.OK if answer.get("ok") else _refusal(answer)
        self._note(kind, topic, answer.get("value"), outcome, sent_ns, answer)

    def _note(
        self, kind: CallKind, topic: str, value: int | None, outcome: Outcome, sent_ns: int, answer: dict[str, Any]
    ) -> None:
        who = {name: answer.get(key) for name, key in (("broker", "by"), ("pid", "pid"), ("generation", "generation"))}
        checked_ns = answer.get("mono_ns", 0)
        call = Call(kind, topic, value, outcome, sent_ns, time.monotonic_ns(), checked_ns=checked_ns, **who)
        self._history.calls.append(call)

    async def _look_up(self, topic: str, url: str | None, wait_s: float = LOOKUP_S) -> str | None:
        if url is None:
            await asyncio.sleep(RETRY_S)
            return None
        sent_ns = time.monotonic_ns()
        answer = await self.ask(url, "lookup", wait_s + 1, topic=topic, wait_s=wait_s)
        if not answer.get("ok") or answer.get("bundle") is None:
            self._history.undetermined_lookups += 1
            return None
        self._history.lookups.append(
            Lookup(
                topic,
                answer["by"],
                answer["owner"],
                answer["bundle"],
                answer["generation"],
                answer["stale_age_s"],
                sent_ns,
                time.monotonic_ns(),
            )
        )
        return answer.get("url")

    def _any_url(self) -> str | None:
        urls = [process.url for process in self._brokers() if process.url is not None]
        return self._rng.choice(urls) if urls else None


def _refusal(answer: dict[str, Any]) -> Outcome:
    """How a call ended that was not done."""
    if answer.get("down"):
        return Outcome.UNKNOWN
    return Outcome.FENCED if answer.get("fenced") else Outcome.NOT_SERVED
