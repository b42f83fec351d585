"""Automatic splits of this broker's bundles: when they are too large, and where they are cut (upstream `SplitScheduler`).

Every broker splits its own bundles: only it knows the load of each, and the topics in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, overload

from ulid import ULID

from shedders.balancer.movers import REASON_MAX, EndedOperation, carried_out, word_of
from shedders.decision.dry_run import SplitDecision
from shedders.decisions.builder import BALANCE, Executed, Occasion, split_record
from shedders.filters.rules import inherited, pin_of
from shedders.model.cluster import Broker, Bundle, Cluster, Policies, TopicLoad
from shedders.model.cuts import children
from shedders.split.triggers import SplitWhen
from statechannel.broker.exits import ChannelStoppedError
from statechannel.engine import commands
from statechannel.engine.commands import Outcome
from statechannel.logger import SafeLogger
from statechannel.operations.table import Addressee, RequestCommand
from statechannel.protocol.bounded import remember
from statechannel.protocol.bundle import topic_hash

if TYPE_CHECKING:
    from loaddata.model.bundle_load import LocalBundle
    from loaddata.source import LoadSource
    from shedders.balancer.ports import Ports
    from shedders.model.plan import SplitPlan, SplitWanted
    from statechannel.api.member import ChannelMember


_log = SafeLogger(__name__)

EXTENSION: Final = "balancer"
REFUSED_MAX: Final = 10_000
"""Number of refused bundles that are remembered; beyond it the oldest is forgotten, and may be requested again."""
GRACE_S: Final = 5.0  # additional wait for the reply after the request's timeout


class RequestedSplits(NamedTuple):
    """The splits of a plan, by bundle: those requested, and why the others were not."""

    executed: dict[str, Executed]
    refused: dict[str, str]


class SplitRequester:
    """Requests of the leader to split bundles. In the loop's thread."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._refused: dict[str, tuple[float, str]] = {}

    def begin(
        self, wanted: Sequence[SplitWanted], cluster: Cluster, decision: str, on_end: Callable[[EndedOperation], None]
    ) -> RequestedSplits:
        """Request the splits that may be requested.

        Args:
            cluster: The input of the decision; its bundles in flight are never split (`shedders.decision.dry_run.nonsense`).
            on_end: Called once for each requested split, later.
        """
        requested = RequestedSplits({}, {})
        for split in wanted:
            why_not = self._why_not(split.bundle, cluster)
            if why_not is not None:
                requested.refused[split.bundle] = why_not
                continue
            requested.executed[split.bundle] = self._ask(split, decision, on_end)
        return requested

    async def close(self) -> None:
        """Stop waiting for answers; the owners go on."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _why_not(self, bundle: str, cluster: Cluster) -> str | None:
        """Why a bundle's owner is not asked to split: a stable word and a sentence."""
        settings = self._ports.settings()
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

    def _ask(self, wanted: SplitWanted, decision: str, on_end: Callable[[EndedOperation], None]) -> Executed:
        ports, timeout_s = self._ports, self._ports.settings().move_timeout_s
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
            self._wait(wanted, operation, reply, timeout_s + GRACE_S, on_end), name="split-asked"
        )
        return Executed(operation)

    async def _wait(
        self,
        wanted: SplitWanted,
        operation: str,
        reply: asyncio.Future[Outcome],
        timeout_s: float,
        on_end: Callable[[EndedOperation], None],
    ) -> None:
        clocks = self._ports.clocks
        begun_s = clocks.mono_s()
        try:
            async with asyncio.timeout(timeout_s):
                result, why = word_of(await reply)
        except TimeoutError:
            result, why = "timed-out", f"no broker answered within {timeout_s:g} s; the request may still be executed"
        except asyncio.CancelledError:
            result, why = "unknown", "this broker stopped while it was under way; the owner continues it"
            self._end(EndedOperation(wanted.bundle, BALANCE, operation, result, why, clocks.mono_s() - begun_s), on_end)
            raise
        self._end(
            EndedOperation(wanted.bundle, BALANCE, operation, result, str(why), clocks.mono_s() - begun_s), on_end
        )

    def _end(self, ended: EndedOperation, on_end: Callable[[EndedOperation], None]) -> None:
        bundle = ended.bundle
        self._tasks.pop(bundle, None)
        if not ended.done:
            remember(self._refused, bundle, (self._ports.clocks.mono_s(), f"{ended.result}: {ended.why}"), REFUSED_MAX)
        try:
            on_end(ended)
        except Exception:
            me = self._ports.channel.identity.broker
            _log.exception("split-untold", broker=me, bundle=bundle, operation=ended.operation)


