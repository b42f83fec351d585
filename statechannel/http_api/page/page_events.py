"""Events of the page: gaps in service with their cause, members that come and go, changes of leader and mode. Pure, bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from statechannel.conditions.facts import BrokerRow
    from statechannel.http_api.page.bundle_table import BundleStep

EVENTS_MAX: Final = 100
_TOGETHER_MS: Final = 10_000
"""Gaps of one cause that begin within this time of the last one are one event."""
_OPEN_MAX: Final = 200_000
_OWNER_LOST: Final = "owner-lost"
_FLOWS: Final = frozenset({"repair", "transfer", "unload", "split"})


class PageEventKind(StrEnum):
    """What happened."""

    GAP = "gap"
    SPLIT = "split"
    JOINED = "joined"
    LOST = "lost"
    LEFT = "left"
    RESTARTED = "restarted"
    LEADER = "leader"
    MODE = "mode"


@dataclass(slots=True)
class PageEvent:
    """One event, or several of one cause.

    Attributes:
        last_ms: When the newest of them began.
        cause: Why a bundle was without owner, or the new mode.
        open: Of them without owner still.
        longest_ms: The longest gap that has ended.
    """

    number: int
    at_ms: int
    last_ms: int
    kind: PageEventKind
    subject: str | None
    cause: str
    count: int = 1
    open: int = 0
    longest_ms: int = 0
    bundle: str | None = None
    place: int = 0
    operation: str | None = None
    decision: str | None = None
    reason: str | None = None

    def fields(self) -> dict[str, Any]:
        """The keys of the page's document."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["kind"] = self.kind.value
        fields["message"] = self.message()
        return fields

    def message(self) -> str:
        """The sentence for people."""
        subject = self.subject or "no broker"
        if self.kind is not PageEventKind.GAP:
            return _SENTENCES[self.kind](self, subject)
        bundles = "1 bundle" if self.count == 1 else f"{self.count:,} bundles"
        whose = f"of {self.subject} " if self.subject else ""
        return f"{bundles} {whose}without owner: {self.cause.replace('-', ' ')}"


_SENTENCES: Final[Mapping[PageEventKind, Callable[[PageEvent, str], str]]] = {
    PageEventKind.SPLIT: lambda event, _: f"{event.count} bundle{'s' * (event.count > 1)} split",
    PageEventKind.JOINED: lambda _, subject: f"{subject} joined",
    PageEventKind.LOST: lambda _, subject: f"{subject} was lost: its heartbeats stopped",
    PageEventKind.LEFT: lambda _, subject: f"{subject} left",
    PageEventKind.RESTARTED: lambda _, subject: f"{subject} restarted",
    PageEventKind.LEADER: lambda _, subject: f"{subject} leads now",
    PageEventKind.MODE: lambda event, subject: f"{subject}: mode {event.cause}",
}


@dataclass(slots=True)
class _OpenGap:
    since_ms: int
    event: PageEvent


