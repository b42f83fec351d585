"""The cluster at one moment, as strategies see it: immutable values without a clock.

A snapshot file is read into this, and the balancer builds it from what the leader knows; so a plan can always be repeated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from loaddata.model.broker_load import BrokerLoad
from loaddata.model.bundle_load import BundleAverages, BundleStats
from loaddata.model.hosts import host_of


@dataclass(frozen=True, slots=True)
class Broker:
    """One registered broker.

    Attributes:
        load: Its newest report; None if there is none.
        load_age_s: Age of that report by the reader's own monotonic clock, in seconds.
        load_lapsed: The report is stale: older than the last change of ownership of this broker's bundles.
        manager: Name of its load manager (`extensible`, `modular`); brokers with another one are not destinations.
        accepting: Caught up, not draining, not in safe mode.
        domain: Failure domain; None without one.
        web_address: What isolation policies match; the id where none is known.
    """

    name: str
    load: BrokerLoad | None = None
    load_age_s: float = 0.0
    load_lapsed: bool = False
    version: str | None = None
    manager: str = "extensible"
    accepting: bool = True
    persistent: bool = True
    non_persistent: bool = True
    domain: str | None = None
    web_address: str | None = None

    @property
    def address(self) -> str:
        """What isolation policies match: the host of the web address, see `host_of`; without one the id, up to its port."""
        host = host_of(self.web_address or "")
        return host or (self.name.partition(":")[0] if self.name.count(":") == 1 else self.name)


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """One topic of a bundle: the hash of its full name, and its rates a second."""

    name: str
    position: int
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0


@dataclass(frozen=True, slots=True)
class Bundle:
    """One live bundle.

    Attributes:
        name: Key on the channel, `tenant/namespace/0x%08x_0x%08x`.
        owner: Broker that serves it; None if no broker does or it is in flight.
        in_flight: Assigning, Releasing or Splitting: it is left alone.
        stats: This moment's figures; None if none were reported.
        averages: Short- and long-term averages; upstream's defaults if it was not measured.
        reported: Its owner names it among its top bundles, in which order (`rank`, 0 first; upstream: the lightest first).
        topics: Its topics, where they are known (needed by split algorithms that look at them).
        estimated: Its figures are computed from the bundle that it was split from (`shedders.model.moved_cluster`); it was
            not measured yet.
        secondhand: Its averages were not measured by its present owner: placements use them, shedding does not.
    """

    name: str
    owner: str | None = None
    in_flight: bool = False
    stats: BundleStats | None = None
    averages: BundleAverages = field(default_factory=BundleAverages)
    rank: int | None = None
    topics: Sequence[TopicLoad] = ()
    non_persistent: bool = False
    estimated: bool = False
    secondhand: bool = False

    @property
    def namespace(self) -> str:
        return self.name.rpartition("/")[0]

    @property
    def topics_known(self) -> str:
        """How many of its topics are known, for people."""
        return f"{len(self.topics)} of {0 if self.stats is None else self.stats.topics} topics are known"


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """Which brokers a namespace may use (upstream `NamespaceIsolationData`).

    Attributes:
        namespaces: Regular expressions of namespaces.
        primary: Regular expressions of broker addresses; `secondary`: those of stand-by brokers.
        min_available: If fewer primaries than this can take a bundle, secondaries may.
    """

    name: str
    namespaces: Sequence[str]
    primary: Sequence[str]
    secondary: Sequence[str] = ()
    min_available: int = 1


@dataclass(frozen=True, slots=True)
class Policies:
    """Policies that operators have set.

    Attributes:
        isolation: In the order in which they are matched.
        anti_affinity: Group by namespace.
        pins: Broker by bundle or namespace: it goes there, and is not moved from there.
        cordons: Brokers that take nothing, with the reason.
        excluded: Namespaces that are never shed.
    """

    isolation: Sequence[IsolationPolicy] = ()
    anti_affinity: Mapping[str, str] = field(default_factory=dict)
    pins: Mapping[str, str] = field(default_factory=dict)
    cordons: Mapping[str, str] = field(default_factory=dict)
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RecentMoves:
    """Recent moves: ages in seconds by the leader's monotonic clock.

    Attributes:
        bundles: Seconds since a bundle was moved.
        brokers: Seconds since a broker gave a bundle away or got one.
    """

    bundles: Mapping[str, float] = field(default_factory=dict)
    brokers: Mapping[str, float] = field(default_factory=dict)


class Grouped(Mapping[str, Sequence[Bundle]]):
    """Bundles in groups; each group is sorted by name at first use.

    A decision reads few of the groups of a hundred thousand bundles, and sorting them all would take longer than the decision.
    """

    def __init__(self, groups: Mapping[str, Sequence[Bundle]]) -> None:
        self._groups = groups
        self._sorted: dict[str, Sequence[Bundle]] = {}

    def count(self, name: str) -> int:
        """Number of bundles of a group; 0 if it does not exist."""
        return len(self._groups.get(name, ()))

    def unsorted(self, name: str) -> Sequence[Bundle]:
        """A group in any order; empty if it does not exist."""
        return self._groups.get(name, ())

    def __getitem__(self, name: str) -> Sequence[Bundle]:
        group = self._sorted.get(name)
        if group is None:
            group = self._sorted[name] = sorted(self._groups[name], key=_BY_NAME)
        return group

    def __contains__(self, name: object) -> bool:
        return name in self._groups

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._groups))

    def __len__(self) -> int:
        return len(self._groups)


_BY_NAME = attrgetter("name")


@dataclass(frozen=True)
class Cluster:
    """The input of a decision. The order of brokers and bundles has no meaning.

    Attributes:
        now_ms: Wall time, for people and for upstream's own comparisons.
        namespaces: Live bundles by namespace, as the channel has them.
        safe: Why the cluster must be left alone (safe mode of the leader); None if it need not be.
    """

    brokers: Mapping[str, Broker]
    bundles: Mapping[str, Bundle]
    policies: Policies = field(default_factory=Policies)
    recent: RecentMoves = field(default_factory=RecentMoves)
    now_ms: int = 0
    safe: str | None = None

    @cached_property
    def broker_names(self) -> list[str]:
        return sorted(self.brokers)

    # Both iterate over the bundles in the order of the mapping: that is mostly their order in memory, and any other order of
    # a hundred thousand of them takes several times as long.

    @cached_property
    def bundles_of(self) -> Grouped:
        """Bundles by owner: by each registered broker, and by owners that are no longer registered."""
        owned: dict[str, list[Bundle]] = {name: [] for name in self.brokers}
        for bundle in self.bundles.values():
            owner = bundle.owner
            if owner in owned:
                owned[owner].append(bundle)
            elif owner is not None:
                owned[owner] = [bundle]
        return Grouped(owned)

    @cached_property
    def bundles_in(self) -> Grouped:
        groups: dict[str, list[Bundle]] = defaultdict(list)
        for bundle in self.bundles.values():
            groups[bundle.name.rpartition("/")[0]].append(bundle)
        return Grouped(dict(groups))
