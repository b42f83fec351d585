"""One Spark session for all tests of a process: its start takes seconds, and there can be only one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark.core.session import open_session
from tests.spark.kafka_logs import UNCOMPILED_CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session on two cores, with the connector's jars; settings that a test changes it puts back."""
    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.master": "local[2]",
        **UNCOMPILED_CONF,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    opened = open_session("tests", conf=conf)
    try:
        yield opened
    finally:
        opened.stop()
