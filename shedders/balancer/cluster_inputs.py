"""Construction of the strategies' cluster from a broker's views of the channel, load topics, policies and recent moves. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import urlsplit

from loaddata.model.bundle_load import BundleAverages, MessageAverage
from loaddata.model.hosts import host_of
from loaddata.view.ownership import AcceptedChange
from shedders.decision.booked_moves import Booked
from shedders.filters.rules import inherited
from shedders.model.cluster import Broker, Bundle, Cluster, Policies, RecentMoves
from shedders.model.moved_cluster import cargo_of
from statechannel.protocol.states import IN_FLIGHT, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from loaddata.model.bundle_load import TopBundle
    from loaddata.report.record import ReportedLoad, ReportedTopBundles
    from statechannel.engine.cluster_view import BrokerSeen, BundleSeen, ClusterView


_WEB = ("http", "https")
_SERVED = frozenset({State.ASSIGNED, State.SPLITTING, State.RELEASING})
_UNKNOWN = BundleAverages()
DOMAIN, WEB_ADDRESS, MANAGER = "failure-domain", "web-address", "load-manager"
"""Properties of a broker in the registry that strategies know (design/registry.md)."""


@dataclass(frozen=True, slots=True)
class ClusterInputs:
    """The inputs of a cluster in addition to the view of the channel.

    Attributes:
        loads, tops: By broker.
        top_ttl_s: A report of the heaviest bundles that is older is not used.
        domains: Failure domain by broker, from policies; overrides the broker's own setting.
        quotas: Averages by bundle, from policies; override the measured ones.
        safe: Why the cluster is to be left alone, for a reason other than the view.
    """

    loads: Mapping[str, ReportedLoad] = field(default_factory=dict)
    tops: Mapping[str, ReportedTopBundles] = field(default_factory=dict)
    top_ttl_s: float = 1_800.0
    policies: Policies = field(default_factory=Policies)
    domains: Mapping[str, str] = field(default_factory=dict)
    quotas: Mapping[str, MessageAverage] = field(default_factory=dict)
    recent: RecentMoves = field(default_factory=RecentMoves)
    safe: str | None = None


class BundleCache:
    """Cache of bundles from one cluster to the next: nearly all are the same, and have no figures.

    Bundles are compared by identity, which `statechannel.engine.cluster_view.ClusterViews` preserves; other views take longer.
    Not thread-safe.
    """

    def __init__(self) -> None:
        self._of: Sequence[BundleSeen] | None = None
        self.seen: dict[str, BundleSeen] = {}
        self.bundles: dict[str, Bundle] = {}
        self.going: list[BundleSeen] = []

    def update(self, bundles: Sequence[BundleSeen]) -> None:
        """Update it to this view.

        Then `seen` and `bundles` are by name, in the view's order; `going` has those with a destination.
        """
        if bundles is self._of:
            return
        before, cached = self.seen, self.bundles
        self.seen = {bundle.bundle: bundle for bundle in bundles}
        self.bundles = {
            name: cached[name] if before.get(name) is seen else _plain(seen) for name, seen in self.seen.items()
        }
        self.going = [bundle for bundle in bundles if bundle.destination is not None]
        self._of = bundles


def cluster_now(
    picture: ClusterView, known: ClusterInputs, now_ms: int, *, arrived: bool = False, kept: BundleCache | None = None
) -> Cluster:
    """Build the cluster.

    A broker's report of its heaviest bundles has a bundle's current figures only while the broker serves it, and only if it came
    there before the report: else its present owner has not measured it yet. Then its last known averages are kept, marked as
    second-hand: placements use them, shedding does not. It does not matter whether other bundles of the broker came or went since
    (the report is stale). Reports of brokers that are not registered are ignored.

    Args:
        now_ms: The log's time, for people.
        arrived: Count bundles in flight at their destination: for placements, which should not take a broker for empty that is
            being filled.
        kept: Cache from the clusters before, for speed: only bundles that changed and those with figures are built.
    """
    brokers = {broker.broker: broker_now(broker, known) for broker in picture.brokers}
    kept = kept or BundleCache()
    kept.update(picture.bundles)
    bundles = dict(kept.bundles)
    measured = _measured(kept, brokers, known)
    for moving in kept.going if arrived else ():
        bundles[moving.bundle] = replace(bundles[moving.bundle], owner=moving.destination)
    for name in measured.keys() | (known.quotas.keys() & bundles.keys()):
        bundles[name] = _with_figures(bundles[name], measured.get(name), known.quotas.get(name))
    policies = inherited(known.policies, bundles)
    return Cluster(brokers, bundles, policies, known.recent, now_ms, known.safe or why_left_alone(picture))


class _Figures(NamedTuple):
    """The reported figures of a bundle, with the report's age and the bundle's rank in it.

    Attributes:
        current: The report is its owner's, made since the bundle came there.
    """

    current: bool
    age_s: float
    rank: int
    top: TopBundle


def _measured(kept: BundleCache, brokers: Mapping[str, Broker], known: ClusterInputs) -> dict[str, _Figures]:
    """The figures of each bundle: the owner's if they are current, else the newest from any broker."""
    figures: dict[str, _Figures] = {}
    for name in sorted(known.tops.keys() & brokers.keys()):
        top = known.tops[name]
        if not 0 <= top.age_s <= known.top_ttl_s:
            continue
        for rank, reported in enumerate(top.bundles):
            bundle = kept.bundles.get(reported.name)
            if bundle is None:
                continue
            own = bundle.owner == name and _is_measured_there(kept.seen[reported.name], top)
            before = figures.get(reported.name)
            if before is None or (not before.current and (own or top.age_s < before.age_s)):
                figures[reported.name] = _Figures(own, top.age_s, rank, reported)
    return figures


