"""The session starts with what the jobs rely on, and Python workers find what they need."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark.core.session import open_session
from spark.errors import SparkJobError
from statechannel.errors import ExitCode
from statechannel.protocol.bundle import partition_of


def _by_the_core(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        partitions = [partition_of(name.as_py(), 8) for name in batch.column(0)]
        yield pa.RecordBatch.from_arrays([pa.array(partitions, pa.int32())], names=["partition"])


def test_a_worker_has_arrow_and_the_core(session):
    namespaces = [f"tenant/{number}" for number in range(20)]
    frame = session.createDataFrame([(name,) for name in namespaces], "namespace string")
    answered = [row.partition for row in frame.mapInArrow(_by_the_core, "partition int").collect()]
    assert sorted(answered) == sorted(partition_of(name, 8) for name in namespaces)


def test_a_setting_that_spark_refuses_is_one_clear_error(session):
    with pytest.raises(SparkJobError, match="Spark does not start") as error:
        open_session("another", conf={"spark.sql.shuffle.partitions": "many"})
    assert error.value.exit_code == ExitCode.SPARK_FAILED
