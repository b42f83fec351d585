"""Load reports of a real cluster over time, from its load topics (design/load-data.md) or files of them.

A file has one JSON object a line, as any tool can write it that reads the topics:

    {"at_ms": 1750000102600, "key": "b1", "value": {...}}      a report: the record's value as it stands in the topic
    {"at_ms": 1750000902600, "key": "b1", "value": null}       a tombstone: the broker has left, or its report has expired

Both topics may stand in one file, in any order. A tombstone may say `"kind": "top-bundles"`; only those of broker loads count.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loaddata.model.broker_load import BrokerLoad
from loaddata.model.bundle_load import BundleStats
from loaddata.model.figures import LATEST_MS
from loaddata.report.record import (
    BrokerLoadReport,
    ReportKind,
    TopBundlesReport,
    decode_broker_load,
    decode_top_bundles,
)
from loaddata.samples.strict_json import SHOWN_MAX
from shedders.snapshots.file import FaultyFileError, sentences
from statechannel.files import UnreadableFileError, opened
from statechannel.protocol.bundle import parse_key
from statechannel.suggestions import shown


class HistoryError(FaultyFileError):
    """A history cannot be read or used."""

    usual_hint = "design/reference/scenarios.md describes the lines of a history."


class RecordLine(BaseModel):
    """Line of a file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    at_ms: Annotated[int, Field(ge=0, le=LATEST_MS)]
    key: str
    value: dict[str, Any] | None
    kind: Literal[ReportKind.BROKER_LOAD, ReportKind.TOP_BUNDLES] | None = None


class HistoryRecord(NamedTuple):
    """Record of a load topic.

    Attributes:
        at_ms: Log time of the record.
        key: Id of the broker.
        value: Value of the record; None: a tombstone.
    """

    at_ms: int
    key: bytes | None
    value: bytes | None
    kind: ReportKind


class HistoryEntry(NamedTuple):
    """Decoded record: a report, or its end (`report` None)."""

    at_ms: int
    broker: str
    report: BrokerLoadReport | TopBundlesReport | None


def read_history(path: Path) -> Iterator[HistoryRecord]:
    """Records of a file.

    Raises:
        HistoryError: The file cannot be read, or a line is invalid.
    """
    where = shown(str(path))
    try:
        with opened(path) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _record(line, f"{where}, line {number}")
    except UnreadableFileError as error:
        raise HistoryError.unreadable(where, error) from error


def _record(raw: bytes, where: str) -> HistoryRecord:
    try:
        line = RecordLine.model_validate(orjson.loads(raw))
    except orjson.JSONDecodeError as error:
        raise HistoryError(where, [f"not JSON: {error}"]) from error
    except ValidationError as error:
        raise HistoryError(where, sentences(error, RecordLine)) from error
    value = line.value
    is_top = value is not None and value.get("kind") == ReportKind.TOP_BUNDLES
    kind = line.kind or (ReportKind.TOP_BUNDLES if is_top else ReportKind.BROKER_LOAD)
    return HistoryRecord(line.at_ms, line.key.encode(), None if value is None else orjson.dumps(value), kind)


def decoded(records: Iterable[HistoryRecord]) -> tuple[list[HistoryEntry], list[str]]:
    """Entries by time, and problems of invalid records, which are omitted."""
    entries, wrong, dropped = list[HistoryEntry](), list[str](), 0
    for record in records:
        if record.value is None:
            if record.kind is ReportKind.BROKER_LOAD and record.key is not None:
                entries.append(HistoryEntry(record.at_ms, record.key.decode(errors="replace"), None))
            continue
        decode = decode_broker_load if record.kind is ReportKind.BROKER_LOAD else decode_top_bundles
        report = decode(record.key, record.value)
        if isinstance(report, BrokerLoadReport | TopBundlesReport):
            entries.append(HistoryEntry(record.at_ms, report.header.broker, report))
        else:
            dropped += 1
            if len(wrong) < SHOWN_MAX:
                wrong.append(f"a {record.kind} of {shown(repr(record.key))} was left out: {report.why}")
    if dropped > len(wrong):
        wrong.append(f"... and {dropped - len(wrong)} more records")
    # Records of one moment stay in the order in which they came.
    entries.sort(key=lambda entry: entry.at_ms)
    return entries, wrong


LOST_S: Final = 1_800.0
"""A tombstone this long after the last report is due to its expiry: the broker had died."""


class Absence(NamedTuple):
    """A broker is not there from a time on, until its next report."""

    at_s: float
    lost: bool


