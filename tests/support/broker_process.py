"""A broker process for tests that kill it: `python -m tests.support.broker_process BROKER BOOTSTRAP CHANNEL`."""

import asyncio
import signal
import sys

from statechannel.api import StateChannel
from tests.support.channels import EXPIRY, make_settings
from tests.support.waits import WAIT_S


async def main(broker: str, bootstrap: str, channel: str) -> int:
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    opened = await StateChannel.open(
        make_settings(bootstrap, channel, membership=EXPIRY),
        broker=broker,
        listeners={"pulsar": f"pulsar://{broker}:6650"},
        create_topics=True,
        join_timeout_s=WAIT_S,
    )
    print("ready", flush=True)
    ended = asyncio.ensure_future(opened.wait_stopped())
    asked = asyncio.ensure_future(leave.wait())
    await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
    stopped = await (ended if ended.done() else opened.shutdown(10))
    print("stopped", stopped.reason, flush=True)
    return stopped.exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
