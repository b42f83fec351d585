"""Conversion of snapshots to clusters, as strategies see them, and back; both keep every number bit for bit.

So a plan of a snapshot is the plan of the cluster that it was taken from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from pydantic import ValidationError

from loaddata.bulk import uncollected
from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage
from shedders.decision.booked_moves import Booked, BudgetSettings, DecisionRules
from shedders.model.cluster import Broker, Bundle, Cluster, IsolationPolicy, Policies, RecentMoves, TopicLoad
from shedders.model.moved_cluster import MovedLoad, cargo_of
from shedders.policies.contradictions import contradictions
from shedders.snapshots.file import SnapshotError, sentences
from shedders.snapshots.model import (
    IN_FLIGHT,
    BookedPart,
    BrokerPart,
    BundlePart,
    BundleState,
    IsolationPart,
    LoadReport,
    Snapshot,
    TopicPart,
    UsageEntry,
)
from statechannel.protocol.bundle import topic_hash

# The names of all fields; `__slots__` has no inherited ones.
_STATS = attrgetter(*BundleStats.__match_args__)
_AVERAGE = attrgetter(*MessageAverage.__match_args__)
"""Reader of all fields at once, as a snapshot may have a hundred thousand bundles."""


def cluster_of(snapshot: Snapshot) -> Cluster:
    with uncollected():
        return _cluster(snapshot)


def _cluster(snapshot: Snapshot) -> Cluster:
    policies = snapshot.policies
    return Cluster(
        brokers={name: _broker(name, part) for name, part in snapshot.brokers.items()},
        bundles={name: _bundle(name, part) for name, part in snapshot.bundles.items()},
        policies=Policies(
            isolation=tuple(_isolation(policy) for policy in policies.isolation),
            anti_affinity=dict(policies.anti_affinity),
            pins=dict(policies.pins),
            cordons=dict(policies.cordons),
            excluded=frozenset(policies.excluded),
        ),
        recent=RecentMoves(bundles=dict(snapshot.recent.bundles), brokers=dict(snapshot.recent.brokers)),
        now_ms=snapshot.clock.now_ms,
        safe=snapshot.safe,
    )


def booked_of(snapshot: Snapshot, cluster: Cluster) -> Sequence[Booked]:
    """Moves in flight.

    Args:
        cluster: Cluster of the snapshot; loads of moves are computed from it if the snapshot has none.
    """
    return [_booked(move, cluster) for move in snapshot.booked]


def rules_of(snapshot: Snapshot) -> DecisionRules:
    balancing = snapshot.balancing
    budget = None if balancing.budget is None else BudgetSettings(**vars(balancing.budget))
    return DecisionRules(budget, balancing.unload_mode == "unload", balancing.shedding_off)


def with_cluster(snapshot: Snapshot, cluster: Cluster, *, booked: Sequence[Booked] = ()) -> Snapshot:
    """Copy of a snapshot with another cluster; profile, settings and memory stay, and states of bundles if they still fit.

    Raises:
        SnapshotError: A number of the cluster is negative or not finite.
    """
    try:
        with uncollected():
            values = dict(snapshot) | _cluster_fields(cluster, snapshot.bundles)
            values["booked"] = list(booked)
            # Brokers, reports, figures and moves have the fields of the format, so their attributes are read.
            return Snapshot.model_validate(values, from_attributes=True)
    except ValidationError as error:
        raise SnapshotError("the cluster", sentences(error)) from error


def snapshot_of(cluster: Cluster, *, profile: str = "default", booked: Sequence[Booked] = ()) -> Snapshot:
    """Snapshot of a cluster without settings and memory; raises as `with_cluster`."""
    empty = Snapshot(kind="statechannel-snapshot", format=1, profile=profile, brokers={}, bundles={})
    return with_cluster(empty, cluster, booked=booked)


def _isolation(part: IsolationPart) -> IsolationPolicy:
    return IsolationPolicy(
        part.name, tuple(part.namespaces), tuple(part.primary), tuple(part.secondary), part.min_available
    )


def _broker(name: str, part: BrokerPart) -> Broker:
    values = vars(part).copy()
    report = values.pop("load")
    return Broker(name=name, load=None if report is None else _report(report), **values)


def _report(part: LoadReport) -> BrokerLoad:
    values: dict[str, Any] = {
        name: ResourceUsage(value.usage, value.limit) if isinstance(value, UsageEntry) else value
        for name, value in vars(part).items()
    }
    return BrokerLoad(**values)


def _bundle(name: str, part: BundlePart) -> Bundle:
    return Bundle(
        name,
        part.owner,
        part.state in IN_FLIGHT,
        None if part.stats is None else BundleStats(*_STATS(part.stats)),
        BundleAverages(MessageAverage(*_AVERAGE(part.short)), MessageAverage(*_AVERAGE(part.long))),
        part.rank,
        tuple(map(_topic, part.topics)) if part.topics else (),
        part.non_persistent,
        part.estimated,
        part.secondhand,
    )


def _topic(part: TopicPart) -> TopicLoad:
    values = vars(part).copy()
    if part.position is None:
        values["position"] = topic_hash(part.name)
    return TopicLoad(**values)


def _booked(part: BookedPart, cluster: Cluster) -> Booked:
    values = vars(part).copy()
    if part.cargo is not None:
        return Booked(**{**values, "cargo": MovedLoad(**vars(part.cargo))})
    source = cluster.brokers.get(part.source)
    return Booked(
        **{**values, "cargo": cargo_of(cluster.bundles[part.bundle], None if source is None else source.load)}
    )


def _cluster_fields(cluster: Cluster, known: Mapping[str, BundlePart]) -> dict[str, Any]:
    policies, recent = cluster.policies, cluster.recent
    return {
        "clock": {"now_ms": cluster.now_ms},
        "brokers": {name: cluster.brokers[name] for name in cluster.broker_names},
        "bundles": {name: _bundle_fields(bundle, known.get(name)) for name, bundle in sorted(cluster.bundles.items())},
        "gone": sorted(
            {bundle.owner for bundle in cluster.bundles.values() if bundle.owner is not None} - cluster.brokers.keys()
        ),
        "policies": {
            "isolation": [_isolation_fields(policy) for policy in policies.isolation],
            "anti_affinity": dict(policies.anti_affinity),
            "pins": dict(policies.pins),
            "cordons": dict(policies.cordons),
            "excluded": sorted(policies.excluded),
        },
        "recent": {"bundles": dict(recent.bundles), "brokers": dict(recent.brokers)},
        "safe": cluster.safe,
    }


def _isolation_fields(policy: IsolationPolicy) -> dict[str, Any]:
    lists = {name: list(getattr(policy, name)) for name in ("namespaces", "primary", "secondary")}
    return {"name": policy.name, "min_available": policy.min_available, **lists}


def _bundle_fields(bundle: Bundle, before: BundlePart | None) -> dict[str, Any]:
    return {
        "state": _state(bundle, before),
        "owner": bundle.owner,
        "stats": bundle.stats,
        "short": bundle.averages.short,
        "long": bundle.averages.long,
        "rank": bundle.rank,
        "topics": list(bundle.topics),
        "non_persistent": bundle.non_persistent,
        "estimated": bundle.estimated,
        "secondhand": bundle.secondhand,
    }


def _state(bundle: Bundle, before: BundlePart | None) -> BundleState:
    """State of a bundle; a cluster only has that it is in flight, so a known state is kept."""
    if not bundle.in_flight:
        return "Assigned" if bundle.owner is not None else "Unassigned"
    if before is not None and before.state in IN_FLIGHT:
        return before.state
    return "Assigning" if bundle.owner is None else "Releasing"


def remarks(snapshot: Snapshot, cluster: Cluster) -> list[str]:
    """Remarks on states that are possible in a live cluster, but may be unintended."""
    known = snapshot.brokers
    served = Counter(
        bundle.owner for bundle in snapshot.bundles.values() if bundle.owner is not None and bundle.owner not in known
    )
    remarks_ = [f"{owner} is gone and owns {_count(count, 'bundle')}" for owner, count in sorted(served.items())]
    for name, broker in sorted(known.items()):
        if broker.load is None:
            remarks_.append(f"broker {name} has no load report")
        elif not _limits(broker.load):
            remarks_.append(f"broker {name} reports no limit of any resource, so that its usage cannot be judged")
    remarks_ += [f"{contradiction.kind}: {contradiction.why}" for contradiction in contradictions(cluster)]
    flying = sum(bundle.state in IN_FLIGHT for bundle in snapshot.bundles.values())
    return [*snapshot.remarks, *remarks_, *([f"{_count(flying, 'bundle')} in flight, left alone"] if flying else [])]


def _limits(load: LoadReport) -> bool:
    return any(usage.limit > 0 for usage in (load.cpu, load.direct_memory, load.bandwidth_in, load.bandwidth_out))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
