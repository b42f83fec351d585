"""A query runs until it is asked to stop; whatever ends it before says why."""

import threading

import pytest

from spark.core.running import Work, run_query
from spark.errors import SparkJobError, TableFormatError
from statechannel.errors import ExitCode


def ticking(session, tmp_path, work, **trigger):
    """A query with a row each moment, as a function that starts it."""
    rows = session.readStream.format("rate").option("rowsPerSecond", "20").load()
    writer = rows.writeStream.foreachBatch(work).option("checkpointLocation", str(tmp_path / "checkpoint"))
    return writer.trigger(**(trigger or {"processingTime": "100 milliseconds"})).start


def test_an_error_of_the_job_comes_as_itself(session, tmp_path):
    stop = threading.Event()
    raised = TableFormatError("some folder", "it is empty")

    def failing(frame, batch_id):
        raise raised

    with pytest.raises(TableFormatError) as error:
        run_query(ticking(session, tmp_path, work := Work(failing, stop)), stop=stop, work=work)
    assert error.value is raised


def test_any_other_error_names_what_was_wrong(session, tmp_path):
    stop = threading.Event()

    def failing(frame, batch_id):
        frame.selectExpr("raise_error('no such thing')").collect()

    with pytest.raises(SparkJobError, match="no such thing") as error:
        run_query(ticking(session, tmp_path, work := Work(failing, stop)), stop=stop, work=work)
    assert error.value.exit_code == ExitCode.SPARK_FAILED


def test_kafka_away_is_tried_again_and_then_said(session, tmp_path):
    said, starts, stop = [], [], threading.Event()
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "subscribe": "nothing",
        "kafka.default.api.timeout.ms": "1500",
        "kafka.request.timeout.ms": "1000",
        "fetchOffset.numRetries": "1",
    }

    def start():
        starts.append(1)
        rows = session.readStream.format("kafka").options(**options).load()
        return rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()

    with pytest.raises(SparkJobError, match="Kafka does not answer") as error:
        run_query(start, stop=stop, retries=1, say=said.append)
    assert error.value.exit_code == ExitCode.KAFKA_AWAY
    assert len(starts) == 2
    assert len(said) == 1
