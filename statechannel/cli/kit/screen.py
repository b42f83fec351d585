"""Displays that are refreshed: the most important first, cut to the height of the terminal at their end."""

from __future__ import annotations

import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from statechannel.cli.kit.fitted_tables import Tone, cell
from statechannel.cli.kit.options import option
from statechannel.cli.kit.output import (
    Output,
    ends_on_sigterm,
    print_json,
    print_json_line,
    remarks_hidden,
    say,
    stdout,
    when,
)
from statechannel.clocks import moment

_REST = 4.0
"""Pause after a reading, in times of how long it took."""
_LEAST_ROWS = 4

Watch = Annotated[bool, option("--watch -w", "Refresh until interrupted.")]
Every = Annotated[float, option("--every SECONDS", "With --watch: refresh interval.", min=0.2, max=3600)]
EndsAfter = Annotated[float | None, option("--for SECONDS", "With --watch: end after this time.", min=0.1)]
EVERY_S = 2.0


Draw = Callable[[int], RenderableType]
"""Draws a display with at most that many rows in each of its tables."""


def counted(table: RenderableType, many: int, at_most: int, where: str = "`--output json` lists all") -> RenderableType:
    """A table, and below it how many of its rows are not shown, and where they are."""
    return table if many <= at_most else Group(table, Text(f"and {many - at_most} more ({where})"))


@dataclass(frozen=True, slots=True)
class FittedScreen:
    """A display in a terminal of limited height: with fewer rows, but not below a fifth of the height; then cut at its end."""

    draw: Draw

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.height
        options = options.update(height=None)

        def lines(rows: int) -> list[list[Segment]]:
            return console.render_lines(self.draw(rows), options, pad=False)

        least = min(max(_LEAST_ROWS, height // 5), height)
        rows = bisect_right(range(height + 1), height, lo=least, key=lambda rows: len(lines(rows)))
        shown = lines(max(least, rows - 1))
        if len(shown) > height:
            note = f"... {len(shown) - height + 1} more lines"
            shown[height - 1 :] = [[Segment(note, console.get_style(Tone.QUIET))]]
        for line in shown:
            yield from (*line, Segment.line())


NewLines = Callable[[dict[str, Any]], Iterable[tuple[str, object]]]
"""Lines on what is new in a document since the one before: for people, and in JSON."""


@contextmanager
def screen(output: Output, new_lines: NewLines | None = None) -> Iterator[Callable[[Draw, dict[str, Any], int], None]]:
    """A display that is refreshed; on a terminal on its alternate screen, else one below the other, in JSON line by line.

    Yields a function that shows a display, or the document in JSON, as of a time.

    Args:
        new_lines: In a pipe and in JSON print these instead.
    """
    console = stdout()
    terminal = console.is_terminal and not console.is_dumb_terminal
    if new_lines is not None and (output is Output.JSON or not terminal):

        def print_new(_: Draw, document: dict[str, Any], __: int) -> None:
            for text, row in new_lines(document):
                if output is Output.JSON:
                    print_json_line(row)
                else:
                    console.print(Text(text))

        yield print_new
    elif output is Output.JSON:
        yield lambda _, document, __: print_json_line(document)
    elif not terminal:

        def one_by_one(draw: Draw, _: dict[str, Any], at_ms: int) -> None:
            console.print(Text(f"--- {moment(at_ms)}"))
            print_whole(draw)

        yield one_by_one
    else:
        with (
            ends_on_sigterm(),
            remarks_hidden(),
            Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
        ):
            yield lambda draw, _, __: live.update(FittedScreen(draw), refresh=True)


def print_whole(draw: Draw) -> None:
    stdout().print(draw(sys.maxsize), crop=False)


def _silent(read_ms: int, draw: Draw) -> Draw:
    since = cell(when(read_ms))
    remark = Text(f"UNKNOWN: Kafka does not answer; all below is of {since}", style=Tone.BAD)
    return lambda rows: Group(remark, Text(), draw(rows))


def show_result(
    read: Callable[[], tuple[Draw, dict[str, Any]]],
    output: Output,
    *,
    watch: bool,
    every_s: float,
    max_s: float | None,
    new_lines: NewLines | None = None,
) -> None:
    """Show what a command has read; with `watch` again and again, reading at most a fifth of the time.

    Args:
        read: Reads all; returns the display, and the document in JSON.
        max_s: With `watch`, end after this time.
        new_lines: With `watch`, in a pipe and in JSON: lines on what is new, in place of all again and again.
    """
    # Lists of export files are read on machines that have no Kafka client.
    from statechannel.clocks import now_ms
    from statechannel.kafka.errors import KafkaUnavailableError

    if not watch:
        draw_all, document = read()
        if output is Output.JSON:
            print_json(document)
        else:
            print_whole(draw_all)
        return
    ends_s = float("inf") if max_s is None else time.monotonic() + max_s
    try:
        began_s, read_ms = time.monotonic(), now_ms()
        shown = read()
        with screen(output, new_lines) as draw:
            draw(*shown, read_ms)
            away = False
            while (left_s := ends_s - time.monotonic()) > 0:
                took_s = time.monotonic() - began_s
                time.sleep(min(left_s, max(every_s - took_s, _REST * took_s)))
                began_s, began_ms = time.monotonic(), now_ms()
                try:
                    shown, read_ms = read(), began_ms
                    draw(*shown, read_ms)
                    away = False
                except KafkaUnavailableError as error:
                    if new_lines is not None and not away:
                        say(f"{error}; the display continues when it answers again")
                    away = True
                    draw(_silent(read_ms, shown[0]), shown[1], began_ms)
    except KeyboardInterrupt:
        return  # the way to end it
