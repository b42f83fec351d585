"""The page on a real port over a simulated cluster: its changes and members are given, its decisions too."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from statechannel.broker.changes import Change
from statechannel.clocks import now_ms
from statechannel.conditions.facts import BrokerRow
from statechannel.http_api.access import HttpCallers
from statechannel.http_api.application import application
from statechannel.http_api.page.bundle_table import BundleStart, Holding
from statechannel.http_api.page.page_feed import PageFeed
from statechannel.http_api.page.page_routes import asset_routes
from statechannel.http_api.server import HttpServer, Served
from statechannel.protocol.bundle import children_of, namespace_bounds
from statechannel.protocol.states import State
from tests.support.http_fakes import FakeSource, Rig, broker_row, http_settings, look_of

NAMESPACE = "acme/orders"
EACH_MAX = 4_096


def names(bundles: int, namespace: str = NAMESPACE) -> list[str]:
    each = min(bundles, EACH_MAX)
    spaces = [namespace if at == 0 else f"{namespace}-{at}" for at in range(-(-bundles // each))]
    return [f"{space}/{part}" for space in spaces for part in children_of(namespace_bounds(each))]


class PageWorld:
    """A cluster of plain rows, and the changes of its bundles.

    Attributes:
        owners: Of each bundle.
        feeds: The feed begins with the server.
        log: All changes so far.
        decisions: Rows of the balancer's decisions.
        cordons: Rows of `/v1/cordons`.
        loads_then: Loads of every past moment.
    """

    def __init__(self, brokers: int = 4, bundles: int = 32, **http: Any) -> None:
        self.settings = http_settings(**{"page_each_s": 0.05, "page_topics_s": 1, **http})
        self.source = FakeSource()
        self.rows = [
            broker_row(f"b{number}", software="1.4.0", mode="normal", phase="caught-up")
            for number in range(1, brokers + 1)
        ]
        self.owners = {name: f"b{1 + at % brokers}" for at, name in enumerate(names(bundles))}
        self.source.starts = [
            BundleStart(name.encode(), Holding(State.ASSIGNED, owner)) for name, owner in self.owners.items()
        ]
        self.log: list[Change] = []
        self.decisions: list[dict[str, Any]] = []
        self.cordons: list[dict[str, Any]] = []
        self.loads: dict[str, Any] = {"brokers": [], "bundles": [], "notes": []}
        self.loads_then: dict[str, Any] = self.loads
        self.feed: PageFeed | None = None
        self.url = ""
        self.feeds = True
        self.loop: asyncio.AbstractEventLoop | None = None
        self.look()

    def look(self, rows: list[BrokerRow] | None = None, **values: Any) -> None:
        """What is known of the members from now on."""
        self.source.seen = look_of(self.rows if rows is None else rows, **values)
        world = self

        async def newest() -> Any:
            return world.source.seen._replace(at_ms=now_ms())

        self.source.look = newest  # type: ignore[method-assign]

    def change(self, bundle: str, state: State, from_: str | None, to: str | None, **fields: Any) -> Change:
        """A change that comes next."""
        at_ms = fields.pop("at_ms", now_ms())
        by = fields.pop("by", to or from_ or "b1")
        new = Change(0, len(self.log), at_ms, bundle, state, len(self.log) + 2, from_, to, by, f"{by}-1", **fields)
        self.log.append(new)
        return new

    def transfer(self, bundle: str, to: str, at_ms: int, **fields: Any) -> list[Change]:
        """The three records of a transfer, 40 ms apart."""
        from_ = self.owners[bundle]
        self.owners[bundle] = to
        fields = {"flow": "transfer", "operation": f"op{len(self.log)}", **fields}
        return [
            self.change(bundle, State.RELEASING, from_, to, at_ms=at_ms, by=from_, **fields),
            self.change(bundle, State.ASSIGNING, from_, to, at_ms=at_ms + 20, by=from_, **fields),
            self.change(bundle, State.ASSIGNED, from_, to, at_ms=at_ms + 40, by=to, **fields),
        ]

    def lose(self, broker: str, heard_ms: int, at_ms: int, *, repaired: bool = True) -> list[Change]:
        """A broker is lost; its bundles are repaired by b1 and go to the others in turn."""
        self.rows = [
            row | {"state": "lost", "heard_ago_ms": now_ms() - heard_ms, "leading": False}
            if row["broker"] == broker
            else row
            for row in self.rows
        ]
        alive = [row["broker"] for row in self.rows if row["state"] == "alive"]
        lost = {"broker": broker, "incarnation": f"{broker}-1", "last_heard_ms": heard_ms}
        changes = []
        if repaired:
            for number, bundle in enumerate(name for name, owner in self.owners.items() if owner == broker):
                to = alive[number % len(alive)]
                self.owners[bundle] = to
                fields = {
                    "flow": "repair",
                    "action": "repair",
                    "forced": True,
                    "lost": lost,
                    "reason": f"{broker} was lost",
                }
                changes.append(self.change(bundle, State.ASSIGNING, None, to, at_ms=at_ms, by=alive[0], **fields))
                changes.append(self.change(bundle, State.ASSIGNED, None, to, at_ms=at_ms + 30, by=to, flow="repair"))
        self.look()
        return changes

    def take(self, *changes: Change) -> None:
        """The feed is given these."""
        if self.loop is not None and self.feed is not None:
            asyncio.run_coroutine_threadsafe(self._take(changes), self.loop).result(30)

    async def _take(self, changes: Any) -> None:
        if self.feed is not None:
            self.feed.take(changes)

    def served(self) -> Served:
        """Made in the server's loop."""
        rig = Rig(self.settings)
        rig.feed.source = self.source
        self.feed, self.loop = rig.feed, asyncio.get_running_loop()

        async def decisions() -> Any:
            return {"decisions": self.decisions}

        async def loads() -> Any:
            return self.loads

        async def decisions_then(at_ms: int) -> Any:
            return {"decisions": [row for row in self.decisions if row["at_ms"] <= at_ms]}

        async def loads_then(_: int) -> Any:
            return self.loads_then

        async def cordons() -> Any:
            return {"cordons": self.cordons}

        rig.feed.topics = {"cordons": cordons, "decisions": decisions, "loads": loads}
        rig.feed.past_topics = {"decisions": decisions_then, "loads": loads_then}
        app = application(rig.routes, self.settings.http, HttpCallers(self.settings.http), asset_routes())
        return Served(app, rig.feed.start if self.feeds else lambda: None, rig.feed.close, rig.feed.close)

    def begin_feed(self) -> None:
        """Where it does not begin with the server."""
        if self.loop is not None and self.feed is not None:
            self.loop.call_soon_threadsafe(self.feed.start)


@contextlib.contextmanager
def page_world(
    prepare: Callable[[PageWorld], None] = lambda _: None, *, brokers: int = 4, bundles: int = 32, **http: Any
) -> Iterator[PageWorld]:
    """A world that is served, prepared before the first look at it."""
    world = PageWorld(brokers, bundles, **http)
    prepare(world)
    server = HttpServer(world.settings.http, world.served, broker="b1")
    world.url = server.start()
    try:
        yield world
    finally:
        server.close()
