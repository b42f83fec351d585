"""A job of which something is killed in the middle of its work: its own process, or Spark's JVM."""

import os
import signal
import sys
from importlib import import_module

from pyspark import SparkContext

from spark.core.store import SnapshotStore
from spark.replay.replay import Replay

# Behind the pointer that names a batch which Spark's checkpoint does not know; in front of the first pass over a log.
JOBS = {
    "table-view": ("spark.jobs.table_view", SnapshotStore, "publish", False),
    "replay": ("spark.jobs.replay", Replay, "run", True),
    "audit": ("statechannel.cli.start", Replay, "run", True),
}


def die(what):
    """As nothing else could end it: no handler runs."""
    print("dies", flush=True)
    if what == "process":
        os.kill(os.getpid(), signal.SIGKILL)
    jvm = SparkContext._active_spark_context._gateway.proc
    jvm.kill()
    jvm.wait()


def run(what, job, arguments):
    module, owner, name, first = JOBS[job]
    real = getattr(owner, name)

    def dying(*args, **kwargs):
        if first:
            die(what)
        done = real(*args, **kwargs)
        die(what)
        return done

    setattr(owner, name, dying)
    sys.argv[1:] = ["audit", *arguments] if job == "audit" else arguments
    return import_module(module).main()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2], sys.argv[3:]))
