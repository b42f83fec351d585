"""The admin client of the rebalance planner: kafka-python's, since it can ask for reassignments and log directories.

librdkafka's admin client, which the rest of the house uses, has neither. What leaves this package are errors of ours, as
those of the other client are (`statechannel.kafka.errors`), with the same exit codes.
"""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from kafka import KafkaAdminClient
from kafka import errors as kafka_python
from kafka.net.compat import KafkaNetClient
from tenacity import Retrying, retry_if_exception_type, stop_before_delay, wait_random_exponential

from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import (
    ClientSettingRefusedError,
    KafkaAccessDeniedError,
    KafkaAdapterError,
    KafkaClientError,
    KafkaUnavailableError,
)
from statechannel.kafka.topics import TopicAdmin
from statechannel.printable import redact

Answer = TypeVar("Answer")

PLAIN: Final = "PLAINTEXT"
REFUSAL_S: Final = 5.0
"""How long the other client library is asked for the reason of a refusal."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_library_log = logging.getLogger("kafka")

_AWAY = (
    kafka_python.RetriableError,
    kafka_python.UnknownBrokerIdError,
    kafka_python.BrokerNotAvailableError,
    kafka_python.StaleBrokerEpochError,
    OSError,
)
_DENIED = (
    kafka_python.AuthorizationError,
    kafka_python.SaslAuthenticationFailedError,
    kafka_python.UnsupportedSaslMechanismError,
    kafka_python.IllegalSaslStateError,
    kafka_python.SecurityDisabledError,
)
_NO_TOPIC = (kafka_python.UnknownTopicOrPartitionError, kafka_python.UnknownTopicIdError)
_OLD = (kafka_python.UnsupportedVersionError, kafka_python.UnrecognizedBrokerVersion)


class _CauseCollector(logging.Handler):
    """Keeps the errors that the library logs while it connects: they name the cause, what it raises does not."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.causes: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ()
        self.causes = [*self.causes, *(argument for argument in arguments if isinstance(argument, BaseException))][-8:]


@contextmanager
def open_admin(settings: ClientSettings, *, timeout_s: float) -> Iterator[KafkaAdminClient]:
    """An admin client; its own thread ends with the block.

    Args:
        timeout_s: Bound of the first connection, and of one answer unless the settings bound it further.

    Raises:
        KafkaAdapterError: Kafka is away, refuses this client, or a property cannot be translated. What the block itself
            raises passes unchanged: put `kafka_errors` around calls.
    """
    config = admin_config(settings, timeout_s=timeout_s)
    clients: list[Any] = []

    def make_client(**options: Any) -> Any:
        clients.append(KafkaNetClient(**options))
        return clients[-1]

    heard = _quiet()
    try:
        with kafka_errors("connecting", secrets=settings.secrets(), heard=heard):
            admin = KafkaAdminClient(**config, kafka_client=make_client)
    except BaseException as error:
        for client in clients:  # the constructor leaves its thread behind
            client.close()
            client._manager._net.stop()  # noqa: SLF001 - there is no public way
        if isinstance(error, KafkaUnavailableError) and config["security_protocol"] != PLAIN:
            _look_for_refusal(settings)
        raise
    finally:
        _library_log.removeHandler(heard)
    try:
        yield admin
    finally:
        admin.close()


def _look_for_refusal(settings: ClientSettings) -> None:
    """Ask through the other client library whether Kafka refuses this client.

    Kafka closes the connection after the refusal, and kafka-python then reports "socket disconnected" only.
    """
    try:
        TopicAdmin(settings, timeout_s=REFUSAL_S).cluster()
    except KafkaAccessDeniedError:
        raise
    except KafkaAdapterError:
        return


def _quiet() -> _CauseCollector:
    """Have the library's lines collected and not printed: whatever matters is raised."""
    heard = _CauseCollector()
    _library_log.addHandler(heard)
    if not any(isinstance(handler, logging.NullHandler) for handler in _library_log.handlers):
        _library_log.addHandler(logging.NullHandler())
    _library_log.propagate = False
    return heard


