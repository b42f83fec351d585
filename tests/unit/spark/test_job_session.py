"""What a job refuses before it starts anything."""

from pathlib import Path

import pytest

from spark.core.job_session import apart, refuse_foreign
from spark.errors import SparkJobError, TableFormatError
from spark.jars import JARS_VARIABLE, SPARK_JARS, SPARK_VERSION
from statechannel.embedded import jars
from statechannel.embedded.jars import CACHE_VARIABLE


@pytest.mark.parametrize(("checkpoint", "table"), [("a/t", "a/t"), ("a/t/c", "a/t"), ("a/t", "file:{here}/a/t/view/")])
def test_a_checkpoint_in_the_table_is_refused(monkeypatch, tmp_path, checkpoint, table):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SparkJobError, match="lie in one another") as error:
        apart(checkpoint, table.format(here=tmp_path))
    assert error.value.exit_code == 2


def test_folders_beside_each_other_are_fine():
    apart("tables/checkpoints/channel", "tables/channel")
    apart("s3://bucket/tables/checkpoints/channel", "s3://bucket/tables/channel")
    apart("tables/channel-2", "tables/channel")


def test_a_table_of_another_job_is_refused(tmp_path):
    refuse_foreign(str(tmp_path / "t"), "table-view", "views")
    (tmp_path / "t" / "views").mkdir(parents=True)
    with pytest.raises(TableFormatError, match="not a table of table-view"):
        refuse_foreign(str(tmp_path / "t"), "table-view", "views")


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
