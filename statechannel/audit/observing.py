"""What an audit observes, put together from what is wanted: the same for every engine, and for any part of a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from statechannel.audit.engine import GapCount, Wants
from statechannel.audit.gap_sums import GapSums
from statechannel.audit.history import History
from statechannel.audit.moves import Moves
from statechannel.audit.origins import Origins
from statechannel.audit.owned import Owners
from statechannel.audit.races import LostRaces
from statechannel.audit.rejections import Rejections
from statechannel.audit.spool import Spool
from statechannel.audit.story import Gap, Gaps, gap_fields
from statechannel.audit.verdict_file import Observe
from statechannel.core.digest import line
from statechannel.core.inputs import RecordRead
from statechannel.core.part import JoinObserver, PartitionAudit
from statechannel.core.record import Record
from statechannel.core.view import Judgement, View


def gap_order(gap: dict[str, Any]) -> tuple[int, int, int, str]:
    """By start; gaps of several bundles may begin with the same record of their namespace."""
    return gap["start_ms"], gap["partition"], gap["start_offset"], gap["bundle"]


class Observers:
    """The observers of one part of a log, or of all of it.

    Attributes:
        gaps, races, history, moves, owners, rejections, origins: None where nobody wants to know.
        gap_rows: The gaps that have ended, and when all is read, all of them.
        owned: Who serves what, as far as parts have ended.
        states: Key and line of the digest, of the parts that have ended.
    """

    def __init__(self, wants: Wants) -> None:
        self._wants = wants
        self.gap_rows = Spool(gap_order)
        self.gap_sums = GapSums()
        self.gap_number = 0
        self.gaps = Gaps(self._gap) if wants.gaps or wants.gap_count else None
        self.races = LostRaces() if wants.races else None
        self.history = None if wants.history is None else History(wants.history)
        self.moves = Moves() if wants.moves else None
        self.owners = Owners() if wants.owned else None
        self.rejections = Rejections() if wants.rejected else None
        self.origins = Origins() if wants.origins else None
        self.owned: list[dict[str, Any]] = []
        self.states: list[tuple[bytes, bytes]] = []

    def observe(self, others: Iterable[Observe] = ()) -> Observe | None:
        """What is to be told each judged record; None where nobody listens."""
        every = [one.observe for one in self._all()] + list(others)
        if len(every) <= 1:
            return every[0] if every else None

        def observe(record: RecordRead, judgement: Judgement) -> None:
            for told in every:
                told(record, judgement)

        return observe

    @property
    def join_observer(self) -> JoinObserver | None:
        """Who is told what a joining reader takes; None where nobody listens."""
        listening = [one for one in (self.gaps, self.owners, self.history, self.origins) if one is not None]
        return _Both(listening) if listening else None

    def _all(self) -> Iterator[Gaps | LostRaces | History | Moves | Owners | Rejections | Origins]:
        for one in (self.gaps, self.races, self.history, self.moves, self.owners, self.rejections, self.origins):
            if one is not None:
                yield one

    def _gap(self, gap: Gap) -> None:
        self.gap_number += gap.certain
        if self._wants.gaps:
            self._keep(gap)

    def _keep(self, gap: Gap) -> None:
        row = gap_fields(gap)
        self.gap_sums.take(row)
        self.gap_rows.append(row)

    def ended(self, part: PartitionAudit) -> None:
        """A part has been read to its end."""
        if self.owners is not None:
            self.owned.extend(self.owners.found(part))
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


class _Both:
    """Tells several."""

    def __init__(self, listening: list[Gaps | Owners | History | Origins]) -> None:
        self._listening = listening

    def taken(self, record: RecordRead, decoded: Record) -> None:
        for one in self._listening:
            one.taken(record, decoded)

    def joined(self, view: View, *, sure: bool) -> None:
        for one in self._listening:
            one.joined(view, sure=sure)
