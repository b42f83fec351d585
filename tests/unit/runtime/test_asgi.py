"""A broker within an ASGI server: its middleware on a test kit, and signals that wait for the hand-over."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from types import FrameType
from typing import Any

import httpx
import pytest

from statechannel.api import Admission, Redirect
from statechannel.asgi import TOGETHER_S, GuardMiddleware, NoChannelError, Receive, Scope, Send, channel_in_server
from statechannel.engine.cluster_view import BrokerSeen
from statechannel.errors import NotFoundError
from statechannel.router import Route
from statechannel.router.transport import RouterTransport
from statechannel.testing import ChannelKit, KitBroker
from tests.support.waits import until


async def service(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the generation by which it was admitted."""
    admission = scope["state"].get("admission")
    body = b"-" if admission is None else str(admission.generation).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def transport_of(**state: Any) -> httpx.ASGITransport:
    """To the service, behind the middleware."""
    guarded = GuardMiddleware(service, lambda scope: scope["path"][4:] if scope["path"].startswith("/kv/") else None)

    async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
        await guarded({**scope, "state": dict(state)}, receive, send)

    return httpx.ASGITransport(with_state)  # type: ignore[arg-type]


def client_of(broker: KitBroker) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=transport_of(channel=broker.channel), base_url=f"http://{broker.name}")


async def test_a_topic_is_assigned_by_its_first_request_and_others_lead_to_its_owner(channel_kit: ChannelKit) -> None:
    brokers = {name: await channel_kit.broker(name, listeners={"http": f"http://{name}/"}) for name in "ab"}
    await channel_kit.namespace("example/kv")
    topic, path = "example/kv/a key", "/kv/example/kv/a%20key?x=1"
    answers = {name: await client_of(broker).put(path) for name, broker in brokers.items()}
    owner = str(channel_kit.owner(topic))
    admitted = brokers[owner].channel.guard(topic)
    assert isinstance(admitted, Admission)
    served, sent = answers.pop(owner), answers.popitem()[1]
    assert (served.status_code, served.text) == (200, str(admitted.generation))
    assert (sent.status_code, sent.headers["location"]) == (307, f"http://{owner}{path}")
    assert sent.json()["broker"] == owner


async def test_what_is_of_no_topic_passes_and_what_nobody_can_serve_is_refused(channel_kit: ChannelKit) -> None:
    a, b = await channel_kit.broker("a"), await channel_kit.broker("b")  # without an address
    bundle, *_ = await channel_kit.namespace("example/kv")
    await channel_kit.own(bundle, "b")
    at_a = client_of(a)
    assert (await at_a.get("/health")).text == "-"
    assert (await at_a.get(f"/kv/{bundle}")).status_code == 503
    assert (await at_a.get("/kv/no/such/topic")).status_code == 404
    assert (await at_a.get("/kv/nonsense")).status_code == 404
    await b.stop()
    stopped = await client_of(b).get(f"/kv/{bundle}")
    assert (stopped.status_code, stopped.headers["retry-after"]) == (503, "1")


async def test_reads_go_on_where_a_bundle_is_being_released(channel_kit: ChannelKit) -> None:
    methods: list[bool] = []

    class Channel:
        def guard(self, topic: str, *, write: bool) -> Admission:
            methods.append(write)
            return Admission(topic, 7)

    async with httpx.AsyncClient(transport=transport_of(channel=Channel()), base_url="http://a") as client:
        for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
            await client.request(method, "/kv/t/n/x")
    assert methods == [False, False, True, True, True]


async def test_a_lifespan_that_yields_no_channel_is_named() -> None:
    async with httpx.AsyncClient(transport=transport_of(), base_url="http://a") as client:
        with pytest.raises(NoChannelError):
            await client.get("/kv/t/n/x")


class Brokers(httpx.AsyncBaseTransport):
    """To the brokers by their names; connections to those that are gone are refused."""

    def __init__(self, brokers: dict[str, KitBroker]) -> None:
        self.brokers, self.asked = brokers, list[str]()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.host)
        assert request.headers["Host"] == request.url.netloc.decode()
        broker = self.brokers[request.url.host]
        if not broker.alive:
            raise httpx.ConnectError("refused", request=request)
        return await transport_of(channel=broker.channel).handle_async_request(request)


async def test_a_client_by_router_follows_moves_and_deaths(channel_kit: ChannelKit) -> None:
    brokers = {name: await channel_kit.broker(name, listeners={"http": f"http://{name}:1"}) for name in "ab"}
    bundle, *_ = await channel_kit.namespace("example/kv")
    router = await channel_kit.router()
    carrier = Brokers(brokers)
    transport = RouterTransport(router, lambda request: request.url.path[4:], transport=carrier)
    async with httpx.AsyncClient(transport=transport, base_url="http://kv") as client:

        async def put() -> int:
            return int((await client.put(f"/kv/{bundle}", content=b"x")).raise_for_status().text)

        generation = await put()  # assigned by the router's request
        owner = str(channel_kit.owner(bundle))
        other = "ab".replace(owner, "")
        assert await channel_kit.own(bundle, other) > generation
        assert await put() > generation
        brokers[other].kill()
        generation = await put()
        assert channel_kit.owner(bundle) == owner
        assert carrier.asked[-1] == owner
        with pytest.raises(NotFoundError):
            await client.get("/kv/no/such/topic")


