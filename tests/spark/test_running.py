"""A query runs until it is asked to stop; whatever ends it before says why."""

import threading
import time

import pytest

from spark.core.running import Work, run_query
from spark.errors import SparkJobError, TableFormatError
from statechannel.errors import ExitCode

pytestmark = pytest.mark.slow


def ticking(session, tmp_path, work, **trigger):
    """A query with a row each moment, as a function that starts it."""
    rows = session.readStream.format("rate").option("rowsPerSecond", "20").load()
    writer = rows.writeStream.foreachBatch(work).option("checkpointLocation", str(tmp_path / "checkpoint"))
    return writer.trigger(**(trigger or {"processingTime": "100 milliseconds"})).start


def test_stop_lets_the_running_batch_end(session, tmp_path):
    stop, ended = threading.Event(), []

    def slow(frame, batch_id):
        if batch_id == 1:
            stop.set()
        time.sleep(0.7)
        ended.append(batch_id)

    run_query(ticking(session, tmp_path, work := Work(slow, stop)), stop=stop, work=work)
    assert ended == [0, 1]
    assert session.streams.active == []


def test_a_batch_that_takes_too_long_is_broken_off(session, tmp_path):
    stop, released, ended = threading.Event(), threading.Event(), threading.Event()

    def stuck(frame, batch_id):
        stop.set()
        released.wait()
        ended.set()

    try:
        run_query(ticking(session, tmp_path, work := Work(stuck, stop)), stop=stop, work=work, stop_timeout_s=1.0)
        assert not ended.is_set()
    finally:
        released.set()


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


def test_available_now_ends_by_itself(session, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\ntwo\n")
    stop, seen = threading.Event(), []
    work = Work(lambda frame, _: seen.extend(row.value for row in frame.collect()), stop)
    rows = session.readStream.format("text").load(str(tmp_path / "in"))
    writer = rows.writeStream.foreachBatch(work).option("checkpointLocation", str(tmp_path / "checkpoint"))
    run_query(writer.trigger(availableNow=True).start, stop=stop, work=work)
    assert sorted(seen) == ["one", "two"]
    assert work.done == 1
