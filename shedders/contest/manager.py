"""Load manager in virtual time: the live balancer's own parts, driven by the clock of the simulation.

Decisions are made by `shedders.balancer.lead.Balance`, placements by `shedders.balancer.placement.LivePlacement`, splits by
`shedders.split.triggers.SplitWhen`, on clusters from `shedders.balancer.cluster_inputs`, as in a broker. With
`upstream`, only what Pulsar books is booked, and no budget applies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from loaddata.settings import LoadSettings
from shedders.balancer.active_strategies import balanced_by, choose
from shedders.balancer.cluster_inputs import BundleCache, ClusterInputs, RecentTrail, cluster_now
from shedders.balancer.lead import Balance
from shedders.balancer.placement import LivePlacement, PlacementInputs
from shedders.balancer.settings import BalancerSettings
from shedders.contest.contenders import MODULAR, UnknownContenderError
from shedders.contest.reports import ReportSettings
from shedders.decision.booked_moves import BookedMoves, DecisionRules
from shedders.decision.dry_run import Decision, carried, decide
from shedders.decision.planned_restart import PlannedRestart, RestartDestinations
from shedders.errors import StrategyFailedError
from shedders.model.cluster import Bundle, Cluster, TopicLoad
from shedders.split.triggers import SplitWhen
from statechannel.engine.cluster_view import BrokerSeen, BundleSeen, ClusterView

if TYPE_CHECKING:
    from loaddata.report.record import ReportedLoad, ReportedTopBundles
    from shedders.contest.bundles import BundleArrival
    from shedders.contest.contenders import Contender
    from shedders.model.cluster import Policies
    from shedders.model.plan import BundleMove, SplitPlan

UPSTREAM_READING_S = 60.0
"""Pulsar updates the figures of host and bundles once a minute."""
UPSTREAM_SAMPLES = 12
"""At each report tick, every 5 s, its averages count the same reading again."""
_LOAD = "load."
_MS = 1_700_000_000_000


class ManagerView(NamedTuple):
    """View of the cluster for decisions, without the memory of strategies.

    Attributes:
        brokers: Those that are registered, sorted.
        bundles: As the channel has them; `held`: bundles by broker.
    """

    brokers: Sequence[BrokerSeen]
    bundles: Sequence[BundleSeen]
    loads: Mapping[str, ReportedLoad]
    tops: Mapping[str, ReportedTopBundles]
    held: Mapping[str, int]
    offset: int
    policies: Policies


@dataclass(frozen=True, slots=True)
class ManagerDecision:
    """Decision of the leader.

    Attributes:
        moves: Moves to make now; `splits`: bundles to split, as the strategy cannot place them.
        took_ms: Wall time of the strategy with its filters.
    """

    moves: Sequence[BundleMove]
    splits: Sequence[str]
    took_ms: float


def _load_settings(contender: Contender) -> LoadSettings:
    """Settings of load data; with the modular manager every bundle is reported, and Pulsar measures once a minute.

    Raises:
        UnknownContenderError: The settings are invalid.
    """
    usual: dict[str, Any] = {"top_bundles_max": 0, "top_idle": True} if contender.manager == MODULAR else {}
    if contender.upstream:
        usual |= {
            "measure_interval_s": UPSTREAM_READING_S,
            "stale_s": 2 * UPSTREAM_READING_S,
            "catch_up_max": UPSTREAM_SAMPLES,
            "report_peak_percent": 0,
            "top_by_resource_max": 0,
            "top_recent_max": 0,
        }
    values = {name[len(_LOAD) :]: value for name, value in contender.overrides.items() if name.startswith(_LOAD)}
    try:
        return LoadSettings.model_validate(usual | values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnknownContenderError(contender.name, f"load.{where}: {first['msg']}", []) from error


class Manager:
    """Load manager of one contender, in virtual time.

    Args:
        view: Returns the cluster as reported at this moment; the same object while nothing has changed.
    """

    def __init__(
        self,
        contender: Contender,
        view: Callable[[], ManagerView],
        now_s: Callable[[], float],
        topics: Callable[[str], Sequence[TopicLoad]],
    ) -> None:
        self.contender = contender
        self._view = view
        self._now_s = now_s
        self._topics = topics
        self.remarks: dict[str, int] = {}
        manager = contender.manager
        wanted = {name: value for name, value in contender.overrides.items() if not name.startswith(_LOAD)}
        self._load = _load_settings(contender)
        named = {"shedding": contender.shedding, "placement": contender.placement, "split": contender.split}
        mine = {name: value for name, value in wanted.items() if not name.startswith("balancer.")}
        self.settings = balanced_by(BalancerSettings(), wanted)
        self._chosen = choose(self.settings, {**named, **mine}, manager=manager)
        booked = BookedMoves(expire_s=self.settings.move_timeout_s, keep_s=self.settings.move_memory_s)
        self._balance = Balance(booked)
        self._trail = RecentTrail(lambda: self.settings.move_memory_s)
        self._memory: Mapping[str, Any] = {}
        self._bundle_cache = BundleCache()
        self._split_memory: dict[str, Mapping[str, Any]] = {}
        self._prebooked: dict[str, list[str]] = {}
        self._clusters: dict[bool, tuple[ManagerView, Cluster]] = {}
        self._placement_input: tuple[float, Cluster] | None = None
        self._last: Cluster | None = None
        self._restart: PlannedRestart | None = None
        self._restarting = False
        self._placement = LivePlacement(
            surroundings=lambda: PlacementInputs(self._cluster(arrived=True), leading=True),
            held=lambda _: False,
            pipeline=lambda: self._chosen.placing,
            now_s=now_s,
            ask_leader=lambda _: None,
            settings=lambda: self.settings,
        )

    @property
    def unloads(self) -> bool:
        """Whether bundles are unloaded without a destination, and placed at the next lookup."""
        return self.contender.upstream and self.contender.manager == MODULAR

    @property
    def moves_at_once(self) -> int | None:
        """Most moves under way, as of live brokers; None: no bound, as in Pulsar."""
        return None if self.contender.upstream else self.settings.moves_at_once

    @property
    def decides_after_splits(self) -> bool:
        """Whether a split triggers a decision; Pulsar's leader decides by its clock alone."""
        return not self.contender.upstream

    def report_settings(self) -> ReportSettings:
        upstream = self.contender.upstream
        cool_down_s = getattr(self._chosen.settings["shedding"], "cool_down_s", 0.0)
        return ReportSettings(
            self._load,
            on_ownership=not upstream,
            again_s=0.0 if upstream else float(cool_down_s),
            keep_averages=upstream,
        )

    # --- events ----------------------------------------------------------------------------------------------

    def record_arrival(self, arrival: BundleArrival, *, shed: bool = True) -> None:
        """Record that a bundle came to a broker.

        Args:
            shed: The leader has moved it. Pulsar's leader remembers nothing else: what a broker handed over when it left keeps
                neither bundle nor broker from being looked at. Ours reads all of it in the log.
        """
        if shed or not self.contender.upstream:
            self._trail.changed(arrival, self._now_s())
        self._placement.assigned(arrival.bundle, arrival.to)

    def forget_arrivals(self) -> None:
        """Clear bundles in flight, as brokers have measured what came to them, in the view of Pulsar's leader."""
        self._prebooked.clear()

    def record_split(self, bundle: str, positions: Sequence[int]) -> None:
        """Record a split: the children are offered with the load that was known of their parent."""
        parent = None if self._last is None else self._last.bundles.get(bundle)
        if not self.contender.upstream and parent is not None and parent.stats is not None:
            self._balance.was_split(parent, positions)

    # --- planned restarts ----------------------------------------------------------------------------------------------

    def plan_restart(self, brokers: Sequence[str]) -> None:
        """Announce a rolling restart of these brokers by our command; Pulsar has none."""
        if brokers and not self.contender.upstream:
            self._restart = PlannedRestart("restart", frozenset(brokers))

    def begin_restart(self) -> None:
        """Begin the restart, as its first broker leaves: until the last one is back the balancer moves nothing."""
        self._restarting = self._restart is not None

    def record_join(self, broker: str) -> None:
        """Record that a broker joined: within a rolling restart it is done."""
        if self._restart is None or not self._restarting:
            return
        self._restart = replace(self._restart, done=self._restart.done | {broker})
        self._restarting = not self._restart.brokers <= self._restart.done

    def hand_over(self, bundle: str, leaving: str, candidates: Sequence[str], held: Mapping[str, int]) -> str | None:
        """Broker for a bundle of a broker that leaves; None: no broker, and it is looked up.

        Args:
            candidates: Brokers that take bundles, sorted.
            held: Bundles by broker.
        """
        if self._restart is not None and self._restarting:
            cluster = self._cluster(arrived=True)
            target, placing = cluster.bundles.get(bundle) or Bundle(bundle), self._chosen.placing
            weights = getattr(placing.strategy, "settings", None)
            planned = RestartDestinations(cluster, self._restart, leaving, getattr(weights, "weights", None))
            fit = placing.filters(cluster).passed(target, candidates).names
            candidates = planned.of(target, fit, {}).names
        return self.place(bundle, candidates, held)

    # --- decisions --------------------------------------------------------------------------------------------

    def place(self, bundle: str, candidates: Sequence[str], held: Mapping[str, int]) -> str | None:
        """Broker for a bundle that was looked up; None: no broker, and it is looked up again.

        Args:
            candidates: Brokers that take bundles, sorted.
            held: Bundles by broker.
        """
        if not self.contender.upstream:
            return self._placement.choose(bundle, candidates, held)
        if self._placement_input is None or self._placement_input[0] != self._now_s():
            # Pulsar's placements use the newest reports, without later arrivals.
            self._placement_input = self._now_s(), self._cluster()
            self._prebooked = _not_arrived(self._prebooked, self._placement_input[1])
        cluster = self._placement_input[1]
        target = cluster.bundles.get(bundle) or Bundle(bundle)
        booked = self._prebooked if self.contender.manager == MODULAR else {}
        try:
            broker = self._chosen.placing.place(cluster, target, booked, candidates).broker
        except StrategyFailedError as error:
            self._remark(f"placement: {error}")
            return None
        if broker is not None:
            self._prebooked.setdefault(broker, []).append(bundle)
        return broker

    def drop_cached_inputs(self) -> None:
        self._placement.forget()

    def decide(self) -> ManagerDecision:
        begun_s = time.perf_counter()
        if self._restarting:
            return ManagerDecision((), (), 0.0)
        try:
            decision, moves = self._decide_as_pulsar() if self.contender.upstream else self._decide_as_live()
        except StrategyFailedError as error:
            self._balance.memory = {}
            self._memory = {}
            self._remark(str(error))
            return ManagerDecision((), (), 1e3 * (time.perf_counter() - begun_s))
        took_ms = 1e3 * (time.perf_counter() - begun_s)
        return ManagerDecision(moves, [split.bundle for split in decision.plan.splits], took_ms)

    def _decide_as_live(self) -> tuple[Decision, Sequence[BundleMove]]:
        """Decide as the live balancer: bundles in flight are booked, and a budget limits moves."""
        now_s, balance, chosen = self._now_s(), self._balance, self._chosen
        cluster, _ = balance.look(self._cluster(), now_s)
        self._last = cluster
        decision = balance.question(cluster, chosen)()
        _, moves = balance.commit(cluster, chosen, decision, DecisionRules(self.settings.budget), now_s)
        chosen.share()
        return decision, moves

    def _decide_as_pulsar(self) -> tuple[Decision, Sequence[BundleMove]]:
        """Decide as Pulsar: no bookings, no budget, and no second check of destinations."""
        chosen = self._chosen
        decision = decide(self._cluster(), chosen.shedding, self._memory, chosen.pipeline, guarded=False)
        self._memory = decision.memory
        chosen.share()
        return decision, decision.moves

    def is_booked(self, bundle: str) -> bool:
        """Whether a decided move is still to be made: one that has waited for too long is no longer booked."""
        return self.contender.upstream or bundle in self._balance.booked

    def record_failure(self, bundle: str, why: str) -> None:
        self._balance.booked.cancel(bundle, why)

    def splits(self, candidates: Iterable[Bundle]) -> Sequence[SplitPlan]:
        """Splits that owners make of their own bundles.

        Args:
            candidates: Bundles that may be over a limit, with what their owners know of them.
        """
        by_owner: dict[str, dict[str, Bundle]] = {}
        for candidate in candidates:
            by_owner.setdefault(str(candidate.owner), {})[candidate.name] = candidate
        plans_made: list[SplitPlan] = []
        for owner in sorted({*by_owner, *self._split_memory}):
            mine = by_owner.get(owner, {})
            if not mine:
                # A bundle that is within the limits again starts a new row.
                self._split_memory.pop(owner, None)
                continue
            spaces = {candidate.namespace for candidate in mine.values()}
            plain = self._cluster().bundles_in
            around = {key.name: key for space in sorted(spaces) for key in plain.unsorted(space)}
            cluster = Cluster({}, around | mine)
            result = SplitWhen(self._chosen.splitting, self._chosen.algorithm).plan(
                cluster, self._split_memory.get(owner, {}), owner
            )
            self._split_memory[owner] = carried("split", self._chosen.algorithm.name, result.memory)
            plans_made += [plan for plan in result.plans if plan.positions]
        return plans_made

    def split_positions(self, bundle: Bundle) -> Sequence[int]:
        """Split positions of a bundle that is to be split; empty, if its topics cannot be separated."""
        try:
            return list(self._chosen.algorithm.positions(replace(bundle, topics=self._topics(bundle.name))))
        except Exception as error:
            self._remark(f"split of {bundle.name}: {error}")
            return ()

    @property
    def split_limits(self) -> Any:
        return self._chosen.splitting

    # --- knowledge ----------------------------------------------------------------------------------------------

    def _cluster(self, *, arrived: bool = False) -> Cluster:
        view, now_s = self._view(), self._now_s()
        cached = self._clusters.get(arrived)
        if cached is not None and cached[0] is view:
            return cached[1]
        picture = ClusterView("leader", True, 0, "normal", True, False, None, [view.offset], view.brokers, view.bundles)
        recent = self._trail.recent(now_s)
        known = ClusterInputs(loads=view.loads, tops=view.tops, policies=view.policies, recent=recent)
        cluster = cluster_now(picture, known, _MS + round(now_s * 1000), arrived=arrived, kept=self._bundle_cache)
        self._clusters[arrived] = view, cluster
        return cluster

    def _remark(self, text: str) -> None:
        if len(self.remarks) < 100 or text in self.remarks:  # noqa: PLR2004 - enough to read
            self.remarks[text] = self.remarks.get(text, 0) + 1


def _not_arrived(booked: Mapping[str, Sequence[str]], cluster: Cluster) -> dict[str, list[str]]:
    """Bundles by broker without those that it is seen to serve: they count there already."""
    bundles = cluster.bundles
    return {
        broker: [name for name in names if name not in bundles or bundles[name].owner != broker]
        for broker, names in booked.items()
    }