def _answered(reply: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not reply.done():
        reply.set_result(outcome)


LOOK_S = 1.0  # interval at which changed settings are noticed
_NOT_LOOKED_AT = {"broker_load": None, "top_bundles": None}
"""A broker splits by its own measurements, not by the reports of others."""


class TopicsOnDemand(Sequence[TopicLoad]):
    """The topics of a bundle, loaded at first use: most bundles are never examined."""

    def __init__(self, source: LoadSource, bundle: str) -> None:
        self._source = source
        self._bundle = bundle
        self._loaded: list[TopicLoad] | None = None

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
        if self._loaded is None:
            topics = [
                TopicLoad(
                    rates.name,
                    topic_hash(rates.name),
                    rates.msg_rate_in,
                    rates.msg_rate_out,
                    rates.msg_throughput_in,
                    rates.msg_throughput_out,
                )
                for rates in self._source.topics(self._bundle)
            ]
            self._loaded = sorted(topics, key=lambda topic: (topic.position, topic.name))
        return self._loaded


def own_cluster(
    broker: str,
    local: Mapping[str, LocalBundle],
    source: LoadSource,
    owners: Callable[[str], Mapping[str, str]],
    *,
    now_ms: int,
    safe: str | None,
) -> Cluster:
    """The cluster of this broker's own bundles, with the other bundles of their namespaces for counting."""
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


@dataclass(slots=True)
class _Memory:
    looks: int = 0
    kept: Mapping[str, Any] | None = None
    fingerprint: str = ""


class Splitting:
    """The loop of automatic splits. All methods belong to the event loop's thread.

    Args:
        local: This broker's bundles with their load, by name.
    """

    def __init__(
        self,
        ports: Ports,
        *,
        source: LoadSource,
        local: Callable[[], Mapping[str, LocalBundle]],
        safe: Callable[[], str | None],
    ) -> None:
        self._ports = ports
        self._source = source
        self._local = local
        self._safe = safe
        self._memory = _Memory()

    async def run(self) -> None:
        looked_s = self._ports.clocks.mono_s()
        while True:
            left_s = looked_s + self._ports.settings().split_interval_s - self._ports.clocks.mono_s()
            if left_s > 0:
                await asyncio.sleep(min(left_s, LOOK_S))  # the interval may be changed meanwhile
                continue
            looked_s = self._ports.clocks.mono_s()
            if self._ports.settings().splitting:
                await self.look()

    async def look(self) -> SplitDecision:
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
        # Not in a thread: the embedder's topics are documented to be read in the loop's thread.
        planned = when.plan(cluster, memory.kept or {}, ports.channel.identity.broker)
        memory.kept = planned.memory
        memory.looks += 1
        decision = SplitDecision(cluster, planned.plans, planned.why, planned.memory)
        wanted = [plan for plan in planned.plans if plan.positions]
        if wanted or planned.plans:
            await self._carry_out(decision, wanted, begun_s)
        return decision

    async def _carry_out(self, decision: SplitDecision, wanted: Sequence[SplitPlan], begun_s: float) -> None:
        ports = self._ports
        operations = {plan.bundle: str(ULID()) for plan in wanted}
        record = split_record(
            self._occasion(begun_s),
            decision,
            executed={bundle: Executed(operation) for bundle, operation in operations.items()},
            bounds=ports.bounds,
        )
        ports.write(record)
        ports.metrics.decided(record)
        for plan in wanted:
            await self._split(plan, operations[plan.bundle], record.id)

    def _forbidden(self, bundle: str) -> str | None:
        """Why a bundle may not be split any more: the splits before it may have taken minutes."""
        channel = self._ports.channel
        why = self._safe()
        if why is not None:
            return f"the cluster is to be left alone: {why}"
        if not self._ports.settings().splitting:
            return "extensions.balancer.splitting is false by now"
        owner = channel.owners(bundle.rpartition("/")[0]).get(bundle)
        return None if owner == channel.identity.broker else f"{owner or 'no broker'} serves it by now"

    def _stays(self, child: str) -> str | None:
        """Why a child may not be unloaded: the same rules apply as for other moves."""
        ports = self._ports
        hindrance, why = ports.forbidden(), self._safe()
        if why is not None or hindrance is not None:
            return why or ": ".join(hindrance or ())
        effective, bundle = ports.effective(), Bundle(child)
        policies = Policies() if effective is None else inherited(effective.policies, [child])
        pin = pin_of(policies, bundle)
        if pin is not None:
            return f"it is pinned to {pin}"
        return f"{bundle.namespace} is excluded" if bundle.namespace in policies.excluded else None

    async def _split(self, plan: SplitPlan, operation: str, decision_id: str) -> None:
        ports = self._ports
        timeout_s = self._ports.settings().move_timeout_s
        begun_s = ports.clocks.mono_s()
        why = f"split by the balancer, decision {decision_id}: {plan.why}"[:REASON_MAX]
        command = commands.Split(plan.bundle, operation, timeout_s, tuple(plan.positions), 2, why)
        hindrance = self._forbidden(plan.bundle)
        if hindrance is not None:
            result, detail = "abandoned", f"it was not started: {hindrance}"
        else:
            result, detail = await carried_out(ports.channel, command, operation, timeout_s)
        took_s = ports.clocks.mono_s() - begun_s
        ended = EndedOperation(plan.bundle, plan.reason, operation, result, detail, took_s)
        ports.metrics.split(ended.result, ended.reason, ended.took_s)
        ports.record_end(decision_id, ended, max(0, ports.channel.term))
        if ended.done and ports.chosen().splitting.unload_children:
            await unload_children(ports.channel, plan.bundle, plan.positions, timeout_s, self._stays)

    def _occasion(self, begun_s: float) -> Occasion:
        ports, memory = self._ports, self._memory
        chosen = ports.chosen()
        settings = chosen.settings_json("split", "splitting")
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
            manager=ports.manager(),
            took_ms=(ports.clocks.mono_s() - begun_s) * 1_000,
        )


async def unload_children(
    channel: ChannelMember,
    parent: str,
    positions: Sequence[int],
    timeout_s: float,
    stays: Callable[[str], str | None] = lambda _: None,
) -> None:
    """Unload the children of a split, so that they are placed again (upstream `loadBalancerAutoUnloadSplitBundlesEnabled`).

    A failure for one does not affect the others: they are served where they are.

    Args:
        stays: Why a child may not be unloaded, called before each; by default every one is unloaded.
    """
    mine, owners = channel.identity.broker, channel.owners(parent.rpartition("/")[0])
    for name in [child for child in children(Bundle(parent), positions) if owners.get(child) == mine]:
        why = stays(name)
        if why is not None:
            _log.info("child-stays", broker=mine, bundle=name, why=why)
            continue
        operation = str(ULID())
        unload = commands.Unload(name, operation, timeout_s, f"child of a split of {parent}"[:REASON_MAX])
        result, detail = await carried_out(channel, unload, operation, timeout_s)
        if result != "done":
            _log.warning("child-not-unloaded", broker=mine, bundle=name, operation=operation, result=result, why=detail)
