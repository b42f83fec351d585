"""A broker process for measurements: `python -m tests.bench.broker_process BROKER BOOTSTRAP CHANNEL`.

It embeds the library as a broker would, with hooks that only note the time. One JSON array a line comes in on standard
input, one JSON value goes out for each.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import structlog

from statechannel.api import BrokerHooks, Done, Owned, StateChannel
from statechannel.settings import load


class Stamps(BrokerHooks):
    """No-op hooks that note when they were called. CLOCK_MONOTONIC is one clock for all processes of a machine."""

    def __init__(self) -> None:
        self.at_ns: dict[tuple[str, str], int] = {}

    async def on_own(self, bundle: str, generation: int) -> None:
        self.at_ns["own", bundle] = time.monotonic_ns()

    async def on_serve(self, bundle: str, generation: int) -> None:
        self.at_ns["serve", bundle] = time.monotonic_ns()

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.at_ns["release", bundle] = time.monotonic_ns()

    async def on_moved(self, bundle: str, owner: str | None, urls: Mapping[str, str]) -> None:
        self.at_ns["moved", bundle] = time.monotonic_ns()


class Broker:
    """The commands of a measurement; each takes JSON and returns JSON."""

    def __init__(self, channel: StateChannel, stamps: Stamps) -> None:
        self._channel = channel
        self._stamps = stamps

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
        """Look many bundles up at once; their owners and the time until the last answer."""
        began_ns = time.monotonic_ns()
        outcomes = await asyncio.gather(*(self._channel.lookup(bundle, 60) for bundle in bundles))
        until_ns = time.monotonic_ns()
        owners = [outcome.broker if isinstance(outcome, Owned) else None for outcome in outcomes]
        return {"ms": (until_ns - began_ns) / 1e6, "owners": owners, "at_ns": until_ns}

    async def lookups(self, topic: str, seconds: float) -> float:
        """Answers a second from memory, one caller that waits for each."""
        until_s, count = time.monotonic() + seconds, 0
        began_s = time.monotonic()
        while time.monotonic() < until_s:
            for _ in range(100):
                await self._channel.lookup(topic)
            count += 100
        return count / (time.monotonic() - began_s)

    async def status(self) -> dict[str, Any]:
        return self._channel.status()

    async def leading(self) -> bool:
        return bool(self._channel.status()["leading"])


async def main(broker: str, bootstrap: str, channel: str, *, made_with: type[Broker] = Broker) -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    stamps = Stamps()
    groups = {"kafka": {"bootstrap_servers": bootstrap}, "channel": {"name": channel}}
    opened = await StateChannel.open(
        load(overrides=groups),
        broker=broker,
        hooks=stamps,
        listeners={"pulsar": f"pulsar://{broker}:6650"},
        create_topics=True,
    )
    commands = made_with(opened, stamps)
    print(json.dumps(os.getpid()), flush=True)
    lines = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        name, *arguments = json.loads(line)
        answer = await getattr(commands, name)(*arguments)
        print(json.dumps(answer), flush=True)
    await opened.shutdown(5)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
