"""A storage that refuses older generations: one register for each topic, in a process of its own.

Brokers write here on behalf of clients. Fencing is by place on the hash ring, not by name of a bundle: after a split the
children's generation fences the parent, too. Every write that arrived is in the journal, in the order in which it was judged.

`python -m tests.faults.storage JOURNAL` listens on a free port and prints it. One line of JSON in, one out, as the data plane.
"""

import asyncio
import sys
import time
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from statechannel.sim.truth import RingLevels
from tests.support.data_plane import LINE_BYTES_MAX, LOOPBACK, place_of_bundle, place_of_topic


class Fences(RingLevels):
    """The highest generation seen at each hash of a ring; it only rises."""

    def level_at(self, position: int) -> int:
        return self._levels[bisect_right(self._cuts, position) - 1]

    def highest(self, lower: int, upper: int) -> int:
        """The highest level within a range."""
        return max(self._levels[bisect_right(self._cuts, lower) - 1 : bisect_left(self._cuts, upper)])

    def raise_to(self, lower: int, upper: int, level: int) -> None:
        """Raise a range to a level; what is higher already stays."""
        first, last = self._cut(lower), self._cut(upper)
        self._levels[first:last] = [max(before, level) for before in self._levels[first:last]]


class Storage:
    """All registers, and the journal of what was asked."""

    def __init__(self, journal: BinaryIO) -> None:
        self._journal = journal
        self._fences: dict[str, Fences] = {}
        self._values: dict[str, int] = {}

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked, and note it."""
        match asked["do"]:
            case "open":
                return self._open(asked)
            case "put":
                return self._put(asked)
            case "confirm":
                namespace, position = place_of_topic(asked["topic"])
                return {"ok": self._of(namespace).level_at(position) <= asked["generation"]}
            case "flush":
                self._journal.flush()
                return {"ok": True}
        return {"ok": False}

    def _open(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Fence older generations off a bundle's range, and give its values; refused where a newer one was there."""
        place = place_of_bundle(asked["bundle"])
        fences = self._of(place.namespace)
        accepted = fences.highest(place.lower, place.upper) <= asked["generation"]
        self._note(asked, accepted)
        if not accepted:
            return {"ok": False}
        fences.raise_to(place.lower, place.upper, asked["generation"])
        held = {topic: value for topic, value in self._values.items() if place.holds(*place_of_topic(topic))}
        return {"ok": True, "values": held}

    def _put(self, asked: dict[str, Any]) -> dict[str, Any]:
        namespace, position = place_of_topic(asked["topic"])
        accepted = self._of(namespace).level_at(position) <= asked["generation"]
        self._note(asked, accepted)
        if accepted:
            self._values[asked["topic"]] = asked["value"]
        return {"ok": accepted}

    def _of(self, namespace: str) -> Fences:
        return self._fences.setdefault(namespace, Fences())

    def _note(self, asked: dict[str, Any], accepted: bool) -> None:
        noted = {name: item for name, item in asked.items() if name != "id"}
        line = noted | {"accepted": accepted, "at_ns": time.monotonic_ns()}
        self._journal.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


async def listen(storage: Storage) -> asyncio.Server:
    """Answer on a free port."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                asked = orjson.loads(line)
                answered = {"id": asked["id"]} | storage.answer(asked)
                writer.write(orjson.dumps(answered, option=orjson.OPT_APPEND_NEWLINE))
                await writer.drain()
        except OSError:
            pass  # its broker was killed
        finally:
            writer.close()

    return await asyncio.start_server(connected, LOOPBACK, 0, limit=LINE_BYTES_MAX)


async def serve(storage: Storage) -> None:
    """Say the port, and answer until cancelled."""
    server = await listen(storage)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with Path(sys.argv[1]).open("wb") as out:
        asyncio.run(serve(Storage(out)))
