"""What a reader holds of a load topic: the newest report of each broker, its age, and whether it has lapsed. Pure.

Age is counted by the reader's own monotonic clock from the arrival of the report. For what lay in the topic before the reader
came, the age on arrival is estimated (see `age_on_arrival`); it never makes a report younger than it is by the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from loaddata.ownership import OwnershipChange
from loaddata.report_record import Header, Undecodable
from loaddata.tombstone import EXPIRED, Headers, Tombstone, parse_tombstone


class HasHeader(Protocol):
    """A report."""

    @property
    def header(self) -> Header:
        """Who wrote it, and when."""
        ...


Report = TypeVar("Report", bound=HasHeader)


class LoadRecord(NamedTuple):
    """One record of a load topic, as the light reader hands it over.

    Attributes:
        timestamp_ms: The log's own time.
    """

    key: bytes | None
    value: bytes | None
    headers: Headers
    offset: int
    timestamp_ms: int


def age_on_arrival(timestamp_ms: int, newest_ms: int, wall_ms: int | None) -> float:
    """How old a record is at least when it arrives, in seconds.

    Args:
        timestamp_ms: Log time of the record.
        newest_ms: Newest log time that this reader has seen in the topic: the record is at least that much older.
        wall_ms: The reader's wall clock, for what lay in the topic before it came; None for what is read live. A reader
            whose clock is wrong calls old reports too old, or takes them for new until the next one comes.
    """
    oldest_ms = max(newest_ms, wall_ms or 0) - timestamp_ms
    return max(0, oldest_ms) / 1_000


@dataclass(frozen=True, slots=True)
class Entry(Generic[Report]):
    """The newest report of one broker.

    Attributes:
        offset: Where it lies in the topic.
        timestamp_ms: The log's own time of it.
        born_s: Reader's monotonic time at which it was written, as far as can be known.
    """

    report: Report
    offset: int
    timestamp_ms: int
    born_s: float


class Seen(Generic[Report], NamedTuple):
    """An entry as it stands now.

    Attributes:
        age_s: By the reader's monotonic clock.
        outdated: Older than the time to live.
        lapsed: The broker's bundles have changed since its figures were taken: not to be used blindly.
    """

    report: Report
    offset: int
    age_s: float
    outdated: bool
    lapsed: bool


@dataclass(slots=True)
class Counts:
    """What became of the records read."""

    taken: int = 0
    late: int = 0
    undecodable: int = 0
    honoured: int = 0
    not_honoured: int = 0
    bare_nulls: int = 0


@dataclass(slots=True)
class TableView(Generic[Report]):
    """Fold of one load topic, keyed by broker.

    Attributes:
        ttl_s: Time to live of a report, in seconds, by the reader's clock.
        brokers_max: Brokers that are remembered; beyond it the one that was silent longest is forgotten.
    """

    decode: Callable[[bytes | None, bytes], Report | Undecodable]
    ttl_s: float = 1_800.0
    brokers_max: int = 10_000
    counts: Counts = field(default_factory=Counts)
    last_undecodable: str = ""
    _entries: dict[str, Entry[Report]] = field(default_factory=dict)
    _changed: dict[str, dict[int, int]] = field(default_factory=dict)
    _unknown_to: dict[int, int] = field(default_factory=dict)
    _newest_ms: int = 0

    def reopened(self) -> None:
        """The topic is read from its beginning (again): offsets start over."""
        self._entries.clear()
        self._newest_ms = 0

    def read(self, record: LoadRecord, now_s: float, *, wall_ms: int | None = None) -> Tombstone | None:
        """Take one record in.

        Args:
            now_s: Monotonic.
            wall_ms: Given while what lay in the topic before is read; see `age_on_arrival`.

        Returns:
            The tombstone, if the record is a well-formed one, honoured or not.
        """
        self._newest_ms = max(self._newest_ms, record.timestamp_ms)
        if record.value is None:
            return self._null(record)
        report = self.decode(record.key, record.value)
        if isinstance(report, Undecodable):
            self.counts.undecodable += 1
            self.last_undecodable = report.why
            return None
        name, header = report.header.broker, report.header
        held = self._entries.get(name)
        if held is not None and _is_late(header, held.report.header):
            self.counts.late += 1
            return None
        born_s = now_s - age_on_arrival(record.timestamp_ms, self._newest_ms, wall_ms)
        self._entries.pop(name, None)
        self._entries[name] = Entry(report, record.offset, record.timestamp_ms, born_s)
        self.counts.taken += 1
        if len(self._entries) > self.brokers_max:
            del self._entries[next(iter(self._entries))]
        return None

    def _null(self, record: LoadRecord) -> Tombstone | None:
        tombstone = parse_tombstone(record.headers)
        if tombstone is None or record.key is None:
            self.counts.bare_nulls += 1
            return None
        name = record.key.decode(errors="replace")
        held = self._entries.get(name)
        if held is None or tombstone.honoured_over(held.offset):
            self._entries.pop(name, None)
            self.counts.honoured += 1
        else:
            self.counts.not_honoured += 1
        return tombstone

    def ownership_changed(self, change: OwnershipChange) -> None:
        """A bundle came to a broker or left it: its report must name this position, or a later one, to be current."""
        positions = self._changed.pop(change.broker, {})
        positions[change.partition] = max(positions.get(change.partition, -1), change.offset)
        self._changed[change.broker] = positions
        if len(self._changed) > self.brokers_max:
            forgotten = self._changed.pop(next(iter(self._changed)))
            self.changes_unknown(forgotten)

    def changes_unknown(self, positions: Mapping[int, int]) -> None:
        """Changes up to these positions may have been missed: whoever reports an earlier one is marked."""
        for partition, offset in positions.items():
            self._unknown_to[partition] = max(self._unknown_to.get(partition, -1), offset)

    def lapsed(self, header: Header) -> bool:
        """Whether the broker's bundles have changed since the figures of this report."""
        known = self._changed.get(header.broker, {})
        return any(
            header.owned_as_of.get(partition, -1) < max(known.get(partition, -1), self._unknown_to.get(partition, -1))
            for partition in {*known, *self._unknown_to}
        )

    def seen(self, now_s: float) -> dict[str, Seen[Report]]:
        """Every broker's newest report, by broker, sorted; the outdated ones, too, marked."""
        return {name: self._seen(self._entries[name], now_s) for name in sorted(self._entries)}

    def get(self, broker: str, now_s: float) -> Seen[Report] | None:
        """One broker's newest report."""
        entry = self._entries.get(broker)
        return None if entry is None else self._seen(entry, now_s)

    def _seen(self, entry: Entry[Report], now_s: float) -> Seen[Report]:
        age_s = max(0.0, now_s - entry.born_s)
        return Seen(entry.report, entry.offset, age_s, age_s > self.ttl_s, self.lapsed(entry.report.header))

    def expired(self, now_s: float, grace_s: float, wall_ms: int) -> dict[str, Tombstone]:
        """Tombstones that are due, by broker: for a leader that buries outdated reports itself.

        Args:
            grace_s: How long beyond its time to live a report is left to be renewed.
            wall_ms: The writer's wall clock, for the header that people read.
        """
        return {
            name: Tombstone(EXPIRED, one.offset, max(0, wall_ms - int((one.age_s - self.ttl_s) * 1_000)))
            for name, one in self.seen(now_s).items()
            if one.age_s > self.ttl_s + grace_s
        }


def _is_late(header: Header, held: Header) -> bool:
    """A report of the same process with a number that is not higher: it was overtaken on its way, or came twice."""
    return header.incarnation == held.incarnation and header.seq <= held.seq
