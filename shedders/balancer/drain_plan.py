"""Plan of a drain, step by step: the next bundles to move, and their destinations. Pure; the time is an argument.

Three independent limits slow a drain down: a rate (`TokenBucket`), the number of moves under way, and the receivers: each gets at
most `ahead_max` bundles that its load report does not count yet, so that no broker is filled due to outdated reports.
Filters and placement choose every destination; in a rolling restart among the brokers that will not be emptied again
(`shedders.decision.planned_restart`). Bundles that no broker may take are left, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from loaddata.model.broker_load import ResourceWeights
from shedders.decision.placing import Pipeline
from shedders.decision.planned_restart import PlannedRestart, RestartDestinations, RestartTakers
from shedders.filters.rules import summary
from shedders.model.amounts import count
from shedders.model.cluster import Bundle, Cluster, Policies
from shedders.model.plan import BundleMove, Left, Placed, Reason
from statechannel.engine.placement import FewestBundles

if TYPE_CHECKING:
    from shedders.balancer.settings import DrainSettings
    from shedders.model.cluster import Broker
    from statechannel.engine.cluster_view import ClusterView


class TokenBucket:
    """A rate limit: over any time T at most `rate_per_s` x T + `burst`.

    Args:
        burst: Maximum number of saved tokens; at least one.
    """

    def __init__(self, rate_per_s: float, burst: float = 1.0) -> None:
        if not rate_per_s > 0:
            raise ValueError("the rate must be above 0")
        self.rate_per_s = rate_per_s
        self._burst = max(1.0, burst)
        self._tokens = self._burst
        self._at_s: float | None = None

    def available(self, now_s: float) -> int:
        if self._at_s is not None:
            self._tokens = min(self._burst, self._tokens + max(0.0, now_s - self._at_s) * self.rate_per_s)
        self._at_s = now_s if self._at_s is None else max(self._at_s, now_s)
        return int(self._tokens + 1e-9)

    def take(self, count: int) -> None:
        """Take tokens; no more than are available."""
        self._tokens = max(0.0, self._tokens - count)

    def wait_s(self) -> float:
        """Time until a token is available, from the last call of `available`."""
        return max(0.0, 1.0 - self._tokens) / self.rate_per_s


class DrainReceivers:
    """Bundles that each broker got and its report does not count yet; shared by all drains of a leader.

    Args:
        ahead_max: Maximum number of bundles that a broker gets ahead of its report.

    Attributes:
        in_vain: Bundles whose receiver did not report in time.
    """

    def __init__(self, ahead_max: int, report_wait_s: float) -> None:
        self._ahead_max = ahead_max
        self._report_wait_s = report_wait_s
        self._uncounted: dict[str, dict[str, float | None]] = {}
        self.in_vain = 0

    def begun(self, broker: str, bundle: str) -> None:
        self._uncounted.setdefault(broker, {})[bundle] = None

    def ended(self, broker: str, bundle: str, now_s: float, *, arrived: bool) -> None:
        if arrived:
            self._uncounted.setdefault(broker, {})[bundle] = now_s
        else:
            self._uncounted.get(broker, {}).pop(bundle, None)

    def look(self, brokers: Mapping[str, Broker], now_s: float) -> None:
        """Read the reports: one that is not stale counts everything that has arrived."""
        for name, bundles in list(self._uncounted.items()):
            broker = brokers.get(name)
            counted = broker is not None and broker.load is not None and not broker.load_lapsed
            for bundle, arrived_s in list(bundles.items()):
                if arrived_s is None:
                    continue
                late = now_s - arrived_s >= self._report_wait_s
                if counted or late or broker is None:
                    del bundles[bundle]
                    self.in_vain += late and not counted and broker is not None
            if not bundles:
                del self._uncounted[name]

    def room(self, broker: str, times: int = 1) -> int:
        """Number of further bundles that it may get now.

        Args:
            times: Number of brokers in whose place it gets them.
        """
        return max(0, times * self._ahead_max - len(self._uncounted.get(broker, ())))

    def ahead(self, brokers: Mapping[str, Broker], now_s: float) -> dict[str, list[str]]:
        """By broker, bundles that its report does not count; it has those that came before it, although more came since."""
        ages_s = {name: broker.load_age_s for name, broker in brokers.items() if broker.load is not None}
        return {
            name: [
                bundle
                for bundle, arrived_s in sorted(bundles.items())
                if arrived_s is None or now_s - arrived_s <= ages_s.get(name, inf)
            ]
            for name, bundles in sorted(self._uncounted.items())
        }


TICK_S: Final = 0.25  # time between two steps; a bucket saves the tokens of one
FAILED: Final = "failed"
FORCED_ROOM: Final = 2**31


class DrainStep(NamedTuple):
    """One step of a drain.

    Attributes:
        placed: How each destination was chosen, in the order of `moves`.
        left: Bundles that cannot move at present, with the filter, or `failed`.
        remaining: Number of bundles that the broker has, or is about to get.
        paused: Why no move is started although there are bundles; empty if there is no obstacle.
        ended: The drain has ended; the bundles in `left` stay.
    """

    moves: Sequence[BundleMove] = ()
    placed: Sequence[Placed] = ()
    left: Sequence[Left] = ()
    remaining: int = 0
    paused: str = ""
    ended: bool = False
    wait_s: float = TICK_S


@dataclass(slots=True)
class _Trouble:
    tries: int = 0
    again_s: float = 0.0
    why: str = ""


def holdings(picture: ClusterView, broker: str) -> dict[str, bool]:
    """Bundles that a broker has or is about to get; True for those in flight, from it or to it."""
    return {
        bundle.bundle: bundle.destination is not None or bundle.state != "Assigned"
        for bundle in picture.bundles
        if broker in (bundle.owner, bundle.destination)
    }


@dataclass(slots=True)
class DrainPlan:
    """The drain of one broker.

    Args:
        operation: Id that the moves' reasons name.
        force: Bundles that policies allow on no broker are moved nevertheless, to any broker that takes bundles.
        restart: The rolling restart that it is a step of; None: a drain by itself.
    """

    broker: str
    operation: str
    settings: DrainSettings
    bucket: TokenBucket
    receivers: DrainReceivers
    force: bool = False
    restart: PlannedRestart | None = None
    moved: int = 0
    under_way: dict[str, str] = field(default_factory=dict)
    _troubles: dict[str, _Trouble] = field(default_factory=dict)
    _empty_s: float | None = None
    _stuck_s: float | None = None
    _default: FewestBundles = field(default_factory=FewestBundles)

    def step(self, cluster: Cluster, holding: Mapping[str, bool], pipeline: Pipeline, now_s: float) -> DrainStep:
        """Compute the next step.

        Args:
            cluster: As the channel and the reports have it.
            holding: See `holdings`.
            pipeline: Filters and placement; used by this drain alone, as it caches.

        Raises:
            StrategyFailedError: The placement fails.
        """
        self.receivers.look(cluster.brokers, now_s)
        remaining = len(holding)
        if cluster.safe is not None:
            self._empty_s = self._stuck_s = None
            return DrainStep(remaining=remaining, paused=cluster.safe)
        if not holding:
            self._stuck_s = None
            self._empty_s = now_s if self._empty_s is None else self._empty_s
            return DrainStep(ended=not self.under_way and now_s - self._empty_s >= self.settings.quiet_s)
        self._empty_s = None
        if self.broker not in cluster.brokers:
            self._stuck_s = None
            return DrainStep(remaining=remaining, paused=f"{self.broker} has failed; the leader repairs its bundles")
        step = self._choose(self._seen(cluster), holding, pipeline, now_s)
        return self._judged(step._replace(remaining=remaining), holding, now_s)

    def ended(self, bundle: str, now_s: float, *, done: bool, why: str) -> None:
        destination = self.under_way.pop(bundle, None)
        if destination is not None:
            self.receivers.ended(destination, bundle, now_s, arrived=done)
        if done:
            self.moved += 1
            self._troubles.pop(bundle, None)
            return
        trouble = self._troubles.setdefault(bundle, _Trouble())
        trouble.tries += 1
        trouble.again_s = now_s + self.settings.retry_s * 2.0 ** (trouble.tries - 1)
        trouble.why = why

    # --- one step ---------------------------------------------------------------------------------------------------

    def _seen(self, cluster: Cluster) -> Cluster:
        """The cluster with the drained broker cordoned, whatever the present policies."""
        policies = cluster.policies
        cordons = {self.broker: f"drain {self.operation}", **policies.cordons}
        return replace(cluster, policies=replace(policies, cordons=cordons))

    def _choose(self, cluster: Cluster, holding: Mapping[str, bool], pipeline: Pipeline, now_s: float) -> DrainStep:
        free = min(self.bucket.available(now_s), self.settings.moves_at_once - len(self.under_way))
        ahead = self.receivers.ahead(cluster.brokers, now_s)
        destinations = _Destinations(cluster, pipeline, ahead, self.force, self._default)
        planned = None if self.restart is None else self._planned(cluster, pipeline, self.restart)
        moves: list[BundleMove] = []
        placed: list[Placed] = []
        left: list[Left] = []
        waiting = ""
        for bundle in self._order(cluster, holding):
            # The rest is examined later: a broker may have tens of thousands of bundles.
            if len(moves) >= free:
                waiting = waiting or "the rate, or moves under way"
                break
            trouble = self._troubles.get(bundle.name)
            if trouble is not None and trouble.tries >= self.settings.attempts_max:
                left.append(
                    Left(bundle.name, FAILED, f"{count(trouble.tries, 'attempt')} failed; the last: {trouble.why}")
                )
                continue
            fit = destinations.fit(bundle)
            if isinstance(fit, Left):
                left.append(fit)
                continue
            if trouble is not None and now_s < trouble.again_s:
                waiting = waiting or f"a move of {bundle.name} failed and will be retried: {trouble.why}"
                continue
            takers = RestartTakers(fit, "") if planned is None else planned.of(bundle, fit, ahead)
            # Few brokers that take everything get as much ahead of their reports as all would together.
            times = 1 if planned is None else len(fit) // len(takers.names)
            roomy = [name for name in takers.names if self.receivers.room(name, times) > 0]
            if not roomy:
                names = takers.names
                waiting = waiting or f"waiting for reports of {', '.join(names[:3])}{', ...' if names[3:] else ''}"
                continue
            chosen = destinations.place(bundle, roomy)
            if chosen.broker is None:
                left.append(Left(bundle.name, "no-destination", chosen.why))
                continue
            self.bucket.take(1)
            self.receivers.begun(chosen.broker, bundle.name)
            self.under_way[bundle.name] = chosen.broker
            ahead.setdefault(chosen.broker, []).append(bundle.name)
            if takers.why:
                chosen = replace(chosen, why=f"{chosen.why}; {chosen.broker} is {takers.why}")
            moves.append(self._move(bundle, chosen))
            placed.append(chosen)
        return DrainStep(moves, placed, left, paused="" if moves else waiting)

    def _planned(self, cluster: Cluster, pipeline: Pipeline, restart: PlannedRestart) -> RestartDestinations:
        own = getattr(pipeline.strategy, "settings", None)
        weights = getattr(own, "weights", None)
        known = weights if isinstance(weights, ResourceWeights) else None
        return RestartDestinations(cluster, restart, self.broker, known)

    def _judged(self, step: DrainStep, holding: Mapping[str, bool], now_s: float) -> DrainStep:
        """Decide whether it has ended: no move to start, none in flight, nothing to wait for."""
        if step.moves or step.paused or self.under_way or any(holding.values()):
            self._stuck_s = None
            return step
        self._stuck_s = now_s if self._stuck_s is None else self._stuck_s
        return step._replace(
            ended=now_s - self._stuck_s >= self.settings.patience_s, wait_s=min(1.0, self.settings.patience_s)
        )

    def _order(self, cluster: Cluster, holding: Mapping[str, bool]) -> Sequence[Bundle]:
        names = [name for name, busy in holding.items() if not busy and name not in self.under_way]
        bundles = [cluster.bundles.get(name) or Bundle(name, self.broker) for name in names]
        if self.settings.order == "name":
            return sorted(bundles, key=lambda bundle: bundle.name)
        return sorted(bundles, key=lambda bundle: (-traffic(bundle), bundle.name))

    def _move(self, bundle: Bundle, placed: Placed) -> BundleMove:
        why = f"drain {self.operation} of {self.broker}: {placed.why}"
        return BundleMove(bundle.name, self.broker, placed.broker, Reason.ADMIN, traffic(bundle), why)


class _Destinations:
    """Possible destinations on one cluster.

    Args:
        booked: By broker, bundles that its report does not count: those counted twice would turn others away.
    """

    def __init__(
        self,
        cluster: Cluster,
        pipeline: Pipeline,
        booked: Mapping[str, Sequence[str]],
        force: bool,
        default: FewestBundles,
    ) -> None:
        self._cluster = cluster
        self._pipeline = pipeline
        self._filters = pipeline.filters(cluster)
        for broker, names in booked.items():
            for name in names:
                self._filters.book(broker, name)
        self._force = force
        self._booked = {broker: tuple(names) for broker, names in booked.items()}
        self._default = default
        self._counts: Counter[str] | None = None
        self._forced: Pipeline | None = None
        self._forced_cluster: Cluster | None = None
        self._overridden: dict[str, str] = {}

    def fit(self, bundle: Bundle) -> Sequence[str] | Left:
        """Brokers that may take it; else the filter that removed most of them, with a summary of all."""
        passed = self._filters.passed(bundle)
        if passed.names:
            return passed.names
        why = f"no broker may take it: {summary(passed.removed)}"
        if self._force:
            names = self._fit_without_policies(bundle)
            if names:
                self._overridden[bundle.name] = why
                return names
        others = {name: removal for name, removal in passed.removed.items() if name != bundle.owner}
        words = Counter(word for word, _ in others.values())
        word = min(words, key=lambda name: (-words[name], name)) if words else "no-other-broker"
        sentence = f"no other broker may take it: {summary(others)}" if others else "there is no other broker"
        return Left(bundle.name, word, sentence)

    def place(self, bundle: Bundle, names: Collection[str]) -> Placed:
        """Choose among those, and book the choice for later ones."""
        forced = self._overridden.get(bundle.name)
        if forced is None:
            placed = self._pipeline.place(self._cluster, bundle, among=names)
        else:
            placed = self._place_without_policies(bundle, names)
        if placed.broker is None:
            placed = self._fewest(bundle, names, placed)
        if placed.broker is not None:
            self._filters.book(placed.broker, bundle.name)
            if self._forced is not None and self._forced_cluster is not None:
                self._forced.filters(self._forced_cluster).book(placed.broker, bundle.name)
            self._held()[placed.broker] += 1
        return placed if forced is None else replace(placed, why=f"forced, although {forced}; {placed.why}")

    def _fewest(self, bundle: Bundle, names: Collection[str], placed: Placed) -> Placed:
        broker = self._default.choose(bundle.name, sorted(names), self._held())
        if broker is None:
            return placed
        return replace(placed, broker=broker, why=f"{broker} has the fewest bundles ({placed.why})")

    def _held(self) -> Counter[str]:
        if self._counts is None:
            self._counts = Counter({name: self._cluster.bundles_of.count(name) for name in self._cluster.bundles_of})
        return self._counts

    # --- without policies -------------------------------------------------------------------------------------------

    def _fit_without_policies(self, bundle: Bundle) -> Sequence[str]:
        pipeline, cluster = self._without_policies()
        return pipeline.filters(cluster).passed(bundle).names

    def _place_without_policies(self, bundle: Bundle, names: Collection[str]) -> Placed:
        pipeline, cluster = self._without_policies()
        return pipeline.place(cluster, bundle, among=names)

    def _without_policies(self) -> tuple[Pipeline, Cluster]:
        """Pipeline and cluster with cordons and the brokers' own states only, without pins, isolation, groups and caps."""
        if self._forced is None or self._forced_cluster is None:
            policies = Policies(cordons=self._cluster.policies.cordons)
            settings = self._pipeline.settings.model_copy(
                update={"max_topics": FORCED_ROOM, "prefer_later_versions": False, "fewest_bundles": False}
            )
            self._forced = Pipeline(self._pipeline.strategy, settings)
            self._forced_cluster = replace(self._cluster, policies=policies)
            filters = self._forced.filters(self._forced_cluster)
            for broker, names in self._booked.items():
                for name in names:
                    filters.book(broker, name)
        return self._forced, self._forced_cluster


def traffic(bundle: Bundle) -> float:
    """Bytes a second in both directions: of this moment, else its short-term average; invalid values count as 0."""
    throughput = bundle.averages.short.msg_throughput if bundle.stats is None else bundle.stats.msg_throughput
    return throughput if 0 <= throughput < float("inf") else 0.0
