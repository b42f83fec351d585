"""Where a bundle goes: a small port and a simple default. Strategies join through entry points (package `shedders`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Placement(Protocol):
    """Chooses a broker for a bundle."""

    def choose(self, bundle: str, candidates: Sequence[str], load: Mapping[str, int]) -> str | None:
        """One of the candidates, or None if none will do.

        Args:
            bundle: Key of the bundle.
            candidates: Brokers that are alive, caught up, accepting, and did not decline the bundle lately; sorted.
            load: Bundles that each broker has or is about to have, those in flight and not yet read back included.
        """
        ...


class FewestBundles:
    """The broker with the fewest bundles; among equals the one that comes first after the bundle's place in the alphabet.

    Bundles in flight are counted, so a storm of assignments does not go to one broker (upstream counts none of them).
    """

    def choose(self, bundle: str, candidates: Sequence[str], load: Mapping[str, int]) -> str | None:
        """See `Placement.choose`."""
        if not candidates:
            return None
        start = sum(bundle.encode()) % len(candidates)
        turned = [*candidates[start:], *candidates[:start]]
        return min(turned, key=lambda broker: load.get(broker, 0))
