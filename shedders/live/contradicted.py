"""Looks again and again whether the policies that stand can be kept on the cluster as it is; on the leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from shedders.cluster import Cluster
from shedders.contradictions import Contradiction
from shedders.live.policy_standing import Standing
from shedders.plan import Left

_log = structlog.get_logger(__name__)

WORD = "contradiction"
TOLD_MAX = 20
"""In status and records; the number of all is told with them."""


class Contradicted:
    """See the module. In the loop's thread; what takes time is done in another one, on values that nothing changes.

    Args:
        cluster: As it is now, with the policies in it; None: this broker does not lead, or knows too little.
        standing: The policies; None before they were read.
        every_s: Time between two looks where nothing asks for one.

    Attributes:
        found: What cannot be kept, as of the last look.
    """

    def __init__(
        self,
        cluster: Callable[[], Cluster | None],
        standing: Callable[[], Standing | None],
        every_s: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._standing = standing
        self._every_s = every_s
        self._wake = asyncio.Event()
        self.found: Sequence[Contradiction] = ()

    def wake(self) -> None:
        """Policies have changed: look soon."""
        self._wake.set()

    async def run(self) -> None:
        """Look for ever; ends by being cancelled."""
        while True:
            await self.look()
            self._wake.clear()
            try:
                async with asyncio.timeout(self._every_s()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def look(self) -> None:
        """Look once."""
        cluster, standing = self._cluster(), self._standing()
        # Where nobody is alive nobody can keep anything: that is no fault of the policies.
        if cluster is None or standing is None or not cluster.brokers:
            self.found = ()
            return
        found = tuple(await asyncio.to_thread(standing.contradictions, cluster))
        if [one.policies for one in found] != [one.policies for one in self.found] and found:
            _log.warning("policies-contradicted", count=len(found), first=sentence(found[0]))
        self.found = found

    def told(self) -> list[str]:
        """For the status: sentences."""
        more = len(self.found) - TOLD_MAX
        return [sentence(one) for one in self.found[:TOLD_MAX]] + ([f"and {more} more"] if more > 0 else [])

    def left(self) -> Sequence[Left]:
        """For decision records."""
        return [Left(one.witness, WORD, sentence(one)) for one in self.found[:TOLD_MAX]]


def sentence(one: Contradiction) -> str:
    """Which policies, and why."""
    return f"{', '.join(one.policies)}: {one.why}"
