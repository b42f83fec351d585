"""What a balancer stands on, without a cluster: a channel, clocks and strategies that do what the test says."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar

from ulid import ULID

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleStats, LocalBundle, TopBundle
from loaddata.report.record import ReportedLoad, ReportedTopBundles
from shedders.balancer.active_strategies import ActiveStrategies
from shedders.balancer.balancer import Balancer, Ports
from shedders.balancer.cluster_inputs import ClusterInputs
from shedders.balancer.metrics import BalancerMetrics
from shedders.balancer.ports import LiveClocks
from shedders.balancer.settings import BalancerSettings
from shedders.decision.booked_moves import BudgetSettings
from shedders.decision.placing import Pipeline
from shedders.decisions.record import DecisionRecord, Inputs, OutcomeRecord
from shedders.filters.rules import FilterSettings
from shedders.model.cluster import Cluster
from shedders.model.plan import BundleMove, Label, Placed, Plan, Reason, SplitWanted
from shedders.model.strategy import StrategySettings
from shedders.policies.effective import EffectivePolicies
from shedders.split.triggers import SplitSettings
from statechannel.engine import commands
from statechannel.engine.cluster_view import BrokerSeen, BundleSeen, ClusterView
from statechannel.engine.commands import Command, Done, Outcome, Started
from statechannel.operations.table import RequestCommand
from statechannel.protocol.states import State

NS = "t/n"


def key(number: int, namespace: str = NS) -> str:
    """One of sixteen bundles of a namespace."""
    return f"{namespace}/0x{number << 28:08x}_0x{min((number + 1) << 28, 0xFFFFFFFF):08x}"


@dataclass
class Clock:
    """Time that the test turns on; sleeping in the loop does not."""

    s: float = 100.0

    def clocks(self) -> LiveClocks:
        return LiveClocks(mono_s=lambda: self.s, log_ms=lambda: int(self.s * 1_000))


class Ticket:
    def __init__(self, end: asyncio.Future[Outcome]) -> None:
        self._end = end

    async def outcome(self, timeout_s: float) -> Outcome:
        return await asyncio.shield(self._end)


@dataclass
class Channel:
    """The channel as the balancer of one broker sees it.

    Attributes:
        bundles: Owner by name; None: nobody.
        in_flight: Bundles that are being released, each with where it goes.
        answer: What a command comes to; a future: it is `Started`, and that is its end.
    """

    broker: str = "b1"
    term: int = 7
    bundles: dict[str, str | None] = field(default_factory=dict)
    brokers_: list[str] = field(default_factory=lambda: ["b1", "b2", "b3"])
    in_flight: dict[str, str] = field(default_factory=dict)
    mode: str = "normal"
    current: bool = True
    draining: bool = False
    asked: list[Any] = field(default_factory=list)
    requests: list[tuple[RequestCommand, Mapping[str, Any], float, Any]] = field(default_factory=list)
    answer: Callable[[Any], Outcome | asyncio.Future[Outcome] | Exception] = lambda command: Done(
        command.operation, "transferred"
    )
    ends: dict[str, asyncio.Future[Outcome]] = field(default_factory=dict)

    @property
    def identity(self) -> Any:
        return SimpleNamespace(broker=self.broker)

    def picture(self) -> ClusterView:
        return ClusterView(
            self.broker,
            self.term >= 0,
            self.term,
            self.mode,
            self.current,
            self.draining,
            None,
            [len(self.asked)],
            [BrokerSeen(name, "i1", True, True, 0.1, {}) for name in self.brokers_],
            [
                BundleSeen(name, self._state(name, owner), 3, owner, self.in_flight.get(name), 3, 0, number)
                for number, (name, owner) in enumerate(sorted(self.bundles.items()))
            ],
        )

    def _state(self, name: str, owner: str | None) -> State:
        if name in self.in_flight:
            return State.RELEASING
        return State.UNASSIGNED if owner is None else State.ASSIGNED

    def owners(self, namespace: str) -> dict[str, str]:
        return {
            name: owner
            for name, owner in self.bundles.items()
            if owner is not None and name.startswith(f"{namespace}/")
        }

    async def ask(self, command: Command) -> Outcome:
        self.asked.append(command)
        answer = self.answer(command)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, asyncio.Future):
            operation: str = command.operation  # type: ignore[union-attr]
            self.ends[operation] = answer
            return Started(operation, getattr(command, "name", ""), 0, 1)
        if isinstance(answer, Done) and isinstance(command, commands.Transfer):
            self.bundles[command.name] = command.destination
        if isinstance(answer, Done) and isinstance(command, commands.Unload):
            self.bundles[command.name] = None
        return answer

    def request(self, asked: RequestCommand, args: Mapping[str, Any], timeout_s: float, on_reply: Any = None) -> str:
        self.requests.append((asked, args, timeout_s, on_reply))
        return str(ULID())

    def ticket(self, operation: str) -> Ticket:
        if operation not in self.ends:
            self.ends[operation] = asyncio.get_running_loop().create_future()
            self.ends[operation].set_result(commands.NotFound("unknown-operation", "no such operation"))
        return Ticket(self.ends[operation])


class Scripted:
    """A shedding strategy that plans what the test says, and counts its decisions in its memory."""

    name: ClassVar[str] = "scripted"
    Settings: ClassVar[type[StrategySettings]] = StrategySettings

    def __init__(
        self, plan: Callable[[Cluster, Mapping[str, Any]], Sequence[BundleMove]], splits: Sequence[SplitWanted] = ()
    ) -> None:
        self._plan = plan
        self._splits = splits

    def plan(self, cluster: Cluster, memory: Mapping[str, Any]) -> Plan:
        moves = self._plan(cluster, memory)
        splits = self._splits
        label, reason = (Label.SUCCESS, Reason.OVERLOADED) if moves else (Label.SKIP, Reason.HIT_COUNT)
        memory_after = {"decisions": memory.get("decisions", 0) + 1}
        return Plan(self.name, label, reason, "as the test says", list(moves), splits=list(splits), memory=memory_after)


class First:
    """A placement that takes the first candidate, or raises."""

    name: ClassVar[str] = "first"
    Settings: ClassVar[type[StrategySettings]] = StrategySettings

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.nobody = False
        self.asked = 0

    def place(self, cluster: Any, bundle: Any, candidates: Any, booked: Any, memory: Any) -> Placed:
        self.asked += 1
        if self.error is not None:
            raise self.error
        if self.nobody:
            return Placed(bundle.name, None, "no broker has reported")
        return Placed(bundle.name, candidates[0], "the first", memory={"asked": memory.get("asked", 0) + 1})


class Halves:
    """A split algorithm that cuts in the middle, or what the test says."""

    name: ClassVar[str] = "halves"
    Settings: ClassVar[type[StrategySettings]] = StrategySettings

    def positions(self, bundle: Any) -> Sequence[int]:
        lower, upper = (int(edge, 16) for edge in bundle.name.rpartition("/")[2].split("_"))
        return [(lower + upper) // 2]


def load(usage: float = 0.5, rate: float = 100.0) -> BrokerLoad:
    return BrokerLoad(
        cpu=ResourceUsage(usage * 100, 100.0),
        msg_rate_in=rate,
        weighted_max_ema=usage,
        updated_at_ms=1,
        reported_at_ms=1,
    )


def stats(rate: float = 100.0) -> BundleStats:
    return BundleStats(rate, rate, rate * 1024, rate * 1024, topics=4)


def move(bundle: str, source: str, destination: str | None) -> BundleMove:
    return BundleMove(bundle, source, destination, Reason.OVERLOADED, 1.0, "it is too much there")


@dataclass
class World:
    """A balancer with all that it stands on."""

    settings: BalancerSettings = field(
        default_factory=lambda: BalancerSettings(
            interval_s=60, settle_s=20, trigger_gap_s=5, budget=BudgetSettings(load_percent=100)
        )
    )
    channel: Channel = field(default_factory=Channel)
    clock: Clock = field(default_factory=Clock)
    effective: EffectivePolicies | None = field(default_factory=EffectivePolicies)
    plan: Callable[[Cluster, Mapping[str, Any]], Sequence[BundleMove]] = lambda cluster, memory: []
    splits: Sequence[SplitWanted] = ()
    placing: First = field(default_factory=First)
    records: list[Any] = field(default_factory=list)
    before: DecisionRecord | None = None
    recalls: int = 0
    recall_hook: Callable[[], None] = lambda: None
    unusable: str | None = None
    loads: dict[str, ReportedLoad] = field(default_factory=dict)
    tops: dict[str, ReportedTopBundles] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metrics = BalancerMetrics("c", self.channel.broker)
        filters = FilterSettings()
        empty = StrategySettings()
        self.chosen = ActiveStrategies(
            "test",
            {"shedding": "scripted", "placement": "first", "split": "halves"},
            {
                "shedding": empty,
                "placement": empty,
                "split": empty,
                "filters": filters,
                "splitting": SplitSettings(hit_threshold=0, max_topics=3),
            },
            lambda _: Scripted(self.plan, self.splits),
            Pipeline(self.placing, filters),
            Pipeline(self.placing, filters),
            Halves(),
            SplitSettings(hit_threshold=0, max_topics=3),
        )
        channel: Any = self.channel
        self.ports = Ports(
            channel=channel,
            settings=lambda: self.settings,
            manager=lambda: "extensible",
            effective=lambda: self.effective,
            known=lambda: ClusterInputs(loads=self.loads, tops=self.tops, policies=self.policies),
            chosen=lambda: self.chosen,
            inputs=lambda _: Inputs(channel={"0": 1}, policies=0),
            write=self.records.append,
            recall=self._recall,
            metrics=self.metrics,
            clocks=self.clock.clocks(),
            unusable=lambda: self.unusable,
        )
        self.balancer = Balancer(self.ports)

    @property
    def policies(self) -> Any:
        return (self.effective or EffectivePolicies()).policies

    async def _recall(self) -> DecisionRecord | None:
        self.recalls += 1
        self.recall_hook()
        return self.before

    def change(self, **settings: Any) -> None:
        """Other settings from now on, as a policy brings them."""
        self.settings = self.settings.model_copy(update=settings)

    def report(self, *names: str) -> None:
        """These brokers report themselves, and what they serve, just now."""
        for name in names or self.channel.brokers_:
            mine = [bundle for bundle, owner in sorted(self.channel.bundles.items()) if owner == name]
            self.loads[name] = ReportedLoad(load(), 0.0, lapsed=False)
            self.tops[name] = ReportedTopBundles([TopBundle(bundle, stats()) for bundle in mine], 0.0, lapsed=False)

    async def cycle(self, later_s: float = 60.0) -> None:
        """Let time go by, and whatever is due be done."""
        self.balancer._follow_leadership(self.clock.s)
        self.clock.s += later_s
        trigger = await asyncio.wait_for(self.balancer._due(), 3)
        await self.balancer._decide(trigger)
        await settle()

    @property
    def decisions(self) -> list[DecisionRecord]:
        return [record for record in self.records if isinstance(record, DecisionRecord)]

    @property
    def outcomes(self) -> list[OutcomeRecord]:
        return [record for record in self.records if isinstance(record, OutcomeRecord)]


def local(world: World, topics: int = 4) -> dict[str, LocalBundle]:
    """What the broker of a world serves, as it measures it."""
    mine = [name for name, owner in sorted(world.channel.bundles.items()) if owner == world.channel.broker]
    return {name: LocalBundle(replace(stats(), topics=topics)) for name in mine}


async def settle() -> None:
    """Let tasks that have something to do do it."""
    for _ in range(20):
        await asyncio.sleep(0)


def four_bundles() -> World:
    """Three bundles on b1, one on b2; both have reported."""
    world = World(channel=Channel(bundles={key(0): "b1", key(1): "b1", key(2): "b1", key(3): "b2"}))
    world.report()
    return world


def plan_once(world: World, *moves: BundleMove) -> None:
    """These moves in the first decision, nothing after it."""
    world.plan = lambda cluster, memory: [] if memory.get("decisions") else list(moves)


async def is_due(world: World) -> str | None:
    """Why the balancer would decide now."""
    try:
        return await asyncio.wait_for(world.balancer._due(), 0.5)
    except TimeoutError:
        return None


def behind(world: World) -> None:
    world.channel.current = False


def safe(world: World) -> None:
    world.channel.mode = "safe"


def leaving(world: World) -> None:
    world.channel.draining = True
