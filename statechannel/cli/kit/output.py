"""Output of results: aligned tables, or JSON for programs; data on standard output, progress and all else on standard error."""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from statechannel.cli.kit.fitted_tables import Cell, Column, FittedTable, Tone, fact_list
from statechannel.clocks import moment

if TYPE_CHECKING:  # only a wait of some seconds shows one
    from rich.status import Status

_WIDTH_OF_NO_TERMINAL = 200
_WAITING_SHOWN_AFTER_S = 1.0
_SIGNALLED = 128
"""Exit code of a process that a signal has ended, minus the signal's number."""

_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")

_printed = False
"""Whether this run of the command has printed a document."""


class Output(StrEnum):
    """Format of a result.

    Attributes:
        TABLE: Tables that fit the width of the terminal.
        WIDE: Tables with all columns, each row in one line.
    """

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"


_chosen = Output.TABLE
"""The format that this run was asked for."""
_coloured = True
_hidden = False


def choose(output: Output) -> Output:
    global _chosen  # noqa: PLW0603 - one run, one standard output
    _chosen = output
    return output


def switch_colours_off() -> None:
    global _coloured  # noqa: PLW0603 - one run, one standard output
    _coloured = False


def is_wide() -> bool:
    """Whether tables are printed with all columns: if asked for, and in a pipe or a file."""
    return _chosen is Output.WIDE or not (sys.stdout.isatty() or "COLUMNS" in os.environ)


def stdout() -> Console:
    """Standard output. Created at each call: tests and pipes replace the stream."""
    return _console(sys.stdout)


def stderr() -> Console:
    return _console(sys.stderr)


def _console(stream: Any) -> Console:
    terminal = stream.isatty()
    width = None if terminal or "COLUMNS" in os.environ else _WIDTH_OF_NO_TERMINAL
    return _Console(
        file=stream,
        width=width,
        highlight=False,
        soft_wrap=not terminal,
        emoji=False,
        no_color=None if _coloured else True,
    )


class _Console(Console):
    """A console that lets callers handle a closed pipe; rich's own ends the process."""

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 - rich calls it while it handles the error


