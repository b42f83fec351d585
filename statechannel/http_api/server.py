"""The HTTP server of the admin API: uvicorn on a loop of its own, in a thread, so that no client holds up the broker's loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from statechannel.broker.observe.endpoint import url_of
from statechannel.errors import StateChannelError
from statechannel.http_api.access import trusted_proxies
from statechannel.logger import SafeLogger

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from statechannel.settings.groups_cluster import HttpSettings

_log = SafeLogger(__name__)

_HEADER_MAX_BYTES: Final = 32_768
_BACKLOG: Final = 128
_KEEP_ALIVE_S: Final = 15
_CLOSE_S: Final = 5.0


class HttpPortError(StateChannelError):
    """The port of the admin API cannot be opened, or its certificate cannot be used."""


class BoundedProtocol(H11Protocol):
    """A connection whose header must arrive in time, and whose client must take what is sent; one too many is closed.

    It passes the client's certificate on.
    """

    receive_timeout_s = 10.0
    connections_max = 300
    handshakes: set[TlsHandshake] = set()  # noqa: RUF012 - each server makes a class with a set of its own
    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.access_log = False  # each action has a line of our own
        certificate = common_name(transport.get_extra_info("peercert"))
        self.app_state = {**self.app_state, "client_certificate": certificate}
        if len(self.connections) + len(self.handshakes) > self.connections_max:
            transport.abort()
            return
        self._start_header_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._start_header_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_header_timer()
        self._cancel_write_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self._write_timer or self.loop.call_later(self.receive_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_write_timer()
        super().resume_writing()

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _start_header_timer(self) -> None:
        """Limit the time until the next header; a request under way is bounded by the application."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._cancel_header_timer()
        elif self._header_timer is None and not self.transport.is_closing():
            self._header_timer = self.loop.call_later(self.receive_timeout_s, self.transport.abort)

    def _cancel_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


class TlsHandshake(asyncio.Protocol):
    """A connection until its TLS handshake is done: it counts as a connection, and has the time limit of a header.

    asyncio makes the handshake of a server's connections before a protocol learns of them; here it begins after the count.

    Args:
        inner: Takes the connection over.
    """

    def __init__(self, inner: BoundedProtocol, context: ssl.SSLContext) -> None:
        self._inner = inner
        self._context = context
        self._task: asyncio.Task[None] | None = None
        self._early_bytes = bytearray()

    def data_received(self, data: bytes) -> None:
        """Keep what the client sends between the end of the handshake and the take-over, a turn of the loop later."""
        self._early_bytes += data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, and begin the handshake."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"a TCP connection has the transport {transport!r}")
        inner = self._inner
        if len(inner.connections) + len(inner.handshakes) >= inner.connections_max:
            transport.abort()
            return
        transport.pause_reading()  # what comes now is for TLS
        inner.handshakes.add(self)
        self._task = inner.loop.create_task(self._handshake(transport))

    async def _handshake(self, transport: asyncio.Transport) -> None:
        inner = self._inner
        secured = None
        try:
            secured = await inner.loop.start_tls(
                transport, self, self._context, server_side=True, ssl_handshake_timeout=inner.receive_timeout_s
            )
        except (OSError, TimeoutError):  # ssl.SSLError is one
            transport.abort()
        finally:
            inner.handshakes.discard(self)
        if secured is not None and not secured.is_closing():
            secured.set_protocol(inner)
            inner.connection_made(secured)
            if self._early_bytes and not secured.is_closing():
                inner.data_received(bytes(self._early_bytes))


def common_name(certificate: Any) -> str | None:
    """Common name of a client's certificate that TLS has verified."""
    for part in (certificate or {}).get("subject", ()):
        for name, value in part:
            if name == "commonName":
                return str(value)
    return None


class Served(NamedTuple):
    """What a server serves.

    Attributes:
        app: The application.
        start: Called in the server's loop before the first request.
        close: Called in the server's loop after the last one.
        end_streams: Called in the server's loop when it stops, before it waits for answers under way and closes connections.
    """

    app: ASGIApp
    start: Callable[[], None]
    close: Callable[[], Awaitable[None]]
    end_streams: Callable[[], Awaitable[None]]


