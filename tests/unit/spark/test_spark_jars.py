"""The connector's jars: a list of its own, a folder of its own, and a user's folder without any network."""

from pathlib import Path

import pytest

from spark.jars import JARS_VARIABLE, SPARK_JARS, SPARK_VERSION
from statechannel.embedded import JarsUnavailableError, jars
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


def test_a_folder_of_the_users_own_needs_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(jars, "fetch", lambda *_, **__: pytest.fail("something was fetched"))
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    with pytest.raises(JarsUnavailableError, match=r"lacks 4 of 4 jars of the Kafka connector") as error:
        SPARK_JARS.prepare()
    assert JARS_VARIABLE in error.value.hint
    for jar in SPARK_JARS.listed():
        (tmp_path / jar.name).write_bytes(b"something else")
    with pytest.raises(JarsUnavailableError, match="SHA-256 differs"):
        SPARK_JARS.prepare()


def test_what_cannot_be_fetched_names_this_list_and_this_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("jgo.maven.MavenContext.project", lambda *_: (_ for _ in ()).throw(OSError("no route")))
    with pytest.raises(JarsUnavailableError, match="mvn is not on PATH; jgo: no route") as error:
        SPARK_JARS.prepare()
    assert "spark/jars.sha256" in error.value.hint
    assert JARS_VARIABLE in error.value.hint
    assert "KAFKA" not in error.value.hint
