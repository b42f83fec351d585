"""The class archive of Spark's JVM: the parsed classes of an earlier session, which halve what a start costs.

`python -m tests.support.spark_class_archive` makes it, for `make dev`. As with Kafka's (statechannel/embedded/java.py) it
only ever helps: Java checks it against itself and the class path, and goes on without it if it differs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from spark.core.session import MAKE_ARCHIVE_VARIABLE, archive_path, open_session
from spark.errors import SparkJobError
from statechannel.embedded.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TIMEOUT_S = 240.0
_ENDS_WITHIN_S = 120.0


def prepare() -> bool:
    """Create the archive unless it exists; whether it exists now."""
    archive = archive_path(find_java())
    if archive.exists():
        return True
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="spark-", dir=archive.parent) as scratch:
        fresh = Path(scratch) / archive.name
        command = [sys.executable, "-m", "tests.support.spark_class_archive", scratch]
        subprocess.run(
            command,
            env=os.environ | {MAKE_ARCHIVE_VARIABLE: str(fresh)},
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if fresh.exists():
            # In one step, since another start may look for it at this moment.
            fresh.replace(archive)
    return archive.exists()


def run_once(folder: Path) -> None:
    """A session that does a little of what the jobs do, and waits for its JVM to end: that is when Java writes."""
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
    session.sparkContext._gateway.proc.stdin.close()  # type: ignore[union-attr]
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
