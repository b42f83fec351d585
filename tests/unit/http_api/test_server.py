"""The server on a real port: clients that are slow, endless or too many, and its certificate."""

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import threading
import time

import httpx
import pytest
import trustme
from click.testing import Result
from typer.testing import CliRunner

from statechannel.cli.main import app
from statechannel.http_api.access import HttpAccessError, HttpCallers
from statechannel.http_api.application import application
from statechannel.http_api.change_stream import ChangesHub
from statechannel.http_api.extension import HttpExtraMissingError, make, require_extra
from statechannel.http_api.server import BoundedProtocol, HttpPortError, HttpServer, Served
from statechannel.http_api.serving import every_route
from tests.support.http_fakes import FakeCluster, FakeRequests, accept, change, http_settings
from tests.support.waits import WAIT_S, wait_until


@contextlib.contextmanager
def serving(prepare=lambda _: None, **http):
    """A server over fakes; the cluster is that of its loop, prepared before the first look at it."""
    settings = http_settings(**http)
    clusters = []

    def served() -> Served:
        cluster = FakeCluster(settings)
        prepare(cluster)
        clusters.append(cluster)
        hub = cluster.hub = ChangesHub(cluster, settings.http)
        routes = every_route(cluster, hub, FakeRequests(accept))
        return Served(application(routes, settings.http, HttpCallers(settings.http)), hub.start, hub.close, hub.close)

    server = HttpServer(settings.http, served)
    url = server.start()
    try:
        yield httpx.URL(url), clusters[0]
    finally:
        server.close()


def connected(url: httpx.URL) -> socket.socket:
    return socket.create_connection((url.host, url.port), timeout=WAIT_S)


