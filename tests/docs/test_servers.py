"""The notes of processes.md, in the servers that they are for: a broker that is stopped hands over before it closes its port."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from statechannel.router import Route, Router
from statechannel.router.transport import RouterTransport
from statechannel.settings import Settings
from tests.docs.generate import ROOT
from tests.support.channels import make_settings
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S, until

EXAMPLES = ROOT / "design/examples"
TOPICS = [f"example/notes/{number}" for number in range(24)]
GATED = """
import asyncio, os, pathlib
from notes_store import NotesStore

gate, on_release = pathlib.Path(os.environ["NOTES_FILE"] + ".gate"), NotesStore.on_release

async def gated(store, bundle, generation, destination):
    while gate.exists():
        gate.with_suffix(".reached").touch()
        await asyncio.sleep(0.01)
    await on_release(store, bundle, generation, destination)

NotesStore.on_release = gated
if __name__ == "__main__":
    import sys, notes_aiohttp
    asyncio.run(notes_aiohttp.main(*sys.argv[1:]))
else:
    from notes_fastapi import app
"""
"""The examples, with a gate that keeps an owner from releasing a bundle."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Servers:
    """Processes of the examples that share a file of notes."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.folder, self.file = folder, folder / "notes.db"
        self.gate, self.reached = folder / "notes.db.gate", folder / "notes.db.reached"
        (folder / "gated.py").write_text(GATED)
        self._kafka = settings.kafka.bootstrap_servers
        flags = {
            f"STATECHANNEL_{group}__{name}".upper(): str(value)
            for group in ("kafka", "channel", "membership", "safe_mode", "leader")
            for name, value in getattr(settings, group).model_dump(exclude_unset=True).items()
        }
        path = os.pathsep.join(map(str, (folder, EXAMPLES, ROOT)))
        self._environment = os.environ | flags | {"NOTES_FILE": str(self.file), "PYTHONPATH": path}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.urls: list[str] = []

    def run(self, words: Sequence[str], **variables: str) -> int:
        with (self.folder / "servers.log").open("ab") as log:
            environment = self._environment | variables
            self.processes.append(
                subprocess.Popen([sys.executable, *words], stdout=log, stderr=log, env=environment, cwd=self.folder)
            )
        return self.processes[-1].pid

    def start(self, server: str) -> dict[str, int]:
        """Two brokers in this server: their processes by their ids; with gunicorn these are in the ids."""
        pids = {}
        for name in ["gunicorn"] if server == "gunicorn" else ["n1", "n2"]:
            port = free_port()
            self.urls.append(f"http://127.0.0.1:{port}")
            if server == "gunicorn":
                words = [
                    "-m",
                    "gunicorn",
                    "-c",
                    str(EXAMPLES / "gunicorn.conf.py"),
                    "--bind",
                    f"127.0.0.1:{port}",
                    "--no-control-socket",
                ]
                self.run([*words, "gated:app"])
            elif server == "aiohttp":
                pids[name] = self.run(["gated.py", name, str(port), str(self.file), self._kafka])
            else:
                words = ["-m", "uvicorn", "gated:app", "--port", str(port), "--loop", server]
                pids[name] = self.run(words, NOTES_BROKER=name, NOTES_URL=self.urls[-1])
        return pids

    def end(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(WAIT_S)
            finally:
                process.kill()


@asynccontextmanager
async def writing(client: httpx.AsyncClient) -> AsyncIterator[dict[str, str]]:
    """Writes to all topics in turn, until the block ends; what was acknowledged last, by topic."""
    acknowledged: dict[str, str] = {}
    enough = asyncio.Event()

    async def write() -> None:
        count = 0
        while not enough.is_set():
            count += 1
            topic = TOPICS[count % len(TOPICS)]
            answer = None
            while answer is None or answer.status_code == 503:  # it was cut off, or has another owner since
                try:
                    answer = await client.put(f"/notes/{topic}", content=str(count))
                except httpx.TransportError:
                    continue
            answer.raise_for_status()
            acknowledged[topic] = str(count)

    task = asyncio.create_task(write())
    try:
        yield acknowledged
    finally:
        enough.set()
        await task


async def is_open(url: str) -> bool:
    """Whether the server accepts new connections."""
    try:
        async with httpx.AsyncClient(timeout=WAIT_S) as client:
            await client.get(url)
    except httpx.ConnectError:
        return False
    except httpx.TransportError:  # the connection was opened, and closed before the answer
        pass
    return True


@pytest.mark.kafka
@pytest.mark.parametrize("server", ["asyncio", "uvloop", "gunicorn", "aiohttp"])
async def test_a_broker_hands_over_before_its_port_closes(server: str, kafka: Kafka, topic_prefix: str, tmp_path: Path):
    settings = make_settings(kafka.bootstrap_servers, topic_prefix)
    servers = Servers(settings, tmp_path)
    pids = servers.start(server)

    def log() -> str:
        return (tmp_path / "servers.log").read_text()

    try:
        for url in servers.urls:
            while not await is_open(url):
                assert all(process.poll() is None for process in servers.processes), log()
                await asyncio.sleep(0.1)
        async with Router.open(settings, join_timeout_s=WAIT_S) as router:
            await until(lambda: len(router.brokers()) == 2, log)
            transport = RouterTransport(router, lambda request: request.url.path[7:], patience_s=WAIT_S)
            async with httpx.AsyncClient(transport=transport, base_url="http://notes", timeout=WAIT_S) as client:
                async with writing(client) as acknowledged:
                    await until(lambda: len(acknowledged) == len(TOPICS), log)
                    leaving = router.lookup(TOPICS[0])
                    assert isinstance(leaving, Route)
                    (other,) = {seen.broker for seen in router.brokers()} - {leaving.broker}
                    url = leaving.url("http")
                    servers.gate.touch()
                    os.kill(pids.get(leaving.broker) or int(leaving.broker.rpartition("-")[2]), signal.SIGTERM)
                    await until(servers.reached.exists, log)
                    open_yet = []
                    for _ in range(5):
                        open_yet.append(await is_open(url))
                        await asyncio.sleep(0.5)  # longer than a server needs to end without any bundles
                    servers.gate.unlink()
                    assert all(open_yet), "its port was closed, and a bundle was still here"
                    while await is_open(url):  # noqa: ASYNC110 - another process closes it
                        await asyncio.sleep(0.01)
                    acknowledged.clear()
                    await until(lambda: len(acknowledged) == len(TOPICS), log)
                for topic in TOPICS:
                    answer = await client.get(f"/notes/{topic}")
                    assert answer.json() == acknowledged[topic]
                assert other in {seen.broker for seen in router.brokers()}
    finally:
        servers.end()
