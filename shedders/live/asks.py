"""What people ask the balancing extension of one broker for, through the requests topic (design/requests-topic.md).

`split`: by the algorithm, on the broker that serves the bundle, as it alone knows the topics. On the leader: `decide`, one
decision now; `drain` (`shedders.live.drain`); `may-take` and `fresh` (`shedders.live.checks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from loaddata.top_bundles import LocalBundle
from shedders import registry
from shedders.cluster import Bundle
from shedders.cuts import algorithm_name
from shedders.live.splitting import TopicsOnDemand
from statechannel.core.commands import Done, NotFound, Outcome, Rejected, Split, Started, Unknown
from statechannel.errors import StateChannelError

if TYPE_CHECKING:
    from loaddata.source import LoadSource
    from shedders.live.balancer import Balancer
    from shedders.live.checks import Checks
    from shedders.live.drain import Drains
    from shedders.live.splitting import Splitting
    from statechannel.api import StateChannel
    from statechannel.runtime.handlers import ExtensionAsk


class Asks:
    """Answers requests. In the loop's thread.

    Args:
        splitting: None where this broker knows no load.
        local: This broker's bundles with their load, by name.
    """

    def __init__(
        self,
        channel: StateChannel,
        balancer: Balancer,
        splitting: Splitting | None,
        source: LoadSource,
        local: Callable[[], Mapping[str, LocalBundle]],
        drains: Drains,
        checks: Checks,
    ) -> None:
        self._channel = channel
        self._balancer = balancer
        self._splitting = splitting
        self._source = source
        self._local = local
        self._drains = drains
        self._checks = checks

    async def answer(self, ask: ExtensionAsk) -> Outcome:
        """Answer one."""
        match ask.ask:
            case "split":
                return await self._split(ask)
            case "decide":
                return self._decide(ask)
            case "drain":
                return await self._drains.answer(ask)
            case "may-take":
                return self._checks.may_take(ask)
            case "fresh":
                return await self._checks.fresh(ask)
        known = "split, decide, drain, may-take and fresh"
        return Rejected("unknown-ask", f"the balancer cannot be asked for {ask.ask}; it knows {known}")

    def _decide(self, ask: ExtensionAsk) -> Outcome:
        if not self._balancer.leading:
            return Rejected("not-leader", "this broker does not lead; ask again")
        self._balancer.wake("request")
        return Done(ask.operation, "decision asked for")

    async def _split(self, ask: ExtensionAsk) -> Outcome:
        name, word = ask.args.get("name"), ask.args.get("algorithm")
        unload = ask.args.get("unload_children", False)
        if not isinstance(name, str) or not isinstance(word, str) or not isinstance(unload, bool):
            return Rejected("bad-request", "`name` and `algorithm` are texts, `unload_children` is true or false")
        found = self._channel.locate(name)
        if isinstance(found, NotFound):
            return found
        values = ask.args.get("settings", {})
        try:
            algorithm = registry.make("split", algorithm_name(word), values if isinstance(values, dict) else {})
            positions = list(algorithm.positions(self._bundle(found)))
        except StateChannelError as error:
            return Rejected("bad-split", str(error))
        if not positions:
            return Rejected(
                "bad-split", f"{found}: {word} finds no place to cut; look at `statechannel positions {found}`"
            )
        outcome = await self._cut(found, positions, ask)
        if unload and isinstance(outcome, Done) and self._splitting is not None:
            await self._splitting.unload_children(found, positions)
        return outcome

    async def _cut(self, bundle: str, positions: list[int], ask: ExtensionAsk) -> Outcome:
        reason = ask.args.get("reason")
        text = reason if isinstance(reason, str) else None
        outcome = await self._channel.ask(Split(bundle, ask.operation, ask.timeout_s, tuple(positions), 2, text))
        if isinstance(outcome, Started | Unknown):
            return await self._channel.ticket(ask.operation).outcome(ask.timeout_s)
        return outcome

    def _bundle(self, name: str) -> Bundle:
        mine: Any = self._local().get(name)
        topics = TopicsOnDemand(self._source, name)
        owner = self._channel.identity.broker
        if mine is None:
            return Bundle(name, owner, topics=topics)
        return Bundle(name, owner, stats=mine.stats, averages=mine.timed.averages, topics=topics)
