"""Addresses of Kafka: their form, and a first look for a listener there, before clients retry for long."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from typing import Final, NamedTuple

from statechannel.kafka.errors import ClientSettingRefusedError, KafkaUnavailableError

USUAL_PORT: Final = 9092
_FORM: Final = "Kafka addresses are HOST:PORT, separated by commas: kafka1.example:9092,kafka2.example:9092."
_PROTOCOLS: Final = frozenset({"plaintext", "ssl", "sasl_plaintext", "sasl_ssl"})
_ADDRESS = re.compile(
    r"(?:(?P<scheme>[A-Za-z0-9_+.-]+)://)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.~-]+)?\]|[^\s:/\[\],]+)?"  # in brackets IPv6, perhaps with a zone
    r"(?::(?P<port>.*))?"
)
_HOST_MAX = 253
_PORT_MAX = 65_535


class KafkaAddress(NamedTuple):
    host: str
    port: int

    @property
    def text(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def addresses_of(text: str, protocol: str | None = None) -> list[KafkaAddress]:
    """The addresses in a list with commas.

    Args:
        protocol: `security.protocol` of the client; None: not known yet.

    Raises:
        ClientSettingRefusedError: One cannot be an address of Kafka, or is of a listener with another protocol.
    """
    addresses = [_address_of(word.strip(), protocol) for word in text.split(",") if word.strip()]
    if not addresses:
        raise ClientSettingRefusedError(f"`{text}` names no Kafka address.", hint=_FORM)
    return addresses


def _address_of(word: str, protocol: str | None) -> KafkaAddress:
    match = _ADDRESS.fullmatch(word)
    if match is None:
        raise ClientSettingRefusedError(f"`{word}` is not a Kafka address.", hint=_FORM)
    scheme, host, port = match["scheme"], match["host"], match["port"]
    if scheme is not None and scheme.lower() not in _PROTOCOLS:
        raise ClientSettingRefusedError(f"`{word}` is a URL, not a Kafka address.", hint=_FORM)
    if scheme is not None and protocol is not None and scheme.lower() != protocol.lower():
        wanted = scheme.upper()
        raise ClientSettingRefusedError(
            f"The Kafka address `{word}` is of a listener with {wanted}, and security.protocol is {protocol.upper()}.",
            hint=f"Set it: -X security.protocol={wanted}, or in the file of --kafka-config; or give the address of a "
            f"listener with {protocol.upper()}.",
        )
    if not host or len(host) > _HOST_MAX:
        raise ClientSettingRefusedError(f"`{word}` has no valid host name.", hint=_FORM)
    if port is None:
        raise ClientSettingRefusedError(
            f"The Kafka address `{word}` has no port.", hint=f"Kafka's usual port: {host}:{USUAL_PORT}."
        )
    if not (port.isascii() and port.isdecimal() and len(port) <= len(str(_PORT_MAX)) and 0 < int(port) <= _PORT_MAX):
        raise ClientSettingRefusedError(
            f"The Kafka address `{word}` has no valid port: ports are 1 to {_PORT_MAX}.",
            hint=f"Kafka's usual port: {host}:{USUAL_PORT}.",
        )
    return KafkaAddress(host.strip("[]"), int(port))


# --- the first look --------------------------------------------------------------------------------------------------

CONNECT_S: Final = 1.0
"""Longest wait for one connection, and for one answer."""
_PAUSE_S = 0.1
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""The request that every Kafka answers, before any authentication, and without TLS no other server."""
_TLS_ANSWERS = (b"\x15\x03", b"\x16\x03")  # alert, handshake; of version 3


class _Failure(NamedTuple):
    """Why no Kafka can be reached at an address, after its name; `lasting` if no later attempt changes it."""

    why: str
    hint: str
    lasting: bool


_PLAIN_TO_TLS: Final = _Failure(
    "expects TLS, which this client does not use",
    "Set security.protocol to SSL or SASL_SSL: -X security.protocol=SSL, or in the file of --kafka-config.",
    lasting=True,
)
_TLS_TO_PLAIN: Final = _Failure(
    "does not use TLS, which this client expects",
    "Set security.protocol to PLAINTEXT or SASL_PLAINTEXT, or give the address of a listener with TLS.",
    lasting=True,
)


