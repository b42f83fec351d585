"""HTTP endpoint for monitoring: bounded in every way, read-only, outside the event loop.

A client that is slow or idle occupies one of a few threads for a few seconds, and nothing else.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any

import orjson

from statechannel.errors import StateChannelError
from statechannel.logger import SafeLogger

_log = SafeLogger(__name__)

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
_PATH_CHARACTERS = 200
_CHUNK_BYTES = 65_536
_POLL_S = 0.2
_GIVEN_BACK_S = 1.0
"""Longest wait for the place of a closed connection."""


class MetricsPortError(StateChannelError):
    """The port of the endpoint cannot be opened."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Answer of a route.

    Attributes:
        body: Complete, or in parts that are generated during sending.
    """

    status: int
    kind: str
    body: bytes | Iterable[bytes]

    @classmethod
    def json(cls, fields: Mapping[str, Any], status: int = HTTPStatus.OK) -> HttpAnswer:
        return cls(status, JSON, orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE))


Route = Callable[[], HttpAnswer]


class Endpoint:
    """Serves routes by GET (and HEAD), in its own threads.

    Args:
        connections_max: Maximum number of concurrent connections. One more displaces the one that has been silent longest;
            if all have sent requests, it is closed at once.
        on_answer: Called with path (`other` if unknown) and status of each answer.
        on_refused: Called for each connection closed because of the limit.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        *,
        connections_max: int = 8,
        timeout_s: float = 10.0,
        on_answer: Callable[[str, int], None] | None = None,
        on_refused: Callable[[], None] | None = None,
        broker: str = "",
    ) -> None:
        self.log = _log.bound(broker=broker)
        self.routes = dict(routes)
        self.connections_max = connections_max
        self.timeout_s = timeout_s
        self._on_answer = on_answer
        self._on_refused = on_refused
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int | None:
        return None if self._server is None else int(self._server.server_port)

    def serve(self, port: int, address: str = "127.0.0.1") -> int:
        """Open the port and serve; returns the port (0 picks a free one).

        Raises:
            MetricsPortError: The port is in use, or the address is not one of this machine.
        """
        try:
            self._server = _Server(self, address, port)
        except OSError as error:
            raise MetricsPortError(
                f"The port {port} for metrics on {address} cannot be opened: {error.strerror or error}.",
                hint="Choose another port (observe.metrics_port) or address (observe.metrics_address), or none.",
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="statechannel-http", daemon=True
        )
        self._thread.start()
        return int(self._server.server_port)

    def answered(self, path: str, status: int) -> None:
        if self._on_answer is not None:
            self._on_answer(path, status)

    def refused(self) -> None:
        if self._on_refused is not None:
            self._on_refused()

    def close(self) -> None:
        """Close the port; connections that are open end by their own time-out."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            if self._thread is not None:
                self._thread.join(5.0)
            self._server = self._thread = None


def url_of(address: str, port: int) -> str:
    """The URL of an endpoint for others: a wildcard address is replaced by the host name."""
    try:
        ip = ip_address(address)
    except ValueError:
        return f"http://{address}:{port}"
    if ip.is_unspecified:
        return f"http://{socket.gethostname()}:{port}"
    return f"http://[{ip}]:{port}" if ip.version == 6 else f"http://{ip}:{port}"  # noqa: PLR2004


class _Server(ThreadingHTTPServer):
    """A bounded number of threads, one per connection."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, endpoint: Endpoint, address: str, port: int) -> None:
        self.endpoint = endpoint
        self._room = threading.BoundedSemaphore(endpoint.connections_max)
        self._silent: dict[socket.socket, None] = {}  # those that have not asked yet, the oldest first
        self._silent_lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, port), _Handler)

    def server_bind(self) -> None:
        """Bind without the library's name service query for our own name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Accept the connection if there is room, or displace a silent one: a probe must get through."""
        if not self._room.acquire(blocking=False):
            self.endpoint.refused()
            if not (self._cut_oldest_silent() and self._room.acquire(timeout=_GIVEN_BACK_S)):
                self.shutdown_request(request)
                return
        with self._silent_lock:
            self._silent[request] = None
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._leaves(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve the connection in its thread, with a time limit."""
        ends = threading.Timer(self.endpoint.timeout_s, _cut, (request,))
        ends.daemon = True
        try:
            ends.start()
            super().process_request_thread(request, client_address)
        except RuntimeError:  # the machine has no thread left for the timer
            self.handle_error(request, client_address)
            self.shutdown_request(request)
        finally:
            ends.cancel()
            self._leaves(request)

    def asked(self, request: socket.socket) -> None:
        """Note that it has sent a complete request, and may not be displaced any more."""
        with self._silent_lock:
            self._silent.pop(request, None)

    def _leaves(self, request: socket.socket) -> None:
        self.asked(request)
        self._room.release()

    def _cut_oldest_silent(self) -> bool:
        with self._silent_lock:
            oldest = next(iter(self._silent), None)
            if oldest is None:
                return False
            del self._silent[oldest]
        _cut(oldest)
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the library's signature
        """Ignore a client that disconnected or was cut off."""
        self.endpoint.log.debug("http-connection-failed", error=type(sys.exception()).__name__)


def _cut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is closed already


class _Handler(BaseHTTPRequestHandler):
    """One request a connection. The library bounds its lines (64 KiB) and the number of its headers (100)."""

    server: _Server
    server_version = "statechannel"
    sys_version = ""

    def setup(self) -> None:
        """Set a time-out on waits; the server's timer ends slow connections."""
        self.request.settimeout(self.server.endpoint.timeout_s)
        super().setup()

    def do_GET(self) -> None:
        self._serve(body=True)

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def _serve(self, *, body: bool) -> None:
        self.server.asked(self.request)
        endpoint = self.server.endpoint
        path = self.path.partition("?")[0][:_PATH_CHARACTERS].rstrip("/") or "/"
        route = endpoint.routes.get(path)
        if route is None:
            answer = HttpAnswer.json({"error": "no such page", "pages": sorted(endpoint.routes)}, HTTPStatus.NOT_FOUND)
        else:
            answer = _answered(route, endpoint.log)
        endpoint.answered(path if route is not None else "other", answer.status)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        whole = answer.body if isinstance(answer.body, bytes) else None
        if whole is not None:
            self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        if not body:
            return
        if whole is not None:
            self.wfile.write(whole)
        else:
            for chunk in _chunks(answer.body):
                self.wfile.write(chunk)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's signature
        """Do not log probes, which arrive every few seconds: they are counted."""


def _answered(route: Route, log: SafeLogger) -> HttpAnswer:
    try:
        return route()
    except StateChannelError as error:
        return HttpAnswer.json({"error": str(error), "hint": error.hint}, HTTPStatus.SERVICE_UNAVAILABLE)
    except Exception as error:
        log.exception("http-route-failed")
        return HttpAnswer.json({"error": type(error).__name__}, HTTPStatus.INTERNAL_SERVER_ERROR)


def _chunks(parts: Any) -> Iterable[bytes]:
    """Join small parts, to avoid a system call per line."""
    held = bytearray()
    for part in parts:
        held += part
        if len(held) >= _CHUNK_BYTES:
            yield bytes(held)
            held.clear()
    yield bytes(held)
