"""Splits that the leader's strategy wants: the broker that serves a bundle is asked for it, through the requests topic.

Only that broker knows the topics in it, so it decides where it is cut, by the split algorithm in force; the children are
offered to the next decision as those of any split. A few at a time, and none again that was refused lately: a strategy would
want the same split in every cycle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from shedders.live.decision_build import Executed
from shedders.live.movers import REASON_MAX, word_of
from statechannel.core.bounded import remember
from statechannel.core.commands import Outcome
from statechannel.runtime.exits import ChannelStoppedError
from statechannel.runtime.request_record import Addressee, Asked

if TYPE_CHECKING:
    from shedders.cluster import Cluster
    from shedders.live.balancer import Ports
    from shedders.live.settings import BalancerSettings
    from shedders.plan import SplitWanted

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
            cluster: What was decided on; nothing that was on its way in it may be wanted (`shedders.dry_run.nonsense`).
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
            operation = ports.channel.request(Asked.EXTENSION, args, timeout_s, partial(_answered, reply))
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
