"""Splits of the bundles that this broker serves: when they are too big, and where they are cut (upstream `SplitScheduler`).

Every broker looks after its own: it alone knows the load of each of its bundles, and the topics in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, overload

import structlog
from ulid import ULID

from shedders.balancer.movers import REASON_MAX, carried_out, word_of
from shedders.balancer.ports import forbidden
from shedders.decision.dry_run import SplitDecision
from shedders.decisions.builder import Executed, Occasion, RecordBounds, outcome_record, split_record
from shedders.filters.pins import inherited, pin_of
from shedders.model.cluster import Broker, Bundle, Cluster, Policies, TopicLoad
from shedders.model.cuts import children
from shedders.split.triggers import SplitWhen
from statechannel.broker.exits import ChannelStoppedError
from statechannel.broker.request_record import Addressee, RequestCommand
from statechannel.engine import commands
from statechannel.engine.commands import Outcome
from statechannel.protocol.bounded import remember
from statechannel.protocol.bundle import topic_hash

if TYPE_CHECKING:
    from loaddata.model.top_bundles import LocalBundle
    from loaddata.source import LoadSource
    from shedders.balancer.ports import Ports
    from shedders.balancer.settings import BalancerSettings
    from shedders.model.plan import SplitPlan, SplitWanted
    from statechannel.api import StateChannel


_log = structlog.get_logger(__name__)

EXTENSION: Final = "balancer"
REFUSED_MAX: Final = 10_000
"""Bundles that are remembered as refused; beyond it the oldest is forgotten, and may be asked for again."""
GRACE_S: Final = 5.0
"""The reply may be so much later than the time in which the request is to be done."""


class SplitEnded(NamedTuple):
    """How a split came out that the leader has asked for.

    Attributes:
        result: A stable word, as of moves.
    """

    wanted: SplitWanted
    operation: str
    result: str
    why: str
    took_s: float


class Begun(NamedTuple):
    """What became of the splits that a plan wants: by bundle, what was asked for, and why the others were not."""

    executed: dict[str, Executed]
    refused: dict[str, str]


class SplitWishes:
    """See the module. In the loop's thread."""

    def __init__(self, ports: Ports, settings: Callable[[], BalancerSettings]) -> None:
        self._ports = ports
        self._settings = settings
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._refused: dict[str, tuple[float, str]] = {}

    def begin(
        self,
        wanted: Sequence[SplitWanted],
        cluster: Cluster,
        decision: str,
        told: Callable[[SplitEnded], None],
    ) -> Begun:
        """Ask for what may be asked for.

        Args:
            cluster: What was decided on; nothing that was on its way in it may be wanted (`shedders.decision.dry_run.nonsense`).
            decision: Its id.
            told: Called once for each split that was asked for, later.
        """
        found = Begun({}, {})
        for one in wanted:
            why_not = self._why_not(one.bundle, cluster)
            if why_not is not None:
                found.refused[one.bundle] = why_not
                continue
            found.executed[one.bundle] = self._ask(one, decision, told)
        return found

    async def close(self) -> None:
        """Wait for no answer any more; the owners go on."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _why_not(self, bundle: str, cluster: Cluster) -> str | None:
        """Why a bundle's owner is not asked: a stable word and a sentence."""
        settings = self._settings()
        namespace = bundle.rpartition("/")[0]
        if not settings.splitting:
            return "splitting-off: extensions.balancer.splitting is false"
        if namespace in cluster.policies.excluded:
            return f"excluded: {namespace} is excluded"
        if bundle in self._tasks:
            return "under-way: its owner was asked already, and has not answered yet"
        at_s, why = self._refused.get(bundle, (float("-inf"), ""))
        age_s = self._ports.clocks.mono_s() - at_s
        if age_s < settings.split_again_s:
            return f"refused-lately: {age_s:.0f} s ago, {why}"
        if len(self._tasks) >= settings.splits_at_once:
            return f"budget: {len(self._tasks)} splits are under way, no more than {settings.splits_at_once} may be"
        return None

    def _ask(self, wanted: SplitWanted, decision: str, told: Callable[[SplitEnded], None]) -> Executed:
        ports, timeout_s = self._ports, self._settings().move_timeout_s
        chosen = ports.chosen()
        args: dict[str, Any] = {
            "extension": EXTENSION,
            "ask": "split",
            "to": Addressee.OWNER.value,
            "name": wanted.bundle,
            "algorithm": chosen.names["split"],
            "settings": chosen.settings["split"].model_dump(mode="json"),
            "unload_children": False,
            "decision": decision,
            "reason": f"split by the balancer, decision {decision}: {wanted.why}"[:REASON_MAX],
        }
        reply: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        try:
            operation = ports.channel.request(RequestCommand.EXTENSION, args, timeout_s, partial(_answered, reply))
        except ChannelStoppedError as error:
            return Executed(None, "abandoned", str(error))
        self._tasks[wanted.bundle] = asyncio.get_running_loop().create_task(
            self._wait(wanted, operation, reply, timeout_s + GRACE_S, told), name="split-asked"
        )
        return Executed(operation)

    async def _wait(
        self,
        wanted: SplitWanted,
        operation: str,
        reply: asyncio.Future[Outcome],
        timeout_s: float,
        told: Callable[[SplitEnded], None],
    ) -> None:
        clocks = self._ports.clocks
        begun_s = clocks.mono_s()
        try:
            async with asyncio.timeout(timeout_s):
                result, why = word_of(await reply)
        except TimeoutError:
            result, why = "timed-out", f"nobody has answered within {timeout_s:g} s; the request may still be done"
        except asyncio.CancelledError:
            result, why = "unknown", "this broker stopped while it was under way; the owner goes on with it"
            self._end(SplitEnded(wanted, operation, result, why, clocks.mono_s() - begun_s), told)
            raise
        self._end(SplitEnded(wanted, operation, result, str(why), clocks.mono_s() - begun_s), told)

    def _end(self, ended: SplitEnded, told: Callable[[SplitEnded], None]) -> None:
        bundle = ended.wanted.bundle
        self._tasks.pop(bundle, None)
        if ended.result != "done":
            remember(self._refused, bundle, (self._ports.clocks.mono_s(), f"{ended.result}: {ended.why}"), REFUSED_MAX)
        try:
            told(ended)
        except Exception:
            _log.exception("split-untold", bundle=bundle, operation=ended.operation)


