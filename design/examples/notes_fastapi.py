"""Notes over HTTP, a broker of them in FastAPI: PUT and GET /notes/TENANT/NAMESPACE/NAME.

Run as many as you want, each with an id and an address of its own, and one FILE for all:
NOTES_BROKER=n1 NOTES_URL=http://127.0.0.1:8101 NOTES_FILE=FILE STATECHANNEL_KAFKA__BOOTSTRAP_SERVERS=HOST:PORT \
    uvicorn notes_fastapi:app --port 8101
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from notes_store import NotesStore

from statechannel.api import Rejected, StateChannel
from statechannel.asgi import GuardMiddleware, channel_in_server

PREFIX = "/notes/"
store = NotesStore(os.environ["NOTES_FILE"])


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
    opening = StateChannel.open(
        broker=os.environ["NOTES_BROKER"], hooks=store, listeners={"http": os.environ["NOTES_URL"]}, create_topics=True
    )
    async with channel_in_server(opening) as channel:
        created = await channel.create_namespace("example/notes", bundles=8).started()
        if isinstance(created, Rejected) and created.reason != "namespace-exists":  # another broker may be first
            raise SystemExit(f"{created.message}\n{created.hint}")
        yield {"channel": channel}


app = FastAPI(lifespan=lifespan)
app.add_middleware(
    GuardMiddleware,
    topic_of=lambda scope: scope["path"].removeprefix(PREFIX) if scope["path"].startswith(PREFIX) else None,
)


@app.put(PREFIX + "{topic:path}")
async def put(topic: str, request: Request) -> str:
    text = (await request.body()).decode()
    if not store.put(request.state.admission, topic, text):
        raise HTTPException(503, "another broker has taken over: try again")
    return text


@app.get(PREFIX + "{topic:path}")
async def get(topic: str) -> str:
    text = store.get(topic)
    if text is None:
        raise HTTPException(404, "no such note")
    return text
