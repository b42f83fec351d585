"""Makes what a decision found fit into a record of bounded size: what is left out is counted, and nothing is cut in silence.

Parts are filled in the order of their worth, each with at most a share of the room that is still there, so that no part can
push all others out. Within a part those come first that answer most questions. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from math import isfinite
from typing import TypeVar

import orjson
from pydantic import BaseModel

from shedders.model.plan import Left

Item = TypeVar("Item")
Entry = TypeVar("Entry", bound=BaseModel)

NAME_MAX_CHARS = 1_000
_WORD_MAX_CHARS = 60


class Shortener:
    """Makes texts fit to be written, and counts what it shortens.

    Args:
        max_chars: Longest sentence.
    """

    def __init__(self, max_chars: int) -> None:
        self._max = max_chars
        self.count = 0

    def text(self, text: str) -> str:
        """A sentence: control characters and what is no Unicode are replaced, its end cut off where it is too long."""
        return self._cut(text, self._max)

    def maybe(self, text: str | None) -> str | None:
        """As `text`, where there is one."""
        return None if text is None else self.text(text)

    def name(self, name: str) -> str:
        """A name: those of the protocol are shorter than this allows."""
        return self._cut(name, NAME_MAX_CHARS)

    def _cut(self, text: str, most: int) -> str:
        if len(text) > most:
            self.count += 1
            text = f"{text[: most - 1]}\u2026"
        return text if text.isprintable() else "".join(one if one.isprintable() else "\ufffd" for one in text)


def word(text: str) -> str:
    """A stable word, as a record may hold it: third parties may name things as they like."""
    found = "".join(one if one.isascii() and (one.isalnum() or one in "-_") else "-" for one in text)
    found = found.strip("-_")[:_WORD_MAX_CHARS]
    return found if found[:1].isalpha() else f"w-{found}"


class Room:
    """What is left of a record's bytes.

    Attributes:
        cut: How many entries found no place, by part.
    """

    def __init__(self, size_bytes: int) -> None:
        self._left = size_bytes
        self.cut: dict[str, int] = {}

    def entries(
        self,
        part: str,
        items: Sequence[Item],
        make: Callable[[Item], Entry],
        *,
        share: float,
        order: Iterable[int] | None = None,
    ) -> list[Entry]:
        """Entries that fit, in the order of `items`.

        Args:
            share: Of what is left, for this part.
            order: Places in `items`, the most important first.
        """
        room = int(self._left * share)
        kept: dict[int, Entry] = {}
        for place in range(len(items)) if order is None else order:
            entry = make(items[place])
            size = len(entry.model_dump_json().encode()) + 1
            if size > room:
                break
            room -= size
            self._left -= size
            kept[place] = entry
        self._count(part, len(items) - len(kept))
        return [kept[place] for place in sorted(kept)]

    def table(
        self, part: str, values: Mapping[str, Item], name: Callable[[str], str], *, share: float, order: Iterable[str]
    ) -> dict[str, Item]:
        """Values by name that fit, sorted by name.

        Args:
            order: Names, the most important first.
        """
        room = int(self._left * share)
        kept: dict[str, Item] = {}
        for one in order:
            # A float is never longer in the record than here; orjson and pydantic both write the shortest that reads back.
            size = len(orjson.dumps({name(one): values[one]})) + _SPARE
            if size > room:
                break
            room -= size
            self._left -= size
            kept[name(one)] = values[one]
        self._count(part, len(values) - len(kept))
        return dict(sorted(kept.items()))

    def fits(self, part: str, value: object, beyond: int = 0) -> bool:
        """Take one value in whole, or not at all.

        Args:
            beyond: So many bytes of it take no room from others.
        """
        size = max(0, len(orjson.dumps(value)) + _SPARE - beyond)
        if size > self._left:
            self._count(part, 1)
            return False
        self._left -= size
        return True

    def _count(self, part: str, number: int) -> None:
        if number:
            self.cut[part] = self.cut.get(part, 0) + number


_SPARE = 8


def brokers_first(left: Sequence[Left], brokers: Mapping[str, object]) -> Iterator[int]:
    """Places in `left`: brokers in their order, then bundles, one of each reason in turn."""
    bundles: dict[str, list[int]] = {}
    for place, one in enumerate(left):
        if one.name in brokers:
            yield place
        else:
            bundles.setdefault(one.reason, []).append(place)
    for turn in zip_longest(*(bundles[reason] for reason in sorted(bundles))):
        yield from (place for place in turn if place is not None)


def extremes_first(scores: Mapping[str, float | None], named: Iterable[str]) -> Iterator[str]:
    """Names: those that the plan is about, then the highest and the lowest in turn."""
    first = [name for name in dict.fromkeys(named) if name in scores]
    yield from first
    seen = set(first)
    ranked = sorted((name for name in scores if name not in seen), key=lambda name: (_rank(scores[name]), name))
    low, high = 0, len(ranked) - 1
    while low <= high:
        yield ranked[high]
        if low < high:
            yield ranked[low]
        low, high = low + 1, high - 1


def _rank(score: float | None) -> float:
    return float("inf") if score is None else score


def finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers by name; those that JSON cannot say become null."""
    return {name: float(value) if isfinite(value) else None for name, value in values.items()}
