"""The ASGI application of the admin API: every bound and check before a handler, and problem documents for what is refused."""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from ipaddress import IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from statechannel.errors import StateChannelError
from statechannel.http_api.access import CLIENT_HEADER, HttpCallers, require_own_page
from statechannel.http_api.problems import PROBLEM_JSON, RETRY_AFTER, ProblemError, of_error
from statechannel.http_api.pulsar.form import PulsarForm
from statechannel.http_api.routes import PENDING, ApiAnswer, ApiCall, ApiRoute, Caller, parsed
from statechannel.logger import SafeLogger

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from statechannel.settings.groups_cluster import HttpSettings

_log = SafeLogger(__name__)

LeaderRead = Callable[[], Awaitable[tuple[str | None, str | None]]]
"""The leader, and the URL of its admin API; None: not known."""
JSON: Final = "application/json"
_SAFE: Final = frozenset({"GET", "HEAD"})
_ADDRESSES_MAX: Final = 10_000
_QUERY_MAX_CHARS: Final = 8_192
_KEY_SHOWN_CHARS: Final = 255
_ONCE: Final = frozenset({"host", "authorization", "idempotency-key"})
"""Headers of which a proxy may take another one than this process, so that two are not one."""
_BURST: Final = 2.0
_ADMITTED_S: Final = 2.0
"""Time between two looks at the caller of an answer that takes long."""
_UNKNOWN: Final = "unknown"
STRICT_HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every answer that does not have others."""


class RateLimit:
    """Requests per second of an address: a token bucket each, for the addresses that called last.

    Args:
        per_s: Average; a burst may have twice that, at least one.
    """

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._burst = max(1.0, _BURST * per_s)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, address: str, now_s: float) -> float:
        """0 if a request may pass, which is counted; else the time until the next may."""
        left, at_s = self._buckets.pop(address, (self._burst, now_s))
        left = min(self._burst, left + (now_s - at_s) * self._per_s)
        wait_s = 0.0 if left >= 1 else (1 - left) / self._per_s
        self._buckets[address] = (left - 1 if left >= 1 else left), now_s
        if len(self._buckets) > _ADDRESSES_MAX:
            self._buckets.popitem(last=False)
        return wait_s


class Gate:
    """What every request passes first: its host, its rate, its size; and the headers of every answer.

    Args:
        app: The application behind it.
    """

    def __init__(self, app: ASGIApp, settings: HttpSettings, access: HttpCallers) -> None:
        self._app = app
        self._access = access
        self._rate = RateLimit(settings.requests_per_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_strict(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                present = {name.lower() for name, _ in headers}
                extra = ((name.lower().encode(), value.encode()) for name, value in STRICT_HEADERS.items())
                message = {**message, "headers": [*headers, *(pair for pair in extra if pair[0] not in present)]}
            await send(message)

        try:
            self._admit(scope)
        except ProblemError as problem:
            await problem_response(problem, scope)(scope, receive, send_strict)
            return
        await self._app(scope, receive, send_strict)

    def _admit(self, scope: Scope) -> None:
        headers = _headers_of(scope)
        address = _address_of(scope)
        wait_s = self._rate.wait_s(_of_one_host(address), time.monotonic())
        if wait_s:
            raise ProblemError(
                "too-many-requests",
                f"{address} sends more requests than http.requests_per_s allows",
                headers={RETRY_AFTER: str(max(1, round(wait_s)))},
            )
        self._access.require_host(headers.get("host", ""), (scope.get("server") or ("",))[0])
        if len(scope.get("query_string", b"")) > _QUERY_MAX_CHARS:
            raise ProblemError("bad-request", f"the query has more than {_QUERY_MAX_CHARS} characters")
        if scope["method"] not in _SAFE:
            require_own_page(headers)


class _Endpoint:
    """Checks one request for a route, calls the handler, and answers."""

    def __init__(self, route: ApiRoute, settings: HttpSettings, access: HttpCallers, leader: LeaderRead | None) -> None:
        self._route = route
        self._leader = leader
        self._settings = settings
        self._access = access

    async def serve(self, request: Request) -> ASGIApp:
        """Answer a request; nothing that a handler raises passes."""
        try:
            call = await self._checked(request)
            if self._route.acts:
                self._log_action(call, request)
            answer = await self._answer(call, request)
            if isinstance(answer.document, dict) and answer.document.get("answer") == PENDING:
                answer.document["leader_api"] = await self._leader_api()
        except ProblemError as problem:
            if problem.for_leader:
                problem.facts["leader_api"] = await self._leader_api()
            return problem_response(problem, request.scope)
        except StateChannelError as error:
            return problem_response(of_error(error), request.scope)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception:
            _log.exception("http-handler-failed", route=self._route.name)
            return problem_response(ProblemError("internal-error", f"{self._route.name} failed"), request.scope)
        if isinstance(answer.document, Response):
            return partial(self._stream, answer.document, request)
        return Response(dumped(answer.document), answer.status, dict(answer.headers), JSON)

    async def _leader_api(self) -> str | None:
        if self._leader is None:
            return None
        try:
            return (await self._leader())[1]
        except ProblemError:  # the rest of the answer is of use without it
            return None

    def _log_action(self, call: ApiCall, request: Request) -> None:
        caller = call.caller
        _log.info(
            "http-action",
            action=self._route.name,
            path=request.url.path[:_QUERY_MAX_CHARS],
            caller=caller.name,
            address=caller.address,
            role=caller.role.value,
            dry_run=bool(getattr(call.body, "dry_run", False)),
            key=call.headers.get("idempotency-key", "")[:_KEY_SHOWN_CHARS],
        )

    async def _checked(self, request: Request) -> ApiCall:
        route, headers = self._route, _headers_of(request.scope)
        # Its role comes first: what a caller may not do needs no answer on how it would be done right.
        caller = await self._caller(request)
        asked, sent = request.query_params.multi_items(), {} if route.body is None else await self._document(request)
        if route.body_in_query and isinstance(sent, dict):
            asked, sent = [], _unique([*asked, *sent.items()])
        if route.query is None and asked:
            raise ProblemError("bad-request", f"{route.name} has no parameters in the query")
        query = None if route.query is None else parsed(route.query, _unique(asked))
        body = None if route.body is None else parsed(route.body, sent)
        return ApiCall(caller, request.path_params, query, body, headers)

    async def _caller(self, request: Request) -> Caller:
        caller = await identify(self._access, request.scope)
        ApiCall(caller, {}, None, None, {}).require(self._route.role, self._route.name)
        return caller

    async def _document(self, request: Request) -> Any:
        try:
            async with asyncio.timeout(self._settings.receive_timeout_s):
                content = await self._content(request)
        except TimeoutError:
            raise ProblemError("receive-timeout", "the body did not arrive in time") from None
        if not content.strip():
            return {}
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON:
            raise ProblemError("wrong-media-type", f"the body is {kind[:100] or 'of no type'}")
        return _json_of(content)

    async def _content(self, request: Request) -> bytes:
        most, content = self._settings.body_max_bytes, bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > most:
                raise ProblemError("body-too-large", f"the body has more than {most} bytes")
        return bytes(content)

    async def _while_admitted(self, long: Awaitable[Any], request: Request) -> Any:
        """What takes long; it ends where its caller is refused meanwhile, as a token can expire or be withdrawn."""
        task = asyncio.ensure_future(long)
        try:
            while not (await asyncio.wait({task}, timeout=_ADMITTED_S))[0]:
                await self._caller(request)
            return await task
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _stream(self, stream: Response, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._while_admitted(stream(scope, receive, send), request)
        except ProblemError:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _answer(self, call: ApiCall, request: Request) -> ApiAnswer:
        if not self._route.bounds_time:
            # An action may be in the log already: its caller was admitted when it asked, and gets the outcome.
            if self._route.acts:
                return await self._route.handler(call)
            answer: ApiAnswer = await self._while_admitted(self._route.handler(call), request)
            return answer
        try:
            async with asyncio.timeout(self._settings.answer_timeout_s):
                return await self._route.handler(call)
        except TimeoutError:
            limit_s = self._settings.answer_timeout_s
            raise ProblemError("answer-late", f"{self._route.name} was not answered within {limit_s:g} s") from None


def application(
    routes: Sequence[ApiRoute],
    settings: HttpSettings,
    access: HttpCallers,
    files: Sequence[Route] = (),
    leader: LeaderRead | None = None,
) -> ASGIApp:
    """The application of these routes.

    Args:
        files: Routes that need no caller.
        leader: Reads the leader and the URL of its API, for those whom only the leader can serve.
    """
    served = [
        Route(route.path, _Endpoint(route, settings, access, leader).serve, methods=[route.method], name=route.name)
        for route in routes
    ]
    for path, route in zip(served, routes, strict=True):
        if route.answer is bytes and path.methods is not None:
            path.methods.discard("HEAD")  # a stream has no end that could be answered

    async def refused(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 405:  # noqa: PLR2004
            allowed = sorted({method for route in served if _matches(route, request) for method in route.methods or ()})
            problem = ProblemError(
                "wrong-method",
                f"{request.method[:20]} is not a method of this path",
                headers={"Allow": ", ".join(allowed)},
            )
        else:
            problem = ProblemError("no-such-path", f"there is no path {request.url.path[:200]}")
        return problem_response(problem, request.scope)

    app = Starlette(routes=[*served, *files], exception_handlers={HTTPException: refused})
    app.router.redirect_slashes = False
    gate = Gate(app, settings, access)
    return PulsarForm(gate) if settings.pulsar_paths else gate


def _matches(route: Route, request: Request) -> bool:
    return route.path_regex.match(request.url.path) is not None


async def identify(access: HttpCallers, scope: Scope) -> Caller:
    """Authenticate the sender of a request.

    Raises:
        ProblemError: As `HttpCallers.caller`.
    """
    certificate = scope.get("state", {}).get("client_certificate")
    return await access.caller(_headers_of(scope), certificate, _address_of(scope))


def _address_of(scope: Scope) -> str:
    """IP address of the client; `unknown` where a proxy names it by something else."""
    address = str((scope.get("client") or ("",))[0])
    try:
        ip_address(address)
    except ValueError:
        return _UNKNOWN
    return address


def _of_one_host(address: str) -> str:
    """What has a rate of its own: of IPv6 the /64, in which a host takes addresses as it likes."""
    known = ip_address(address) if address != _UNKNOWN else None
    if not isinstance(known, IPv6Address):
        return address
    return str(known.ipv4_mapped or ip_network((int(known), 64), strict=False))


def problem_response(problem: ProblemError, scope: Scope) -> Response:
    document = problem.document() | {"instance": scope.get("path", "")[:200]}
    return Response(dumped(document), problem.status, problem.headers, PROBLEM_JSON)


def dumped(document: Any) -> bytes:
    """As JSON; lone surrogates of foreign text, which JSON cannot represent, are replaced."""
    try:
        return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:
        return orjson.dumps(_as_text(document), option=orjson.OPT_APPEND_NEWLINE)


def _as_text(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(_as_text(key)): _as_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_text(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value).encode(errors="replace").decode()


def _json_of(content: bytes) -> Any:
    """The document of a body.

    Raises:
        ProblemError: It is not JSON, or an object has a name twice, of which a proxy may take another one than this process.
    """
    try:
        document = orjson.loads(content)
        json.loads(content, object_pairs_hook=_unique)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise ProblemError("bad-request", f"the body is not JSON: {error}") from None
    return document


def _headers_of(scope: Scope) -> dict[str, str]:
    """By lower-case name; of a name that comes twice the first counts, unless it is one of `_ONCE`: that is void then."""
    headers: dict[str, str] = {}
    for name, value in scope.get("headers", ()):
        text = name.decode("latin-1").lower()
        if text in _ONCE and text in headers:
            headers[text] = ""
        headers.setdefault(text, value.decode("latin-1"))
    return headers


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ProblemError("bad-request", f"{name[:100]!r} is there twice")
        values[name] = value
    return values


__all__ = ["CLIENT_HEADER", "Gate", "RateLimit", "application", "dumped", "identify", "problem_response"]
