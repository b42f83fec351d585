"""Placement with load data in a live broker: the port that the engine asks for each bundle, filters and strategy behind it.

Asked in the loop's thread, within a step of the engine: everything comes from memory, and nothing may raise. Brokers' loads
are taken anew every `placement_refresh_s`; bundles placed since then are booked, so a storm of assignments does not go to
one broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from shedders.cluster import Broker, Bundle, Cluster, Policies
from shedders.placing import Pipeline
from shedders.plan import Placed
from statechannel.core.placement import FewestBundles

_log = structlog.get_logger(__name__)

PLACED_MAX = 10_000
BOOKED_MAX_S = 60.0


class Surroundings(NamedTuple):
    """What placements go by for a while.

    Attributes:
        modular: The leader places on request; `leading`: that is this broker.
    """

    brokers: Mapping[str, Broker]
    policies: Policies
    now_ms: int
    safe: str | None
    modular: bool
    leading: bool


@dataclass(frozen=True, slots=True)
class PlacedNote:
    """One choice, for decision records and for `why`.

    Attributes:
        how: `strategy`; `fewest` where the strategy had nothing to go by; `nobody` where the filters left none; `failed` where it
            raised; `asked` where the leader was.
    """

    bundle: str
    broker: str | None
    how: str
    placed: Placed | None


@dataclass(slots=True)
class LivePlacement:
    """See the module. `statechannel.core.placement.Placement` is the port.

    Args:
        surroundings: Called when those at hand are too old.
        owners: Broker by bundle for one namespace.
        pipeline: The placement in force.
        now_s: Monotonic.
        refresh_s: Age at which surroundings are taken anew.
        ask_leader: Modular manager: have the leader place this bundle. Told once for each, until `leader_wait_s` is over.
        leader_wait_s: After so long this broker places by itself.
    """

    surroundings: Callable[[], Surroundings]
    owners: Callable[[str], Mapping[str, str]]
    pipeline: Callable[[], Pipeline]
    now_s: Callable[[], float]
    refresh_s: float
    ask_leader: Callable[[str], None]
    leader_wait_s: float
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[PlacedNote] = field(default_factory=list)
    _at: Surroundings | None = None
    _taken_s: float = float("-inf")
    _clusters: dict[str, Cluster] = field(default_factory=dict)
    _booked: dict[str, list[str]] = field(default_factory=dict)
    _placed: dict[str, tuple[str, float]] = field(default_factory=dict)
    _asked_s: dict[str, float] = field(default_factory=dict)
    _default: FewestBundles = field(default_factory=FewestBundles)

    def choose(self, bundle: str, candidates: Sequence[str], load: Mapping[str, int]) -> str | None:
        """See `Placement.choose`. None also where the leader was asked: the bundle will be assigned by it."""
        try:
            return self._choose(bundle, candidates, load)
        except Exception:
            _log.exception("placement-failed", bundle=bundle)
            broker = self._default.choose(bundle, candidates, load)
            self._note(PlacedNote(bundle, broker, "failed", None))
            return broker

    def take_notes(self) -> Sequence[PlacedNote]:
        """What was chosen since the last call, at most the newest `PLACED_MAX`."""
        notes, self.notes = self.notes, []
        return notes

    def _choose(self, bundle: str, candidates: Sequence[str], load: Mapping[str, int]) -> str | None:
        at = self._surroundings()
        if at.modular and not at.leading and not self._waited(bundle):
            return None
        if not candidates:
            return None
        cluster = self._cluster(at, bundle)
        found = cluster.bundles.get(bundle) or Bundle(bundle)
        pipeline = self.pipeline()
        placed = pipeline.place(cluster, found, self._booked, candidates)
        broker, how = placed.broker, "strategy"
        if broker is None:
            fit = pipeline.filters(cluster, self._booked).passed(found, candidates).names
            broker, how = self._default.choose(bundle, fit, load), "fewest" if fit else "nobody"
        if broker is not None:
            self._book(broker, bundle)
        self._note(PlacedNote(bundle, broker, how, placed))
        return broker

    def _note(self, note: PlacedNote) -> None:
        self.counts[note.how] += 1
        self.notes.append(note)
        if len(self.notes) > PLACED_MAX:
            del self.notes[: PLACED_MAX // 2]

    # --- what is known ----------------------------------------------------------------------------------------------

    def _surroundings(self) -> Surroundings:
        now_s = self.now_s()
        if self._at is None or now_s - self._taken_s >= self.refresh_s:
            self._at = self.surroundings()
            self._taken_s = now_s
            self._clusters = {}
            self._keep_bookings(self._at, now_s)
            for name in [name for name, asked_s in self._asked_s.items() if now_s - asked_s > 4 * self.leader_wait_s]:
                del self._asked_s[name]
        return self._at

    def _cluster(self, at: Surroundings, bundle: str) -> Cluster:
        """Brokers, and the bundles that matter to this one: those of its namespace, and of its anti-affinity group."""
        namespace = bundle.rpartition("/")[0]
        known = self._clusters.get(namespace)
        if known is not None:
            return known
        group = at.policies.anti_affinity.get(namespace)
        namespaces = {namespace}
        if group is not None:
            namespaces |= {name for name, other in at.policies.anti_affinity.items() if other == group}
        bundles = {
            name: Bundle(name, owner) for one in sorted(namespaces) for name, owner in sorted(self.owners(one).items())
        }
        cluster = Cluster(at.brokers, bundles, at.policies, now_ms=at.now_ms, safe=at.safe)
        self._clusters[namespace] = cluster
        return cluster

    def _book(self, broker: str, bundle: str) -> None:
        before = self._placed.get(bundle)
        if before is not None and bundle in self._booked.get(before[0], ()):
            self._booked[before[0]].remove(bundle)
        self._placed[bundle] = broker, self.now_s()
        self._booked.setdefault(broker, []).append(bundle)

    def _keep_bookings(self, at: Surroundings, now_s: float) -> None:
        """A placement counts until its broker's report was made after it, or for a while where none comes."""
        booked: dict[str, list[str]] = {}
        for bundle, (broker, placed_s) in list(self._placed.items()):
            seen = at.brokers.get(broker)
            reported = seen is not None and seen.load is not None and now_s - seen.load_age_s >= placed_s
            if seen is None or reported or now_s - placed_s > BOOKED_MAX_S:
                del self._placed[bundle]
            else:
                booked.setdefault(broker, []).append(bundle)
        self._booked = booked

    def _waited(self, bundle: str) -> bool:
        """Whether the leader had its time; it is asked first."""
        now_s = self.now_s()
        asked_s = self._asked_s.get(bundle)
        if asked_s is None:
            self._asked_s[bundle] = now_s
            self._note(PlacedNote(bundle, None, "asked", None))
            self.ask_leader(bundle)
            return False
        return now_s - asked_s >= self.leader_wait_s
