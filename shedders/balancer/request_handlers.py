"""Handlers of requests to the balancing extension through the requests topic (design/reference/requests-topic.md).

`split`: by an algorithm or at given positions, on the broker that serves the bundle, as only it knows the topics. On the leader:
`decide`, one decision now; `drain` (`shedders.balancer.drain`); `may-take` and `fresh` (`MoveChecks`); `rolling-restart`, the
claim of a rolling restart. A move that this broker executes is checked as `may-take` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from shedders.balancer.splitting import TopicsOnDemand, unload_children
from shedders.errors import StrategyFailedError, UnknownStrategyError
from shedders.filters.chain import Filters
from shedders.filters.rules import summary
from shedders.model.cluster import Bundle
from shedders.model.cuts import algorithm_name, ends
from shedders.model.strategy import StrategySettingsError, make
from statechannel.engine.commands import Done, NotFound, Outcome, Rejected, Split, Started, Unknown
from statechannel.engine.names import mistyped
from statechannel.errors import StateChannelError
from statechannel.operations.table import MAY_TAKE
from statechannel.protocol.bundle import even_bounds
from statechannel.suggestions import shown

if TYPE_CHECKING:
    from loaddata.model.bundle_load import LocalBundle
    from loaddata.source import LoadSource
    from shedders.balancer.balancer import Balancer
    from shedders.balancer.drain import Drains
    from shedders.balancer.ports import Ports
    from shedders.balancer.settings import BalancerSettings
    from shedders.model.cluster import Cluster
    from statechannel.api.member import ChannelMember
    from statechannel.operations.request_record import Request
    from statechannel.operations.table import ExtensionAsk


class RequestHandlers:
    """Dispatcher of requests. In the loop's thread."""

    def __init__(self, balancer: Balancer, splits: SplitRequestHandler, drains: Drains, checks: MoveChecks) -> None:
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
            case "rolling-restart":
                return Done(ask.operation, "noted")  # commands read the claims themselves, in the order of the log
        known = "split, decide, drain, may-take, fresh and rolling-restart"
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
        return self._checked(name, destination, ask.operation)

    def refusal(self, request: Request) -> Outcome | None:
        """Why the filters do not allow a move that this broker is to execute; None: they do."""
        outcome = self._checked(request.name, request.args.get("destination"), request.id)
        return None if isinstance(outcome, Done) else outcome

    def _checked(self, name: str, destination: str | None, operation: str) -> Outcome:
        if self._ports.effective() is None:
            return Rejected("policies-unread", "this broker has not read the policies yet", "Try again in a moment.")
        bundle = self._ports.channel.locate(name)
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
        return Done(operation, MAY_TAKE, {"bundle": bundle, "destination": destination})

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


SETTINGS_MAX: Final = 100
"""Limit well above any algorithm's settings; validating the hundred thousand that fit into a request would block the loop."""


class SplitRequestHandler:
    """Handler of split requests. In the loop's thread.

    Args:
        local: This broker's bundles with their load, by name.
    """

    def __init__(
        self,
        channel: ChannelMember,
        source: LoadSource,
        local: Callable[[], Mapping[str, LocalBundle]],
        settings: Callable[[], BalancerSettings],
    ) -> None:
        self._settings = settings
        self._channel = channel
        self._source = source
        self._local = local

    async def answer(self, ask: ExtensionAsk) -> Outcome:
        """Answer a request.

        Its arguments: `name`; `algorithm` with `settings`, or `at` (hashes), or `parts`; `unload_children`; `reason`;
        `decision`: id of the balancer's decision that requests it.
        """
        name, unload = ask.args.get("name"), ask.args.get("unload_children", False)
        if not isinstance(name, str) or not isinstance(unload, bool):
            return Rejected("bad-request", "`name` is a text, `unload_children` is true or false")
        if ask.args.get("decision") is not None and not self._settings().splitting:
            return Rejected("splitting-off", "extensions.balancer.splitting is false on the bundle's broker")
        bundle = mistyped(name) or self._channel.locate(name)
        if isinstance(bundle, NotFound):
            return await self._done_before(ask) or bundle
        positions = self._positions(bundle, ask.args)
        if isinstance(positions, Rejected):
            return positions
        outcome = await self._cut(bundle, positions, ask)
        if unload and isinstance(outcome, Done):
            await unload_children(self._channel, bundle, positions, ask.timeout_s)
        return outcome

    def _positions(self, bundle: str, args: Mapping[str, Any]) -> Sequence[int] | Rejected:
        at, parts, word = args.get("at"), args.get("parts"), args.get("algorithm")
        try:
            if isinstance(word, str):
                return self._by_algorithm(bundle, word, args.get("settings", {}))
            if isinstance(at, list) and at and all(type(position) is int for position in at):
                return sorted(at)
            if type(parts) is int:
                lower, upper = ends(Bundle(bundle))
                return even_bounds(parts, lower, upper)[1:-1]
        except StateChannelError as error:
            return Rejected("bad-split", str(error), error.hint, bundle=bundle)
        except ValueError as error:
            return Rejected("bad-split", f"{bundle}: {error}", bundle=bundle)
        return Rejected("bad-request", "a text `algorithm`, a list of numbers `at`, or a number `parts` is needed")

    def _by_algorithm(self, bundle: str, word: str, values: Any) -> Sequence[int] | Rejected:
        if not isinstance(values, dict) or len(values) > SETTINGS_MAX:
            return Rejected("bad-request", f"`settings` is an object: at most {SETTINGS_MAX} settings by name")
        try:
            algorithm = make("split", algorithm_name(word), values)
        except UnknownStrategyError as error:
            return Rejected("unknown-algorithm", str(error), error.hint)
        except StrategySettingsError as error:
            return Rejected("bad-settings", str(error), error.hint)
        except StrategyFailedError as error:
            return Rejected("strategy-failed", str(error), error.hint)
        positions = list(algorithm.positions(self._bundle(bundle)))
        return positions or Rejected("nothing-to-cut", f"{bundle}: {word} finds no position to cut at", bundle=bundle)

    async def _done_before(self, ask: ExtensionAsk) -> Outcome | None:
        """The result, if the broker that had this request first split the bundle and died before it answered."""
        outcome = await self._channel.ticket(ask.operation).outcome(self._settings().split_known_within_s)
        return outcome if isinstance(outcome, Done) else None

    async def _cut(self, bundle: str, positions: Sequence[int], ask: ExtensionAsk) -> Outcome:
        reason = ask.args.get("reason")
        text = reason if isinstance(reason, str) else None
        outcome = await self._channel.ask(Split(bundle, ask.operation, ask.timeout_s, tuple(positions), 2, text))
        if isinstance(outcome, Started | Unknown):
            return await self._channel.ticket(ask.operation).outcome(ask.timeout_s)
        return outcome

    def _bundle(self, name: str) -> Bundle:
        mine = self._local().get(name)
        topics = TopicsOnDemand(self._source, name)
        owner = self._channel.identity.broker
        if mine is None:
            return Bundle(name, owner, topics=topics)
        return Bundle(name, owner, stats=mine.stats, averages=mine.timed.averages, topics=topics)
