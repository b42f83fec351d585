"""Plain sentences for values that the validation library refuses, in options of commands and in settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from statechannel.suggestions import nearest, shown

_KINDS: Final[Mapping[str, str]] = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a table",
    "path": "a path",
    "frozen_set": "a list",
}
_BOUNDS: Final[Mapping[str, str]] = {
    "greater_than": "gt",
    "greater_than_equal": "ge",
    "less_than": "lt",
    "less_than_equal": "le",
}
_SIGNS: Final = (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than"))


def sentence_of(detail: Mapping[str, Any], *, unit: str = "", bounds: Mapping[str, Any] | None = None) -> str:
    """What is wrong with a value, as a sentence without a subject: `not a number of seconds (allowed: 0.1 to 3600)`.

    Args:
        unit: What a number counts, such as `seconds`.
        bounds: All bounds of the value (`ge`, `gt`, `le`, `lt`), and in `form` the form of a text; only one is in `detail`.
    """
    kind, context = str(detail["type"]), detail.get("ctx", {})
    known = dict(bounds or {})
    if kind in _BOUNDS and _BOUNDS[kind] not in known:
        known[_BOUNDS[kind]] = next((v for v in context.values() if isinstance(v, int | float)), None)
    allowed = _allowed(known)
    if _is_nan(detail.get("input")):
        return _with(f"not a number{_of(unit)}", allowed)
    if kind in _BOUNDS:
        return _with("too small" if kind.startswith("greater") else "too large", allowed)
    if kind in ("literal_error", "enum"):
        return f"not one of the allowed words: {context.get('expected', '')}"
    if kind == "string_pattern_mismatch":
        return _with("not of the required form", known.get("form") or f"matches {context.get('pattern', '')}")
    if kind == "finite_number":
        return _with(f"not a finite number{_of(unit)}", allowed)
    base = kind.removesuffix("_parsing").removesuffix("_type").removesuffix("_from_float")
    if base in _KINDS:
        return _with(f"not {_KINDS[base]}{_of(unit) if base in ('float', 'int') else ''}", allowed)
    return str(detail["msg"]).removeprefix("Value error, ").rstrip(".")


def name_allowed_words(word: str, words: Sequence[str]) -> str:
    """What is wrong with a word that is none of these, as a sentence without a subject."""
    meant = nearest(word, words)
    listed = f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
    return f"not one of {listed}" + (f"; did you mean `{meant[0]}`?" if meant else "")


def value_text(value: Any) -> str:
    """A value as it was given, not longer than a line."""
    return shown(value if isinstance(value, str) and value else repr(value))


def _is_nan(value: Any) -> bool:
    try:
        return math.isnan(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def _of(unit: str) -> str:
    return f" of {unit}" if unit else ""


def _with(what: str, allowed: str) -> str:
    return f"{what} (allowed: {allowed})" if allowed else what


def _allowed(bounds: Mapping[str, Any]) -> str:
    low, high = bounds.get("ge"), bounds.get("le")
    if low is not None and high is not None:
        return f"{_number(low)} to {_number(high)}"
    return ", ".join(f"{word} {_number(bounds[sign])}" for sign, word in _SIGNS if bounds.get(sign) is not None)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.10g}"
