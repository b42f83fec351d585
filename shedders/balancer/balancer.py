"""The balancer of a live broker: it decides while its broker leads, records each decision, and makes the moves.

Serving bundles does not depend on it: if it fails or is switched off, bundles stay where they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ulid import ULID

from shedders.balancer.cluster_inputs import under_way, why_left_alone
from shedders.balancer.lead import Balance
from shedders.balancer.movers import ClusterCache, EndedOperation, Movers, why_not_now
from shedders.balancer.ports import Ports
from shedders.balancer.splitting import SplitRequester
from shedders.decision.booked_moves import BookedMoves, DecisionRules
from shedders.decision.distance import distances_of
from shedders.decisions.builder import BudgetUse, Executed, Occasion, shed_record, skipped_record
from shedders.errors import StrategyFailedError
from shedders.model.plan import DOUBTS, in_turn
from statechannel.errors import StateChannelError
from statechannel.logger import SafeLogger
from statechannel.protocol.bundle import parse_key
from statechannel.protocol.states import State

if TYPE_CHECKING:
    from shedders.balancer.active_strategies import ActiveStrategies
    from shedders.decision.distance import DistanceReader
    from shedders.decision.dry_run import Decision
    from shedders.decisions.record import DecisionRecord
    from shedders.model.cluster import Cluster
    from shedders.model.plan import Turn
    from statechannel.broker.changes import Change
    from statechannel.engine.cluster_view import ClusterView

_log = SafeLogger(__name__)
LOOK_S = 0.2  # interval of the check whether this broker leads


class _Lead(NamedTuple):
    term: int
    since_s: float
    balance: Balance


def _measured(question: Callable[[], Decision], chosen: ActiveStrategies) -> tuple[Decision, DistanceReader]:
    """The decision, and what compares it with the best: both take a while for a large cluster."""
    decision = question()
    return decision, distances_of(decision, chosen.settings["shedding"], chosen.pipeline.settings)


class Balancer:
    """The loop of decisions while this broker leads. All methods belong to the event loop's thread."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        now = ports.settings()
        self._movers = Movers(ports.channel, now.moves_at_once, now.move_timeout_s, ports.clocks.mono_s)
        self._split_requester = SplitRequester(ports)
        self._lead: _Lead | None = None
        self._trigger = ""
        self._wake = asyncio.Event()
        self._cluster_cache = ClusterCache(ports.cluster, ports.effective, ports.clocks.mono_s)
        self._decided_s = float("-inf")
        self._last: Cluster | None = None
        self._fingerprint = ""
        self._doubts: Mapping[str, str] = {}
        self.newest: DecisionRecord | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            while True:
                trigger = await self._due()
                await self._decide(trigger)
        finally:
            self._ports.metrics.stopped()

    async def close(self) -> None:
        """Stop waiting for moves and splits; operations that were started on the channel continue there."""
        await self._movers.close()
        await self._split_requester.close()

    def wake(self, trigger: str) -> None:
        """Request a decision at once (at the earliest `trigger_gap_s` after the last)."""
        self._trigger = self._trigger or trigger
        self._wake.set()

    def changed(self, change: Change) -> None:
        """Take note of an accepted record: the children of a split may be moved at once."""
        lead = self._lead
        if lead is None or change.state is not State.DELETED or not change.derived or self._last is None:
            return
        parent = self._last.bundles.get(change.bundle)
        if parent is None or parent.stats is None:
            return
        lowers = [parts.lower for child in change.derived if (parts := parse_key(child.bundle.encode())) is not None]
        lead.balance.was_split(parent, sorted(lowers)[1:])
        self.wake("children")

    @property
    def leading(self) -> bool:
        return self._lead is not None

    @property
    def doubts(self) -> Mapping[str, str]:
        """Brokers whose figures the newest decision did not take as they are, each with a sentence; empty unless it leads."""
        return self._doubts if self.leading else {}

    # --- when -------------------------------------------------------------------------------------------------------

    async def _due(self) -> str:
        """Wait until a decision is due; its trigger."""
        while True:
            now_s = self._ports.clocks.mono_s()
            lead = self._follow_leadership(now_s)
            if lead is not None and now_s >= lead.since_s + self._ports.settings().settle_s:
                if lead.balance.number == 0:
                    return "new-leader"
                if now_s >= self._decided_s + self._ports.settings().interval_s:
                    return "cycle"
                if self._trigger and now_s >= self._decided_s + self._ports.settings().trigger_gap_s:
                    return self._trigger
            self._wake.clear()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
                if not self._trigger:
                    continue
                await asyncio.sleep(LOOK_S)  # a trigger that is not due yet must not spin
            except TimeoutError:
                continue

    def _follow_leadership(self, now_s: float) -> _Lead | None:
        term = self._ports.channel.term
        if term < 0:
            if self._lead is not None:
                self._lead = None
                self._ports.metrics.stopped()
        elif self._lead is None or self._lead.term != term:
            booked = BookedMoves(
                expire_s=self._ports.settings().move_timeout_s, keep_s=self._ports.settings().move_memory_s
            )
            self._lead = _Lead(
                term, now_s, Balance(booked, estimates_max=self._ports.settings().children_estimated_max)
            )
            self._fingerprint = ""
        return self._lead

    # --- what -------------------------------------------------------------------------------------------------------

    async def _decide(self, trigger: str) -> None:
        lead = self._lead
        if lead is None:
            return
        if lead.balance.number == 0:
            await self._recall(lead)
            if not self._leads(lead):
                return
        ports, settings, balance = self._ports, self._ports.settings(), lead.balance
        self._trigger = ""
        self._decided_s = begun_s = ports.clocks.mono_s()
        balance.number += 1
        balance.booked.bounds(expire_s=settings.move_timeout_s, keep_s=settings.move_memory_s)
        picture = ports.channel.picture()
        seen = ports.cluster(picture)
        if balance.number == 1:
            balance.booked.adopt(under_way(picture.bundles, seen), begun_s)
        cluster, _ = balance.look(seen, begun_s)
        self._last = cluster
        chosen = ports.chosen()
        occasion = self._occasion(lead, trigger, picture, chosen, begun_s)
        hindrance = self._unfit(picture, cluster) or self._ports.forbidden()
        if hindrance is not None:
            self._skip(occasion(), hindrance, cluster)
            return
        try:
            decision, distances = await asyncio.to_thread(_measured, balance.question(cluster, chosen), chosen)
        except StrategyFailedError as error:
            _log.error("strategy-failed", broker=self._ports.channel.identity.broker, error=str(error))
            self._skip(occasion(), ("strategy-failed", f"{error}{self._drop_memory(lead)}"), cluster)
            return
        except Exception as error:
            self._skip(occasion(), ("internal-error", f"a bug in the balancer: {error!r}"), cluster)
            raise
        if not self._leads(lead):
            return  # the new leader decides; nothing was started
        hindrance = self._ports.forbidden()
        if hindrance is not None:
            self._skip(occasion(), hindrance, cluster)
            return
        self._carry_out(lead, occasion(), cluster, chosen, decision, distances)

    def _drop_memory(self, lead: _Lead) -> str:
        """Drop the memory of a strategy that failed: it may be the cause, and would be for every later leader."""
        remembered = any(lead.balance.memory.values())
        lead.balance.memory = {}
        return "; its memory is dropped, the next decision starts without" if remembered else ""

    def _leads(self, lead: _Lead) -> bool:
        return self._ports.channel.term == lead.term

    async def _recall(self, lead: _Lead) -> None:
        """Restore the former leader's memory: hit counts and smoothed usage continue."""
        try:
            before = await self._ports.recall()
        except StateChannelError as error:
            _log.warning("decisions-unread", broker=self._ports.channel.identity.broker, error=str(error))
            return
        except Exception as error:
            # No error here may keep this leader from deciding.
            _log.error("decisions-unread", broker=self._ports.channel.identity.broker, exc_info=error)
            return
        if before is not None and before.memory is not None:
            lead.balance.memory = {before.strategy: before.memory}

    def _unfit(self, picture: ClusterView, cluster: Cluster) -> tuple[str, str] | None:
        """Why no decision may be made from this view: a stable word and a sentence."""
        if not picture.current:
            return "joining", "this broker has not caught up with the channel"
        return None if cluster.safe is None else ("safe-mode", cluster.safe)

    def _skip(self, occasion: Occasion, hindrance: tuple[str, str], cluster: Cluster) -> None:
        self._publish(skipped_record(occasion, *hindrance, brokers=cluster.brokers, bounds=self._ports.bounds))

    def _carry_out(
        self,
        lead: _Lead,
        occasion: Occasion,
        cluster: Cluster,
        chosen: ActiveStrategies,
        decision: Decision,
        distances: DistanceReader,
    ) -> None:
        settings, balance, movers = self._ports.settings(), lead.balance, self._movers
        before = len(balance.booked)
        effective = self._ports.effective()
        only_unload = effective is not None and effective.unload_mode == "unload"
        rules = DecisionRules(settings.budget, only_unload)
        admitted, moves = balance.commit(cluster, chosen, decision, rules, self._ports.clocks.mono_s())
        chosen.share()
        movers.at_once, movers.timeout_s = settings.moves_at_once, settings.move_timeout_s
        executed: dict[str, Executed] = {}
        for turn in in_turn(moves):
            operation = movers.begin(
                turn.move,
                why=f"balancer, decision {occasion.id}: {turn.move.why}",
                decision=occasion.id,
                only_unload=only_unload,
                is_wanted=lambda: self._leads(lead),
                on_end=lambda ended: self._moved(lead, occasion.id, ended),
                why_not=partial(self._why_not_now, lead, turn),
                after=None if turn.after is None else executed[turn.after.bundle].operation,
            )
            executed[turn.move.bundle] = Executed(operation)
        begun = self._split_requester.begin(
            decision.plan.splits, cluster, occasion.id, lambda ended: self._split(lead, occasion.id, ended)
        )
        use = BudgetUse(settings.budget, admitted.budget, admitted.left, before)
        record = shed_record(
            occasion,
            decision,
            executed=executed | begun.executed,
            unasked=begun.refused,
            budget=use,
            distances=distances,
            bounds=self._ports.bounds,
        )
        self._publish(record, decision.plan.scores)
        self._doubts = {left.name: left.why for left in decision.plan.left if left.reason in DOUBTS}

    def _why_not_now(self, lead: _Lead, turn: Turn) -> str | None:
        """Why a decided move may not be made any more: it may have waited for a long time."""
        picture = self._ports.channel.picture()
        alone = why_left_alone(picture)
        hindrance = ("safe-mode", alone) if alone is not None else self._ports.forbidden()
        if hindrance is not None:
            return ": ".join(hindrance)
        cluster, booked = self._cluster_cache.of(picture), lead.balance.booked
        filters = self._ports.chosen().pipeline.settings
        for move in (turn.move, *turn.along):
            # Without a booking the next decision does not count it any more.
            why = (
                why_not_now(move, cluster, filters, booked.moves) if move.bundle in booked else "it is no longer booked"
            )
            if why is not None:
                return why if move is turn.move else f"{move.bundle}, to be returned for it, may not move: {why}"
        return None

    def _moved(self, lead: _Lead, decision_id: str, ended: EndedOperation) -> None:
        if not ended.done:
            lead.balance.booked.cancel(ended.bundle, ended.why)
        self._ports.metrics.shed(ended.result, ended.reason, ended.took_s)
        self._ports.record_end(decision_id, ended, lead.term)

    def _split(self, lead: _Lead, decision_id: str, ended: EndedOperation) -> None:
        self._ports.metrics.split(ended.result, ended.reason, ended.took_s)
        self._ports.record_end(decision_id, ended, lead.term)

    # --- records ---------------------------------------------------------------------------------------------------

    def _occasion(
        self, lead: _Lead, trigger: str, picture: ClusterView, chosen: ActiveStrategies, begun_s: float
    ) -> Callable[[], Occasion]:
        inputs = self._ports.inputs(picture)

        def occasion() -> Occasion:
            settings = chosen.settings_json()
            settings["budget"] = self._ports.settings().budget.model_dump(mode="json")
            settings["strategies"] = dict(chosen.names)
            return Occasion(
                id=str(ULID()),
                term=lead.term,
                leader=self._ports.channel.identity.broker,
                cycle=lead.balance.number,
                at_ms=self._ports.clocks.log_ms(),
                inputs=inputs,
                strategy=chosen.names["shedding"],
                placement=chosen.names["placement"],
                profile=chosen.profile,
                settings=settings,
                write_settings=self._is_new(settings),
                manager=self._ports.manager(),
                trigger=trigger,
                took_ms=(self._ports.clocks.mono_s() - begun_s) * 1_000,
                contradictions=self._ports.contradictions(),
            )

        return occasion

    def _is_new(self, settings: Mapping[str, object]) -> bool:
        fingerprint = repr(settings)
        new, self._fingerprint = fingerprint != self._fingerprint, fingerprint
        return new

    def _publish(self, record: DecisionRecord, scores: Mapping[str, float] | None = None) -> None:
        self.newest = record
        self._ports.write(record)
        self._ports.metrics.decided(record, scores)
