"""Paths that are answered from memory: brokers, namespaces, bundles, lookups, changes; and what describes the API itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field
from starlette.responses import StreamingResponse
from typing_extensions import TypedDict

from statechannel.conditions.facts import BrokerRow
from statechannel.engine.commands import Unowned
from statechannel.http_api.cluster import BundleFilter
from statechannel.http_api.problems import ProblemError, is_success, of_outcome
from statechannel.http_api.routes import ApiAnswer, ApiCall, ApiRoute
from statechannel.operations import outcomes
from statechannel.operations.outcomes import Answer
from statechannel.protocol.bundle import is_bundle, is_namespace
from statechannel.protocol.states import State
from statechannel.queries.channel_view import BundleRow, NamespaceDetails, NamespaceRow
from statechannel.queries.query import NAME_MAX, NameQuery, RequestModel
from statechannel.settings.groups_cluster import AccessRole

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from statechannel.http_api.change_stream import ChangesHub
    from statechannel.http_api.cluster import ApiCluster, RowPage

_CURSOR: Final = Field("", max_length=NAME_MAX, description="`next` of the page before; empty: from the first.")


class Paging(RequestModel):
    """Page of a list."""

    after: str = _CURSOR
    limit: int = Field(100, ge=1, le=100_000, description="Most rows; `http.page_max` bounds it.")


class BundleQuery(Paging):
    """Filters of a list of bundles."""

    namespace: str | None = Field(None, max_length=NAME_MAX, description="Only bundles of this namespace.")
    broker: str | None = Field(None, max_length=NAME_MAX, description="Only bundles that this broker serves.")
    state: State | None = Field(None, description="Only bundles in this state.")
    unowned: bool = Field(False, description="Only bundles without an owner that had one, or were declined.")


class ChangesQuery(RequestModel):
    """Where a stream begins."""

    since: str | None = Field(
        None,
        max_length=16_384,
        description="First offset wanted: `OFFSET`, or `PARTITION:OFFSET,...`. Without it, and without `Last-Event-ID`: now.",
    )
    only: str | None = Field(
        None,
        max_length=256,
        pattern="^[a-z]{1,32}(,[a-z]{1,32})*$",
        description="Only these events, by their names with commas between: `change`, `decision`, `event`. Default: all.",
    )


class ApiIndex(TypedDict):
    """What answers, and how far it has read."""

    api: str
    broker: str | None
    channel: str
    positions: dict[str, int]
    caller: str
    role: AccessRole
    openapi: str
    leader: str | None
    leader_api: str | None


class BrokersDocument(TypedDict):
    """The members."""

    brokers: list[BrokerRow]
    leader: str | None
    leader_api: str | None


class NamespacesDocument(TypedDict):
    """A page of namespaces; `next` is null on the last one."""

    namespaces: list[NamespaceRow]
    next: str | None


class NamespaceDocument(NamespaceRow, NamespaceDetails):
    """A namespace."""


class BundlesDocument(TypedDict):
    """A page of bundles; `next` is null on the last one."""

    bundles: list[BundleRow]
    next: str | None


class LookupDocument(TypedDict, total=False):
    """Who serves a bundle."""

    answer: Literal[Answer.ACCEPTED]
    outcome: Literal["owned", "unowned", "bound-to"]
    bundle: str
    broker: str
    generation: int
    urls: dict[str, str]
    stale_age_s: float | None


def etag_of(row: BundleRow) -> str:
    """Changes with every record of the bundle, and names the generation."""
    generation = "none" if row["generation"] is None else row["generation"]
    return f'"{generation}.{row["version"]}"'


def bundle_name(call: ApiCall) -> str:
    """The bundle of a path.

    Raises:
        ProblemError: It is not the key of a bundle.
    """
    name = "/".join(call.path[part] for part in ("tenant", "namespace", "range"))
    if len(name) > NAME_MAX or not is_bundle(name):
        raise ProblemError("bad-request", f"`{name[:200]}` is not a bundle", hint="Use tenant/namespace/0x..._0x...")
    return name


def namespace_name(call: ApiCall) -> str:
    """The namespace of a path.

    Raises:
        ProblemError: It is not the name of a namespace.
    """
    name = f"{call.path['tenant']}/{call.path['namespace']}"
    if len(name) > NAME_MAX or not is_namespace(name):
        raise ProblemError("bad-request", f"`{name[:200]}` is not a namespace", hint="Use tenant/namespace.")
    return name


class MemoryReads:
    """Handlers of the paths that are answered from memory."""

    def __init__(self, cluster: ApiCluster, hub: ChangesHub) -> None:
        self._cluster = cluster
        self._hub = hub
        self._page_max = cluster.settings.http.page_max

    async def index(self, call: ApiCall) -> ApiAnswer:
        positions = await self._cluster.position()
        leader, leader_api = await self._cluster.leader()
        index: ApiIndex = {
            "api": "v1",
            "broker": self._cluster.broker or None,
            "channel": self._cluster.settings.channel.name,
            "positions": {str(partition): offset for partition, offset in positions.items()},
            "caller": call.caller.name,
            "role": call.caller.role,
            "openapi": "/v1/openapi.json",
            "leader": leader,
            "leader_api": leader_api,
        }
        return ApiAnswer(index)

    async def brokers(self, _: ApiCall) -> ApiAnswer:
        rows, leader = await self._cluster.brokers()
        leader_api = next((row["api"] for row in rows if row["broker"] == leader), None)
        return ApiAnswer({"brokers": rows, "leader": leader, "leader_api": leader_api})

    async def broker(self, call: ApiCall) -> ApiAnswer:
        rows, _ = await self._cluster.brokers()
        row = next((row for row in rows if row["broker"] == call.path["broker"]), None)
        if row is None:
            raise ProblemError("broker-not-found", f"there is no broker {call.path['broker'][:128]}")
        return ApiAnswer(row)

    async def namespaces(self, call: ApiCall) -> ApiAnswer:
        page = await self._cluster.namespaces(call.query.after, min(call.query.limit, self._page_max))
        return _page("namespaces", page)

    async def namespace(self, call: ApiCall) -> ApiAnswer:
        name = namespace_name(call)
        parts = await self._cluster.namespace(name)
        if parts is None:
            raise unknown_namespace(name)
        return ApiAnswer({**parts[0], **parts[1]})

    async def bundles(self, call: ApiCall) -> ApiAnswer:
        query = call.query
        wanted = BundleFilter(query.namespace, query.broker, query.state, query.unowned)
        page = await self._cluster.bundles(wanted, query.after, min(query.limit, self._page_max))
        if page is None:
            raise unknown_namespace(query.namespace)
        return _page("bundles", page)

    async def bundle(self, call: ApiCall) -> ApiAnswer:
        name = bundle_name(call)
        row = await self._cluster.bundle(name)
        if row is None:
            raise unknown_bundle(name)
        return ApiAnswer(row, headers={"ETag": etag_of(row)})

    async def lookup(self, call: ApiCall) -> ApiAnswer:
        name = call.query.name
        outcome = await self._cluster.lookup(name)
        if not is_success(outcome) and not isinstance(outcome, Unowned):
            raise of_outcome(outcome, name=name)
        return ApiAnswer(outcomes.to_json(outcome) | {"answer": outcomes.answer_of(outcome).value})

    async def changes(self, call: ApiCall) -> ApiAnswer:
        since = call.headers.get("last-event-id") or call.query.since
        only = None if call.query.only is None else frozenset(call.query.only.split(","))
        return await streamed(self._hub.stream(since, only))

    def routes(self, document: Callable[[], dict[str, Any]]) -> list[ApiRoute]:
        """Their routes.

        Args:
            document: Makes the OpenAPI document.
        """
        kept = cache(document)  # it takes as long as thousands of other answers

        async def openapi(_: ApiCall) -> ApiAnswer:
            return ApiAnswer(kept())

        read = AccessRole.READ
        one_namespace, one_bundle = "/v1/namespaces/{tenant}/{namespace}", "/v1/bundles/{tenant}/{namespace}/{range}"
        return [
            ApiRoute("GET", "/v1", "index", "What answers, and how far it has read", read, self.index, ApiIndex),
            ApiRoute(
                "GET", "/v1/openapi.json", "openapi", "Describe this API (OpenAPI 3.1)", read, openapi, dict[str, Any]
            ),
            ApiRoute(
                "GET", "/v1/brokers", "list-brokers", "List the brokers: alive, or lost and not back", read, self.brokers,
                BrokersDocument,
            ),
            ApiRoute(
                "GET", "/v1/brokers/{broker}", "show-broker", "Show one broker", read, self.broker, BrokerRow,
                reasons=("broker-not-found",),
            ),
            ApiRoute(
                "GET", "/v1/namespaces", "list-namespaces", "List the namespaces, a page at a time", read, self.namespaces,
                NamespacesDocument, query=Paging,
            ),
            ApiRoute(
                "GET", one_namespace, "show-namespace", "Show one namespace: states and owners of its bundles", read,
                self.namespace, NamespaceDocument, reasons=("unknown-namespace",),
            ),
            ApiRoute(
                "GET", "/v1/bundles", "list-bundles", "List the live bundles, a page at a time", read, self.bundles,
                BundlesDocument, query=BundleQuery, reasons=("unknown-namespace",),
            ),
            ApiRoute(
                "GET", one_bundle, "show-bundle", "Show one bundle, with its generation as ETag", read, self.bundle, BundleRow,
                reasons=("unknown-bundle",),
            ),
            ApiRoute(
                "GET", "/v1/lookup", "lookup", "Who serves a topic or bundle; assigns nothing", read, self.lookup,
                LookupDocument, query=NameQuery, reasons=("unknown-namespace", "unknown-bundle", "bad-name"),
            ),
            ApiRoute(
                "GET", "/v1/changes", "follow-changes",
                "Stream changes, decisions and events as server-sent events", read, self.changes,
                bytes, query=ChangesQuery, reasons=("too-busy", "not-current"),
                bounds_time=False,
            ),
        ]  # fmt: skip


def unknown_namespace(name: str) -> ProblemError:
    return ProblemError(
        "unknown-namespace", f"namespace {name[:200]} does not exist", status=404, hint="See /v1/namespaces."
    )


def unknown_bundle(name: str) -> ProblemError:
    return ProblemError(
        "unknown-bundle", f"there is no live bundle {name}", status=404, hint="See /v1/bundles; it may have been split."
    )


def _page(name: str, page: RowPage) -> ApiAnswer:
    return ApiAnswer({name: page.rows, "next": page.after})


async def streamed(parts: AsyncGenerator[bytes, None]) -> ApiAnswer:
    """Server-sent events. What is wrong before the first part is a problem of its own.

    Raises:
        ProblemError: As `parts`; `not-current`: there are none.
    """
    try:
        first = await anext(parts)
    except StopAsyncIteration:
        raise ProblemError("not-current", "this process stops") from None
    return ApiAnswer(_EventStream(first, parts))


class _EventStream(StreamingResponse):
    """Server-sent events. The server cuts off a client that takes nothing; however it ends, the stream is closed."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, parts: AsyncGenerator[bytes, None]) -> None:
        self._parts = _joined(first, parts)
        super().__init__(self._parts, headers={"X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._parts.aclose()


async def _joined(first: bytes, parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        yield first
        async for part in parts:
            yield part
    finally:
        await parts.aclose()
