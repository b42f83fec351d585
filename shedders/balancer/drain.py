"""Drains on the leader: they empty a cordoned broker by `drain_plan`, and report the result to each client.

They run only while this broker leads. If it dies, the client repeats the request, and the next leader continues with the
remaining bundles. The only state of a drain is the cordon, the channel, and the decision records, from which the last leader
counts the moves of those before it (`decision_history`). If this broker loses leadership, it answers `not-leader`, and the client
retries. Deleting the cordon ends a drain.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ulid import ULID

from shedders.balancer.decision_history import is_drain_id
from shedders.balancer.drain_plan import TICK_S, DrainPlan, DrainReceivers, DrainStep, TokenBucket, holdings
from shedders.balancer.movers import EndedOperation, Movers
from shedders.decision.dry_run import CheckedMove, Decision
from shedders.decision.placing import Pipeline
from shedders.decision.planned_restart import PlannedRestart
from shedders.decisions.builder import Executed, Occasion, shed_record
from shedders.decisions.record import DRAIN, DrainPart
from shedders.errors import StrategyFailedError
from shedders.model.amounts import are, count, were
from shedders.model.plan import Label, Plan, Reason
from statechannel.engine.commands import Done, Outcome, Rejected, Undetermined
from statechannel.logger import SafeLogger

if TYPE_CHECKING:
    from shedders.balancer.ports import Ports
    from shedders.model.cluster import Cluster
    from statechannel.engine.cluster_view import ClusterView
    from statechannel.operations.table import ExtensionAsk

_log = SafeLogger(__name__)

LEFT_SHOWN_MAX = 100
RATE_MAX = 10_000.0
LEAST_WAIT_S = 0.05
REST = 3.0
"""Minimum wait between two steps, as a multiple of a step's duration: a view of a large channel is expensive."""


@dataclass(slots=True)
class _Running:
    """One drain.

    Attributes:
        ends_s: When the last waiting client gives up.
        began_with: Number of the broker's bundles when this leader started; -1 before the first step.
        decisions: Ids of the decisions that it has recorded.
        moved: Bundles that have arrived elsewhere, by name.
    """

    plan: DrainPlan
    term: int
    ends_s: float
    began_s: float
    answer: asyncio.Future[Outcome]
    in_vain_before: int = 0
    began_with: int = -1
    began: frozenset[str] = frozenset()
    decisions: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    steps: int = 0


MovedBefore = Callable[[str, str, Collection[str]], Awaitable[Collection[str] | None]]
"""Bundles that other decisions started to move for a drain of a broker; None if unknown. May raise."""


async def _nothing_before(*_: object) -> Collection[str]:
    return ()