def print_json(value: object) -> None:
    _note_printed()
    sys.stdout.write(_dumped(value, orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def print_json_lists(document: Mapping[str, object], lists: Mapping[str, Iterable[object]]) -> None:
    """One JSON document whose last fields are lists, written item by item."""
    _note_printed()
    write = sys.stdout.write
    head = _indented(document).rstrip("}").rstrip()
    write(head)
    first = head == "{"
    for name, rows in lists.items():
        write(f'{"" if first else ","}\n  "{name}": [')
        first, before = False, "\n    "
        for row in rows:
            write(before + _indented(row).replace("\n", "\n    "))
            before = ",\n    "
        write("]" if before == "\n    " else "\n  ]")
    write("}\n" if first else "\n}\n")


def _indented(value: object) -> str:
    return _dumped(value, orjson.OPT_INDENT_2)


def _dumped(value: object, option: int) -> str:
    try:
        text = orjson.dumps(value, option=option).decode()
    except orjson.JSONEncodeError:
        text = orjson.dumps(_as_text(value), option=option).decode()
    return json_for_stdout(text)


def json_for_stdout(text: str) -> str:
    """JSON as standard output can take it: in UTF-8, else in ASCII."""
    if codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8":
        return text
    return _BEYOND_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _as_text(value: object) -> object:
    """The same with lone surrogates, which JSON cannot represent, replaced."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {_as_text(key): _as_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_text(item) for item in value]
    return value


def print_json_line(value: object) -> None:
    _note_printed()
    sys.stdout.write(_dumped(value, orjson.OPT_APPEND_NEWLINE))
    sys.stdout.flush()


def _note_printed(*, printed: bool = True) -> None:
    global _printed  # noqa: PLW0603 - one run, one standard output
    _printed = printed


def begin_output() -> None:
    """Note that a run of the command begins: nothing is printed yet."""
    global _coloured  # noqa: PLW0603 - one run, one standard output
    _note_printed(printed=False)
    choose(Output.TABLE)
    _coloured = True
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error: no character may end a command


def print_failure(message: str, hint: str, exit_code: int, reason: str, *, retryable: bool) -> None:
    """Print the JSON document of a failed run, unless it has printed one already."""
    if not _printed:
        failure = {"error": message, "reason": reason, "hint": hint, "exit_code": exit_code, "retryable": retryable}
        print_json_line(failure)


def print_table(
    headers: Sequence[str | Column], rows: Iterable[Sequence[object]], *, title: str = "", empty: str = ""
) -> None:
    """Print a table that fits the terminal; `empty` replaces a table without rows."""
    console = stdout()
    if title:
        console.print(Text(title, style=Tone.HEAD))
    table = make_table(headers, rows, empty=empty)
    console.print(table, soft_wrap=not isinstance(table, Text) or None)


def print_rows(
    columns: Sequence[str | Column | None], rows: Iterable[Any], *, title: str = "", empty: str = ""
) -> None:
    """Print a table whose columns say what they show of each row; a column that is None is left out."""
    print_table(*_headers_and_cells(columns, rows), title=title, empty=empty)


def make_rows(
    columns: Sequence[str | Column | None], rows: Iterable[Any], *, empty: str = "", footer: bool = True
) -> FittedTable | Text:
    """Build the same table without printing it."""
    return make_table(*_headers_and_cells(columns, rows), empty=empty, footer=footer)


def _headers_and_cells(
    columns: Sequence[str | Column | None], rows: Iterable[Any]
) -> tuple[list[Column], list[list[object]]]:
    shown = [column if isinstance(column, Column) else Column(column) for column in columns if column is not None]
    return shown, [[column.of_row(row) for column in shown] for row in rows]


def make_table(
    headers: Sequence[str | Column], rows: Iterable[Sequence[object]], *, empty: str = "", footer: bool = True
) -> FittedTable | Text:
    """Build the same table without printing it."""
    filled = list(rows)
    return FittedTable(headers, filled, is_wide(), footer) if filled else Text(empty or "nothing")


def print_facts(facts: Iterable[tuple[str | Cell, object]], *, title: str = "") -> None:
    """Print titles and values in two columns; values wrap at blanks."""
    console = stdout()
    if title:
        console.print(Text(title, style=Tone.HEAD))
    console.print(make_facts(facts), soft_wrap=True)


def print_hanging(first: str | Text, text: str) -> None:
    """Print a sentence beside what begins its first line; its other lines are indented as far."""
    console = stdout()
    if is_wide():
        console.print(Text.assemble(first, text))
        return
    grid = Table.grid()
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text.assemble(first), Text(text))
    console.print(grid)


def make_facts(facts: Iterable[tuple[str | Cell, object]]) -> FittedTable:
    return fact_list(facts, wide=is_wide())


def say(text: str) -> None:
    """Print a remark on standard error; a closed stream is ignored."""
    try:
        console = stderr()
        if not is_display_on(console):
            console.print(Text(text))
    except OSError:
        silence_stderr()


_remarks: set[str] = set()


def say_once(text: str) -> None:
    """The same, unless this command has said it already: several of its parts read one file."""
    if text not in _remarks:
        _remarks.add(text)
        say(text)


def forget_said() -> None:
    """A command begins."""
    _remarks.clear()


def silence_stdout() -> None:
    """Standard output was closed by its reader; avoids the interpreter's complaint at its final flush."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
    _note_printed(printed=False)


def silence_stderr() -> None:
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123


def when(timestamp_ms: int | None) -> Cell | None:
    """A time of the log in a table; on a narrow terminal without the year, and without the date if it is today."""
    if timestamp_ms is None:
        return None
    complete = moment(timestamp_ms)
    date, _, clock = complete.partition(" ")
    if not clock:
        return Cell(complete)
    now = datetime.now(UTC)
    if date == f"{now:%Y-%m-%d}":
        return Cell(complete, clock)
    return Cell(complete, f"{date[5:]} {clock[:8]}Z" if date[:4] == f"{now:%Y}" else f"{date} {clock[:5]}Z")


@contextmanager
def ends_on_sigterm() -> Iterator[None]:
    """End by an exception at SIGTERM meanwhile, so that the terminal is restored first; the exit code is that of the signal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        raise SystemExit(_SIGNALLED + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def is_display_on(console: Console) -> bool:
    """Whether a display has this terminal, so that no remark or progress may be printed on it."""
    return _hidden and console.is_terminal


@contextmanager
def remarks_hidden() -> Iterator[None]:
    """Print no remarks and no progress on a terminal meanwhile: it belongs to a display."""
    global _hidden  # noqa: PLW0603 - one run, one terminal
    _hidden = True
    try:
        yield
    finally:
        _hidden = False


@contextmanager
def waiting(doing: str, at_most_s: float) -> Iterator[Callable[[str], None]]:
    """Show a line on standard error about a longer wait, if it is a terminal.

    Yields a function to call repeatedly, with a remark for the end of the line.
    """
    console = stderr()
    begun_s = time.monotonic()
    shown: list[Status] = []

    def tick(remark: str = "") -> None:
        elapsed_s = time.monotonic() - begun_s
        if _hidden or not console.is_terminal or elapsed_s < _WAITING_SHOWN_AFTER_S:
            return
        line = Text(f"{doing}: {elapsed_s:.0f} s of at most {at_most_s:.0f} s{remark}")
        if shown:
            shown[0].update(line)
        else:
            shown.append(console.status(line))
            shown[0].start()

    try:
        yield tick
    finally:
        for status in shown:
            status.stop()
