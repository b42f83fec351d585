"""Tables and lists of facts that fit the width of the terminal; colours by meaning.

A table that is too wide is made narrower in steps: cells take their short form, text wraps at blanks, columns are dropped
from the highest rank on (text moves below its row instead), and at last each row becomes a block of lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme

from statechannel.printable import printable

_GAP: Final = 2
_TEXT_FROM: Final = 32
"""A column is text if a cell is longer than this and has blanks."""
_TEXT_LEAST: Final = 30
_WORD_MAX: Final = 40
_TEXT_RANK: Final = 3
"""Columns of a lower rank are kept beside the others when text moves below its row."""
_INDENT: Final = 2
_VALUE_LEAST: Final = 20


class Tone(StrEnum):
    """Meaning of a colour. What it says is said in words as well."""

    GOOD = "good"
    BAD = "bad"
    WARNING = "warning"
    BUSY = "busy"
    QUIET = "quiet"
    HEAD = "head"


THEME: Final = Theme(
    {
        Tone.GOOD: "green",
        Tone.BAD: "bold red",
        Tone.WARNING: "yellow",
        Tone.BUSY: "cyan",
        Tone.QUIET: "dim",
        Tone.HEAD: "bold",
    }
)

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
        text: Whether cells may wrap at blanks, or move below their row; None: if they are long and have blanks.
    """

    title: str
    rank: int = 0
    text: bool | None = None


def toned(state: str | None) -> Cell | None:
    """A state in the colour of its meaning."""
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


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)