def _is_measured_there(seen: BundleSeen, top: ReportedTopBundles) -> bool:
    """Whether its owner's report was made after the bundle came there.

    The record of a bundle's state shows when it came only if the bundle is assigned. Of one being released or split, that record
    is a later one: if the report is from before it, the whole report has to be current.
    """
    if top.owned_as_of is None:
        return not top.lapsed
    if seen.offset <= top.owned_as_of.get(seen.partition, -1):
        return True
    return seen.state != State.ASSIGNED and not top.lapsed


def under_way(bundles: Iterable[BundleSeen], cluster: Cluster) -> Iterator[Booked]:
    """Bundles in flight from one broker to another on the channel: their load counts at the destination.

    A leader that takes over books them, and a snapshot of the topics has them, like the leader that decided on them.
    """
    for bundle in bundles:
        source = bundle.owner if bundle.state == State.RELEASING else None
        if bundle.state == State.ASSIGNING and bundle.source in cluster.brokers:
            source = bundle.source  # a bundle from a broker that is gone takes no load from any broker
        if source is None or source == bundle.destination or bundle.destination not in cluster.brokers:
            continue
        giver = cluster.brokers.get(source)
        cargo = cargo_of(cluster.bundles[bundle.bundle], None if giver is None else giver.load)
        yield Booked(bundle.bundle, source, bundle.destination, cargo)


def why_left_alone(picture: ClusterView) -> str | None:
    """Why no decision may be made from this view; None if it is sound."""
    if not picture.current:
        return "this broker has not caught up with the channel"
    if picture.mode != "normal":
        return f"this broker is in {picture.mode} mode"
    if picture.draining:
        return "this broker is leaving"
    if picture.repair_paused is not None:
        return f"repair is paused: {picture.repair_paused}"
    return None


def broker_now(seen: BrokerSeen, known: ClusterInputs) -> Broker:
    """One broker; its properties in the registry are free text, so they are validated."""
    info = seen.info
    properties = info.get("properties")
    own = properties if isinstance(properties, dict) else {}
    report = known.loads.get(seen.broker)
    software = info.get("software")
    broker = Broker(
        seen.broker,
        version=software if isinstance(software, str) else None,
        manager=_text(own.get(MANAGER)) or "extensible",
        accepting=seen.accepting,
        persistent=info.get("persistent") is not False,
        non_persistent=info.get("non_persistent") is not False,
        domain=known.domains.get(seen.broker) or _text(own.get(DOMAIN)),
        web_address=_text(own.get(WEB_ADDRESS)) or _web_address(info.get("listeners")),
    )
    if report is None:
        return broker
    return replace(broker, load=report.load, load_age_s=report.age_s, load_lapsed=report.lapsed)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _web_address(listeners: object) -> str | None:
    """Host and port of the web listener: that with a name of `_WEB`, else the first by scheme and name whose URL is of one."""
    if not isinstance(listeners, dict):
        return None
    urls = {name: url for name, url in listeners.items() if isinstance(url, str) and host_of(url) is not None}
    named = [urls[name] for name in _WEB if name in urls]
    other = [url for scheme in _WEB for _, url in sorted(urls.items()) if urlsplit(url).scheme == scheme]
    return next((urlsplit(url).netloc for url in (*named, *other)), None)


def _plain(seen: BundleSeen) -> Bundle:
    owner = seen.owner if seen.state in _SERVED else None
    return Bundle(seen.bundle, owner, seen.state in IN_FLIGHT, None, _UNKNOWN)


def _with_figures(plain: Bundle, figures: _Figures | None, quota: MessageAverage | None) -> Bundle:
    averages = _UNKNOWN if quota is None else BundleAverages(quota, quota)
    if figures is None:
        return replace(plain, averages=averages)
    top = figures.top
    if quota is None:
        averages = top.averages
    if not figures.current:
        return replace(plain, averages=averages, secondhand=quota is None, non_persistent=top.non_persistent)
    return replace(plain, stats=top.stats, averages=averages, rank=figures.rank, non_persistent=top.non_persistent)


REMEMBERED_MAX = 100_000


class AcceptedOfBundle(AcceptedChange, Protocol):
    """An accepted record with its bundle; `statechannel.broker.changes.Change` implements it."""

    @property
    def bundle(self) -> str: ...


class RecentTrail:
    """Fold of accepted records: when a bundle came to another broker, and which two brokers took part.

    Args:
        most: Maximum number of bundles, and of brokers; beyond it the oldest is forgotten.
    """

    def __init__(self, keep_s: Callable[[], float], most: Callable[[], int] = lambda: REMEMBERED_MAX) -> None:
        self._keep_s = keep_s
        self._most = most
        self._bundles: dict[str, float] = {}
        self._brokers: dict[str, float] = {}

    def changed(self, change: AcceptedOfBundle, now_s: float) -> None:
        if change.state is not State.ASSIGNED or change.from_ in (None, change.to) or change.to is None:
            return
        self._note(self._bundles, change.bundle, now_s)
        self._note(self._brokers, str(change.from_), now_s)
        self._note(self._brokers, change.to, now_s)

    def recent(self, now_s: float) -> RecentMoves:
        """Ages in seconds, by name."""
        keep_s = self._keep_s()
        for table in (self._bundles, self._brokers):
            while table and now_s - next(iter(table.values())) > keep_s:
                del table[next(iter(table))]
        return RecentMoves(
            {name: now_s - self._bundles[name] for name in sorted(self._bundles)},
            {name: now_s - self._brokers[name] for name in sorted(self._brokers)},
        )

    def _note(self, table: dict[str, float], name: str, now_s: float) -> None:
        table.pop(name, None)
        table[name] = now_s
        if len(table) > self._most():
            del table[next(iter(table))]