class PageEvents:
    """Finds them in changes, and in what is heard of the members."""

    def __init__(self, name_of: Callable[[BundleStep], str]) -> None:
        self._name_of = name_of
        self._events: deque[PageEvent] = deque(maxlen=EVENTS_MAX)
        self._grouped: dict[tuple[PageEventKind, str, str | None], PageEvent] = {}
        self._gaps: dict[int, _OpenGap] = {}
        self._members: Mapping[str, tuple[str, str, str | None]] | None = None
        self._leader: str | None = None
        self._mode = ""
        self._number = 0

    def step(self, step: BundleStep) -> None:
        """A change of a bundle."""
        before = step.before and step.before.owner
        after = step.after and step.after.owner
        if before is not None and after is None and step.after is not None:
            self._begin(step, before)
        elif after is not None or step.after is None:
            self._end(step)
            if step.after is None and step.note.flow == "split":
                self._group(step, PageEventKind.SPLIT, "split", before, step.at_ms)
            elif step.note.lost is not None and after is not None and before != after:
                # Its owner was lost, and one record gave it to the next.
                event = self._group(step, PageEventKind.GAP, _OWNER_LOST, step.note.lost, _lost_ms(step))
                event.longest_ms = max(event.longest_ms, step.at_ms - _lost_ms(step))

    def _begin(self, step: BundleStep, owner: str) -> None:
        if len(self._gaps) >= _OPEN_MAX:
            return
        cause, since_ms = _cause_of(step), step.at_ms
        if cause is _OWNER_LOST:
            since_ms, owner = _lost_ms(step), step.note.lost or owner
        event = self._group(step, PageEventKind.GAP, cause, owner, since_ms)
        event.open += 1
        self._gaps[step.key] = _OpenGap(since_ms, event)

    def _end(self, step: BundleStep) -> None:
        gap = self._gaps.pop(step.key, None)
        if gap is not None:
            gap.event.open -= 1
            if step.after is None and step.note.flow != "split":
                if not gap.event.open and not gap.event.longest_ms:
                    gap.event.cause = "deletion"  # of its namespace: it is no gap, as nobody asks for it
                return
            gap.event.longest_ms = max(gap.event.longest_ms, step.at_ms - gap.since_ms)

    def forget_gaps(self) -> None:
        """Their ends are not known: all bundles are read again, and have other keys."""
        for gap in self._gaps.values():
            gap.event.open = 0
        self._gaps.clear()

    def _group(
        self, step: BundleStep, kind: PageEventKind, cause: str, subject: str | None, since_ms: int
    ) -> PageEvent:
        group = kind, str(cause), subject
        event = self._grouped.get(group)
        if event is not None and step.at_ms - event.last_ms <= _TOGETHER_MS:
            event.count += 1
            event.last_ms = step.at_ms
            return event
        event = self._add(kind, since_ms, subject, str(cause))
        event.last_ms, event.bundle, event.place = step.at_ms, self._name_of(step), step.place
        event.operation, event.decision, event.reason = step.operation, step.note.decision, step.note.reason
        self._grouped[group] = event
        return event

    def _add(self, kind: PageEventKind, at_ms: int, subject: str | None, cause: str = "") -> PageEvent:
        self._number += 1
        event = PageEvent(self._number, at_ms, at_ms, kind, subject, cause)
        if len(self._events) == EVENTS_MAX:
            gone = self._events[0]
            self._grouped = {group: kept for group, kept in self._grouped.items() if kept is not gone}
        self._events.append(event)
        return event

    def members(self, rows: list[BrokerRow], leader: str | None, mode: str, at_ms: int) -> None:
        """What is heard of the members now."""
        now = {row["broker"]: (row["state"], row["incarnation"], row["mode"]) for row in rows}
        known = self._members
        self._members = now
        if known is None:
            self._leader, self._mode = leader, mode
            return
        for broker, (state, incarnation, _) in now.items():
            before = known.get(broker)
            if before is None:
                self._add(PageEventKind.JOINED, at_ms, broker)
            elif before[0] != state and state in ("lost", "left"):
                heard_ms = next((row["heard_ago_ms"] for row in rows if row["broker"] == broker), 0)
                kind = PageEventKind.LOST if state == "lost" else PageEventKind.LEFT
                self._add(kind, at_ms - heard_ms, broker)
            elif before[1] != incarnation and state not in ("lost", "left"):
                self._add(PageEventKind.RESTARTED, at_ms, broker)
        if leader != self._leader:
            self._leader = leader
            self._add(PageEventKind.LEADER, at_ms, leader)
        if mode != self._mode:
            self._mode = mode
            self._add(PageEventKind.MODE, at_ms, "this process", mode)

    def of_members(self, until_ms: int) -> list[PageEvent]:
        """Those that were not found in changes, up to this time."""
        return [event for event in self._events if event.kind not in _OF_CHANGES and event.at_ms <= until_ms]

    def rows(self, until_ms: int | None = None, others: Sequence[PageEvent] = ()) -> list[dict[str, Any]]:
        """The newest first.

        Args:
            until_ms: Given for the past: events then have numbers of their own.
            others: Further ones.
        """
        events = sorted([*self._events, *others], key=lambda event: (-event.at_ms, -event.number))[:EVENTS_MAX]
        rows = [event.fields() for event in events]
        if until_ms is not None:
            for number, row in enumerate(rows):
                row["number"] = number
        return rows


_OF_CHANGES: Final = frozenset({PageEventKind.GAP, PageEventKind.SPLIT})


def _lost_ms(step: BundleStep) -> int:
    heard_ms = step.note.last_heard_ms
    return step.at_ms if heard_ms is None else min(heard_ms, step.at_ms)


def _cause_of(step: BundleStep) -> str:
    if step.note.lost is not None:
        return _OWNER_LOST
    return step.note.flow if step.note.flow in _FLOWS else "other"
