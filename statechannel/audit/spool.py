"""Spool for an unbounded number of rows: some in memory, the rest in a temporary file."""

from __future__ import annotations

import heapq
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any

import orjson

Row = dict[str, Any]
_READ_BYTES = 1 << 16


class Spool:
    """Stores rows, and returns them repeatedly, in order.

    The file is anonymous and is deleted with the spool. Rows are stored as JSON: tuples become lists.

    Args:
        order: Sort key; None: insertion order. Sorting is stable.
        held_max: Rows kept in memory.
    """

    def __init__(self, order: Callable[[Row], Any] | None = None, *, held_max: int = 20_000) -> None:
        self._order = order
        self._held_max = held_max
        self._held: list[Row] = []
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, int]] = []
        self._number = 0

    def append(self, row: Row) -> None:
        self._held.append(row)
        self._number += 1
        if len(self._held) >= self._held_max:
            self._write()

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[Row]:
        held = self._sorted()
        if self._order is None:
            for run in self._runs:
                yield from self._read(*run)
            yield from held
            return
        yield from heapq.merge(*(self._read(*run) for run in self._runs), held, key=self._order)

    def _sorted(self) -> list[Row]:
        return self._held if self._order is None else sorted(self._held, key=self._order)

    def _write(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="statechannel-audit-")  # noqa: SIM115 - it lives as long as this
        start = self._file.seek(0, os.SEEK_END)
        for row in self._sorted():
            self._file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        self._file.flush()
        self._runs.append((start, self._file.tell()))
        self._held = []

    def _read(self, place: int, end: int) -> Iterator[Row]:
        """Read one run, with its own position: several are read alternately."""
        if self._file is None:
            return
        rest = b""
        while place < end:
            piece = os.pread(self._file.fileno(), min(_READ_BYTES, end - place), place)
            place += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield orjson.loads(line)
