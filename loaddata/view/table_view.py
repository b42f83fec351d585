"""Table view of a load topic: the newest report of each broker, its age, whether it is stale, and its expiry. Pure.

Age is counted by the reader's own monotonic clock from the arrival of the report. For records that were in the topic before the
reader started, the age on arrival is estimated (see `age_on_arrival`).

The leader lets reports expire that are not renewed: suspect, then grace period, then tombstone. The Spark job does the same if
it is on; the leader's own tombstones are off then. A new leader starts without suspects, so that it never writes a tombstone
before it has seen a whole grace period.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from loaddata.model.figures import wall_ms
from loaddata.report.record import EXPIRED, InvalidReportReason, ReportHeader, Tombstone, parse_tombstone
from loaddata.view.ownership import OwnershipChange
from statechannel.protocol.codec import is_broker_id
from statechannel.protocol.side_record import InvalidRecord, SideRecord


class HeldReport(Protocol):
    """A held report; `table_view.ReportView` implements it."""

    @property
    def offset(self) -> int: ...

    @property
    def age_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class ExpiryRules:
    """Times of the expiry.

    Attributes:
        ttl_s: Time to live of a report; one that is older is suspect.
        grace_s: Grace period in which a suspect may be renewed.
        repeat_s: A tombstone without effect is written again after this time: it may have been lost.
        batch_max: Tombstones in one step; the others wait for the next.
    """

    ttl_s: float = 1_800.0
    grace_s: float = 30.0
    repeat_s: float = 60.0
    batch_max: int = 100


@dataclass(slots=True)
class _Suspect:
    offset: int
    since_s: float
    written_s: float | None = None


@dataclass(slots=True)
class Expiry:
    """Suspects of one load topic. They are dropped when they report, or are gone."""

    rules: ExpiryRules = field(default_factory=ExpiryRules)
    _suspects: dict[str, _Suspect] = field(default_factory=dict)

    @property
    def suspects(self) -> list[str]:
        """Brokers whose reports are older than their time to live, sorted."""
        return sorted(self._suspects)

    def reset(self) -> None:
        """Drop all suspects, when leadership changes."""
        self._suspects.clear()

    def step(self, held: Mapping[str, HeldReport], now_s: float, now_ms: int) -> dict[str, Tombstone]:
        """The tombstones to write now, by broker.

        Args:
            held: Newest report of each broker, as this leader holds it; those within their time to live may be left out.
            now_s: Monotonic.
            now_ms: Wall time, for the header that people read.
        """
        due: dict[str, Tombstone] = {}
        suspects: dict[str, _Suspect] = {}
        for name in sorted(held):
            report = held[name]
            if not report.age_s > self.rules.ttl_s:
                continue
            suspect = self._suspects.get(name)
            if suspect is None or suspect.offset != report.offset:
                suspect = _Suspect(report.offset, now_s)
            suspects[name] = suspect
            if len(due) < self.rules.batch_max and self._is_due(suspect, now_s):
                suspect.written_s = now_s
                overdue_ms = min(report.age_s - self.rules.ttl_s, 1e9) * 1_000
                due[name] = Tombstone(EXPIRED, report.offset, wall_ms(now_ms - round(overdue_ms)))
        self._suspects = suspects
        return due

    def _is_due(self, suspect: _Suspect, now_s: float) -> bool:
        if now_s - suspect.since_s < self.rules.grace_s:
            return False
        return suspect.written_s is None or now_s - suspect.written_s >= self.rules.repeat_s


class HasHeader(Protocol):
    @property
    def header(self) -> ReportHeader: ...


Report = TypeVar("Report", bound=HasHeader)


class Fate(StrEnum):
    """The result of reading a record. Dropped records are also counted by `InvalidReportReason`."""

    TAKEN = "taken"
    LATE = "late"
    DROPPED = "dropped"
    HONOURED = "honoured"
    NOT_HONOURED = "not-honoured"


class Dropped(StrEnum):
    """Reasons in addition to those of `InvalidReportReason`."""

    BARE_NULL = "bare-null"
    TOO_MANY_BROKERS = "too-many-brokers"
    NO_ROOM = "no-room"


def age_on_arrival(timestamp_ms: int, later_ms: int, wall_ms: int | None) -> float:
    """Minimum age of a record when it arrives, in seconds.

    Args:
        timestamp_ms: Log time of the record.
        later_ms: Log time of a later record, in the order of the log: it is older by the difference.
        wall_ms: The reader's wall clock, for records that were in the topic before the reader started; None for those read
            live. With a wrong clock old reports seem too old, or new until the next one comes.
    """
    return max(0, later_ms - timestamp_ms, (wall_ms or 0) - timestamp_ms) / 1_000


class Arrival(NamedTuple):
    """When a record was read.

    Attributes:
        now_s: Reader's monotonic time.
        later_ms: Log time of the last record of the same batch.
        wall_ms: See `age_on_arrival`.
    """

    now_s: float
    later_ms: int = 0
    wall_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReportEntry(Generic[Report]):
    """The newest report of one broker.

    Attributes:
        born_s: Estimate of the reader's monotonic time at which it was written.
        size_bytes: Of the record's value.
    """

    report: Report
    offset: int
    born_s: float
    size_bytes: int


class ReportView(Generic[Report], NamedTuple):
    """An entry at one moment.

    Attributes:
        age_s: By the reader's monotonic clock.
        lapsed: Whether it is stale: the broker's bundles have changed since its figures were taken.
    """

    report: Report
    offset: int
    age_s: float
    outdated: bool
    lapsed: bool


@dataclass(frozen=True, slots=True)
class ViewRules:
    """Bounds of a view.

    Attributes:
        ttl_s: Time to live of a report, by the reader's clock.
        brokers_max: Number of brokers. Beyond it unregistered and outdated ones make room; if there are none, new ones are
            refused, so that invalid records cannot displace valid ones.
        strangers_max: Number of unregistered brokers among them; beyond it the oldest is dropped.
        held_bytes: Encoded size of all reports; a report for which others make no room is refused.
        clock_differs_max_s: The report of a writer whose wall clock differs from the log's by more than this is dropped.
    """

    ttl_s: float = 1_800.0
    brokers_max: int = 10_000
    clock_differs_max_s: float = 86_400.0
    strangers_max: int = 100
    held_bytes: int = 64 * 2**20


@dataclass(slots=True)
class TableView(Generic[Report]):
    """Fold of one load topic, keyed by broker.

    Attributes:
        position: Offset of the newest record that was read, whatever the result; -1 before the first.
        held_bytes: Size of the values of all held reports.
        fates: Records by result. `dropped`: those dropped, by reason. `last_dropped`: why the newest was;
            `last_reason`: the same for programs.
    """

    rules: ViewRules = field(default_factory=ViewRules)
    fates: Counter[Fate] = field(default_factory=Counter)
    dropped: Counter[StrEnum] = field(default_factory=Counter)
    last_dropped: str = ""
    last_reason: StrEnum | None = None
    position: int = -1
    held_bytes: int = 0
    _known: dict[str, float] | None = None
    _entries: dict[str, ReportEntry[Report]] = field(default_factory=dict)
    _strangers: dict[str, None] = field(default_factory=dict)
    _changed: dict[str, dict[int, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, broker: str) -> bool:
        return broker in self._entries

    def reopened(self) -> None:
        """The topic is read from its beginning (again): offsets start over."""
        self._entries.clear()
        self._strangers.clear()
        self.held_bytes = 0
        self.position = -1

    def registered(self, brokers: Iterable[str], now_s: float) -> None:
        """Set the registered brokers. Reports of others do not count; before the first call all reports do.

        A broker that was registered within the time to live still counts: its bundles are placed by its last report.
        """
        known = {} if self._known is None else self._known
        for name in brokers:
            known.pop(name, None)
            known[name] = now_s
        for name in list(known):
            if now_s - known[name] <= self.rules.ttl_s and len(known) <= self.rules.brokers_max:
                break  # they are in the order of their last registration
            del known[name]
        self._known = known
        self._strangers = {name: None for name in self._entries if name not in known}
        self._trim_strangers(self.rules.strangers_max)

    @property
    def strangers(self) -> list[str]:
        """Unregistered brokers whose reports are held, the oldest first."""
        return list(self._strangers)

    def read(self, record: SideRecord, report: Report | InvalidRecord | None, arrival: Arrival) -> Fate:
        """Read one record.

        Args:
            report: The decoded value; None for a null.
        """
        self.position = max(self.position, record.offset)
        fate = self._null(record) if report is None else self._value(record, report, arrival)
        self.fates[fate] += 1
        return fate

    def _value(self, record: SideRecord, report: Report | InvalidRecord, arrival: Arrival) -> Fate:
        if isinstance(report, InvalidRecord):
            return self._drop(report.reason, report.why)
        header = report.header
        if record.timestamp_ms > 0:
            differs_s = abs(header.written_at_ms - record.timestamp_ms) / 1_000
            if differs_s > self.rules.clock_differs_max_s:
                return self._drop(
                    InvalidReportReason.CLOCK,
                    f"the clock of {header.broker} differs from the log's by {differs_s:.0f} s",
                )
        held = self._entries.get(header.broker)
        if held is not None and _is_late(header, held.report.header) and not self._is_outdated(held, arrival.now_s):
            return Fate.LATE
        size_bytes = len(record.value or b"")
        refused = self._make_room(header.broker, size_bytes, arrival.now_s)
        if refused is not None:
            return self._drop(
                refused, f"no room for {header.broker}: {len(self)} brokers report {self.held_bytes} bytes"
            )
        age_s = age_on_arrival(record.timestamp_ms, arrival.later_ms, arrival.wall_ms)
        self._forget(header.broker)  # keeps the order of the newest reports
        self._entries[header.broker] = ReportEntry(report, record.offset, arrival.now_s - age_s, size_bytes)
        if self._known is not None and header.broker not in self._known:
            self._strangers[header.broker] = None
        self.held_bytes += size_bytes
        return Fate.TAKEN

    def _null(self, record: SideRecord) -> Fate:
        tombstone = parse_tombstone(record.headers, record.offset)
        name = (record.key or b"").decode("ascii", errors="replace")
        if tombstone is None:
            return self._drop(Dropped.BARE_NULL, f"a null of {name!r} without the headers of a tombstone")
        if not is_broker_id(name):
            return self._drop(InvalidReportReason.KEY, f"the key {name[:80]!r} is not a broker id")
        held = self._entries.get(name)
        if held is not None and not tombstone.honoured_over(held.offset):
            return Fate.NOT_HONOURED
        self._forget(name)
        return Fate.HONOURED

    def _drop(self, reason: StrEnum, why: str) -> Fate:
        self.dropped[reason] += 1
        self.last_dropped, self.last_reason = why, reason
        return Fate.DROPPED

    def _forget(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        self._strangers.pop(name, None)
        if entry is not None:
            self.held_bytes -= entry.size_bytes

    def _make_room(self, broker: str, size_bytes: int, now_s: float) -> Dropped | None:
        """Drop the least important entries until a report fits; why it does not, if none are left to drop."""
        held = self._entries.get(broker)
        new, more_bytes = held is None, size_bytes - (0 if held is None else held.size_bytes)
        stranger = self._known is not None and broker not in self._known
        if stranger and broker not in self._strangers:
            self._trim_strangers(self.rules.strangers_max - 1)
        while not self._fits(new, more_bytes) and (
            others := [name for name in islice(self._strangers, 2) if name != broker]
        ):
            self._forget(others[0])
        if not stranger and not self._fits(new, more_bytes):
            for name in [name for name, entry in self._entries.items() if self._is_outdated(entry, now_s)]:
                if name != broker:
                    self._forget(name)
        if self._fits(new, more_bytes):
            return None
        return Dropped.TOO_MANY_BROKERS if len(self) + new > self.rules.brokers_max else Dropped.NO_ROOM

    def _fits(self, new: bool, more_bytes: int) -> bool:
        return len(self) + new <= self.rules.brokers_max and self.held_bytes + more_bytes <= self.rules.held_bytes

    def _trim_strangers(self, count_max: int) -> None:
        while len(self._strangers) > count_max:
            self._forget(next(iter(self._strangers)))

    def ownership_changed(self, change: OwnershipChange) -> None:
        """Record a change of ownership: the broker's report must name this position, or a later one, to be current."""
        positions = self._changed.pop(change.broker, {})
        positions[change.partition] = max(positions.get(change.partition, -1), change.offset)
        self._changed[change.broker] = positions
        if len(self._changed) > self.rules.brokers_max:
            del self._changed[next(iter(self._changed))]  # the one whose bundles have not changed for longest

    def lapsed(self, header: ReportHeader) -> bool:
        """Whether a report is stale: the broker's bundles have changed since its figures."""
        known = self._changed.get(header.broker, {})
        return any(header.owned_as_of.get(partition, -1) < offset for partition, offset in known.items())

    def seen(self, now_s: float) -> dict[str, ReportView[Report]]:
        """The newest report of every registered broker, sorted; outdated ones included, and marked."""
        known = self._known
        names = self._entries if known is None else [name for name in self._entries if name in known]
        return {name: self._seen(self._entries[name], now_s) for name in sorted(names)}

    def held(self, now_s: float) -> dict[str, ReportView[Report]]:
        """Reports at this moment, those of unregistered brokers too."""
        return {name: self._seen(self._entries[name], now_s) for name in sorted(self._entries)}

    def outdated(self, now_s: float) -> dict[str, ReportView[Report]]:
        """Held reports that are older than the time to live."""
        names = [name for name, entry in self._entries.items() if self._is_outdated(entry, now_s)]
        return {name: self._seen(self._entries[name], now_s) for name in sorted(names)}

    def get(self, broker: str, now_s: float) -> ReportView[Report] | None:
        entry = self._entries.get(broker)
        return None if entry is None else self._seen(entry, now_s)

    def _seen(self, entry: ReportEntry[Report], now_s: float) -> ReportView[Report]:
        age_s = max(0.0, now_s - entry.born_s)
        return ReportView(entry.report, entry.offset, age_s, age_s > self.rules.ttl_s, self.lapsed(entry.report.header))

    def _is_outdated(self, entry: ReportEntry[Report], now_s: float) -> bool:
        return now_s - entry.born_s > self.rules.ttl_s


def decoder(
    decode: Callable[[bytes | None, bytes], Report | InvalidRecord],
) -> Callable[[SideRecord], Report | InvalidRecord | None]:
    """A decoder of whole records, nulls to None; runs in the reader's thread, before `TableView.read`."""
    return lambda record: None if record.value is None else decode(record.key, record.value)


def _is_late(header: ReportHeader, held: ReportHeader) -> bool:
    """Whether a report of the same process does not have a higher number: it was overtaken in flight, or is a duplicate."""
    return header.incarnation == held.incarnation and header.seq <= held.seq
