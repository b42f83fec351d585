"""Displays that are refreshed: blocks in order of importance, cut to the height of the terminal from the least important end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from statechannel.cli.kit.fitted_tables import Tone, cell
from statechannel.cli.kit.output import (
    Output,
    ends_on_sigterm,
    moment,
    print_json,
    print_json_line,
    remarks_hidden,
    say,
    stdout,
    when,
)

_REST = 4.0
"""Pause after a reading, in times of how long it took."""

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Refresh until interrupted.")]
Every = Annotated[
    float, typer.Option("--every", metavar="SECONDS", min=0.2, max=3600, help="With --watch: refresh interval.")
]
EndsAfter = Annotated[
    float | None, typer.Option("--for", metavar="SECONDS", min=0.1, help="With --watch: end after this time.")
]
EVERY_S = 2.0


class Block(NamedTuple):
    """A part of a display.

    Attributes:
        name: What is named if it does not fit.
        rows: Number of rows of its table; 0 if it cannot be shortened.
        draw: Makes it, with at most this number of rows.
        share: Number of rows beyond which other blocks come first; 0: none do.
    """

    name: str
    rows: int
    draw: Callable[[int], RenderableType]
    share: int = 0


def plain_block(name: str, renderable: RenderableType) -> Block:
    """A block that is shown as a whole, or not."""
    return Block(name, 0, lambda _: renderable)


def stacked(blocks: Sequence[Block]) -> Group:
    """All blocks completely, with a blank line between two."""
    parts: list[RenderableType] = []
    for block in blocks:
        parts += [Text(), block.draw(block.rows)] if parts else [block.draw(block.rows)]
    return Group(*parts)


@dataclass(frozen=True, slots=True)
class FittedScreen:
    """Blocks in a terminal of limited height; what does not fit is named in the last line."""

    blocks: Sequence[Block]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.height
        layout = _Layout(self.blocks, console, options.update(height=None))
        lines, omitted = layout.within(height)
        if omitted:
            lines, omitted = layout.within(height - 1)
        for line in lines:
            yield from line
            yield Segment.line()
        if omitted:
            text = Text(f"no room for: {', '.join(omitted)}")
            text.truncate(options.max_width, overflow="ellipsis")
            yield Segment(text.plain, console.get_style(Tone.QUIET))


_Lines = list[list[Segment]]


class _Layout:
    """Blocks one below the other, each drawn once for each number of rows."""

    def __init__(self, blocks: Sequence[Block], console: Console, options: ConsoleOptions) -> None:
        self._blocks, self._console, self._options = blocks, console, options
        self._drawn: dict[tuple[int, int], _Lines] = {}

    def within(self, height: int) -> tuple[_Lines, list[str]]:
        """Lines of the blocks that fit, and what was omitted: each block has its share first, and then what is left over."""
        rows = [min(block.rows, block.share or block.rows) for block in self._blocks]
        lines, omitted = self._stack(rows, height)
        for number, block in enumerate(self._blocks):
            while rows[number] < block.rows and len(lines) < height:
                rows[number] += 1
                more = self._stack(rows, height)
                if more[1] != omitted:
                    rows[number] -= 1
                    break
                lines = more[0]
        return lines, omitted

    def _stack(self, rows: Sequence[int], height: int) -> tuple[_Lines, list[str]]:
        lines: _Lines = []
        omitted: list[str] = []
        for number, (block, wanted) in enumerate(zip(self._blocks, rows, strict=True)):
            gap = [[Segment("")]] if lines else []
            room = height - len(lines) - len(gap)
            many = wanted
            drawn = self._draw(number, many)
            while len(drawn) > room and many > 1:
                many = max(1, min(many - 1, room))
                drawn = self._draw(number, many)
            whole = len(drawn) <= room and many == wanted
            if len(drawn) <= room:
                lines += gap + drawn
            if not whole:
                omitted.append(f"{block.rows - many} of {block.name}" if len(drawn) <= room else block.name)
                omitted += [other.name for other in self._blocks[number + 1 :]]
                break
        return lines, omitted

    def _draw(self, number: int, rows: int) -> _Lines:
        if (number, rows) not in self._drawn:
            drawn = self._console.render_lines(self._blocks[number].draw(rows), self._options, pad=False)
            self._drawn[number, rows] = drawn
        return self._drawn[number, rows]


NewLines = Callable[[dict[str, Any]], Iterable[tuple[str, object]]]
"""Lines on what is new in a document since the one before: for people, and in JSON."""


@contextmanager
def screen(
    output: Output, new_lines: NewLines | None = None
) -> Iterator[Callable[[Sequence[Block], dict[str, Any], int], None]]:
    """A display that is refreshed; on a terminal on its alternate screen, else block after block, in JSON line by line.

    Yields a function that shows blocks, or the document in JSON, as of a time.

    Args:
        new_lines: In a pipe and in JSON print these instead.
    """
    console = stdout()
    terminal = console.is_terminal and not console.is_dumb_terminal
    if new_lines is not None and (output is Output.JSON or not terminal):

        def print_new(_: Sequence[Block], document: dict[str, Any], __: int) -> None:
            for text, row in new_lines(document):
                if output is Output.JSON:
                    print_json_line(row)
                else:
                    console.print(Text(text))

        yield print_new
    elif output is Output.JSON:
        yield lambda _, document, __: print_json_line(document)
    elif not terminal:

        def line_by_line(blocks: Sequence[Block], _: dict[str, Any], at_ms: int) -> None:
            console.print(Text(f"--- {moment(at_ms)}"))
            console.print(stacked(blocks), crop=False)

        yield line_by_line
    else:
        with (
            ends_on_sigterm(),
            remarks_hidden(),
            Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
        ):
            yield lambda blocks, _, __: live.update(FittedScreen(blocks), refresh=True)


def _silence(read_ms: int) -> Block:
    since = cell(when(read_ms))
    return plain_block("Kafka", Text(f"UNKNOWN: Kafka does not answer; all below is of {since}", style=Tone.BAD))


def show_result(
    read: Callable[[], tuple[Sequence[Block], dict[str, Any]]],
    output: Output,
    *,
    watch: bool,
    every_s: float,
    max_s: float | None,
    new_lines: NewLines | None = None,
) -> None:
    """Show what a command has read; with `watch` again and again, reading at most a fifth of the time.

    Args:
        read: Reads all; returns the blocks, and the document in JSON.
        max_s: With `watch`, end after this time.
        new_lines: With `watch`, in a pipe and in JSON: lines on what is new, in place of all again and again.
    """
    # Lists of export files are read on machines that have no Kafka client.
    from statechannel.cli.kit.live_log import now_ms
    from statechannel.kafka.errors import KafkaUnavailableError

    if not watch:
        blocks, document = read()
        if output is Output.JSON:
            print_json(document)
        else:
            stdout().print(stacked(blocks), crop=False)
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
                    draw([_silence(read_ms), *shown[0]], shown[1], began_ms)
    except KeyboardInterrupt:
        return  # the way to end it
