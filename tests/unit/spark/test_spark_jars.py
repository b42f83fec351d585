"""The connector's jars: a list and a folder of its own; how they are fetched is tested with Kafka's."""

from pathlib import Path

import pytest

from spark.jars import JARS_VARIABLE, SPARK_JARS, SPARK_VERSION
from statechannel.embedded import jars
from statechannel.embedded.jars import CACHE_VARIABLE


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(JARS_VARIABLE, raising=False)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


def test_committed_list_is_whole():
    coordinates = {jar.coordinate.partition(":")[2] for jar in SPARK_JARS.listed()}
    assert coordinates == {
        "commons-pool2:2.13.1",
        "kafka-clients:3.9.2",
        f"spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",
        "spark-token-provider-kafka-0-10_2.13:4.0.0",
    }
    assert all(len(jar.sha256) == 64 for jar in SPARK_JARS.listed())


def test_the_two_sets_are_apart():
    """Spark's older Kafka client must never get on the broker's class path, nor the other way round."""
    assert SPARK_JARS.cached_folder() != jars.KAFKA_JARS.cached_folder()
    assert SPARK_JARS.variable != jars.KAFKA_JARS.variable
