"""Tables and lists of facts that fit the width of the terminal; colours by meaning.

A table that is too wide shows short forms of its cells; then columns are left out from the highest rank on, and sentences move
below their row; at last each row is a list of facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from statechannel.printable import printable

_GAP: Final = 2
_TEXT_FROM: Final = 32
"""A column is text if a cell is longer than this and has blanks."""
_TEXT_LEAST: Final = 30
"""Text that has less room beside the other columns moves below its row; also one whose words need up to `_WORD_MAX`."""
_WORD_MAX: Final = 40
_TEXT_RANK: Final = 3
"""Columns of a lower rank are kept beside the others when text moves below its row."""
_INDENT: Final = 2


class Tone(StrEnum):
    """Style of a meaning. What it says is said in words as well."""

    GOOD = "green"
    BAD = "bold red"
    WARNING = "yellow"
    BUSY = "cyan"
    QUIET = "dim"
    HEAD = "bold"


_TONES: Final = {
    "alive": Tone.GOOD,
    "draining": Tone.WARNING,
    "lost": Tone.BAD,
    "left": Tone.QUIET,
    "safe": Tone.BAD,
    "starting": Tone.BUSY,
    "settling": Tone.BUSY,
    "Assigning": Tone.BUSY,
    "Releasing": Tone.BUSY,
    "Splitting": Tone.BUSY,
    "Unassigned": Tone.WARNING,
    "running": Tone.BUSY,
    "timed-out": Tone.WARNING,
    "open": Tone.BAD,
    "equal": Tone.GOOD,
    "different": Tone.BAD,
    "missing": Tone.WARNING,
    "forbidden": Tone.BAD,
}


class Cell(NamedTuple):
    """A value in a table.

    Attributes:
        text: The complete value.
        short: A shorter form for narrow terminals; None if there is none.
    """

    text: str
    short: str | None = None
    tone: Tone | None = None


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        rank: Columns of rank 0 are never dropped; those of the highest rank are dropped first.
        text: Whether cells may wrap, or move below their row; None: if they are long and have blanks. Never the first column.
        of: What it shows of a row: a key or attribute, or a function; None: what is named as its title.
    """

    title: str
    rank: int = 0
    text: bool | None = None
    of: str | Callable[[Any], object] | None = None

    def of_row(self, row: Any) -> object:
        if callable(self.of):
            return self.of(row)
        name = self.of or self.title
        return row[name] if isinstance(row, Mapping) else getattr(row, name)


def toned(state: str | None) -> Cell | None:
    return None if state is None else Cell(state, tone=_TONES.get(state))


def cell(value: object) -> str:
    """A value as text in one line; None is a dash."""
    if value is None or value == "":
        return "-"
    if isinstance(value, Cell):
        return cell(value.text)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    return printable(str(value))


