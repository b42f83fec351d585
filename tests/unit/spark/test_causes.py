"""What Spark's text is taken for; the texts are shortened from real runs."""

import errno
import threading

import py4j.protocol
import pyarrow as pa
import pyspark.errors
import pytest

from spark.core.running import QueryEndCause, cause_of, gist, run_query, spark_errors
from spark.core.store import SnapshotStore, new_checkpoint
from spark.errors import SparkJobError
from statechannel.errors import ExitCode

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
        ("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This", QueryEndCause.TOPIC_BROKEN),
        ("org.apache.kafka.common.errors.SaslAuthenticationException: wrong password", QueryEndCause.KAFKA_DENIED),
        ("org.apache.kafka.common.errors.TopicAuthorizationException\nTimeoutException", QueryEndCause.KAFKA_DENIED),
        ("Py4JNetworkError: Answer from Java side is empty", QueryEndCause.PROCESS_ENDED),
        (LACKING, QueryEndCause.WORKER_LACKS),
        (SILENT, QueryEndCause.KAFKA_AWAY),
        (SILENT.replace("KafkaUnavailable", "KafkaAccessDenied"), QueryEndCause.KAFKA_DENIED),
        (SILENT.replace("KafkaUnavailable", "TopicMissing"), QueryEndCause.TOPIC_BROKEN),
        ("java.lang.OutOfMemoryError: Java heap space", QueryEndCause.PROCESS_ENDED),
        ("SparkException: Not enough memory to build and broadcast the table to all", QueryEndCause.PROCESS_ENDED),
        ("SparkException: Python worker exited unexpectedly (crashed)\nEOFException", QueryEndCause.PROCESS_ENDED),
        ("java.io.EOFException\n\tat org.apache.spark.api.python.PythonWorkerFactory.a", QueryEndCause.PROCESS_ENDED),
        (LACKING.replace("ModuleNotFound", "Memory"), QueryEndCause.PROCESS_ENDED),
        ("ModuleNotFoundError: No module named 'spark'", QueryEndCause.OTHER),
        ("java.util.concurrent.TimeoutException: something of Spark's own", QueryEndCause.OTHER),
        ("", QueryEndCause.OTHER),
    ],
)
def test_cause(text, cause):
    assert cause_of(text) is cause


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            AWAY,
            "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment. Call: describeTopics",
        ),
        (LACKING, "ModuleNotFoundError: No module named 'spark'"),
        (SILENT, SILENT.splitlines()[3]),
        ("Py4JJavaError: An error occurred while calling o7.x.\n: java.lang.Error\n\tat a", "java.lang.Error"),
        ("\n one \n two", "one"),
        ("", "no reason was given"),
        ("x" * 10_000, "x" * 400 + "..."),
    ],
)
def test_gist(text, says):
    assert gist(text) == says


def errors_of(module, base):
    """One of each class of a library, whatever else it takes to make it."""
    classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, base)]
    plain = {"__init__": lambda _: None, "__str__": lambda _: "x", "getStackTrace": lambda _: None}
    return [type(cls.__name__, (cls,), plain)() for cls in classes]


def java(name):
    return pyspark.errors.PySparkException(message=f"o70.start\nCaused by: {name}")


NOT_FILES = {errno.EPIPE, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.ESHUTDOWN}
UNREACHED = (
    "When resolving region for bucket 'nope': AWS Error NETWORK_CONNECTION during HeadBucket operation: curlCode: 6"
)
TABLE, SPARK = ExitCode.TABLE_UNUSABLE, ExitCode.SPARK_FAILED
ENDS = [
    *((error, SPARK) for error in errors_of(pyspark.errors, pyspark.errors.PySparkException)),
    *((error, SPARK) for error in errors_of(py4j.protocol, py4j.protocol.Py4JError)),
    *(
        (error, SPARK if isinstance(error, MemoryError) else TABLE)
        for error in errors_of(pa.lib, pa.lib.ArrowException)
    ),
    *((cls("of py4j's socket"), SPARK) for cls in (ConnectionRefusedError, ConnectionResetError, EOFError)),
    *((OSError(number, "as the system says it"), TABLE) for number in errno.errorcode if number not in NOT_FILES),
    (MemoryError(), SPARK),
    (OSError(UNREACHED), TABLE),
    (OSError("a path of an object store: Forbidden"), TABLE),
    (java("java.io.IOException: No space left on device"), TABLE),
    (java("java.net.UnknownHostException: nope"), TABLE),
    (java('org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"'), TABLE),
    (java("java.io.IOException: Mkdirs failed to create file:/t/archive/_writing"), TABLE),
    (java("[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///t/x.parquet"), TABLE),
    (
        pyspark.errors.PySparkException(message="PythonException: worker\npyarrow.lib.ArrowInvalid: no magic bytes"),
        TABLE,
    ),
]


@pytest.mark.parametrize(("error", "code"), ENDS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("in_the_query", [False, True])
def test_what_the_surroundings_do_is_no_bug(error, code, in_the_query):
    def fail():
        raise error

    def run():
        run_query(fail, stop=threading.Event(), retries=0) if in_the_query else fail()

    with pytest.raises(SparkJobError) as caught, spark_errors():
        run()
    assert (caught.value.exit_code, bool(caught.value.hint)) == (code, True)


@pytest.mark.parametrize("error", [KeyError("x"), TypeError(), ValueError(), RuntimeError(), BrokenPipeError()])
def test_a_bug_comes_as_it_is(error):
    with pytest.raises(type(error)), spark_errors():
        raise error


@pytest.mark.parametrize(
    "error", [OSError(UNREACHED), java("java.net.ConnectException: Connection refused"), TimeoutError()]
)
def test_a_file_system_that_does_not_answer_is_tried_again(error):
    said, starts = [], []

    def start():
        starts.append(1)
        raise error

    with pytest.raises(SparkJobError, match="tried 2 times"):
        run_query(start, stop=threading.Event(), retries=1, say=said.append)
    assert (len(starts), len(said)) == (2, 1)


NOWHERE = [
    "nope://x/file",
    "{}/file",
    "{}/file/below",
    "~no-such-user/file",
    "s3://[x/file",
    "file:///x#y",
    "file://",
    "file\udcff",
    "{}/loop/file",
]


@pytest.mark.parametrize("place", NOWHERE)
@pytest.mark.parametrize("use", [new_checkpoint, lambda place: SnapshotStore(place).publish(None, {})])
def test_a_place_that_is_none_is_named(tmp_path, place, use):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(SparkJobError, match="file") as caught, spark_errors():
        use(place.format(tmp_path))
    assert caught.value.exit_code == TABLE
