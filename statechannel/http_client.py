"""HTTP GET with a bound on the whole time and on the size of the answer.

Asks the named server only: it follows no redirect, which could lead into a private network, and uses no proxy of the
environment, which would be asked for the loopback and answer. Import it where a request is made: httpx takes long to load.
"""

from __future__ import annotations

import asyncio
import io
import os
import ssl
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit

import httpx

from statechannel.errors import StateChannelError
from statechannel.printable import printable

_CHUNK_BYTES: Final = 1 << 16
_CAUSE_MAX_CHARS: Final = 200
REFUSED_BODY_MAX_BYTES: Final = 10_000
"""Bytes kept of an answer that refuses."""


class HttpError(StateChannelError):
    """A request did not bring its answer."""


class HttpUnansweredError(HttpError):
    """No whole answer was received: the connection failed, broke off or timed out, or what came is not HTTP."""

    retryable = True


class HttpTooLongError(HttpError):
    """The answer is longer than the bound."""


class HttpRefusedError(HttpError):
    """The server answered with another status than 200.

    Attributes:
        status: Status code.
        body: The first bytes of the answer.
    """

    def __init__(self, message: str, *, status: int, body: bytes) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.retryable = status in {408, 425, 429, 500, 502, 503, 504}


def is_http_url(url: str) -> bool:
    """Whether it names a server, and fits into a request line."""
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and (parts.port is None or parts.port > 0)
            and url.isascii()
            and url.isprintable()
            and " " not in url
        )
    except ValueError:
        return False


def is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def is_private_url(url: str) -> bool:
    """Whether its answers cannot be replaced in transit."""
    parts = urlsplit(url) if is_http_url(url) else None
    return parts is not None and (parts.scheme == "https" or is_loopback(parts.hostname or ""))


def get(url: str, *, timeout_s: float, max_bytes: int, ca: Path | None = None) -> bytes:
    """The body of the answer.

    Args:
        url: As `is_http_url` accepts it.
        timeout_s: Bound from the connection to the last byte.
        max_bytes: Bound of the body.
        ca: Certificates (PEM) that sign the server's; None: those of the usual authorities.

    Raises:
        HttpRefusedError: The status is not 200.
        HttpTooLongError: The body is longer.
        HttpUnansweredError: No whole answer was received in time.
    """
    body = io.BytesIO()
    download(url, body, timeout_s=timeout_s, max_bytes=max_bytes, ca=ca)
    return body.getvalue()


def download(url: str, sink: IO[bytes], *, timeout_s: float, max_bytes: int, ca: Path | None = None) -> None:
    """Write the body of the answer into `sink`; arguments and errors as `get`."""
    asyncio.run(_stream_into(url, sink, timeout_s, max_bytes, ca))


async def _stream_into(url: str, sink: IO[bytes], timeout_s: float, max_bytes: int, ca: Path | None) -> None:
    try:
        await _download(url, sink, timeout_s, max_bytes, ca)
    except TimeoutError:
        raise HttpUnansweredError(f"timed out: the answer was not there whole after {timeout_s:g} s") from None
    except httpx.ProtocolError as error:
        raise HttpUnansweredError(f"the answer is not HTTP, or was cut short: {_cause(error)}") from None
    except httpx.TransportError as error:
        raise HttpUnansweredError(_cause(error)) from None


async def _download(url: str, sink: IO[bytes], timeout_s: float, max_bytes: int, ca: Path | None) -> None:
    # The time-outs of a client start again with each byte: the bound of the whole is asyncio's. Raw bytes are asked for
    # and counted, because a few bytes may decompress to very many.
    verify = True if ca is None else ssl.create_default_context(cafile=ca)
    client = httpx.AsyncClient(verify=verify, timeout=None, follow_redirects=False, trust_env=False)  # noqa: S113
    headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
    async with asyncio.timeout(timeout_s), client, client.stream("GET", url, headers=headers) as answer:
        if answer.status_code != httpx.codes.OK:
            raise await _refusal(answer)
        size_bytes = 0
        async for chunk in answer.aiter_raw(_CHUNK_BYTES):
            size_bytes += len(chunk)
            if size_bytes > max_bytes:
                raise HttpTooLongError(f"the answer is longer than {max_bytes} bytes")
            sink.write(chunk)


async def _refusal(answer: httpx.Response) -> HttpRefusedError:
    body = b""
    async for chunk in answer.aiter_raw(REFUSED_BODY_MAX_BYTES):
        body = chunk
        break
    words = f"HTTP {answer.status_code} {_shown(answer.reason_phrase)}".rstrip()
    return HttpRefusedError(words, status=answer.status_code, body=body)


def _cause(error: BaseException) -> str:
    """Sentence of the first error of the chain; the last says only that all attempts failed."""
    while True:
        origin = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__
        if origin is None:
            # asyncio puts an address where the system's sentence would be.
            number = error.errno if isinstance(error, OSError) else None
            system = os.strerror(number) if number is not None and number > 0 else ""
            return system or _shown(str(error)) or type(error).__name__
        error = origin


def _shown(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= _CAUSE_MAX_CHARS else f"{shown[:_CAUSE_MAX_CHARS]}..."
