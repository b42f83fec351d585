"""Reads and writes snapshot files, and says of a bad one which field is wrong, what is wanted there, and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import inf, isfinite
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from shedders.snapshot import FORMAT, KIND, Snapshot
from shedders.snapshot_faults import SnapshotError, contradictions, cut, path_text, sentence

SIZE_MAX_BYTES = 1 << 30
_DIGITS_MAX = 18
_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")


def read_snapshot(path: Path) -> Snapshot:
    """Read and check a snapshot file.

    Raises:
        SnapshotError: It cannot be read, is no JSON, breaks the format, or contradicts itself.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes > SIZE_MAX_BYTES:
            raise SnapshotError(
                str(path), [f"it has {size_bytes} bytes, at most {SIZE_MAX_BYTES} are read"], hint="Check the path."
            )
        raw = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        why = getattr(error, "strerror", None) or error
        raise SnapshotError(str(path), [f"it cannot be read: {why}"], hint="Check the path.") from error
    return parse_snapshot(raw, str(path))


def parse_snapshot(raw: bytes, where: str = "snapshot") -> Snapshot:
    """Check a snapshot that was read already.

    Raises:
        SnapshotError: As `read_snapshot`.
    """
    value = _Loader(where).load(raw)
    if not isinstance(value, dict) or value.get("kind") != KIND:
        raise SnapshotError(
            where,
            [f'it is no snapshot: `"kind": "{KIND}"` is missing'],
            hint="`statechannel snapshot check FILE` reads snapshots; exports of the channel are read by `audit --file`.",
        )
    found = value.get("format")
    if type(found) is int and found > FORMAT:
        hint = "It was written by a newer version; take it anew with this one, or update."
        raise SnapshotError(where, [f"format: this version reads format {FORMAT}, found {found}"], hint=hint)
    try:
        snapshot = Snapshot.model_validate(value)
    except ValidationError as error:
        raise SnapshotError(where, [sentence(one) for one in error.errors(include_url=False)]) from error
    wrong = list(contradictions(snapshot))
    if wrong:
        raise SnapshotError(where, wrong)
    return snapshot


def snapshot_bytes(snapshot: Snapshot) -> bytes:
    """The snapshot as a file: indented JSON, every field, names sorted."""
    return orjson.dumps(
        snapshot.model_dump(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SORT_KEYS
    )


def write_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot file.

    Raises:
        SnapshotError: The file cannot be written.
    """
    try:
        path.write_bytes(snapshot_bytes(snapshot))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SnapshotError(str(path), [f"it cannot be written: {why}"], hint="Check the path.") from error


class _Twice(dict[str, Any]):
    """An object in which a name stands twice."""

    name = ""


class _TooLong(int):
    """A whole number that could not be written again."""


class _Loader:
    """JSON without the liberties that Python takes; remembers whether it saw any, and only then looks where."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._odd = False

    def load(self, raw: bytes) -> Any:
        try:
            value = json.loads(
                raw.decode("utf-8-sig"),
                object_pairs_hook=self._object,
                parse_constant=self._constant,
                parse_float=self._float,
                parse_int=self._int,
            )
        except UnicodeDecodeError as error:
            raise SnapshotError(self._where, [f"it is not UTF-8: byte {error.start}"]) from error
        except RecursionError as error:
            raise SnapshotError(self._where, ["it is nested too deeply"]) from error
        except ValueError as error:  # JSON errors are among them
            raise SnapshotError(self._where, [f"it is not JSON: {error}"]) from error
        if self._odd or _HALF_CHARACTER.search(raw):
            wrong = list(_oddities(value))
            if wrong:
                raise SnapshotError(self._where, wrong)
        return value

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        self._odd = True
        twice = _Twice(found)
        seen: set[str] = set()
        twice.name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        return twice

    def _constant(self, text: str) -> float:
        self._odd = True
        return float(text)

    def _float(self, text: str) -> float:
        value = float(text)
        if not isfinite(value):
            self._odd = True
        return value

    def _int(self, text: str) -> int:
        if len(text) > _DIGITS_MAX:
            self._odd = True
            return _TooLong()
        return int(text)


def _oddities(value: Any) -> Iterator[str]:
    """Where the liberties are, in the order of the file."""
    stack: list[tuple[tuple[int | str, ...], Any]] = [((), value)]
    while stack:
        path, one = stack.pop()
        where = path_text(path) or "the file"
        inner: list[tuple[int | str, Any]] = []
        if isinstance(one, _Twice):
            yield f"{where}: the name {cut(repr(one.name))} stands there twice"
        if isinstance(one, dict):
            if any(_broken(name) for name in one):
                yield f"{where}: a name there is no text"
            inner = list(one.items())
        elif isinstance(one, list):
            inner = list(enumerate(one))
        elif isinstance(one, float) and not isfinite(one):
            found = "NaN" if one != one else "Infinity" if one == inf else "-Infinity"  # noqa: PLR0124
            yield f"{where}: a finite number is wanted, found {found}"
        elif isinstance(one, _TooLong):
            yield f"{where}: a number of at most {_DIGITS_MAX} digits is wanted"
        elif isinstance(one, str) and _broken(one):
            yield f"{where}: half a character stands there"
        stack += reversed([((*path, name), child) for name, child in inner])


def _broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
