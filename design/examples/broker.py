# ruff: noqa: ARG002, PLR2004
"""A broker in forty lines: owns bundles, serves their topics, hands them over. Run: python broker.py ex1 HOST:PORT."""

import asyncio
import signal
import sys
from collections.abc import Sequence

from statechannel.api import BrokerHooks, Rejected, StateChannel, StateChannelError


class MyBroker(BrokerHooks):
    async def on_own(self, bundle: str, generation: int) -> None:
        print("open storage of", bundle, "fenced by", generation, flush=True)

    async def on_serve(self, bundle: str, generation: int) -> None:
        print("serve", bundle, flush=True)

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        print("close", bundle, "and send clients to", destination, flush=True)

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        print("take no more writes to", parent, "and split it into", *children, flush=True)


async def main(broker: str, kafka: str) -> None:
    leave, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(leave.set))  # also on Windows
    async with StateChannel.open(
        broker=broker,
        hooks=MyBroker(),
        listeners={"pulsar": f"pulsar://{broker}.example:6650"},
        create_topics=True,
        kafka={"bootstrap_servers": kafka},
    ) as channel:
        created = await channel.create_namespace("example/orders", bundles=4).started()
        if isinstance(created, Rejected) and created.reason != "namespace-exists":  # another broker may be first
            sys.exit(f"{created.message}\n{created.hint}")
        print(await channel.lookup("example/orders/new"), flush=True)
        await leave.wait()


if len(sys.argv) != 3:
    sys.exit("usage: python broker.py ID HOST:PORT")
try:
    asyncio.run(main(*sys.argv[1:]))
except StateChannelError as error:
    sys.exit(f"{error}\n{error.hint}")
