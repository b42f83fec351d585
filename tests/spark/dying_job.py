"""The job table-view, which kills its own process at a step: `python -m tests.spark.dying_job STEP ARGUMENTS`."""

import os
import signal
import sys

from spark.channel import table
from spark.core.store import SnapshotStore
from spark.jobs.table_view import main

STEPS = {
    "written": (table, "published", False),  # the snapshot is there, the pointer does not name it
    "committed": (SnapshotStore, "publish", True),  # the pointer names it, Spark's checkpoint does not know
}


def die_at(step: str) -> None:
    """Have the step kill this process, as nothing else could end it: no handler runs."""
    owner, name, behind = STEPS[step]
    real = getattr(owner, name)

    def act(*args, **kwargs):
        if behind:
            real(*args, **kwargs)
        print("dies", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, act)


if __name__ == "__main__":
    die_at(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
