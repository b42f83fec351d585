"""Handlers of requests to the balancing extension through the requests topic (design/requests-topic.md).

`split`: by the algorithm, on the broker that serves the bundle, as only it knows the topics. On the leader: `decide`, one
decision now; `drain` (`shedders.balancer.drain`); `may-take` and `fresh` (`MoveChecks`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from shedders.filters.chain import Filters
from shedders.filters.rules import summary
from shedders.model.cluster import Bundle
from statechannel.engine.commands import Done, NotFound, Outcome, Rejected
from statechannel.suggestions import shown

if TYPE_CHECKING:
    from shedders.balancer.balancer import Balancer
    from shedders.balancer.drain import Drains
    from shedders.balancer.ports import Ports
    from shedders.balancer.split_requests import SplitRequestHandler
    from shedders.model.cluster import Cluster
    from statechannel.broker.handlers import ExtensionAsk


class RequestHandlers:
    """Dispatcher of requests. In the loop's thread.

    Args:
        splits: Handler of split requests.
    """

    def __init__(
        self,
        balancer: Balancer,
        splits: SplitRequestHandler,
        drains: Drains,
        checks: MoveChecks,
    ) -> None:
        self._balancer = balancer
        self._splits = splits
        self._drains = drains
        self._checks = checks

    async def answer(self, ask: ExtensionAsk) -> Outcome:
        match ask.ask:
            case "split":
                return await self._splits.answer(ask)
            case "decide":
                return self._decide(ask)
            case "drain":
                return await self._drains.answer(ask)
            case "may-take":
                return self._checks.may_take(ask)
            case "fresh":
                return await self._checks.fresh(ask)
        known = "split, decide, drain, may-take and fresh"
        return Rejected("unknown-ask", f"the balancer does not know the request {ask.ask}", f"Known requests: {known}.")

    def _decide(self, ask: ExtensionAsk) -> Outcome:
        if not self._balancer.leading:
            return Rejected("not-leader", "this broker is not the leader", "Retry.")
        self._balancer.wake("request")
        return Done(ask.operation, "decision requested")


FILTERED: Final = "filtered"
LOOK_S = 0.2
LATE_SHOWN_MAX = 100


class MoveChecks:
    """Checks before commands that move bundles. In the loop's thread."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    def may_take(self, ask: ExtensionAsk) -> Outcome:
        """Whether the filters allow a bundle on `destination`; without one, whether they allow it on any broker."""
        name, destination = ask.args.get("name"), ask.args.get("destination")
        if not isinstance(name, str) or not (destination is None or isinstance(destination, str)):
            return Rejected("bad-request", "`name` is a text, `destination` a text or left out")
        channel = self._ports.channel
        if channel.term < 0:
            return Rejected("not-leader", "this broker has lost the leadership", "Retry.")
        if self._ports.standing() is None:
            return Rejected("policies-unread", "the leader has not read the policies yet", "Try again in a moment.")
        bundle = channel.locate(name)
        if isinstance(bundle, NotFound):
            return bundle
        cluster = self._cluster()
        if destination is not None and destination not in cluster.brokers:
            # The filters do not know it, and so do not refuse it.
            return Rejected(
                "unknown-broker", f"{bundle} may not go to {shown(destination)}: no broker of that name is registered"
            )
        fault = self._fault(cluster, bundle, destination)
        if fault is not None:
            what = "may not be unloaded" if destination is None else f"may not go to {destination}"
            return Rejected(FILTERED, f"{bundle} {what}: {fault}", "Use --force to do it nevertheless.")
        return Done(ask.operation, "may-take", {"bundle": bundle, "destination": destination})

    def _fault(self, cluster: Cluster, name: str, destination: str | None) -> str | None:
        bundle = cluster.bundles.get(name) or Bundle(name)
        if bundle.owner is None or destination == bundle.owner:
            return None  # the channel reports these itself
        filters = Filters(cluster, self._ports.chosen().pipeline.settings)
        if destination is not None:
            return filters.can_take(bundle, destination)
        passed = filters.passed(bundle)
        return None if passed.names else f"no broker may take it: {summary(passed.removed)}"

    async def fresh(self, ask: ExtensionAsk) -> Outcome:
        """Wait until the load report of every accepting broker counts its bundles; those that are late, if time is up."""
        clocks = self._ports.clocks
        ends_s = clocks.mono_s() + ask.timeout_s
        while True:
            if self._ports.channel.term < 0:
                return Rejected("not-leader", "this broker has lost the leadership", "Retry.")
            late = self._late()
            if not late or clocks.mono_s() + LOOK_S >= ends_s:
                facts = {"late": late[:LATE_SHOWN_MAX], "late_count": len(late)}
                return Done(ask.operation, "late" if late else "fresh", facts)
            await asyncio.sleep(LOOK_S)

    def _late(self) -> list[str]:
        brokers = self._cluster().brokers
        return [
            name
            for name, broker in sorted(brokers.items())
            if broker.accepting and (broker.load is None or broker.load_lapsed)
        ]

    def _cluster(self) -> Cluster:
        return self._ports.cluster(self._ports.channel.picture())
