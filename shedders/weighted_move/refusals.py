"""Cache of the filters' refusals. Pure.

As a rule filters refuse a broker to whole namespaces: isolation, anti-affinity, versions. It may be that none of a busy broker's
namespaces may use the idlest brokers of a cluster; these must not hide the ones that may be used.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from shedders.model.cluster import Bundle
from shedders.model.strategy import CanTake
from shedders.shedding.draft import refused

# After this many refused bundles of a namespace, and none accepted, the broker is closed to it for this decision.
CLOSED: Final = 2
_NONE: Final[frozenset[str]] = frozenset()


class FilterRefusals:
    """Cache of the filters' refusals in one decision.

    Args:
        can_take: Filters; None: every broker may take every bundle.

    Attributes:
        count: Number of refusals.
        closed: By broker, the namespaces that it is closed to.
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
        refusal = refused(self._can_take, bundle, broker)
        key = broker, bundle.namespace
        if refusal is None:
            self._open.add(key)
            return None
        self.count += 1
        self._times[key] += 1
        if self._times[key] >= CLOSED and key not in self._open:
            self.closed.setdefault(broker, set()).add(bundle.namespace)
        return refusal

    def permit(self, bundle: Bundle, broker: str) -> bool:
        """Whether a broker may take a bundle; a refusal does not count."""
        return refused(self._can_take, bundle, broker) is None

    def closed_to(self, broker: str) -> set[str] | frozenset[str]:
        """Namespaces that this broker is closed to."""
        return self.closed.get(broker, _NONE)
