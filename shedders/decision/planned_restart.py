"""Destinations in a rolling restart: each bundle goes to a broker that will not be emptied again. Pure.

Brokers restart one after the other. A bundle that goes to a broker whose turn is still to come moves once more; one that goes to
a broker that was restarted already, or is not to be restarted at all, has arrived. So these *settled* brokers come first, and the
one that came back last, still empty, takes nearly all bundles of the next: a chain. Of B bundles on N equal brokers B + B/N move:
those of the first broker, for which no other is settled, move twice. No order does with less, as every broker has to be emptied.

A settled broker takes a bundle only up to `ALLOWANCE` times the level that the brokers which stay would have if everything were
spread over them by capacity. What does not fit, or may not go there by policies, goes to the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from loaddata.model.broker_load import ResourceWeights
from shedders.model.candidates import CandidateReader
from shedders.model.cluster import Bundle, Cluster
from shedders.model.readings import ReadingSettings
from shedders.weighted_move.placement import Expected

ALLOWANCE: Final = 1.15
"""Load of a broker that takes bundles in a planned restart, as a multiple of what it would have if all were equally full."""
ALIKE: Final = 0.05
"""Brokers whose loads differ by less than this part of the limit are equally good: the placement chooses among them."""
BROKERS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class PlannedRestart:
    """How far a rolling restart has come, as the request of each of its drains has it."""

    restart: str
    brokers: frozenset[str]
    done: frozenset[str] = frozenset()

    def is_settled(self, broker: str) -> bool:
        """Whether a broker will not be emptied again by this restart."""
        return broker in self.done or broker not in self.brokers

    @classmethod
    def parse(cls, args: Mapping[str, Any]) -> Self | None:
        """The restart that the arguments of a drain belong to; None for a drain by itself, or of a command without `done`.

        Raises:
            ValueError: `brokers` or `done` is not a list of texts.
        """
        restart, brokers, done = args.get("restart"), args.get("brokers"), args.get("done")
        if not isinstance(restart, str) or done is None:
            return None
        for name, value in (("brokers", brokers), ("done", done)):
            if (
                not isinstance(value, list)
                or len(value) > BROKERS_MAX
                or not all(isinstance(item, str) for item in value)
            ):
                raise ValueError(f"`{name}` is a list of at most {BROKERS_MAX} brokers")
        return cls(restart, frozenset(brokers or ()), frozenset(done))


class RestartTakers(NamedTuple):
    """Brokers that should take a bundle.

    Attributes:
        names: Sorted; among these the placement chooses.
        why: What they have in common, for people.
    """

    names: Sequence[str]
    why: str


class RestartDestinations:
    """Brokers that take the bundles of the broker whose turn it is, on one cluster.

    Args:
        leaving: That broker.
        weights: Of the resources, as the placement has them.
    """

    def __init__(
        self, cluster: Cluster, planned: PlannedRestart, leaving: str, weights: ResourceWeights | None = None
    ) -> None:
        self._planned = planned
        weights = weights or ResourceWeights()
        known = CandidateReader(ReadingSettings(), weights).of(cluster)
        self._known = known.loads
        self._expected = Expected(cluster, known, weights)
        cordons = cluster.policies.cordons
        staying = [
            name
            for name, broker in sorted(cluster.brokers.items())
            if name != leaving and broker.accepting and name not in cordons
        ]
        self.limit = ALLOWANCE * self._expected.spread(staying)
        """Most used resource of a broker, in parts of its limit, up to which it takes bundles."""

    def of(self, bundle: Bundle, fit: Sequence[str], booked: Mapping[str, Sequence[str]]) -> RestartTakers:
        """Those of `fit` that should take a bundle; never empty unless `fit` is.

        Args:
            fit: Brokers that policies let take it.
            booked: By broker, bundles in flight there that its report does not count yet.
        """
        settled = [name for name in fit if self._planned.is_settled(name)]
        waiting = [name for name in fit if not self._planned.is_settled(name)]
        after = self._expected.with_bundle(bundle, [name for name in fit if name in self._known], booked)
        roomy = [name for name in settled if after.get(name, 0.0) <= self.limit]
        if roomy:
            return RestartTakers(self._least(roomy, after), "not to be restarted any more")
        others = [name for name in waiting if after.get(name, 0.0) <= self.limit]
        reason = "none that was restarted may take it" if not settled else "those that were restarted have enough load"
        if not self._planned.done and not settled:
            reason = "no broker was restarted yet"
        if others:
            return RestartTakers(self._least(others, after), f"still to be restarted: {reason}")
        why = f"over {ALLOWANCE:g} of an even load: no broker that may take it is below"
        return RestartTakers(self._least(fit, after), why)

    def _least(self, names: Sequence[str], after: Mapping[str, float]) -> list[str]:
        """Those with the least load afterwards: one that has no room at the moment is waited for, not passed over."""
        least = min((after.get(name, 0.0) for name in names), default=0.0)
        return sorted(name for name in names if after.get(name, 0.0) <= least + ALIKE * self.limit)
