"""Software versions of brokers, in the order of Semantic Versioning 2.0.0 (upstream compares them so, too)."""

from __future__ import annotations

import re
from functools import lru_cache

Version = tuple[int, int, int, int, tuple[tuple[int, int, str], ...]]
"""Sortable; build metadata is left out. The fourth member puts a release (1) after its pre-releases (0)."""

_NUMBER = r"(0|[1-9][0-9]{0,17})"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?", re.ASCII)
# A number has no leading zero; anything with a letter or a hyphen may have.
_IDENTIFIER = re.compile(r"0|[1-9][0-9]{0,17}|[0-9A-Za-z-]*[A-Za-z-][0-9A-Za-z-]*", re.ASCII)


@lru_cache(maxsize=256)
def parse_version(text: str) -> Version | None:
    """The sortable value of `1.2.3`, `1.2.3-rc.1` or `1.2.3+build`; None for anything else."""
    match = _VERSION.fullmatch(text)
    if match is None:
        return None
    major, minor, patch, pre = match.groups()
    if pre is None:
        return int(major), int(minor), int(patch), 1, ()
    parts = pre.split(".")
    if not all(_IDENTIFIER.fullmatch(part) for part in parts):
        return None
    return int(major), int(minor), int(patch), 0, tuple(_identifier(part) for part in parts)


def _identifier(part: str) -> tuple[int, int, str]:
    return (0, int(part), "") if part.isdigit() else (1, 0, part)
