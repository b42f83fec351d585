"""Asserts of many keys of one partition, a window of them at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from statechannel.engine.proposals import ProposalResult, ProposalStatus

if TYPE_CHECKING:
    from statechannel.engine.context import Context
    from statechannel.engine.proposals import Proposals


class Restating:
    """The keys of one partition that are still to be asserted.

    Args:
        names: Keys.
    """

    def __init__(self, names: list[str]) -> None:
        self._todo = names[::-1]
        self._in_flight: set[str] = set()

    def go_on(self, context: Context, proposals: Proposals, partition: int, *, since: int | None = None) -> bool:
        """Write as many asserts as may be in flight; whether all were judged.

        Args:
            since: Leave out keys with a clean record of their own at or above this offset.
        """
        keys = context.replicas[partition].view.keys
        while self._todo and len(self._in_flight) < context.config.cold_start_window and context.may_write:
            name = self._todo.pop()
            key = keys.get(name.encode())
            if key is None or (since is not None and key.settled >= since):
                continue
            self._in_flight.add(name)
            if proposals.restate(key, self._judged(name)) is None:
                self._in_flight.discard(name)
                self._todo.append(name)
                break
        return not self._todo and not self._in_flight

    def _judged(self, name: str) -> Callable[[ProposalResult], None]:
        def done(result: ProposalResult) -> None:
            self._in_flight.discard(name)
            if result.status in (ProposalStatus.NOT_WRITTEN, ProposalStatus.UNKNOWN):
                self._todo.append(name)

        return done
