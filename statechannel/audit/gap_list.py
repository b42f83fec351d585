"""Lists of gaps in service: what is selected, those that began together, and sums by namespace, which add up over parts. Pure.

Gaps are given as rows of the JSON output (`statechannel.audit.gaps.gap_fields`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from statechannel.audit.history import subject_of
from statechannel.audit.moments import WHOLE_LOG, LogWindow
from statechannel.protocol.bundle import FULL_UPPER, KeyParts, parse_key


@dataclass(frozen=True, slots=True)
class GapFilter:
    """Which gaps are listed and summed up; a gap must fit all.

    Attributes:
        window: Any part of the gap lies in it.
        causes: One of these; empty: any.
        longer_than_ms: Longer than this, without the time on request. Open gaps have no length yet, and are always listed.
        open_only: Only gaps that have not ended.
        broker: The owner before or after.
    """

    window: LogWindow = WHOLE_LOG
    causes: frozenset[str] = frozenset()
    longer_than_ms: int | None = None
    open_only: bool = False
    broker: str | None = None

    def has(self, gap: Mapping[str, Any]) -> bool:
        if self.causes and gap["cause"] not in self.causes:
            return False
        if self.broker is not None and self.broker not in (gap["from"], gap["to"]):
            return False
        if self.open_only and gap["end_ms"] is not None:
            return False
        if self.longer_than_ms is not None and gap["length_ms"] is not None and gap["length_ms"] <= self.longer_than_ms:
            return False
        return self.window.meets((gap["start_offset"], gap["start_ms"]), (gap["end_offset"], gap["end_ms"]))


ALL_GAPS = GapFilter()


@dataclass(slots=True)
class GapSum:
    """Of one namespace, or of all.

    Attributes:
        open: Gaps that have not ended; they have no length.
        sum_ms: Of ended gaps, without the time Unassigned on request.
        on_request_ms: That time.
        worst_ms: The longest that has ended, of `worst_bundle` from `worst_offset` on.
        open_since_ms: When the oldest open one began; None without one.
        uncertain: Gaps before which the bundle may never have been served, as the log is compacted; not counted elsewhere.
    """

    gaps: int = 0
    open: int = 0
    sum_ms: int = 0
    on_request_ms: int = 0
    worst_ms: int = 0
    worst_bundle: str | None = None
    worst_offset: int | None = None
    open_since_ms: int | None = None
    uncertain: int = 0

    @classmethod
    def of(cls, gap: Mapping[str, Any]) -> GapSum:
        """The sum of one gap, given in the form of the JSON output."""
        if not gap["certain"]:
            return cls(uncertain=1)
        length_ms, on_request_ms = gap["length_ms"], gap["on_request_ms"]
        if length_ms is None:
            return cls(1, 1, on_request_ms=on_request_ms, open_since_ms=gap["start_ms"])
        return cls(1, 0, length_ms, on_request_ms, length_ms, gap["bundle"], gap["start_offset"])

    def add(self, other: GapSum) -> None:
        """Add up; of equally long gaps the worst is the first by bundle and offset, independent of their order."""
        self.gaps += other.gaps
        self.open += other.open
        self.uncertain += other.uncertain
        self.sum_ms += other.sum_ms
        self.on_request_ms += other.on_request_ms
        worst = [item for item in (self, other) if item.worst_bundle is not None]
        if worst:
            first = min(worst, key=lambda item: (-item.worst_ms, item.worst_bundle, item.worst_offset))
            self.worst_ms, self.worst_bundle, self.worst_offset = first.worst_ms, first.worst_bundle, first.worst_offset
        since_ms = [item.open_since_ms for item in (self, other) if item.open_since_ms is not None]
        self.open_since_ms = min(since_ms, default=None)


class GapSums:
    """By namespace."""

    def __init__(self) -> None:
        self.sums: dict[str, GapSum] = {}

    def take(self, gap: Mapping[str, Any]) -> None:
        """Count one gap, given in the form of the JSON output."""
        self.sums.setdefault(gap["bundle"].rpartition("/")[0], GapSum()).add(GapSum.of(gap))

    def rows(self) -> list[dict[str, Any]]:
        return [{"namespace": name} | asdict(sums) for name, sums in sorted(self.sums.items())]


def sum_gap_rows(parts: Iterable[Iterable[Mapping[str, Any]]]) -> GapSums:
    """The sums of several parts of a log, from their rows."""
    total = GapSums()
    for part in parts:
        for row in part:
            total.sums.setdefault(row["namespace"], GapSum()).add(_sum_of(row))
    return total


def total_gap_sum(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum over all namespaces, for the JSON output."""
    total = GapSum()
    for row in rows:
        total.add(_sum_of(row))
    return asdict(total)