class _Filled(NamedTuple):
    """A column with the cells of all rows.

    Attributes:
        numeric: Aligned to the right.
        width: Without any line break.
        least: With line breaks.
    """

    title: str
    rank: int
    text: bool
    numeric: bool
    cells: list[Cell]
    width: int
    least: int


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table; `print_table` prints it.

    Attributes:
        rows: As many values each as there are headers.
        wide: All columns, each row in one line, whatever the width.
        footer: Name the columns that are left out below the table.
        titled: Whether it has a line of titles; one that has none keeps all columns.
    """

    headers: Sequence[str | Column]
    rows: Sequence[Sequence[object]]
    wide: bool = False
    footer: bool = True
    titled: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        options = options.update(no_wrap=False, overflow="fold")
        complete, width = self._filled(short=False), options.max_width
        if self.wide or sum(column.width + _GAP for column in complete) - _GAP <= width:
            yield from self._lines(complete, [], console, options)
            return
        columns = self._filled(short=True)
        if not self.titled:
            grid, (titles, values) = self._grid(columns), columns
            room = width - _GAP - _longest_word(values.cells)  # titles wrap before a digest is broken
            grid.columns[0].max_width = room if room >= _longest_word(titles.cells) else None
            yield from console.render(grid, options)
            return
        shown, below = _reduced(columns, width)
        longer = [whole for whole, column in zip(complete, columns, strict=True) if column in shown]
        beside = longer if _fit(longer, width) else shown
        if not shown:
            yield from _blocks(columns, console, options)
        elif any(column.text for column in shown):
            yield from console.render(self._grid(beside), options)
        else:
            yield from self._lines(beside, below, console, options)
        left_out = [column.title for column in columns if shown and column not in shown and column not in below]
        if left_out and self.footer:
            note = Text(f"(`-o wide` also shows: {', '.join(left_out)})", style=Tone.QUIET)
            yield from console.render(note, options)

    def _filled(self, *, short: bool) -> list[_Filled]:
        columns = []
        for number, header in enumerate(self.headers):
            column = Column(header) if isinstance(header, str) else header
            values = [row[number] for row in self.rows]
            cells = [_shown(value, short=short) for value in values]
            numeric = self.titled and bool(values) and all(isinstance(value, int | float) for value in values)
            prose = any(len(shown.text) > _TEXT_FROM and " " in shown.text for shown in cells)
            text = number > 0 and (prose if column.text is None else column.text)
            rank = _TEXT_RANK if text and not column.rank else column.rank
            width = max(cell_len(text) for text in (column.title, *(shown.text for shown in cells)))
            least = min(width, max(_TEXT_LEAST, min(_WORD_MAX, _longest_word(cells)))) if text else width
            columns.append(_Filled(column.title, rank, text, numeric, cells, width, least))
        return columns

    def _lines(
        self, columns: Sequence[_Filled], below: Sequence[_Filled], console: Console, options: ConsoleOptions
    ) -> Iterator[Segment]:
        """Each row in one line without blanks at its end, then its text. Ten times as fast as `_grid`: lists may be long."""
        styles = {tone: console.get_style(tone) for tone in Tone}
        titles = [tuple(Cell(column.title, tone=Tone.HEAD) for column in columns)] if self.titled else []
        rows = (*titles, *zip(*(column.cells for column in columns), strict=True))
        for number, row in enumerate(rows, -len(titles)):
            blank = 0
            for column, (text, _, tone) in zip(columns, row, strict=True):
                room = column.width - cell_len(text)
                if text.strip(" "):
                    yield Segment(" " * (blank + room * column.numeric))
                    yield Segment(text.rstrip(" "), None if tone is None else styles[tone])
                    blank = len(text) - len(text.rstrip(" ")) + room * (not column.numeric) + _GAP
                else:
                    blank += column.width + _GAP
            yield Segment.line()
            for column in below if number >= 0 else ():
                text = column.cells[number].text
                if text != cell(None):
                    label = f"{column.title}: " if len(below) > 1 else ""
                    indented = Padding(Text(label + text, style=Tone.QUIET), (0, 0, 0, _INDENT), expand=False)
                    yield from console.render(indented, options)

    def _grid(self, columns: Sequence[_Filled]) -> Table:
        table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_header=self.titled)
        for column in columns:
            table.add_column(
                Text(column.title, style=Tone.HEAD),
                justify="right" if column.numeric else "left",
                no_wrap=self.titled and not column.text,
                overflow="fold",
            )
        for row in zip(*(column.cells for column in columns), strict=True):
            table.add_row(*(Text(text, style=tone or "") for text, _, tone in row))
        return table


def _shown(value: object, *, short: bool) -> Cell:
    if isinstance(value, Cell):
        return Cell(cell(value.short if short and value.short is not None else value.text), tone=value.tone)
    return Cell(cell(value))


def _longest_word(cells: Sequence[Cell]) -> int:
    return max((cell_len(word) for text, _, _ in cells for word in text.split()), default=0)


def _fit(columns: Sequence[_Filled], width: int) -> bool:
    return sum(column.least + _GAP for column in columns) - _GAP <= width


def _reduced(columns: Sequence[_Filled], width: int) -> tuple[list[_Filled], list[_Filled]]:
    """The columns to show side by side, none if they do not fit, and those to show below each row."""
    shown, below = list(columns), list[_Filled]()
    while not _fit(shown, width):
        given_up = max(reversed(shown), key=lambda column: column.rank)  # of equal ranks the last one
        if not given_up.rank:
            return [], []
        if given_up.text:
            below = [column for column in shown if column.text]
            shown = [column for column in shown if not column.text]
        else:
            shown.remove(given_up)
    return shown, below


def _blocks(columns: Sequence[_Filled], console: Console, options: ConsoleOptions) -> Iterator[Segment]:
    """Each row as a list of facts, with a blank line between two rows."""
    for number in range(len(columns[0].cells)):
        if number:
            yield Segment.line()
        facts = [(column.title, column.cells[number]) for column in columns]
        yield from console.render(fact_list([fact for fact in facts if fact[1].text != cell(None)]), options)


def fact_list(facts: Iterable[tuple[str | Cell, object]], *, wide: bool = False) -> FittedTable:
    """Titles and values in two columns without headers.

    Args:
        wide: Each fact in one line, whatever the width.
    """
    rows = [
        (title if isinstance(title, Cell) else Cell(printable(title) or " ", tone=Tone.HEAD), value)
        for title, value in facts
    ]
    return FittedTable(("", Column("", text=True)), rows, wide, titled=False)
