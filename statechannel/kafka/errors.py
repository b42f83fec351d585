"""Errors of the Kafka adapter, with actionable messages and hints."""
# ruff: noqa: SLF001  (the client library's public error codes start with an underscore)

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from statechannel.engine.kafka_limits import AppendRefusal, RefusalReason
from statechannel.errors import ExitCode, StateChannelError
from statechannel.printable import redact

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class KafkaAdapterError(StateChannelError):
    """Base of all errors of the adapter."""

    exit_code = ExitCode.KAFKA_FAILED


class ClientSettingRefusedError(KafkaAdapterError):
    """A client property is fixed by the design, or cannot be read."""

    exit_code = ExitCode.USAGE


class KafkaUnavailableError(KafkaAdapterError):
    """No broker answered in time.

    Attributes:
        silence: Duration and activity; empty if Kafka answered, and something else is missing.
        address: Bootstrap servers; empty if the caller adds them.
    """

    exit_code = ExitCode.KAFKA_AWAY
    retryable = True

    def __init__(self, message: str, *, hint: str = "", silence: str = "", address: str = "") -> None:
        super().__init__(message, hint=hint)
        self.silence = silence
        self.address = address

    @classmethod
    def silent(cls, silence: str, *, hint: str) -> KafkaUnavailableError:
        return cls(f"Kafka did not answer {silence}", hint=hint, silence=silence)

    def at(self, address: str, *, hint: str) -> KafkaUnavailableError:
        message = f"Kafka at {address} did not answer {self.silence}" if self.silence else f"Kafka at {address}: {self}"
        return KafkaUnavailableError(message, hint=hint, silence=self.silence, address=address)


class KafkaAccessDeniedError(KafkaAdapterError):
    """Authentication failed, or an ACL is missing."""

    exit_code = ExitCode.KAFKA_DENIED


class TopicMissingError(KafkaAdapterError):
    """A topic of the channel does not exist."""

    exit_code = ExitCode.TOPIC_REFUSED


class TopicPolicyError(KafkaAdapterError):
    """A topic exists, but its settings void the protocol's guarantees."""

    exit_code = ExitCode.TOPIC_REFUSED


class ReplicationRefusedError(KafkaAdapterError):
    """The cluster has fewer brokers than a topic would have replicas."""


class AppendOutcomeUnknownError(KafkaAdapterError):
    """An append ended without an answer: the record may be in the log or may not."""

    exit_code = ExitCode.UNKNOWN


class KafkaClientError(KafkaAdapterError):
    """Any other failure of the client library or the cluster."""


class RecordRefusedError(KafkaClientError):
    """Kafka refused a record for good: it is too large, or against a rule."""


_AWAY = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._DESTROY_BROKER,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError._WAIT_CACHE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
_DENIED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SECURITY_DISABLED,
    }
)
_FORBIDDEN = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""The client is authenticated, and no ACL allows the operation."""
_NO_PRODUCER = "idempotence PID"
"""The library's wording if Kafka refuses an idempotent producer to a client without any write access."""
_NO_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.INCONSISTENT_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)


_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE})
_INVALID = frozenset(
    {
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_REQUIRED_ACKS,
        KafkaError.INVALID_REQUEST,
        KafkaError.INVALID_CONFIG,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.UNSUPPORTED_VERSION,
    }
)
_WRITE_DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
CLIENT_LIMIT = "message.max.bytes"
"""The client's own limit of a record, a property; that of a topic is `max.message.bytes`."""
CLIENT_LIMIT_BYTES = 1_000_000
"""Its value without the property."""
_SETTINGS = {
    KafkaError.INVALID_TIMESTAMP: ": see message.timestamp.type and message.timestamp.* of the topic",
    KafkaError.INVALID_RECORD: ": see cleanup.policy and message.timestamp.* of the topic",
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE: ": see the client property compression.type",
    KafkaError.INVALID_REQUIRED_ACKS: ": see min.insync.replicas of the topic",
}


def refusal_of(
    problem: BaseException | KafkaError,
    topic: str,
    size_bytes: int | None,
    properties: Mapping[str, str],
    *,
    by_client: bool,
) -> AppendRefusal | None:
    """Kafka's permanent refusal of a record; None if another try may succeed.

    Args:
        size_bytes: Of key and value, if known.
        by_client: The client library refused it, before it was sent.
    """
    error = kafka_error_of(problem)
    if error is None:
        return None
    code = error.code()
    if code in _TOO_LARGE:
        limit = (
            f"the client property {CLIENT_LIMIT} = {properties.get(CLIENT_LIMIT, CLIENT_LIMIT_BYTES)}"
            if by_client
            else "max.message.bytes of the topic"
        )
        size = "is too large:" if size_bytes is None else f"has {size_bytes:,} bytes,"
        message = f"a record for {topic} {size} more than {limit} allows"
        return AppendRefusal(RefusalReason.TOO_LARGE, error.name(), topic, f"{message} ({error.name()})")
    if code in _WRITE_DENIED:
        message = f"no ACL allows this client to write to {topic} ({error.name()})"
        return AppendRefusal(RefusalReason.DENIED, error.name(), topic, message)
    if code in _INVALID:
        message = f"a record for {topic} is against a rule of Kafka ({error.name()}){_SETTINGS.get(code, '')}"
        return AppendRefusal(RefusalReason.INVALID, error.name(), topic, message)
    return None


