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
        (KafkaError._INVALID_ARG, errors.ClientSettingRefusedError),
        (KafkaError.POLICY_VIOLATION, errors.KafkaClientError),
    ],
)
def test_each_code_becomes_its_own_error_with_a_hint(code: int, kind: type) -> None:
    error = errors.translate(KafkaException(KafkaError(code, "words")), "doing this to that")
    assert type(error) is kind
    assert "doing this to that" in str(error)
    assert "words" in str(error)
    assert error.hint
    assert error.exit_code == kind.exit_code


def test_secrets_do_not_pass() -> None:
    raised = KafkaException(KafkaError(KafkaError._INVALID_ARG, "bad value tiger for x"))
    error = errors.translate(raised, "making the producer", secrets=["tiger"])
    assert "tiger" not in str(error)
    assert "[redacted]" in str(error)


def test_what_is_translated_already_stays_as_it_is() -> None:
    error = errors.TopicMissingError("gone")
    assert errors.translate(error, "anything") is error
