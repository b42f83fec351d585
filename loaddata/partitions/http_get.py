"""One question to an HTTP server, with a bound on its time and on the length of its answer."""

from __future__ import annotations

import http.client
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from loaddata.partitions.sources import SourceError
from loaddata.partitions.strict_json import cut
from statechannel.no_redirect import NoRedirect

_CHUNK: Final = 1 << 16
_LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class AnswerError(Exception):
    """No usable answer came; the message says why, without what the address may hide."""


class LaterError(AnswerError):
    """None came, and a second try may bring one."""


def checked_url(url: str) -> str:
    """The address of a server of metrics.

    Raises:
        SourceError: It is none that may be asked.
    """
    try:
        parts = urlsplit(url)
        plain = url.isascii() and url.isprintable() and " " not in url  # what a request line can hold
        named = parts.scheme in {"http", "https"} and bool(parts.hostname) and plain
        signed = parts.username is not None
        _ = parts.port
    except ValueError:
        named = signed = False
    if not named:
        raise SourceError(f"{cut(url)} is no address of metrics", hint="Such as http://broker-1:7071/metrics.")
    if signed:
        raise SourceError(
            f"the address of metrics at {urlsplit(url).hostname} has a name or password in it",
            hint="Ask a Prometheus server that is allowed to read it, or put a proxy in front that adds it.",
        )
    return url


def get(url: str, *, timeout_s: float, bytes_max: int, retries: int = 0) -> bytes:
    """The answer's body.

    Args:
        url: As `checked_url` took it.
        timeout_s: Bound of each try, from the connection to the last byte.
        bytes_max: Longest body.
        retries: Further tries where the server is away or busy.

    Raises:
        AnswerError: There is none.
    """
    tries = Retrying(
        retry=retry_if_exception_type(LaterError),
        stop=stop_after_attempt(1 + retries),
        wait=wait_random_exponential(multiplier=0.1, max=2.0),
        reraise=True,
    )
    return tries(_once, url, timeout_s, bytes_max)


class _Asked(urllib.request.Request):
    """A request that knows its connections, so that they can be cut."""

    def __init__(self, url: str) -> None:
        super().__init__(url, headers={"Accept": "*/*"})
        self._connections: list[http.client.HTTPConnection] = []

    def making(self, kind: Callable[..., http.client.HTTPConnection]) -> Callable[..., Any]:
        """Makes connections as `kind` does, and remembers them."""

        def made(*args: Any, **more: Any) -> http.client.HTTPConnection:
            connection = kind(*args, **more)
            self._connections.append(connection)
            return connection

        return made

    def cut(self) -> None:
        """Whoever waits for the other side waits no longer: a time-out of a socket begins anew with each byte."""
        for connection in self._connections:
            if isinstance(connection.sock, socket.socket):
                try:
                    socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
                except OSError:
                    continue  # it is closed already


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: Any) -> http.client.HTTPResponse:
        return self.do_open(req.making(http.client.HTTPConnection), req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: Any) -> http.client.HTTPResponse:
        return self.do_open(req.making(http.client.HTTPSConnection), req)


_opener = urllib.request.OpenerDirector()
for _handler in (
    urllib.request.ProxyHandler({}),
    _Http(),
    _Https(),
    urllib.request.HTTPErrorProcessor(),
    urllib.request.HTTPDefaultErrorHandler(),
    NoRedirect(),
):
    _opener.add_handler(_handler)


def _once(url: str, timeout_s: float, bytes_max: int) -> bytes:
    ends_s = time.monotonic() + timeout_s
    late = f"timed out: the answer was not there whole after {timeout_s:g} s"
    request = _Asked(url)
    watch = threading.Timer(timeout_s, request.cut)
    watch.daemon = True
    watch.start()
    try:
        with _opener.open(request, timeout=timeout_s) as answer:
            parts: list[bytes] = []
            size = 0
            while chunk := answer.read1(_CHUNK):
                size += len(chunk)
                parts.append(chunk)
                if size > bytes_max:
                    raise AnswerError(f"the answer is longer than {bytes_max} bytes")
                if time.monotonic() > ends_s:
                    raise LaterError(late)
            if time.monotonic() > ends_s:  # an answer that was cut looks as if it had ended
                raise LaterError(late)
            if answer.length:
                raise LaterError(f"the answer was cut short: {answer.length} bytes are missing")
            return b"".join(parts)
    except urllib.error.HTTPError as error:
        words = f"HTTP {error.code} {cut(str(error.reason))}"
        raise (LaterError(words) if error.code in _LATER else AnswerError(words)) from None
    except (OSError, ValueError, http.client.HTTPException) as error:  # also URLError and time-outs
        words = str(getattr(error, "reason", error)).strip() or type(error).__name__
        if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
            words = f"the answer is not HTTP, or was cut short: {cut(words)}"
        raise LaterError(late if time.monotonic() > ends_s else words) from None
    finally:
        watch.cancel()