class Drains:
    """The drains of one broker while it leads. In the loop's thread."""

    def __init__(self, ports: Ports, *, moved_before: MovedBefore = _nothing_before) -> None:
        self._moved_before = moved_before
        self._ports = ports
        drain = ports.settings().drain
        self._receivers = DrainReceivers(drain.ahead_max, drain.report_wait_s)
        self._running: dict[str, _Running] = {}
        self._steps = 0

    def status(self) -> dict[str, Any]:
        return {
            name: {"moved": drain.plan.moved, "began_with": drain.began_with, "under_way": len(drain.plan.under_way)}
            for name, drain in sorted(self._running.items())
        }

    async def answer(self, ask: ExtensionAsk) -> Outcome:
        """Drain a broker; answers when nothing more can be moved."""
        broker, rate, force = ask.args.get("broker"), ask.args.get("rate_per_s"), ask.args.get("force", False)
        if not isinstance(broker, str) or not isinstance(force, bool) or not _is_rate(rate):
            return Rejected(
                "bad-request",
                f"`broker` is a text, `force` true or false, `rate_per_s` above 0 and at most {RATE_MAX:g}",
            )
        drain = ask.args.get("drain") or ask.operation
        if not is_drain_id(drain):
            return Rejected("bad-request", "`drain` is an id of at most 64 letters, digits, - and _")
        try:
            restart = PlannedRestart.parse(ask.args)
        except ValueError as error:
            return Rejected("bad-request", str(error))
        channel = self._ports.channel
        if channel.term < 0:
            return _not_leader()
        rate_per_s = self._ports.settings().drain.rate_per_s if rate is None else float(rate)
        now_s = self._ports.clocks.mono_s()
        ends_s = now_s + ask.timeout_s
        running = self._running.get(broker)
        if running is not None:
            running.plan.restart = restart or running.plan.restart
            return await self._join(running, rate_per_s, ends_s, ask)
        if not self._is_known(broker):
            return Rejected("unknown-broker", f"no broker {broker} is registered, and it serves no bundle")
        plan = DrainPlan(
            broker, str(drain), self._ports.settings().drain, _bucket(rate_per_s), self._receivers, force, restart
        )
        running = _Running(plan, channel.term, ends_s, now_s, asyncio.get_running_loop().create_future())
        running.in_vain_before = self._receivers.in_vain
        self._running[broker] = running
        return await self._run(running)

    async def _join(self, running: _Running, rate_per_s: float, ends_s: float, ask: ExtensionAsk) -> Outcome:
        """Join a drain of the same broker: the newest request sets the rate and the restart, and both get the result."""
        plan = running.plan
        plan.force = plan.force or ask.args.get("force") is True
        if plan.bucket.rate_per_s != rate_per_s:
            plan.bucket = _bucket(rate_per_s)
        running.ends_s = max(running.ends_s, ends_s)
        running.wake.set()
        try:
            async with asyncio.timeout(ask.timeout_s):
                return await asyncio.shield(running.answer)
        except TimeoutError:
            return _late(plan, -1)

    async def _run(self, running: _Running) -> Outcome:
        movers = Movers(
            self._ports.channel,
            running.plan.settings.moves_at_once,
            self._ports.settings().move_timeout_s,
            self._ports.clocks.mono_s,
        )
        outcome: Outcome = _not_leader()
        try:
            outcome = await self._drive(running, movers)
        finally:
            del self._running[running.plan.broker]
            if not running.answer.done():
                running.answer.set_result(outcome)
            await movers.close()
            for bundle, destination in running.plan.under_way.items():
                # This leader will not get its result any more.
                self._receivers.ended(destination, bundle, self._ports.clocks.mono_s(), arrived=True)
        return outcome

    # --- the loop ---------------------------------------------------------------------------------------------------

    async def _drive(self, running: _Running, movers: Movers) -> Outcome:
        channel, clocks, plan = self._ports.channel, self._ports.clocks, running.plan
        pipeline: Pipeline | None = None
        while True:
            if channel.term != running.term:
                return _not_leader()
            now_s = clocks.mono_s()
            picture = channel.picture()
            holding = holdings(picture, plan.broker)
            if running.began_with < 0:
                running.began_with, running.began = len(holding), frozenset(holding)
            if now_s >= running.ends_s:
                return _late(plan, len(holding))
            wait_s: float = TICK_S
            if self._is_cordoned(plan.broker):
                running.steps += 1
                pipeline = self._pipeline(pipeline)
                cluster = self._ports.cluster(picture)
                try:
                    step = plan.step(cluster, holding, pipeline, now_s)
                except StrategyFailedError as error:
                    return Rejected("strategy-failed", str(error), "Choose another placement strategy.")
                self._carry_out(running, step, picture, cluster, movers)
                if step.ended:
                    return await self._answer(running, step, picture)
                wait_s = step.wait_s
            elif running.steps or now_s - running.began_s > self._ports.settings().drain.cordon_wait_s:
                return _not_cordoned(plan.broker, was=running.steps > 0)
            await self._pause(running, wait_s, clocks.mono_s() - now_s)

    def _pipeline(self, before: Pipeline | None) -> Pipeline:
        """The drain's own pipeline, kept until policies select other strategies."""
        wanted = self._ports.chosen().pipeline
        if before is not None and before.strategy is wanted.strategy and before.settings is wanted.settings:
            return before
        return Pipeline(wanted.strategy, wanted.settings)

    async def _pause(self, running: _Running, wait_s: float, took_s: float) -> None:
        """Wait until the next step; the end of a move shortens the wait."""
        running.wake.clear()
        try:
            async with asyncio.timeout(wait_s):
                await running.wake.wait()
        except TimeoutError:
            return
        await asyncio.sleep(max(LEAST_WAIT_S, REST * took_s))

    def _carry_out(
        self, running: _Running, step: DrainStep, picture: ClusterView, cluster: Cluster, movers: Movers
    ) -> None:
        if not step.moves and not (step.ended and step.left):
            return
        occasion = self._occasion(running, picture)
        running.decisions.add(occasion.id)
        plan = running.plan
        executed: dict[str, Executed] = {}
        for move in step.moves:
            operation = movers.begin(
                move,
                why=f"decision {occasion.id}: {move.why}",
                decision=occasion.id,
                only_unload=False,
                is_wanted=lambda: self._ports.channel.term == running.term,
                on_end=lambda ended: self._moved(running, occasion.id, ended),
            )
            executed[move.bundle] = Executed(operation)
        label = Label.SUCCESS if step.moves else Label.SKIP
        why = f"drain {plan.operation} of {plan.broker}: {count(step.remaining, 'bundle')} remained before this batch"
        plan_of_step = Plan(DRAIN, label, Reason.ADMIN, why, step.moves, step.left)
        checked = [CheckedMove(move, None) for move in step.moves]
        decision = Decision(cluster, (), plan_of_step, checked, step.placed, {}, {})
        self._ports.write(shed_record(occasion, decision, executed=executed, bounds=self._ports.bounds))

    def _moved(self, running: _Running, decision_id: str, ended: EndedOperation) -> None:
        ports = self._ports
        if ended.done:
            running.moved.add(ended.bundle)
        running.plan.ended(ended.bundle, ports.clocks.mono_s(), done=ended.done, why=f"{ended.result}: {ended.why}")
        running.wake.set()
        ports.metrics.shed(ended.result, ended.reason, ended.took_s)
        ports.record_end(decision_id, ended, running.term)

    # --- words ------------------------------------------------------------------------------------------------------

    async def _answer(self, running: _Running, step: DrainStep, picture: ClusterView) -> Outcome:
        plan = running.plan
        before = await self._before(running)
        holding = holdings(picture, plan.broker).keys()
        # Bundles that came back since are counted when they are moved again.
        earlier = frozenset(before or ()) - holding - running.moved
        if step.left and not plan.moved and before is not None and not earlier:
            first = step.left[0]
            more = f" and {len(step.left) - 1} more" if len(step.left) > 1 else ""
            return Rejected(
                "no-destination",
                f"no broker may take {first.name}{more} of {plan.broker}: {first.why}",
                "Change the policies, start another broker, or use --force.",
            )
        facts = {
            "broker": plan.broker,
            "moved": plan.moved + len(earlier),
            "began_with": len(running.began | earlier),
            "earlier_known": before is not None,
            "left": [
                {"bundle": entry.name, "reason": entry.reason, "why": entry.why} for entry in step.left[:LEFT_SHOWN_MAX]
            ],
            "left_count": len(step.left),
            "reports_in_vain": self._receivers.in_vain - running.in_vain_before,
            "leads": picture.broker == plan.broker,
            "took_s": round(self._ports.clocks.mono_s() - running.began_s, 3),
        }
        if step.left:
            first, moved = step.left[0], plan.moved + len(earlier)
            left = f"{count(len(step.left), 'bundle')} {are(len(step.left))} left"
            facts["message"] = (
                f"{count(moved, 'bundle')} {were(moved)} moved, {left}, {first.name} the first: {first.why}"
            )
        return Done(plan.operation, "drained" if not step.left else "drained-in-part", facts)

    async def _before(self, running: _Running) -> Collection[str] | None:
        """Bundles that earlier leaders have moved; None if unknown."""
        plan = running.plan
        try:
            return await self._moved_before(plan.operation, plan.broker, frozenset(running.decisions))
        except Exception as error:
            # The drain has ended; a failure to count must not change its result.
            me = self._ports.channel.identity.broker
            _log.error("decisions-unread", broker=me, drain=plan.operation, exc_info=error)
            return None

    def _is_cordoned(self, broker: str) -> bool:
        effective = self._ports.effective()
        return effective is not None and broker in effective.policies.cordons

    def _is_known(self, broker: str) -> bool:
        picture = self._ports.channel.picture()
        return any(known.broker == broker for known in picture.brokers) or bool(holdings(picture, broker))

    def _occasion(self, running: _Running, picture: ClusterView) -> Occasion:
        ports = self._ports
        self._steps += 1
        chosen = ports.chosen()
        settings = chosen.settings_json("placement", "filters")
        settings["drain"] = {
            **self._ports.settings().drain.model_dump(mode="json"),
            "rate_per_s": running.plan.bucket.rate_per_s,
            "force": running.plan.force,
        }
        return Occasion(
            id=str(ULID()),
            term=running.term,
            leader=ports.channel.identity.broker,
            cycle=self._steps,
            at_ms=ports.clocks.log_ms(),
            inputs=ports.inputs(picture),
            strategy=DRAIN,
            drain=DrainPart(id=running.plan.operation, broker=running.plan.broker),
            placement=chosen.names["placement"],
            profile=chosen.profile,
            settings=settings,
            write_settings=running.steps == 1,
            manager=ports.manager(),
            trigger="request",
        )


def _bucket(rate_per_s: float) -> TokenBucket:
    return TokenBucket(rate_per_s, rate_per_s * TICK_S)


def _is_rate(value: object) -> bool:
    if value is None:
        return True
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and 0 < value <= RATE_MAX
    )


def _not_leader() -> Rejected:
    return Rejected("not-leader", "this broker has lost the leadership", "Retry.")


def _not_cordoned(broker: str, *, was: bool) -> Rejected:
    if was:
        return Rejected(
            "uncordoned",
            f"{broker} is no longer cordoned, so its drain has ended",
            "Drain it again if that was a mistake.",
        )
    return Rejected(
        "not-cordoned", f"{broker} is not cordoned, so it would get bundles again", "Use `statechannel drain`."
    )


def _late(plan: DrainPlan, left: int) -> Undetermined:
    rest = "" if left < 0 else f" and {left} {were(left)} left"
    moved = f"by then {count(plan.moved, 'bundle')} of {plan.broker} {were(plan.moved)} moved"
    return Undetermined("timed-out", f"{moved}{rest}", "Repeat the request to continue.")
