"""The admin client of the rebalance planner: kafka-python's, since it can ask for reassignments and log directories.

librdkafka's admin client, which the rest of the house uses, has neither. What leaves this package are errors of ours, as
those of the other client are (`statechannel.kafka.errors`), with the same exit codes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from kafka import KafkaAdminClient
from kafka import errors as kafka_python
from kafka.net.compat import KafkaNetClient
from tenacity import Retrying, retry_if_exception_type, stop_before_delay, wait_random_exponential

from loaddata.partitions.admin_properties import admin_config
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.cluster import ClusterAdmin
from statechannel.kafka.errors import (
    ClientSettingRefusedError,
    KafkaAccessDeniedError,
    KafkaAdapterError,
    KafkaClientError,
    KafkaUnavailableError,
)

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


class _Heard(logging.Handler):
    """Keeps what the library says while it connects: its errors name the cause, what it raises does not."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.causes: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See the class."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        self.causes = [*self.causes, *(one for one in arguments if isinstance(one, BaseException))][-8:]


@contextmanager
def open_admin(settings: ClientSettings, *, timeout_s: float) -> Iterator[KafkaAdminClient]:
    """An admin client; its own thread ends with the block.

    Args:
        settings: How Kafka is reached, in librdkafka's words; TLS and SASL are translated.
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

    Kafka closes the connection behind the refusal, and kafka-python then tells "socket disconnected" only.

    Raises:
        KafkaAccessDeniedError: It does.
    """
    try:
        ClusterAdmin(settings, timeout_s=REFUSAL_S).cluster()
    except KafkaAccessDeniedError:
        raise
    except KafkaAdapterError:
        return


def _quiet() -> _Heard:
    """Have the library's lines kept and not printed: whatever matters is raised."""
    heard = _Heard()
    _library_log.addHandler(heard)
    if not any(isinstance(handler, logging.NullHandler) for handler in _library_log.handlers):
        _library_log.addHandler(logging.NullHandler())
    _library_log.propagate = False
    return heard


@contextmanager
def kafka_errors(
    doing: str = "asking the cluster", *, secrets: tuple[str, ...] = (), heard: _Heard | None = None
) -> Iterator[None]:
    """Whatever kafka-python raises inside leaves as an error of ours, with exit code 2, 10, 11 or 14 and a hint.

    Args:
        doing: What is done, to what, as it stands in "Kafka did not answer while ...".
        secrets: Values that must not appear in the message.
        heard: What the library has said of the cause.
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
    """An error of kafka-python as one of ours."""
    known = [one for one in causes or [] if not isinstance(one, kafka_python.KafkaTimeoutError)]
    telling = problem
    if known and isinstance(problem, kafka_python.KafkaTimeoutError):
        telling = next((one for one in reversed(known) if _denied(one)), known[-1])
    words = str(telling) or type(telling).__name__
    if isinstance(telling, kafka_python.KafkaError) and type(telling).__name__ not in words:
        words = f"{words} ({type(telling).__name__})"
    for secret in secrets:
        words = words.replace(secret, "[redacted]")
    if _denied(telling):
        return KafkaAccessDeniedError(
            f"Kafka refused this client while {doing}: {words}",
            hint="Check security.protocol, the sasl.* and ssl.* properties; the planner needs Describe and Alter on the cluster.",
        )
    if isinstance(telling, _NO_TOPIC):
        return KafkaClientError(
            f"A topic or partition is not there (any more), found while {doing}: {words}",
            hint="Read the cluster again.",
        )
    if isinstance(telling, _AWAY):
        return KafkaUnavailableError.silent(
            f"while {doing}: {words}",
            hint="Check bootstrap.servers and that Kafka runs: `statechannel kafka status`.",
        )
    if isinstance(telling, kafka_python.KafkaConfigurationError):
        return ClientSettingRefusedError(
            f"A Kafka property cannot be used while {doing}: {words}",
            hint="Check the Kafka properties file and the -X options.",
        )
    if isinstance(telling, _OLD):
        return KafkaClientError(
            f"This Kafka is too old for {doing}: {words}", hint="Reassignments can be listed from Kafka 2.4 on."
        )
    return KafkaClientError(f"Kafka refused or failed {doing}: {words}", hint="See the broker's log for the cause.")


def _denied(problem: BaseException) -> bool:
    return isinstance(problem, _DENIED) or "CERTIFICATE_VERIFY" in str(problem) or "[SSL" in str(problem)


def ask(admin: KafkaAdminClient, call: Callable[[], Answer], *, timeout_s: float) -> Answer:
    """The first answer that is one: nobody answering, or the wrong one, is asked again within the time.

    The library keeps to the controller that it once knew, also when that one is gone for good: it is looked for anew.

    Raises:
        kafka.errors.KafkaError: What the last try raised; see `kafka_errors`.
    """
    began_s = time.monotonic()

    def tried() -> Answer:
        try:
            return call()
        except _AWAY:
            admin._controller_id = None  # noqa: SLF001 - there is no public way
            raise

    tries = Retrying(
        retry=retry_if_exception_type(_AWAY),
        stop=stop_before_delay(max(0.0, timeout_s - (time.monotonic() - began_s))),
        wait=wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
        reraise=True,
    )
    return tries(tried)
