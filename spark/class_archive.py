"""The class archive of Spark's JVM: the parsed classes of an earlier session, which halve what a start costs.

`python -m spark.class_archive` makes it, for `make dev`. As with Kafka's (statechannel/embedded/commands.py) it only ever
helps: Java checks it against itself and the class path, and goes on without it if it differs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from spark.errors import SparkJobError
from statechannel.embedded import commands
from statechannel.embedded.java import Java, find_java
from statechannel.embedded.pinned import cache_dir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MAKING = "STATECHANNEL_SPARK_CLASS_ARCHIVE_TO"
_QUIET = "-Xlog:cds*=off -Xlog:class+path=off"
"""What Java has to say of an archive that does not fit would stand in the output of a job."""
_TIMEOUT_S = 240.0
_ENDS_WITHIN_S = 120.0


def java_options(java: Java) -> str:
    """The options of Spark's driver that use the archive, or make it; empty if there is none."""
    if target := os.environ.get(_MAKING):
        return " ".join([*commands.make_archive(java, Path(target)), _QUIET])
    archive = commands.use_archive(java, archive_path(java))
    return " ".join([*archive, _QUIET]) if archive and not any(" " in word for word in archive) else ""


def archive_path(java: Java) -> Path:
    """Where the archive for this Java and this Spark lies, or would lie."""
    import pyspark

    facts = "\n".join((str(java.executable), java.banner, pyspark.__file__, pyspark.__version__))
    key = hashlib.sha256(facts.encode()).hexdigest()[:16]
    return cache_dir() / "class-archives" / f"spark-{key}.jsa"


def prepare() -> bool:
    """Create the archive unless it exists; whether it exists now."""
    archive = archive_path(find_java())
    if archive.exists():
        return True
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="spark-", dir=archive.parent) as scratch:
        fresh = Path(scratch) / archive.name
        command = [sys.executable, "-m", "spark.class_archive", scratch]
        subprocess.run(
            command, env=os.environ | {_MAKING: str(fresh)}, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
        if fresh.exists():
            # In one step, since another start may look for it at this moment.
            fresh.replace(archive)
    return archive.exists()


def run_once(folder: Path) -> None:
    """A session that does a little of what the jobs do, and waits for its JVM to end: that is when Java writes."""
    from spark.core.session import open_session

    settings = {"spark.master": "local[1]", "spark.local.dir": str(folder / "local")}
    session = open_session("class-archive", conf=settings)
    session.range(100).selectExpr("id", "id % 7 as part").write.parquet(str(folder / "table"))
    read = session.read.parquet(str(folder / "table"))
    read.groupBy("part").count().join(read, "part").collect()
    rows = session.readStream.schema(read.schema).parquet(str(folder / "table"))
    writer = rows.writeStream.foreachBatch(_count)
    writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    started = psutil.Process().children(recursive=True)
    session.stop()
    # Its JVM ends when this end does.
    session.sparkContext._gateway.proc.stdin.close()  # type: ignore[union-attr]  # noqa: SLF001 - where pyspark keeps it
    psutil.wait_procs(started, timeout=_ENDS_WITHIN_S)


def _count(frame: DataFrame, _: int) -> None:
    frame.count()


def main() -> int:
    """Make the archive and say so; returns the exit status, 0 too where it could not be made."""
    if len(sys.argv) > 1:
        run_once(Path(sys.argv[1]))
        return 0
    began_s = time.monotonic()
    try:
        path = prepare()
    except (SparkJobError, OSError, subprocess.TimeoutExpired) as error:
        print(f"setup: no class archive for Spark, its starts will take longer: {error}")
        return 0
    took_s = time.monotonic() - began_s
    print(f"setup: Spark is ready to start ({took_s:.1f} s)" if path else "setup: no class archive for Spark")
    return 0


if __name__ == "__main__":
    sys.exit(main())
