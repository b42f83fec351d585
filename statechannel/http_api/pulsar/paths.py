"""Paths of Pulsar's admin and lookup API: each is answered by calling routes of the admin API, with their roles and checks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from http import HTTPStatus
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from starlette.responses import PlainTextResponse, Response

from statechannel.http_api.access import require_own_page
from statechannel.http_api.actions import IDEMPOTENCY_KEY, operation_of
from statechannel.http_api.problems import ProblemError
from statechannel.http_api.pulsar import documents
from statechannel.http_api.pulsar.documents import (
    BundleSplitQuery,
    BundleUnloadQuery,
    HealthQuery,
    NamespaceDeletionQuery,
    NewIsolation,
    NewNamespace,
    PulsarQuery,
    SplitBoundaries,
    invalid,
    not_supported,
)
from statechannel.http_api.pulsar.form import unsupported_sentence
from statechannel.http_api.routes import ApiAnswer, ApiCall, ApiRoute, Handler, parsed
from statechannel.logger import SafeLogger
from statechannel.protocol.states import State
from statechannel.queries.query import RequestModel
from statechannel.settings.groups_cluster import AccessRole

if TYPE_CHECKING:
    from statechannel.http_api.cluster import ApiCluster

_log = SafeLogger(__name__)

_UNLOADS_AT_ONCE: Final = 8
_LOOK_S: Final = 0.05
_ALIVE: Final = frozenset({"alive", "draining"})
_ISOLATION: Final = "isolation"
_READ, _OPERATE, _FORCE = AccessRole.READ, AccessRole.OPERATE, AccessRole.FORCE


class RouteCalls:
    """Calls of routes of the admin API, by name, for the caller of another one.

    Args:
        wait_s: Time to wait for the end of a request.
    """

    def __init__(self, routes: Iterable[ApiRoute], wait_s: float) -> None:
        self._routes = {route.name: route for route in routes}
        self._wait = {"prefer": f"wait={max(1, round(wait_s))}"}

    async def document(
        self,
        name: str,
        call: ApiCall,
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The document of its answer. What acts is waited for.

        Args:
            headers: In place of those of the call.

        Raises:
            ProblemError: It is refused; `answer-late`: its end is not known yet.
        """
        route = self._routes.get(name)
        if route is None:
            raise not_supported(f"no installed package has {name}")
        call.require(route.role, route.name)
        of_query = None if route.query is None else parsed(route.query, dict(query or {}))
        of_body = None if route.body is None else parsed(route.body, dict(body or {}))
        passed = {**(call.headers if headers is None else headers), **self._wait}
        answer = await route.handler(ApiCall(call.caller, path or {}, of_query, of_body, passed))
        if answer.status == HTTPStatus.ACCEPTED:
            operation = answer.document["operation"]
            raise ProblemError(
                "answer-late",
                f"{route.name} is under way as the request {operation}; how it ends is not known yet",
                hint=f"See /v1/operations/{operation}.",
                retryable=False,
                facts={"operation": operation},
            )
        return answer.document

    async def rows(
        self, name: str, rows: str, call: ApiCall, after: str = "", **query: Any
    ) -> AsyncIterator[Mapping[str, Any]]:
        """All rows of a list, page by page.

        Args:
            rows: Where a page has them.
            after: The first cursor.
        """
        cursor: str | None = after
        while cursor is not None:
            page = await self.document(name, call, query={"after": cursor, "limit": 100_000, **query})
            for row in page[rows]:
                yield row
            cursor = page["next"]


