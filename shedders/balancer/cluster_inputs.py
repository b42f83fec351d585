"""The cluster as strategies see it, built from what a broker knows: the channel, the load topics, the policies. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import urlsplit

from loaddata.model.bundle_load import BundleAverages, MessageAverage
from shedders.decision.booked_moves import Booked
from shedders.filters.pins import inherited
from shedders.model.cluster import Broker, Bundle, Cluster, Policies, RecentMoves
from shedders.model.moved_cluster import cargo_of
from statechannel.protocol.states import IN_FLIGHT, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from loaddata.model.broker_load import BrokerLoad
    from loaddata.model.top_bundles import TopBundle
    from statechannel.engine.cluster_view import BrokerSeen, BundleSeen, ClusterView

_WEB = ("http", "https")
_SERVED = frozenset({State.ASSIGNED, State.SPLITTING, State.RELEASING})
_UNKNOWN = BundleAverages()
DOMAIN, WEB_ADDRESS, MANAGER = "failure-domain", "web-address", "load-manager"
"""Properties of a broker in the registry that strategies know (design/registry.md)."""


class LoadLike(Protocol):
    """Newest report of a broker; `loaddata.live.service.ReportedLoad` is one."""

    @property
    def load(self) -> BrokerLoad:
        """As reported."""
        ...

    @property
    def age_s(self) -> float:
        """By this broker's monotonic clock."""
        ...

    @property
    def lapsed(self) -> bool:
        """The broker's bundles have changed since."""
        ...


class TopLike(Protocol):
    """Heaviest bundles of a broker; `loaddata.live.service.ReportedTopBundles` is one."""

    @property
    def bundles(self) -> Sequence[TopBundle]:
        """The lightest first."""
        ...

    @property
    def age_s(self) -> float:
        """By this broker's monotonic clock."""
        ...

    @property
    def lapsed(self) -> bool:
        """The broker's bundles have changed since."""
        ...

    @property
    def owned_as_of(self) -> Mapping[int, int] | None:
        """Offset, by partition, up to which it takes changes of ownership in; None where that is not known."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterInputs:
    """What goes into a cluster beside the picture of the channel.

    Attributes:
        loads, tops: By broker.
        top_ttl_s: A report of the heaviest bundles that is older is not used.
        domains: Failure domain by broker, as operators laid it down; it stands over the broker's own word.
        quotas: Averages that operators laid down, by bundle; they stand over what was measured.
        recent: What was moved lately.
        safe: Why the cluster is to be left alone, if anything beyond the picture says so.
    """

    loads: Mapping[str, LoadLike] = field(default_factory=dict)
    tops: Mapping[str, TopLike] = field(default_factory=dict)
    top_ttl_s: float = 1_800.0
    policies: Policies = field(default_factory=Policies)
    domains: Mapping[str, str] = field(default_factory=dict)
    quotas: Mapping[str, MessageAverage] = field(default_factory=dict)
    recent: RecentMoves = field(default_factory=RecentMoves)
    safe: str | None = None


class Kept:
    """Bundles as the channel has them, kept from one cluster to the next: nearly all are the same, and have no figures.

    Bundles are compared by identity, which `statechannel.engine.cluster_view.ClusterViews` keeps; other views take longer.
    Not safe for use by several threads.
    """

    def __init__(self) -> None:
        self._of: Sequence[BundleSeen] | None = None
        self.seen: dict[str, BundleSeen] = {}
        self.bundles: dict[str, Bundle] = {}
        self.going: list[BundleSeen] = []

    def update(self, bundles: Sequence[BundleSeen]) -> None:
        """Make them those of this picture.

        `seen` and `bundles` are by name then, in the picture's order; `going` are those that have a destination.
        """
        if bundles is self._of:
            return
        before, made = self.seen, self.bundles
        self.seen = {bundle.bundle: bundle for bundle in bundles}
        self.bundles = {name: made[name] if before.get(name) is one else _plain(one) for name, one in self.seen.items()}
        self.going = [one for one in bundles if one.destination is not None]
        self._of = bundles


def cluster_now(
    picture: ClusterView, known: ClusterInputs, now_ms: int, *, arrived: bool = False, kept: Kept | None = None
) -> Cluster:
    """Put it together.

    What a broker reports of its heaviest bundles are their figures only while it serves them, and of each only if it came there
    before the report: else nobody has measured it yet where it is. Then its averages as they were last known are kept, marked as
    second-hand: placements go by them, nothing is shed by them. That other bundles of the broker came or went since (the report
    has lapsed) changes nothing. Reports of brokers that are not registered count for nothing.

    Args:
        now_ms: The log's time, for people.
        arrived: Count what is on its way where it goes to: for placements, which should not take a broker for empty that is
            being filled.
        kept: Of the clusters before this one, to be quicker: only what has changed since, and bundles with figures, are made
            anew.
    """
    brokers = {broker.broker: broker_now(broker, known) for broker in picture.brokers}
    kept = kept or Kept()
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
    """What is known of a bundle: by whose report, how old, at which place in it.

    Attributes:
        current: It is its owner's, made since the bundle came there.
    """

    current: bool
    age_s: float
    rank: int
    top: TopBundle


def _measured(kept: Kept, brokers: Mapping[str, Broker], known: ClusterInputs) -> dict[str, _Figures]:
    """The figures of each bundle: the owner's own where they are current, else the youngest that anybody has told."""
    found: dict[str, _Figures] = {}
    for name in sorted(known.tops.keys() & brokers.keys()):
        top = known.tops[name]
        if not 0 <= top.age_s <= known.top_ttl_s:
            continue
        for rank, one in enumerate(top.bundles):
            bundle = kept.bundles.get(one.name)
            if bundle is None:
                continue
            own = bundle.owner == name and _is_measured_there(kept.seen[one.name], top)
            before = found.get(one.name)
            if before is None or (not before.current and (own or top.age_s < before.age_s)):
                found[one.name] = _Figures(own, top.age_s, rank, one)
    return found


