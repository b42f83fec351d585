"""A broker's data plane before the storage: what clients are told by an owner, by one that is over, and by one that is late."""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from tests.faults.fenced_plane import FencedPlane
from tests.faults.service import read_record
from tests.faults.storage import Storage, listen
from tests.support.data_plane import LOOPBACK, PROTOCOL
from tests.support.plane_client import PlaneLink

BUNDLE, TOPIC = "t/n/0x00000000_0xffffffff", "t/n/x"


class Pair:
    """Two brokers before one storage. What they serve is what the test tells them: no channel, no lease."""

    def __init__(self, planes: dict[str, FencedPlane], links: dict[str, PlaneLink]) -> None:
        self.planes, self.links = planes, links

    async def ask(self, broker: str, do: str, **more: Any) -> dict[str, Any]:
        answer = await self.links[broker].ask(do, 5, topic=TOPIC, **more)
        return {name: answer[name] for name in ("ok", "stored", "value", "fenced", "generation") if name in answer}


@asynccontextmanager
async def two_brokers(folder: Path) -> AsyncIterator[Pair]:
    server = await listen(Storage(io.BytesIO()))
    url = f"{PROTOCOL}://{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
    planes = {name: FencedPlane(name, url, folder / f"{name}.served") for name in "ab"}
    links = {name: PlaneLink(await plane.start()) for name, plane in planes.items()}
    try:
        yield Pair(planes, links)
    finally:
        for closed in (*links.values(), *planes.values()):
            await closed.close()
        server.close()


def test_a_new_owner_fences_the_old_one_and_knows_its_values(tmp_path: Path):
    async def main() -> None:
        async with two_brokers(tmp_path) as both:
            a, b = (both.planes[name].served for name in "ab")
            assert await both.ask("a", "put", value=1) == {"ok": False}
            a.serve(BUNDLE, 3)
            assert await both.ask("a", "get") == {"ok": True, "value": None, "generation": 3}
            assert await both.ask("a", "put", value=1) == {"ok": True, "stored": True, "generation": 3}
            late = asyncio.ensure_future(both.ask("a", "put", value=2, late_s=0.4))
            await asyncio.sleep(0.1)
            b.serve(BUNDLE, 5)
            assert await both.ask("b", "get", confirm=True) == {"ok": True, "value": 1, "generation": 5}
            assert await late == {"ok": True, "stored": False, "generation": 3}
            assert await both.ask("b", "put", value=3) == {"ok": True, "stored": True, "generation": 5}
            assert await both.ask("a", "get") == {"ok": True, "value": 1, "generation": 3}, "from memory, and old"
            assert await both.ask("a", "get", confirm=True) == {"ok": False, "fenced": True}
            a.release(BUNDLE)
            a.serve(BUNDLE, 4)
            assert await both.ask("a", "get") == {"ok": False, "fenced": True}, "it cannot even open it"
            assert (await both.links["a"].ask("serving", 5))["serving"] == {BUNDLE: 4}

    asyncio.run(main())


def test_a_broker_keeps_its_record_while_it_serves(tmp_path: Path):
    async def main() -> None:
        async with two_brokers(tmp_path) as both:
            served = both.planes["a"].served
            served.serve(BUNDLE, 3)
            await asyncio.sleep(0.5)
            served.release(BUNDLE)
            await asyncio.sleep(0.3)

    asyncio.run(main())
    (service,) = read_record(tmp_path / "a.served", "a", 1)
    last = orjson.loads((tmp_path / "a.served").read_bytes().splitlines()[-1])
    assert (service.bundle, service.generation) == (BUNDLE, 3)
    assert 0.05e9 < service.end_ns - service.begin_ns < last["at_ns"] - service.begin_ns
