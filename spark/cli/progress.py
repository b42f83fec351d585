"""A bar for batch work, on standard error, where that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark.progress import tasks_followed
from statechannel.cli.output import progress, stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WHOLE = 1_000


@contextmanager
def batch_progress(doing: str, session: SparkSession) -> Iterator[None]:
    """Show how many of the tasks that Spark has planned so far are done."""
    if not stderr().is_terminal:
        yield
        return
    with progress(doing, _WHOLE, unit="of the tasks") as shown:
        furthest = 0

        def told(done: int, tasks: int) -> None:
            nonlocal furthest  # further stages make the whole larger; a bar that goes back helps nobody
            furthest = max(furthest, _WHOLE * done // max(1, tasks))
            shown(furthest)

        with tasks_followed(session.sparkContext, told):
            yield
