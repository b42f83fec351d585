"""Requested splits: by an algorithm, or at given positions, optionally with the children unloaded afterwards.

The broker that serves the bundle answers: only it knows the topics in it. The same request may come twice, to two brokers:
the operation id is the request's, so the channel splits once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from shedders.balancer.splitting import TopicsOnDemand, unload_children
from shedders.errors import StrategyFailedError, UnknownStrategyError
from shedders.model import registry
from shedders.model.cluster import Bundle
from shedders.model.cuts import algorithm_name, ends
from shedders.model.registry import StrategySettingsError
from statechannel.engine.commands import Done, NotFound, Outcome, Rejected, Split, Started, Unknown
from statechannel.errors import StateChannelError
from statechannel.protocol.bundle import even_bounds

if TYPE_CHECKING:
    from loaddata.model.top_bundles import LocalBundle
    from loaddata.source import LoadSource
    from statechannel.api.member import ChannelMember
    from statechannel.broker.handlers import ExtensionAsk

SETTINGS_MAX: Final = 100
"""Limit well above any algorithm's settings; validating the hundred thousand that fit into a request would block the loop."""


class SplitRequestHandler:
    """Handler of split requests. In the loop's thread.

    Args:
        local: This broker's bundles with their load, by name.
        done_within_s: Maximum wait for the result of an operation that was done before.
        splitting: Whether this broker splits bundles for a balancer.
    """

    def __init__(
        self,
        channel: ChannelMember,
        source: LoadSource,
        local: Callable[[], Mapping[str, LocalBundle]],
        done_within_s: Callable[[], float] = lambda: 0.5,
        splitting: Callable[[], bool] = lambda: True,
    ) -> None:
        self._done_within_s = done_within_s
        self._splitting = splitting
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
        if ask.args.get("decision") is not None and not self._splitting():
            return Rejected("splitting-off", "extensions.balancer.splitting is false on the bundle's broker")
        bundle = self._channel.locate(name)
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
            algorithm = registry.make("split", algorithm_name(word), values)
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
        outcome = await self._channel.ticket(ask.operation).outcome(self._done_within_s())
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
