"""A rolling restart on a cluster in memory: broker after broker is drained by the plan of a drain, and is back at once, empty."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loaddata.model.broker_load import ResourceUsage
from shedders.balancer.drain_plan import DrainPlan, DrainReceivers, TokenBucket
from shedders.balancer.settings import DrainSettings
from shedders.decision.placing import Pipeline
from shedders.decision.planned_restart import PlannedRestart
from shedders.model.cluster import Cluster, Policies
from shedders.weighted_move.strategy import WeightedMove
from tests.support import loads

RESTART = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@dataclass
class Restarted:
    """What a restart did.

    Attributes:
        moves: Bundle, source and destination of each move, in order.
        peaks: After each drain the largest load of a broker, against what all that stay would have if they were equally full;
            `taken`: of those that got a bundle in it.
        whys: Why each destination was chosen.
        left: Bundles that no broker could take, by broker.
        repaired: Bundles of brokers that were killed.
    """

    cluster: Cluster
    moves: list[tuple[str, str, str]] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)
    taken: list[float] = field(default_factory=list)
    whys: list[str] = field(default_factory=list)
    left: dict[str, list[str]] = field(default_factory=dict)
    repaired: int = 0


def cluster_of(
    traffic: Mapping[str, Sequence[float]],
    *,
    sizes: Mapping[str, float] | None = None,
    policies: Policies | None = None,
    spaces: Mapping[int, str] | None = None,
) -> Cluster:
    """Brokers with bundles of so much traffic each, as parts of a broker of size 1.

    Args:
        sizes: Of brokers that are larger or smaller.
        spaces: Namespace by number of the bundle, of those that are not in `t/n`.
    """
    bundles = []
    for name, parts in traffic.items():
        for part in parts:
            number = len(bundles)
            space = (spaces or {}).get(number, "t/n")
            bundles.append(loads.bundle(number, name, bytes_per_s=part * 1e6, namespace=space))
    brokers = [loads.broker(name, 0.0) for name in traffic]
    return reported(loads.cluster(brokers, bundles, policies=policies), sizes or {})


def reported(cluster: Cluster, sizes: Mapping[str, float]) -> Cluster:
    """The cluster with reports that count what each broker has."""
    brokers = {}
    for name, broker in cluster.brokers.items():
        bytes_per_s = _traffic(cluster, name)
        made = loads.broker(name, bytes_per_s / 1e6, bytes_per_s=bytes_per_s).load
        size = 100.0 * sizes.get(name, 1.0)
        brokers[name] = replace(broker, load=made and replace(made, cpu=ResourceUsage(made.cpu.usage, size)))
    return replace(cluster, brokers=brokers)


def _traffic(cluster: Cluster, broker: str) -> float:
    owned = cluster.bundles_of.unsorted(broker)
    return sum(bundle.stats.msg_throughput for bundle in owned if bundle.stats is not None)


def restart(
    cluster: Cluster,
    order: Sequence[str],
    *,
    sizes: Mapping[str, float] | None = None,
    planned: bool = True,
    done: Collection[str] = (),
    dies: Mapping[int, str] | None = None,
    every: Collection[str] = (),
) -> Restarted:
    """Restart brokers in this order.

    Args:
        planned: Each drain knows that it is a step of a restart.
        done: Those that an earlier command has restarted.
        every: All brokers of the restart; empty: those of the order and those that are done.
        dies: Before this step this broker is killed, and its bundles are placed anew; it is back at once, empty.
    """
    sizes = sizes or {}
    result, settled = Restarted(cluster), set(done)
    for step, name in enumerate(order):
        if dies is not None and step in dies:
            killed(result, dies[step], sizes)
        plan = (
            PlannedRestart(RESTART, frozenset(every) | set(order) | set(done), frozenset(settled)) if planned else None
        )
        drained(result, name, plan, sizes)
        settled.add(name)
    return result


def killed(result: Restarted, name: str, sizes: Mapping[str, float]) -> None:
    """The bundles of a broker go wherever placement likes: of the restart it knows nothing."""
    pipeline, cluster = Pipeline(WeightedMove(WeightedMove.Settings())), result.cluster
    others, booked = [broker for broker in cluster.brokers if broker != name], dict[str, list[str]]()
    bundles = dict(cluster.bundles)
    for bundle in cluster.bundles_of.get(name, ()):
        placed = pipeline.place(cluster, replace(bundle, owner=None), booked, others).broker
        assert placed is not None
        booked.setdefault(placed, []).append(bundle.name)
        bundles[bundle.name] = replace(bundle, owner=placed)
    result.repaired += sum(map(len, booked.values()))
    result.cluster = reported(replace(cluster, bundles=bundles), sizes)


def drained(result: Restarted, name: str, planned: PlannedRestart | None, sizes: Mapping[str, float]) -> None:
    """Drain one broker; everything arrives at once, and is reported in the next step."""
    settings = DrainSettings(moves_at_once=16, quiet_s=0.0, patience_s=0.0, rate_per_s=1_000)
    drain = DrainPlan(name, RESTART, settings, TokenBucket(1_000.0, 1_000.0), DrainReceivers(4, 30.0), restart=planned)
    pipeline, now_s = Pipeline(WeightedMove(WeightedMove.Settings())), 0.0
    while True:
        now_s += 1.0
        cluster = result.cluster
        holding = {bundle.name: False for bundle in cluster.bundles_of.get(name, ())}
        step = drain.step(cluster, holding, pipeline, now_s)
        bundles = dict(cluster.bundles)
        for move in step.moves:
            bundles[move.bundle] = replace(bundles[move.bundle], owner=move.destination)
            drain.ended(move.bundle, now_s, done=True, why="")
            result.moves.append((move.bundle, move.source, move.destination))
            result.whys.append(move.why)
        result.cluster = reported(replace(cluster, bundles=bundles), sizes)
        if step.ended:
            break
    result.left[name] = [entry.name for entry in step.left]
    others = [broker for broker in result.cluster.brokers if broker != name]
    takers = {destination for _, source, destination in result.moves if source == name}
    result.peaks.append(peak(result.cluster, others, others, sizes))
    result.taken.append(peak(result.cluster, others, sorted(takers), sizes))


def peak(cluster: Cluster, others: Sequence[str], of: Sequence[str], sizes: Mapping[str, float]) -> float:
    """The largest load of these brokers, against the mean of all others by size."""
    whole = sum(_traffic(cluster, name) for name in cluster.brokers) / sum(sizes.get(name, 1.0) for name in others)
    return max((_traffic(cluster, name) / sizes.get(name, 1.0) for name in of), default=0.0) / whole if whole else 0.0
