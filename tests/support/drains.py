"""A dumb twin of a cluster that is drained: moves arrive a while after they begin, reports come later still, some moves fail."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from shedders.balancer.drain_plan import TICK_S, DrainPlan, DrainReceivers, DrainStep, TokenBucket
from shedders.balancer.settings import DrainSettings
from shedders.decision.placing import Pipeline
from shedders.model.cluster import Cluster, Policies
from shedders.model.plan import BundleMove
from shedders.placement.least_resource_usage import LeastResourceUsage
from tests.support import loads

OPERATION = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def pipeline() -> Pipeline:
    return Pipeline(LeastResourceUsage(LeastResourceUsage.Settings()))


def make_cluster(
    counts: Mapping[str, int], *, policies: Policies | None = None, weights: Callable[[int], float] = lambda n: 1e6 * n
) -> Cluster:
    """Brokers with so many bundles each; bundle number N has a traffic of its own, `weights(N)`."""
    brokers, bundles = [], []
    for name, count in counts.items():
        own = [loads.bundle(len(bundles) + n, name, bytes_per_s=weights(len(bundles) + n)) for n in range(count)]
        bundles += own
        traffic = sum(bundle.stats.msg_throughput for bundle in own if bundle.stats is not None)
        brokers.append(loads.broker(name, min(0.9, traffic / 1e9), bytes_per_s=traffic))
    return loads.cluster(brokers, bundles, policies=policies)


def plan(
    broker: str = "b1",
    *,
    rate_per_s: float = 1_000.0,
    ahead_max: int = 20,
    report_wait_s: float = 30.0,
    force: bool = False,
    **rules: object,
) -> DrainPlan:
    bucket = TokenBucket(rate_per_s, rate_per_s * TICK_S)
    return DrainPlan(
        broker,
        OPERATION,
        DrainSettings(**{"moves_at_once": 8, **rules}),
        bucket,
        DrainReceivers(ahead_max, report_wait_s),
        force,
    )


def holding(cluster: Cluster, broker: str) -> dict[str, bool]:
    return {bundle.name: bundle.in_flight for bundle in cluster.bundles_of.get(broker, ())}


@dataclass
class Twin:
    """See the module.

    Attributes:
        move_s: From the beginning of a move to its end; `report_s`: from there until the receiver's report counts it.
        fails: Whether a move fails, by its number.
        begun: Number of moves begun by time.
    """

    cluster: Cluster
    drain: DrainPlan
    move_s: float = 0.3
    report_s: float = 2.0
    fails: Callable[[int], bool] = lambda _: False
    now_s: float = 100.0
    begun: list[tuple[float, BundleMove]] = field(default_factory=list)
    most_ahead: int = 0
    _ends: dict[str, tuple[float, BundleMove, bool]] = field(default_factory=dict)
    _reports: dict[str, list[float]] = field(default_factory=dict)
    _pipeline: Pipeline = field(default_factory=pipeline)

    def run(self, within_s: float = 600.0) -> DrainStep:
        ends_s = self.now_s + within_s
        while self.now_s < ends_s:
            self.arrive()
            step = self.drain.step(self.cluster, holding(self.cluster, self.drain.broker), self._pipeline, self.now_s)
            self.begin(step)
            if step.ended:
                return step
            self.now_s += step.wait_s
        raise AssertionError(f"not ended within {within_s} s: {step}")

    def begin(self, step: DrainStep) -> None:
        for move in step.moves:
            failing = self.fails(len(self.begun))
            self.begun.append((self.now_s, move))
            self._ends[move.bundle] = self.now_s + self.move_s, move, failing
            self._change(move.bundle, in_flight=True)

    def arrive(self) -> None:
        for bundle, (at_s, move, failing) in list(self._ends.items()):
            if at_s > self.now_s:
                continue
            del self._ends[bundle]
            self._change(bundle, in_flight=False, owner=move.source if failing else move.destination)
            self.drain.ended(bundle, self.now_s, done=not failing, why="declined: not now")
            if not failing and move.destination is not None:
                self._reports.setdefault(move.destination, []).append(self.now_s)
        for name, broker in self.cluster.brokers.items():
            ahead = [at_s for at_s in self._reports.get(name, []) if self.now_s - at_s < self.report_s]
            self._reports[name] = ahead
            if broker.load_lapsed != bool(ahead):
                changed = {**self.cluster.brokers, name: replace(broker, load_lapsed=bool(ahead))}
                self.cluster = replace(self.cluster, brokers=changed)
            coming = sum(move.destination == name for _, move, _ in self._ends.values())
            self.most_ahead = max(self.most_ahead, len(ahead) + coming)

    def _change(self, bundle: str, **changes: object) -> None:
        changed = replace(self.cluster.bundles[bundle], **changes)
        self.cluster = replace(self.cluster, bundles={**self.cluster.bundles, bundle: changed})
