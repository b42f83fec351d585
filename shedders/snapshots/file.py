"""Strict JSON of snapshot files, with errors that name each deviation.

No duplicate names in an object, no number that is not finite or has too many digits, no lone surrogate. Nearly every file is
valid, which `_plain` finds out many times faster than `Careful`, which locates the deviations of the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import inf, isfinite
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from loaddata.bulk import uncollected
from shedders.snapshots.faults import SnapshotError, contradictions, cut, path_text, sentence
from shedders.snapshots.model import FORMAT, KIND, Snapshot

_DIGITS_MAX = 18
_DEEP = 64
_NESTED = frozenset((dict, list))
_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")
_SPACED = re.compile(rb'"[ \t\n\r]+:')
_KINDS = bytes.maketrans(b"123456789-:[,\t\n\r", b"0000000000      ")
"""Any digit becomes 0, as does a sign, and whatever else may stand before a number a space."""
_LONG = b" " + b"0" * _DIGITS_MAX


def load_json(raw: bytes, where: str) -> Any:
    """The value of a file.

    Raises:
        SnapshotError: The file is not JSON, or not strict.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        # The slow parser locates errors, and accepts what only orjson refuses.
        return StrictParser(where).load(raw)
    return value if _plain(raw, value) else StrictParser(where).load(raw)


def _plain(raw: bytes, value: Any) -> bool:
    """Whether a file that orjson has read surely takes no liberty; where this says no, it may or may not.

    - Of two equal names orjson keeps the last. With nothing between names and their colons there are as many `":` as names, or
      more where texts have it, too; so if there are just as many as the value has names, none was lost.
    - What is not finite, and half a character, orjson has refused.
    - No number is too long if that many digits never follow a character that may precede a number.
    """
    if not isinstance(value, dict):
        return False
    if _SPACED.search(raw) or _LONG in raw.translate(_KINDS):
        return False
    names, objects, lists = 0, [value], list[list[Any]]()
    for _ in range(_DEEP):
        if not objects and not lists:
            return names == raw.count(b'":')
        names += sum(map(len, objects))
        inner = [child for object_ in objects for child in object_.values() if type(child) in _NESTED]
        inner += [child for list_ in lists for child in list_ if type(child) in _NESTED]
        objects = [item for item in inner if isinstance(item, dict)]
        lists = [item for item in inner if isinstance(item, list)]
    return False


class _Twice(dict[str, Any]):
    """Object with a duplicate name."""

    name = ""


class _TooLong(int):
    """Integer that could not be written again."""


class StrictParser:
    """Slow parser, which notes whether a file deviates, and only then locates where."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._odd = False

    def load(self, raw: bytes) -> Any:
        """As `load_json`."""
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
        object_ = dict(pairs)
        if len(object_) == len(pairs):
            return object_
        self._odd = True
        twice = _Twice(object_)
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
    """Deviations in the order of the file."""
    stack: list[tuple[tuple[int | str, ...], Any]] = [((), value)]
    while stack:
        path, value_ = stack.pop()
        where = path_text(path) or "the file"
        inner: list[tuple[int | str, Any]] = []
        if isinstance(value_, _Twice):
            yield f"{where}: the name {cut(repr(value_.name))} is duplicated"
        if isinstance(value_, dict):
            if any(_broken(name) for name in value_):
                yield f"{where}: a name is not text"
            inner = list(value_.items())
        elif isinstance(value_, list):
            inner = list(enumerate(value_))
        elif isinstance(value_, float) and not isfinite(value_):
            text = "NaN" if value_ != value_ else "Infinity" if value_ == inf else "-Infinity"  # noqa: PLR0124
            yield f"{where}: expected a finite number, got {text}"
        elif isinstance(value_, _TooLong):
            yield f"{where}: expected a number of at most {_DIGITS_MAX} digits"
        elif isinstance(value_, str) and _broken(value_):
            yield f"{where}: lone surrogate"
        stack += reversed([((*path, name), child) for name, child in inner])


def _broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


SIZE_MAX_BYTES = 1 << 30


def read_snapshot(path: Path) -> Snapshot:
    """Read and check a snapshot file.

    Raises:
        SnapshotError: The file cannot be read, is not JSON, is malformed, or contradicts itself.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes > SIZE_MAX_BYTES:
            raise SnapshotError(
                str(path), [f"it has {size_bytes} bytes, more than {SIZE_MAX_BYTES}"], hint="Check the path."
            )
        raw = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        why = getattr(error, "strerror", None) or error
        raise SnapshotError(str(path), [f"it cannot be read: {why}"], hint="Check the path.") from error
    return parse_snapshot(raw, str(path))


def parse_snapshot(raw: bytes, where: str = "snapshot") -> Snapshot:
    """Parse a snapshot.

    Raises:
        SnapshotError: As `read_snapshot`.
    """
    with uncollected():
        return _checked(load_json(raw, where), where)


def _checked(value: object, where: str) -> Snapshot:
    if not isinstance(value, dict) or value.get("kind") != KIND:
        raise SnapshotError(
            where,
            [f'not a snapshot: `"kind": "{KIND}"` is missing'],
            hint="`statechannel snapshot check FILE` reads snapshots; exports of the channel are read by `audit --file`.",
        )
    version = value.get("format")
    if type(version) is int and version > FORMAT:
        hint = "It was written by a newer version; take it again with this version, or update."
        raise SnapshotError(where, [f"format: expected {FORMAT}, got {version}"], hint=hint)
    try:
        snapshot = Snapshot.model_validate(value)
    except ValidationError as error:
        raise SnapshotError(where, [sentence(fault) for fault in error.errors(include_url=False)]) from error
    wrong = list(contradictions(snapshot))
    if wrong:
        raise SnapshotError(where, wrong)
    return snapshot


def snapshot_bytes(snapshot: Snapshot) -> bytes:
    """Encode a snapshot: indented JSON, every field, names sorted."""
    # The models' own dictionaries are written, not copies, as a model has only fields of the file.
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SORT_KEYS
    return orjson.dumps(snapshot, default=vars, option=options)


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
