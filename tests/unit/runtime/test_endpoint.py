"""The endpoint against clients of every kind."""

import contextlib
import http.client
import json
import socket
import threading
import time
from http import HTTPStatus

import pytest

from statechannel.broker.observe.endpoint import Endpoint, HttpAnswer, MetricsPortError, url_of
from statechannel.errors import StateChannelError
from tests.support.waits import WAIT_S, wait_until

BIG = b"x" * 32_000_000


class Noting:
    def __init__(self) -> None:
        self.answers: list[tuple[str, int]] = []
        self.refused = 0

    def refuse(self) -> None:
        self.refused += 1


def raises_known() -> HttpAnswer:
    raise StateChannelError("too busy", hint="Ask again.")


def raises_bug() -> HttpAnswer:
    raise ValueError("secret of the inside")


def pieces() -> HttpAnswer:
    return HttpAnswer(HTTPStatus.OK, "text/plain", (b"line\n" for _ in range(30_000)))


@contextlib.contextmanager
def endpoint(connections_max: int = 4, timeout_s: float = 5.0):
    noting = Noting()
    served = Endpoint(
        {
            "/here": lambda: HttpAnswer.json({"here": True}),
            "/known": raises_known,
            "/bug": raises_bug,
            "/pieces": pieces,
            "/big": lambda: HttpAnswer(HTTPStatus.OK, "text/plain", BIG),
        },
        connections_max=connections_max,
        timeout_s=timeout_s,
        on_answer=lambda path, status: noting.answers.append((path, status)),
        on_refused=noting.refuse,
    )
    port = served.serve(0)
    try:
        yield port, noting, served
    finally:
        served.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)


def get(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_pages_and_what_is_none() -> None:
    with endpoint() as (port, noting, _):
        assert get(port, "/here") == (200, b'{"here":true}\n')
        assert get(port, "/here/?x=1") == (200, b'{"here":true}\n')
        assert get(port, "/here", "HEAD") == (200, b"")
        status, body = get(port, "/elsewhere")
        assert (status, json.loads(body)["pages"][0]) == (404, "/big")
        assert get(port, "/here", "POST")[0] == 501
        status, body = get(port, "/known")
        assert (status, json.loads(body)) == (503, {"error": "too busy", "hint": "Ask again."})
        status, body = get(port, "/bug")
        assert (status, json.loads(body)) == (500, {"error": "ValueError"})  # what it says is for the log
        assert get(port, "/pieces") == (200, b"line\n" * 30_000)
    assert ("other", 404) in noting.answers
    assert ("/here", 200) in noting.answers


@contextlib.contextmanager
def talking(port: int, said: bytes):
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
        client.sendall(said)
        yield client


def ended_within(client: socket.socket, limit_s: float) -> bool:
    """Whether the other side has closed; what it had said is read."""
    client.settimeout(limit_s)
    try:
        while client.recv(65_536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


def test_too_long_a_request_is_refused() -> None:
    with endpoint() as (port, _, _), talking(port, b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n") as client:
        assert b"414" in client.recv(1_000)


def test_who_never_reads_loses_its_connection_and_holds_up_nobody() -> None:
    asked = b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n"
    with endpoint(connections_max=2, timeout_s=1.5) as (port, noting, served), talking(port, asked) as client:
        assert get(port, "/here")[0] == 200
        wait_until(lambda: ("/big", 200) in noting.answers, "it was asked")
        wait_until(lambda: served._server._room._value == 2, "both connections have ended")
        got = 0
        client.settimeout(WAIT_S)
        with contextlib.suppress(ConnectionError):
            while result := client.recv(1_000_000):
                got += len(result)
        assert got < len(BIG)


def test_who_never_asks_is_cut_off_also_if_it_trickles() -> None:
    begun = b"GET /here HTTP/1.1\r\n"
    with endpoint(timeout_s=1.0) as (port, _, _), talking(port, b"") as silent, talking(port, begun) as trickling:
        began_s = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began_s < WAIT_S:
                trickling.sendall(b"X")
                time.sleep(0.1)
        assert time.monotonic() - began_s < WAIT_S
        assert ended_within(silent, WAIT_S)


def test_one_connection_too_many_is_closed_at_once_and_there_is_room_again_later() -> None:
    asked = b"GET /big HTTP/1.1\r\n\r\n"
    with endpoint(connections_max=2, timeout_s=2 * WAIT_S) as (port, noting, _):
        with talking(port, asked), talking(port, asked):
            wait_until(lambda: len(noting.answers) == 2, "both have asked")
            with talking(port, b"GET /here HTTP/1.1\r\n\r\n") as third:
                assert ended_within(third, WAIT_S)
            assert noting.answers == [("/big", 200)] * 2
        until_s = time.monotonic() + WAIT_S
        status = 0
        while status != 200 and time.monotonic() < until_s:
            with contextlib.suppress(ConnectionError, http.client.HTTPException):
                status = get(port, "/here")[0]
        assert status == 200
    assert noting.refused >= 1


def test_a_probe_takes_the_place_of_who_has_been_silent_longest() -> None:
    with endpoint(connections_max=2, timeout_s=2 * WAIT_S) as (port, noting, served):
        with talking(port, b"") as oldest, talking(port, b"GET /here HTTP/1.1\r\n") as newer:
            wait_until(lambda: len(served._server._silent) == 2, "both are connected")
            assert get(port, "/here")[0] == 200
            assert ended_within(oldest, WAIT_S)
            newer.sendall(b"\r\n")
            assert b" 200 " in newer.recv(1_000)
        assert noting.refused == 1


def test_where_no_thread_is_left_the_connection_is_closed_and_its_room_given_back(monkeypatch) -> None:
    def none_left(_timer) -> None:
        raise RuntimeError("can't start new thread")

    with endpoint(connections_max=1, timeout_s=30.0) as (port, _, _):
        with monkeypatch.context() as patched:
            patched.setattr(threading.Timer, "start", none_left)
            with talking(port, b"") as client:
                assert ended_within(client, 5.0)
        assert get(port, "/here")[0] == 200


def test_a_port_that_is_taken_says_so() -> None:
    with endpoint() as (port, _, _), pytest.raises(MetricsPortError, match=str(port)) as raised:
        Endpoint({}).serve(port)
    assert "observe.metrics_port" in raised.value.hint


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9"),
        ("::1", "http://[::1]:9"),
        ("broker.example", "http://broker.example:9"),
        ("0.0.0.0", f"http://{socket.gethostname()}:9"),
    ],
)
def test_where_others_find_it(address, url) -> None:
    assert url_of(address, 9) == url
