"""The one question that must be answered for JSON of any depth: is it an object, and what is its `format`?

A newer format stops a reader whatever the size and nesting of the value, but JSON parsers refuse deep nesting. This scan
keeps its own stack. It is only used on values that the parser refused and that nest deeply: junk, or a format from the future.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

_TOKEN = re.compile(r'[ \t\n\r]*(?:([\[\]{},:])|("(?:[^"\\]|\\.)*")|([-+0-9.eE]+|true|false|null))', re.DOTALL)
_TAIL = re.compile(r"[ \t\n\r]*")
_SCALAR = "scalar"
_STRING = "string"

# What may follow, by what was read last: (inside an object?) -> state machine over token classes.
_VALUE, _FIRST_NAME, _NAME, _COLON, _AFTER, _FIRST_VALUE = range(6)


class NotJsonError(ValueError):
    """The text is not RFC 8259 JSON (or breaks the stricter rules of records.md section 2)."""


def top_level_format(value: bytes) -> Any:
    """The member `format` of a JSON object of any depth; None where there is none or the value is not an object.

    Raises:
        NotJsonError: The value is not JSON at all.
    """
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJsonError("not UTF-8") from error
    return _scan(text)


def _scan(text: str) -> Any:
    stack: list[str] = []
    expected = _VALUE
    position = 0
    name: str | None = None
    found: Any = None
    while expected != _AFTER or stack:
        match = _TOKEN.match(text, position)
        if match is None:
            raise NotJsonError(f"unexpected text at character {position}")
        position = match.end()
        mark, string, scalar = match.groups()
        if expected in (_FIRST_NAME, _NAME) and string is not None:
            name = _load(string)
            expected = _COLON
        elif expected == _COLON and mark == ":":
            expected = _VALUE
        elif expected in (_VALUE, _FIRST_VALUE) and mark in ("{", "["):
            if len(stack) == 1 and stack[0] == "{" and name == "format":
                found = None
            stack.append(mark)
            expected = _FIRST_NAME if mark == "{" else _FIRST_VALUE
        elif expected in (_VALUE, _FIRST_VALUE) and mark is None:
            loaded = _load(string or scalar)
            if len(stack) == 1 and stack[0] == "{" and name == "format":
                found = loaded
            expected = _AFTER
        elif (mark == "}" and stack[-1:] == ["{"] and expected in (_FIRST_NAME, _AFTER)) or (
            mark == "]" and stack[-1:] == ["["] and expected in (_FIRST_VALUE, _AFTER)
        ):
            stack.pop()
            expected = _AFTER
        elif expected == _AFTER and mark == ",":
            expected = _NAME if stack[-1] == "{" else _VALUE
        else:
            raise NotJsonError(f"unexpected token before character {position}")
    if _TAIL.match(text, position).end() != len(text):  # type: ignore[union-attr]
        raise NotJsonError("text after the value")
    return found


def _load(token: str) -> Any:
    try:
        return orjson.loads(token)
    except orjson.JSONDecodeError as error:
        raise NotJsonError(str(error)) from error