@dataclass
class PastBroker:
    """Reports of one broker, and its tombstones; by time."""

    at_s: list[float] = field(default_factory=list)
    loads: list[BrokerLoad] = field(default_factory=list)
    gone_s: list[float] = field(default_factory=list)

    def absences(self) -> Iterator[Absence]:
        """Times of absence; further tombstones during an absence are ignored."""
        seen = 0
        for gone_s in self.gone_s:
            count = bisect_right(self.at_s, gone_s)
            if count > seen:
                last_s = self.at_s[count - 1]
                lost = gone_s - last_s >= LOST_S
                yield Absence(last_s if lost else gone_s, lost)
                seen = count

    def back_s(self, absence: Absence) -> float | None:
        """Time of the first report after an absence; None: there is none."""
        count = bisect_right(self.at_s, absence.at_s)
        return self.at_s[count] if count < len(self.at_s) else None

    def at(self, time_s: float) -> BrokerLoad:
        """Newest report at a time; before the first report, the first one."""
        return self.loads[max(0, bisect_right(self.at_s, time_s) - 1)]

    def moments(self) -> list[tuple[float, BrokerLoad | None]]:
        """Its reports, and None where it went."""
        points: list[tuple[float, BrokerLoad | None]] = [*zip(self.at_s, self.loads, strict=True)]
        points += [(absence.at_s, None) for absence in self.absences()]
        return sorted(points, key=lambda point: point[0])

    @property
    def fullest(self) -> BrokerLoad:
        """The newest report among those that know the most limits."""
        return max(
            reversed(self.loads),
            key=lambda load: sum(part.limit > 0 for part in (load.cpu, load.bandwidth_in, load.bandwidth_out)),
        )


@dataclass
class PastBundle:
    """Reports of one bundle: times, brokers and figures (None: it was split).

    Attributes:
        split_off: Another one was there in its place before.
    """

    at_s: list[float] = field(default_factory=list)
    brokers: list[str] = field(default_factory=list)
    stats: list[BundleStats | None] = field(default_factory=list)
    sessions: int = 0
    split_off: bool = False

    def add(self, at_s: float, broker: str, stats: BundleStats | None) -> None:
        """Add a report, or the end of the bundle by a split."""
        self.at_s.append(at_s)
        self.brokers.append(broker)
        self.stats.append(stats)
        self.sessions = max(self.sessions, 0 if stats is None else stats.sessions)


@dataclass
class LoadHistory:
    """Reports of a cluster over time, by broker and by bundle.

    Attributes:
        brokers: Those that reported, by name, sorted.
        bundles: By key, sorted.
    """

    brokers: dict[str, PastBroker]
    bundles: dict[str, PastBundle]

    @staticmethod
    def of(entries: Sequence[HistoryEntry]) -> LoadHistory:
        brokers: dict[str, PastBroker] = defaultdict(PastBroker)
        bundles = _Bundles()
        for at_ms, name, report in entries:
            at_s = (at_ms - entries[0].at_ms) / 1e3
            if report is None:
                brokers[name].gone_s.append(at_s)
            elif isinstance(report, TopBundlesReport):
                for bundle in report.bundles:
                    bundles.add(bundle.name, at_s, name, bundle.stats)
            else:
                brokers[name].at_s.append(at_s)
                brokers[name].loads.append(report.load)
        return LoadHistory(
            {name: broker for name, broker in sorted(brokers.items()) if broker.loads},
            dict(sorted(bundles.all.items())),
        )


class _Bundles:
    def __init__(self) -> None:
        self.all: dict[str, PastBundle] = {}
        self._live: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        self._ended: dict[str, list[tuple[int, int]]] = defaultdict(list)

    def add(self, key: str, at_s: float, broker: str, stats: BundleStats) -> None:
        parts = parse_key(key.encode())
        if parts is None or parts.is_namespace or parts.lower >= parts.upper:
            return
        own, live, ended = (parts.lower, parts.upper), self._live[parts.namespace], self._ended[parts.namespace]
        if key not in live:
            # Whatever overlaps it was split, and is there no more.
            for other in [other for other, its in live.items() if _overlap(own, its)]:
                self.all[other].add(at_s, broker, None)
                ended.append(live.pop(other))
            live[key] = own
            self.all.setdefault(key, PastBundle(split_off=any(_overlap(own, its) for its in ended)))
        self.all[key].add(at_s, broker, stats)


def _overlap(range_: tuple[int, int], other: tuple[int, int]) -> bool:
    return range_[0] < other[1] and other[0] < range_[1]
