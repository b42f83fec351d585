"""RFC 8259 objects and nothing else: the strict parser of the twin.

``json`` from the standard library does the work; what it tolerates beyond the format (NaN,
numbers beyond a double, lone surrogates, a byte-order mark) is refused by hand. Where its
recursion gives out, `scan_top_format` reads the same grammar with a loop.
"""

# ruff: noqa: PLR0912  (one line per line of the normative page)
from __future__ import annotations

import json
import math
import re
from typing import Any

STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"')
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
SPACE = re.compile(r"[ \t\n\r]*")
MAX_INT = 2**53 - 1


class NotJsonError(ValueError):
    """The bytes are not one strict JSON object."""


class TooDeepError(Exception):
    """The object is valid JSON but too deep to be built; carries the top-level `format`."""

    def __init__(self, top_format: Any) -> None:
        super().__init__("nested too deep to build")
        self.top_format = top_format


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the object that `data` holds, whatever its size.

    Raises:
        NotJsonError: not a strict JSON object.
        TooDeepError: strict JSON, but far deeper than any record may be.
    """
    text = decode_text(data)
    try:
        value = json.loads(text, parse_int=_int, parse_float=_float, parse_constant=_constant, object_pairs_hook=_pairs)
    except RecursionError:
        raise TooDeepError(scan_top_format(text)) from None
    except NotJsonError:
        raise
    except ValueError as error:
        raise NotJsonError(str(error)) from None
    if not isinstance(value, dict):
        raise NotJsonError("not an object")
    return value


def decode_text(data: bytes) -> str:
    """Return `data` as strict UTF-8 text without a byte-order mark."""
    try:
        text = data.decode("utf-8", "strict")
    except UnicodeDecodeError:
        raise NotJsonError("not UTF-8") from None
    if text.startswith("\ufeff"):
        raise NotJsonError("byte-order mark")
    return text


def depth_of(data: bytes) -> int:
    """Return how many containers of valid JSON text stand inside one another at most."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", STRING.sub("", data.decode("utf-8"))):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def is_int(value: Any, low: int, high: int = MAX_INT) -> bool:
    """Whether `value` is an integer as the format has them: no bool, no fraction."""
    return type(value) is int and low <= value <= high


def _int(literal: str) -> int:
    if math.isinf(float(literal)):
        raise NotJsonError("beyond a double's range")
    return int(literal)


def _float(literal: str) -> float:
    value = float(literal)
    if math.isinf(value):
        raise NotJsonError("beyond a double's range")
    return value


def _constant(literal: str) -> Any:
    raise NotJsonError(f"{literal} is not JSON")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Here, not after the parse: of doubled names the first must be sound text too.
    stack: list[Any] = [part for pair in pairs for part in pair]
    while stack:
        part = stack.pop()
        if isinstance(part, list):
            stack.extend(part)
        elif isinstance(part, str) and any("\ud800" <= char <= "\udfff" for char in part):
            raise NotJsonError("lone surrogate")
    return dict(pairs)


def scan_top_format(text: str) -> Any:
    """Check the grammar of `text` with a loop; return the last top-level `format` scalar.

    Returns None if there is none, or if it is no scalar.
    """
    stack: list[str] = []
    position = _skip(text, 0)
    if text[position : position + 1] != "{":
        raise NotJsonError("not an object")
    found: Any = None
    name: str | None = None
    expect = "value"
    while True:
        char = text[position : position + 1]
        if expect in ("value", "value-or-close"):
            if expect == "value-or-close" and char == "]":
                stack.pop()
                position, expect = position + 1, "after"
            elif char in ("{", "["):
                if len(stack) == 1 and stack[0] == "{" and name == "format":
                    found = None
                stack.append(char)
                position += 1
                expect = "name-or-close" if char == "{" else "value-or-close"
            else:
                scalar, position = _scalar(text, position)
                if len(stack) == 1 and stack[0] == "{" and name == "format":
                    found = scalar
                expect = "after"
        elif expect in ("name", "name-or-close"):
            if expect == "name-or-close" and char == "}":
                stack.pop()
                position, expect = position + 1, "after"
            else:
                read, position = _string(text, position)
                if len(stack) == 1:
                    name = read
                position = _skip(text, position)
                if text[position : position + 1] != ":":
                    raise NotJsonError("no colon")
                position, expect = position + 1, "value"
        else:
            if not stack:
                if position != len(text):
                    raise NotJsonError("text after the object")
                return found
            closing = "}" if stack[-1] == "{" else "]"
            if char == closing:
                stack.pop()
                position += 1
            elif char == ",":
                position += 1
                expect = "name" if closing == "}" else "value"
            else:
                raise NotJsonError("no comma")
        position = _skip(text, position)


def _skip(text: str, position: int) -> int:
    match = SPACE.match(text, position)
    return match.end() if match else position


def _string(text: str, position: int) -> tuple[str, int]:
    match = STRING.match(text, position)
    if not match:
        raise NotJsonError("not a string")
    value = str(json.loads(match.group()))
    _pairs([("", value)])
    return value, match.end()


def _scalar(text: str, position: int) -> tuple[Any, int]:
    if text[position : position + 1] == '"':
        return _string(text, position)
    for literal, value in (("true", True), ("false", False), ("null", None)):
        if text.startswith(literal, position):
            return value, position + len(literal)
    match = NUMBER.match(text, position)
    if not match:
        raise NotJsonError("not a value")
    literal = match.group()
    is_integer = not any(char in ".eE" for char in literal)
    return (_int(literal) if is_integer else _float(literal)), match.end()
