"""The processes of the router's measurements: a router with clients, and a broker with a guard.

`python -m tests.bench.router_process NAME BOOTSTRAP CHANNEL` is a router if its name begins with `r`, else a broker. Lines as
those of `tests.bench.broker_process`.
"""

import asyncio
import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from itertools import chain, cycle, islice
from random import Random
from typing import Any

from statechannel.api import Admission, Redirect
from statechannel.router import BlockingRouter, Route
from statechannel.settings import load
from tests.bench import broker_process
from tests.bench.measure import percentile, resident_bytes

BATCH = 500
LOOK_S = 0.0005
KNOWN_S = 30.0
PAUSE_S = 0.002
ANSWER_S = 60.0


def measure_calls(call: Callable[[str], Any], names: Sequence[str], seconds: float) -> dict[str, float]:
    """Calls over all names in turn in a second of processor time, and then the time of each by the clock on the wall.

    Every name was asked for once before.
    """
    batches = _batches(names)
    for batch in islice(batches, len(names) // BATCH):
        for name in batch:
            call(name)
    calls, began_s = 0, time.thread_time()
    while (took_s := time.thread_time() - began_s) < seconds:
        for name in next(batches):
            call(name)
        calls += BATCH
    taken_ns, until_s = list[int](), time.monotonic() + seconds
    while time.monotonic() < until_s:
        for name in next(batches):
            began_ns = time.perf_counter_ns()
            call(name)
            taken_ns.append(time.perf_counter_ns() - began_ns)
    return _figures(calls / took_s, taken_ns)


def measure_floor(names: Sequence[str], seconds: float) -> dict[str, float]:
    """A function that finds a tuple in a dict, with the same names."""
    table = {name: (name,) for name in names}

    def find(name: str) -> tuple[str] | None:
        return table.get(name)

    return measure_calls(find, names, seconds)


async def measure_awaited(
    call: Callable[[str], Coroutine[Any, Any, Any]], names: Sequence[str], seconds: float
) -> dict[str, float]:
    """The same of coroutines in the loop's thread, which has its other work between two batches."""
    batches = _batches(names)
    for batch in islice(batches, len(names) // BATCH):
        for name in batch:
            await call(name)
        await asyncio.sleep(0)
    calls, spent_s = 0, 0.0
    while spent_s < seconds:
        began_s = time.thread_time()
        for name in next(batches):
            await call(name)
        calls, spent_s = calls + BATCH, spent_s + time.thread_time() - began_s
        await asyncio.sleep(0)
    taken_ns, until_s = list[int](), time.monotonic() + seconds
    while time.monotonic() < until_s:
        for name in next(batches):
            began_ns = time.perf_counter_ns()
            await call(name)
            taken_ns.append(time.perf_counter_ns() - began_ns)
        await asyncio.sleep(0)
    return _figures(calls / spent_s, taken_ns)


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """All names in an order that no memory helps, again and again."""
    shuffled = list(names)
    Random(1).shuffle(shuffled)
    return cycle([shuffled[first : first + BATCH] for first in range(0, len(shuffled) - BATCH + 1, BATCH)])


def _figures(rate: float, taken_ns: Sequence[int]) -> dict[str, float]:
    return {"rate": rate, **{f"p{share}_us": percentile(taken_ns, share / 100) / 1e3 for share in (50, 99)}}


class GuardedBroker(broker_process.Broker):
    """A broker that asks its guard for clients: a line with a name in, the answer out."""

    async def guard_port(self) -> int:
        """Listen, on a port that is returned."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                answer = self._channel.guard(line.decode().strip())
                fields = {} if isinstance(answer, Admission) else answer.to_json()
                writer.write(json.dumps(fields).encode() + b"\n")
                await writer.drain()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self._serving = asyncio.create_task(server.serve_forever())
        return int(server.sockets[0].getsockname()[1])

    async def rates(self, names: list[str], seconds: float) -> dict[str, dict[str, float]]:
        """Of `lookup` in the loop, and of `guard` in another thread, as the requests of a server come."""
        return {
            "lookup": await measure_awaited(self._channel.lookup, names, seconds),
            "guard": await asyncio.to_thread(measure_calls, self._channel.guard, names, seconds),
            "floor": await asyncio.to_thread(measure_floor, names, seconds),
        }

    async def move(self, bundles: list[str], to: str) -> int:
        """Hand all of these to one broker; how many."""
        facts = await self.transfers([(bundle, to) for bundle in bundles])
        return len(facts["ms"]) if facts["done"] else -1


class Asker:
    """A router, and the clients that it has."""

    def __init__(self, router: BlockingRouter) -> None:
        self._router = router
        self._clients: list[Client] = []

    def resident(self) -> int:
        return resident_bytes()

    def rates(self, names: list[str], seconds: float) -> dict[str, dict[str, float]]:
        return {"lookup": measure_calls(self._router.lookup, names, seconds), "floor": measure_floor(names, seconds)}

    def owner(self, name: str) -> str | None:
        answer = self._router.lookup(name)
        return answer.broker if isinstance(answer, Route) else None

    def known(self, name: str, broker: str) -> int:
        """When it names that broker for the first time from now on (CLOCK_MONOTONIC)."""
        until_s = time.monotonic() + KNOWN_S
        while time.monotonic() < until_s:
            if self.owner(name) == broker:
                return time.monotonic_ns()
            time.sleep(LOOK_S)
        raise RuntimeError(f"the router does not name {broker} for {name}")

    def begin(self, names: list[str], clients: int, ports: dict[str, int]) -> None:
        """So many clients ask for these names from now on."""
        self._clients = [Client(self._router, names, ports, number) for number in range(clients)]

    def end(self) -> dict[str, Any]:
        """Requests by number of redirects that they met; and what else was met."""
        for client in self._clients:
            client.end()
        redirects = sum((client.redirects for client in self._clients), Counter[int]())
        waited_ms = sorted(chain.from_iterable(client.waited_ms for client in self._clients))
        return {
            "redirects": {str(number): count for number, count in sorted(redirects.items())},
            "p99_ms": percentile(waited_ms, 0.99),
            "max_ms": waited_ms[-1],
            "failed": [repr(client.failed) for client in self._clients if client.failed is not None],
        }


class Client:
    """A thread that sends requests for names to their owners, one after the other."""

    def __init__(self, router: BlockingRouter, names: Sequence[str], ports: Mapping[str, int], number: int) -> None:
        self.redirects = Counter[int]()
        self.waited_ms: list[float] = []
        self.failed: BaseException | None = None
        self._router = router
        self._names = names
        self._ports = ports
        self._rng = Random(number)
        self._links: dict[str, Any] = {}
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._enough.is_set():
                self._request(self._rng.choice(self._names))
                time.sleep(PAUSE_S)
        except BaseException as error:
            self.failed = error

    def _request(self, name: str) -> None:
        began_s, met = time.monotonic(), 0
        where = self._router.lookup(name)
        while time.monotonic() - began_s < ANSWER_S:
            answer = self._ask(where.broker, name) if isinstance(where, Route) else None
            if answer == {}:
                self.redirects[met] += 1
                self.waited_ms.append(1e3 * (time.monotonic() - began_s))
                return
            redirect = Redirect.from_json(answer)
            if redirect is not None and redirect.broker is not None:
                met += 1
                where = self._router.follow(name, redirect)
            else:
                time.sleep(PAUSE_S)
                where = self._router.lookup(name)
        raise RuntimeError(f"{name} was not answered in {ANSWER_S:g} s: {where}")

    def _ask(self, broker: str, name: str) -> Any:
        """None where the broker has gone."""
        try:
            if broker not in self._links:
                opened = socket.create_connection(("127.0.0.1", self._ports[broker]), ANSWER_S)
                self._links[broker] = opened.makefile("rwb")
            link = self._links[broker]
            link.write(name.encode() + b"\n")
            link.flush()
            return json.loads(link.readline())
        except (OSError, ValueError):
            self._links.pop(broker, None)
            return None

    def end(self) -> None:
        self._enough.set()
        self._thread.join(2 * ANSWER_S)


def main(name: str, bootstrap: str, channel: str) -> None:
    if not name.startswith("r"):
        asyncio.run(broker_process.main(name, bootstrap, channel, made_with=GuardedBroker))
        return
    groups = {"kafka": {"bootstrap_servers": bootstrap}, "channel": {"name": channel}}
    with BlockingRouter.open(load(overrides=groups), join_timeout_s=600) as router:
        asker = Asker(router)
        print(json.dumps({"url": ""}), flush=True)
        for line in sys.stdin:
            command, *arguments = json.loads(line)
            print(json.dumps(getattr(asker, command)(*arguments)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
