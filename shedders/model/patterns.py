"""Regular expressions of policies, matched against whole texts in time linear in the text (RE2).

Upstream's patterns are Java's, matched in full. RE2 reads them alike except for what cannot be matched in linear time
(look-around, back-references, possessive and atomic groups), which is refused. So are what Java reads otherwise or not at all
(`_DIFFERENT`), and patterns that grow beyond bounds when expanded (`a{1000}` a thousand times).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import re2

PATTERN_BYTES: Final = 1 << 18  # RE2's memory for one pattern: about 10,000 steps
LIST_SIZE_MAX: Final = 120_000  # steps of all patterns of a list: a record full of plain text has 100,000


class Patterns:
    """A compiled list of patterns, made by `compiled`.

    Attributes:
        size: Steps of its programs; about 16 bytes each.
    """

    __slots__ = ("__weakref__", "_matchers", "count", "size")

    def __init__(self, matchers: Sequence[Any], count: int, size: int) -> None:
        self._matchers = matchers
        self.count = count
        self.size = size

    def __len__(self) -> int:
        return self.count

    def matches(self, text: str) -> bool:
        try:
            return any(matcher.fullmatch(text) for matcher in self._matchers)
        except UnicodeEncodeError:  # lone surrogates, which RE2 cannot take
            plain = text.encode(errors="replace").decode()
            return any(matcher.fullmatch(plain) for matcher in self._matchers)


_known: WeakValueDictionary[tuple[str, ...], Patterns] = WeakValueDictionary()  # patterns in use are compiled once
_recent: deque[Patterns] = deque(maxlen=16)  # a caller that checks patterns uses them the next moment


def compiled(patterns: Sequence[Any]) -> Patterns | str:
    if isinstance(patterns, str):
        return f"`{patterns}` is a text, expected a list of patterns"
    try:
        key = tuple(patterns)
        known = _known.get(key)
    except TypeError as error:
        return f"{patterns!r} is not a list of patterns ({error})"
    if known is not None:
        return known
    fresh = _compile(key)
    if isinstance(fresh, Patterns):
        _known[key] = fresh
        _recent.append(fresh)
    return fresh


def _compile(texts: tuple[Any, ...]) -> Patterns | str:
    single: list[Any] = []
    size = 0
    for text in texts:
        if not isinstance(text, str):
            return f"`{text!r}` is not a text"
        matcher = _read(text, PATTERN_BYTES)
        if isinstance(matcher, str):
            return f"`{text}` is not a valid regular expression ({matcher})"
        single.append(matcher)
        size += matcher.programsize
        if size > LIST_SIZE_MAX:
            return f"the patterns are too large together: more than {LIST_SIZE_MAX} steps with `{text}`"
    joined = _joined(texts) if len(single) > 1 else None
    if joined is None:
        return Patterns(single, len(single), size)
    return Patterns([joined], len(single), joined.programsize)


def _joined(texts: tuple[str, ...]) -> Any:
    """All patterns as one; None if they cannot be joined: a group name twice, an unterminated quotation."""
    if any("\\Q" in text for text in texts):
        return None
    matcher = _read("|".join(f"(?:{text})" for text in texts), 1 << 23, plain=False)
    return None if isinstance(matcher, str) else matcher


def _read(text: str, max_bytes: int, *, plain: bool = True) -> Any:
    why = _read_otherwise(text) if plain else None
    if why is not None:
        return why
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = max_bytes
    try:
        return re2.compile(text, options)
    except re2.error as error:
        detail = error.args[0] if error.args else error
        return detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)
    except UnicodeEncodeError:
        return "it has a lone surrogate"


class _Form(NamedTuple):
    """A form of patterns that Java reads otherwise than RE2, or refuses.

    Attributes:
        in_class: Whether it stands within a character class; None: anywhere.
    """

    in_class: bool | None
    start: re.Pattern[str]
    why: str


_COUNT = "(?:0|[1-9][0-9]*)"
_DIFFERENT: Final = (
    _Form(True, re.compile("&&"), "`&&` between character classes is not supported"),
    _Form(
        True,
        re.compile(r"\[(?!:)"),
        "a character class within another is not supported; write a plain bracket as `\\[`",
    ),
    _Form(
        False,
        re.compile(rf"\{{(?!{_COUNT}(?:,{_COUNT}?)?\}})"),
        "`{` begins no repetition such as `{3}`, `{0,3}`; write a plain one as `\\{`",
    ),
    _Form(
        False,
        re.compile(r"\(\?(?:P|<(?![=!]|[A-Za-z][A-Za-z0-9]*>))"),
        "the name of a group is not `(?<NAME>` with a NAME of letters and digits",
    ),
    _Form(None, re.compile(r"\\0"), "octal numbers are not supported; write a hexadecimal one such as `\\x62`"),
    _Form(None, re.compile(r"\\v"), "`\\v` is not supported; write `\\x0B`"),
    _Form(None, re.compile(r"\\C"), "`\\C` is not supported"),
    _Form(
        None,
        re.compile(r"\\[pP]\{(?![A-Z][a-z]?\})"),
        "of Unicode's classes only general categories such as `\\p{Lu}` are supported",
    ),
)
_ESCAPE: Final = re.compile(r"\\[pPx]\{[^}]*\}|\\.?", re.DOTALL)


def _read_otherwise(text: str) -> str | None:
    """Why Java reads a pattern differently from RE2, or not at all."""
    for in_class, at in _places(text):
        for form in _DIFFERENT:
            if form.in_class in (None, in_class) and form.start.match(text, at):
                return form.why
    return None


def _places(text: str) -> Iterator[tuple[bool, int]]:
    """Where each character or escape begins that is not quoted, and whether it lies in a class."""
    at, inside = 0, False
    while at < len(text):
        if text.startswith("\\Q", at):
            end = text.find("\\E", at)
            at = len(text) if end < 0 else end + 2
            continue
        yield inside, at
        escape = _ESCAPE.match(text, at)
        if escape is not None:
            at = escape.end()
            continue
        if not inside and text[at] == "[":
            inside = True
            # A bracket that comes first is a plain one.
            at += 1 + text.startswith("^", at + 1)
            at += text.startswith("]", at)
            continue
        if inside and text.startswith("[:", at):
            end = text.find(":]", at)
            at = len(text) if end < 0 else end + 2
            continue
        if inside and text[at] == "]":
            inside = False
        at += 1
