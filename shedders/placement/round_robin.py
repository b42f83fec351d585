"""RoundRobinBrokerSelector: candidates take turns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from shedders.model.candidates import unplaced
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Placed
from shedders.model.strategy import StrategySettings

_JAVA_INT_MAX = 2**31 - 1


class RoundRobinSettings(StrategySettings):
    upstream: bool = Field(default=False, description="Count as Pulsar 4.2.4 does, bit for bit.")


class RoundRobin:
    """Candidates take turns in the order of their names, whatever their load.

    The next one after the last one that was chosen, by name; after the last by name the first again.

    Example (also a test): a, b and c take three bundles in turn. The fourth may only go to b or c: after c comes b. The fifth
    may go to all three: after b comes c.

    Upstream uses it for namespaces that are never shed; it is a placement strategy like any other here.

    `upstream`: a counter picks `order[counter mod number of candidates]`, so that with sets of candidates of different sizes
    some are skipped and others get two in a row. `order` is the order of the candidates when they were first seen; it
    stays as long as their number does and the one picked is among them. Upstream's order is that of a hash set; here it is
    that of names. So with a fresh counter upstream may choose any candidate (`Placed.best`); from then on each has
    its turn once per round, if the candidates stay the same. Source: `RoundRobinBrokerSelector` of
    Pulsar 4.2.4; corrections: design/decisions/0030.
    """

    name: ClassVar[str] = "round-robin"
    Settings: ClassVar[type[StrategySettings]] = RoundRobinSettings

    def __init__(self, settings: RoundRobinSettings) -> None:
        self.settings = settings

    def place(
        self,
        cluster: Cluster,  # noqa: ARG002  (of the port)
        bundle: Bundle,
        candidates: Sequence[str],
        booked: Mapping[str, Sequence[str]],  # noqa: ARG002  (of the port)
        memory: Mapping[str, Any],
    ) -> Placed:
        """Choose; remembers whose turn it was."""
        if not candidates:
            return unplaced(bundle, memory)
        names = sorted(candidates)
        if self.settings.upstream:
            return _counted(bundle, names, memory)
        last = memory.get("last")
        index = bisect_right(names, last) % len(names) if isinstance(last, str) else 0
        broker = names[index]
        why = f"its turn after {last}" if isinstance(last, str) else "the first turn"
        return Placed(bundle.name, broker, why, (broker,), memory={"last": broker})


def _counted(bundle: Bundle, names: list[str], memory: Mapping[str, Any]) -> Placed:
    count, order = memory.get("count"), memory.get("order")
    turn = count if type(count) is int and 0 <= count <= _JAVA_INT_MAX else 0
    seen = [str(name) for name in order] if isinstance(order, Sequence) and not isinstance(order, str) else []
    index = turn % len(names)
    if len(seen) != len(names) or seen[index] not in names:
        seen = names
    following = 0 if turn == _JAVA_INT_MAX else turn + 1
    why = f"turn {turn}, {index + 1} of {len(names)}"
    return Placed(bundle.name, seen[index], why, names, memory={"count": following, "order": seen})
