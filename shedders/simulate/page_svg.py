"""A plot as a part of a page: without what names other places, with names of its own, and rounded. Pure."""

from __future__ import annotations

import re
from typing import Final

_DROPPED: Final = (
    re.compile(r"^.*?(?=<svg)", re.DOTALL),
    re.compile(r"<metadata>.*?</metadata>", re.DOTALL),
    re.compile(r"<style[^>]*>.*?</style>", re.DOTALL),
    re.compile(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"'),
)
_SIZE: Final = re.compile(r'(<svg\b[^>]*?)\swidth="[^"]*"\sheight="[^"]*"')
_ID: Final = re.compile(r'\sid="([^"]*)"')
_USED: Final = re.compile(r'(?:href="#|url\(#)([^")]+)')
_PLACES: Final = re.compile(r'\b(d|x|y)="([^"]*)"')
_NUMBER: Final = re.compile(r"-?\d+\.\d+")
_BLANKS: Final = re.compile(r"\s*\n\s*")


def inlined(svg: str, prefix: str) -> str:
    """The plot to stand in a page; names that it uses within itself begin with `prefix`, all others are gone.

    Places are rounded to a tenth of a point: nobody sees less, and the page has half the size.
    """
    for pattern in _DROPPED:
        svg = pattern.sub("", svg)
    svg = _SIZE.sub(r'\1 role="img"', svg, count=1).replace("xlink:href", "href")
    used = set(_USED.findall(svg))
    svg = _ID.sub(lambda found: f' id="{prefix}{found[1]}"' if found[1] in used else "", svg)
    svg = _USED.sub(lambda found: f"{found[0][: -len(found[1])]}{prefix}{found[1]}", svg)
    svg = _PLACES.sub(lambda found: f'{found[1]}="{_rounded(found[2])}"', svg)
    return _BLANKS.sub("\n", svg).strip()


def _rounded(text: str) -> str:
    return _BLANKS.sub("", _NUMBER.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), text)).replace(
        "L ", "L"
    )
