"""Text for people: sanitizing of text from outside, characters and secrets; names in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

REPLACEMENT: Final = "\ufffd"
REDACTED: Final = "[redacted]"
_NAMED: Final = 3

# Text that brokers wrote into the log must not control a reader's terminal: control characters, and those that turn the
# direction of text around. Nor must a byte of a path or a variable that is no text end it: such bytes are lone surrogates.
_CONTROLS: Final = (
    *range(0x20),
    *range(0x7F, 0xA0),
    0x061C,
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
)
_ONE_LINE: Final = dict.fromkeys(_CONTROLS, REPLACEMENT)
_LINES: Final = {code: mark for code, mark in _ONE_LINE.items() if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """The text with all of them replaced, including line breaks."""
    return text.translate(_ONE_LINE)


def one_line(text: str) -> str:
    """The text with all of them replaced, and line breaks and other blanks by one space: for messages and records."""
    return printable(" ".join(text.split()))


def printable_lines(value: Any) -> Any:
    """The same for each text within a value of a log line, keeping line breaks and tabs."""
    if isinstance(value, str):
        return value if value.isprintable() and value.isascii() else value.translate(_LINES)
    if isinstance(value, dict):
        return {printable_lines(name): printable_lines(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable_lines(item) for item in value]
    return value


def redact(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        if secret:
            text = text.replace(secret, REDACTED)
    return text


def all_of(names: Sequence[str]) -> str:
    """The names as in a sentence; the first ones, and how many more there are, if it is more than one."""
    most = len(names) if len(names) <= _NAMED + 1 else _NAMED
    shown, more = list(names[:most]), len(names) - most
    if more > 0:
        shown.append(f"{more} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def named(names: Sequence[str]) -> str:
    """The first names as a list, and how many more there are, if it is more than one."""
    if len(names) <= _NAMED + 1:
        return "; ".join(names)
    return "; ".join(names[:_NAMED]) + f"; and {len(names) - _NAMED} more"


def term_text(term: int | None) -> str:
    """A leader's term as the end of a sentence: it grows by many with each leader, as all heartbeats count; empty: unknown."""
    return "" if term is None else f"; term {term} (the offset of its claim in the registry)"
