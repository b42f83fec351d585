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


def test_any_other_error_names_what_was_wrong_without_pages_of_stack(session, tmp_path, capfd):
    stop = threading.Event()

    def failing(frame, batch_id):
        frame.selectExpr("raise_error('no such thing')").collect()

    with pytest.raises(SparkJobError, match="no such thing") as error:
        run_query(ticking(session, tmp_path, work := Work(failing, stop)), stop=stop, work=work)
    assert error.value.exit_code == ExitCode.SPARK_FAILED
    assert "\tat " not in capfd.readouterr().err