@contextmanager
def kafka_errors(
    doing: str = "asking the cluster", *, secrets: tuple[str, ...] = (), heard: _CauseCollector | None = None
) -> Iterator[None]:
    """Whatever kafka-python raises inside leaves as an error of ours, with exit code 2, 10, 11 or 14 and a hint.

    Args:
        doing: What is done, to what, as it stands in "Kafka did not answer while ...".
        heard: The causes that the library has logged.
    """
    try:
        yield
    except (kafka_python.KafkaError, OSError) as error:
        raise translate_error(error, doing, secrets=secrets, causes=heard.causes if heard else []) from None
    except RuntimeError as error:
        if "controller" not in str(error):  # the library's own word for a cluster without one
            raise
        raise KafkaUnavailableError(
            f"Kafka has no controller that answers, found while {doing}",
            hint="Wait until the cluster has elected one, and look at its controllers' logs.",
        ) from None


def translate_error(
    problem: BaseException, doing: str, *, secrets: tuple[str, ...] = (), causes: list[BaseException] | None = None
) -> KafkaAdapterError:
    known = [cause for cause in causes or [] if not isinstance(cause, kafka_python.KafkaTimeoutError)]
    cause = problem
    if known and isinstance(problem, kafka_python.KafkaTimeoutError):
        cause = next((each for each in reversed(known) if _denied(each)), known[-1])
    words = words_of(cause)
    if isinstance(cause, kafka_python.KafkaError) and type(cause).__name__ not in words:
        words = f"{words} ({type(cause).__name__})"
    words = redact(words, secrets)
    if _denied(cause):
        return KafkaAccessDeniedError(
            f"Kafka refused this client while {doing}: {words}",
            hint="Check security.protocol, the sasl.* and ssl.* properties; the planner needs Describe and Alter on the cluster.",
        )
    if isinstance(cause, _NO_TOPIC):
        return KafkaClientError(
            f"A topic or partition does not exist (any more), found while {doing}: {words}",
            hint="Read the cluster again.",
        )
    if isinstance(cause, _AWAY):
        return KafkaUnavailableError.silent(
            f"while {doing}: {words}", hint="Check bootstrap.servers and that Kafka runs: `statechannel kafka status`."
        )
    if isinstance(cause, kafka_python.KafkaConfigurationError):
        return ClientSettingRefusedError(
            f"A Kafka property cannot be used while {doing}: {words}",
            hint="Check the Kafka properties file and the -X options.",
        )
    if isinstance(cause, _OLD):
        return KafkaClientError(
            f"This Kafka is too old for {doing}: {words}", hint="Reassignments can be listed from Kafka 2.4 on."
        )
    return KafkaClientError(f"Kafka refused or failed {doing}: {words}", hint="See the broker's log for the cause.")


def words_of(error: BaseException) -> str:
    """An error's message; its name where it has none."""
    return str(error) or type(error).__name__


def _denied(problem: BaseException) -> bool:
    return isinstance(problem, _DENIED) or "CERTIFICATE_VERIFY" in str(problem) or "[SSL" in str(problem)


def ask(admin: KafkaAdminClient, call: Callable[[], Answer], *, timeout_s: float) -> Answer:
    """The first usable answer: where none comes, or the wrong broker answers, the call is repeated within the time.

    The library keeps to the controller that it once knew, also when that one is gone for good: it is looked up again.

    Raises:
        kafka.errors.KafkaError: What the last try raised; see `kafka_errors`.
    """

    def attempt() -> Answer:
        try:
            return call()
        except _AWAY:
            admin._controller_id = None  # noqa: SLF001 - there is no public way
            raise

    tries = Retrying(
        retry=retry_if_exception_type(_AWAY),
        stop=stop_before_delay(max(0.0, timeout_s)),
        wait=wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
        reraise=True,
    )
    return tries(attempt)


