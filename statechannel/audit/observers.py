"""Observers of an audit, built from the requested parts: the same for every engine and every part of a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from statechannel.audit.engine import GapCount, Wants
from statechannel.audit.gap_list import GapSums
from statechannel.audit.gaps import Gap, Gaps, gap_fields
from statechannel.audit.history import History
from statechannel.audit.origins import Origins
from statechannel.audit.ownership import Moves, Owners
from statechannel.audit.rejections import LostRaces, Rejections
from statechannel.audit.spool import Spool
from statechannel.protocol.digest import line
from statechannel.replay.part import JoinObserver, Listeners, Observer, PartitionAudit, each_of


def gap_order(gap: dict[str, Any]) -> tuple[int, int, int, str]:
    """Sort key by start; gaps of several bundles may begin with the same record of their namespace."""
    return gap["start_ms"], gap["partition"], gap["start_offset"], gap["bundle"]


class Observers:
    """The observers of one part of a log, or of all of it.

    Attributes:
        gaps, races, history, moves, owners, rejections, origins: None unless requested.
        gap_rows: Ended gaps; after the end of the read, all of them.
        owned: Owners of bundles, of the parts that have ended.
        states: Key and line of the digest, of the parts that have ended.
    """

    def __init__(self, wants: Wants) -> None:
        self._wants = wants
        self.gap_rows = Spool(gap_order)
        self.gap_sums = GapSums()
        self.gap_number = 0
        self.gaps = Gaps(self._gap) if wants.gaps or wants.gap_count else None
        self.races = LostRaces() if wants.races else None
        self.history = None
        if wants.has_history:
            self.history = History(wants.history, window=wants.window, by=wants.by)
        self.moves = Moves() if wants.moves else None
        self.owners = Owners() if wants.owned else None
        self.rejections = Rejections(window=wants.window, by=wants.by) if wants.rejected else None
        self.origins = Origins() if wants.origins else None
        self.owned: list[dict[str, Any]] = []
        self.states: list[tuple[bytes, bytes]] = []

    def observe(self, others: Iterable[Observer] = ()) -> Observer | None:
        """Observer of judged records; None if there is none."""
        return each_of([*(observer.observe for observer in self._all()), *others])

    @property
    def join_observer(self) -> JoinObserver | None:
        """Observer of a joining reader's records; None if there is none."""
        observers: tuple[JoinObserver | None, ...] = (self.gaps, self.owners, self.history, self.origins)
        listening = [observer for observer in observers if observer is not None]
        return Listeners(listening) if listening else None

    def _all(self) -> Iterator[Gaps | LostRaces | History | Moves | Owners | Rejections | Origins]:
        every = (self.gaps, self.races, self.history, self.moves, self.owners, self.rejections, self.origins)
        for observer in every:
            if observer is not None:
                yield observer

    def _gap(self, gap: Gap) -> None:
        self.gap_number += gap.certain
        if self._wants.gaps:
            self._keep(gap)

    def _keep(self, gap: Gap) -> None:
        row = gap_fields(gap)
        if not self._wants.gap_filter.has(row):
            return
        self.gap_sums.take(row)
        self.gap_rows.append(row)

    def ended(self, part: PartitionAudit) -> None:
        if self.owners is not None:
            self.owned.extend(self.owners.owned_in(part))
        if self._wants.states:
            self.states.extend((key.key, line(key)) for key in part.view.existing())

    def count_gaps(self) -> GapCount:
        """Numbers of gaps, once all is read."""
        still = 0 if self.gaps is None else sum(gap.certain for gap in self.gaps.open())
        return GapCount(self.gap_number + still, still)

    def end_gaps(self) -> Spool:
        """All gaps, those still open among them, once all is read."""
        if self.gaps is not None:
            for gap in self.gaps.open():
                self._keep(gap)
        return self.gap_rows
