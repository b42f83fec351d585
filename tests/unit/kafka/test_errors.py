"""What the client library says, told so that a person can act on it."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from statechannel.kafka import errors


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._TRANSPORT, errors.KafkaUnavailableError),
        (KafkaError._ALL_BROKERS_DOWN, errors.KafkaUnavailableError),
        (KafkaError._MSG_TIMED_OUT, errors.KafkaUnavailableError),
        (KafkaError._AUTHENTICATION, errors.KafkaAccessDeniedError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, errors.KafkaAccessDeniedError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, errors.TopicMissingError),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, errors.KafkaAccessDeniedError),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, errors.KafkaAccessDeniedError),
        (KafkaError.SECURITY_DISABLED, errors.KafkaAccessDeniedError),
        (KafkaError.INVALID_REPLICATION_FACTOR, errors.ReplicationRefusedError),
        (KafkaError.MSG_SIZE_TOO_LARGE, errors.RecordRefusedError),
        (KafkaError.INVALID_RECORD, errors.RecordRefusedError),
        (KafkaError.INVALID_TIMESTAMP, errors.RecordRefusedError),
        (KafkaError._INVALID_ARG, errors.ClientSettingRefusedError),
        (KafkaError._CONFLICT, errors.ClientSettingRefusedError),
        (KafkaError.POLICY_VIOLATION, errors.KafkaClientError),
    ],
)
def test_each_code_becomes_its_own_error_with_a_hint(code: int, kind: type) -> None:
    error = errors.translate(KafkaException(KafkaError(code, "words")), "doing this to that")
    assert type(error) is kind
    assert "doing this to that" in str(error)
    assert KafkaError(code).name() in str(error)
    assert error.hint
    assert error.exit_code == kind.exit_code


def test_a_call_without_an_answer_is_an_outage_and_any_other_exception_is_not() -> None:
    assert type(errors.translate(TimeoutError(), "asking")) is errors.KafkaUnavailableError
    assert type(errors.translate(ValueError("odd"), "asking")) is errors.KafkaClientError


@pytest.mark.parametrize(
    ("code", "text", "role"),
    [
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "Failed to acquire idempotence PID", "--role operator"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed", "administrators"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed", "--role ROLE"),
    ],
)
def test_who_may_not_is_told_what_to_ask_for(code: int, text: str, role: str) -> None:
    assert role in errors.translate(KafkaError(code, text), "asking").hint


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (KafkaError._TRANSPORT, errors.is_transient),
        (KafkaError.NOT_LEADER_FOR_PARTITION, errors.is_transient),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, errors.is_topic_missing),
        (KafkaError._UNKNOWN_PARTITION, errors.is_topic_missing),
        (KafkaError.SASL_AUTHENTICATION_FAILED, errors.is_access_denied),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, errors.is_access_denied),
        (KafkaError.POLICY_VIOLATION, None),
    ],
)
def test_what_kind_of_answer_it_is(code: int, says: object) -> None:
    for problem in (KafkaError(code), KafkaException(KafkaError(code))):
        kinds = [kind for kind in KINDS if kind(problem)]
        assert kinds == ([] if says is None else [says])


KINDS = (errors.is_transient, errors.is_topic_missing, errors.is_access_denied)


@pytest.mark.parametrize("problem", [KafkaException(), KafkaException("no error of Kafka's"), ValueError("odd")])
def test_what_is_no_error_of_kafka_says_nothing(problem: Exception) -> None:
    assert errors.kafka_error_of(problem) is None
    assert not any(kind(problem) for kind in KINDS)
    assert errors.describe(problem) == str(problem)
    assert errors.refusal_of(problem, "t", 1, {}, by_client=True) is None


TIMED_OUT, REFUSED = KafkaError(KafkaError._TIMED_OUT), KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
CONNECTION = KafkaError(KafkaError._TRANSPORT, "connection refused")


@pytest.mark.parametrize(
    ("answer", "client", "said"),
    [
        (TIMED_OUT, CONNECTION, CONNECTION),
        (TIMED_OUT, None, TIMED_OUT),
        (None, CONNECTION, CONNECTION),
        (None, None, None),
        (REFUSED, CONNECTION, REFUSED),
        (KafkaError(KafkaError.NO_ERROR), CONNECTION, KafkaError(KafkaError.NO_ERROR)),
    ],
)
def test_an_answer_of_kafka_says_more_than_the_client_and_the_client_more_than_a_time_out(
    answer: KafkaError | None, client: KafkaError | None, said: KafkaError | None
) -> None:
    assert errors.more_specific(answer, client) == said


@pytest.mark.parametrize(
    ("size_bytes", "by_client", "names"),
    [
        (1_234, True, ["1,234", "message.max.bytes = 20000"]),
        (1_234, False, ["1,234", "max.message.bytes of the topic"]),
        (None, False, ["too large"]),
    ],
)
def test_a_record_that_is_too_large_names_its_size_and_the_limit(
    size_bytes: int | None, by_client: bool, names: list[str]
) -> None:
    error = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
    refusal = errors.refusal_of(error, "t", size_bytes, {"message.max.bytes": "20000"}, by_client=by_client)
    assert (refusal.code, refusal.topic) == ("MSG_SIZE_TOO_LARGE", "t")
    assert all(name in refusal.message for name in names)


def test_an_outage_names_the_address_whoever_adds_it() -> None:
    silent = errors.KafkaUnavailableError.silent("for 5 s.", hint="wait").at("h:1", hint="look")
    other = errors.KafkaUnavailableError("no leader").at("h:1", hint="look")
    for error in (silent, other):
        assert (error.address, error.hint) == ("h:1", "look")
        assert "h:1" in str(error)
    assert (silent.silence, other.silence) == ("for 5 s.", "")
    assert "no leader" in str(other)
    assert "for 5 s" in str(silent)


def test_secrets_do_not_pass() -> None:
    raised = KafkaException(KafkaError(KafkaError._INVALID_ARG, "bad value tiger for x"))
    error = errors.translate(raised, "making the producer", secrets=["tiger"])
    assert "tiger" not in str(error)
    assert "[redacted]" in str(error)


def test_what_is_translated_already_stays_as_it_is() -> None:
    error = errors.TopicMissingError("gone")
    assert errors.translate(error, "anything") is error
