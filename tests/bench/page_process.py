"""Process of the lane `page`: serves the page over a simulated cluster of many bundles whose owners change all the time."""

import asyncio
import json
import sys
import threading
import time
from typing import Any

from statechannel.broker.changes import Change
from statechannel.http_api.server import HttpServer
from statechannel.protocol.states import State
from tests.bench.measure import resident_bytes
from tests.support.page_server import PageWorld, now_ms

BROKERS = 10
_BATCH_S = 0.05
_FLOW = (State.RELEASING, State.ASSIGNING, State.ASSIGNED)


class ChangeSource:
    """Gives the feed changes at a rate, or makes them and drops them: the floor.

    Attributes:
        sent: Number and time (ms) of each change that the feed was given.
    """

    def __init__(self, world: PageWorld) -> None:
        self._world = world
        self._bundles = list(world.owners)
        self._made = 0
        self.sent: list[tuple[int, int]] = []

    async def run(self, per_s: float, seconds: float, *, drop: bool) -> None:
        """Changes for a while: transfers of one bundle after the other, each of three records."""
        began_s, made = time.monotonic(), 0
        while (elapsed_s := time.monotonic() - began_s) < seconds:
            batch = [self._change() for _ in range(int(elapsed_s * per_s) - made)]
            made += len(batch)
            if batch and not drop and self._world.feed is not None:
                self._world.feed.take(batch)
                place = self._world.feed.view.journal.place
                self.sent += [
                    (place - len(batch) + 1 + number, batch[number].timestamp_ms) for number in range(len(batch))
                ]
            await asyncio.sleep(_BATCH_S)

    def _change(self) -> Change:
        turn, step = divmod(self._made, 3)
        bundle = self._bundles[(turn * 7_919) % len(self._bundles)]
        from_ = self._world.owners[bundle]
        to = f"b{1 + int(from_[1:]) % BROKERS}"
        if step == 2:
            self._world.owners[bundle] = to
        new = Change(
            0, self._made, now_ms(), bundle, _FLOW[step], 2 + self._made, from_, to, from_, "i", flow="transfer"
        )
        self._made += 1
        return new


def main() -> None:
    """Answer commands, a line each: `run RATE SECONDS DROP`, `resident`, `begin` (serve), `feed`, `held`, `sent`, `end`."""
    bundles = int(sys.argv[1])
    world = PageWorld(BROKERS, bundles, page_each_s=0.25, page_topics_s=15, page_past_max=0, requests_per_s=10_000)
    source = ChangeSource(world)
    server: HttpServer | None = None
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        command, *given = json.loads(line)
        answer: Any = None
        if command == "resident":
            answer = resident_bytes()
        elif command == "begin":
            world.feeds = False
            server = HttpServer(world.settings.http, world.served, broker="b1")
            answer = server.start()
        elif command == "feed":
            world.source.log = [
                world.change(next(iter(world.owners)), State.ASSIGNED, None, "b1")
            ]  # its log is not read from the beginning
            world.begin_feed()
        elif command == "held":
            answer = 0 if world.feed is None else len(world.feed.view.journal.table)
        elif command == "run":
            per_s, seconds, drop = given
            before_s, began_s = time.process_time(), time.monotonic()
            asyncio.run_coroutine_threadsafe(source.run(per_s, seconds, drop=drop), _loop_of(world, loop)).result()
            answer = (time.process_time() - before_s) / (time.monotonic() - began_s)
        elif command == "sent":
            answer, source.sent = source.sent, []
        elif command == "end":
            break
        print(json.dumps(answer), flush=True)
    if server is not None:
        server.close()


def _loop_of(world: PageWorld, other: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
    """The server's loop, in which the feed is given its changes, as by the follower."""
    return other if world.loop is None else world.loop


if __name__ == "__main__":
    main()
