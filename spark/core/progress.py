"""How much of a job's batch work is done, by Spark's own count of tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

    from statechannel.audit.engine import ProgressBar

_LOOK_S = 0.5
_LOOKS_END_S = 5.0

_WHOLE = 1_000

OnTasks = Callable[[int, int], None]
"""Called with the tasks done and the tasks known so far, whose number grows as Spark plans further stages."""


@contextmanager
def tasks_followed(context: SparkContext, on_tasks: OnTasks) -> Iterator[None]:
    """Report the tasks of all that this process runs meanwhile.

    Spark forgets stages that have ended: what was seen of them is remembered here. Looking costs two calls to the JVM for
    each running stage, twice a second.
    """
    ended = threading.Event()

    def follow() -> None:
        seen: dict[int, tuple[int, int]] = {}
        tracker = context.statusTracker()
        while not ended.wait(_LOOK_S):
            active = set(tracker.getActiveStageIds())
            for stage in active:
                if (info := tracker.getStageInfo(stage)) is not None:
                    seen[stage] = (info.numCompletedTasks, info.numTasks)
            for stage in seen.keys() - active:
                seen[stage] = (seen[stage][1], seen[stage][1])
            if seen:
                on_tasks(sum(done for done, _ in seen.values()), sum(tasks for _, tasks in seen.values()))

    thread = threading.Thread(target=follow, name="spark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_LOOKS_END_S)


@contextmanager
def tasks_shown(doing: str, context: SparkContext, bar: ProgressBar) -> Iterator[None]:
    """Show on a bar how many of the tasks that Spark has planned so far are done."""
    with bar(doing, _WHOLE, unit="of the tasks") as shown:
        furthest = 0

        def told(done: int, tasks: int) -> None:
            nonlocal furthest  # later stages make the whole larger; a bar must not go back
            furthest = max(furthest, _WHOLE * done // max(1, tasks))
            shown(furthest)

        with tasks_followed(context, told):
            yield
