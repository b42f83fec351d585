"""The data plane of a broker in the campaign: an owner as a real one is, with a memory of its own before a fenced storage.

The first request at a generation opens the bundle at the storage, which fences older generations off and gives the values.
From then on the broker answers reads from memory and writes through. So a second owner is seen by clients: its reads are old,
and at one generation two owners overwrite each other.
"""

import asyncio
import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any

import orjson

from statechannel.broker.exits import ChannelStoppedError
from tests.support.data_plane import DataPlane, Serving
from tests.support.plane_client import LinkDownError, PlaneLink

STORAGE_S = 10.0
RECORD_INTERVAL_S = 0.05


class OpenBundle:
    """A bundle at one generation, with the values of its topics as this process knows them."""

    def __init__(self, serving: Serving, values: dict[str, int], storage: PlaneLink, who: dict[str, Any]) -> None:
        self.serving, self.values = serving, values
        self._storage = storage
        self._about = {**who, "bundle": serving.bundle, "generation": serving.generation}
        self._locks: dict[str, asyncio.Lock] = {}

    async def put(self, topic: str, value: int) -> bool:
        """Write through; whether the storage took it.

        Raises:
            LinkDownError: Not known.
        """
        async with self._locks.setdefault(topic, asyncio.Lock()):
            previous = self.values.get(topic)
            asked = {**self._about, "topic": topic, "value": value, "previous": previous}
            answer = await self._storage.ask("put", STORAGE_S, **asked)
            if answer["ok"]:
                self.values[topic] = value
            return bool(answer["ok"])

    async def confirm(self, topic: str) -> bool:
        """Whether the storage has seen no newer generation at the topic's place."""
        answer = await self._storage.ask("confirm", STORAGE_S, topic=topic, generation=self.serving.generation)
        return bool(answer["ok"])


class FencedPlane(DataPlane):
    """Answers `put` and `get` besides what every data plane answers.

    Args:
        storage: Where the storage listens.
        record: File for this process's own record of when it served what; survives a kill.
    """

    def __init__(self, broker: str, storage: str, record: Path) -> None:
        super().__init__(broker)
        self._storage = PlaneLink(storage)
        self._who = {"broker": broker, "pid": os.getpid()}
        self._opened: dict[Serving, asyncio.Task[OpenBundle | None]] = {}
        self._record = record
        self._recording: asyncio.Task[None] | None = None

    async def start(self, listening: socket.socket | None = None) -> str:
        self._recording = asyncio.create_task(self._keep_record())
        return await super().start(listening)

    async def close(self) -> None:
        if self._recording is not None:
            self._recording.cancel()
        await super().close()
        await self._storage.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        asked: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            asked = orjson.loads(line)
        if asked.get("do") not in ("put", "get"):
            return await super()._answer(line)
        try:
            answer = await self._carry_out(asked)
        except LinkDownError as error:
            answer = {"ok": False, "why": str(error), "down": True}
        except ChannelStoppedError as error:
            answer = {"ok": False, "why": str(error)}
        return {"id": asked.get("id")} | answer

    async def _carry_out(self, asked: dict[str, Any]) -> dict[str, Any]:
        result = await self._checked(asked["topic"])
        if isinstance(result, dict):
            return result
        opened, checked = result
        answer = await (self._put(opened, asked) if asked["do"] == "put" else self._get(opened, asked))
        return answer | checked if answer["ok"] else answer

    async def _put(self, opened: OpenBundle, asked: dict[str, Any]) -> dict[str, Any]:
        # Some writes are late on their way to the storage, as behind a full queue: others may serve by then.
        await asyncio.sleep(asked.get("late_s", 0.0))
        try:
            stored = await opened.put(asked["topic"], asked["value"])
        except LinkDownError:
            self._opened.pop(opened.serving, None)  # its memory may be old now
            raise
        return {"ok": True, "stored": stored}

    async def _get(self, opened: OpenBundle, asked: dict[str, Any]) -> dict[str, Any]:
        value = opened.values.get(asked["topic"])
        if asked.get("confirm") and not await opened.confirm(asked["topic"]):
            return {"ok": False, "fenced": True}
        return {"ok": True, "value": value}

    async def _checked(self, topic: str) -> tuple[OpenBundle, dict[str, Any]] | dict[str, Any]:
        """The open bundle of a topic, checked just now to be served; else the answer to the client."""
        serving = self.served.find(topic)
        if serving is None or not self._may_serve(serving):
            return {"ok": False, "why": "not served here", "moved": self.served.forward(topic)}
        opened = await self._open(serving)
        if opened is None:
            return {"ok": False, "fenced": True}
        if self.served.find(topic) != serving or not self._may_serve(serving):
            return {"ok": False, "why": "not served here", "moved": self.served.forward(topic)}
        checked = {"bundle": serving.bundle, "generation": serving.generation, "mono_ns": time.monotonic_ns()}
        return opened, checked

    async def _open(self, serving: Serving) -> OpenBundle | None:
        opening = self._opened.get(serving)
        if opening is None:
            opening = self._opened[serving] = asyncio.create_task(self._open_at_storage(serving))
        try:
            return await asyncio.shield(opening)
        except LinkDownError:
            self._opened.pop(serving, None)
            raise

    async def _open_at_storage(self, serving: Serving) -> OpenBundle | None:
        asked = {**self._who, "bundle": serving.bundle, "generation": serving.generation}
        answer = await self._storage.ask("open", STORAGE_S, **asked)
        return OpenBundle(serving, answer["values"], self._storage, self._who) if answer["ok"] else None

    async def _keep_record(self) -> None:
        """Write down again and again what is served at this moment; what is served only when it changes."""
        before: dict[str, int] = {}
        with self._record.open("wb", buffering=0) as out:
            while True:
                at_ns = time.monotonic_ns()
                every = [Serving(bundle, generation) for bundle, generation in self.served.all().items()]
                now = {serving.bundle: serving.generation for serving in every if self._may_serve(serving)}
                line: dict[str, Any] = {"at_ns": at_ns}  # from before the checks: a pause may follow them
                if now != before:
                    line["serves"] = before = now
                out.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
                await asyncio.sleep(RECORD_INTERVAL_S)