def ended(connection: socket.socket) -> bool:
    """Whether the other side closes; waits for it."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionError:
        return True
    return True


def test_headers_that_do_not_come_are_given_up_and_others_are_served():
    with serving(receive_timeout_s=0.3) as (url, _):
        silent, slow, second = connected(url), connected(url), connected(url)
        slow.sendall(b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        second.sendall(b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /v1 HTTP/1.1\r\nX: ")
        ends_s = time.monotonic() + WAIT_S
        with httpx.Client(base_url=url) as client:
            assert client.get("/v1").status_code == 200
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < ends_s:
                slow.sendall(b"X: y\r\n")
                time.sleep(0.05)
        assert time.monotonic() < ends_s
        assert ended(silent)
        assert ended(second)
        with httpx.Client(base_url=url) as client:
            assert client.get("/v1").status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET /v1\r\n\r\n",
        b"GET /v1 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"x" * 100_000,
    ],
)
def test_what_is_not_http_is_refused(sent):
    with serving(receive_timeout_s=0.5) as (url, _):
        with connected(url) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(sent)
            assert b"Traceback" not in connection.recv(65_536)
        with httpx.Client(base_url=url) as client:
            assert client.get("/v1").status_code == 200


@pytest.mark.parametrize(
    ("proxies", "sent", "alone"),
    [
        (["127.0.0.1"], ["198.51.100.1", "198.51.100.2:4711", "evil, 198.51.100.3"], True),
        (["127.0.0.0/8", "10.0.0.0/8"], ["198.51.100.1, 10.1.2.3", "198.51.100.2, 10.1.2.3, 127.0.0.9"], True),
        (["127.0.0.1"], ["10.0.0.1, 198.51.100.1", "10.0.0.2, 198.51.100.1"], False),
        (["10.0.0.0/8"], ["198.51.100.1", "198.51.100.2"], False),
        ([], ["198.51.100.1", "198.51.100.2"], False),
        (["127.0.0.1"], ["2001:db8::1", "[2001:db8:0:1::1]:4711"], True),
        (["127.0.0.1"], ["2001:db8::1", "[2001:db8::2]:4711", "2001:DB8::ffff:3"], False),
        (["127.0.0.1"], ["198.51.100.1", "::ffff:198.51.100.1"], False),
        (["127.0.0.1"], ["unknown", "_hidden", "x" * 9_000, "198.51.100.1:80:80"], False),
    ],
)
def test_clients_behind_a_proxy_that_is_trusted_have_their_own_limits(proxies, sent, alone):
    with serving(requests_per_s=0.001, trusted_proxies=proxies) as (url, _), httpx.Client(base_url=url) as client:
        answers = [client.get("/v1", headers={"X-Forwarded-For": text}).status_code for text in sent]
        assert answers == [200] + [200 if alone else 429] * (len(sent) - 1)


@pytest.mark.parametrize("text", ["proxy.example.org", "*", "10.0.0.1/8"])
def test_what_is_no_address_is_no_proxy(text):
    with pytest.raises(HttpAccessError, match="trusted_proxies"):
        HttpCallers(http_settings(trusted_proxies=[text]).http)


def test_one_connection_too_many_is_closed():
    with serving(connections_max=3) as (url, _):
        held = [connected(url) for _ in range(3)]
        for connection in held:
            connection.sendall(b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert connection.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200"
        assert ended(connected(url))
        held[0].close()
        ends_s = time.monotonic() + WAIT_S
        while True:
            with contextlib.suppress(httpx.TransportError), httpx.Client(base_url=url) as client:
                if client.get("/v1").status_code == 200:
                    break
            assert time.monotonic() < ends_s


def test_changes_come_over_a_real_connection():
    with serving() as (url, cluster), httpx.Client(base_url=url, timeout=WAIT_S) as client:
        cluster.older = [change(offset) for offset in range(1, 10)]
        with client.stream("GET", "/v1/changes", params={"since": "5"}) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            ids = []
            for line in stream.iter_lines():
                ids += [line] if line.startswith("id: ") else []
                if len(ids) == 5:
                    break
        assert ids == [f"id: 0:{offset + 1}" for offset in range(5, 10)]


def test_a_reader_that_takes_nothing_is_cut_off():
    def prepare(cluster: FakeCluster) -> None:
        cluster.applied = {0: 60_000}
        cluster.older = [change(offset) for offset in range(1, 60_000)]

    with serving(prepare, receive_timeout_s=3.0) as (url, cluster):
        with connected(url) as connection:
            connection.sendall(b"GET /v1/changes?since=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert connection.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200"
            wait_until(lambda: cluster.hub.readers == 0)
        with httpx.Client(base_url=url) as client:
            assert client.get("/v1").status_code == 200


def test_a_reader_learns_that_the_process_stops():
    lines: list[str] = []
    begun = threading.Event()

    def read(url: httpx.URL) -> None:
        with httpx.Client(base_url=url, timeout=WAIT_S) as client, client.stream("GET", "/v1/changes") as stream:
            for line in stream.iter_lines():
                lines.append(line)
                begun.set()

    with serving() as (url, _):
        reader = threading.Thread(target=read, args=(url,))
        reader.start()
        assert begun.wait(WAIT_S)
    reader.join(WAIT_S)
    assert "event: cut-off" in lines
    assert json.loads(lines[-2].removeprefix("data: "))["reason"] == "stopped"


def test_another_uvicorn_of_the_process_keeps_its_logs():
    access, errors = logging.getLogger("uvicorn.access"), logging.getLogger("uvicorn.error")
    handler = logging.StreamHandler()
    access.addHandler(handler)
    before = [(log.level, log.propagate, list(log.handlers), list(log.filters)) for log in (access, errors)]
    try:
        with serving() as (url, _), httpx.Client(base_url=url) as client:
            assert client.get("/v1").status_code == 200
            during = [(log.level, log.propagate, list(log.handlers)) for log in (access, errors)]
        assert during == [state[:3] for state in before]
        assert [(log.level, log.propagate, list(log.handlers), list(log.filters)) for log in (access, errors)] == before
    finally:
        access.removeHandler(handler)


def test_uvicorn_says_nothing_of_this_server(caplog):
    caplog.set_level(logging.INFO)
    with serving() as (url, _), httpx.Client(base_url=url) as client:
        assert client.get("/v1").status_code == 200
        logging.getLogger("uvicorn.error").info("of another server")
    assert [record.message for record in caplog.records if record.name.startswith("uvicorn")] == ["of another server"]


def test_a_port_in_use_and_a_bad_certificate_are_errors(tmp_path):
    with serving() as (url, _), pytest.raises(HttpPortError, match=f"port {url.port}"), serving(port=url.port):
        pass
    (tmp_path / "bad.pem").write_text("no certificate")
    bad = str(tmp_path / "bad.pem")
    with pytest.raises(HttpPortError, match="cannot be served"), serving(tls_certificate=bad, tls_key=bad):
        pass


def test_certificates_of_clients_name_them(tmp_path):
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    known, unknown = (authority.issue_cert(f"{name}.example", common_name=name) for name in ("carl", "eve"))
    files = {name: str(tmp_path / f"{name}.pem") for name in ("certificate", "key", "ca", "carl", "eve")}
    server.cert_chain_pems[0].write_to_path(files["certificate"])
    server.private_key_pem.write_to_path(files["key"])
    authority.cert_pem.write_to_path(files["ca"])
    known.private_key_and_cert_chain_pem.write_to_path(files["carl"])
    unknown.private_key_and_cert_chain_pem.write_to_path(files["eve"])
    (tmp_path / "callers").write_text("carl operate cert:carl\n")
    tls = {"tls_certificate": files["certificate"], "tls_key": files["key"], "tls_client_ca": files["ca"]}
    with serving(access_file=str(tmp_path / "callers"), **tls) as (url, _):
        assert url.scheme == "https"

        def call(certificate: str | None) -> httpx.Response:
            context = ssl.create_default_context(cafile=files["ca"])
            if certificate:
                context.load_cert_chain(certificate)
            with httpx.Client(base_url=url, verify=context) as caller:
                return caller.get("/v1")

        assert call(files["carl"]).json()["caller"] == "carl"
        assert call(files["eve"]).json()["reason"] == "token-missing"
        with pytest.raises(httpx.TransportError):
            call(None)


def test_answers_are_sent_at_once(monkeypatch):
    """Header and body are two writes: with Nagle's algorithm the second waits for the client's delayed ACK."""
    without_delay = []
    begin = BoundedProtocol.connection_made

    def observed(self, transport):
        connection = transport.get_extra_info("socket")
        without_delay.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        begin(self, transport)

    monkeypatch.setattr(BoundedProtocol, "connection_made", observed)
    with serving() as (url, _), httpx.Client(base_url=url) as client:
        assert client.get("/v1").status_code == 200
    assert without_delay == [1]


def test_handshakes_count_as_connections_and_are_given_up(tmp_path):
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    files = {name: str(tmp_path / f"{name}.pem") for name in ("certificate", "key", "ca")}
    server.cert_chain_pems[0].write_to_path(files["certificate"])
    server.private_key_pem.write_to_path(files["key"])
    authority.cert_pem.write_to_path(files["ca"])
    tls = {"tls_certificate": files["certificate"], "tls_key": files["key"]}
    with serving(connections_max=3, receive_timeout_s=1.0, **tls) as (url, _):
        silent = [connected(url) for _ in range(3)]  # they never begin their handshake
        assert ended(connected(url))
        assert all(ended(connection) for connection in silent)
        context = ssl.create_default_context(cafile=files["ca"])
        with httpx.Client(base_url=url, verify=context) as client:
            assert client.get("/v1").status_code == 200


def test_without_a_port_there_is_no_extension_and_without_the_extra_an_error(monkeypatch):
    assert make(http_settings(port=None), {}) is None
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    with pytest.raises(HttpExtraMissingError, match="uvicorn") as missing:
        require_extra()
    assert "[http]" in missing.value.hint


def console(*args: str) -> Result:
    return CliRunner().invoke(app, ["console", "--bootstrap-servers", "127.0.0.1:1", *args])


def test_a_console_prints_tokens_and_refuses_to_be_open_to_a_network(tmp_path):
    token = json.loads(console("--new-token", "ann", "--role", "operate", "--output", "json").stdout)
    path = tmp_path / "callers"
    path.write_text(token["line"] + "\n")
    callers = HttpCallers(http_settings(access_file=str(path)).http)
    assert asyncio.run(callers.caller({"authorization": f"Bearer {token['token']}"}, None, "")).name == "ann"
    assert console("--new-token", "../ann").exit_code == 2
    refused = console("--address", "0.0.0.0")
    assert (refused.exit_code, "http.access_file" in refused.stderr) == (8, True)
