"""The Spark session of the jobs: what correctness needs, and defaults for a small machine.

Under `spark-submit` the JVM runs already: its settings stand, and its connector is the one that `--packages` or `--jars`
brought. Under plain Python this module starts the JVM, with the connector's pinned jars. No master is named here: plain
Python gives `local[*]`, anything else comes with `spark.master`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import resources, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark.core.running import gist
from spark.errors import SparkJobError
from spark.jars import prepare_jars
from statechannel.embedded.errors import JarsUnavailableError, JavaUnavailableError
from statechannel.embedded.jars import cache_dir
from statechannel.embedded.java import Java, find_java, make_archive, use_archive
from statechannel.errors import ExitCode
from statechannel.extras import install_command

if TYPE_CHECKING:
    from io import BufferedReader

    from pyspark.sql import SparkSession


# What every start says, whether all is well or not. The rest passes.
_NOISE = (b"WARNING: Using incubator modules",)


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM unless this process has one.

    It is in a process group of its own, so that a signal for the terminal's group reaches the job, which then stops its
    query in order. The JVM ends by itself when this process does, however that ends.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:  # noqa: SLF001 - the place where pyspark keeps it
        return
    conf = SparkConf(loadDefaults=False)
    for name, value in settings.items():
        conf.set(name, value)
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(os.fdopen(reading, "rb"),), name="spark-stderr", daemon=True).start()
    try:
        gateway = launch_gateway(conf, {"stderr": writing, "process_group": 0})  # type: ignore[no-untyped-call]
    finally:
        os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - as SparkContext itself does


def _pass_on(stream: BufferedReader) -> None:
    with stream:
        while some := stream.read1():  # a progress bar has no lines
            for line in some.splitlines(keepends=True):
                if not line.startswith(_NOISE):
                    os.write(2, line)


_NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    # Spark's own default is a type that other readers of Parquet have given up.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Results would differ without these, so they win over everybody."""

_PROGRESS = "spark.ui.showConsoleProgress"
_SMALL = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "4",
    # Spark would wait for ever for a batch that does not react.
    "spark.sql.streaming.stopTimeout": "10s",
    "spark.ui.enabled": "false",
    _PROGRESS: "false",
}
_SMALL_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
# The stack: when a batch is stopped, Spark matches the whole Python traceback with one recursive pattern.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ThreadStackSize=8192"
_OWN_JARS = ("spark.jars", "spark.jars.packages")
_WORKER_PYTHON = "spark.pyspark.python"
_CONNECTOR_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_SUBMITTED_VARIABLE = "PYSPARK_GATEWAY_PORT"


MAKE_ARCHIVE_VARIABLE = "STATECHANNEL_SPARK_CLASS_ARCHIVE_TO"
_QUIET_ARCHIVE = "-Xlog:cds*=off -Xlog:class+path=off"
"""Else Java's messages on an archive that does not fit would be in the output of a job."""


def archive_options(java: Java) -> str:
    """The options of Spark's driver that use the archive, or make it; empty if there is none."""
    if target := os.environ.get(MAKE_ARCHIVE_VARIABLE):
        return " ".join([*make_archive(java, Path(target)), _QUIET_ARCHIVE])
    options = use_archive(java, archive_path(java))
    return " ".join([*options, _QUIET_ARCHIVE]) if options and not any(" " in word for word in options) else ""


def archive_path(java: Java) -> Path:
    """Where the archive for this Java and this Spark lies, or would lie."""
    import pyspark

    facts = "\n".join((str(java.executable), java.banner, pyspark.__file__, pyspark.__version__))
    key = hashlib.sha256(facts.encode()).hexdigest()[:16]
    return cache_dir() / "class-archives" / f"spark-{key}.jsa"


def settings_for(conf: Mapping[str, str], jars: Sequence[Path], *, java_options: str = "") -> dict[str, str]:
    """Settings of a session in a JVM of its own.

    Args:
        conf: What the user wants; it stands wherever correctness allows.
        jars: The connector's jars; left out if the user brings jars or packages.
    """
    master = conf.get("spark.master", "local[*]")
    settings = dict(_SMALL)
    if master.startswith("local"):
        settings |= _SMALL_LOCAL
    log_settings = resources.files("spark").joinpath("log4j2.properties")
    settings["spark.driver.extraJavaOptions"] = (
        f"{_JAVA_OPTIONS} -Dlog4j2.configurationFile=file:{log_settings} {java_options}".rstrip()
    )
    if jars and not any(name in conf for name in _OWN_JARS):
        settings["spark.jars"] = ",".join(path.resolve().as_uri() for path in jars)
    return settings | dict(conf) | _NEEDED


