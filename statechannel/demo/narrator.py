"""Output of the demo: steps, the commands to type, and their results."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH = 100
"""Width of the text without a terminal, and maximum width on one."""
_INDENT = "   "


class Narrator:
    """Colours only on a terminal, and not with NO_COLOR; plain ASCII, so that any terminal and log can show it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stdout, highlight=False, emoji=False, markup=False)
        if not self._console.is_terminal:
            self._console.width = _WIDTH
        self._begun_s = time.monotonic()
        self._step = 0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun_s

    def step(self, title: str) -> None:
        self._step += 1
        self._title(f"{self._step}. {title}")

    def clean_up(self) -> None:
        """Print the title of the end, without a number."""
        self._title("Clean-up")

    @property
    def where(self) -> str:
        return f"step {self._step}" if self._step else "the beginning"

    def failed(self, text: str, look: str) -> None:
        self._prose(f"[failed] {self.where}: {text}", "bold red")
        self._prose(look, "")

    def _title(self, title: str) -> None:
        self._console.print()
        line = Text(title, style="bold cyan")
        line.append(f"  [{self.elapsed_s:.0f} s]", style="dim")
        self._print(line)

    def say(self, text: str) -> None:
        self._prose(text, "")

    def good(self, text: str) -> None:
        self._prose(f"[ok] {text}", "green")

    def bad(self, text: str) -> None:
        self._prose(f"[FAILED] {text}", "bold red")

    def command(self, text: str) -> None:
        """Print a command as the user could type it."""
        self._print(Text(f"{_INDENT}$ {text}", style="bold"))

    def output(self, text: str) -> None:
        for line in text.rstrip().splitlines():
            self._print(Text(f"{_INDENT}  {line.rstrip()}", style="dim"))

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for header in headers:
            table.add_column(Text(header), overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        with self._console.capture() as captured:
            self._console.print(table, soft_wrap=False)
        for line in captured.get().rstrip().splitlines():
            self._print(Text.from_ansi(f"{_INDENT}{line.rstrip()}"))

    def _prose(self, text: str, style: str) -> None:
        width = min(self._console.width, _WIDTH) - len(_INDENT)
        for line in Text(text, style=style).wrap(self._console, width):
            line.rstrip()
            self._print(Text(_INDENT) + line)

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)


def milliseconds(length_ms: int | None) -> str:
    if length_ms is None:
        return "-"
    return f"{length_ms} ms" if length_ms < 1_000 else f"{length_ms / 1_000:.1f} s"  # noqa: PLR2004 - of units
