"""A bar for batch work, on standard error, where that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark.core.progress import tasks_shown
from statechannel.cli.kit.output import progress, stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def batch_progress(doing: str, session: SparkSession) -> Iterator[None]:
    """Show how many of the tasks that Spark has planned so far are done."""
    if not stderr().is_terminal:
        yield
        return
    with tasks_shown(doing, session.sparkContext, progress):
        yield