class PulsarPaths:
    """Handlers of Pulsar's paths.

    Args:
        routes: Those of the admin API.
    """

    def __init__(self, cluster: ApiCluster, routes: Iterable[ApiRoute]) -> None:
        self._settings = cluster.settings.http
        self._cluster = cluster.settings.channel.name
        self._calls = RouteCalls(routes, self._settings.wait_max_s)

    # --- brokers and clusters ---------------------------------------------------------------------------------------

    async def _alive(self, call: ApiCall) -> tuple[list[Mapping[str, Any]], str | None]:
        """The brokers that are alive, and the leader."""
        document = await self._calls.document("list-brokers", call)
        return [row for row in document["brokers"] if row["state"] in _ALIVE], document["leader"]

    def _require_cluster(self, call: ApiCall, status: int = HTTPStatus.NOT_FOUND) -> None:
        name = unquote(call.path["cluster"])
        if name != self._cluster:
            raise ProblemError(
                "bad-request",
                f"Cluster {name[:200]} does not exist",
                status=status,
                hint=f"The only one is {self._cluster}, the channel's name.",
            )

    async def brokers(self, call: ApiCall) -> ApiAnswer:
        if "cluster" in call.path:
            self._require_cluster(call)
        rows, _ = await self._alive(call)
        return ApiAnswer([row["broker"] for row in rows])

    async def leader(self, call: ApiCall) -> ApiAnswer:
        rows, leader = await self._alive(call)
        row = next((row for row in rows if row["broker"] == leader), None)
        if row is None:
            raise ProblemError("broker-not-found", "Couldn't find leader broker")
        url = documents.service_url(documents.with_api(row["urls"], row["api"]))
        return ApiAnswer({"brokerId": row["broker"], "serviceUrl": url})

    async def health(self, call: ApiCall) -> ApiAnswer:
        await self._calls.document("index", call)
        wanted = call.query.broker_id
        rows, _ = await self._alive(call)
        if wanted and not any(row["broker"] == wanted for row in rows):
            raise ProblemError("broker-not-found", f"broker {wanted[:200]} is not alive")
        return ApiAnswer(PlainTextResponse("ok"))

    async def version(self, _: ApiCall) -> ApiAnswer:
        return ApiAnswer(PlainTextResponse(metadata.version("statechannel")))

    async def owned_namespaces(self, call: ApiCall) -> ApiAnswer:
        self._require_cluster(call)
        broker = unquote(call.path["broker"])
        rows, _ = await self._alive(call)
        if not any(row["broker"] == broker for row in rows):
            raise ProblemError("broker-not-found", f"broker {broker[:200]} is not alive")
        owned = {"broker_assignment": None, "is_controlled": False, "is_active": True}
        bundles = self._calls.rows("list-bundles", "bundles", call, broker=broker)
        return ApiAnswer({row["bundle"]: owned async for row in bundles})

    async def clusters(self, _: ApiCall) -> ApiAnswer:
        return ApiAnswer([self._cluster])

    async def cluster(self, call: ApiCall) -> ApiAnswer:
        self._require_cluster(call)
        rows, _ = await self._alive(call)
        return ApiAnswer(documents.cluster_document(documents.with_api(row["urls"], row["api"]) for row in rows))

    # --- tenants and namespaces -------------------------------------------------------------------------------------

    async def _namespaces(self, call: ApiCall, tenant: str) -> list[str]:
        """Names of a tenant's namespaces.

        Raises:
            ProblemError: There are none, and so no such tenant.
        """
        prefix = f"{tenant}/"
        names: list[str] = []
        async for row in self._calls.rows("list-namespaces", "namespaces", call, after=prefix):
            if not row["namespace"].startswith(prefix):
                break
            names.append(row["namespace"])
        if not names:
            message = f"Tenant {tenant[:200]} does not exist"
            raise ProblemError(
                "unknown-namespace", message, status=HTTPStatus.NOT_FOUND, hint="It is there with its first namespace."
            )
        return names

    async def tenants(self, call: ApiCall) -> ApiAnswer:
        rows = self._calls.rows("list-namespaces", "namespaces", call)
        return ApiAnswer(sorted({row["namespace"].partition("/")[0] async for row in rows}))

    async def tenant(self, call: ApiCall) -> ApiAnswer:
        await self._namespaces(call, unquote(call.path["tenant"]))
        return ApiAnswer({"adminRoles": [], "allowedClusters": [self._cluster]})

    async def namespaces(self, call: ApiCall) -> ApiAnswer:
        return ApiAnswer(await self._namespaces(call, unquote(call.path["tenant"])))

    async def bundles(self, call: ApiCall) -> ApiAnswer:
        rows = self._calls.rows("list-bundles", "bundles", call, namespace=documents.namespace_of(call.path))
        return ApiAnswer(documents.bundles_document([row["bundle"].rpartition("/")[2] async for row in rows]))

    async def create_namespace(self, call: ApiCall) -> ApiAnswer:
        namespace = documents.namespace_of(call.path)
        body = {"namespace": namespace, "bundles": documents.new_bundles(call.body, self._cluster)}
        await self._calls.document("create-namespace", call, body=body)
        return _no_content()

    async def delete_namespace(self, call: ApiCall) -> ApiAnswer:
        path = _parts(documents.namespace_of(call.path))
        if not call.query.force:
            raise not_supported(
                "whether a namespace is empty is not known here, so it is not deleted without force",
                "With force=true it is unloaded and deleted; nothing undoes it.",
            )
        await self._calls.document("delete-namespace", call, path=path)
        return _no_content()

    async def unload_namespace(self, call: ApiCall) -> ApiAnswer:
        namespace = documents.namespace_of(call.path)
        rows = self._calls.rows("list-bundles", "bundles", call, namespace=namespace)
        await self._unload_all(call, [row["bundle"] async for row in rows if row["owner"] is not None])
        return _no_content()

    async def _unload_all(self, call: ApiCall, bundles: Sequence[str]) -> None:
        """Unload bundles, several at the same time, within `http.wait_max_s`; with a key, each has one that is derived from it.

        Raises:
            ProblemError: That of the first that could not be unloaded; it says how many are.
        """
        ends_s = time.monotonic() + self._settings.wait_max_s
        places = asyncio.Semaphore(_UNLOADS_AT_ONCE)
        refused: list[ProblemError] = []
        done = 0

        async def unload(bundle: str) -> None:
            nonlocal done
            async with places:
                if refused or time.monotonic() > ends_s:
                    return
                try:
                    await self._calls.document("unload", call, path=_parts(bundle), headers=_for_part(call, bundle))
                    done += 1
                except ProblemError as problem:
                    refused.append(problem)

        await asyncio.gather(*(unload(bundle) for bundle in bundles))
        counted = f"{done} of {len(bundles)} bundles are unloaded"
        if refused:
            first = refused[0]
            raise ProblemError(first.reason, f"{counted}; then: {first}", status=first.status, hint=first.hint)
        if done < len(bundles):
            hint = "Unload it again: only what still has an owner is unloaded."
            raise ProblemError("answer-late", f"{counted} within http.wait_max_s", hint=hint, retryable=False)

    # --- bundles ----------------------------------------------------------------------------------------------------

    async def _row(self, call: ApiCall, bundle: str) -> Mapping[str, Any]:
        """A bundle; an unknown namespace is reported before an unknown bundle, as by Pulsar."""
        namespace = bundle.rpartition("/")[0]
        await self._calls.document("show-namespace", call, path=_parts(namespace))
        row: Mapping[str, Any] = await self._calls.document("show-bundle", call, path=_parts(bundle))
        return row

    async def unload_bundle(self, call: ApiCall) -> ApiAnswer:
        bundle = documents.bundle_of(call.path)
        destination = call.query.destination.strip()
        for scheme in ("http://", "https://"):  # Pulsar takes the address of a broker for its id, too
            destination = destination.removeprefix(scheme)
        if IDEMPOTENCY_KEY not in call.headers:
            row = await self._row(call, bundle)
            if row["state"] == State.UNASSIGNED:
                return _no_content()
        if destination:
            body = {"destination": destination}
            await self._calls.document("transfer", call, path=_parts(bundle), body=body)
        else:
            await self._calls.document("unload", call, path=_parts(bundle))
        return _no_content()

    async def split_bundle(self, call: ApiCall) -> ApiAnswer:
        bundle = documents.bundle_of(call.path)
        body = documents.split_body(call.query, call.body.at)
        try:
            parts = documents.parts_of(bundle, body)
        except ValueError as error:
            raise invalid(f"{bundle} cannot be split so: {error}") from None
        try:
            row = await self._row(call, bundle)
        except ProblemError:
            if IDEMPOTENCY_KEY not in call.headers:
                raise
        else:
            if row["state"] == State.UNASSIGNED:  # Pulsar takes ownership first, too
                await self._calls.document("assign", call, body={"name": bundle}, headers=_for_part(call, "assign"))
        await self._calls.document("split", call, path=_parts(bundle), body=body)
        if call.query.unload:
            await self._wait_read(call, parts)
            await self._unload_all(call, parts)
        return _no_content()

    async def _wait_read(self, call: ApiCall, bundles: Iterable[str]) -> None:
        """Wait until this process has read the records of these new bundles.

        Raises:
            ProblemError: `not-current`.
        """
        ends_s = time.monotonic() + self._settings.answer_timeout_s
        for bundle in bundles:
            while not await self._is_live(call, bundle):
                if time.monotonic() > ends_s:
                    message = f"the split is done; this process has not read of {bundle} in time"
                    raise ProblemError("not-current", message, hint="Unload the parts.", retryable=False)
                await asyncio.sleep(_LOOK_S)

    async def _is_live(self, call: ApiCall, bundle: str) -> bool:
        try:
            await self._calls.document("show-bundle", call, path=_parts(bundle))
        except ProblemError as problem:
            if problem.reason != "unknown-bundle":
                raise
            return False
        return True

    # --- lookups ----------------------------------------------------------------------------------------------------

    async def lookup(self, call: ApiCall) -> ApiAnswer:
        topic = documents.topic_of(call.path)
        document = await self._calls.document("lookup", call, query={"name": topic})
        if document["outcome"] == "unowned":
            # It is a GET all the same: what no page of another site may do by a POST, none may do by an image.
            require_own_page(call.headers)
            call.require(_OPERATE, "a lookup of a bundle without an owner, which assigns it,")
            caller = call.caller
            _log.info(
                "http-action", action="pulsar-lookup", path=topic, caller=caller.name, address=caller.address,
                role=caller.role.value, dry_run=False, key="",
            )  # fmt: skip
            document = await self._calls.document("assign", call, body={"name": topic})
        urls = document.get("urls") or {}
        if documents.service_url(urls) is None and "broker" in document:
            urls = documents.with_api(urls, await self._api_of(call, document["broker"]))
        return ApiAnswer(documents.lookup_document(urls))

    async def _api_of(self, call: ApiCall, broker: str) -> str | None:
        try:
            row = await self._calls.document("show-broker", call, path={"broker": broker})
        except ProblemError as problem:
            if problem.reason != "broker-not-found":  # it has left meanwhile
                raise
            return None
        api: str | None = row["api"]
        return api

    async def lookup_bundle(self, call: ApiCall) -> ApiAnswer:
        topic = documents.topic_of(call.path)
        document = await self._calls.document("lookup", call, query={"name": topic})
        if "bundle" not in document:
            raise not_supported("the namespace belongs to one broker by rule, and has no bundles")
        return ApiAnswer(PlainTextResponse(document["bundle"].rpartition("/")[2]))

    # --- isolation policies -----------------------------------------------------------------------------------------

    async def _isolations(self, call: ApiCall) -> dict[str, Any]:
        document = await self._calls.document("list-policies", call)
        return {
            entry["name"]: documents.isolation_document(entry["value"])
            for entry in document["policies"]
            if entry["kind"] == _ISOLATION and not entry["override"]
        }

    async def isolations(self, call: ApiCall) -> ApiAnswer:
        self._require_cluster(call)
        return ApiAnswer(await self._isolations(call))

    async def isolation(self, call: ApiCall) -> ApiAnswer:
        self._require_cluster(call)
        name = unquote(call.path["policy"])
        policy = (await self._isolations(call)).get(name)
        if policy is None:
            message = f"NamespaceIsolationPolicy {name[:200]} does not exist in cluster {self._cluster}"
            raise ProblemError("bad-request", message, status=HTTPStatus.NOT_FOUND, hint="See the list of them.")
        return ApiAnswer(policy)

    async def set_isolation(self, call: ApiCall) -> ApiAnswer:
        self._require_cluster(call, HTTPStatus.PRECONDITION_FAILED)
        path = {"kind": _ISOLATION, "name": unquote(call.path["policy"])}
        await self._calls.document("set-policy", call, path=path, body={"value": documents.isolation_value(call.body)})
        return _no_content()

    async def delete_isolation(self, call: ApiCall) -> ApiAnswer:
        self._require_cluster(call, HTTPStatus.PRECONDITION_FAILED)
        await self._calls.document("end-policy", call, path={"kind": _ISOLATION, "name": unquote(call.path["policy"])})
        return _no_content()

    # --- the table --------------------------------------------------------------------------------------------------

    def routes(self) -> list[ApiRoute]:
        """Those that are answered."""
        brokers, clusters = "/admin/v2/brokers", "/admin/v2/clusters"
        namespaces, topic = "/admin/v2/namespaces", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"
        namespace, isolations = (
            f"{namespaces}/{{tenant}}/{{namespace}}",
            f"{clusters}/{{cluster}}/namespaceIsolationPolicies",
        )
        bundle = f"{namespace}/{{bundle}}"

        def read(
            path: str,
            name: str,
            about: str,
            handler: Handler,
            query: type[RequestModel] = PulsarQuery,
            answer: Any = Any,
        ) -> ApiRoute:
            return ApiRoute(
                "GET", path, f"pulsar-{name}", about, _READ, handler, answer, query=query, bounds_time=name != "lookup"
            )

        def act(
            method: str, path: str, name: str, about: str, handler: Handler, query: type[RequestModel] = PulsarQuery,
            body: type[RequestModel] | None = None, role: AccessRole = _OPERATE,
        ) -> ApiRoute:  # fmt: skip
            return ApiRoute(
                method, path, f"pulsar-{name}", about, role, handler, None, query=query, body=body, statuses=(204,),
                acts=True, bounds_time=False,
            )  # fmt: skip

        return [
            read(brokers, "brokers", "Ids of the brokers that are alive", self.brokers),
            read(f"{brokers}/leaderBroker", "leader", "The leader, with the HTTP address that it advertises, or of its API",
                 self.leader),
            read(f"{brokers}/health", "health", "`ok`, if this process follows the channel, and `brokerId` is alive",
                 self.health, HealthQuery, str),
            read(f"{brokers}/version", "version", "Version of statechannel", self.version, answer=str),
            read(f"{brokers}/{{cluster}}", "cluster-brokers", "The same ids, for the cluster that has the channel's name",
                 self.brokers),
            read(f"{brokers}/{{cluster}}/{{broker}}/ownedNamespaces", "owned-namespaces",
                 "Bundles that a broker serves; `broker_assignment` is null, `is_controlled` is not determined",
                 self.owned_namespaces),
            read(clusters, "clusters", "The one cluster: the channel's name", self.clusters),
            read(f"{clusters}/{{cluster}}", "cluster", "Addresses that its brokers advertise", self.cluster),
            read(isolations, "isolations", "Policies of the kind `isolation`", self.isolations),
            read(f"{isolations}/{{policy}}", "isolation", "One of them", self.isolation),
            act("POST", f"{isolations}/{{policy}}", "set-isolation",
                "Write one; `usage_threshold` must be 100, `unload_scope` unset or `none`", self.set_isolation,
                body=NewIsolation),
            act("DELETE", f"{isolations}/{{policy}}", "delete-isolation", "Delete one", self.delete_isolation),
            read("/admin/v2/tenants", "tenants", "Tenants that have a namespace", self.tenants),
            read("/admin/v2/tenants/{tenant}", "tenant", "A tenant, without roles of its own", self.tenant),
            read(f"{namespaces}/{{tenant}}", "namespaces", "A tenant's namespaces", self.namespaces),
            read(f"{namespace}/bundles", "bundles", "Boundaries of its bundles", self.bundles),
            act("PUT", namespace, "create-namespace", "Create a namespace; of its policies only the number of bundles counts",
                self.create_namespace, body=NewNamespace),
            act("DELETE", namespace, "delete-namespace", "Unload a namespace and delete it; only with `force=true`",
                self.delete_namespace, NamespaceDeletionQuery, role=_FORCE),
            act("PUT", f"{namespace}/unload", "unload-namespace",
                "Unload its bundles one by one, for at most `http.wait_max_s`", self.unload_namespace),
            act("PUT", f"{bundle}/unload", "unload-bundle",
                "Unload a bundle, or transfer it to `destinationBroker`; nothing to do if it has no owner",
                self.unload_bundle, BundleUnloadQuery),
            act("PUT", f"{bundle}/split", "split-bundle",
                "Split a bundle evenly or at hashes, then unload the parts if `unload` is set", self.split_bundle,
                BundleSplitQuery, SplitBoundaries),
            read(topic, "lookup", "Addresses of the owner of a topic's bundle; one without an owner is assigned (role operate)",
                 self.lookup),
            read(f"{topic}/bundle", "lookup-bundle", "Hash range of a topic's bundle", self.lookup_bundle, answer=str),
        ]  # fmt: skip


