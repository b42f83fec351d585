# ruff: noqa: ARG002, D101
"""A broker in thirty lines: owns bundles, serves their topics, hands them over. Run: python broker.py ex1 HOST:PORT."""

import asyncio
import signal
import sys

from statechannel.api import BrokerHooks, StateChannel, StateChannelError


class MyBroker(BrokerHooks):
    async def on_own(self, bundle: str, generation: int) -> None:
        print("open storage of", bundle, "fenced by", generation, flush=True)

    async def on_serve(self, bundle: str, generation: int) -> None:
        print("serve", bundle, flush=True)

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        print("close", bundle, "and send clients to", destination, flush=True)


async def main(broker: str, kafka: str) -> None:
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    async with StateChannel.open(
        broker=broker,
        hooks=MyBroker(),
        listeners={"pulsar": f"pulsar://{broker}.example:6650"},
        create_topics=True,
        kafka={"bootstrap_servers": kafka},
    ) as channel:
        await (await channel.create_namespace("example/orders", bundles=4)).started()
        print(await channel.lookup("example/orders/new"), flush=True)
        await leave.wait()


try:
    asyncio.run(main(*sys.argv[1:]))
except StateChannelError as error:
    sys.exit(f"{error}\n{error.hint}")
