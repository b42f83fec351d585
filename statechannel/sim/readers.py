"""Readers of the protocol level: `protocol.replica` on a log that is cleaned under their feet, checked at every record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.protocol.replica import Phase, Replica
from statechannel.protocol.verdict import Verdict
from statechannel.sim.truth import accepted_of, compare
from statechannel.sim.violation import Violation
from statechannel.sim.vouching import counting_marks, vouched_to

if TYPE_CHECKING:
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.view import Judgement
    from statechannel.sim.log import SimLog
    from statechannel.sim.trace import SimTrace
    from statechannel.sim.truth import Truth

_FULL_CHECK_EVERY = 16


class SimReader:
    """One reader of one partition.

    Attributes:
        pace: How many records it may read at a time.
    """

    def __init__(self, name: str, log: SimLog, truth: Truth, partitions: int, trace: SimTrace) -> None:
        self.name = name
        self.log = log
        self.truth = truth
        self.replica = Replica(
            log.partition, partitions, compaction_lag_s=log.settings.lag_ms / 1000, kept_records_max=100_000
        )
        self.position = 0
        self.pace: tuple[int, ...] = (1, 2, 5, 20, 1000)
        self._trace = trace
        self._since_check = 0
        self._starts = 0
        self._now_ms = 0
        self._waits = False

    @property
    def caught_up(self) -> bool:
        """Whether its view may be acted on."""
        return self.replica.caught_up

    def open(self, now_ms: int) -> None:
        """Start, or start over, at the beginning."""
        self.position = 0
        self._starts += 1
        self._trace.count("joins")
        if self._starts > 1:
            self._trace.count("started over")
        self.replica.learn_clock(0.0)  # the log's clock is the only one here
        self.replica.opened(now_ms / 1000, 0, self.log.end)
        self._after(None, None)

    def read(self, now_ms: int, most: int) -> None:
        """Read up to `most` records."""
        self._now_ms = now_ms
        if self.replica.phase is Phase.CLOSED:
            self.open(now_ms)
        for _ in range(most):
            record = self.log.next(self.position)
            if record is None:
                if self.position < self.log.end:
                    self.position = self.log.end
                self.replica.reached(now_ms / 1000, self.log.end)
                self._after(None, None)
                break
            self.position = record.offset + 1
            judgement = self.replica.read(now_ms / 1000, record)
            self._after(record, judgement)
            if self.replica.phase is Phase.STOPPED:
                break
        if self.replica.phase is Phase.START_OVER:
            self._trace.add(f"{self.name} starts over: {self.replica.why}")
            if self.replica.has_met_gap:
                self._trace.count("gaps met")
            self.open(now_ms)
        if self.replica.phase is Phase.BROKEN:
            raise Violation("broken", f"{self.name}: {self.replica.why}")

    def _after(self, record: RecordRead | None, judgement: Judgement | None) -> None:
        replica = self.replica
        if replica.phase is Phase.STOPPED:
            if self.truth.stopped_at < 0 or self.truth.stopped_at > self.position:
                raise Violation("stop", f"{self.name} stopped at {self.position}: {replica.why}")
            return
        if not replica.caught_up:
            self._since_check = -1
            if replica.phase is Phase.WAITING and not self._waits:
                self._check_wait()
            self._waits = replica.phase is Phase.WAITING
            return
        if self._since_check < 0:
            self._trace.count("strict from the start" if replica.strict else "joins completed")
            self._trace.add(f"{self.name} caught up at {replica.view.applied}: {replica.why}")
            self._check()
        elif record is not None and judgement is not None:
            self._check_one(record, judgement)

    def _check_wait(self) -> None:
        """Nobody waits for a word where the log leaves nothing to guess, or vouches by itself."""
        log, replica = self.log, self.replica
        if not log.cleaned:
            raise Violation("lenient", f"{self.name} waits with {log.end} records of a whole log: {replica.why}")
        vouched = vouched_to(log, replica.position, self._now_ms, marks=counting_marks(log.entries))
        if vouched >= 0:
            raise Violation("wait", f"{self.name} waits although the log vouches through {vouched}: {replica.why}")

    def _check(self) -> None:
        self._since_check = 0
        compare(self.name, self.replica.view, self.truth)
        self._trace.count("comparisons")

    def _check_one(self, record: RecordRead, judgement: Judgement) -> None:
        truth = self.truth
        if truth.stopped_at >= 0 and record.offset >= truth.stopped_at:
            raise Violation("stop", f"{self.name} judged {record.offset} beyond the newer format at {truth.stopped_at}")
        want = truth.verdicts[record.offset]
        if judgement.verdict is not want:
            raise Violation(
                "verdict", f"{self.name} says {judgement.verdict} at {record.offset}, the truth says {want}"
            )
        key = judgement.key
        if key is not None and key.state is not None:
            expected = truth.states[record.offset].get(key.key)
            if accepted_of(key) != expected:
                raise Violation("history", f"{self.name} at {record.offset} holds {key!r} instead of {expected}")
        self._since_check += 1
        if self._since_check >= _FULL_CHECK_EVERY or (
            want is Verdict.ACCEPTED and key is not None and key.is_namespace
        ):
            self._check()
