"""A broker process for measurements: `python -m tests.bench.broker_process BROKER BOOTSTRAP CHANNEL`.

It embeds the library as a broker would, with hooks that only note the time. One JSON array a line comes in on standard
input, one JSON value goes out for each.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count, repeat
from typing import Any

from statechannel.api import BrokerHooks, Done, Owned, StateChannel
from statechannel.settings import load
from tests.bench.lookup_watch import LookupWatch
from tests.bench.measure import percentile, resident_bytes
from tests.support.data_plane import PROTOCOL, DataPlane

LOOK_S = 0.02
LOOKUP_S = 300.0
CALLERS = 500
GATE_BATCH = 100
CLIENTS = "client/"
"""Namespaces whose bundles the data plane of a broker serves."""


class Stamps(BrokerHooks):
    """Hooks that note when they were called. CLOCK_MONOTONIC is one clock for all processes of a machine.

    The toy data plane is told of the bundles of `client/` alone: it walks all it has, and so is not for thousands.
    """

    def __init__(self, plane: DataPlane) -> None:
        self.at_ns: dict[tuple[str, str], int] = {}
        self._plane = plane

    async def on_own(self, bundle: str, generation: int) -> None:
        self.at_ns["own", bundle] = time.monotonic_ns()

    async def on_serve(self, bundle: str, generation: int) -> None:
        self.at_ns["serve", bundle] = time.monotonic_ns()
        if bundle.startswith(CLIENTS):
            self._plane.served.serve(bundle, generation)

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.at_ns["release", bundle] = time.monotonic_ns()
        if bundle.startswith(CLIENTS):
            self._plane.served.release(bundle)

    async def on_moved(self, bundle: str, owner: str | None, urls: Mapping[str, str]) -> None:
        self.at_ns["moved", bundle] = time.monotonic_ns()
        if bundle.startswith(CLIENTS):
            self._plane.served.moved(bundle, urls.get(PROTOCOL))


class Broker:
    """The commands of a measurement; each takes JSON and returns JSON."""

    def __init__(self, channel: StateChannel, stamps: Stamps) -> None:
        self._channel = channel
        self._stamps = stamps
        self._watch: LookupWatch | None = None
        self._modes_seen = Counter[str]()
        self._looking: asyncio.Task[None] | None = None

    async def create(self, namespace: str, bundles: int) -> str:
        ticket = await self._channel.create_namespace(namespace, bundles)
        return type(await ticket.outcome(60)).__name__

    async def known(self, operation: str) -> str:
        return type(await self._channel.ticket(operation).outcome(60)).__name__

    async def transfer(self, bundle: str, to: str) -> dict[str, Any]:
        """One transfer, from the call to its end as this broker sees it."""
        began_ns = time.monotonic_ns()
        outcome = await (await self._channel.transfer(bundle, to)).outcome(30)
        return {
            "ms": (time.monotonic_ns() - began_ns) / 1e6,
            "done": isinstance(outcome, Done),
            "outcome": str(outcome),
        }

    async def transfers(self, moves: list[tuple[str, str]]) -> dict[str, Any]:
        """Many transfers at once; the time until the last has ended, and that of each."""

        async def transfer_one(bundle: str, to: str) -> tuple[float, bool]:
            outcome = await (await self._channel.transfer(bundle, to)).outcome(60)
            return (time.monotonic_ns() - began_ns) / 1e6, isinstance(outcome, Done)

        began_ns = time.monotonic_ns()
        ended = await asyncio.gather(*(transfer_one(bundle, to) for bundle, to in moves))
        return {"ms": [ms for ms, _ in ended], "done": all(done for _, done in ended)}

    async def watch(self, topic: str) -> None:
        """Look a topic up again and again from now on."""
        self._watch = LookupWatch(self._channel, topic)

    async def watched(self) -> dict[str, Any]:
        """End that, and tell what was seen."""
        if self._watch is None:
            raise RuntimeError("nothing was watched")
        return await self._watch.end()

    async def generations(self, bundles: list[str]) -> list[tuple[str | None, int | None]]:
        """Owner and generation of each, as this broker names them now; neither where it names none."""
        outcomes = [await self._channel.lookup(bundle, 0.05) for bundle in bundles]
        return [
            (outcome.broker, outcome.generation) if isinstance(outcome, Owned) else (None, None) for outcome in outcomes
        ]

    async def resident(self) -> int:
        """Bytes of resident memory."""
        return resident_bytes()

    async def split(self, bundle: str) -> dict[str, Any]:
        began_ns = time.monotonic_ns()
        outcome = await (await self._channel.split(bundle)).outcome(30)
        return {
            "ms": (time.monotonic_ns() - began_ns) / 1e6,
            "done": isinstance(outcome, Done),
            "outcome": str(outcome),
        }

    async def stamp(self, hook: str, bundle: str) -> int | None:
        return self._stamps.at_ns.pop((hook, bundle), None)

    async def owner(self, bundle: str) -> tuple[str | None, int]:
        """Who serves a bundle, and when this broker could say so."""
        outcome = await self._channel.lookup(bundle, 60)
        return (outcome.broker if isinstance(outcome, Owned) else None), time.monotonic_ns()

    async def owners(self, bundles: list[str]) -> dict[str, Any]:
        """Look many bundles up at once; their owners and the time until the last answer.

        The loop gets its turn between every few hundred callers: a broker that begins them all in one is blocked by itself.
        """
        began_ns, asked = time.monotonic_ns(), list[asyncio.Task[Any]]()
        for number, bundle in enumerate(bundles, start=1):
            asked.append(asyncio.create_task(self._channel.lookup(bundle, LOOKUP_S)))
            if number % CALLERS == 0:
                await asyncio.sleep(0)
        outcomes = await asyncio.gather(*asked)
        until_ns = time.monotonic_ns()
        owners = [outcome.broker if isinstance(outcome, Owned) else None for outcome in outcomes]
        return {"ms": (until_ns - began_ns) / 1e6, "owners": owners, "at_ns": until_ns}

    async def lookups(self, topic: str, seconds: float) -> dict[str, float]:
        """Answers a second from memory, one caller that waits for each, and the time of one: one topic, then others."""

        async def take(topics: Iterator[str]) -> tuple[list[int], float]:
            began_ns = last_ns = time.monotonic_ns()
            until_ns, taken_ns = began_ns + int(seconds * 1e9), []
            while last_ns < until_ns:
                await self._channel.lookup(next(topics))
                now_ns = time.monotonic_ns()
                taken_ns.append(now_ns - last_ns)
                last_ns = now_ns
            return taken_ns, (last_ns - began_ns) / 1e9

        steps = self._channel.status()["runtime"]["steps"]
        taken_ns, took_s = await take(repeat(topic))
        steps = self._channel.status()["runtime"]["steps"] - steps
        others_ns, _ = await take(f"{topic}-{number}" for number in count())
        figures = {f"p{share}_us": percentile(taken_ns, share / 100) / 1e3 for share in (50, 99)}
        return figures | {
            "rate": len(taken_ns) / took_s,
            "others_us": percentile(others_ns, 0.5) / 1e3,
            "steps_per_lookup": steps / len(taken_ns),
        }

    async def gate(self, topic: str, calls: int) -> float | None:
        """Microseconds of `accepts_writes` for a topic's bundle, the median of batches; None if this broker does not serve it."""
        owner = await self._channel.lookup(topic)
        if not isinstance(owner, Owned) or self._channel.accepts_writes(owner.bundle) is None:
            return None
        taken_ns = []
        for _ in range(calls // GATE_BATCH):
            began_ns = time.monotonic_ns()
            for _ in range(GATE_BATCH):
                self._channel.accepts_writes(owner.bundle)
            taken_ns.append(time.monotonic_ns() - began_ns)
        return percentile(taken_ns, 0.5) / 1e3 / GATE_BATCH

    async def cached_lookups(self, topic: str, seconds: float) -> dict[str, float]:
        """Answers a second from the cache, without a step: in the loop's thread, which also serves the channel; in another."""

        def ask(seconds: float) -> tuple[int, float]:
            answered, began_s = 0, time.monotonic()
            until_s = began_s + seconds
            while time.monotonic() < until_s:
                for _ in range(100):
                    answered += self._channel.lookup_cached(topic) is not None
            return answered, time.monotonic() - began_s

        answered, took_s, until_s = 0, 0.0, time.monotonic() + seconds
        while time.monotonic() < until_s:
            more, spent_s = ask(0.01)
            answered, took_s = answered + more, took_s + spent_s
            await asyncio.sleep(0)
        other, other_s = await asyncio.to_thread(ask, seconds)
        return {"rate": answered / took_s, "thread_rate": other / other_s}

    async def status(self) -> dict[str, Any]:
        return self._channel.status()

    async def leading(self) -> bool:
        return bool(self._channel.status()["leading"])

    async def watch_modes(self) -> None:
        """Look at the mode again and again from now on."""

        async def look() -> None:
            while True:
                modes[str(self._channel._host.engine.mode)] += 1
                await asyncio.sleep(LOOK_S)

        if self._looking is not None:
            self._looking.cancel()
        modes = self._modes_seen = Counter[str]()
        self._looking = asyncio.create_task(look())

    async def modes(self) -> Counter[str]:
        """How often each mode was seen."""
        return self._modes_seen

    async def leave(self) -> dict[str, Any]:
        """Leave in order, with the budget of the settings."""
        bundles, began_s = len(self._channel.serving()), time.monotonic()
        stopped = await self._channel.shutdown()
        return {"s": time.monotonic() - began_s, "bundles": bundles, "reason": stopped.reason, "detail": stopped.detail}


async def main(broker: str, bootstrap: str, channel: str, *, made_with: type[Broker] = Broker) -> None:
    plane = DataPlane(broker)
    stamps = Stamps(plane)
    groups = {"kafka": {"bootstrap_servers": bootstrap}, "channel": {"name": channel}}
    opened = await StateChannel.open(
        load(overrides=groups),
        broker=broker,
        hooks=stamps,
        listeners={"pulsar": f"pulsar://{broker}:6650", PROTOCOL: (url := await plane.start())},
        create_topics=True,
    )
    plane.attach(opened)
    commands = made_with(opened, stamps)
    print(json.dumps({"pid": os.getpid(), "url": url}), flush=True)
    lines = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        name, *arguments = json.loads(line)
        answer = await getattr(commands, name)(*arguments)
        print(json.dumps(answer), flush=True)
    await opened.shutdown(5)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