@dataclass(slots=True, eq=False)
class _Filled:
    """A column with the texts of all rows.

    Attributes:
        numeric: Aligned to the right.
        natural: Width without any line break.
        least: Width at which lines break at blanks only.
    """

    title: str
    rank: int
    text: bool
    numeric: bool
    cells: list[str]
    tones: list[Tone | None]
    natural: int = 0
    least: int = 0
    width: int = 0

    def measure(self) -> None:
        longest = max(map(cell_len, self.cells), default=0)
        self.natural = max(cell_len(self.title), longest)
        if self.text:
            words = max(map(_longest_word, self.cells), default=0)
            longest = min(longest, max(_TEXT_LEAST, min(_WORD_MAX, words)))
        self.least = max(longest, *(cell_len(word) for word in self.title.split() or [""]))


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table; `print_table` prints it.

    Attributes:
        rows: As many values each as there are headers.
        wide: All columns, each row in one line, whatever the width.
        footer: Name the dropped columns below the table.
    """

    headers: Sequence[str | Column]
    rows: Sequence[Sequence[object]]
    wide: bool = False
    footer: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head = console.get_style(Tone.HEAD)
        complete, filled = self._filled(short=False), self._filled(short=True)
        width = options.max_width
        for columns in (complete, filled):
            if (self.wide and columns is complete) or _width(columns, least=False) <= width:
                for column in columns:
                    column.width = column.natural
                yield from _grid(columns, [], console, head, width)
                return
        shown, below, fits = _reduced(filled, width)
        dropped = [column.title for column in filled if column not in shown and column not in below]
        if fits:
            longer = [whole for whole, column in zip(complete, filled, strict=True) if column in shown]
            wanted = sum(column.natural if column.text else column.least for column in longer) + _GAP * (
                len(longer) - 1
            )
            shown = longer if wanted <= width else shown
            _share(shown, width)
            yield from _grid(shown, below, console, head, width)
        else:
            yield from _blocks([column for column in filled if column in shown or column in below], console, width)
        if dropped and self.footer:
            note = f"(`-o wide` also shows: {', '.join(dropped)})"
            quiet = console.get_style(Tone.QUIET)
            for line in _wrapped(note, width, console):
                yield from _line([(line, quiet)])

    def _filled(self, *, short: bool) -> list[_Filled]:
        columns = []
        for number, header in enumerate(self.headers):
            column = Column(header) if isinstance(header, str) else header
            values = [row[number] for row in self.rows]
            numeric = bool(values) and all(isinstance(value, int | float) for value in values)
            texts = [_short(value) if short else cell(value) for value in values]
            prose = any(len(text) > _TEXT_FROM and " " in text for text in texts)
            text = prose if column.text is None else column.text
            tones = [value.tone if isinstance(value, Cell) else None for value in values]
            rank = _TEXT_RANK if text and number and not column.rank else column.rank
            columns.append(_Filled(column.title, rank, text, numeric, texts, tones))
            columns[-1].measure()
        return columns


def _short(value: object) -> str:
    return cell(value.short) if isinstance(value, Cell) and value.short is not None else cell(value)


def _width(columns: Sequence[_Filled], *, least: bool) -> int:
    return sum(column.least if least else column.natural for column in columns) + _GAP * (len(columns) - 1)


def _reduced(columns: Sequence[_Filled], width: int) -> tuple[list[_Filled], list[_Filled], bool]:
    """The columns to show side by side, those to show below each row, and whether they fit."""
    shown, below = list(columns), list[_Filled]()
    while _width(shown, least=True) > width:
        given_up = max(reversed(shown), key=lambda column: column.rank)  # of equal ranks the last one
        if not given_up.rank or len(shown) == 1:
            return shown, below, False
        shown.remove(given_up)
        if given_up.text:
            below.insert(0, given_up)
    return shown, below, True


def _share(columns: Sequence[_Filled], width: int) -> None:
    """Give each column its least width, and what is left to the columns that need it, text last."""
    left = width - _width(columns, least=True)
    for column in sorted(columns, key=lambda column: column.text):
        more = min(left, column.natural - column.least)
        column.width = column.least + more
        left -= more


def _grid(
    columns: Sequence[_Filled], below: Sequence[_Filled], console: Console, head: Style, width: int
) -> Iterator[Segment]:
    yield from _row([(column, column.title, head) for column in columns], console)
    styles = {tone: console.get_style(tone) for tone in Tone}
    for number in range(len(columns[0].cells)):
        texts = []
        for column in columns:
            tone = column.tones[number]
            texts.append((column, column.cells[number], None if tone is None else styles[tone]))
        yield from _row(texts, console)
        for column in below:
            text = column.cells[number]
            if text != cell(None):
                label = f"{column.title}: " if len(below) > 1 else ""
                for line in _wrapped(label + text, width - _INDENT, console):
                    yield from _line([(" " * _INDENT, None), (line, styles[Tone.QUIET])])


def _row(cells: Sequence[tuple[_Filled, str, Style | None]], console: Console) -> Iterator[Segment]:
    """One row, in as many lines as its highest cell has."""
    if all(cell_len(text) <= column.width for column, text, _ in cells):
        yield from _cells_line([(column, text, style) for column, text, style in cells])
        return
    wrapped = [_wrapped(text, column.width, console) for column, text, _ in cells]
    for number in range(max(map(len, wrapped))):
        yield from _cells_line(
            [
                (column, lines[number] if number < len(lines) else "", style)
                for (column, _, style), lines in zip(cells, wrapped, strict=True)
            ]
        )


def _cells_line(cells: Sequence[tuple[_Filled, str, Style | None]]) -> Iterator[Segment]:
    parts: list[tuple[str, Style | None]] = []
    pending = 0
    for column, text, style in cells:
        blank = column.width - cell_len(text)
        before = blank if column.numeric else 0
        if text:
            parts.append((" " * (pending + before), None))
            parts.append((text, style))
            pending = blank - before + _GAP
        else:
            pending += column.width + _GAP
    yield from _line(parts)


def _line(parts: Iterable[tuple[str, Style | None]]) -> Iterator[Segment]:
    kept = list(parts)
    while kept and not kept[-1][0].strip():
        kept.pop()
    for number, (text, style) in enumerate(kept, 1):
        if text:
            yield Segment(text if number < len(kept) else text.rstrip(), style)
    yield Segment.line()


def _wrapped(text: str, width: int, console: Console) -> list[str]:
    """Lines of at most `width`, broken at blanks; only a word that is longer than a line is broken itself."""
    if cell_len(text) <= width:
        return [text]
    return [line.plain.rstrip() for line in Text(text).wrap(console, max(1, width))]


def _blocks(columns: Sequence[_Filled], console: Console, width: int) -> Iterator[Segment]:
    """Each row as lines of `title: value`, with a blank line between two rows."""
    for number in range(len(columns[0].cells)):
        if number:
            yield Segment.line()
        facts = [Fact(column.title, column.cells[number], column.tones[number]) for column in columns]
        facts = [fact for fact in facts if fact.value != cell(None)]
        yield from _facts(facts, console, width)


class Fact(NamedTuple):
    """A line of a list of facts: its title and its value.

    Attributes:
        tone: Of the value.
        head: Of the title.
    """

    title: str
    value: str
    tone: Tone | None = None
    head: Tone = Tone.HEAD


@dataclass(frozen=True, slots=True)
class FactList:
    """Titles and values in two columns without headers; `print_facts` prints it.

    Attributes:
        wide: Each fact in one line, whatever the width.
    """

    facts: Sequence[Fact] = field(default_factory=list)
    wide: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max((_width_of(self.facts), options.max_width)) if self.wide else options.max_width
        yield from _facts(self.facts, console, width)


@dataclass(frozen=True, slots=True)
class HangingText:
    """A sentence whose further lines are indented; `print_hanging` prints it.

    Attributes:
        wide: In one line, whatever the width.
    """

    text: Text
    indent: int
    wide: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        if self.wide or cell_len(self.text.plain) <= width:
            yield self.text
            return
        first = self.text.wrap(console, width)[0]
        rest = self.text[len(first.plain) :]
        rest = rest[len(rest.plain) - len(rest.plain.lstrip()) :]
        first.rstrip()
        yield first
        for line in rest.wrap(console, max(1, width - self.indent)):
            line.rstrip()
            yield Text(" " * self.indent).append_text(line)


def fact(title: str, value: Any) -> Fact:
    """A fact of any value."""
    return Fact(printable(title), cell(value), value.tone if isinstance(value, Cell) else None)


def _width_of(facts: Sequence[Fact]) -> int:
    longest = max((cell_len(fact.value) for fact in facts), default=0)
    return max((cell_len(fact.title) for fact in facts), default=0) + _GAP + longest


def _facts(facts: Sequence[Fact], console: Console, width: int) -> Iterator[Segment]:
    titles = max((cell_len(fact.title) for fact in facts), default=0) + _GAP
    if width - titles < min(_VALUE_LEAST, max((cell_len(fact.value) for fact in facts), default=0)):
        yield from _stacked(facts, console, width)
        return
    for fact in facts:
        if width - titles < _longest_word(fact.value) <= width - _INDENT:
            yield from _stacked([fact], console, width)
            continue
        style = None if fact.tone is None else console.get_style(fact.tone)
        head = console.get_style(fact.head)
        title = fact.title.ljust(titles)
        for line in _wrapped(fact.value, width - titles, console):
            yield from _line([(title, head), (line, style)])
            title = " " * titles


def _stacked(facts: Sequence[Fact], console: Console, width: int) -> Iterator[Segment]:
    """Where two columns do not fit: each title in a line of its own, unless its value fits the same line."""
    for fact in facts:
        style = None if fact.tone is None else console.get_style(fact.tone)
        head = console.get_style(fact.head)
        if cell_len(fact.title) + 2 + cell_len(fact.value) <= width:
            yield from _line([(f"{fact.title}: ", head), (fact.value, style)])
            continue
        for line in _wrapped(f"{fact.title}:", width, console):
            yield from _line([(line, head)])
        for line in _wrapped(fact.value, max(1, width - _INDENT), console):
            yield from _line([(" " * _INDENT, None), (line, style)])