def open_session(
    app: str, *, conf: Mapping[str, str] | None = None, jars: Sequence[Path] | None = None
) -> SparkSession:
    """Make the session of this process, or give the one that there is.

    Args:
        app: Name of the application, shown by Spark.
        conf: Settings of Spark; they win over the defaults of this module.
        jars: The connector's jars; None takes the pinned ones, () none: the session then has no Kafka.

    Raises:
        SparkJobError: pyspark, Java or the connector is missing (SPARK_MISSING), or Spark does not start (SPARK_FAILED).
    """
    check_installed()
    wanted = dict(conf or {})
    submitted = _SUBMITTED_VARIABLE in os.environ
    brings_jars = any(name in wanted for name in _OWN_JARS)
    if submitted:
        settings = wanted | _NEEDED
    else:
        java = _find_java()
        _choose_worker_python(wanted)
        pinned = _pinned() if jars is None and not brings_jars else jars or ()
        settings = settings_for(wanted, pinned, java_options=archive_options(java))
    session = _start(app, settings, submitted=submitted)
    if jars is None or jars:
        _check_connector(session)
    return session


@contextmanager
def stopped(session: SparkSession) -> Iterator[SparkSession]:
    """Stop a session in the end. That fails where its JVM has ended, which must not hide what happened first."""
    try:
        yield session
    finally:
        with suppress(Exception):
            session.stop()


def batch_session(app: str, conf: Mapping[str, str], jars: Sequence[Path] | None) -> SparkSession:
    """`open_session` for work that ends: Spark shows its progress, if standard error is a terminal."""
    return open_session(app, conf={_PROGRESS: str(sys.stderr.isatty()).lower(), **conf}, jars=jars)


def check_installed() -> None:
    """Check that the extra `spark` is installed, without importing any of it.

    Raises:
        SparkJobError: It is not, or not all of it.
    """
    missing = [name for name in ("pyspark", "pandas", "pyarrow") if util.find_spec(name) is None]
    if missing:
        raise SparkJobError(
            f"the Spark jobs need {' and '.join(missing)}, not installed for {sys.executable}",
            hint=f"Install the extra: `{install_command('spark')}`.",
            exit_code=ExitCode.SPARK_MISSING,
        )


def _start(app: str, settings: Mapping[str, str], *, submitted: bool) -> SparkSession:
    from pyspark.sql import SparkSession

    try:
        if not submitted:
            start_jvm(settings)
        builder = SparkSession.builder.appName(app)
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
    except Exception as error:  # Py4J's errors and Spark's have no base in common
        raise SparkJobError(
            f"Spark does not start: {gist(str(error))}",
            hint="What Spark wrote above says why: see --conf, memory, and Java. If it wrote nothing, its JVM was killed.",
            exit_code=ExitCode.SPARK_FAILED,
        ) from error
    # When the JVM is killed, the accumulator server and Py4J print tracebacks; the job reports the cause itself.
    counters: Any = session.sparkContext._accumulatorServer  # noqa: SLF001
    counters.handle_error = lambda *_: None
    logging.getLogger().addFilter(_is_not_py4j)
    return session


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return "/py4j/" not in record.pathname


def _pinned() -> tuple[Path, ...]:
    try:
        return prepare_jars(say=lambda line: print(line, file=sys.stderr))
    except JarsUnavailableError as error:
        raise SparkJobError(str(error), hint=error.hint, exit_code=ExitCode.SPARK_MISSING) from error


def _choose_worker_python(conf: Mapping[str, str]) -> None:
    """Name the Python of the executors: the one asked for, else this one, which a cluster's nodes need at the same path.

    Spark itself heeds its setting only under spark-submit, and would take the `python3` of the PATH here.
    """
    if _WORKER_PYTHON in conf:
        os.environ["PYSPARK_PYTHON"] = conf[_WORKER_PYTHON]
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _find_java() -> Java:
    """Let Spark find the Java that the embedded Kafka would use; Spark itself looks at JAVA_HOME and PATH only."""
    try:
        java = find_java()
    except JavaUnavailableError as error:
        message = str(error).replace("Kafka needs", "Spark needs")
        raise SparkJobError(message, hint=error.hint, exit_code=ExitCode.SPARK_MISSING) from error
    if shutil.which("java") == str(java.executable):
        os.environ.pop("JAVA_HOME", None)
    else:
        os.environ["JAVA_HOME"] = str(java.executable.parent.parent)
    return java


def _check_connector(session: SparkSession) -> None:
    from py4j.protocol import Py4JJavaError

    try:
        session.sparkContext._jvm.org.apache.spark.util.Utils.classForName(  # type: ignore[union-attr]  # noqa: SLF001
            _CONNECTOR_CLASS, True, False
        )
    except Py4JJavaError as error:
        raise SparkJobError(
            "this Spark has no Kafka connector",
            hint="Give spark-submit the connector of its own version, for example "
            f"`--packages org.apache.spark:spark-sql-kafka-0-10_2.13:{session.version}`.",
            exit_code=ExitCode.SPARK_MISSING,
        ) from error
