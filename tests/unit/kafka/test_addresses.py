"""Addresses of Kafka that cannot be, and what a first look finds at those that can."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import trustme

from statechannel.kafka.addresses import (
    KafkaAddress,
    PortState,
    addresses_of,
    require_answer,
    require_listener,
    silence_of,
    state_of,
)
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import ClientSettingRefusedError, KafkaUnavailableError

API_VERSIONS_ANSWER = bytes.fromhex("0000000a00000001" + "0000" + "00000000")


def test_addresses() -> None:
    expected = [KafkaAddress("a", 1), KafkaAddress("b.example", 9092), KafkaAddress("::1", 3), KafkaAddress("c", 4)]
    assert addresses_of("a:1, b.example:9092,[::1]:3,SASL_SSL://c:4") == expected
    assert KafkaAddress("::1", 3).text == "[::1]:3"
    assert KafkaAddress("a", 1).text == "a:1"
    assert addresses_of("a" * 253 + ":65535") == [KafkaAddress("a" * 253, 65_535)]


@pytest.mark.parametrize("zone", ["eth0", "12", "br-1a2b", "wlan_0.5", "en0~x"])
def test_an_address_may_name_its_zone(zone: str) -> None:
    (address,) = addresses_of(f"[fe80::1%{zone}]:9092")
    assert address == KafkaAddress(f"fe80::1%{zone}", 9092)
    assert addresses_of(address.text) == [address]


@pytest.mark.parametrize(
    ("address", "protocol"),
    [
        ("SSL://a:9093", "PLAINTEXT"),
        ("ssl://a:9093", None),
        ("PLAINTEXT://a:1", "sasl_ssl"),
        ("b:1,SASL_SSL://a:1", "SSL"),
    ],
)
def test_an_address_with_another_protocol_than_the_clients_is_refused(address: str, protocol: str | None) -> None:
    properties = {} if protocol is None else {"security.protocol": protocol}
    scheme = address.rsplit(",", maxsplit=1)[-1].partition("://")[0].upper()
    with pytest.raises(ClientSettingRefusedError) as refused:
        ClientSettings(address, properties)
    said = f"is of a listener with {scheme}, and security.protocol is {(protocol or 'PLAINTEXT').upper()}."
    assert str(refused.value).endswith(said)
    assert f"security.protocol={scheme}" in refused.value.hint


@pytest.mark.parametrize("address", ["SSL://a:9093", "ssl://a:1,b:2", "a:1"])
def test_an_address_with_the_clients_protocol_is_taken(address: str) -> None:
    assert ClientSettings(address, {"security.protocol": "ssl"}).bootstrap_servers == address


NO_ADDRESSES = [
    ",",
    "http://a:9092",
    "a",
    "a:65536",
    "a:" + "9" * 5_000,
    "a:\u0663",
    "a" * 254 + ":1",
    "a:0",
    "a:b",
    ":9092",
]
NO_ADDRESSES += ["a b:9092", "a:9092/x", "a:1,b", "[fe80::1%]:9092", "[fe80::1%a b]:9092", "[%eth0]:9092"]


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_what_cannot_be_an_address_is_refused_at_once(text: str) -> None:
    with pytest.raises(ClientSettingRefusedError):
        ClientSettings(text)


@contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A listener on loopback that serves one connection after the other."""
    server = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                try:
                    serve(connection)
                except OSError:
                    continue

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def plain(connection: socket.socket) -> None:
    """Answer as Kafka without TLS: of anything but its own request it closes the connection."""
    if connection.recv(100)[:4] == bytes((0, 0, 0, 10)):
        connection.sendall(API_VERSIONS_ANSWER)


def test_kafka_without_tls() -> None:
    with listener(plain) as address:
        require_listener(address, "plaintext", 0.0)
        require_listener(address, "SASL_PLAINTEXT", 0.0)
        for protocol in ("ssl", "SASL_SSL"):
            with pytest.raises(KafkaUnavailableError, match="does not use TLS, which this client expects"):
                require_listener(address, protocol, 0.0)


def test_kafka_with_tls() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    def serve(connection: socket.socket) -> None:
        context.wrap_socket(connection, server_side=True)

    with listener(serve) as address:
        require_listener(address, "ssl", 0.0)
        with pytest.raises(KafkaUnavailableError, match="expects TLS, which this client does not use"):
            require_listener(address, "plaintext", 0.0)


def test_kafka_with_tls_that_refuses_other_requests_by_an_alert() -> None:
    def alert(connection: socket.socket) -> None:
        connection.recv(1_000)
        connection.sendall(bytes.fromhex("15030100020246"))

    with listener(alert) as address:
        require_listener(address, "ssl", 0.0)
        with pytest.raises(KafkaUnavailableError, match="expects TLS, which this client does not use"):
            require_listener(address, "plaintext", 0.0)


def test_the_host_is_named_in_the_first_message_of_tls() -> None:
    """A listener behind a router by names (SNI) is found by its name alone."""
    named: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    context.sni_callback = lambda _connection, name, _context: named.append(name)

    def serve(connection: socket.socket) -> None:
        context.wrap_socket(connection, server_side=True)

    with listener(serve) as address:
        require_listener(f"localhost:{address.rpartition(':')[2]}", "ssl", 0.0)
        require_listener(address, "ssl", 0.0)
    assert named == ["localhost", None]


