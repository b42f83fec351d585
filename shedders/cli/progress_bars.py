"""Progress bars on standard error, visible only on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from statechannel.cli.kit.output import cell, stderr


class ProgressBars:
    """Lines of progress, one per name.

    Attributes:
        seen: Whether standard error is a terminal; if not, callers need not compute the progress.
    """

    def __init__(self, shown: Progress, *, seen: bool) -> None:
        self._progress = shown
        self._tasks: dict[str, TaskID] = {}
        self.seen = seen

    def show(self, name: str, text: str, done: int, total: int) -> None:
        """Show the progress of a name."""
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = self._progress.add_task("", total=total)
        self._progress.update(task, description=cell(text), completed=done, total=total)

    def drop(self, name: str) -> None:
        """Remove the line of a name."""
        task = self._tasks.pop(name, None)
        if task is not None:
            self._progress.remove_task(task)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the lines while other output is written to the terminal."""
        if not self.seen:
            yield
            return
        self._progress.stop()
        try:
            yield
        finally:
            self._progress.start()


@contextmanager
def bar() -> Iterator[ProgressBars]:
    """Show progress bars for the duration of the context."""
    console = stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    seen = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not seen) as shown:
        yield ProgressBars(shown, seen=seen)
