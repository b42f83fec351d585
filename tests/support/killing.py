"""For tests that kill and pause broker processes: a victim with a pipe, survivors, and what must hold in the end."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from statechannel.api import Owned, StateChannel
from statechannel.audit.gaps import Gaps
from statechannel.engine.placement import FewestBundles
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.tail import PartitionTail
from statechannel.protocol.log import RecordRead, Topic
from statechannel.replay import auditor
from statechannel.replay.part import PartitionAudit
from tests.support.channels import make_settings
from tests.support.waits import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
EXPIRY_S = 8.0
QUICK = {
    "kafka": {"session_timeout_ms": 6000},
    "hooks": {"deadline_s": 60.0, "shutdown_budget_s": 61.0},
    "repair": {"in_flight_limit_s": 90.0},
}
"""A hook that is stuck on purpose has not failed while a busy machine gets to the blow."""


class Victim:
    """A broker process (see `stalling_broker`) that obeys lines of JSON."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self.child = child
        self.lines: list[dict[str, Any]] = []
        self._news = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while line := await self.child.stdout.readline():
            async with self._news:
                self.lines.append(orjson.loads(line))
                self._news.notify_all()

    async def until(self, what: Callable[[list[dict[str, Any]]], Any], timeout_s: float = WAIT_S) -> Any:
        try:
            async with asyncio.timeout(timeout_s), self._news:
                while not (result := what(self.lines)):
                    await self._news.wait()
                return result
        except TimeoutError:
            raise AssertionError(f"waited {timeout_s} s; it told {self.lines[-40:]}") from None

    async def do(self, do: str, **args: Any) -> None:
        self.child.stdin.write(orjson.dumps({"do": do, **args}) + b"\n")
        await self.child.stdin.drain()

    async def ask(self, do: str, answer: str, **args: Any) -> Any:
        count = sum(answer in line for line in self.lines)
        await self.do(do, **args)
        await self.until(lambda lines: sum(answer in line for line in lines) > count)
        return [line for line in self.lines if answer in line][-1][answer]

    async def stuck_at(self, steps: Mapping[str, str]) -> None:
        """Return when it is stuck with each bundle of the plan."""
        wanted = set(steps.items())
        await self.until(lambda lines: wanted <= {(line["stuck"], line["step"]) for line in lines if "stuck" in line})

    async def kill(self) -> None:
        self.child.kill()
        await self.child.wait()

    def stop(self) -> None:
        os.kill(self.child.pid, signal.SIGSTOP)

    def cont(self) -> None:
        os.kill(self.child.pid, signal.SIGCONT)


@asynccontextmanager
async def victim(broker: str, bootstrap: str, channel: str, *flags: str, wait: bool = True) -> AsyncIterator[Victim]:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.stalling_broker",
        broker,
        bootstrap,
        channel,
        *(f"{group}.{name}={value}" for group, values in QUICK.items() for name, value in values.items()),
        *flags,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=2**22,
    )
    process = Victim(child)
    try:
        if wait:
            await process.until(lambda lines: any("ready" in line for line in lines))
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
        await process._reading


class Directed:
    """Placement as the test wants it, as long as that broker is a candidate."""

    def __init__(self) -> None:
        self.wanted: dict[str, str] = {}

    def choose(self, bundle: str, candidates: Sequence[str], load: Mapping[str, int]) -> str | None:
        wanted = self.wanted.get(bundle)
        return wanted if wanted in candidates else FewestBundles().choose(bundle, candidates, load)


@asynccontextmanager
async def survivor(
    broker: str, bootstrap: str, channel: str, placement: Directed, expiry_s: float = EXPIRY_S
) -> AsyncIterator[StateChannel]:
    settings = make_settings(bootstrap, channel, membership={"expiry_s": expiry_s}, **QUICK)
    async with StateChannel.open(
        settings, broker=broker, placement=placement, create_topics=True, join_timeout_s=WAIT_S
    ) as opened:
        yield opened


def read_log(bootstrap: str, channel: str) -> list[RecordRead]:
    client = ClientSettings(bootstrap)
    with PartitionTail(client, Topic.CHANNEL, channel, 0, group_id=f"{channel}-reader") as tail:
        return list(tail.records(tail.span()))


def audit_of(records: Sequence[RecordRead]) -> tuple[PartitionAudit, Gaps]:
    gaps = Gaps()
    return auditor.audit_part(0, 1, records, observe=gaps.observe), gaps


async def settled(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for lies in other processes
            await asyncio.sleep(0.1)


async def owners(channel: StateChannel, bundles: Sequence[str]) -> dict[str, Owned]:
    """Look every bundle up, which has the unassigned ones assigned; each must have an owner in the end."""
    answers = await asyncio.gather(*(channel.lookup(bundle, WAIT_S) for bundle in bundles))
    wrong = {bundle: answer for bundle, answer in zip(bundles, answers, strict=True) if not isinstance(answer, Owned)}
    assert wrong == {}
    return dict(zip(bundles, answers, strict=True))  # type: ignore[arg-type]