def test_a_port_that_listens_without_an_answer_is_a_process_that_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as suspended:  # the kernel takes the connection, no program accepts it
        address = f"127.0.0.1:{suspended.getsockname()[1]}"
        require_listener(address, "plaintext", 0.0)
        assert silence_of(address, "plaintext") is PortState.NO_ANSWER
        assert silence_of(f"127.0.0.1:1,{address}", "SASL_SSL") is PortState.NO_ANSWER
    assert silence_of(address, "plaintext") is None, "nothing listens any more"
    with listener(plain) as address:
        assert silence_of(address, "plaintext") is None


def test_a_queue_of_connections_that_is_full_is_a_process_that_hangs_too() -> None:
    with ExitStack() as stack:
        suspended = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        place = suspended.getsockname()
        for _ in range(4):  # the kernel takes as many as its queue holds, and drops the rest
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(place)
        assert silence_of(f"127.0.0.1:{place[1]}", "plaintext") is PortState.NO_CONNECTION


def test_no_listener_and_no_such_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with listener(plain) as address:
        pass
    with pytest.raises(KafkaUnavailableError, match="refuses the connection") as refused:
        require_listener(address, "plaintext", 0.0)
    assert "refused_wait_s" in refused.value.hint

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "create_connection", unknown)
    with pytest.raises(KafkaUnavailableError, match=r"Kafka at nosuch:1 cannot be found: .*no such name"):
        require_listener("nosuch:1", "plaintext", 0.0)


def test_a_name_that_does_not_resolve_yet_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    connect, refusals = socket.create_connection, [socket.gaierror(socket.EAI_NONAME, "no such name")]

    def late(*where: Any, **how: Any) -> socket.socket:
        if refusals:
            raise refusals.pop()
        return connect(*where, **how)

    with listener(plain) as address:
        monkeypatch.setattr(socket, "create_connection", late)
        require_listener(address, "plaintext", within_s=60.0)
    assert refusals == []


def close_it(connection: socket.socket) -> None:
    """Say nothing."""
    connection.recv(100)


@pytest.mark.parametrize(
    ("serves", "answers"),
    [([plain], True), ([close_it], False), ([close_it, plain], True), ([], True), ([None, close_it], False)],
)
def test_a_program_that_takes_connections_and_says_nothing_is_no_kafka(serves: list[Any], answers: bool) -> None:
    """Where none takes connections that is left to the client."""
    with ExitStack() as stack:
        found = [stack.enter_context(listener(serve)) if serve else closed_address() for serve in serves]
        text = ",".join(found or [closed_address()])
        if answers:
            require_answer(text, "plaintext")
            return
        with pytest.raises(KafkaUnavailableError) as refused:
            require_answer(text, "plaintext")
        assert refused.value.address == text
        assert found[-1] in str(refused.value)
        assert state_of(found[-1], "plaintext") is PortState.CLOSED


def closed_address() -> str:
    with listener(plain) as address:
        pass
    return address


def test_no_more_than_three_addresses_are_asked() -> None:
    with listener(plain) as address:
        closed = closed_address()
        assert state_of(f"{closed},{closed},{address}", "plaintext") is PortState.ANSWERS
        assert state_of(f"{closed},{closed},{closed},{address}", "plaintext") is PortState.ABSENT


def test_the_first_of_several_that_answers_is_enough() -> None:
    with listener(plain) as gone:
        pass
    with listener(plain) as address:
        require_listener(f"{gone},{address}", "plaintext", 0.0)
        assert state_of(f"{gone},{address}", "plaintext") is PortState.ANSWERS
    assert state_of(f"{gone},{address}", "plaintext") is PortState.ABSENT


def test_silence_is_left_to_the_client_that_waits_for_it() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with server:
        require_listener(f"127.0.0.1:{server.getsockname()[1]}", "plaintext", 0.0)


def test_a_kafka_that_restarts_is_waited_for() -> None:
    with listener(plain) as address:
        pass
    port = int(address.rpartition(":")[2])
    again = threading.Event()

    def restart() -> None:
        with socket.create_server(("127.0.0.1", port)) as server:
            server.settimeout(60)
            connection, _ = server.accept()
            with connection:
                plain(connection)
            again.set()

    timer = threading.Timer(0.5, restart)
    timer.start()
    require_listener(address, "plaintext", within_s=60.0)
    timer.join()
    assert again.is_set()


@pytest.mark.parametrize("protocol", ["plaintext", "ssl"])
@pytest.mark.parametrize("words", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n"])
def test_a_port_of_something_else_is_named_as_that(protocol: str, words: bytes) -> None:
    def talk(connection: socket.socket) -> None:
        connection.recv(1024)
        connection.sendall(words)

    with listener(talk) as address, pytest.raises(KafkaUnavailableError) as refused:
        require_listener(address, protocol, 0.0)
    assert str(refused.value) == f"Kafka at {address} answers as another kind of server, no Kafka"
