"""Remarks on oddities of a valid snapshot, shown with every plan and by `snapshot check`."""

from __future__ import annotations

from collections import Counter

from shedders.model.cluster import Cluster
from shedders.policies.contradictions import contradictions
from shedders.snapshots.model import IN_FLIGHT, LoadReport, Snapshot


def remarks(snapshot: Snapshot, cluster: Cluster) -> list[str]:
    """Remarks on states that are possible in a live cluster, but may be unintended.

    Args:
        cluster: The snapshot's.
    """
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
