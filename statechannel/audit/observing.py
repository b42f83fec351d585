"""What an audit observes, put together from what is wanted: the same for every engine, and for any part of a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from statechannel.audit.engine import GapCount, Wants
from statechannel.audit.history import History, history_fields
from statechannel.audit.moves import Moves
from statechannel.audit.owned import Owners
from statechannel.audit.races import LostRaces
from statechannel.audit.story import Gap, Gaps, gap_fields
from statechannel.audit.verdict_file import Observe
from statechannel.core.inputs import RecordRead
from statechannel.core.part import PartitionAudit
from statechannel.core.view import Judgement


class Observers:
    """The observers of one part of a log, or of all of it.

    Attributes:
        gaps, races, history, moves, owners: None where nobody wants to know.
        owned: Who serves what, as far as parts have ended.
    """

    def __init__(self, wants: Wants) -> None:
        self.gaps = Gaps() if wants.gaps or wants.gap_count else None
        self.races = LostRaces() if wants.races else None
        self.history = None if wants.history is None else History(wants.history)
        self.moves = Moves() if wants.moves else None
        self.owners = Owners() if wants.owned else None
        self.owned: list[dict[str, Any]] = []

    def observe(self, others: Iterable[Observe] = ()) -> Observe | None:
        """What is to be told each judged record; None where nobody listens."""
        every = [one.observe for one in self._all()] + list(others)
        if len(every) <= 1:
            return every[0] if every else None

        def observe(record: RecordRead, judgement: Judgement) -> None:
            for told in every:
                told(record, judgement)

        return observe

    def _all(self) -> Iterator[Gaps | LostRaces | History | Moves | Owners]:
        for one in (self.gaps, self.races, self.history, self.moves, self.owners):
            if one is not None:
                yield one

    def ended(self, part: PartitionAudit) -> None:
        """A part has been read to its end."""
        if self.owners is not None:
            self.owned.extend(self.owners.found(part))


def gap_count(gaps: Gaps) -> GapCount:
    """Numbers of gaps."""
    every = gaps.all()
    return GapCount(len(every), sum(gap.length_ms is None for gap in every))


def gap_order(gap: dict[str, Any]) -> tuple[int, int, int]:
    """By start; no two gaps begin with the same record."""
    return gap["start_ms"], gap["partition"], gap["start_offset"]


def gap_list(gaps: Iterable[Gap]) -> list[dict[str, Any]]:
    """Gaps as the JSON output has them."""
    return [gap_fields(gap) for gap in gaps]


def history_list(history: History) -> list[dict[str, Any]]:
    """Lines of history as the JSON output has them."""
    return [history_fields(line) for line in history.lines]