def _is_measured_there(seen: BundleSeen, top: TopLike) -> bool:
    """Whether its owner's report was made after the bundle came there.

    The record that made a bundle's state tells when it came only of one that is assigned. Of one that is released or split it is
    a later one: if the report is from before that the whole report has to be current.
    """
    if top.owned_as_of is None:
        return not top.lapsed
    if seen.offset <= top.owned_as_of.get(seen.partition, -1):
        return True
    return seen.state != State.ASSIGNED and not top.lapsed


def under_way(bundles: Iterable[BundleSeen], cluster: Cluster) -> Iterator[Booked]:
    """Bundles that the channel has on their way from one broker to another: their load counts where it will be.

    A leader that takes over books them, and a snapshot of the topics has them, as whoever has decided on them would.
    """
    for bundle in bundles:
        source = bundle.owner if bundle.state == State.RELEASING else None
        if bundle.state == State.ASSIGNING and bundle.source in cluster.brokers:
            source = bundle.source  # what comes from a broker that is gone takes no load from anybody
        if source is None or source == bundle.destination or bundle.destination not in cluster.brokers:
            continue
        giver = cluster.brokers.get(source)
        cargo = cargo_of(cluster.bundles[bundle.bundle], None if giver is None else giver.load)
        yield Booked(bundle.bundle, source, bundle.destination, cargo)


def why_left_alone(picture: ClusterView) -> str | None:
    """Why nobody should act on this picture; None if it is sound."""
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
    """One broker; what the registry says of it is text of its own choosing, so nothing is taken for granted."""
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
    """Host and port of the web listener, as isolation policies of upstream match them."""
    if not isinstance(listeners, dict):
        return None
    for protocol in _WEB:
        url = listeners.get(protocol)
        if isinstance(url, str):
            try:
                return urlsplit(url).netloc or None
            except ValueError:
                return None
    return None


def _plain(seen: BundleSeen) -> Bundle:
    """A bundle as the channel has it."""
    owner = seen.owner if seen.state in _SERVED else None
    return Bundle(seen.bundle, owner, seen.state in IN_FLIGHT, None, _UNKNOWN)


def _with_figures(plain: Bundle, found: _Figures | None, quota: MessageAverage | None) -> Bundle:
    averages = _UNKNOWN if quota is None else BundleAverages(quota, quota)
    if found is None:
        return replace(plain, averages=averages)
    top = found.top
    if quota is None:
        averages = top.averages
    if not found.current:
        return replace(plain, averages=averages, secondhand=quota is None, non_persistent=top.non_persistent)
    return replace(plain, stats=top.stats, averages=averages, rank=found.rank, non_persistent=top.non_persistent)