class UnsupportedPath(NamedTuple):
    """A path that Pulsar has and that is answered by 501, with what to use."""

    method: str
    path: str
    instead: str


_NO_TOPICS: Final = "topics belong to the service that embeds a broker"
_NO_BACKLOG: Final = "brokers here have no backlog"
UNSUPPORTED: Final[Sequence[UnsupportedPath]] = (
    UnsupportedPath("GET", "/admin/v2/brokers/configuration{rest:path}", "`statechannel settings`"),
    UnsupportedPath("GET", "/admin/v2/brokers/internal-configuration", "`statechannel settings`"),
    UnsupportedPath("GET", "/admin/v2/brokers/backlog-quota-check", _NO_BACKLOG),
    UnsupportedPath("GET", "/admin/v2/brokers/ready", "`/healthz` of `observe.metrics_port`"),
    UnsupportedPath("POST", "/admin/v2/brokers/shutdown", "`/v1/brokers/{broker}/drain`, then SIGTERM"),
    UnsupportedPath("GET", "/admin/v2/broker-stats/{rest:path}", "`/v1/loads`, and the metrics"),
    UnsupportedPath("GET", "/admin/v2/clusters/{cluster}/failureDomains{rest:path}", "policies of the kind `domain`"),
    UnsupportedPath(
        "GET", "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies/brokers{rest:path}", "`/v1/why` of a bundle"
    ),
    UnsupportedPath("PUT", "/admin/v2/tenants/{tenant}", "a tenant is there with its first namespace"),
    UnsupportedPath("GET", "/admin/v2/namespaces/{tenant}/{namespace}", "`/v1/policies`, and the path `bundles`"),
    UnsupportedPath(
        "GET", "/admin/v2/namespaces/{tenant}/{namespace}/antiAffinity", "policies of the kind `anti-affinity`"
    ),
    UnsupportedPath("GET", "/admin/v2/namespaces/{tenant}/{namespace}/topics", _NO_TOPICS),
    UnsupportedPath("POST", "/admin/v2/namespaces/{tenant}/{namespace}/clearBacklog{rest:path}", _NO_BACKLOG),
    UnsupportedPath("GET", "/admin/v2/persistent/{rest:path}", _NO_TOPICS),
    UnsupportedPath("GET", "/admin/v2/non-persistent/{rest:path}", _NO_TOPICS),
)
"""Those that clients of the supported ones may call as well; any other path of Pulsar is answered likewise."""


