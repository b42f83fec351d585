"""Observers of an audit, built from the requested parts: the same for every engine and every part of a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from statechannel.audit.engine import GapCount, Wants
from statechannel.audit.gap_list import GapSums
from statechannel.audit.gaps import Gap, Gaps, gap_fields
from statechannel.audit.history import History
from statechannel.audit.moves import Moves
from statechannel.audit.origins import Origins
from statechannel.audit.rejections import LostRaces, Rejections
from statechannel.audit.spool import Spool
from statechannel.audit.verdict_file import Observe, each_of
from statechannel.protocol.digest import line
from statechannel.protocol.log import RecordRead
from statechannel.protocol.overruling import MarkedColdStart
from statechannel.protocol.record import Record
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View
from statechannel.replay.part import JoinObserver, PartitionAudit


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

    def observe(self, others: Iterable[Observe] = ()) -> Observe | None:
        """Observer of judged records; None if there is none."""
        return each_of([*(observer.observe for observer in self._all()), *others])

    @property
    def join_observer(self) -> JoinObserver | None:
        """Observer of a joining reader's records; None if there is none."""
        observers = (self.gaps, self.owners, self.history, self.origins)
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


class Listeners:
    """Passes observations to several observers."""

    def __init__(self, listening: Sequence[Gaps | Owners | History | Origins]) -> None:
        self._listening = listening

    def taken(self, record: RecordRead, decoded: Record) -> None:
        for observer in self._listening:
            observer.taken(record, decoded)

    def joined(self, view: View, *, sure: bool) -> None:
        for observer in self._listening:
            observer.joined(view, sure=sure)

    def overruled(self, cold_start: MarkedColdStart, view: View) -> None:
        for observer in self._listening:
            if isinstance(observer, (Gaps, History, Owners)):
                observer.overruled(cold_start, view)


class _Since(NamedTuple):
    offset: int
    timestamp_ms: int


class Owners:
    """Notes the record that began each owner's generation.

    Feed it an audit's observations in log order, what a joining reader takes, and the view that it ends with.
    """

    def __init__(self) -> None:
        self._since: dict[bytes, _Since] = {}
        self._held: dict[bytes, tuple[int, int]] = {}

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        key = judgement.key
        if judgement.verdict is not Verdict.ACCEPTED or key is None or record.key is None:
            return
        if key.state is State.ASSIGNED:
            self._since[record.key] = _Since(record.offset, record.timestamp_ms)
        elif key.state is State.DELETED:
            for child in key.children or ():
                self._since[f"{key.namespace}/{child}".encode()] = _Since(record.offset, record.timestamp_ms)

    def taken(self, record: RecordRead, decoded: Record) -> None:  # noqa: ARG002
        if record.key is not None:
            self._held[record.key] = (record.offset, record.timestamp_ms)

    def joined(self, view: View, *, sure: bool) -> None:  # noqa: ARG002 - a guess is marked as one by the answer
        """Start from a joining reader's view: its proposals show when a generation began, its asserts do not."""
        times = dict(self._held.values())
        for key in view.existing():
            if key.state is State.ASSIGNED and key.writer is not None and key.offset in times:
                self._since[key.key] = _Since(key.offset, times[key.offset])
        self._held.clear()

    def overruled(self, cold_start: MarkedColdStart, view: View) -> None:  # noqa: ARG002 - the same for all observers
        """Forget what a cold start has overruled: no record of the log began it."""
        for overruled in cold_start.overruled or ():
            self._since.pop(overruled.key.encode(), None)

    def owned_in(self, part: PartitionAudit) -> Iterator[dict[str, Any]]:
        """Every served bundle of the part, for the JSON output; the start is null if the log does not show it."""
        for key in part.view.live():
            if key.generation is None:
                continue
            since = self._since.get(key.key)
            yield {
                "bundle": key.name,
                "partition": part.view.partition,
                "owner": key.owner,
                "generation": key.generation,
                "state": None if key.state is None else key.state.value,
                "since_offset": None if since is None else since.offset,
                "since_ms": None if since is None else since.timestamp_ms,
            }
