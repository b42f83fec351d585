"""Jobs on a cluster: a master and a worker whose Python does not know this project until the job ships it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark.jars import prepare_jars
from tests.spark.cluster_logs import pointer_of, write_log
from tests.spark.kafka_logs import UNCOMPILED_CONF
from tests.support.kafka_lanes import Kafka
from tests.support.standalone_spark import ROOT, SPARK_HOME, bare_python, package_zip, standalone
from tests.support.waits import WAIT_S as ONE_CONDITION_S

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

WAIT_S = 2 * ONE_CONDITION_S  # eight JVMs start in here
JOB = ROOT / "spark" / "jobs" / "table_view.py"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The master's URL, and a folder with `node/bin/python`, `package.zip`, `work0`."""
    folder = tmp_path_factory.mktemp("standalone")
    bare_python(folder / "node")
    package_zip(folder / "package.zip")
    with standalone(folder, workers=1) as master:
        yield master, folder


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )


def conf(master: str, more: dict[str, str]) -> list[str]:
    settings = {
        "spark.master": master,
        "spark.executor.memory": "600m",
        "spark.executor.extraJavaOptions": QUICK,
        **UNCOMPILED_CONF,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        **more,
    }
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


def job_options(kafka: Kafka, channel: str, folder: Path) -> list[str]:
    places = ["--checkpoint", str(folder / "checkpoint"), "--table", str(folder / "table")]
    return ["--bootstrap-servers", kafka.bootstrap_servers, "--channel", channel, *places, "--available-now"]


def executors(folder: Path) -> int:
    return len(list(folder.glob("work*/app-*/*/stderr")))


def test_spark_submit_ships_the_package_and_the_jars(kafka, cluster, topic_prefix, tmp_path):
    master, folder = cluster
    log = write_log(kafka.bootstrap_servers, topic_prefix)
    before = executors(folder)
    python = str(folder / "node" / "bin" / "python")
    command = [
        str(SPARK_HOME / "bin" / "spark-submit"),
        *("--jars", ",".join(map(str, prepare_jars()))),
        *("--py-files", str(folder / "package.zip")),
        *conf(master, {"spark.log.level": "ERROR", "spark.driver.memory": "600m"}),
        str(JOB),
        *job_options(kafka, log.channel, tmp_path),
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    # The driver too has the project from the zip alone.
    done = run(command, {**kept, "PYSPARK_PYTHON": python})
    assert done.returncode == 0, done.stderr[-4_000:]
    told = pointer_of(tmp_path / "table")
    assert (told["digest"], told["partitions"]["0"]["position"]) == (log.digest, log.records)
    assert executors(folder) > before, "it did not run on the cluster"


def test_plain_python_brings_its_own_jars(kafka, cluster, topic_prefix, tmp_path):
    master, folder = cluster
    log = write_log(kafka.bootstrap_servers, topic_prefix, seed=8)
    more = {
        "spark.pyspark.python": str(folder / "node" / "bin" / "python"),
        "spark.submit.pyFiles": str(folder / "package.zip"),
        "spark.cores.max": "1",  # one executor is enough to see what the driver brings
    }
    command = [sys.executable, "-m", "spark.jobs.table_view", *conf(master, more)]
    done = run([*command, *job_options(kafka, log.channel, tmp_path)], dict(os.environ))
    assert done.returncode == 0, done.stderr[-4_000:]
    # What the job says itself, and nothing of Spark's.
    assert all(line.startswith("table-view: ") for line in done.stderr.splitlines()), done.stderr
    told = pointer_of(tmp_path / "table")
    assert (told["digest"], told["partitions"]["0"]["position"]) == (log.digest, log.records)