def _answered(reply: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not reply.done():
        reply.set_result(outcome)


LOOK_S = 1.0
"""So soon a change of the settings is seen."""


_NOT_LOOKED_AT = {"broker_load": None, "top_bundles": None}
"""A broker splits by what it measures itself, not by what it reads of others."""


class TopicsOnDemand(Sequence[TopicLoad]):
    """The topics of a bundle, asked for when somebody looks: most bundles are never looked at."""

    def __init__(self, source: LoadSource, bundle: str) -> None:
        self._source = source
        self._bundle = bundle
        self._found: list[TopicLoad] | None = None

    @overload
    def __getitem__(self, index: int) -> TopicLoad: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[TopicLoad]: ...

    def __getitem__(self, index: int | slice) -> TopicLoad | Sequence[TopicLoad]:
        return self._topics()[index]

    def __len__(self) -> int:
        return len(self._topics())

    def __iter__(self) -> Iterator[TopicLoad]:
        return iter(self._topics())

    def _topics(self) -> list[TopicLoad]:
        if self._found is None:
            topics = [
                TopicLoad(
                    one.name,
                    topic_hash(one.name),
                    one.msg_rate_in,
                    one.msg_rate_out,
                    one.msg_throughput_in,
                    one.msg_throughput_out,
                )
                for one in self._source.topics(self._bundle)
            ]
            self._found = sorted(topics, key=lambda topic: (topic.position, topic.name))
        return self._found


def own_cluster(
    broker: str,
    local: Mapping[str, LocalBundle],
    source: LoadSource,
    owners: Callable[[str], Mapping[str, str]],
    *,
    now_ms: int,
    safe: str | None,
) -> Cluster:
    """What this broker knows of its own bundles, and of the others in their namespaces as far as they count."""
    serving = dict(sorted(local.items()))
    bundles: dict[str, Bundle] = {}
    for namespace in sorted({name.rpartition("/")[0] for name in serving}):
        for name, owner in sorted(owners(namespace).items()):
            mine = serving.get(name) if owner == broker else None
            bundles[name] = (
                Bundle(name, owner)
                if mine is None
                else Bundle(
                    name,
                    owner,
                    stats=mine.stats,
                    averages=mine.timed.averages,
                    topics=TopicsOnDemand(source, name),
                    non_persistent=mine.non_persistent,
                )
            )
    return Cluster({broker: Broker(broker)}, bundles, now_ms=now_ms, safe=safe)


def _by_hand(_: str) -> None:
    return None


@dataclass(slots=True)
class _Memory:
    looks: int = 0
    kept: Mapping[str, Any] | None = None
    fingerprint: str = ""


class Splitting:
    """See the module. All methods belong to the loop's thread.

    Args:
        local: This broker's bundles with their load, by name.
    """

    def __init__(
        self,
        ports: Ports,
        settings: Callable[[], BalancerSettings],
        *,
        source: LoadSource,
        local: Callable[[], Mapping[str, LocalBundle]],
        safe: Callable[[], str | None],
        manager: Callable[[], str],
    ) -> None:
        self._ports = ports
        self._settings = settings
        self._source = source
        self._local = local
        self._safe = safe
        self._manager = manager
        self._memory = _Memory()

    @property
    def bounds(self) -> RecordBounds:
        """How large its records may be."""
        return self._settings().record_bounds()

    async def run(self) -> None:
        """Look for ever; ends by being cancelled."""
        looked_s = self._ports.clocks.mono_s()
        while True:
            left_s = looked_s + self._settings().split_interval_s - self._ports.clocks.mono_s()
            if left_s > 0:
                await asyncio.sleep(min(left_s, LOOK_S))  # the interval may be changed meanwhile
                continue
            looked_s = self._ports.clocks.mono_s()
            if self._settings().splitting:
                await self.look()

    async def look(self) -> SplitDecision:
        """Look once, and split what should be."""
        ports, memory = self._ports, self._memory
        begun_s = ports.clocks.mono_s()
        chosen = ports.chosen()
        cluster = own_cluster(
            ports.channel.identity.broker,
            self._local(),
            self._source,
            ports.channel.owners,
            now_ms=ports.clocks.log_ms(),
            safe=self._safe(),
        )
        when = SplitWhen(chosen.splitting, chosen.algorithm)
        # Not in a thread: the embedder is asked for the topics of a bundle, and told that this is done in the loop's.
        found = when.plan(cluster, memory.kept or {}, ports.channel.identity.broker)
        memory.kept = found.memory
        memory.looks += 1
        decision = SplitDecision(cluster, found.plans, found.why, found.memory)
        wanted = [plan for plan in found.plans if plan.positions]
        if wanted or found.plans:
            await self._carry_out(decision, wanted, begun_s)
        return decision

    async def _carry_out(self, decision: SplitDecision, wanted: Sequence[SplitPlan], begun_s: float) -> None:
        ports = self._ports
        operations = {plan.bundle: str(ULID()) for plan in wanted}
        record = split_record(
            self._occasion(begun_s),
            decision,
            executed={bundle: Executed(operation) for bundle, operation in operations.items()},
            bounds=self.bounds,
        )
        ports.write(record)
        ports.metrics.decided(record)
        for plan in wanted:
            await self._split(plan, operations[plan.bundle], record.id)

    def _forbidden(self, bundle: str) -> str | None:
        """Why a bundle is not to be split any more: the splits before it may have taken minutes."""
        channel = self._ports.channel
        why = self._safe()
        if why is not None:
            return f"the cluster is to be left alone: {why}"
        if not self._settings().splitting:
            return "extensions.balancer.splitting is false by now"
        owner = channel.owners(bundle.rpartition("/")[0]).get(bundle)
        return None if owner == channel.identity.broker else f"{owner or 'nobody'} serves it by now"

    def _stays(self, child: str) -> str | None:
        """Why a child is not to be unloaded: it is a move like any other, so what forbids those forbids it."""
        ports = self._ports
        hindrance, why = forbidden(ports, self._settings()), self._safe()
        if why is not None or hindrance is not None:
            return why or ": ".join(hindrance or ())
        standing, bundle = ports.standing(), Bundle(child)
        policies = Policies() if standing is None else inherited(standing.policies, [child])
        pin = pin_of(policies, bundle)
        if pin is not None:
            return f"it is pinned to {pin}"
        return f"{bundle.namespace} is excluded" if bundle.namespace in policies.excluded else None

    async def _split(self, plan: SplitPlan, operation: str, decision_id: str) -> None:
        ports = self._ports
        timeout_s = self._settings().move_timeout_s
        begun_s = ports.clocks.mono_s()
        why = f"split by the balancer, decision {decision_id}: {plan.why}"[:REASON_MAX]
        command = commands.Split(plan.bundle, operation, timeout_s, tuple(plan.positions), 2, why)
        hindrance = self._forbidden(plan.bundle)
        if hindrance is not None:
            result, told = "abandoned", f"it was not begun: {hindrance}"
        else:
            result, told = await carried_out(ports.channel, command, operation, timeout_s)
        took_s = ports.clocks.mono_s() - begun_s
        ports.metrics.split(result, plan.reason, took_s)
        ports.write(
            outcome_record(
                decision_id,
                plan.bundle,
                result,
                told,
                operation=operation,
                at_ms=ports.clocks.log_ms(),
                term=max(0, ports.channel.term),
                leader=ports.channel.identity.broker,
                took_ms=took_s * 1_000,
                bounds=self.bounds,
            )
        )
        if result == "done" and ports.chosen().splitting.unload_children:
            await unload_children(ports.channel, plan.bundle, plan.positions, timeout_s, self._stays)

    def _occasion(self, begun_s: float) -> Occasion:
        ports, memory = self._ports, self._memory
        chosen = ports.chosen()
        settings = {name: chosen.settings[name].model_dump(mode="json") for name in ("split", "splitting")}
        new, memory.fingerprint = repr(settings) != memory.fingerprint, repr(settings)
        return Occasion(
            id=str(ULID()),
            term=max(0, ports.channel.term),
            leader=ports.channel.identity.broker,
            cycle=memory.looks,
            at_ms=ports.clocks.log_ms(),
            inputs=ports.inputs(None).model_copy(update=_NOT_LOOKED_AT),
            strategy=chosen.names["split"],
            profile=chosen.profile,
            settings=settings,
            write_settings=new,
            manager=self._manager(),
            took_ms=(ports.clocks.mono_s() - begun_s) * 1_000,
        )


async def unload_children(
    channel: StateChannel,
    parent: str,
    positions: Sequence[int],
    timeout_s: float,
    stays: Callable[[str], str | None] = _by_hand,
) -> None:
    """Let the children of a split go, so that they are placed anew (upstream `loadBalancerAutoUnloadSplitBundlesEnabled`).

    What becomes of one does not keep the others: they are served where they are.

    Args:
        stays: Why a child is not to be unloaded, asked before each; who asks for it by hand has every one unloaded.
    """
    mine, owners = channel.identity.broker, channel.owners(parent.rpartition("/")[0])
    for name in [child for child in children(Bundle(parent), positions) if owners.get(child) == mine]:
        why = stays(name)
        if why is not None:
            _log.info("child-stays", bundle=name, why=why)
            continue
        operation = str(ULID())
        unload = commands.Unload(name, operation, timeout_s, f"child of a split of {parent}"[:REASON_MAX])
        result, told = await carried_out(channel, unload, operation, timeout_s)
        if result != "done":
            _log.warning("child-not-unloaded", bundle=name, operation=operation, result=result, why=told)
