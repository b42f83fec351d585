"""Who decides what about a session: correctness, then the user, then the defaults for a small machine."""

import os
import sys
from pathlib import Path

import pytest

from spark.core import session
from spark.core.session import settings_for
from statechannel.audit.engine import AuditQuestion, LiveSource
from statechannel.kafka.client_settings import ClientSettings

JARS = (Path("/jars/one.jar"), Path("/jars/two.jar"))


def test_defaults_are_those_of_a_small_machine_and_name_no_master():
    settings = settings_for({}, JARS)
    assert settings["spark.driver.memory"] == "1g"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert "-XX:+UseSerialGC" in settings["spark.driver.extraJavaOptions"]
    assert settings["spark.jars"] == "file:///jars/one.jar,file:///jars/two.jar"
    assert "spark.master" not in settings


def test_what_the_user_says_wins_unless_results_would_differ():
    asked = {"spark.driver.memory": "8g", "spark.driver.extraJavaOptions": "-ea", "spark.ui.enabled": "true"}
    assert {name: settings_for(asked, JARS)[name] for name in asked} == asked
    assert settings_for({"spark.sql.session.timeZone": "Asia/Tokyo"}, JARS)["spark.sql.session.timeZone"] == "UTC"


def test_a_cluster_must_be_able_to_reach_the_driver():
    settings = settings_for({"spark.master": "spark://host:7077"}, JARS)
    assert "spark.driver.bindAddress" not in settings
    assert "spark.driver.host" not in settings


@pytest.mark.parametrize("name", ["spark.jars", "spark.jars.packages"])
def test_who_brings_jars_gets_no_others(name):
    assert settings_for({name: "own"}, JARS)[name] == "own"
    assert {"spark.jars", "spark.jars.packages"} & set(settings_for({name: "own"}, JARS)) == {name}


@pytest.mark.parametrize(
    ("before", "conf", "chosen"),
    [
        (None, {}, sys.executable),
        ("/env/python", {}, "/env/python"),
        (None, {"spark.pyspark.python": "/nodes/python"}, "/nodes/python"),
        ("/env/python", {"spark.pyspark.python": "/nodes/python"}, "/nodes/python"),
    ],
)
def test_python_of_the_executors(monkeypatch, before, conf, chosen):
    monkeypatch.setattr(os, "environ", {} if before is None else {"PYSPARK_PYTHON": before})
    session._choose_worker_python(conf)
    assert os.environ["PYSPARK_PYTHON"] == chosen


def test_a_java_home_without_java_does_not_stop_spark_from_using_another_java(monkeypatch, tmp_path):
    (tmp_path / "java").write_text("#!/bin/sh\necho 'version \"17.0.1\"'\n")
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setattr(os, "environ", os.environ | {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path)})
    assert session._find_java().executable == tmp_path / "java"
    assert "JAVA_HOME" not in os.environ


def test_secrets_are_in_no_repr():
    client = ClientSettings("k:9092", {"sasl.password": "hush"})
    live = LiveSource("k:9092", "t", client.properties, print)
    assert "hush" not in repr(AuditQuestion(live, options={"spark.hadoop.fs.s3a.secret.key": "hush"}))
