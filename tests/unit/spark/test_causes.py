"""What Spark's text is taken for; the texts are shortened from real runs."""

import pytest

from spark.core.running import QueryEndCause, cause_of, gist

AWAY = """[STREAM_FAILED] Query [id = 1] terminated with exception: Timed out waiting for a node assignment. Call: describeTopics
org.apache.spark.sql.streaming.StreamingQueryException: ...
Caused by: java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.TimeoutException: Timed out
Caused by: org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment. Call: describeTopics
"""

LACKING = """PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "cloudpickle.py", line 1024, in subimport
ModuleNotFoundError: No module named 'spark'
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure
"""

SILENT = """PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "logs.py", line 1, in read
statechannel.kafka.errors.KafkaUnavailableError: Kafka did not answer for 20 s while reading bundle-state-0.
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (AWAY, QueryEndCause.KAFKA_AWAY),
        ("KafkaException: No resolvable bootstrap urls given in bootstrap.servers", QueryEndCause.KAFKA_AWAY),
        ("[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost", QueryEndCause.TOPIC_BROKEN),
        (
            "Caused by: org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server",
            QueryEndCause.TOPIC_BROKEN,
        ),
        ("org.apache.kafka.common.errors.SaslAuthenticationException: wrong password", QueryEndCause.KAFKA_DENIED),
        (
            "org.apache.kafka.common.errors.TopicAuthorizationException: [x]\nTimeoutException",
            QueryEndCause.KAFKA_DENIED,
        ),
        ("Py4JNetworkError: Answer from Java side is empty", QueryEndCause.JVM_ENDED),
        (LACKING, QueryEndCause.WORKER_LACKS),
        (SILENT, QueryEndCause.KAFKA_AWAY),
        (SILENT.replace("KafkaUnavailable", "KafkaAccessDenied"), QueryEndCause.KAFKA_DENIED),
        (SILENT.replace("KafkaUnavailable", "TopicMissing"), QueryEndCause.TOPIC_BROKEN),
        ("ModuleNotFoundError: No module named 'spark'", QueryEndCause.OTHER),
        ("java.util.concurrent.TimeoutException: something of Spark's own", QueryEndCause.OTHER),
        ("", QueryEndCause.OTHER),
    ],
)
def test_cause(text, cause):
    assert cause_of(text) is cause


def test_gist_is_the_innermost_cause():
    assert gist(AWAY).startswith("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node")


def test_gist_of_a_worker_without_the_package_names_it():
    assert gist(LACKING) == "ModuleNotFoundError: No module named 'spark'"


def test_gist_of_a_worker_that_reads_kafka_is_its_error():
    assert gist(SILENT).endswith("Kafka did not answer for 20 s while reading bundle-state-0.")


def test_gist_of_a_short_text_is_its_first_line_and_never_long():
    assert gist("\n one \n two") == "one"
    assert gist("") == "no reason was given"
    assert len(gist("x" * 10_000)) < 500