def _sum_of(row: Mapping[str, Any]) -> GapSum:
    return GapSum(**{name: value for name, value in row.items() if name != "namespace"})


TOGETHER_MS = 5_000


class GapGroup:
    """Gaps of several bundles that began within a moment, as of a drain or a crash.

    Attributes:
        longest: The first of the longest of those that have ended; else the first.
        shortest_ms: None while they are open.
        owners: Number of gaps by the owner after them.
        most: The longest times without a broker, by name.
    """

    def __init__(self, gap: Mapping[str, Any]) -> None:
        self.start_ms: int = gap["start_ms"]
        self.longest = gap
        self.shortest_ms: int | None = gap["length_ms"]
        self.bundles: set[str] = set()
        self.owners: Counter[str] = Counter()
        self.reasons: set[str] = set()
        self.most = {"unassigned_ms": 0, "on_request_ms": 0}

    def takes(self, gap: Mapping[str, Any]) -> bool:
        """Whether it began with the others, and is that of another bundle."""
        return abs(gap["start_ms"] - self.start_ms) <= TOGETHER_MS and gap["bundle"] not in self.bundles

    def add(self, gap: Mapping[str, Any]) -> None:
        self.bundles.add(gap["bundle"])
        self.owners.update([gap["to"]] if gap["to"] is not None else ())
        self.reasons.add(gap["why"])
        self.most = {name: max(most, gap[name]) for name, most in self.most.items()}
        if self.shortest_ms is not None:
            self.shortest_ms = min(self.shortest_ms, gap["length_ms"])
            self.longest = max(self.longest, gap, key=lambda row: row["length_ms"])


def began_together(
    gaps: Iterable[Mapping[str, Any]], alike: Callable[[Mapping[str, Any]], Hashable], most: int | None = None
) -> Iterable[GapGroup]:
    """Gaps that are alike and began within a moment, as one.

    Args:
        gaps: By time.
        most: Number of the newest groups that are kept.
    """
    groups: deque[GapGroup] = deque(maxlen=most)
    newest: dict[Hashable, GapGroup] = {}
    for gap in gaps:
        kind = alike(gap)
        group = newest.get(kind)
        if group is None or not group.takes(gap):
            group = newest[kind] = GapGroup(gap)
            groups.append(group)
        group.add(gap)
    return groups


def concerning(rows: Iterable[dict[str, Any]], of: str) -> Iterator[dict[str, Any]]:
    """Rows of a bundle, of a namespace, or of every bundle that held a topic.

    Raises:
        AuditQuestionError: The name is none of these.
    """
    wanted, _ = subject_of(of)
    topic = parse_key(of.encode()) is None
    for row in rows:
        if of in (row["bundle"], row["bundle"].rpartition("/")[0]) or (topic and _holds(row["bundle"], wanted)):
            yield row


def _holds(bundle: str, wanted: KeyParts) -> bool:
    parts = parse_key(bundle.encode())
    if parts is None or parts.namespace != wanted.namespace:
        return False
    return parts.lower <= wanted.lower and (wanted.lower < parts.upper or parts.upper == FULL_UPPER)
