"""A job whose JVM is killed in the middle of its work."""

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


def die():
    print("dies", flush=True)
    jvm = SparkContext._active_spark_context._gateway.proc
    jvm.kill()
    jvm.wait()


def run(job, arguments):
    module, owner, name, first = JOBS[job]
    real = getattr(owner, name)

    def dying(*args, **kwargs):
        if first:
            die()
        done = real(*args, **kwargs)
        die()
        return done

    setattr(owner, name, dying)
    sys.argv[1:] = ["audit", *arguments] if job == "audit" else arguments
    return import_module(module).main()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