def unsupported_routes() -> list[ApiRoute]:
    """Before the others: some would be taken for the name of a cluster or policy."""

    def route(number: int, unsupported: UnsupportedPath) -> ApiRoute:
        async def refuse(_: ApiCall) -> ApiAnswer:
            raise not_supported(unsupported_sentence(unsupported.method), f"There is instead: {unsupported.instead}.")

        name = f"pulsar-unsupported-{number}"
        return ApiRoute(
            unsupported.method, unsupported.path, name, "Not supported", _READ, refuse, None, query=PulsarQuery
        )

    return [route(number, unsupported) for number, unsupported in enumerate(UNSUPPORTED)]


def pulsar_routes(cluster: ApiCluster, routes: Iterable[ApiRoute]) -> list[ApiRoute]:
    """Pulsar's paths over the routes of the admin API."""
    return [*unsupported_routes(), *PulsarPaths(cluster, routes).routes()]


def _parts(name: str) -> dict[str, str]:
    """A namespace or bundle as parameters of a path of the admin API."""
    return dict(zip(("tenant", "namespace", "range"), name.split("/"), strict=False))


def _for_part(call: ApiCall, part: str) -> dict[str, str]:
    """Headers for a part of a call: it has no `If-Match`, and a key that is derived from that of the call, if it has any."""
    headers = {name: value for name, value in call.headers.items() if name != "if-match"}
    if (key := headers.get(IDEMPOTENCY_KEY)) is not None:
        headers[IDEMPOTENCY_KEY] = operation_of(call.caller.name, f"{key}\0{part}")
    return headers


def _no_content() -> ApiAnswer:
    return ApiAnswer(Response(status_code=HTTPStatus.NO_CONTENT))
