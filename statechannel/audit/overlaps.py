"""Times in which two processes may have served one bundle: a lost owner that is heard again after its successor began to serve.

The log says when a successor began, and when the lost process wrote again; the registry may have heard it earlier. What it did
between is in neither. A process that was only paused serves nothing while it stands still, and may serve from its old state until
it notices: hence each interval is the longest that is possible, not one that was seen. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from statechannel.audit.ownership import writing_process
from statechannel.protocol.bounded import remember
from statechannel.protocol.log import RecordRead
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement
from statechannel.stories.bundle import lost_of
from statechannel.stories.processes import WritersHeard

SUCCESSIONS_MAX = 100_000
CAVEAT = (
    "An interval is the longest that is possible: neither topic shows what the lost process did in it. Its generation is older: "
    "storage that checks generations refuses its writes, and the broker's own log says when it noticed."
)


class HeardIn(StrEnum):
    """Where a lost process was first heard again."""

    LOG = "log"
    REGISTRY = "registry"


@dataclass(slots=True)
class Succession:
    """A bundle that passed from a lost process to another one.

    Attributes:
        lost_ms: The lost process was last heard then, in the registry; what it wrote to the log may be a little later.
        offset, taken_ms: Of the record that says so, and its log time: the bundle was taken from the lost process.
        since_ms, generation: Of the successor's Assigned; None: no broker has taken it since.
    """

    bundle: str
    partition: int
    offset: int
    broker: str
    incarnation: str
    lost_ms: int
    taken_ms: int
    successor: str | None = None
    since_ms: int | None = None
    generation: int | None = None

    @property
    def process(self) -> tuple[str, str]:
        return self.broker, self.incarnation


class Successions:
    """Collects successions. Feed it an audit's observations in log order.

    Attributes:
        rows: The newest `SUCCESSIONS_MAX`.
    """

    def __init__(self) -> None:
        self._open: dict[str, list[Succession]] = {}
        self._rows: dict[tuple[str, int], Succession] = {}

    @property
    def rows(self) -> list[Succession]:
        return list(self._rows.values())

    def taken(self) -> Iterator[tuple[tuple[str, str], int]]:
        """The lost processes, with the log time at which each bundle was taken from them."""
        return ((row.process, row.taken_ms) for row in self._rows.values())

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        change, key = judgement.record, judgement.key
        if judgement.verdict is not Verdict.ACCEPTED or change is None or key is None or key.is_namespace:
            return
        lost = lost_of(change)
        if lost is not None and lost.incarnation is not None:
            row = Succession(
                key.name,
                record.partition,
                record.offset,
                lost.broker,
                lost.incarnation,
                lost.last_heard_ms,
                record.timestamp_ms,
            )
            self._open.setdefault(key.name, []).append(row)
            remember(self._rows, (key.name, record.offset), row, SUCCESSIONS_MAX)
        if key.state is State.ASSIGNED:
            for row in self._open.pop(key.name, ()):
                if row.incarnation != change.incarnation:
                    row.successor, row.since_ms, row.generation = key.owner, record.timestamp_ms, key.generation


class WrittenAgain:
    """When lost processes wrote to the log again. Feed it all partitions.

    Args:
        taken: Broker and incarnation of lost processes, with the log time at which a bundle was taken from them.
    """

    def __init__(self, taken: Iterable[tuple[tuple[str, str], int]]) -> None:
        times: dict[tuple[str, str], set[int]] = {}
        for process, taken_ms in taken:
            times.setdefault(process, set()).add(taken_ms)
        self._taken_ms = {process: sorted(some) for process, some in times.items()}
        # Of each time the first record before the next one: enough to find the first after any of them.
        self._first_ms = {process: [_NEVER_MS] * len(some) for process, some in self._taken_ms.items()}

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        process = writing_process(record, judgement)
        if process is None or process not in self._taken_ms:
            return
        number = bisect_left(self._taken_ms[process], record.timestamp_ms) - 1
        if number >= 0:
            first_ms = self._first_ms[process]
            first_ms[number] = min(first_ms[number], record.timestamp_ms)

    def heard(self, lost: Succession, writers: WritersHeard | None) -> tuple[int, HeardIn] | None:
        """When and where the lost process was first heard after the bundle was taken from it; None: it was not."""
        taken = self._taken_ms.get(lost.process, ())
        later = self._first_ms.get(lost.process, [])[bisect_left(taken, lost.taken_ms) :]
        written_ms = next((at_ms for at_ms in later if at_ms != _NEVER_MS), None)
        return first_heard_ms(writers, lost.process, lost.taken_ms, written_ms)


_NEVER_MS = 2**63 - 1


def first_heard_ms(
    writers: WritersHeard | None, process: tuple[str, str], taken_ms: int, written_ms: int | None
) -> tuple[int, HeardIn] | None:
    """When a lost process was first heard again, in the log or in the registry; None: it was not.

    What it sent before a bundle was taken from it does not count: the last heartbeat in the log may be later than the last one
    in the registry, and a process that was heard in that moment knows nothing yet.

    Args:
        taken_ms: Log time at which the bundle was taken from it.
        written_ms: Of its first record in the log after that.
    """
    beat_ms = None if writers is None else writers.heard_after_ms(process, taken_ms)
    if beat_ms is not None and (written_ms is None or beat_ms < written_ms):
        return beat_ms, HeardIn.REGISTRY
    return None if written_ms is None else (written_ms, HeardIn.LOG)


def overlap_rows(
    successions: Iterable[Succession], again: WrittenAgain, writers: WritersHeard | None = None
) -> list[dict[str, Any]]:
    """The overlaps in the order of their starts, for the JSON output."""
    rows: list[dict[str, Any]] = []
    for row in successions:
        heard = again.heard(row, writers)
        if row.since_ms is None or heard is None or heard[0] <= row.since_ms:
            continue
        rows.append(
            {
                "bundle": row.bundle,
                "partition": row.partition,
                "offset": row.offset,
                "from": row.broker,
                "incarnation": row.incarnation,
                "to": row.successor,
                "generation": row.generation,
                "lost_ms": row.lost_ms,
                "since_ms": row.since_ms,
                "until_ms": heard[0],
                "length_ms": heard[0] - row.since_ms,
                "heard_in": heard[1].value,
            }
        )
    return sorted(rows, key=lambda row: (row["since_ms"], row["partition"], row["offset"]))


def overlap_sums(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "overlaps": len(rows),
        "bundles": len({row["bundle"] for row in rows}),
        "first_ms": min((row["since_ms"] for row in rows), default=None),
        "last_ms": max((row["until_ms"] for row in rows), default=None),
        "longest_ms": max((row["length_ms"] for row in rows), default=0),
        "bundle_ms": sum(row["length_ms"] for row in rows),
    }
