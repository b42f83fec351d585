"""Servers of metrics that answer with junk, drip, or never end: a reason, in time, and never another exception."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import orjson
import pytest

from loaddata.samples.prometheus_source import AnswerError, LaterError, checked_url, get, make, part_of, vector_of
from loaddata.samples.sources import SourceError, SourceOptions

_WHOLE_S = 30.0


@contextmanager
def answering(first: bytes, again: bytes = b"", every_s: float = 0.02) -> Iterator[str]:
    """A server that sends `first`, then `again` until nobody reads any more; its address."""
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


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\xff junk\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nabc",
        b"HTTP/1.1 200 " + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\n" + b"A: 1\r\n" * 200 + b"\r\n",
    ],
)
def test_what_is_not_http_is_a_reason(answer: bytes) -> None:
    with answering(answer) as url, pytest.raises(AnswerError) as refused:
        get(url, timeout_s=_WHOLE_S, bytes_max=1_000)
    assert "not HTTP" in str(refused.value) or "reset" in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("first", "again"),
    [(b"HTTP/1.1 200 OK\r\nA: ", b"a"), (b"", b"HTTP/1.1 100 Continue\r\n\r\n"), (b"HTTP/1.1 200 OK\r\n\r\n", b"a")],
)
def test_an_answer_that_drips_ends_in_time_also_within_its_headers(first: bytes, again: bytes) -> None:
    begun_s = time.monotonic()
    with answering(first, again) as url, pytest.raises(LaterError, match=r"not there whole after 0\.3 s"):
        get(url, timeout_s=0.3, bytes_max=1_000_000)
    assert time.monotonic() - begun_s < _WHOLE_S


def test_half_an_answer_is_none() -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nkafka_log_log_size 12"
    with answering(half) as url, pytest.raises(LaterError, match="cut short: 79 bytes are missing"):
        get(url, timeout_s=_WHOLE_S, bytes_max=1_000)


@pytest.mark.parametrize("url", ["http://h h/", "http://h\n/", "http://h/\u20ac", "http://h/\x1b[31m"])
def test_an_address_that_no_request_can_hold_is_refused_at_once(url: str) -> None:
    with pytest.raises(SourceError, match="is not an address of metrics"):
        checked_url(url)


def test_a_partition_of_absurdly_many_digits_is_none() -> None:
    assert part_of({"topic": "t", "partition": "1" * 5_000}) is None
    assert part_of({"topic": "t", "partition": "7"}) == ("t", 7)
    with pytest.raises(SourceError, match="is not an address of metrics"):
        make(SourceOptions(endpoints=("1" * 5_000 + "=http://h/",)))


@pytest.mark.parametrize("metric", [{"instance": 5}, {"topic": None}, {"partition": {"a": 1}}])
def test_labels_that_are_no_texts_are_no_answer(metric: dict[str, object]) -> None:
    body = orjson.dumps(
        {"status": "success", "data": {"resultType": "vector", "result": [{"metric": metric, "value": [0, "1"]}]}}
    )
    with pytest.raises(AnswerError, match="a label is not text"):
        vector_of(body)
