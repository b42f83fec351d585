"""Files of this project that take part in one transfer, from the shell to both hooks: `python -m tests.transfer_trace`.

Three brokers with the balancing extension, and the command, run in this process on the embedded Kafka; a profile function notes
which functions of this project are called. What is called while nothing happens, too (heartbeats, reports of load), is left out,
unless the same file also has functions that only the transfer calls.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from typer.testing import CliRunner

from shedders.balancer.extension import BalancerExtension
from shedders.balancer.settings import BalancerSettings
from statechannel.api import BrokerHooks, StateChannel
from statechannel.cli.main import app
from statechannel.embedded import KafkaServer

ROOT = Path(__file__).parent.parent
PRODUCT = tuple(f"{ROOT / name}/" for name in ("statechannel", "loaddata", "shedders", "spark"))
IDLE_S = 15.0
SETTLED_S = 3.0
BROKERS = ("b1", "b2", "b3")
NAMESPACE = "trace/transfer"


class NotingHooks(BrokerHooks):
    """Notes which hooks were called."""

    def __init__(self, called: Mapping[str, Future[None]]) -> None:
        self._called = called

    async def on_own(self, bundle: str, generation: int) -> None:
        self._note("on_own")

    async def on_serve(self, bundle: str, generation: int) -> None:
        self._note("on_serve")

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self._note("on_release")

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        pass

    def _note(self, hook: str) -> None:
        if self._called[hook].running():
            self._called[hook].set_result(None)


class CallRecorder:
    """Notes functions of the product by file, in the order of their first calls."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, str], int] | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        calls, code = self.calls, frame.f_code
        if event == "call" and calls is not None and code.co_filename.startswith(PRODUCT):
            place = (code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname)
            calls[place] = calls.get(place, 0) + 1

    def install(self) -> None:
        threading.setprofile(self)
        sys.setprofile(self)


def main() -> int:
    recorder = CallRecorder()
    recorder.install()
    with TemporaryDirectory() as folder, KafkaServer(Path(folder)) as kafka:
        ended = threading.Event()
        hooks: dict[str, Future[None]] = {name: Future() for name in ("on_release", "on_own", "on_serve")}
        opened = [threading.Event() for _ in BROKERS]
        threads = [
            threading.Thread(target=_run_broker, args=(name, kafka.bootstrap_servers, hooks, ready, ended))
            for name, ready in zip(BROKERS, opened, strict=True)
        ]
        for thread in threads:
            thread.start()
        try:
            for ready in opened:
                ready.wait(60)
            idle, calls = _trace(recorder, kafka.bootstrap_servers, hooks)
        finally:
            ended.set()
            for thread in threads:
                thread.join(60)
    by_file: dict[str, list[str]] = {}
    for file, function in calls:
        if (file, function) not in idle:
            by_file.setdefault(file, []).append(function)
    for number, (file, functions) in enumerate(by_file.items(), 1):
        print(f"{number:3} {file}: {', '.join(functions[:4])}{' ...' if len(functions) > 4 else ''}")
    everything = {file for file, _ in calls}
    print(
        f"{len(by_file)} files that only the transfer calls, {len(everything)} with those that idle brokers call, too"
    )
    return 0


async def _broker(
    name: str, kafka: str, hooks: Mapping[str, Future[None]], ready: threading.Event, ended: threading.Event
) -> None:
    async with StateChannel.open(
        broker=name,
        hooks=NotingHooks(hooks),
        create_topics=True,
        kafka={"bootstrap_servers": kafka},
        extensions=[BalancerExtension(BalancerSettings())],
    ):
        ready.set()
        await asyncio.to_thread(ended.wait)


def _run_broker(
    name: str, kafka: str, hooks: Mapping[str, Future[None]], ready: threading.Event, ended: threading.Event
) -> None:
    asyncio.run(_broker(name, kafka, hooks, ready, ended))


def _trace(
    recorder: CallRecorder, kafka: str, hooks: Mapping[str, Future[None]]
) -> tuple[set[tuple[str, str]], dict[tuple[str, str], int]]:
    """Functions that idle brokers call; functions that are called during a transfer."""
    _command("namespace", "create", NAMESPACE, "--bundles", "4", kafka=kafka)
    answer = _command("lookup", f"{NAMESPACE}/topic", kafka=kafka)
    owner = next(name for name in BROKERS if name in answer)
    destination = next(name for name in BROKERS if name != owner)
    time.sleep(SETTLED_S)
    recorder.calls = idle = {}
    time.sleep(IDLE_S)
    for called in hooks.values():
        called.set_running_or_notify_cancel()
    recorder.calls = calls = {}
    _command("transfer", f"{NAMESPACE}/topic", "--dest", destination, kafka=kafka)
    for called in hooks.values():
        called.result(30)
    recorder.calls = None
    return set(idle), calls


def _command(*args: str, kafka: str) -> str:
    result = CliRunner().invoke(app, [*args, "--bootstrap-servers", kafka])
    if result.exit_code:
        raise SystemExit(f"{args}: {result.exit_code}\n{result.output}\n{result.stderr}")
    return result.stdout


if __name__ == "__main__":
    sys.exit(main())
