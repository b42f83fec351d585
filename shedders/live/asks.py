"""What people ask the balancing extension of one broker for, through the requests topic (design/requests-topic.md).

`split`: by the algorithm, on the broker that serves the bundle, as it alone knows the topics. On the leader: `decide`, one
decision now; `drain` (`shedders.live.drain`); `may-take` and `fresh` (`shedders.live.checks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.core.commands import Done, Outcome, Rejected

if TYPE_CHECKING:
    from shedders.live.balancer import Balancer
    from shedders.live.checks import Checks
    from shedders.live.drain import Drains
    from shedders.live.split_asks import SplitAsks
    from statechannel.runtime.handlers import ExtensionAsk


class Asks:
    """Answers requests. In the loop's thread.

    Args:
        splits: Answers those about splits.
    """

    def __init__(
        self,
        balancer: Balancer,
        splits: SplitAsks,
        drains: Drains,
        checks: Checks,
    ) -> None:
        self._balancer = balancer
        self._splits = splits
        self._drains = drains
        self._checks = checks

    async def answer(self, ask: ExtensionAsk) -> Outcome:
        """Answer one."""
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
        return Rejected("unknown-ask", f"the balancer cannot be asked for {ask.ask}", f"It knows {known}.")

    def _decide(self, ask: ExtensionAsk) -> Outcome:
        if not self._balancer.leading:
            return Rejected("not-leader", "this broker does not lead", "Ask again.")
        self._balancer.wake("request")
        return Done(ask.operation, "decision asked for")