async def test_a_client_goes_where_a_redirect_leads_and_gives_up_in_the_end(channel_kit: ChannelKit) -> None:
    brokers = {name: await channel_kit.broker(name, listeners={"http": f"http://{name}"}) for name in "ab"}
    bundle, *_ = await channel_kit.namespace("example/kv")
    generation = await channel_kit.own(bundle, "a")

    class Behind:
        """A router that knows the first owner only."""

        async def wait(self, name: str, timeout_s: float, *, assign: bool) -> Route:
            return Route(bundle, "b", {"http": "http://b"}, generation - 1, 0, 0, 0.0, stale=False)

        def follow(self, name: str, redirect: Redirect) -> Route:
            return Route(bundle, str(redirect.broker), redirect.urls, redirect.generation, 0, 0, 0.0, stale=False)

        def brokers(self) -> list[BrokerSeen]:
            return brokers["a"].channel.brokers()

    carrier = Brokers(brokers)
    transport = RouterTransport(Behind(), lambda _: bundle, transport=carrier, patience_s=5.0)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://kv") as client:
        assert (await client.get(f"/kv/{bundle}")).text == str(generation)
        assert carrier.asked == ["b", "a"]
        brokers["b"].kill()
        with pytest.raises(httpx.ConnectTimeout):
            await client.get(f"/kv/{bundle}")


class Answers(httpx.AsyncBaseTransport):
    """Answers in turn; what came is kept."""

    def __init__(self, *answers: httpx.Response) -> None:
        self.answers, self.came = list(answers), list[tuple[str, str, bytes]]()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = b"".join([part async for part in request.stream])  # type: ignore[union-attr]
        self.came.append((str(request.url), request.headers.get("Cookie", ""), body))
        answer = self.answers.pop(0)
        return httpx.Response(answer.status_code, headers=answer.headers, stream=httpx.ByteStream(answer.content))


class Listed:
    """A router to whom `b` is known, and whom a redirect may lead anywhere."""

    async def wait(self, name: str, timeout_s: float, *, assign: bool) -> Route:
        return Route(name, "b", {"http": "http://b:1/at/"}, 1, 0, 0, 0.0, stale=False)

    def follow(self, name: str, redirect: Redirect) -> Route:
        return Route(name, str(redirect.broker), redirect.urls, redirect.generation, 0, 0, 0.0, stale=False)

    def brokers(self) -> list[BrokerSeen]:
        return [BrokerSeen("b", "b-1", True, True, 0.0, {"listeners": {"http": "http://b:1/at/"}})]


def by(carrier: Answers) -> httpx.AsyncClient:
    transport = RouterTransport(Listed(), lambda _: "t", transport=carrier)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://kv")


@pytest.mark.parametrize(("broker", "url"), [("evil", "http://evil.example"), ("b", "http://evil.example")])
async def test_no_redirect_leads_a_request_to_where_no_broker_is(broker: str, url: str) -> None:
    redirect = Redirect("other-owner", "it is there", "t", broker, {"http": url}, 9)
    carrier = Answers(httpx.Response(307, json=redirect.to_json()), httpx.Response(200))

    async def parts() -> AsyncIterator[bytes]:
        yield b"ra"
        yield b"in"

    async with by(carrier) as client:
        headers = {"Authorization": "Bearer secret"}
        assert (await client.put("/x?y=%2F", content=parts(), headers=headers)).status_code == 200
    assert carrier.came == [("http://b:1/at/x?y=%2F", "", b"rain")] * 2


async def test_what_the_app_answers_comes_as_it_is() -> None:
    busy = {"headers": {"Set-Cookie": "session=7"}, "json": {"detail": "busy"}}
    carrier = Answers(*(httpx.Response(503, **busy) for _ in range(2)))  # type: ignore[arg-type]
    async with by(carrier) as client:
        answer = await client.get("/x")
        assert (answer.json(), str(answer.url), answer.elapsed.total_seconds() >= 0) == (
            busy["json"],
            "http://kv/x",
            True,
        )
        async with client.stream("GET", "/x") as answer:
            assert b"".join([part async for part in answer.aiter_raw()]) == b'{"detail":"busy"}'
    assert [cookie for _, cookie, _ in carrier.came] == ["", "session=7"]


class SlowChannel:
    """Its hand-over ends when the test says so."""

    def __init__(self) -> None:
        self.leaving, self.left, self.shutdowns = asyncio.Event(), asyncio.Event(), 0

    async def __aenter__(self) -> "SlowChannel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    async def shutdown(self) -> None:
        self.shutdowns += 1
        self.leaving.set()
        await self.left.wait()


@pytest.mark.parametrize("patient", [True, False])
@pytest.mark.parametrize("at_once", [(), (signal.SIGINT, signal.SIGTERM)])
async def test_a_signal_reaches_the_server_after_the_hand_over_or_when_it_is_repeated(
    patient: bool, at_once: tuple[int, ...]
) -> None:
    """A supervisor passes on what its process group is sent, too: that comes at once, and is no impatience."""
    reached, channel = list[int](), SlowChannel()

    def server(number: int, frame: FrameType | None) -> None:
        reached.append(number)

    before = {number: signal.signal(number, server) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        async with channel_in_server(channel):  # type: ignore[arg-type]
            for number in (signal.SIGTERM, *at_once):
                os.kill(os.getpid(), number)
            await channel.leaving.wait()
            early = list(reached)
            if patient:
                channel.left.set()
            else:
                await asyncio.sleep(TOGETHER_S)
                os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: reached)
            channel.left.set()
        assert early == []
        assert signal.getsignal(signal.SIGTERM) is server
        await until(lambda: all(task.get_name() != "hand-over-first" for task in asyncio.all_tasks()))
        assert channel.shutdowns == 2, "the second one finds it closed"
        assert reached == [signal.SIGTERM], "once"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
