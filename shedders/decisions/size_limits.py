"""Size limits of decision records: what does not fit is left out and counted, never silently.

Parts are filled in order of importance, each with at most a share of the remaining room, so that no part can
crowd out all others. Within a part the most informative entries come first. Pure.
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
    """Shortens texts to their limits, and counts the shortened ones."""

    def __init__(self, max_chars: int) -> None:
        self._max = max_chars
        self.count = 0

    def text(self, text: str) -> str:
        """A sentence: control characters and invalid Unicode are replaced, and it is truncated if it is too long."""
        return self._cut(text, self._max)

    def maybe(self, text: str | None) -> str | None:
        return None if text is None else self.text(text)

    def name(self, name: str) -> str:
        """A name: those of the protocol are shorter than this allows."""
        return self._cut(name, NAME_MAX_CHARS)

    def _cut(self, text: str, most: int) -> str:
        if len(text) > most:
            self.count += 1
            text = f"{text[: most - 1]}\u2026"
        return text if text.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in text)


def word(text: str) -> str:
    """A stable word, as a record may hold it: third parties may name things as they like."""
    cleaned = "".join(char if char.isascii() and (char.isalnum() or char in "-_") else "-" for char in text)
    cleaned = cleaned.strip("-_")[:_WORD_MAX_CHARS]
    return cleaned if cleaned[:1].isalpha() else f"w-{cleaned}"


class Room:
    """The remaining bytes of a record.

    Attributes:
        cut: How many entries did not fit, by part.
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
        for key in order:
            # A float is never longer in the record than here; orjson and pydantic both write the shortest that reads back.
            size = len(orjson.dumps({name(key): values[key]})) + _SPARE
            if size > room:
                break
            room -= size
            self._left -= size
            kept[name(key)] = values[key]
        self._count(part, len(values) - len(kept))
        return dict(sorted(kept.items()))

    def fits(self, part: str, value: object, beyond: int = 0) -> bool:
        """Take one value in whole, or not at all.

        Args:
            beyond: Bytes of it that are not counted against the room of others.
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
    for place, entry in enumerate(left):
        if entry.name in brokers:
            yield place
        else:
            bundles.setdefault(entry.reason, []).append(place)
    for turn in zip_longest(*(bundles[reason] for reason in sorted(bundles))):
        yield from (place for place in turn if place is not None)


def extremes_first(scores: Mapping[str, float | None], named: Iterable[str]) -> Iterator[str]:
    """Names: those that the plan is about, then the highest and the lowest in turn."""
    first = [name for name in dict.fromkeys(named) if name in scores]
    yield from first
    rest = scores.keys() - set(first)
    ranked = sorted(rest, key=lambda name: (scores[name] is None, scores[name] or 0.0, name))
    low, high = 0, len(ranked) - 1
    while low <= high:
        yield ranked[high]
        if low < high:
            yield ranked[low]
        low, high = low + 1, high - 1


def finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers by name; those that JSON cannot represent become null."""
    return {name: float(value) if isfinite(value) else None for name, value in values.items()}
