"""Replica of one partition in a member: joining, caught up, or stopped (protocol.md section 5)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from statechannel.protocol import codec
from statechannel.protocol.bounded import remember
from statechannel.protocol.bulk_fold import read_many
from statechannel.protocol.cold_start_marks import Marks
from statechannel.protocol.digest import (
    VERSION_BOUND_MAX,
    ComparedView,
    ViewDigest,
    ViewSummary,
    partitions_in,
    version_bound_in,
)
from statechannel.protocol.gaps import could_be_cleaned
from statechannel.protocol.joiner import Aside, Joiner
from statechannel.protocol.overruling import OverruledState, StrictReader, continued, lift
from statechannel.protocol.record import NEWEST_FORMAT, Record
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statechannel.protocol.log import RecordRead


class Phase(StrEnum):
    CLOSED = "closed"  # not opened yet, or to be opened again
    READING = "reading"  # to the end as of the start
    WAITING = "waiting"  # for a heartbeat that vouches for what was read
    CAUGHT_UP = "caught-up"
    START_OVER = "start-over"  # wants to be opened again from the beginning
    STOPPED = "stopped"  # a newer format
    BROKEN = "broken"  # the topic is not the one that was opened


KEPT_MAX_BYTES: Final = 256 * 2**20
VERSIONS_A_RECORD: Final = 2
UNPROVEN_RECORDS: Final = 10_000
"""Records after the position of a member's last registry heartbeat that may be lost with a log."""
HASHED_AT_ONCE: Final = 1_000
COMPARED_MAX: Final = 10_000
KEPT_UP_S: Final = 10.0
"""A reader that judges has kept up if it saw the end of the log so lately; the cleaner takes longer from one pass to the next."""
UNUSED_MAX: Final = 100
"""Runs of offsets without a record that are kept until they are reported."""