WAIT_OF_COMMANDS: Final = "To wait for a Kafka that restarts: --set kafka.refused_wait_s=60."
WAIT_OF_BROKERS: Final = "To wait longer for it: kafka.command_timeout_s, in code `kafka={'command_timeout_s': 60}`."
_ADDRESS_SETTING: Final = (
    "the address: kafka.bootstrap_servers, in code `kafka={'bootstrap_servers': ...}`, or --bootstrap-servers"
)
_NO_KAFKA: Final = _Failure(
    "answers as another kind of server, no Kafka",
    "Check host and port: kafka.bootstrap_servers names a listener of Kafka for clients, mostly on port 9092.",
    lasting=True,
)


def require_listener(text: str, protocol: str, within_s: float, wait: str = WAIT_OF_COMMANDS) -> None:
    """Return once a listener of Kafka is found at any of the addresses, or if it cannot be known.

    Only failures that are certain end it with an error: all addresses refuse the connection, have names that do not
    resolve, or use TLS where the client does not, or the reverse. Silence is left to the client, which waits for it.

    Args:
        text: Addresses, separated by commas.
        protocol: `security.protocol` of the client.
        within_s: Retries end after this time; 0: one attempt.
        wait: How the caller waits longer for a Kafka that is not there yet, for the hint.

    Raises:
        KafkaUnavailableError: This client certainly reaches no Kafka there.
    """
    addresses, tls, ends_s = addresses_of(text), _uses_tls(protocol), time.monotonic() + within_s
    failures: list[_Failure] = []

    def look() -> None:
        while True:
            round_failures: list[_Failure] = []
            for address in addresses:
                failure = _failure_at(address, wait, tls=tls)
                if failure is None:
                    failures.clear()
                    return
                round_failures.append(failure)
            failures[:] = round_failures
            if time.monotonic() >= ends_s or all(failure.lasting for failure in failures):
                return
            time.sleep(_PAUSE_S)

    # A resolver may take many seconds for a name, and cannot be interrupted.
    thread = threading.Thread(target=look, name="first-look-for-kafka", daemon=True)
    thread.start()
    thread.join(within_s + CONNECT_S)
    if thread.is_alive() or not failures:
        return
    whys = "; ".join(f"at {address.text} {failure.why}" for address, failure in zip(addresses, failures, strict=True))
    raise KafkaUnavailableError(f"Kafka {whys}", hint=failures[0].hint, address=text)


def _failure_at(address: KafkaAddress, wait: str, *, tls: bool) -> _Failure | None:
    try:
        return _mismatch_at(address, tls=tls)
    except socket.gaierror as error:
        return _Failure(
            f"cannot be found: the host name does not resolve ({error.strerror or error})",
            f"Check {_ADDRESS_SETTING}.",
            lasting=False,
        )
    except UnicodeError:
        return _Failure("cannot be found: this is not a host name", _FORM, lasting=True)
    except ConnectionRefusedError:
        return _Failure(
            "refuses the connection: no program listens there",
            f"Check that Kafka runs there, and {_ADDRESS_SETTING}; `statechannel kafka status` shows the embedded Kafka "
            f"of this machine. {wait}",
            lasting=False,
        )
    except OSError:
        return None  # a time-out, or no route at the moment: not certain


def _mismatch_at(address: KafkaAddress, *, tls: bool) -> _Failure | None:
    answer = _answer(address, tls=tls)
    if _is_foreign(answer):
        return _NO_KAFKA
    if answer and (answer[:2] in _TLS_ANSWERS) is tls:
        return None
    # Closed without an answer, or not what was expected: the other kind of client is certainly answered.
    answer = _answer(address, tls=not tls)
    if not answer or (answer[:2] in _TLS_ANSWERS) is tls:
        return None
    return _TLS_TO_PLAIN if tls else _PLAIN_TO_TLS


def _is_foreign(answer: bytes | None) -> bool:
    """Whether it is neither TLS nor Kafka's, whose answers begin with their size, far below 16 MiB."""
    return answer is not None and answer[:2] not in _TLS_ANSWERS and answer[:1] not in (b"", b"\x00")


_ASKED_MAX: Final = 3


