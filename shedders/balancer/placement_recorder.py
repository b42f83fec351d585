"""Recorder of this broker's placements, and of the counts of its records; it never delays a placement.

Placements come in storms (a cold start places 65,000 bundles), one by one, inside a step of the engine. So they are noted there,
and recorded here in batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ulid import ULID

from shedders.decisions.builder import Occasion, place_record
from shedders.model.cluster import Cluster
from shedders.model.plan import Placed

if TYPE_CHECKING:
    from shedders.balancer.placement import PlacedEnd, PlacedNote
    from shedders.balancer.ports import Ports
    from shedders.balancer.settings import BalancerSettings
    from shedders.decisions.topic import WriteCounts

BATCH_MAX = 200
"""Placements per record: as many as fit with their reasons."""

_REMARKS = {
    "fewest": "the strategy chose no broker; of those that the filters left, the one with the fewest bundles took it",
    "failed": "the placement failed (see the broker's log); the broker with the fewest bundles took it",
}


class PlacementRecorder:
    """Recorder of placements. In the loop's thread.

    Args:
        take_notes: Placements since the last call; `take_ends`: those confirmed since.
        counts: Counts of the records so far.
    """

    def __init__(
        self,
        ports: Ports,
        settings: Callable[[], BalancerSettings],
        *,
        take_notes: Callable[[], Sequence[PlacedNote]],
        take_ends: Callable[[], Sequence[PlacedEnd]],
        counts: Callable[[], WriteCounts],
        manager: Callable[[], str],
    ) -> None:
        self._ports = ports
        self._settings = settings
        self._take_notes = take_notes
        self._take_ends = take_ends
        self._counts = counts
        self._manager = manager
        self._batches = 0
        self._fingerprint = ""

    async def run(self) -> None:
        """Record until cancelled."""
        while True:
            await asyncio.sleep(self._settings().placements_told_every_s)
            self.record()

    def record(self) -> None:
        """Record the placements since the last call, if there are any."""
        notes = self._take_notes()
        for note in notes:
            self._ports.metrics.assigned(note.how, note.reason)
        for end in self._take_ends():
            self._ports.metrics.assigned_after(end.how, end.reason, end.took_s)
        placed = [_placed(note) for note in notes if note.how != "asked"]
        for start in range(0, len(placed), BATCH_MAX):
            self._write(placed[start : start + BATCH_MAX])
        self._ports.metrics.written(self._counts())

    def _write(self, placed: Sequence[Placed]) -> None:
        ports, chosen = self._ports, self._ports.chosen()
        self._batches += 1
        settings = {name: chosen.settings[name].model_dump(mode="json") for name in ("placement", "filters")}
        new, self._fingerprint = repr(settings) != self._fingerprint, repr(settings)
        occasion = Occasion(
            id=str(ULID()),
            term=max(0, ports.channel.term),
            leader=ports.channel.identity.broker,
            cycle=self._batches,
            at_ms=ports.clocks.log_ms(),
            inputs=ports.inputs(None),
            strategy=chosen.names["placement"],
            profile=chosen.profile,
            settings=settings,
            write_settings=new,
            manager=self._manager(),
            trigger="request",
        )
        # The record's brokers matter only for entries left alone; here there are none.
        record = place_record(occasion, Cluster({}, {}), placed, bounds=self._settings().record_bounds())
        ports.write(record)
        ports.metrics.decided(record)


_FAILED = "the placement failed (see the broker's log); no broker took it, as policies could not be checked"


def _placed(note: PlacedNote) -> Placed:
    """The strategy's answer, with the broker that the bundle finally went to."""
    remark = _FAILED if note.how == "failed" and note.broker is None else _REMARKS.get(note.how)
    if note.placed is None:
        return Placed(note.bundle, note.broker, remark or note.how)
    if remark is None:
        return note.placed
    return replace(note.placed, broker=note.broker, why=f"{note.placed.why}; {remark}")
