"""The balancing extension of a member: wiring of load reports, policies, placement, splits, and the leader's balancing.

    channel = StateChannel.open(broker="b1", extensions=[BalancerExtension(BalancerSettings(), source=mine)])

`statechannel broker run` creates it with `make` from `extensions.balancer.*`. Each part runs in its own task, restarted with
back-off when it fails; none of them can stop the broker.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loaddata.live.service import LoadService
from loaddata.live.topics import LoadConnection
from loaddata.report.record import ReportKind
from loaddata.source import LoadSource, MeasuredBundle, TopicRates
from shedders.balancer.active_strategies import MODULAR, StrategiesInForce
from shedders.balancer.balancer import Balancer
from shedders.balancer.cluster_inputs import BundleCache, ClusterInputs, RecentTrail, cluster_now, why_left_alone
from shedders.balancer.decision_history import DecisionHistory
from shedders.balancer.drain import Drains
from shedders.balancer.duties import BalancerTasks, ContradictionWatch, ReportRenewal
from shedders.balancer.metrics import BalancerMetrics
from shedders.balancer.placement import LivePlacement, PlacementInputs, PlacementRecorder
from shedders.balancer.ports import BalancerLogClock, LiveClocks, Ports
from shedders.balancer.request_handlers import MoveChecks, RequestHandlers, SplitRequestHandler
from shedders.balancer.settings import NAME, BalancerSettings, configured
from shedders.balancer.splitting import Splitting
from shedders.decisions.record import Inputs
from shedders.decisions.topic import DecisionWriter, WriteCounts
from shedders.model.cluster import Cluster, Policies
from shedders.policies.book import BookBounds
from shedders.policies.effective import EffectivePolicies
from shedders.policies.follower import FollowerClocks, PolicyFollower, TopicWatchSettings, policy_reader
from shedders.policies.topic import look_at
from statechannel.broker.changes import ChangesError
from statechannel.kafka.light_topic import LightTuning
from statechannel.kafka.topic_policy import SideTopic, decisions_topic, policies_topic
from statechannel.kafka.topics import open_topics
from statechannel.logger import SafeLogger
from statechannel.operations.table import MAY_TAKE, RequestCommand
from statechannel.protocol.states import State

if TYPE_CHECKING:
    from loaddata.model.bundle_load import LocalBundle
    from loaddata.source import HostSource
    from statechannel.api.member import ChannelMember
    from statechannel.broker.changes import Change
    from statechannel.engine.cluster_view import ClusterView
    from statechannel.engine.placement import Placement
    from statechannel.kafka.topics import TopicInfo
    from statechannel.settings import Settings

_log = SafeLogger(__name__)
_TIME_EVERY_S = 0.5
_WATCH_AGAIN_S = 0.2


def make(settings: Settings, values: Mapping[str, Any]) -> BalancerExtension:
    """The extension as `extensions.balancer.*` describes it (`statechannel.api.extensions.ExtensionMaker`).

    Raises:
        SettingsError: A setting is unknown, malformed or out of bounds.
    """
    own = configured(values)
    return BalancerExtension(
        own, simulated=own.source == "simulated", replication_factor=settings.channel.replication_factor
    )


class NoBundles:
    """A source for a broker that measures only its host."""

    def bundles(self) -> Mapping[str, MeasuredBundle]:
        return {}

    def topics(self, bundle: str) -> Sequence[TopicRates]:  # noqa: ARG002 - the port's
        return ()


class BalancerExtension:
    """The extension; `statechannel.api.extensions.Extension` is the port.

    Args:
        source: Load of the broker's bundles; None: unknown (the host's load is reported nevertheless).
        host: Load of the machine; None measures it.
        simulated: Use synthetic load for both (`loaddata.measure.synthetic`).
    """

    name = NAME
    checks = (MAY_TAKE,)
    """Of requests, before this broker executes them."""

    def __init__(
        self,
        settings: BalancerSettings | None = None,
        *,
        source: LoadSource | None = None,
        host: HostSource | None = None,
        simulated: bool = False,
        clocks: LiveClocks | None = None,
        create_topics: bool = True,
        replication_factor: int = -1,
    ) -> None:
        self._in_force = StrategiesInForce(settings or BalancerSettings())
        self._log_clock = BalancerLogClock()
        self._clocks = clocks or LiveClocks(log_ms=self._log_clock.now_ms)
        self._source = source if source is not None else NoBundles()
        self._host = host
        if simulated:
            synthetic = self.settings.simulated
            self._source, self._host = synthetic.source(
                self.settings.simulated_seed, self._serving, lambda: self._clocks.log_ms() / 1_000
            )
        self._create_topics = create_topics
        self._replication_factor = replication_factor
        self._channel: ChannelMember | None = None
        self._log = _log
        self._loads: LoadService | None = None
        self._follower: PolicyFollower | None = None
        self._writer: DecisionWriter | None = None
        self._balancer: Balancer | None = None
        self._drains: Drains | None = None
        self._renewal: ReportRenewal | None = None
        self._metrics: BalancerMetrics | None = None
        self._trail = RecentTrail(lambda: self.settings.move_memory_s, lambda: self.settings.moves_remembered_max)
        self._served: Sequence[str] = ()
        self._kept = BundleCache()
        self._contradicted = ContradictionWatch(
            self._led_cluster, lambda: self.effective, lambda: self.settings.contradictions_s
        )
        self._loop_thread = 0
        self._duties = BalancerTasks(
            first_wait_s=lambda: self.settings.restart_wait_s,
            longest_wait_s=lambda: self.settings.restart_wait_max_s,
            now_s=self._clocks.mono_s,
            over=lambda: self._channel is None or self._channel.stopped is not None,
        )
        self._placement = LivePlacement(
            surroundings=self._surroundings,
            held=lambda bundle: self._channel is not None and self._channel.holder(bundle) is not None,
            pipeline=lambda: self._in_force.chosen.placing,
            now_s=self._clocks.mono_s,
            ask_leader=self._ask_leader,
            settings=lambda: self.settings,
        )

    def _serving(self) -> Sequence[str]:
        """The bundles of this broker; the synthetic host runs in a thread, and gets the loop's last list."""
        if self._channel is not None and threading.get_ident() == self._loop_thread:
            self._served = list(self._channel.serving())
        return self._served

    # --- the port ---------------------------------------------------------------------------------------------------

    @property
    def placement(self) -> Placement | None:
        return self._placement

    async def start(self, channel: ChannelMember) -> None:
        # The first conversion of the channel's bundles takes longest. No placement can need them yet: without
        # `_channel` nothing is known. In a thread, as the loop must send heartbeats.
        await asyncio.to_thread(self._kept.update, channel.picture().bundles)
        self._channel = channel
        self._log = _log.bound(broker=channel.identity.broker)
        self._loop_thread = threading.get_ident()
        self._log_clock.heard(channel.log_time_ms)
        client, topics = channel.access
        timeout_s = channel.settings.kafka.command_timeout_s
        decision_topic, policy_topic = self._decision_topic(topics.channel), policies_topic(topics.channel)
        create, replicas = self._create_topics, self._replication_factor

        def topics_ready() -> TopicInfo:
            open_topics(client, decision_topic, create=create, replication_factor=replicas, timeout_s=timeout_s)
            infos = open_topics(client, policy_topic, create=create, replication_factor=replicas, timeout_s=timeout_s)
            return infos[policy_topic.name]

        policies = await asyncio.to_thread(topics_ready)
        channel.watched_topics.update({**decision_topic.policies, **policy_topic.policies})
        self._writer = DecisionWriter(
            client,
            decision_topic,
            tuning=LightTuning(
                queue_records=self.settings.decision_queue_records,
                delivery_timeout_ms=self.settings.decision_delivery_timeout_ms,
            ),
        )
        self._follower = PolicyFollower(
            policy_reader(client, policy_topic),
            on_change=self._policies_changed,
            clocks=FollowerClocks(self._clocks.mono_s, self._clocks.log_ms),
            watched=TopicWatchSettings(
                policies.topic_id,
                lambda: look_at(client, policy_topic, timeout_s=timeout_s),
                lambda: self.settings.policies_look_s,
            ),
            bounds=BookBounds(self.settings.policies_max, self.settings.policies_bytes),
        )
        self._follower.start()
        if self.settings.source != "none":
            connection = LoadConnection(
                client, topics.channel, self._create_topics, self._replication_factor, timeout_s=timeout_s
            )
            self._loads = LoadService(
                # `has_policy` alone decides whether bundles with policies are reported: it knows the policy about that.
                self.settings.load.model_copy(update={"top_with_policies": False}),
                connection,
                channel.identity,
                self._source,
                channel,
                host=self._host,
                has_policy=lambda namespace: self._in_force.keeps(self.effective, namespace),
            )
            await self._loads.start()
        self._weigh()
        wait_s = self.settings.policies_wait_s
        if not await self._follower.wait_known(wait_s):
            self._log.warning("policies-unread", seconds=wait_s)
        self._begin(channel)

    def _decision_topic(self, channel: str) -> SideTopic:
        settings = self.settings
        return decisions_topic(
            channel, round(settings.decisions_retention_s * 1_000), round(settings.decisions_segment_s * 1_000)
        )

    def _begin(self, channel: ChannelMember) -> None:
        self._metrics = metrics = BalancerMetrics(
            channel.settings.channel.name,
            channel.identity.broker,
            channel.metrics_registry,
            log_scores=self.settings.debug_scores,
        )
        # Policies change the settings while it runs, so they are read each time.
        client, topics = channel.access
        history = DecisionHistory(
            client,
            decisions_topic(topics.channel),
            channel.settings.kafka.command_timeout_s,
            lambda: self.settings.recall_bounds(),  # noqa: PLW0108
            self._clocks.mono_s,
        )
        ports = Ports(
            channel=channel,
            settings=lambda: self.settings,
            manager=lambda: self.manager,
            effective=lambda: self.effective,
            known=self._known,
            chosen=lambda: self._in_force.chosen,
            inputs=self._inputs,
            write=self._write,
            recall=history.newest,
            metrics=metrics,
            clocks=self._clocks,
            unusable=self._unusable,
            kept=self._kept,
            contradictions=self._contradicted.left,
        )
        self._balancer = balancer = Balancer(ports)
        self._duties.begin("balancing", balancer.run)
        self._duties.begin("watching", self._watch)
        self._duties.begin("clock", self._keep_time)
        self._duties.begin("contradictions", self._contradicted.run)
        telling = PlacementRecorder(
            ports,
            take_notes=self._placement.take_notes,
            take_ends=self._placement.take_ends,
            counts=lambda: WriteCounts() if self._writer is None else self._writer.counts,
        )
        self._duties.begin("telling", telling.run)
        local: Callable[[], Mapping[str, LocalBundle]] = dict
        if self._loads is not None:
            local = self._loads.local_bundles
            splitting = Splitting(
                ports, source=self._source, local=local, safe=lambda: why_left_alone(channel.picture())
            )
            self._duties.begin("splitting", splitting.run)
            self._renewal = ReportRenewal(
                channel.identity.broker, self._in_force.cool_down_s, self._loads.report_now, self._clocks.mono_s
            )
            self._duties.begin("renewing", self._renewal.run)
        self._drains = Drains(ports, moved_before=history.moved)
        splits = SplitRequestHandler(channel, self._source, local, ports.settings)
        move_checks = MoveChecks(ports)
        channel.check_before(MAY_TAKE, move_checks.refusal)
        asks = RequestHandlers(balancer, splits, self._drains, move_checks)
        channel.answer_for(NAME, asks.answer)

    async def close(self) -> None:
        await self._duties.close()
        if self._balancer is not None:
            await self._balancer.close()
        ends: list[Coroutine[Any, Any, object]] = []
        if self._loads is not None:
            ends.append(self._loads.close())
        if self._follower is not None:
            ends.append(self._follower.close())
        if self._writer is not None:
            ends.append(asyncio.to_thread(self._writer.close, self.settings.decision_close_timeout_s))
        for end in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(end, Exception):
                self._log.error("balancer-not-closed", exc_info=end)

    def status(self) -> Mapping[str, Any]:
        effective = self.effective
        return {
            "manager": self.manager,
            "profile": self._in_force.chosen.profile,
            "strategies": dict(self._in_force.chosen.names),
            "balancing": self.settings.balancing and (effective is None or effective.shedding_on),
            "deciding": self._balancer is not None and self._balancer.leading,
            "doubts": {} if self._balancer is None else dict(self._balancer.doubts),
            "drains": {} if self._drains is None else self._drains.status(),
            "placements": dict(sorted(self._placement.counts.items())),
            "failing": self._failing(),
            "clock_ahead_ms": self._log_clock.ahead_ms(),
            "contradictions": self._contradicted.sentences(),
            "load": None if self._loads is None else self._loads.status(),
            "policies": None if self._follower is None else self._follower.status(),
            "decisions": None if self._writer is None else self._writer.counts.to_json(),
        }

    def _unusable(self) -> str | None:
        doubt = "" if self._follower is None else self._follower.doubt
        return doubt or self._in_force.unusable

    def _failing(self) -> dict[str, str]:
        failing = self._duties.failing()
        if self._placement.failing:
            failing["placement"] = self._placement.failing
        unusable = self._unusable()
        if unusable is not None:
            failing["policies"] = unusable
        return failing

    async def _keep_time(self) -> None:
        """Follow the log's time by the heartbeats of all brokers."""
        while self._channel is not None:
            self._log_clock.heard(self._channel.log_time_ms)
            await asyncio.sleep(_TIME_EVERY_S)

    # --- changes on the channel -------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Watch accepted moves and splits. Those missed while a partition is joined again are not caught up."""
        channel = self._channel
        while channel is not None:
            try:
                watch = channel.watch(self.settings.watch_max)
            except ChangesError:  # a partition is being joined
                await asyncio.sleep(_WATCH_AGAIN_S)
                continue
            try:
                while True:
                    self._changed(await watch.next())
            except ChangesError as error:
                self._log.info("watch-again", why=str(error))
            finally:
                watch.close()

    def _changed(self, change: Change) -> None:
        self._trail.changed(change, self._clocks.mono_s())
        if change.state in (State.ASSIGNING, State.ASSIGNED):
            self._placement.assigned(change.bundle, change.to if change.state is State.ASSIGNED else None)
        if change.from_ is not None and change.state is State.RELEASING and change.decision is not None:
            self._placement.shed(change.bundle, change.from_)
        if self._renewal is not None:
            self._renewal.changed(change)
        if self._balancer is not None:
            self._balancer.changed(change)

    def _write(self, record: Any) -> None:
        if self._writer is not None:
            self._writer.write(record)

    # --- inputs -----------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> BalancerSettings:
        return self._in_force.settings

    @property
    def effective(self) -> EffectivePolicies | None:
        """The policies in effect; None before they were read."""
        return None if self._follower is None else self._follower.effective

    @property
    def manager(self) -> str:
        """`extensible` or `modular`: the policy, else the setting."""
        effective = self.effective
        return (None if effective is None else effective.manager) or self.settings.manager

    def _known(self) -> ClusterInputs:
        effective = self.effective
        loads = self._loads
        return ClusterInputs(
            loads={} if loads is None else loads.broker_loads(),
            tops={} if loads is None else loads.top_bundles(),
            top_ttl_s=self.settings.load.ttl_s,
            policies=Policies() if effective is None else effective.policies,
            domains={} if effective is None else effective.domains,
            quotas={} if effective is None else effective.quotas,
            recent=self._trail.recent(self._clocks.mono_s()),
        )

    def _inputs(self, picture: ClusterView | None) -> Inputs:
        channel = self._channel
        positions = (
            [] if channel is None else list(channel.positions().values()) if picture is None else picture.positions
        )
        effective = self.effective
        return Inputs(
            channel={str(partition): offset for partition, offset in enumerate(positions)},
            broker_load=None if self._loads is None else self._loads.position(ReportKind.BROKER_LOAD),
            top_bundles=None if self._loads is None else self._loads.position(ReportKind.TOP_BUNDLES),
            policies=None if effective is None else effective.position,
        )

    def _surroundings(self) -> PlacementInputs:
        channel, effective = self._channel, self.effective
        if channel is None or effective is None:
            return PlacementInputs(Cluster({}, {}), known=False)
        cluster = cluster_now(channel.picture(), self._known(), self._clocks.log_ms(), arrived=True, kept=self._kept)
        return PlacementInputs(cluster, modular=self.manager == MODULAR, leading=channel.leading)

    def _led_cluster(self) -> Cluster | None:
        channel, effective = self._channel, self.effective
        if channel is None or effective is None or not channel.leading:
            return None
        picture = channel.picture()
        return cluster_now(picture, self._known(), self._clocks.log_ms(), kept=self._kept) if picture.current else None

    # --- policies -----------------------------------------------------------------------------------------------------

    def _policies_changed(self, effective: EffectivePolicies) -> None:
        fault = self._in_force.follow(effective)
        if fault is not None:
            self._log.error("policies-unusable", error=str(fault), hint=fault.hint)
        if self._metrics is not None:
            self._metrics.log_scores = self.settings.debug_scores
        self._weigh()
        self._placement.forget()
        self._contradicted.wake()
        if self._balancer is not None:
            self._balancer.wake("policy")

    def _weigh(self) -> None:
        effective = self.effective
        if self._loads is not None:
            self._loads.weigh(None if effective is None else effective.weights)

    # --- the modular manager ----------------------------------------------------------------------------------------

    def _ask_leader(self, bundle: str) -> None:
        """Let the leader place a bundle, by a lookup through the requests topic."""
        channel = self._channel
        if channel is not None:
            channel.request(RequestCommand.LOOKUP, {"name": bundle}, self.settings.leader_wait_s)
