"""The job table-view without Spark: the same decisions, the same fold, on lists; what lies between is written anew here."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spark.channel.fold import GroupFold, Line
from spark.channel.plan import (
    BatchContents,
    BatchStep,
    ColdStartMark,
    Missing,
    Reading,
    ReadingPosition,
    Vouching,
    WholeLog,
    go_on,
    join,
    why_join,
)
from statechannel.engine.cold_start import decode_mark
from statechannel.protocol.codec import COLD_START_KEY, HEARTBEAT_KEY, decode_heartbeat, newer_format
from statechannel.protocol.digest import digest
from statechannel.protocol.log import RecordRead
from statechannel.protocol.overruling import OverruledState
from statechannel.protocol.view import Judgement
from statechannel.protocol.view_rows import KeyRow, restore
from statechannel.replay import auditor
from statechannel.replay.survey import FormatStop

LAG_MS = 3_600_000
Group = tuple[int, str]


def audited(
    records: list[RecordRead], ends: dict[int, int], now_ms: int = 0
) -> tuple[dict[str, Any], dict[tuple[int, int], str]]:
    """The core's answer, and its verdicts by partition and offset."""
    verdicts: dict[tuple[int, int], str] = {}

    def observe(record: RecordRead, judgement: Judgement) -> None:
        verdicts[record.partition, record.offset] = judgement.verdict.value

    apart = {number: [r for r in records if r.partition == number] for number in ends}
    answer = auditor.audit(
        apart, end_offsets=ends, read="auto", now_ms=now_ms, compaction_lag_ms=LAG_MS, observe=observe
    )
    return answer, verdicts


def group_of(key: bytes | None) -> str:
    """What is folded together."""
    try:
        return "/".join((key or b"").decode().split("/")[:2])
    except UnicodeDecodeError:
        return (key or b"").hex()


def seen_in(records: Sequence[RecordRead], position: int) -> BatchContents:
    """What records of one partition hold, up to the first newer format."""
    stop = None
    upto: list[RecordRead] = []
    for record in records:
        upto.append(record)
        if newer := newer_format(record.key, record.value):
            stop = FormatStop(record.offset, newer)
            break
    expected, gap_end, gap_end_ms = position, -1, 0
    heartbeats, marks = [], []
    for record in upto:
        if record.offset != expected:
            gap_end, gap_end_ms = record.offset, record.timestamp_ms
        expected = record.offset + 1
        if record.key == HEARTBEAT_KEY and (heartbeat := decode_heartbeat(record.value)) is not None:
            heartbeats.append(Vouching(record.offset, heartbeat.clean_to))
        if record.key == COLD_START_KEY and (mark := decode_mark(record.value)) is not None:
            marks.append(ColdStartMark(record.offset, mark.through))
    times = [record.timestamp_ms for record in upto]
    return BatchContents(
        len(upto),
        upto[0].offset,
        upto[-1].offset,
        min(times),
        max(times),
        gap_end,
        gap_end_ms,
        stop,
        tuple(heartbeats),
        tuple(marks),
    )


@dataclass
class PureTable:
    """View and archive of a log; `topic` is what lies in Kafka now."""

    partitions: int
    topic: list[RecordRead] = field(default_factory=list)
    places: dict[int, ReadingPosition] = field(default_factory=dict)
    rows: dict[Group, list[KeyRow]] = field(default_factory=dict)
    archive: list[tuple[int, int, Line]] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    growing: dict[int, int] = field(default_factory=dict)
    differences: list[OverruledState] = field(default_factory=list)
    now_ms: int = 0

    def process(self, batch: Iterable[RecordRead]) -> None:
        """Take in a batch, in any order."""
        by_partition: dict[int, list[RecordRead]] = defaultdict(list)
        for record in sorted(batch, key=lambda item: item.offset):
            if record.offset >= self.place(record.partition).position:
                by_partition[record.partition].append(record)
        for number, records in sorted(by_partition.items()):
            self._take(number, records)

    def place(self, number: int) -> ReadingPosition:
        return self.places.get(number, ReadingPosition())

    def _take(self, number: int, records: list[RecordRead]) -> None:
        place = self.place(number)
        seen = seen_in(records, place.position)
        mine = [record for record in self.topic if record.partition == number]
        log_end = max((bundle.offset for bundle in mine), default=-1) + 1
        why = why_join(place, seen, oldest_kept_ms=self.now_ms - LAG_MS, log_end=log_end)
        if why is None:
            step = go_on(self.partitions, number, place, seen)
        else:
            records = [bundle for bundle in mine if bundle.offset < seen.first] + records
            whole = seen_in(records, 0)
            oldest_kept_ms = max(self.now_ms, whole.newest_ms) - LAG_MS
            old = [
                record.offset
                for record in records
                if record.timestamp_ms <= oldest_kept_ms and record.offset <= whole.last
            ]
            step = join(self.partitions, number, place, seen, WholeLog(whole, max(old, default=-1)), why)
        folds: dict[Group, GroupFold] = {}
        made_anew = step.plan.joins and not step.plan.cold_start
        wanted = {(number, group_of(record.key)) for record in records}
        for group, held in self.rows.items():
            if group[0] == number and (step.plan.joins or group in wanted):
                fold = folds[group] = GroupFold(number, step.plan)
                for row in () if made_anew else held:
                    fold.hold(row)
        for record in records:
            group = (number, group_of(record.key))
            fold = folds.setdefault(group, GroupFold(number, step.plan))
            line = fold.read(record.offset, record.key, record.value)
            if line is not None:
                self.archive.append((number, record.offset, line))
        for group, fold in folds.items():
            self.rows[group] = list(fold.rows())
            self.differences += fold.differences()
        self.places[number] = step.place
        self._misses(number, step)

    def _misses(self, number: int, step: BatchStep) -> None:
        """A stretch that nobody has vouched for yet grows with each further gap."""
        if step.missing is not None:
            at = self.growing.get(number)
            if at is None:
                self.growing[number] = len(self.missing)
                self.missing.append(step.missing)
            else:
                grown = replace(self.missing[at], to_offset=step.missing.to_offset, to_ms=step.missing.to_ms)
                self.missing[at] = grown
        if step.place.reading is Reading.STRICT:
            self.growing.pop(number, None)

    def digest(self) -> str:
        return digest(restore(number, self.partitions, rows) for (number, _), rows in self.rows.items())

    def verdicts(self) -> dict[tuple[int, int], str | None]:
        """By partition and offset; fails if a record is archived twice."""
        verdicts = {(number, offset): line.verdict for number, offset, line in self.archive}
        assert len(verdicts) == len(self.archive), "a record was archived twice"
        return verdicts

    @property
    def tentative(self) -> bool:
        return any(place.reading is Reading.JOINING for place in self.places.values())
