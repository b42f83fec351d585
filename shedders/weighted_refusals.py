"""What the filters have said in one decision of `weighted-move`, so that nobody is asked in vain again and again. Pure.

Filters refuse a broker to whole namespaces, as a rule: isolation, anti-affinity, versions. The idlest brokers of a cluster may
well be such that none of a busy broker's namespaces may use; they must not stand in the way of those that may be used.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from shedders.cluster import Bundle
from shedders.leveling import CanTake, refused

CLOSED: Final = 2
"""So many bundles of a namespace refused, and none let in: the broker is not asked for another one in this decision."""

_NOBODY: Final[frozenset[str]] = frozenset()


class Refusals:
    """See the module.

    Args:
        can_take: Filters; None: every broker may take every bundle.

    Attributes:
        count: How many answers were no.
        closed: By broker, namespaces of which it is asked no more.
    """

    def __init__(self, can_take: CanTake | None) -> None:
        self._can_take = can_take
        self._times: Counter[tuple[str, str]] = Counter()
        self._open: set[tuple[str, str]] = set()
        self.count = 0
        self.closed: dict[str, set[str]] = {}

    def why(self, bundle: Bundle, broker: str) -> str | None:
        """Why a broker may not take a bundle; None if it may."""
        if self._can_take is None:
            return None
        fault = refused(self._can_take, bundle, broker)
        key = broker, bundle.namespace
        if fault is None:
            self._open.add(key)
            return None
        self.count += 1
        self._times[key] += 1
        if self._times[key] >= CLOSED and key not in self._open:
            self.closed.setdefault(broker, set()).add(bundle.namespace)
        return fault

    def closed_to(self, broker: str) -> set[str] | frozenset[str]:
        """Namespaces of which this broker is asked no more."""
        return self.closed.get(broker, _NOBODY)
