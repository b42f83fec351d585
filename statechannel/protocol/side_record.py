"""Records of side topics (loads, policies, decisions): as they are read, and the envelope of their values, strict JSON. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

import orjson

Headers = tuple[tuple[str, bytes | None], ...]


class SideRecord(NamedTuple):
    """One record of a side topic. `timestamp_ms` is the log's own time."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    offset: int
    timestamp_ms: int


class InvalidRecord(NamedTuple):
    """A record that this version cannot use: one of the topic's stable words, and a sentence for people."""

    reason: StrEnum
    why: str


def json_object(value: bytes | None) -> dict[str, Any] | None:
    """The JSON object that a record of any writer holds, or None."""
    try:
        loaded = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return None
    return loaded if isinstance(loaded, dict) else None


def load_object(
    value: bytes, reasons: type[StrEnum], *, max_bytes: int, format_number: int
) -> dict[str, Any] | InvalidRecord:
    """The JSON object of this format that a value holds. orjson refuses NaN and infinity.

    Args:
        reasons: Has the words `too-large`, `not-json` and `format`.
    """
    if len(value) > max_bytes:
        return InvalidRecord(reasons("too-large"), f"{len(value)} bytes, more than {max_bytes}")
    try:
        loaded = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        return InvalidRecord(reasons("not-json"), f"not JSON: {error}")
    if not isinstance(loaded, dict):
        return InvalidRecord(reasons("not-json"), "not a JSON object")
    if type(loaded.get("format")) is not int or loaded["format"] != format_number:
        return InvalidRecord(reasons("format"), f"format is not {format_number}")
    return loaded
