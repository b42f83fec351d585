"""A transport of httpx that sends each request to the broker that serves its topic, and follows moves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx

from statechannel.api.guard import Redirect
from statechannel.engine.commands import BoundTo, NotFound
from statechannel.errors import NotFoundError
from statechannel.router.router import Route, Router

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RouterTransport"]

PAUSE_FIRST_S = 0.02
PAUSE_LONGEST_S = 1.0


class RouterTransport(httpx.AsyncBaseTransport):
    """Sends each request of a topic to its owner, by a router; a move or a broker's death is followed.

    A request is sent again, also if it writes, where it was surely not carried out: a server answered with a redirect of `guard`
    (`GuardMiddleware`), or no connection was opened. Requests go to registered addresses of brokers only, wherever a redirect
    leads. Any other failure is raised to the caller, who knows whether the request may be retried. Its body is kept in memory
    for that.

    Example:
        ```
        transport = RouterTransport(router, lambda request: request.url.path.removeprefix("/notes/"))
        async with httpx.AsyncClient(transport=transport, base_url="http://notes") as client:
            await client.put("/notes/example/notes/today", content="rain")
        ```

    Args:
        topic_of: The topic (or bundle) of a request; scheme, host and port of the owner take the place of its own, whichever
            they are, and the path of the owner's address goes before its path.
        protocol: Name of the listener at which owners are reached.
        patience_s: Longest time for one request until an owner has answered it.
        transport: Carries the requests; None: one of httpx.

    Raises:
        ConnectTimeout: No owner was reached in that time; of httpx, as all other failures of a request.
        NotFoundError: There is no such namespace.
        NoListenerError: The owner has no such listener.
    """

    def __init__(
        self,
        router: Router,
        topic_of: Callable[[httpx.Request], str],
        *,
        protocol: str = "http",
        patience_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._router = router
        self._topic_of = topic_of
        self._protocol = protocol
        self._patience_s = patience_s
        self._transport = transport or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`."""
        await request.aread()
        topic, loop, pause_s = self._topic_of(request), asyncio.get_running_loop(), 0.0
        until_s, redirect = loop.time() + self._patience_s, None
        last: object = None
        while (left_s := until_s - loop.time()) > 0:
            answer = self._router.follow(topic, redirect) if redirect else None
            if not isinstance(answer, Route | BoundTo) or not self._is_registered(answer):
                answer = await self._router.wait(topic, left_s, assign=True)
            if isinstance(answer, NotFound):
                raise NotFoundError(answer.message, hint=answer.hint)
            last, redirect = answer, None
            if isinstance(answer, Route | BoundTo):
                try:
                    response = await self._send(request, answer.url(self._protocol))
                except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                    last = error
                else:
                    taken = await self._taken(response)
                    if isinstance(taken, httpx.Response):
                        return taken
                    redirect = taken
            await asyncio.sleep(min(pause_s, max(0.0, until_s - loop.time())))
            pause_s = min(max(PAUSE_FIRST_S, 2 * pause_s), PAUSE_LONGEST_S)
        raise httpx.ConnectTimeout(
            f"no owner of {topic} was reached in {self._patience_s:g} s: {last}", request=request
        )

    def _is_registered(self, answer: Route | BoundTo) -> bool:
        """Whether its broker is heard at its addresses: a redirect is text, which must not lead credentials elsewhere."""
        seen = [broker.info.get("listeners") for broker in self._router.brokers() if broker.broker == answer.broker]
        return seen == [dict(answer.urls)]

    async def _send(self, request: httpx.Request, owner: str) -> httpx.Response:
        """Send a copy: the caller's request keeps its address, for which cookies are kept, too."""
        to, headers = httpx.URL(owner), request.headers.copy()
        path = to.raw_path.rstrip(b"/") + request.url.raw_path
        url = request.url.copy_with(scheme=to.scheme, host=to.host, port=to.port, raw_path=path)
        headers["Host"] = to.netloc.decode("ascii")
        return await self._transport.handle_async_request(
            httpx.Request(request.method, url, headers=headers, stream=request.stream, extensions=request.extensions)
        )

    async def _taken(self, response: httpx.Response) -> httpx.Response | Redirect:
        """The response, not read yet; or what `guard` said instead of admitting the request."""
        kind = response.headers.get("Content-Type", "")
        if response.status_code not in (307, 503) or not kind.startswith("application/json"):
            return response
        read = response
        if not response.is_closed:
            status, headers, extensions = response.status_code, response.headers, response.extensions
            body = httpx.ByteStream(b"".join([part async for part in response.aiter_raw()]))
            read, response = (
                httpx.Response(status, headers=headers, stream=body, extensions=extensions) for _ in range(2)
            )
        try:
            await read.aread()
            return Redirect.from_json(read.json()) or response
        except (ValueError, httpx.DecodingError):
            return response

    async def aclose(self) -> None:
        """Close what carries the requests; the router stays open."""
        await self._transport.aclose()
