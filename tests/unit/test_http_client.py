"""Servers that answer with junk, drip, send too much or never end: an error with a reason, in time."""

import gzip
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from statechannel.embedded.process import find_free
from statechannel.http_client import (
    REFUSED_BODY_MAX_BYTES,
    HttpRefusedError,
    HttpTooLongError,
    HttpUnansweredError,
    get,
    is_http_url,
)

_WHOLE_S = 60.0
OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def answering(first: bytes, again: bytes = b"", every_s: float = 0.02) -> Iterator[str]:
    """A server that sends `first`, then `again` until the client closes; its address."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        connection.recv(1 << 16)
                        connection.sendall(first)
                        while again and not over.wait(every_s):
                            connection.sendall(again)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join(_WHOLE_S)


def test_the_body_of_an_answer() -> None:
    with answering(OK + b"Content-Length: 4\r\n\r\nbody") as url:
        assert get(url, timeout_s=_WHOLE_S, max_bytes=4) == b"body"
    with answering(OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n") as url:
        assert get(url, timeout_s=_WHOLE_S, max_bytes=4) == b"body"


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\xff junk\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc",
        OK + b"Transfer-Encoding: chunked\r\n\r\nff\r\nabc",
        OK + b"Content-Length: 100\r\n\r\nkafka_log_log_size 12",
        b"HTTP/1.1 200 " + b"x" * 70_000,
        OK + b"A: " + b"x" * 70_000,
        OK + b"A: 1\r\n" * 40_000 + b"\r\n",
        b"HTTP/1.1 200 \x1b[31mOK\r\nA: \x1b[31m\r\n\x1b",
        b"",
    ],
)
def test_an_answer_that_is_not_http_or_is_cut_short_gives_a_reason(answer: bytes) -> None:
    with answering(answer) as url, pytest.raises(HttpUnansweredError) as failed:
        get(url, timeout_s=_WHOLE_S, max_bytes=1_000)
    assert "not HTTP" in str(failed.value) or "reset" in str(failed.value).lower()
    assert str(failed.value).isprintable()
    assert failed.value.retryable


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (OK + b"A: ", b"a"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (OK + b"\r\n", b"a"),
        (b"HTTP/1.1 500 no\r\nA: ", b"a"),
    ],
)
def test_an_answer_that_drips_ends_in_time_also_within_its_headers(first: bytes, again: bytes) -> None:
    begun_s = time.monotonic()
    with answering(first, again) as url, pytest.raises(HttpUnansweredError, match=r"not there whole after 0\.3 s"):
        get(url, timeout_s=0.3, max_bytes=1_000_000)
    assert time.monotonic() - begun_s < _WHOLE_S


def test_a_body_is_bounded_by_the_bytes_that_were_sent() -> None:
    with (
        answering(OK + b"\r\n", b"x" * 60_000) as url,
        pytest.raises(HttpTooLongError, match="longer than 100000 bytes"),
    ):
        get(url, timeout_s=_WHOLE_S, max_bytes=100_000)
    bomb = gzip.compress(bytes(10_000_000))
    head = OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    with answering(head + bomb) as url:
        assert get(url, timeout_s=_WHOLE_S, max_bytes=len(bomb)) == bomb


@pytest.mark.parametrize(("status", "retryable"), [(301, False), (404, False), (429, True), (500, True), (503, True)])
def test_another_status_is_a_refusal_with_its_body(status: int, retryable: bool) -> None:
    head = b"HTTP/1.1 %d No\x07way\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 20000\r\n\r\n" % status
    with answering(head + b"x" * 20_000) as url, pytest.raises(HttpRefusedError) as refused:
        get(url, timeout_s=_WHOLE_S, max_bytes=10)
    assert (refused.value.status, refused.value.retryable) == (status, retryable)
    assert refused.value.body == b"x" * REFUSED_BODY_MAX_BYTES
    assert str(refused.value).isprintable()


def test_no_server_and_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with pytest.raises(HttpUnansweredError, match="refused"):
        get(f"http://127.0.0.1:{find_free()}/", timeout_s=_WHOLE_S, max_bytes=10)
    with answering(OK + b"Content-Length: 0\r\n\r\n") as url:
        assert get(url, timeout_s=_WHOLE_S, max_bytes=10) == b""


@pytest.mark.parametrize(
    "url",
    [
        "http://h h/",
        "http://h\n/",
        "http://h/\u20ac",
        "http://h/\x1b[31m",
        "ftp://h/",
        "h:80",
        "http://",
        "http://h:x/",
        "http://h:0/",
        "http://[h/",
    ],
)
def test_an_address_that_no_request_can_hold(url: str) -> None:
    assert not is_http_url(url)


@pytest.mark.parametrize("url", ["http://h", "https://h:8443/a?b=c", "http://[::1]:80/"])
def test_an_address_of_a_server(url: str) -> None:
    assert is_http_url(url)
