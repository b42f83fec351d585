"""Scope of a plan: checks of the request against the cluster, partitions that must stay, brokers that may get replicas or lead.

Means and ranges are taken over the `homes`: live brokers in the range that are neither removed nor going offline.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shedders.kafka_rebalance.errors import RequestRefusedError
from shedders.kafka_rebalance.planning.request import PlanMode
from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn, Measure
from shedders.model.amounts import count
from shedders.model.patterns import compiled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from loaddata.samples.partitions import ClusterLayout
    from shedders.kafka_rebalance.planning.request import PlanRequest
    from shedders.kafka_rebalance.planning.virtual_cluster import VirtualCluster


NAMED_MAX: Final = 5


def check(layout: ClusterLayout, request: PlanRequest) -> None:
    """Check a request for contradictions with the cluster; its numbers are in their bounds, and it has what its mode needs."""
    if not layout.topics or not any(topic.partitions for topic in layout.topics.values()):
        raise RequestRefusedError("the cluster has no partitions", hint="Create topics first.")
    alive = {broker.id for broker in layout.brokers if broker.alive}
    known = {broker.id for broker in layout.brokers} | {
        broker for _, part in layout.partitions() for broker in part.replicas
    }
    for what, ids in (
        ("broker range", request.brokers),
        ("brokers of the mode", request.subjects),
        ("brokers going offline", request.offline_brokers),
    ):
        unknown = sorted(set(ids) - known)
        if unknown:
            raise RequestRefusedError(
                f"{what}: broker {_list(unknown)} not found", hint=f"Brokers of the cluster: {_list(sorted(known))}."
            )
    cordoned = {broker.id for broker in layout.brokers if broker.cordoned}
    _check_mode(request, alive, cordoned)
    _check_range(request, alive - cordoned)
    _check_in_sync(layout, request)
    _check_log_dirs(layout, request)


def _check_log_dirs(layout: ClusterLayout, request: PlanRequest) -> None:
    if request.log_dirs and (request.offline_brokers or any(choice.name == "log-dirs" for choice in request.goals)):
        raise RequestRefusedError(
            f"{request.mode.value} only moves replicas out of the named log directories",
            hint="Make another plan for brokers going offline and for the goal log-dirs.",
        )
    brokers = {broker.id: broker for broker in layout.brokers if broker.alive}
    for broker, path in request.log_dirs:
        dirs = {directory.path: directory for directory in brokers[broker].log_dirs} if broker in brokers else {}
        online = [each for each in dirs.values() if not each.offline]
        name = f"log directory {path} of broker {broker}"
        if path not in dirs:
            known = (
                f"It has {', '.join(sorted(dirs))}."
                if dirs
                else "The broker is not alive, or does not report its directories."
            )
            raise RequestRefusedError(f"{name} not found", hint=known)
        if dirs[path].offline:
            raise RequestRefusedError(f"{name} is offline", hint="Its replicas cannot be read: use --fix-offline.")
        if not any(each.replicas for each in online):
            raise RequestRefusedError(f"the replicas in {name} are not known", hint="Read the layout from the cluster.")
        going = {other for holder, other in request.log_dirs if holder == broker}
        if all(each.cordoned or each.path in going for each in online):
            raise RequestRefusedError(
                f"{name} cannot be emptied: no other one of the broker may get replicas",
                hint="Keep one that is not cordoned, or use --remove-brokers.",
            )


def _check_mode(request: PlanRequest, alive: set[int], cordoned: set[int]) -> None:
    mode, subjects = request.mode, set(request.subjects)
    both = subjects & set(request.offline_brokers)
    if mode in {PlanMode.ADD_BROKERS, PlanMode.DEMOTE} and both:
        raise RequestRefusedError(
            f"broker {_list(sorted(both))} is a subject of {mode.value} and going offline", hint="Name it once."
        )
    if mode is PlanMode.ADD_BROKERS:
        shut = subjects & cordoned
        if shut:
            raise RequestRefusedError(
                f"all log directories of new broker {_list(sorted(shut))} are cordoned",
                hint="Remove them from its cordoned.log.dirs first.",
            )
        dead = subjects - alive
        if dead:
            raise RequestRefusedError(f"new broker {_list(sorted(dead))} is not alive", hint="Start it first.")
        outside = subjects - set(request.brokers)
        if request.brokers and outside:
            raise RequestRefusedError(
                f"new broker {_list(sorted(outside))} is not in the broker range", hint="Widen the range."
            )


def _check_range(request: PlanRequest, alive: set[int]) -> None:
    both = set(request.brokers) & set(request.offline_brokers)
    if both:
        raise RequestRefusedError(
            f"broker {_list(sorted(both))} is in the broker range and going offline", hint="Name it in one of them."
        )
    if request.mode is PlanMode.REMOVE_BROKERS:
        both = set(request.brokers) & set(request.subjects)
        if both:
            raise RequestRefusedError(
                f"broker {_list(sorted(both))} is in the broker range and to be removed", hint="Name it in one of them."
            )
    usable = homes(request, alive)
    if not usable:
        raise RequestRefusedError(
            "no broker is left that may hold replicas",
            hint="Brokers must be alive, in the range, not cordoned, and neither removed nor going offline.",
        )
    if request.mode is PlanMode.DEMOTE and not usable - set(request.subjects):
        raise RequestRefusedError("no broker is left that may lead", hint="Demote fewer brokers.")
    factor = request.replication_factor
    if factor is not None and factor > len(usable):
        raise RequestRefusedError(
            f"a replication factor of {factor} needs as many brokers; {len(usable)} are usable",
            hint="Use a smaller one.",
        )


def homes(request: PlanRequest, alive: set[int]) -> set[int]:
    """Ids of brokers that may hold replicas."""
    return ((set(request.brokers) & alive) if request.brokers else alive) - leaving(request)


def leaving(request: PlanRequest) -> set[int]:
    """Ids of brokers whose replicas must leave."""
    removed = request.subjects if request.mode is PlanMode.REMOVE_BROKERS else ()
    return {*request.offline_brokers, *removed}


def frozen(cluster: VirtualCluster, request: PlanRequest) -> tuple[NDArray[np.bool_], list[str]]:
    """Partitions that must stay, and remarks on their numbers and reasons."""
    chosen = _chosen(cluster.topics, request)
    remarks: list[str] = []
    stay = ~chosen[cluster.topic_of]
    if not chosen.any():
        raise RequestRefusedError(
            f"no topic of {len(chosen)} may move", hint="Check the patterns of topics and excluded topics."
        )
    left_out = int(np.count_nonzero(~chosen))
    if left_out:
        remarks.append(f"topics that stay, as they are excluded or not requested: {left_out} of {len(chosen)}")
    strange = sorted(set(request.capacities.of) - set(cluster.broker_ids))
    if strange:
        remarks.append(f"capacities are set for broker {_list(strange)}, which is not in the cluster")
    going: NDArray[np.bool_] = np.zeros(len(cluster.broker_ids) + 1, dtype=bool)
    going[[cluster.index[broker] for broker in leaving(request)]] = True
    remaining = (_staying(cluster.topics, request)[cluster.topic_of][:, None] & going[cluster.replicas]).nonzero()[0]
    if len(remaining):
        remarks.append(
            f"left on brokers that are going, as their topics may stay: {count(len(remaining), 'replica')}, such as of "
            f"{cluster.name_of(int(remaining[0]))}"
        )
    offline = (cluster.offline & ~going[cluster.replicas]).any(axis=1)
    if request.mode in {PlanMode.FIX_OFFLINE, PlanMode.REMOVE_BROKERS}:
        offline = np.zeros_like(cluster.in_motion)
    for why, hit in (
        ("a reassignment is in progress", cluster.in_motion),
        ("no leader", cluster.leader < 0),
        ("offline replicas (fix those first)", offline),
    ):
        rows = hit & ~stay
        if rows.any():
            examples = ", ".join(cluster.name_of(int(row)) for row in np.nonzero(rows)[0][:3])
            remarks.append(f"{count(int(rows.sum()), 'partition')} left in place, e.g. {examples}: {why}")
            stay |= rows
    _check_factors(cluster, request, stay)
    _check_racks(cluster, request, stay)
    return stay, remarks


def _check_racks(cluster: VirtualCluster, request: PlanRequest, stay: NDArray[np.bool_]) -> None:
    """Check that topics which move to other brokers are spread over racks as well as the cluster allows."""
    asked = not request.goals or any(choice.name == "rack-awareness" for choice in request.goals)
    if not (request.migrates and asked and cluster.racks):
        return
    alive = {broker for broker, there in zip(cluster.broker_ids, cluster.alive, strict=True) if there}
    sizes, all_sizes = (
        list(Counter(_rack(cluster, broker) for broker in brokers).values())
        for brokers in (homes(request, alive), alive - leaving(request))
    )
    for factor in sorted(set((cluster.replicas[~stay] >= 0).sum(axis=1).tolist())):
        most, possible = most_in_rack(sizes, factor), most_in_rack(all_sizes, factor)
        if most > possible:
            raise RequestRefusedError(
                f"the brokers of the range are in {count(len(sizes), 'rack')}: {most} of {factor} replicas would share one, "
                f"and the cluster's {count(len(all_sizes), 'rack')} allow {possible}",
                hint="Name brokers of more racks, or leave rack-awareness out of --goals.",
            )


def _rack(cluster: VirtualCluster, broker: int) -> str:
    """Rack of a broker; one without has its own."""
    rack = int(cluster.rack_of[cluster.index[broker]])
    return cluster.racks[rack] if rack >= 0 else f"\0{broker}"


def most_in_rack(sizes: list[int], factor: int) -> int:
    """Least number of replicas per rack with which `factor` replicas find a place, by the numbers of brokers of the racks."""
    for most in range(1, factor + 1):
        if sum(min(most, size) for size in sizes) >= factor:
            return most
    return max(1, -(-factor // max(1, sum(size > 0 for size in sizes))))


def _check_factors(cluster: VirtualCluster, request: PlanRequest, stay: NDArray[np.bool_]) -> None:
    alive = {broker for broker, there in zip(cluster.broker_ids, cluster.alive, strict=True) if there}
    usable = homes(request, alive)
    if not request.brokers or request.mode is PlanMode.REPLICATION_FACTOR:
        return
    factors = np.where(stay, 0, (cluster.replicas >= 0).sum(axis=1))
    worst = int(factors.argmax())
    if factors[worst] > len(usable):
        raise RequestRefusedError(
            f"the broker range has {count(len(usable), 'usable broker')}, "
            f"but {cluster.name_of(worst)} has {factors[worst]} replicas",
            hint="Widen the range, or exclude topics.",
        )


def _check_in_sync(layout: ClusterLayout, request: PlanRequest) -> None:
    """Check that no topic becomes unwritable with acks=all; topics that already are may stay so."""
    factor = request.replication_factor
    if factor is None:
        return
    names = list(layout.topics)
    for name, chosen in zip(names, _chosen(names, request), strict=True):
        topic = layout.topics[name]
        fewer = any(len(partition.replicas) > factor for partition in topic.partitions)
        if chosen and fewer and factor < topic.min_isr:
            raise RequestRefusedError(
                f"a replication factor of {factor} is less than min.insync.replicas of topic {name}, {topic.min_isr}: "
                "writes with acks=all would fail",
                hint="Lower its min.insync.replicas first, or use a larger replication factor.",
            )


def _chosen(topics: Sequence[str], request: PlanRequest) -> NDArray[np.bool_]:
    wanted = _matching("topics", request.topics, topics) if request.topics else np.ones(len(topics), dtype=bool)
    return wanted & ~_matching("excluded topics", request.excluded_topics, topics) & ~_staying(topics, request)


def _staying(topics: Sequence[str], request: PlanRequest) -> NDArray[np.bool_]:
    return _matching("topics that may stay", request.staying_topics, topics)


def _matching(what: str, texts: Sequence[str], topics: Sequence[str]) -> NDArray[np.bool_]:
    patterns = compiled(texts)
    if isinstance(patterns, str):
        raise RequestRefusedError(f"{what}: {patterns}", hint="Patterns are RE2 and match whole names, e.g. `logs-.*`.")
    return np.array([bool(texts) and patterns.matches(name) for name in topics], dtype=bool)


def _list(ids: Iterable[int]) -> str:
    names = [str(broker) for broker in ids]
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


SWITCHING: Final = frozenset({PlanMode.REBALANCE, PlanMode.ADD_BROKERS, PlanMode.DEMOTE})
"""Modes in which leaders may be switched."""


class RackSpread(NamedTuple):
    """Rule of racks, for the goals after it.

    Attributes:
        rack: Rack of each broker; a broker without one has its own. B.
        most: Most replicas of a partition in one rack, by its number of replicas.
    """

    rack: NDArray[np.int64]
    most: NDArray[np.int64]


class Scope:
    """Scope of a plan, computed once from the cluster at the beginning.

    Attributes:
        homes: Brokers that may hold replicas. B.
        takers: Homes that may get replicas. B.
        leaders: Homes that may lead. B.
        leaving: Brokers whose replicas must leave. B.
        sources: Brokers whose replicas may move. B.
        emptied: Brokers that replicas never move back to. B.
        all_lead: Whether all homes may lead.
        chosen: Partitions of the topics that the request is about. P.
        frozen: Partitions that must stay. P. `staying`: those that goals which empty brokers and directories leave out. P.
        free_topics: Topics of which at least one partition may change. T.
        began: Replicas at the beginning, P x R. `led`: leaders at the beginning, P.
        extra: Replicas to add per partition (to remove, if negative). P.
        spread: Rule of racks, once a goal has set it.
    """

    def __init__(
        self, cluster: VirtualCluster, layout: ClusterLayout, request: PlanRequest, frozen: NDArray[np.bool_]
    ) -> None:
        mode = request.mode
        self.cluster = cluster
        self.layout = layout
        self.mode = mode
        subjects = self._mask(request.subjects)
        going = self._mask(leaving(request))
        ranged = self._mask(request.brokers) if request.brokers else np.ones_like(going)
        self.subjects = subjects
        self.leaving = going
        cordoned = self._mask([broker.id for broker in layout.brokers if broker.cordoned])
        self.homes: NDArray[np.bool_] = cluster.alive & ranged & ~going & ~cordoned
        self.takers: NDArray[np.bool_] = self.homes & subjects if mode is PlanMode.ADD_BROKERS else self.homes.copy()
        self.leaders: NDArray[np.bool_] = self.homes & ~subjects if mode is PlanMode.DEMOTE else self.homes.copy()
        self.sources: NDArray[np.bool_] = going.copy()
        if mode in {PlanMode.REBALANCE, PlanMode.ADD_BROKERS}:
            self.sources |= self.homes
        self.emptied: NDArray[np.bool_] = going.copy()
        if request.migrates:
            self.sources[:] = True
            self.emptied |= ~self.homes
        self.staying: NDArray[np.bool_] = _staying(cluster.topics, request)[cluster.topic_of]
        self.chosen: NDArray[np.bool_] = _chosen(cluster.topics, request)[cluster.topic_of]
        self.all_lead = bool((self.leaders == self.homes).all())
        self.frozen = frozen
        self.free_topics = np.zeros(len(cluster.topics), dtype=bool)
        self.free_topics[np.unique(cluster.topic_of[~frozen])] = True
        self.began = cluster.replicas.copy()
        self.led = cluster.leader.copy()
        fix = mode is PlanMode.FIX_OFFLINE
        self.lost: NDArray[np.int32] | None = np.where(cluster.offline, cluster.replicas, -2) if fix else None
        self.extra = np.zeros(cluster.size, dtype=np.int64)
        if mode is PlanMode.REPLICATION_FACTOR and request.replication_factor is not None:
            self.extra[~frozen] = request.replication_factor - (cluster.replicas[~frozen] >= 0).sum(axis=1)
        self.spread: RackSpread | None = None
        self._totals: dict[int, int] = {}
        self._behind = np.where(cluster.in_sync & ~cluster.offline, -2, cluster.replicas)

    def _mask(self, brokers: Any) -> NDArray[np.bool_]:
        mask = np.zeros(len(self.cluster.broker_ids), dtype=bool)
        mask[[self.cluster.index[broker] for broker in brokers]] = True
        return mask

    def former_holders(self, partition: int) -> list[int]:
        """Brokers that held a partition at the beginning, in order."""
        brokers: list[int] = self.began[partition].tolist()
        return [broker for broker in brokers if broker >= 0]

    def placed(self, partitions: Any, brokers: Any) -> NDArray[np.bool_]:
        """Whether this plan placed the replica there, so that moving it again copies nothing more."""
        mask: NDArray[np.bool_] = ~(self.began[partitions] == brokers[:, None]).any(axis=1)
        return mask

    def movable(self, partitions: Any, brokers: Any) -> NDArray[np.bool_]:
        """Whether the replicas on these brokers may move; both arrays of n."""
        mask: NDArray[np.bool_] = self.sources[brokers]
        if not mask.all():
            mask = mask | self.placed(partitions, brokers)
        if self.lost is not None:
            mask = mask | (self.lost[partitions] == brokers[:, None]).any(axis=1)
        still: NDArray[np.bool_] = ~self.frozen[partitions]
        return mask & still

    def was_lost(self, partitions: Any, brokers: Any) -> NDArray[np.bool_]:
        """Which partitions lost their replica on one broker, or each on its own: it is created elsewhere, never there again."""
        if self.lost is None:
            return np.zeros(len(partitions), dtype=bool)
        mask: NDArray[np.bool_] = (self.lost[partitions] == np.reshape(brokers, (-1, 1))).any(axis=1)
        return mask

    def total(self, measure: Measure) -> int:
        """Total load of all homes after forced moves and additions, which no move changes."""
        if measure not in self._totals:
            cluster = self.cluster
            rows, brokers = self.coming()
            leads = cluster.leader[rows] == brokers
            load = int(cluster.sums[measure][self.homes].sum()) + int(cluster.weight(rows, leads, measure).sum())
            load += int((self.extra * cluster.as_follower[measure]).sum())
            if measure is Measure.NET_OUT:
                load += int((self.extra * cluster.load[:, LoadColumn.BYTES_IN]).sum())
            self._totals[measure] = load
        return self._totals[measure]

    def coming(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Replicas that may move to homes and are on none: partitions, brokers."""
        cluster = self.cluster
        away = np.append(~self.homes, False)[cluster.replicas]
        rows, places = np.nonzero(away)
        brokers = cluster.replicas[rows, places]
        fits = self.movable(rows, brokers)
        return rows[fits], brokers[fits]

    def has_uneven_racks(self) -> bool:
        """Whether there is a rule of racks, and racks have different numbers of homes."""
        if self.spread is None:
            return False
        sizes = np.bincount(self.spread.rack[self.homes])
        return len(np.unique(sizes[sizes > 0])) > 1

    def led_at_home(self) -> NDArray[np.bool_]:
        """Whether partitions are led from homes, or by replicas that may move there. P."""
        leader = self.cluster.leader
        mask: NDArray[np.bool_] = np.append(self.homes, False)[leader]
        rows, brokers = self.coming()
        mask[rows[leader[rows] == brokers]] = True
        return mask

    def may_lead(self, partitions: Any, brokers: Any) -> NDArray[np.bool_]:
        """Whether these replicas may become leaders: in sync, or placed by the plan; both arrays of n."""
        behind = (self._behind[partitions] == brokers[:, None]).any(axis=1)
        mask: NDArray[np.bool_] = self.leaders[brokers] & ~behind
        return mask

    def may_switch(self, partitions: Any) -> NDArray[np.bool_]:
        """Whether another replica of these partitions may become leader."""
        if self.mode not in SWITCHING:
            return np.zeros(len(partitions), dtype=bool)
        leader = self.cluster.leader[partitions]
        mask: NDArray[np.bool_] = ~self.frozen[partitions] & (leader >= 0)
        if self.mode is PlanMode.DEMOTE:
            mask &= self.subjects[leader] | (leader != self.led[partitions])
        return mask
