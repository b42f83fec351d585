"""The admin API without Kafka: a cluster of plain rows, a log of requests in memory, and a client that calls the application."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import httpx
import jsonschema_rs
import orjson
from pydantic import TypeAdapter

from statechannel.broker.changes import Change
from statechannel.conditions.facts import BrokerRow
from statechannel.engine.commands import Done, NotFound, Outcome, Owned
from statechannel.http_api.access import HttpCallers
from statechannel.http_api.application import application
from statechannel.http_api.change_stream import ChangesHub
from statechannel.http_api.cluster import BundleFilter, RowPage
from statechannel.http_api.page.bundle_table import BundleStart
from statechannel.http_api.page.page_facts import ClusterLook
from statechannel.http_api.page.page_feed import PageFeed
from statechannel.http_api.page.page_routes import asset_routes
from statechannel.http_api.request_book import requests_shown
from statechannel.http_api.routes import ApiRoute
from statechannel.http_api.serving import every_route
from statechannel.operations import outcomes, request_record
from statechannel.operations.request_record import Progress, ProgressStage, Reply, Request
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.states import State
from statechannel.queries.channel_view import BundleRow, NamespaceDetails, NamespaceRow
from statechannel.settings import Settings, load
from statechannel.stories.requests import RequestFold, RequestStory

BUNDLE = "t/n/0x00000000_0xffffffff"
PATH = f"/v1/bundles/{BUNDLE}"
CLIENT = {"Statechannel-Client": "ann"}


def http_settings(**values: Any) -> Settings:
    """Settings of a port that all may use, unless they are given."""
    http = {"port": 0, "open_role": "force", "requests_per_s": 100_000, **values}
    return load(overrides={"kafka": {"bootstrap_servers": "127.0.0.1:1"}, "http": http})


def broker_row(name: str, **values: Any) -> BrokerRow:
    row: dict[str, Any] = dict.fromkeys(BrokerRow.__annotations__)
    row |= {"broker": name, "incarnation": f"{name}-1", "state": "alive", "accepting": True, "draining": False}
    row |= {"leading": name == "b1", "bundles": 0, "heard_ago_ms": 1, "urls": {}, "hooks_failed": {}, "differs": []}
    return {**row, **values}  # type: ignore[return-value, typeddict-item]


def _closed(schema: Any) -> Any:
    """A schema without room for keys that it does not name."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: _closed(part) for name, part in schema.items()}
    return parts | ({"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {})


def described(kind: Any) -> Callable[[Any], None]:
    """Raises for a document that has not just the keys of its type."""
    check = jsonschema_rs.validator_for(_closed(TypeAdapter(kind).json_schema(mode="serialization")))
    return lambda document: check.validate(orjson.loads(orjson.dumps(document)))


class FakeCluster:
    """Two brokers and one bundle, which `b1` serves."""

    hub: ChangesHub

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.broker = "b1"
        self.members = [broker_row("b1"), broker_row("b2")]
        self.row: BundleRow = {
            "bundle": BUNDLE,
            "state": "Assigned",
            "owner": "b1",
            "next": None,
            "generation": 7,
            "version": 7,
            "id": "r7",
            "operation": None,
            "flow": None,
            "offset": 9,
        }
        self.checks: frozenset[str] = frozenset()
        self.applied = {0: 9}
        self.came: list[Change] = []
        self.older: list[Change] = []
        self.turn = asyncio.Event()

    async def position(self) -> Mapping[int, int]:
        return dict(self.applied)

    async def brokers(self) -> tuple[list[BrokerRow], str | None]:
        return self.members, "b1"

    async def common_checks(self) -> frozenset[str]:
        return self.checks

    async def leader(self) -> tuple[str | None, str | None]:
        return "b1", self.members[0]["api"]

    async def namespaces(self, after: str, limit: int) -> RowPage:
        row: NamespaceRow = {"namespace": "t/n", "version": 1, "bundles": 1, "served": 1, "in_flight": 0}
        return RowPage([row] if after < "t/n" else [], None)

    async def namespace(self, name: str) -> tuple[NamespaceRow, NamespaceDetails] | None:
        if name != "t/n":
            return None
        row: NamespaceRow = {"namespace": "t/n", "version": 1, "bundles": 1, "served": 1, "in_flight": 0}
        details: NamespaceDetails = {
            "splits": 0, "created_by": "b1", "operation": "o", "states": {"Assigned": 1}, "owners": {"b1": 1},
        }  # fmt: skip
        return row, details

    async def bundles(self, wanted: BundleFilter, after: str, limit: int) -> RowPage | None:
        if wanted.namespace not in (None, "t/n"):
            return None
        return RowPage([self.row] if after < BUNDLE else [], None)

    async def bundle(self, name: str) -> BundleRow | None:
        return self.row if name == BUNDLE else None

    async def lookup(self, name: str) -> Outcome:
        if name.removeprefix("persistent://").startswith("t/n/"):
            return Owned(BUNDLE, "b1", 7, {"http": "http://127.0.0.1:1"})
        return NotFound("unknown-namespace", f"{name} is in no namespace")

    def add(self, *changes: Change) -> None:
        """Changes that come now."""
        self.came += changes
        self.turn.set()

    async def changes(self, since: Mapping[int, int] | None) -> AsyncGenerator[Sequence[Change], None]:
        wanted = dict(since or {})
        while True:
            batch = [change for change in self.came if change.offset >= wanted.get(change.partition, 0)]
            if batch:
                wanted[0] = batch[-1].offset + 1
                yield batch
            self.turn.clear()
            await self.turn.wait()

    async def past(self, since: Mapping[int, int], ends: Mapping[int, int]) -> AsyncGenerator[Sequence[Change], None]:
        yield [change for change in [*self.older, *self.came] if since.get(0, 0) <= change.offset < ends[0]]


def change(offset: int, bundle: str = BUNDLE) -> Change:
    return Change(0, offset, 1_000 + offset, bundle, State.ASSIGNED, offset, "b1", "b2", "b1", "b1-1")


class FakeRequests:
    """A log of requests, and the one broker that answers them.

    Args:
        answer: The outcome of a request; None leaves it open.
        delay: Awaited between a request and its answer.

    Attributes:
        unread: What other processes have written and this one has not read; read by `wait_current`.
    """

    def __init__(self, answer: Callable[[Request], Outcome | None], delay: Callable[[], Any] | None = None) -> None:
        self._answer = answer
        self._delay = delay
        self.fold = RequestFold(10_000, keeps_args=False)
        self.written: list[Request] = []
        self.acted: list[str] = []
        self.unread: list[Request] = []
        self._offset = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def _log(self, item: Request | Progress | Reply, timeout_s: float = 0.0) -> None:
        value = request_record.encode(item, timeout_s=timeout_s)
        at_ms = time.time_ns() // 1_000_000
        self.fold.take([RecordRead(Topic.REQUESTS, 0, self._offset, at_ms, item.id.encode(), value)])
        self._offset += 1

    def find(self, identifier: str) -> RequestStory | None:
        return self.fold.stories.get(identifier)

    def is_expired(self, story: RequestStory) -> bool:
        return False

    def newest(self) -> list[dict[str, Any]]:
        return requests_shown(self.fold, time.time_ns() // 1_000_000)

    async def wait_caught_up(self) -> None:
        return

    async def wait_current(self) -> None:
        while self.unread:
            self._log(self.unread.pop(0), 60.0)

    async def write(self, request: Request, *, answer_within_s: float) -> RequestStory:
        self.written.append(request)
        known = request.id in self.fold.stories
        self._log(request, answer_within_s)
        if not known:
            task = asyncio.ensure_future(self._execute(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return self.fold.stories[request.id]

    async def _execute(self, request: Request) -> None:
        if self._delay is not None:
            await self._delay()
        self._log(Progress(request.id, ProgressStage.CLAIMED, "b1", "b1-1"))
        outcome = self._answer(request)
        if outcome is not None:
            self.acted.append(request.id)
            self._log(Reply(request.id, "b1", "b1-1", outcomes.to_json(outcome)))

    async def wait_ended(self, identifier: str, wait_s: float) -> RequestStory:
        for _ in range(1_000):
            if self.fold.stories[identifier].outcome is not None:
                break
            await asyncio.sleep(0)
        return self.fold.stories[identifier]


def accept(request: Request) -> Outcome:
    return Done(request.id, "transferred", {"bundle": BUNDLE})


class FakeSource:
    """What the page knows: set it, and give the feed its changes by `take`.

    Attributes:
        starts: Bundles at the beginning.
        seen: The members.
        log: Changes that lie in Kafka.
    """

    broker = "b1"

    def __init__(self) -> None:
        self.starts: list[BundleStart] = []
        self.seen = look_of([broker_row("b1"), broker_row("b2")])
        self.log: list[Change] = []

    async def look(self) -> ClusterLook:
        return self.seen

    async def positions(self) -> Mapping[int, int]:
        return {0: max((item.offset for item in self.log), default=-1)}

    async def bundles(self) -> tuple[list[BundleStart], dict[int, int]]:
        return self.starts, {0: 0}

    async def past(self, since: Mapping[int, int], ends: Mapping[int, int]) -> AsyncGenerator[Sequence[Change], None]:
        yield [item for item in self.log if since.get(0, 0) <= item.offset < ends[0]]


def look_of(brokers: list[BrokerRow], **values: Any) -> ClusterLook:
    """A healthy cluster of these brokers, but for the values given."""
    leader = next((row["broker"] for row in brokers if row["leading"]), None)
    look = ClusterLook(0, "b1", "normal", None, 0.0, {0: 9}, leader, 3, brokers, {})
    return look._replace(**{"at_ms": time.time_ns() // 1_000_000, **values})


class Rig:
    """The application over fakes.

    Args:
        requests: A log that several processes share.

    Attributes:
        routes: All of them.
    """

    def __init__(
        self,
        settings: Settings,
        answer: Callable[[Request], Outcome | None] = accept,
        *,
        requests: FakeRequests | None = None,
    ) -> None:
        self.settings = settings
        self.cluster = FakeCluster(settings)
        self.requests = requests or FakeRequests(answer)
        self.hub = ChangesHub(self.cluster, settings.http)
        self.feed = PageFeed(FakeSource(), settings)
        self.routes: list[ApiRoute] = every_route(self.cluster, self.hub, self.requests, self.feed)
        self.app = application(
            self.routes, settings.http, HttpCallers(settings.http), asset_routes(), self.cluster.leader
        )

    def client(self, **headers: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True, client=("127.0.0.1", 5))
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers, timeout=None)


@contextlib.asynccontextmanager
async def rigged(
    answer: Callable[[Request], Outcome | None] = accept, **http: Any
) -> AsyncIterator[tuple[Rig, httpx.AsyncClient]]:
    """A rig whose callers may do everything, and a client of it."""
    rig = Rig(http_settings(**http), answer)
    rig.hub.start()
    try:
        async with rig.client(**CLIENT) as client:
            yield rig, client
    finally:
        await rig.hub.close()