class Replica:
    """Reader of one partition.

    A log without gaps from offset 0 is judged strictly from the start, also across the marks of cold starts; at the first gap
    the reader starts over leniently. A lenient read ends at the offset that a heartbeat vouches for: one that arrives
    while the reader waits, or the newest clean one in the log, if nothing above it can have been compacted.

    Attributes:
        view: Accepted state; only valid while `phase` is CAUGHT_UP (and last known while STOPPED or BROKEN).
        why: A sentence on the last change of phase.
        strict: Judged strictly from offset 0, as the log had no gap; to be read while `phase` is CAUGHT_UP.
        newer_format: The format that stopped the reader, at `stopped_at_s`.
        timestamp_ms: Log time of the newest record read.
        read_at_s: When the last record of the partition, including heartbeats, was read; or when it was opened.
        marks: Marks of cold starts read so far.
        overruled: Keys whose state the newest of them has overruled.
        current_at_s: The newest moment at which the whole log was read; None before the first one.
        first_offset: Of the log when it was opened: compaction never moves it, so that above 0 records were deleted.
        known: Highest offset that another process had read, by the registry, while the log ends below it or is another one; -1
            without such a proof.
        is_truncated: What lay there through `known` was truncated; the log may be longer again.
        versions_below: No version was accepted at or above it while members wrote to the registry, as they say there.
        compared: What heartbeats say of the accepted keys beside what this reader holds, the newest of each broker.
        other_counts: Number of partitions by broker, of those that distribute the channel's keys by another one than this reader.
        kept: The view that was judged until records were deleted that this reader had not read; None without one.
        unused: Offsets that never held a record, first and last of each run, since the caller took them: transaction markers.
    """

    def __init__(
        self,
        partition: int,
        partitions: int,
        *,
        compaction_lag_s: float,
        kept_records_max: int,
        kept_max_bytes: int = KEPT_MAX_BYTES,
        tail_records: int = 1,
        newest_format: int = NEWEST_FORMAT,
        accept_lost_head: bool = False,
    ) -> None:
        self._accepts_lost_head = accept_lost_head
        self.partition = partition
        self.partitions = partitions
        self.phase = Phase.CLOSED
        self._newest = newest_format
        self.view = View(partition, partitions, newest_format)
        self.why = ""
        self.strict = False
        self.newer_format = 0
        self.stopped_at_s = 0.0
        self.timestamp_ms = 0
        self.read_at_s = 0.0
        self.current_at_s: float | None = None
        self.position = 0
        self.end_offset = 0
        self._half_lag_s = compaction_lag_s / 2
        self._kept_max = kept_records_max
        self._kept_max_bytes = kept_max_bytes
        self._tail = max(1, tail_records)
        self._has_gap = False  # met by the reading before this one, which starts over for it
        self._aside: Aside | None = None
        self.marks = Marks()
        self.overruled: Sequence[OverruledState] = ()
        self.first_offset = 0
        self.known = -1
        self.kept: View | None = None
        self._skipped_to = -1  # offset behind those that are taken for markers since the log was opened
        self._left: View | None = None  # judged until this reader was left at a gap
        self.is_truncated = False
        self.versions_below = 0
        self.compared: dict[str, ComparedView] = {}
        self.other_counts: dict[str, int] = {}
        self._digest: ViewDigest | None = None
        self._is_count_confirmed = False
        self.unused: list[tuple[int, int]] = []
        self._strictly = StrictReader(self.view, self.marks)
        self._opened_at_s = 0.0
        self._ended_at_s = 0.0
        self._clock_ahead_ms: float | None = None

    @property
    def caught_up(self) -> bool:
        return self.phase is Phase.CAUGHT_UP

    @property
    def has_met_gap(self) -> bool:
        """Whether the reader starts over because records were compacted before it read them."""
        return self._has_gap

    @property
    def is_headless(self) -> bool:
        """Whether records are known to have been deleted that no mark has restated: what was read is not all that counts."""
        lost = self.first_offset > 0 or self.known >= 0
        return lost and not self.marks.restates(self.first_offset, self.known)

    @property
    def applied(self) -> int:
        """Offset through which everything was applied."""
        return self.position - 1

    def opened(self, now_s: float, first_offset: int, end_offset: int) -> None:
        self._opened_at_s = self.read_at_s = now_s
        left = self.view if self.phase is Phase.CAUGHT_UP else self._left
        if left is not None and first_offset > self.position:
            self.kept = left
        self._left = None
        self._skipped_to = -1
        self.position = self.timestamp_ms = 0
        self.end_offset, self.first_offset = end_offset, first_offset
        self.marks = Marks()
        self._aside = None
        self.phase = Phase.READING
        self.strict = False
        has_gap, self._has_gap = self._has_gap, False
        if has_gap or self.is_headless:
            self._begin_lenient()
        else:
            self.view = View(self.partition, self.partitions, self._newest)
        self._strictly = StrictReader(self.view, self.marks)
        self._advance(now_s)

    def complete_as_of(self, as_of_s: float | None) -> None:
        """Note a moment at which the whole log was read; None if none is known."""
        if as_of_s is not None and (self.current_at_s is None or as_of_s > self.current_at_s):
            self.current_at_s = as_of_s

    def _begin_lenient(self) -> None:
        self._aside = Aside(
            Joiner(self.partition, self.partitions, self._newest),
            self.marks,
            half_lag_ms=self._half_lag_s * 1000,
            kept_max=self._kept_max,
            kept_max_bytes=self._kept_max_bytes,
            newest_format=self._newest,
        )

    def learn_clock(self, ahead_ms: float) -> None:
        """Set the maximum lead of Kafka's clock over the monotonic one, which may end a wait.

        Without it the age of a record at the end of the read is unknown.
        """
        self._clock_ahead_ms = ahead_ms
        self._join()

    def read(self, now_s: float, record: RecordRead) -> Judgement | None:
        """Apply one record; returns a judgement if it is judged strictly, in replay or caught up."""
        if self.phase is Phase.CAUGHT_UP:
            return self._read_strictly(now_s, record)
        if self.phase not in (Phase.READING, Phase.WAITING):
            return None
        if record.offset < self.position:
            self._break(f"offset {record.offset} follows offset {self.position - 1}")
            return None
        if record.offset > self.position and not self._gap(now_s, record.offset, record.timestamp_ms):
            return None
        if self._aside is not None:
            self._read_leniently(now_s, record, self._aside)
            return None
        self.position = record.offset + 1
        self.timestamp_ms = record.timestamp_ms
        judgement = self._strictly.read(record)
        if judgement.verdict is Verdict.UNSUPPORTED_FORMAT:
            self.position = record.offset
            self._stop(judgement.format, record.offset)
            return None
        if self._strictly.view is not self.view:
            self.view, self.overruled = self._strictly.view, self._strictly.cold_starts[-1].overruled or ()
        self._advance(now_s)
        return judgement

    def _look_at(self, record: RecordRead) -> None:
        """Take in a heartbeat or a mark while caught up: what a mark means is not for this reader to say."""
        heartbeat = self.marks.control_read(record, self._newest)
        if isinstance(heartbeat, Record):
            self._compare(heartbeat, record.offset)
            self.view.highest = max(self.view.highest, self.marks.highest)

    def summary(self) -> ViewSummary | None:
        """Of the view of a reader that is caught up; None until all changed keys were hashed, a portion at each call."""
        if self._digest is None or not self._digest.is_of(self.view):
            self._digest = ViewDigest(self.view)
        return self._digest.advance(HASHED_AT_ONCE)

    def _compare(self, heartbeat: Record, offset: int) -> None:
        """Compare what a heartbeat says of the accepted keys with the view, if nothing was accepted since it was written."""
        if not self._counts_like(heartbeat):
            return
        theirs = ViewSummary.read(heartbeat.raw)
        if theirs is None or not self.view.changed_at <= heartbeat.covers < offset:
            return
        own, before = self.summary(), self.compared.get(heartbeat.broker)
        if own is None or self._note(heartbeat, theirs, own):
            return
        if self._skipped_to >= 0 and (before is None or (before.is_equal and before.offset < self._skipped_to - 1)):
            # Of what others skipped as well they hold the same: it was this reader that missed something.
            self._start_over(
                f"offsets below {self._skipped_to} had no record, and {heartbeat.broker} holds other states: they were compacted"
            )
            self._has_gap = True

    def _note(self, heartbeat: Record, theirs: ViewSummary, own: ViewSummary) -> bool:
        before, offset = self.compared.get(heartbeat.broker), heartbeat.covers
        equal = theirs == own
        since = offset if equal else -1 if before is None else before.equal_at
        comparison = ComparedView(heartbeat.broker, offset, theirs, own, equal_at=since)
        remember(self.compared, heartbeat.broker, comparison, COMPARED_MAX)
        return equal

    def _counts_like(self, heartbeat: Record) -> bool:
        """Whether a heartbeat's writer distributes keys by the same number of partitions.

        The first number in the log counts: a reader that finds another one there before its own stops, and takes that one when it
        starts again.
        """
        partitions, broker = partitions_in(heartbeat.raw), heartbeat.broker
        if partitions is None:
            return True
        if partitions == self.partitions:
            self._is_count_confirmed = True
            self.other_counts.pop(broker, None)
            return True
        remember(self.other_counts, broker, partitions, COMPARED_MAX)
        if not self._is_count_confirmed:
            self._break(f"the channel's keys are distributed over {partitions} partitions, not {self.partitions}")
        return False

    def _stops_for_count(self) -> bool:
        """Whether the newest heartbeat is the first that names a number of partitions, and names another one."""
        heartbeat = self.marks.heartbeat
        return heartbeat is not None and not self._counts_like(heartbeat) and self.phase is Phase.BROKEN

    def _read_leniently(self, now_s: float, record: RecordRead, aside: Aside) -> None:
        newer = codec.newer_format(record.key, record.value, self._newest)
        if newer:
            self._stop(newer, record.offset)
            return
        self.position = record.offset + 1
        self.timestamp_ms = record.timestamp_ms
        aside.read(record)
        if self.phase is Phase.READING:
            aside.release(self.end_offset)
            self._advance(now_s)
            return
        if record.key == codec.HEARTBEAT_KEY and self._stops_for_count():
            return
        self._join()
        if self.phase is Phase.WAITING and not aside.release(self.end_offset):
            self._start_over(
                f"more than {self._kept_max} records, or {self._kept_max_bytes} bytes, arrived while waiting for a clean "
                "heartbeat"
            )

    def read_many(self, now_s: float, records: Sequence[RecordRead], others: list[RecordRead] | None = None) -> int:
        """Apply the first of these records as `read` would one by one; returns their number.

        For the bulk of a replay: it stops before the tail of the log, in which operations are followed record by record,
        and so before any record that ends this reader's phase.

        Args:
            others: Gets those of the applied records that have a control key, and of a strict reading all but plain moves of
                processes whose records were accepted before.
        """
        if self.phase is not Phase.READING or now_s - self._opened_at_s > self._half_lag_s:
            return 0
        seen = [] if others is None else others
        if self._aside is not None:
            taken = self._aside.read_many(records, self.position, self.end_offset, seen)
            self.position = records[taken - 1].offset + 1 if taken else self.position
        elif taken := self._before_gap(now_s, records):
            self.position += taken
            seen += records[:taken]
        else:
            before = self.position
            end = self.end_offset - self._tail
            self.position = read_many(self.view, records, before, end, self._strictly.restated, seen)
            taken = self.position - before
            for record in seen:
                if record.key in (codec.HEARTBEAT_KEY, codec.HEAD_KEY):
                    self._strictly.control_read(record)
        if taken:
            self.timestamp_ms = records[taken - 1].timestamp_ms
        return taken

    def _before_gap(self, now_s: float, records: Sequence[RecordRead]) -> int:
        """How many of these records need not be judged, as this reader starts over at the gap behind them; 0 without a gap."""
        if records[-1].offset - self.position == len(records) - 1:
            return 0
        before_ms = self.timestamp_ms
        for index, (_, _, offset, timestamp_ms, key, value) in enumerate(records):
            if offset != self.position + index:
                starts_over = self.position + index < offset < self.end_offset - self._tail
                return index if starts_over and not self._is_young(now_s, before_ms, timestamp_ms) else 0
            before_ms = timestamp_ms
            if key == codec.COLD_START_KEY or codec.newer_format(key, value, self._newest):
                return 0
        return 0

    def may_hold(self, incarnation: str) -> bool:
        """Whether plain moves of this process may be among the records that `read_many` applied last."""
        return self._aside is not None or incarnation in self.view.writers

    def _read_strictly(self, now_s: float, record: RecordRead) -> Judgement | None:
        if record.offset < self.position:
            self._break(f"offset {record.offset} follows offset {self.position - 1}")
            return None
        if record.offset > self.position and not self._never_held(now_s, record.offset, record.timestamp_ms):
            self._start_over_at_gap(record.offset)
            return None
        judgement = self.view.read(record.offset, record.key, record.value)
        if judgement.verdict is Verdict.UNSUPPORTED_FORMAT:
            self._stop(judgement.format, record.offset)
            return judgement
        self.position = record.offset + 1
        self.timestamp_ms = record.timestamp_ms
        if judgement.verdict is Verdict.CONTROL:
            self._look_at(record)
        return judgement

    def reached(self, now_s: float, position: int) -> None:
        """Note that everything below `position` was delivered; missing offsets were compacted, or never held a record."""
        if position <= self.position:
            return
        if self.phase is Phase.CAUGHT_UP:
            if not self._never_held(now_s, position):
                self._start_over_at_gap(position)
        elif self.phase in (Phase.READING, Phase.WAITING) and self._gap(now_s, position):
            self.position = position
            if self.phase is Phase.READING:
                self._advance(now_s)

    def _start_over_at_gap(self, offset: int) -> None:
        self._start_over(f"offsets {self.position} to {offset - 1} were compacted before this reader reached them")
        self._left = self.view
        self._has_gap = True

    def _gap(self, now_s: float, offset: int, timestamp_ms: int = 0) -> bool:
        """Handle missing offsets from `position` up to `offset`; False if the reader has to start over."""
        if self.position < self.end_offset < offset:
            if not self._gap(now_s, self.end_offset, timestamp_ms):
                return False
            self.position = self.end_offset
        if (self._aside is None or offset > self.end_offset) and self._never_held(now_s, offset, timestamp_ms):
            return True
        if self._aside is None:
            if self.position > 0:
                self._start_over(f"offsets {self.position} to {offset - 1} are missing: the log was compacted")
                self._has_gap = True
                return False
            self._begin_lenient()
        if offset > self.end_offset:
            # Written after this join began and gone already: what hid it may lie above any heartbeat's clean_to.
            self._start_over(f"offsets up to {offset - 1} were compacted while this reader waited")
            self._has_gap = True
            return False
        return True

    def _never_held(self, now_s: float, offset: int, timestamp_ms: int = 0) -> bool:
        """Whether the missing offsets up to `offset` never held a record; if so, the reader goes on behind them.

        Kafka gives the markers that end a transaction offsets of their own, and delivers them to no reader. What is missing was
        compacted only if it was older than the compaction lag. It is younger if this reader saw the end of the log below it less
        than that ago, or if the record before it is younger by Kafka's clock; half of the lag leaves room for clocks. A reader
        that judges must have kept up: while it stood still the lag may have been another one.

        Args:
            timestamp_ms: Log time of the record at `offset`; 0 if there is none.
        """
        seen_s = self._opened_at_s if self.position >= self.end_offset else None
        if seen_s is not None and self.caught_up and self.current_at_s is not None:
            seen_s = max(seen_s, self.current_at_s)
        # Where Kafka's times leapt meanwhile, so did the cleaner's.
        leapt = 0 < self.timestamp_ms <= timestamp_ms - self._half_lag_s * 1000
        within_s = min(self._half_lag_s, KEPT_UP_S) if self.caught_up else self._half_lag_s
        seen_lately = seen_s is not None and now_s - seen_s < within_s and not leapt
        if not seen_lately and (self.caught_up or not self._is_young(now_s, self.timestamp_ms, timestamp_ms)):
            return False
        self._skipped_to = offset
        self.unused.append((self.position, offset - 1))
        del self.unused[:-UNUSED_MAX]
        self.position = offset
        return True

    def _is_young(self, now_s: float, before_ms: int, timestamp_ms: int) -> bool:
        """Whether no record written after one of this log time can have been cleaned, by Kafka's clock.

        Args:
            before_ms: 0 if no record was read.
            timestamp_ms: Of the record that was read next, which was written before now; 0 if there is none.
        """
        if self._clock_ahead_ms is None:
            return False
        kafka_ms = max(now_s * 1000 + self._clock_ahead_ms, timestamp_ms)
        return not could_be_cleaned(before_ms or None, kafka_ms, self._half_lag_s * 1000)

    def _advance(self, now_s: float) -> None:
        if self.position < self.end_offset:
            if now_s - self._opened_at_s > self._half_lag_s:
                self._start_over("reading took longer than half of the compaction lag")
            return
        if self._stops_for_count():
            return
        if self._aside is None:
            self.strict = True
            self._catch_up("no gaps from offset 0: judged strictly from the start")
        elif now_s - self._opened_at_s > self._half_lag_s:
            self._start_over("reading took longer than half of the compaction lag")
        else:
            self.phase = Phase.WAITING
            self._ended_at_s = now_s
            self.why = (
                f"read to offset {self.end_offset - 1}; waiting for a heartbeat with clean_to >= {self.end_offset - 1}"
            )
            if self.is_headless:
                self.why = "records were deleted from the log: waiting for a broker that knows them to restate them"
            self._join()

    def _join(self) -> None:
        """Switch to judging if a heartbeat vouches for the read records, or the log itself suffices."""
        aside = self._aside
        if self.phase is not Phase.WAITING or aside is None:
            return
        voucher = aside.voucher
        if aside.clean_to < aside.refused_to and (voucher is None or voucher.incarnation == aside.refused):
            return
        if self.is_truncated and self.is_headless:
            return  # who vouches for it may not know either what else was there
        if self.first_offset > 0 and not self.marks.restates(self.first_offset, -1) and not self._accepts_lost_head:
            return
        if self.is_headless and aside.voucher is None:
            return  # an empty log needs no word to be read to its end, and this one was not empty
        if aside.vouched_for(self.end_offset):
            self._switch(aside, f"a heartbeat vouched for everything through offset {aside.clean_to}")
        elif self.is_headless or self._clock_ahead_ms is None:
            return
        elif aside.vouched_by_log(self._ended_at_s * 1000 + self._clock_ahead_ms):
            why = f"the newest clean heartbeat vouches for everything through offset {aside.clean_to}"
            self._switch(aside, f"{why}, and nothing above it can have been compacted")

    def _switch(self, aside: Aside, why: str) -> None:
        later = aside.cut(aside.clean_to)
        view = aside.joiner.view()
        if not self._is_vouched(aside, view):
            self.why = (
                f"what was read differs from what the broker that vouches for it holds at offset {aside.clean_to}"
            )
            aside.refuse(later)
            return
        self.view = view
        self._catch_up(why)
        for record in later:
            self.view.read(record.offset, record.key, record.value)

    def _is_vouched(self, aside: Aside, view: View) -> bool:
        """Whether the heartbeat that vouches for a view names the states in it; those of older versions name none."""
        voucher = aside.voucher
        theirs = None if voucher is None or voucher.covers != aside.clean_to else ViewSummary.read(voucher.raw)
        if voucher is None or theirs is None or partitions_in(voucher.raw) != self.partitions:
            return True
        self._digest = ViewDigest(view)
        own = self._digest.advance(len(view.keys))
        return own is None or self._note(voucher, theirs, own)

    def assume(self) -> list[str]:
        """Cold start: accept the view as the truth; returns the keys that have to be asserted.

        Where records were deleted that no member had read, it is what this one held before, with what was written since.
        Live bundles get a version above all that was ever accepted, so that no generation is served twice.
        """
        aside = self._aside
        if aside is None:
            return []
        aside.cut(self.applied)
        kept = self.kept if self.is_headless else None
        joiner = aside.joiner if kept is None else continued(kept, aside.joiner, self.applied)
        self.view = joiner.view()
        names = dict.fromkeys(key.decode() for key in joiner.last)
        bound = self._version_bound()
        names |= dict.fromkeys(lift(self.view, bound))
        self.view.highest = max(self.view.highest, bound)
        self._catch_up("cold start: the view is accepted as the truth")
        self.kept = kept  # until the mark is in the log: this cold start may be given up
        return [*names]

    @property
    def first_version(self) -> int:
        """Version with which a namespace that does not exist begins: above all that a lost part of the log may have had."""
        is_whole = self.marks.newest < 0 and self.marks.head is None
        return 1 if is_whole else self.view.highest + 1

    def _version_bound(self) -> int:
        """No version was accepted above this one, in whatever part of the log was lost: each record adds 2 at most.

        The Deleted record of a split has one more than the Splitting one, and its children one more than it. One record of each
        key may still be in flight.
        """
        heartbeat = self.marks.heartbeat
        highest = 0 if heartbeat is None else version_bound_in(heartbeat.raw)
        records = max(self.position, self.known + UNPROVEN_RECORDS if self.known >= 0 else 0) + 1
        # An older version wrote the heartbeat, or one that may not know what was truncated.
        if self.is_truncated or heartbeat is None or not highest or heartbeat.covers >= self.position:
            bound = self.view.highest + VERSIONS_A_RECORD * records
        else:
            bound = highest + VERSIONS_A_RECORD * (records - heartbeat.covers)
        if self.is_headless:
            bound = max(bound, self.versions_below + VERSIONS_A_RECORD * UNPROVEN_RECORDS)
        return min(VERSION_BOUND_MAX, bound)

    def _catch_up(self, why: str) -> None:
        self.phase = Phase.CAUGHT_UP
        self.why = why
        self._aside = self.kept = None
        self.view.changed_at = self.view.applied
        self.view.highest = max(self.view.highest, self.marks.highest)

    def _start_over(self, why: str) -> None:
        self.phase = Phase.START_OVER
        self.why = why
        self._aside = None

    def _stop(self, newer_format: int, offset: int) -> None:
        self.phase = Phase.STOPPED
        self.newer_format = newer_format
        self.why = (
            f"offset {offset} of partition {self.partition} is written in format {newer_format}, and this "
            f"version reads up to format {self._newest}; upgrade to continue"
        )

    def start_over(self, why: str) -> None:
        """Join again: states judged here are void."""
        self._start_over(why)

    def broken(self, why: str) -> None:
        """Stop: the adapter detected that the topic is not the opened one."""
        self._break(why)

    def _break(self, why: str) -> None:
        self.phase = Phase.BROKEN
        self.why = why
