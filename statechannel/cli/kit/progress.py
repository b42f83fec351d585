"""Bars and lines of progress on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from statechannel.cli.kit.fitted_tables import cell
from statechannel.cli.kit.output import ends_on_sigterm, is_display_on, say, say_once, stderr, waiting

if TYPE_CHECKING:  # lookups begin sooner without it
    from rich.progress import Progress, TaskID

_COUNT_EVERY_S = 1.0
_LEFT_EVERY_S = 10.0


@contextmanager
def progress(doing: str, total: int | None, *, unit: str = "") -> Iterator[Any]:
    """Show a progress bar on standard error if it is a terminal; yields a function to report progress with."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = stderr()
    hidden = is_display_on(console) or not console.is_terminal
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn() if total else MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda done: bar.update(task, completed=done)


class ProgressBars:
    """Lines of progress, one per name: bars on a terminal; else, if wanted, printed when they change.

    Attributes:
        seen: Whether anything is shown; if not, callers need not compute the progress.
    """

    def __init__(self, shown: Progress, *, terminal: bool, lines: bool) -> None:
        self._progress = shown
        self._terminal = terminal
        self._tasks: dict[str, TaskID] = {}
        self._printed: dict[str, tuple[str, str, float]] = {}
        self.seen = terminal or lines

    def show(self, name: str, text: str, done: int, total: int, *, left: str = "") -> None:
        """Show a line.

        Args:
            left: Its end, which changes often.
        """
        if not self._terminal:
            self._print(
                name,
                text,
                f": {done} of {total}" if total > 1 else left,
                _COUNT_EVERY_S if total > 1 else _LEFT_EVERY_S,
            )
            return
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = self._progress.add_task("", total=total)
        self._progress.update(task, description=cell(text + left), completed=done, total=total)

    def _print(self, name: str, text: str, end: str, every_s: float) -> None:
        """Print a line if its text has changed, and if its end has, every now and then."""
        now_s = time.monotonic()
        before, end_before, printed_s = self._printed.get(name, ("", "", 0.0))
        if self.seen and (text != before or (end != end_before and now_s - printed_s >= every_s)):
            self._printed[name] = (text, end, now_s)
            say(cell(text + end))

    def drop(self, name: str) -> None:
        self._printed.pop(name, None)
        task = self._tasks.pop(name, None)
        if task is not None:
            self._progress.remove_task(task)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the bars while other output is written to the terminal."""
        if not self._terminal:
            yield
            return
        self._progress.stop()
        try:
            yield
        finally:
            self._progress.start()


@contextmanager
def bar(*, lines: bool = False) -> Iterator[ProgressBars]:
    """Bars of progress on standard error.

    Args:
        lines: Print lines of progress if standard error is not a terminal.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    terminal = console.is_terminal
    with ends_on_sigterm(), Progress(*columns, console=console, transient=True, disable=not terminal) as shown:
        yield ProgressBars(shown, terminal=terminal, lines=lines)


class Terminal:
    """Tells a person, on standard error."""

    def note(self, sentence: str, *, once: bool = False) -> None:
        (say_once if once else say)(sentence)

    def progress(
        self, doing: str, total: int | None, *, unit: str = ""
    ) -> AbstractContextManager[Callable[[int], None]]:
        return progress(doing, total, unit=unit)

    def waiting(self, doing: str, at_most_s: float) -> AbstractContextManager[Callable[[str], None]]:
        return waiting(doing, at_most_s)


TERMINAL: Final = Terminal()
