"""Tells of the placements of this broker, and of what became of its records: once in a while, never in the way of a placement.

Placements come in storms (a cold start places 65,000 bundles), one by one, inside a step of the engine. So they are noted there,
and written down here in batches.
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
"""Placements of one record: so many find room in it with their reasons."""

_BESIDE = {
    "fewest": "the strategy chose nobody; among those that the filters leave, the one with the fewest bundles took it",
    "failed": "the placement failed (see the broker's log); the broker with the fewest bundles took it",
}


class Telling:
    """See the module. In the loop's thread.

    Args:
        take_notes: Placements since the last call; `take_ends`: those that have come to their end.
        counts: What became of the records so far.
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
        self._told = ""

    async def run(self) -> None:
        """Tell for ever; ends by being cancelled."""
        while True:
            await asyncio.sleep(self._settings().placements_told_every_s)
            self.tell()

    def tell(self) -> None:
        """Tell what there is; nothing is written where nothing was placed."""
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
        new, self._told = repr(settings) != self._told, repr(settings)
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
        # Brokers are only asked for where something is left alone; here nothing is.
        record = place_record(occasion, Cluster({}, {}), placed, bounds=self._settings().record_bounds())
        ports.write(record)
        ports.metrics.decided(record)


_NOBODY = "the placement failed (see the broker's log); nobody took it: no policy must be broken for that"


def _placed(note: PlacedNote) -> Placed:
    """The answer of the strategy, with the broker that the bundle went to in the end."""
    beside = _NOBODY if note.how == "failed" and note.broker is None else _BESIDE.get(note.how)
    if note.placed is None:
        return Placed(note.bundle, note.broker, beside or note.how)
    if beside is None:
        return note.placed
    return replace(note.placed, broker=note.broker, why=f"{note.placed.why}; {beside}")
