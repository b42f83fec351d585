"""A broker process that stops at chosen steps, so that it can be killed or paused there.

`python -m tests.support.stalling_broker BROKER BOOTSTRAP CHANNEL [GROUP.NAME=VALUE ...]`; commands come as lines of JSON on
standard input, `{"do": ...}`; what happens is told as lines of JSON on standard output.

A plan maps bundles to the step at which this process gets stuck with them, while all else goes on:

- `own`: `on_own` has begun and does not return;
- `release`: `on_release` has begun and does not return;
- `append:STATE`: the record of that state is ready but does not leave (hooks before it have returned);
- `sent:STATE`: that record has left, and nothing is done about the bundle any more.
"""

import asyncio
import logging
import signal
import sys
from collections import defaultdict

import orjson

from statechannel.api import BrokerHooks, ChannelStoppedError, StateChannel
from statechannel.broker import assembly
from statechannel.broker.parts import KafkaLog
from statechannel.engine.effects import Append
from statechannel.protocol.log import Topic
from tests.support.channels import EXPIRY, make_settings
from tests.support.waits import WAIT_S


def tell(**facts: object) -> None:
    sys.stdout.write(orjson.dumps(facts).decode() + "\n")
    sys.stdout.flush()


class Plan:
    """Where to get stuck, and what is stuck."""

    def __init__(self) -> None:
        self.steps: dict[str, str] = {}
        self.over: set[str] = set()
        self.held: dict[str, list] = defaultdict(list)
        self.go = asyncio.Event()

    def stuck(self, bundle: str, step: str) -> bool:
        if self.go.is_set():
            return False
        if bundle in self.over:
            return True
        if self.steps.get(bundle) != step:
            return False
        tell(stuck=bundle, step=step)
        self.over.add(bundle)
        return True


plan = Plan()


class StallingHooks(BrokerHooks):
    async def on_own(self, bundle, generation) -> None:
        if plan.stuck(bundle, "own"):
            await plan.go.wait()

    async def on_serve(self, bundle, generation) -> None:
        tell(serve=bundle, generation=generation)

    async def on_release(self, bundle, generation, destination) -> None:
        tell(release=bundle, generation=generation)
        if plan.stuck(bundle, "release"):
            await plan.go.wait()


class StallingLog(KafkaLog):
    def append(self, effect: Append) -> None:
        if effect.topic is not Topic.CHANNEL or effect.key.startswith(b"!") or effect.value is None:
            super().append(effect)
            return
        bundle, state = effect.key.decode(), orjson.loads(effect.value)["state"]
        if plan.stuck(bundle, f"append:{state}"):
            plan.held[bundle].append(effect)
            return
        super().append(effect)
        plan.stuck(bundle, f"sent:{state}")

    def release_all(self) -> None:
        """What was held leaves now, late as it is."""
        for effects in plan.held.values():
            for effect in effects:
                super().append(effect)
        plan.held.clear()


logs: list[StallingLog] = []


def make_log(*args, **kwargs) -> StallingLog:
    logs.append(StallingLog(*args, **kwargs))
    return logs[-1]


async def obey(channel: StateChannel, command: dict) -> None:
    try:
        await obey_one(channel, command)
    except Exception as error:
        tell(failed=repr(error), command=command)
        raise


async def obey_one(channel: StateChannel, command: dict) -> None:
    match command.pop("do"):
        case "plan":
            plan.steps.update(command["steps"])
            tell(planned=len(plan.steps))
        case "go":
            plan.go.set()
            logs[-1].release_all()
            tell(gone=True)
        case "serving":
            tell(serving=channel.serving(), digest=channel.digest()[0])
        case "lookup":
            tell(looked_up=str(await channel.lookup(command["name"], WAIT_S)))
        case "transfer":
            await (await channel.transfer(command["name"], command["to"])).outcome(WAIT_S)
        case "unload":
            await (await channel.unload(command["name"])).outcome(WAIT_S)
        case "split":
            await (await channel.split(command["name"])).outcome(WAIT_S)


async def commands(channel: StateChannel) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks = set()
    while line := await reader.readline():
        task = asyncio.create_task(obey(channel, orjson.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def main(broker: str, bootstrap: str, channel: str, *flags: str) -> int:
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    logging.basicConfig(level=logging.INFO)
    assembly.KafkaLog = make_log
    groups: dict[str, dict] = defaultdict(dict)
    for flag in flags:
        name, _, value = flag.partition("=")
        group, _, setting = name.partition(".")
        groups[group][setting] = value
    groups["membership"] = {**EXPIRY, **groups["membership"]}
    try:
        opened = await StateChannel.open(
            make_settings(bootstrap, channel, **groups),
            broker=broker,
            hooks=StallingHooks(),
            create_topics=True,
            join_timeout_s=WAIT_S,
        )
    except ChannelStoppedError as error:
        tell(stopped=error.stopped.reason)
        return error.stopped.exit_code
    tell(ready=broker)
    asking = asyncio.create_task(commands(opened))
    ended = asyncio.ensure_future(opened.wait_stopped())
    asked = asyncio.ensure_future(leave.wait())
    await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
    stopped = await (ended if ended.done() else opened.shutdown(10))
    asking.cancel()
    tell(stopped=stopped.reason)
    return stopped.exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