def kafka_error_of(problem: BaseException | KafkaError | None) -> KafkaError | None:
    """The `KafkaError` inside an exception of the client library, if there is one."""
    if isinstance(problem, KafkaError):
        return problem
    if isinstance(problem, KafkaException) and problem.args:
        inner = problem.args[0]
        return inner if isinstance(inner, KafkaError) else None
    return None


def _code_of(problem: BaseException | KafkaError | None) -> int | None:
    error = kafka_error_of(problem)
    return None if error is None else error.code()


def is_topic_missing(problem: BaseException | KafkaError | None) -> bool:
    return _code_of(problem) in _NO_TOPIC


def is_transient(problem: BaseException | KafkaError) -> bool:
    """Whether the error may be transient: no answer, or the answering broker is not (yet) responsible.

    The library's own `KafkaError.retriable` says so only of transactions.
    """
    return _code_of(problem) in _AWAY


def more_specific(answer: KafkaError | None, client: KafkaError | None) -> KafkaError | None:
    """The more specific of two errors: "connection refused", from the client's callback, says more than "timed out".

    Args:
        answer: Error of the call; None if it is not Kafka's.
        client: The client's last reported error.
    """
    made_by_client = answer is None or answer.code() < 0
    return client if client is not None and made_by_client else answer


def is_access_denied(problem: BaseException | KafkaError) -> bool:
    """Whether authentication failed or an ACL is missing."""
    return _code_of(problem) in _DENIED


def describe(problem: BaseException | KafkaError, secrets: Iterable[str] = ()) -> str:
    """The library's text with its stable error name, without any of `secrets`."""
    error = kafka_error_of(problem)
    text = f"{error.str()} ({error.name()})" if error is not None else str(problem)
    return redact(text, secrets)


def translate(problem: BaseException | KafkaError, doing: str, *, secrets: Iterable[str] = ()) -> KafkaAdapterError:
    """Convert an error of the client library into one of this package.

    Args:
        problem: A `KafkaError`, a `KafkaException`, or another exception of the library.
        doing: Activity with its object: "creating topic bundle-state".
        secrets: Values that must not appear in the message.
    """
    if isinstance(problem, KafkaAdapterError):
        return problem
    message = f"Kafka refused or failed {doing}: {describe(problem, secrets)}"
    error = kafka_error_of(problem)
    code = _code_of(problem)
    if isinstance(problem, TimeoutError) or code in _AWAY:
        return KafkaUnavailableError.silent(
            f"while {doing}: {describe(problem, secrets)}",
            hint="Check bootstrap.servers and that Kafka runs: `statechannel kafka status`.",
        )
    if code == KafkaError.SECURITY_DISABLED:
        return KafkaAccessDeniedError(
            f"This Kafka has no ACLs, found while {doing}: every client may do everything ({describe(problem, secrets)})",
            hint="Configure an authorizer on its brokers (authorizer.class.name), see design/security.md.",
        )
    if error is not None and code in _FORBIDDEN:
        return _forbidden(error, doing)
    if code in _DENIED:
        return KafkaAccessDeniedError(message, hint="Check security.protocol, the sasl.* and the ssl.* properties.")
    if code in _NO_TOPIC:
        return TopicMissingError(
            message, hint="Create the topics with `statechannel init`, or open a broker with `create_topics=True`."
        )
    if code == KafkaError.INVALID_REPLICATION_FACTOR:
        return ReplicationRefusedError(
            message,
            hint="Start more Kafka brokers, or use a smaller --replication-factor (channel.replication_factor).",
        )
    if code in _TOO_LARGE or code in (KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP):
        return RecordRefusedError(
            message,
            hint=f"To try again does not help: compare the client property {CLIENT_LIMIT} and the topics' settings with what "
            "the channel needs: `statechannel doctor`.",
        )
    if code in (KafkaError._INVALID_ARG, KafkaError._CONFLICT):
        return ClientSettingRefusedError(message, hint="Check the Kafka properties file and the -X options.")
    return KafkaClientError(message, hint="If this does not say enough, the log of the Kafka broker does.")


def _forbidden(error: KafkaError, doing: str) -> KafkaAccessDeniedError:
    """A readable error: Kafka's own text for the cluster is the dump of a request."""
    if _NO_PRODUCER in error.str():
        return KafkaAccessDeniedError(
            f"Kafka does not allow this client {doing}: it may write to no topic here",
            hint="Read-only clients cannot request changes. `statechannel acl check --role operator` lists the required rights.",
        )
    if error.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
        return KafkaAccessDeniedError(
            f"Kafka does not allow this client {doing}: no ACL on the cluster allows it ({error.name()})",
            hint="Connect as one of Kafka's administrators (a superuser, or Alter and Describe on the cluster).",
        )
    return KafkaAccessDeniedError(
        f"Kafka does not allow this client {doing}: an ACL is missing: {error.str()} ({error.name()})",
        hint="`statechannel acl check --role ROLE` lists the rights of a role, and those missing here.",
    )
