"""Readers of `/v1/changes` in a process of their own, until a line comes on standard input."""

import asyncio
import json
import sys
from urllib.parse import urlsplit


async def read(host: str, port: int, counts: list[int], number: int) -> None:
    """Follow the changes, and count their events."""
    reader, writer = await asyncio.open_connection(host, port, limit=2**20)
    writer.write(b"GET /v1/changes?only=change HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    while line := await reader.readline():
        counts[number] += line.startswith(b"event: change")


async def follow(url: str, count: int) -> None:
    parts = urlsplit(url)
    counts = [0] * count
    tasks = [
        asyncio.ensure_future(read(str(parts.hostname), int(parts.port or 0), counts, number))
        for number in range(count)
    ]
    await asyncio.sleep(2.0)
    print("following", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    ended = sum(task.done() for task in tasks)
    print(json.dumps({"least": min(counts), "most": max(counts), "ended": ended}), flush=True)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(follow(sys.argv[1], int(sys.argv[2])))
