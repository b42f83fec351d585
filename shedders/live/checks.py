"""What the leader is asked before somebody acts by hand: whether the filters allow a move, and whether reports are fresh."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from shedders.cluster import Bundle
from shedders.filter_rules import summary
from shedders.filters import Filters
from shedders.near import shown
from statechannel.core.commands import Done, NotFound, Outcome, Rejected

if TYPE_CHECKING:
    from shedders.cluster import Cluster
    from shedders.live.balancer import Ports
    from statechannel.runtime.handlers import ExtensionAsk

FILTERED: Final = "filtered"
LOOK_S = 0.2
LATE_TOLD_MAX = 100


class Checks:
    """See the module. In the loop's thread."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    def may_take(self, ask: ExtensionAsk) -> Outcome:
        """Whether the filters let a bundle go to `destination`; without one, whether they leave anybody who may take it."""
        name, destination = ask.args.get("name"), ask.args.get("destination")
        if not isinstance(name, str) or not (destination is None or isinstance(destination, str)):
            return Rejected("bad-request", "`name` is a text, `destination` a text or left out")
        channel = self._ports.channel
        if channel.term < 0:
            return Rejected("not-leader", "this broker does not lead any more", "Ask again.")
        if self._ports.standing() is None:
            return Rejected("policies-unread", "the leader has not read the policies yet", "Try again in a moment.")
        found = channel.locate(name)
        if isinstance(found, NotFound):
            return found
        cluster = self._cluster()
        if destination is not None and destination not in cluster.brokers:
            # The filters know nothing of it, which is no leave to go there.
            return Rejected(
                "unknown-broker", f"{found} may not go to {shown(destination)}: no broker of that name is heard"
            )
        fault = self._fault(cluster, found, destination)
        if fault is not None:
            what = "may not be let go" if destination is None else f"may not go to {destination}"
            return Rejected(FILTERED, f"{found} {what}: {fault}", "--force does it all the same.")
        return Done(ask.operation, "may-take", {"bundle": found, "destination": destination})

    def _fault(self, cluster: Cluster, name: str, destination: str | None) -> str | None:
        bundle = cluster.bundles.get(name) or Bundle(name)
        if bundle.owner is None or destination == bundle.owner:
            return None  # the channel has better words for these
        filters = Filters(cluster, self._ports.chosen().pipeline.settings)
        if destination is not None:
            return filters.can_take(bundle, destination)
        passed = filters.passed(bundle)
        return None if passed.names else f"no broker may take it: {summary(passed.removed)}"

    async def fresh(self, ask: ExtensionAsk) -> Outcome:
        """Wait until the load report of every broker that takes bundles counts what it serves; who is late, if time is up."""
        clocks = self._ports.clocks
        ends_s = clocks.mono_s() + ask.timeout_s
        while True:
            if self._ports.channel.term < 0:
                return Rejected("not-leader", "this broker does not lead any more", "Ask again.")
            late = self._late()
            if not late or clocks.mono_s() + LOOK_S >= ends_s:
                facts = {"late": late[:LATE_TOLD_MAX], "late_count": len(late)}
                return Done(ask.operation, "late" if late else "fresh", facts)
            await asyncio.sleep(LOOK_S)

    def _late(self) -> list[str]:
        brokers = self._cluster().brokers
        return [
            name for name, one in sorted(brokers.items()) if one.accepting and (one.load is None or one.load_lapsed)
        ]

    def _cluster(self) -> Cluster:
        return self._ports.cluster(self._ports.channel.picture())
