"""Planned destinations of AvgShedder, exactly as Pulsar 4.2.4 remembers them: the `upstream` setting of `avg`.

* Planned destinations are kept by the *value* of a bundle's data (both averages and the number of topics): bundles with equal
  data share one, the last one that was planned. They are never forgotten (only here, beyond `MOST`).
* Without one (or if it is not a candidate) a bundle goes to any candidate, and that is remembered as its destination.
* A sole bundle goes if it fits; hits are lost though nothing moves; hits of brokers that left stay; with a low threshold of 0
  the broker in the middle is paired with itself.
* * Of brokers with equal scores, and bundles with equal traffic, upstream's hash map decides which comes first, here the name; so
  upstream may give any order of the equals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from loaddata.model.bundle_load import MessageAverage
from shedders.model.candidates import pick, unplaced
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Placed
from shedders.shedding.draft import Draft

MOST = 10_000
"""Maximum number of remembered destinations; beyond it those that no bundle of the cluster uses are forgotten."""


class UpstreamPlans:
    """Destinations by the value of bundles' data.

    Args:
        memory: As `as_memory` gave it.
    """

    def __init__(self, memory: Any) -> None:
        table = memory if isinstance(memory, Mapping) else {}
        self._wanted = {str(key): str(broker) for key, broker in table.items()}

    def put(self, bundle: Bundle, broker: str) -> None:
        """Plan a bundle and all that are equal to it."""
        self._wanted[_value(bundle)] = broker

    def name_destinations(self, draft: Draft) -> None:
        """Set the destinations of the moves to the planned ones."""
        bundles = draft.cluster.bundles
        draft.moves = [
            replace(move, destination=self._wanted.get(_value(bundles[move.bundle]), move.destination))
            for move in draft.moves
        ]

    def place(self, bundle: Bundle, candidates: Sequence[str], memory: Mapping[str, Any]) -> Placed:
        """Place on the planned broker; else on any candidate, which becomes the planned one."""
        if not candidates:
            return unplaced(bundle, memory)
        best = sorted(candidates)
        wanted = self._wanted.get(_value(bundle))
        if wanted in best:
            return Placed(bundle.name, wanted, "it is planned to go there", (wanted,), memory=memory)
        broker = pick(bundle.name, best)
        self.put(bundle, broker)
        why = f"no plan for it: any of {len(best)}"
        remembered = {**memory, "plan": dict(sorted(self._wanted.items()))}
        return Placed(bundle.name, broker, why, best, memory=remembered)

    def as_memory(self, cluster: Cluster) -> dict[str, str]:
        """The memory for the next decision or placement."""
        if len(self._wanted) > MOST:
            values = {_value(bundle) for bundle in cluster.bundles.values()}
            return {value: broker for value, broker in self._wanted.items() if value in values}
        return self._wanted


def _value(bundle: Bundle) -> str:
    topics = len(bundle.topics) if bundle.stats is None else bundle.stats.topics
    return f"{_figures(bundle.averages.short)}/{_figures(bundle.averages.long)}/{topics}"


def _figures(average: MessageAverage) -> str:
    # Adding 0 makes one zero of the two, which are equal as dataclass fields.
    figures = (average.msg_rate_in, average.msg_rate_out, average.msg_throughput_in, average.msg_throughput_out)
    return ",".join(repr(figure + 0.0) for figure in figures) + f",{average.samples}"
