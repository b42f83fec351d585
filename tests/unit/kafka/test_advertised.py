"""What is said where Kafka answers, and tells clients to use an address that they cannot reach."""

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import trustme

from statechannel.kafka.advertised import require_advertised
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaUnavailableError

API_VERSIONS, METADATA = 18, 3
Advertise = Callable[[str], tuple[str, int]]


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def answer_to(api: int, version: int, host: str, port: int) -> bytes:
    if api == API_VERSIONS:
        known = ((API_VERSIONS, 0, 0), (METADATA, 0, 1))
        refused = 35 if version > 0 else 0  # UNSUPPORTED_VERSION: the client asks again with version 0
        return struct.pack(">hi", refused, len(known)) + b"".join(struct.pack(">hhh", *api) for api in known)
    broker = struct.pack(">i", 1) + text(host) + struct.pack(">ih", port, -1)
    return struct.pack(">i", 1) + broker + struct.pack(">ii", 1, 0)


def serve(connection: socket.socket, host: str, port: int) -> None:
    with connection, connection.makefile("rb") as requests:
        while size := requests.read(4):
            api, version, correlation = struct.unpack(">hhi", requests.read(struct.unpack(">i", size)[0])[:8])
            body = struct.pack(">i", correlation) + answer_to(api, version, host, port)
            connection.sendall(struct.pack(">i", len(body)) + body)


@contextmanager
def kafka(advertised: tuple[str, int] | None, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """A listener that answers as Kafka does, and names this address, or its own, as that of its only broker; its port."""
    server = socket.create_server(("127.0.0.1", 0))
    own = server.getsockname()[:2]

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

    def talk(connection: socket.socket) -> None:
        with suppress(OSError):
            serve(connection if tls is None else tls.wrap_socket(connection, server_side=True), *(advertised or own))

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield own[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def refusal(port: int, properties: dict[str, str] | None = None) -> str:
    with pytest.raises(KafkaUnavailableError) as caught:
        require_advertised(ClientSettings(f"127.0.0.1:{port}", properties or {}))
    assert "advertised.listeners" in caught.value.hint
    assert caught.value.address == f"127.0.0.1:{port}"
    return str(caught.value)


@pytest.mark.parametrize(
    ("host", "why"),
    [("kafka.invalid", "resolve"), ("127.0.0.1", "refused"), ("::1", "refused"), ("a b", "not a Kafka address")],
)
def test_an_address_that_cannot_be_reached_is_named_with_the_reason(host: str, why: str) -> None:
    port = closed_port()
    with kafka((host, port)) as asked:
        said = refusal(asked)
    assert f"Kafka at 127.0.0.1:{asked} answers" in said
    assert host in said
    assert str(port) in said
    assert why in said


def test_a_host_that_does_not_answer_is_named() -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, kafka(silent.getsockname()) as asked:
        assert f"127.0.0.1:{silent.getsockname()[1]}" in refusal(asked)


def test_a_name_that_the_certificate_does_not_have_is_named(tmp_path: Path) -> None:
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    root = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(root)
    properties = {"security.protocol": "SSL", "ssl.ca.location": str(root)}
    with ExitStack() as stack:
        other = stack.enter_context(kafka(None, server))
        asked = stack.enter_context(kafka(("localhost", other), server))
        said = refusal(asked, properties)
    assert f"localhost:{other}" in said
    assert "certificate" in said


def test_addresses_that_answer_are_no_reason() -> None:
    with kafka(None) as own:
        require_advertised(ClientSettings(f"127.0.0.1:{own}"))
        with kafka(("localhost", own)) as asked:
            require_advertised(ClientSettings(f"127.0.0.1:{asked}"))


def test_where_no_kafka_answers_nothing_is_known() -> None:
    require_advertised(ClientSettings(f"127.0.0.1:{closed_port()}"))
