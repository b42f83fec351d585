"""The balancing extension of a member: load reports, policies, placement, splits, and the leader's balancing, put together.

    channel = StateChannel.open(broker="b1", extensions=[BalancerExtension(BalancerSettings(), source=mine)])

`statechannel broker run` makes it by `make`, out of `extensions.balancer.*`. Each duty runs in a task of its own and begins
again, with back-off, when it fails; none of them can stop the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from loaddata.channel_port import MemberChannel
from loaddata.kafka_side import LoadConnection
from loaddata.service import LoadService
from loaddata.simulated import SimulatedHost, SimulatedSource
from loaddata.source import LoadSource, MeasuredBundle, TopicRates
from shedders.cluster import Policies, RecentMoves
from shedders.isolation import Isolation
from shedders.live.asks import Asks
from shedders.live.balancer import Balancer, Ports
from shedders.live.checks import Checks
from shedders.live.chosen import MODULAR, Chosen, choose
from shedders.live.clocks import LiveClocks
from shedders.live.cluster_now import Known, broker_now, why_left_alone
from shedders.live.decision_record import Inputs
from shedders.live.decision_topic import (
    DecisionLags,
    DecisionTopics,
    DecisionWriter,
    WriteCounts,
    WriterBounds,
    newest_decision,
    open_decision_topic,
)
from shedders.live.drain import Drains
from shedders.live.metrics import BalancerMetrics
from shedders.live.placement import LivePlacement, Surroundings
from shedders.live.policy_follower import FollowerClocks, PolicyFollower, policy_reader
from shedders.live.policy_topic import PolicyTopics, open_policy_topic
from shedders.live.settings import NAME, BalancerSettings, configured
from shedders.live.splitting import Splitting
from shedders.live.telling import Telling
from shedders.live.trail import RecentTrail
from statechannel.errors import StateChannelError
from statechannel.runtime.changes import ChangesError
from statechannel.runtime.exits import ChannelStoppedError
from statechannel.runtime.request_record import Asked

if TYPE_CHECKING:
    from loaddata.source import HostSource
    from loaddata.top_bundles import LocalBundle
    from shedders.live.decision_record import DecisionRecord
    from shedders.live.policy_standing import Standing
    from statechannel.api import StateChannel
    from statechannel.core.picture import Picture
    from statechannel.core.placement import Placement
    from statechannel.settings import Settings

_log = structlog.get_logger(__name__)

RETRY_MAX_S = 60.0
WATCH_MAX = 100_000
POLICIES_WITHIN_S = 10.0
UNREADABLE = "the policies cannot be kept: "


def make(settings: Settings, values: Mapping[str, Any]) -> BalancerExtension:
    """The extension as `extensions.balancer.*` describes it (`statechannel.api.extensions.ExtensionMaker`).

    Raises:
        SettingsError: A setting is unknown, malformed or out of bounds.
    """
    found = configured(values)
    return BalancerExtension(
        found,
        simulated=found.source == "simulated",
        replication_factor=settings.channel.replication_factor,
    )


class NoBundles:
    """A source of a broker that measures its host alone."""

    def bundles(self) -> Mapping[str, MeasuredBundle]:
        """None are known."""
        return {}

    def topics(self, bundle: str) -> Sequence[TopicRates]:  # noqa: ARG002 - the port's
        """None are known."""
        return ()


class BalancerExtension:
    """See the module; `statechannel.api.extensions.Extension` is the port.

    Args:
        source: What the broker's bundles do; None: nobody can say (their host's load is reported all the same).
        host: What the machine does; None measures it.
        simulated: Make both up (`loaddata.simulated`).
    """

    name = NAME

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
        self.settings = settings or BalancerSettings()
        self._configured = self.settings
        self._clocks = clocks or LiveClocks()
        self._source = source or NoBundles()
        self._host = host
        if simulated:
            self._source = SimulatedSource(
                self.settings.simulated_seed, self._serving, lambda: self._clocks.log_ms() / 1_000
            )
            self._host = SimulatedHost(self._source)
        self._create_topics = create_topics
        self._replication_factor = replication_factor
        self._channel: StateChannel | None = None
        self._loads: LoadService | None = None
        self._follower: PolicyFollower | None = None
        self._writer: DecisionWriter | None = None
        self._balancer: Balancer | None = None
        self._drains: Drains | None = None
        self._chosen: Chosen = choose(self.settings, manager=self.settings.manager)
        self._overrides: Mapping[str, Any] = {}
        self._chosen_for: str = self.settings.manager
        self._trail = RecentTrail(self.settings.move_memory_s)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failing: dict[str, str] = {}
        self._placement = LivePlacement(
            surroundings=self._surroundings,
            owners=lambda namespace: {} if self._channel is None else self._channel.owners(namespace),
            pipeline=lambda: self._chosen.pipeline,
            now_s=self._clocks.mono_s,
            refresh_s=self.settings.placement_refresh_s,
            ask_leader=self._ask_leader,
            leader_wait_s=self.settings.leader_wait_s,
        )

    def _serving(self) -> list[str]:
        return [] if self._channel is None else list(self._channel.serving())

    # --- the port ---------------------------------------------------------------------------------------------------

    @property
    def placement(self) -> Placement | None:
        """See the port."""
        return self._placement

    async def start(self, channel: StateChannel) -> None:
        """See the port."""
        self._channel = channel
        client, topics = channel.access
        timeout_s = channel.settings.kafka.command_timeout_s
        decision_topics, policy_topics = self._decision_topics(topics.channel), PolicyTopics(topics.channel)
        create, replicas = self._create_topics, self._replication_factor

        def topics_ready() -> None:
            open_decision_topic(
                client, decision_topics, create=create, replication_factor=replicas, timeout_s=timeout_s
            )
            open_policy_topic(client, policy_topics, create=create, replication_factor=replicas, timeout_s=timeout_s)

        await asyncio.to_thread(topics_ready)
        self._writer = DecisionWriter(
            client,
            decision_topics,
            bounds=WriterBounds(self.settings.decision_queue_records, self.settings.decision_delivery_timeout_ms),
        )
        self._follower = PolicyFollower(
            policy_reader(client, policy_topics),
            on_change=self._policies_changed,
            clocks=FollowerClocks(self._clocks.mono_s, self._clocks.log_ms),
        )
        self._follower.start()
        if self.settings.source != "none":
            connection = LoadConnection(
                client, topics.channel, self._create_topics, self._replication_factor, timeout_s=timeout_s
            )
            self._loads = LoadService(
                self.settings.load,
                connection,
                channel.identity,
                self._source,
                MemberChannel(channel),
                host=self._host,
                has_policy=self._has_policy,
            )
            await self._loads.start()
        if not await self._follower.wait_known(POLICIES_WITHIN_S):
            _log.warning("policies-unread", seconds=POLICIES_WITHIN_S)
        self._begin(channel)

    def _decision_topics(self, channel: str) -> DecisionTopics:
        lags = DecisionLags(
            round(self.settings.decisions_retention_s * 1_000), round(self.settings.decisions_segment_s * 1_000)
        )
        return DecisionTopics(channel, decision_lags=lags)

    def _begin(self, channel: StateChannel) -> None:
        metrics = BalancerMetrics(
            channel.settings.channel.name,
            channel.identity.broker,
            channel.metrics_registry,
            log_scores=self.settings.debug_scores,
        )
        ports = Ports(
            channel=channel,
            standing=lambda: self.standing,
            known=self._known,
            chosen=lambda: self._chosen,
            inputs=self._inputs,
            write=self._write,
            recall=self._recall,
            metrics=metrics,
            clocks=self._clocks,
        )
        self._balancer = balancer = Balancer(ports, lambda: self.settings, manager=lambda: self.manager)
        self._spawn("balancing", balancer.run)
        self._spawn("watching", self._watch)
        telling = Telling(
            ports,
            lambda: self.settings,
            take_notes=self._placement.take_notes,
            counts=lambda: WriteCounts() if self._writer is None else self._writer.counts,
            manager=lambda: self.manager,
        )
        self._spawn("telling", telling.run)
        splitting: Splitting | None = None
        local: Callable[[], Mapping[str, LocalBundle]] = dict
        if self._loads is not None:
            local = self._loads.local_bundles
            splitting = Splitting(
                ports,
                lambda: self.settings,
                source=self._source,
                local=local,
                safe=lambda: why_left_alone(channel.picture()),
                manager=lambda: self.manager,
            )
            self._spawn("splitting", splitting.run)
        self._drains = Drains(ports, lambda: self.settings, manager=lambda: self.manager)
        asks = Asks(channel, balancer, splitting, self._source, local, self._drains, Checks(ports))
        channel.answer_for(NAME, asks.answer)

    async def close(self) -> None:
        """See the port."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._loads is not None:
            await self._loads.close()
        if self._follower is not None:
            await self._follower.close()
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close, self.settings.decision_close_timeout_s)

    def status(self) -> Mapping[str, Any]:
        """See the port."""
        standing = self.standing
        return {
            "manager": self.manager,
            "profile": self._chosen.profile,
            "strategies": dict(self._chosen.names),
            "balancing": self.settings.balancing and (standing is None or standing.shedding_on),
            "deciding": self._balancer is not None and self._balancer.leading,
            "drains": {} if self._drains is None else self._drains.status(),
            "placements": dict(sorted(self._placement.counts.items())),
            "failing": dict(self._failing),
            "load": None if self._loads is None else self._loads.status(),
            "policies": None if self._follower is None else self._follower.status(),
            "decisions": None if self._writer is None else self._writer.counts.to_json(),
        }

    # --- duties -----------------------------------------------------------------------------------------------------

    def _spawn(self, duty: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.get_running_loop().create_task(self._for_ever(duty, run), name=f"balancer-{duty}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _for_ever(self, duty: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a duty; one that fails begins again, later each time."""
        wait_s = self.settings.restart_wait_s
        while True:
            begun_s = self._clocks.mono_s()
            try:
                await run()
            except ChannelStoppedError:
                return
            except Exception as error:
                self._failing[duty] = repr(error)
                _log.exception("duty-failed", duty=duty, again_in_s=wait_s)
            if self._clocks.mono_s() - begun_s > RETRY_MAX_S:
                wait_s = self.settings.restart_wait_s
            await asyncio.sleep(wait_s)
            wait_s = min(RETRY_MAX_S, 2 * wait_s)

    async def _watch(self) -> None:
        """Moves and splits, as they are accepted."""
        channel = self._channel
        if channel is None:
            return
        watch = channel.watch(WATCH_MAX)
        try:
            while True:
                change = await watch.next()
                self._trail.changed(change, self._clocks.mono_s())
                if self._balancer is not None:
                    self._balancer.changed(change)
        except ChangesError as error:
            _log.info("watch-again", why=str(error))
        finally:
            watch.close()

    def _write(self, record: Any) -> None:
        if self._writer is not None:
            self._writer.write(record)

    async def _recall(self) -> DecisionRecord | None:
        channel = self._channel
        if channel is None:
            return None
        client, topics = channel.access
        timeout_s = channel.settings.kafka.command_timeout_s
        try:
            return await asyncio.to_thread(newest_decision, client, DecisionTopics(topics.channel), timeout_s)
        except StateChannelError as error:
            _log.warning("decisions-unread", error=str(error))
            return None

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def standing(self) -> Standing | None:
        """The policies; None before they were read."""
        return None if self._follower is None else self._follower.standing

    @property
    def manager(self) -> str:
        """`extensible` or `modular`: the policy, else the setting."""
        standing = self.standing
        return (None if standing is None else standing.manager) or self.settings.manager

    def _known(self) -> Known:
        standing = self.standing
        loads = self._loads
        return Known(
            loads={} if loads is None else loads.broker_loads(),
            tops={} if loads is None else loads.top_bundles(),
            top_ttl_s=self.settings.load.ttl_s,
            policies=Policies() if standing is None else standing.policies,
            domains={} if standing is None else standing.domains,
            quotas={} if standing is None else standing.quotas,
            recent=self._trail.recent(self._clocks.mono_s()),
        )

    def _inputs(self, picture: Picture | None) -> Inputs:
        channel = self._channel
        positions = (
            [] if channel is None else list(channel.positions().values()) if picture is None else picture.positions
        )
        standing = self.standing
        return Inputs(
            channel={str(partition): offset for partition, offset in enumerate(positions)},
            policies=None if standing is None else standing.position,
        )

    def _surroundings(self) -> Surroundings:
        channel = self._channel
        if channel is None:
            return Surroundings({}, Policies(), self._clocks.log_ms(), None, modular=False, leading=False)
        known = self._known_brokers()
        brokers = {one.broker: broker_now(one, known) for one in channel.brokers()}
        return Surroundings(
            brokers,
            known.policies,
            self._clocks.log_ms(),
            None,
            modular=self.manager == MODULAR,
            leading=channel.leading,
        )

    def _known_brokers(self) -> Known:
        standing = self.standing
        return Known(
            loads={} if self._loads is None else self._loads.broker_loads(),
            policies=Policies() if standing is None else standing.policies,
            domains={} if standing is None else standing.domains,
            recent=RecentMoves(),
        )

    def _has_policy(self, namespace: str) -> bool:
        """Whether the bundles of a namespace are kept from being shed for its policies' sake."""
        standing = self.standing
        if standing is None or standing.shed_with_policies:
            return False
        policies = standing.policies
        if namespace in policies.anti_affinity:
            return True
        zone = Isolation(policies.isolation, {}).zone(namespace)
        return zone is not None and (zone.policy is not None or zone.broken is not None)

    def _policies_changed(self, standing: Standing) -> None:
        manager = standing.manager or self._configured.manager
        if standing.settings != self._overrides or manager != self._chosen_for:
            self._overrides, self._chosen_for = standing.settings, manager
            self._choose_anew()
        if self._balancer is not None:
            self._balancer.wake("policy")

    def _choose_anew(self) -> None:
        own = {name.partition(".")[2]: value for name, value in self._overrides.items() if name.startswith(f"{NAME}.")}
        others = {name: value for name, value in self._overrides.items() if not name.startswith(f"{NAME}.")}
        try:
            settings = with_overrides(self._configured, own)
            self._chosen = choose(settings, others, manager=self._chosen_for)
            self.settings = settings
            self._failing.pop("choosing", None)
        except (StateChannelError, ValueError) as error:
            # What stood before goes on: a policy that cannot be used must not stop a cluster.
            self._failing["choosing"] = str(error)
            _log.error("policies-unusable", error=str(error))

    # --- the modular manager ----------------------------------------------------------------------------------------

    def _ask_leader(self, bundle: str) -> None:
        """Have the leader place a bundle: a lookup through the requests topic is executed by it."""
        channel = self._channel
        if channel is not None:
            channel.request(Asked.LOOKUP, {"name": bundle}, self.settings.leader_wait_s)


def with_overrides(settings: BalancerSettings, overrides: Mapping[str, Any]) -> BalancerSettings:
    """Settings with some in place of others, by dotted name.

    Raises:
        ValueError: One is unknown or out of bounds.
    """
    values = settings.model_dump()
    for dotted, value in overrides.items():
        *path, last = dotted.split(".")
        target = values
        for part in path:
            target = target[part]
        target[last] = value
    return BalancerSettings.model_validate(values)