class _StreamEndingServer(uvicorn.Server):
    """Ends streams before it waits for their connections: a reader learns why its stream ends, and where it is to resume."""

    def __init__(self, config: uvicorn.Config, served: Served) -> None:
        super().__init__(config)
        self._served = served

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._served.end_streams()
        await super().shutdown(sockets)


@contextlib.contextmanager
def _drop_uvicorn_logs() -> Iterator[None]:
    """Drop what uvicorn logs in this thread. Its loggers are left as they are: the process may have a uvicorn of its own."""
    thread, logger = threading.get_ident(), logging.getLogger("uvicorn.error")

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)


def _with_handshake(protocol: type[BoundedProtocol], context: ssl.SSLContext) -> Callable[..., TlsHandshake]:
    return lambda **arguments: TlsHandshake(protocol(**arguments), context)


class HttpServer:
    """One server.

    Args:
        make: Makes what is served, in the server's loop.

    Attributes:
        url: Where it is served.
    """

    def __init__(self, settings: HttpSettings, make: Callable[[], Served], *, broker: str = "") -> None:
        self._settings = settings
        self._make = make
        self._log = _log.bound(broker=broker)
        self._thread: threading.Thread | None = None
        self._server: uvicorn.Server | None = None
        self._socket: socket.socket | None = None
        self._begun = threading.Event()
        self._error: BaseException | None = None
        self.url = ""

    def start(self) -> str:
        """Open the port and serve; returns the URL. May be called from any thread.

        Raises:
            HttpPortError: The port is in use, or the address is not one of this machine; or a certificate is unusable.
        """
        settings = self._settings
        self._socket = _opened(settings.address, settings.port or 0)
        port = int(self._socket.getsockname()[1])
        self.url = url_of(settings.address, port)
        if settings.tls_certificate is not None:
            self.url = self.url.replace("http://", "https://", 1)
        self._thread = threading.Thread(target=self._run, name="statechannel-http-api", daemon=True)
        self._thread.start()
        self._begun.wait()
        if self._error is not None:
            self.close()
            raise HttpPortError(
                f"the admin API cannot be served on port {port}: {self._error}",
                hint="Check http.tls_certificate, http.tls_key and http.tls_client_ca.",
            ) from self._error
        self._log.info("http-served", url=self.url, authenticated=bool(settings.access_file or settings.oidc_issuer))
        return self.url

    def _run(self) -> None:
        try:
            # asyncio's own loop, whichever policy the embedder has: on uvloop the handshake of TLS does not begin.
            with _drop_uvicorn_logs(), asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._error = error
            if self._begun.is_set():
                self._log.exception("http-server-failed")
        finally:
            self._begun.set()

    async def _serve(self) -> None:
        settings = self._settings
        served = self._make()
        limits = {"receive_timeout_s": settings.receive_timeout_s, "connections_max": settings.connections_max}
        protocol = type("_Protocol", (BoundedProtocol,), {**limits, "handshakes": set()})
        config = uvicorn.Config(
            served.app,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            server_header=False,
            forwarded_allow_ips=trusted_proxies(settings),
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=_HEADER_MAX_BYTES,
            ssl_certfile=settings.tls_certificate,
            ssl_keyfile=settings.tls_key,
            ssl_ca_certs=None if settings.tls_client_ca is None else str(settings.tls_client_ca),
            ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_REQUIRED,
        )
        config.load()
        if (context := config.ssl) is not None:
            config.ssl, config.http_protocol_class = None, _with_handshake(protocol, context)  # type: ignore[assignment]
        self._server = _StreamEndingServer(config, served)
        served.start()
        self._begun.set()
        try:
            await self._server.serve(sockets=[self._socket] if self._socket is not None else None)
        finally:
            await served.close()

    def close(self) -> None:
        """Close the port and all connections; bounded. May be called from any thread but the server's."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        if self._socket is not None:
            self._socket.close()


def _opened(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # Only where the protocol is named does asyncio send at once (TCP_NODELAY); else answers wait 40 ms for the client's ACK.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((address, port))
        opened.listen(_BACKLOG)
    except OSError as error:
        opened.close()
        raise HttpPortError(
            f"the port {port} of the admin API on {address} cannot be opened: {error.strerror or error}",
            hint="Choose another http.port or http.address, or none.",
        ) from error
    return opened