_MECHANISMS: Final = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"})
_UNTRANSLATED: Final = (
    "ssl.keystore.location",
    "ssl.engine.location",
    "ssl.providers",
    "ssl.crl.location",
    "ssl.cipher.suites",
    "ssl.curves.list",
    "ssl.sigalgs.list",
)
"""Properties for trust or identity in forms that Python's TLS does not support."""
_HINT: Final = "Give keys and certificates as PEM: ssl.ca.location, ssl.certificate.location, ssl.key.location."


def admin_config(settings: ClientSettings, *, timeout_s: float) -> dict[str, Any]:
    properties = settings.properties
    timeout_ms = max(1, round(timeout_s * 1_000))
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    config: dict[str, Any] = {
        "bootstrap_servers": addresses(settings.bootstrap_servers),
        "client_id": settings.client_id,
        "security_protocol": protocol,
        "bootstrap_timeout_ms": timeout_ms,
        "request_timeout_ms": min(timeout_ms, max(1_000, settings.tuning.request_timeout_ms)),
        "reconnect_backoff_ms": 50,
        "reconnect_backoff_max_ms": 1_000,
    }
    if protocol.startswith("SASL_"):
        config |= _sasl(properties)
    if protocol.endswith("SSL"):
        config["ssl_context"] = tls_context(properties)
    return config


def addresses(servers: str) -> list[str]:
    """`host:port` of each address; librdkafka also takes them with the protocol in front."""
    return [server.rpartition("://")[2].strip() for server in servers.split(",") if server.strip()]


def _sasl(properties: Mapping[str, str]) -> dict[str, Any]:
    mechanism = properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "GSSAPI")).upper()
    if mechanism not in _MECHANISMS:
        raise ClientSettingRefusedError(
            f"The SASL mechanism {mechanism} cannot be used by the rebalance planner.",
            hint=f"It knows {', '.join(sorted(_MECHANISMS))}.",
        )
    if mechanism == "GSSAPI":
        return {
            "sasl_mechanism": mechanism,
            "sasl_kerberos_service_name": properties.get("sasl.kerberos.service.name", "kafka"),
        }
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": properties.get("sasl.username", ""),
        "sasl_plain_password": properties.get("sasl.password", ""),
    }


def tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """The TLS context for librdkafka's `ssl.*` properties: trusted authorities and the client's own certificate."""
    refused = [name for name in _UNTRANSLATED if properties.get(name)]
    if refused:
        raise ClientSettingRefusedError(f"The rebalance planner cannot use {', '.join(refused)}.", hint=_HINT)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks names and certificates
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if properties.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        _trust(context, properties)
        _identify(context, properties)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ClientSettingRefusedError(
            f"The ssl.* properties of the Kafka client cannot be used: {error}", hint=_HINT
        ) from error
    return context


def _trust(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    """Trust only what the properties name; the system's authorities where they name none."""
    text, location = properties.get("ssl.ca.pem"), properties.get("ssl.ca.location")
    if text:
        context.load_verify_locations(cadata=text)
    elif not location or location == "probe":
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    elif Path(location).is_dir():
        context.load_verify_locations(capath=location)
    else:
        context.load_verify_locations(cafile=location)


def _identify(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    password = properties.get("ssl.key.password")
    certificate, key = properties.get("ssl.certificate.location"), properties.get("ssl.key.location")
    if certificate:
        context.load_cert_chain(certificate, key, password)
    chain, key_text = properties.get("ssl.certificate.pem"), properties.get("ssl.key.pem")
    if chain and key_text:
        # Python reads a key from files only; this one is the owner's alone and gone at once.
        handle, name = tempfile.mkstemp(suffix=".pem")
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(f"{key_text}\n{chain}\n")
            context.load_cert_chain(name, password=password)
        finally:
            Path(name).unlink()