class PortState(StrEnum):
    """What is found at an address.

    Attributes:
        ANSWERS: A program answers.
        NO_ANSWER: The port takes connections and no program behind it answers, as of a process that is suspended or hangs.
        CLOSED: Connections are taken and closed without an answer: another program, or a Kafka that wants TLS.
        NO_CONNECTION: Connections are neither taken nor refused: such a process has as many waiting as its queue holds, or
            the network drops what is sent there.
        ABSENT: Connections are refused, or the host is unknown.
    """

    ANSWERS = "answers"
    NO_ANSWER = "no-answer"
    CLOSED = "closed"
    NO_CONNECTION = "no-connection"
    ABSENT = "absent"


_SILENT: Final = {
    PortState.NO_ANSWER: "takes connections, but says nothing",
    PortState.CLOSED: "takes connections, but closes them without an answer",
}


def require_answer(text: str, protocol: str) -> None:
    """Return if a program answers at any of the first three addresses, or none takes connections at all.

    Raises:
        KafkaUnavailableError: All that take connections close them, or are silent: no Kafka, or one that wants TLS, or hangs.
    """
    whys = []
    for address, state in _states(text, protocol):
        if state is PortState.ANSWERS:
            return
        if state in _SILENT:
            whys.append(f"{address.text} {_SILENT[state]}")
    if whys:
        raise KafkaUnavailableError(
            f"No Kafka answers: {'; '.join(whys)}",
            hint="Perhaps another program listens there, or a Kafka that wants TLS (security.protocol), still starts, or hangs. "
            f"Check {_ADDRESS_SETTING}. {WAIT_OF_BROKERS}",
            address=text,
        )


def silence_of(text: str, protocol: str) -> PortState | None:
    """Which of the addresses are silent: `NO_ANSWER` or else `NO_CONNECTION`; None where none is.

    Args:
        text: Addresses, separated by commas.
        protocol: `security.protocol` of the client.
    """
    states = {state for _, state in _states(text, protocol)}
    return next((state for state in (PortState.NO_ANSWER, PortState.NO_CONNECTION) if state in states), None)


def state_of(text: str, protocol: str) -> PortState:
    """What is found at the first addresses, as one state: `ANSWERS` if one answers, else the first of the others.

    Takes two seconds for each of three addresses, at most; arguments as of `silence_of`.
    """
    states = [state for _, state in _states(text, protocol)]
    return next((state for state in PortState if state in states), PortState.ABSENT)


def _states(text: str, protocol: str) -> Iterator[tuple[KafkaAddress, PortState]]:
    """Of the first three addresses, for at most two seconds each."""
    for address in addresses_of(text)[:_ASKED_MAX]:
        yield address, _state_of(address, tls=_uses_tls(protocol))


def _state_of(address: KafkaAddress, *, tls: bool) -> PortState:
    try:
        answer = _answer(address, tls=tls)
    except TimeoutError:
        return PortState.NO_CONNECTION
    except (OSError, UnicodeError):
        return PortState.ABSENT
    if answer is None:
        return PortState.NO_ANSWER
    return PortState.ANSWERS if answer else PortState.CLOSED


def _uses_tls(protocol: str) -> bool:
    return protocol.lower() in ("ssl", "sasl_ssl")


def _answer(address: KafkaAddress, *, tls: bool) -> bytes | None:
    """The first bytes of the answer to a client; empty if the listener closes the connection, None if it is silent.

    Raises:
        OSError: The connection cannot be made.
        UnicodeError: The host is not a host name.
    """
    request = _client_hello(address.host) if tls else _API_VERSIONS
    with socket.create_connection(address, timeout=CONNECT_S) as connection:
        try:
            connection.settimeout(CONNECT_S)
            connection.sendall(request)
            return connection.recv(8)
        except TimeoutError:
            return None
        except OSError:
            return b""


def _client_hello(host: str) -> bytes:
    """The first message of TLS; it names the host (SNI), unless that is an IP address: proxies choose a cluster by it.

    Raises:
        UnicodeError: This is not a host name.
    """
    import ssl  # noqa: PLC0415 - most commands need none

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent but this message
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        name = host.partition("%")[0].rstrip(".")
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name or None).do_handshake()
    return outgoing.read()
