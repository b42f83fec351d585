"""When the job writes a tombstone for a stale report: ages and moments for the rules of `loaddata.view.table_view`. Pure.

Ages are those of a clock that only runs (`time.monotonic` in the driver), from when the job heard the broker last: by any
record that decodes, also one that its view dropped or found late. What lay in the topic before is as old as the log's own
clock proves: log time against log time, never a machine's wall clock. Log time is asked once, when the job has read up to the
end: a Kafka broker whose clock jumps later ages no report.

Judged is *as of* a moment at which the end of the topic was asked for, once everything before that end has been read. So what
waits in the topic always counts, and a job that lags behind judges no broker.

Grace is *watched* time. A gap between two judgements that is much longer than the one before counts little, and a very long one
ends every suspicion: while the job was stopped or waited for Kafka, brokers may have been unable to report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from loaddata.report.record import Tombstone
from loaddata.view.table_view import Expiry, ExpiryRules
from spark.load.fold import LastReport

_MARKS_KEPT: Final = 2
"""This batch's and the one before: where records come all the time, a batch never reaches the end as it is now."""
_JUST_AFTER_S: Final = 1e-6
_LONG_GAP_S: Final = 10.0
"""Kafka's producers bridge shorter ones; so do two judgements."""


class LoadTopicEnd(NamedTuple):
    """The end of the topic at a moment.

    Attributes:
        at_s: Monotonic time, before the question was asked.
        end: Offset behind the last record then.
    """

    at_s: float
    end: int


class Aged(NamedTuple):
    offset: int
    age_s: float


@dataclass(slots=True)
class _Born:
    offset: int
    born_s: float
    settled: bool = False


@dataclass(slots=True)
class TopicExpiry:
    """Ages and suspects of one topic. A new one knows no suspects: a whole grace period passes before its first tombstone.

    Attributes:
        watch_gap_s: A gap between two judgements that is as usual: two triggers. On a slow machine gaps are longer: up to
            twice the gap before is usual, too.
        judged_s: The newest moment as of which was judged; None before the first.
    """

    rules: ExpiryRules = field(default_factory=ExpiryRules)
    watch_gap_s: float = 10.0
    judged_s: float | None = None
    _watched_s: float = 0.0
    _gap_s: float = 0.0
    _expiry: Expiry = field(init=False)
    _born: dict[str, _Born] = field(default_factory=dict)
    _marks: list[LoadTopicEnd] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._expiry = Expiry(self.rules)

    @property
    def suspects(self) -> list[str]:
        """Brokers whose reports are older than their time to live, sorted."""
        return self._expiry.suspects

    def asked(self, mark: LoadTopicEnd) -> None:
        """The end of the topic was asked for, before the records of a batch are read."""
        self._marks = [*self._marks, mark][-_MARKS_KEPT:]

    def heard(self, held: Mapping[str, LastReport], now_s: float) -> None:
        """What is held after a batch.

        Args:
            held: Last sign of life of each broker whose report is held.
            now_s: Monotonic time at which the batch began: what it holds was written before.
        """
        born: dict[str, _Born] = {}
        for name, report in held.items():
            # What was read behind an end that was reached is not older than that end, whatever the log's clock says.
            proven_s = max(now_s - report.log_age_s, -inf if self.judged_s is None else self.judged_s)
            known = self._born.get(name)
            if known is None or known.offset != report.offset:
                known = _Born(report.offset, proven_s)
            elif not known.settled:
                known.born_s = min(known.born_s, proven_s)
            born[name] = known
        self._born = born

    def step(self, position: int, now_ms: int) -> dict[str, Tombstone]:
        """The tombstones to write now, by broker; none while the job lags behind.

        Args:
            position: Next offset: all records below it count in what was `heard`.
            now_ms: Wall time, for the header that people read.
        """
        reached = [mark.at_s for mark in self._marks if mark.end <= position]
        if not reached or (self.judged_s is not None and reached[-1] <= self.judged_s):
            return {}
        now_s, before_s, watched_s = reached[-1], self.judged_s, self._watched_s
        for born in self._born.values():
            born.settled = True
        self.judged_s = now_s
        due: dict[str, Tombstone] = {}
        if before_s is not None:
            gap_s, usual_s = now_s - before_s, max(self.watch_gap_s, 2 * self._gap_s)
            self._gap_s = gap_s
            self._watched_s += gap_s if gap_s <= usual_s else self.watch_gap_s
            if gap_s > max(usual_s, self.rules.grace_s / 2, _LONG_GAP_S):
                self._expiry.reset()
            elif gap_s <= usual_s and (crossed_s := self._crossed(before_s, now_s)) is not None:
                due = self._judge(crossed_s, watched_s + crossed_s - before_s, now_ms)
        return due | self._judge(now_s, self._watched_s, now_ms)

    def _crossed(self, before_s: float, now_s: float) -> float | None:
        """The last moment between two judgements at which a report expired.

        Who ran out is suspect from there on, not only from the next trigger.
        """
        ends = [born.born_s + self.rules.ttl_s for born in self._born.values()]
        crossed_s = max((end for end in ends if before_s <= end < now_s), default=None)
        return None if crossed_s is None else min(crossed_s + _JUST_AFTER_S, now_s)

    def _judge(self, as_of_s: float, watched_s: float, now_ms: int) -> dict[str, Tombstone]:
        aged = {name: Aged(born.offset, as_of_s - born.born_s) for name, born in self._born.items()}
        return self._expiry.step(aged, watched_s, now_ms)
