# ruff: noqa: PLR2004
"""The notes of notes_fastapi.py in aiohttp. Run: python notes_aiohttp.py ID PORT FILE HOST:PORT."""

import asyncio
import json
import signal
import sys

from aiohttp import web
from notes_store import NotesStore

from statechannel.api import Admission, Redirect, Rejected, StateChannel

PREFIX = "/notes/"


class Notes:
    def __init__(self, store: NotesStore, channel: StateChannel) -> None:
        self._store = store
        self._channel = channel

    async def _admitted(self, request: web.Request, *, write: bool) -> Admission:
        topic = request.match_info["topic"]
        answer = self._channel.guard(topic, write=write)
        if isinstance(answer, Redirect) and answer.broker is None:
            await self._channel.lookup(topic)  # the first request of a topic has it assigned
            answer = self._channel.guard(topic, write=write)
        if isinstance(answer, Admission):
            return answer
        text, kind = json.dumps(answer.to_json()), "application/json"
        if answer.broker is None:
            raise web.HTTPServiceUnavailable(text=text, content_type=kind)
        raise web.HTTPTemporaryRedirect(answer.url("http") + request.raw_path, text=text, content_type=kind)

    async def put(self, request: web.Request) -> web.Response:
        text = await request.text()
        admitted = await self._admitted(request, write=True)
        if not self._store.put(admitted, request.match_info["topic"], text):
            raise web.HTTPServiceUnavailable(text="another broker has taken over: try again")
        return web.json_response(text)

    async def get(self, request: web.Request) -> web.Response:
        await self._admitted(request, write=False)
        text = self._store.get(request.match_info["topic"])
        if text is None:
            raise web.HTTPNotFound(text="no such note")
        return web.json_response(text)


async def main(broker: str, port: str, file: str, kafka: str) -> None:
    leave, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(leave.set))
    store = NotesStore(file)
    opening = StateChannel.open(
        broker=broker,
        hooks=store,
        listeners={"http": f"http://127.0.0.1:{port}"},
        create_topics=True,
        kafka={"bootstrap_servers": kafka},
    )
    app = web.Application()
    runner = web.AppRunner(app)
    try:
        async with opening as channel:  # its end hands the bundles over, while the port is open
            notes = Notes(store, channel)
            app.router.add_put(PREFIX + "{topic:.+}", notes.put)
            app.router.add_get(PREFIX + "{topic:.+}", notes.get)
            created = await channel.create_namespace("example/notes", bundles=8).started()
            if isinstance(created, Rejected) and created.reason != "namespace-exists":  # another broker may be first
                sys.exit(f"{created.message}\n{created.hint}")
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", int(port)).start()
            await leave.wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("usage: python notes_aiohttp.py ID PORT FILE HOST:PORT")
    asyncio.run(main(*sys.argv[1:]))
