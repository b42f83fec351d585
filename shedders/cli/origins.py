"""Decisions of the balancer as origins of changes, for `statechannel audit origins`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from shedders.cli.decision_log import reader_if_any
from shedders.decisions.history import DecisionBook
from shedders.decisions.record import DecisionRecord, Deed, MoveEntry, PlacedEntry, Subject
from statechannel.audit.origins import OperationCause, Origin
from statechannel.cli.kit.connection import Connection
from statechannel.protocol.states import State

_DECISIONS_MAX: Final = 100_000
_PLACEMENTS_MAX: Final = 64
"""Most placements kept of one bundle."""
_PLACED_BEFORE_MS: Final = 5_000
_PLACED_WITHIN_MS: Final = 5_000
"""Longest time between a placement's decision and the record that it leads to."""


def decisions(connection: Connection) -> Decisions:
    """Read the decisions that the topic still has.

    Raises:
        StateChannelError: They cannot be read.
    """
    known = Decisions()
    with reader_if_any(connection) as reader:
        for read in () if reader is None else reader.read():
            known.take(read.offset, read.timestamp_ms, read.record)
    return known


class Decisions:
    """Decisions by operation.

    Args:
        decisions_max: Number of decisions kept; older ones are dropped.

    Attributes:
        since_ms: See `statechannel.audit.origins.OriginTopic`.
    """

    name = "decisions"

    def __init__(self, decisions_max: int = _DECISIONS_MAX) -> None:
        self._book = DecisionBook(decisions_max)
        self._placements: dict[str, deque[DecisionRecord]] = {}
        self._max = decisions_max
        self.since_ms = 0
        self._read = 0

    def take(self, offset: int, timestamp_ms: int, record: Any) -> None:
        """Add a record of the topic, or the reason why it cannot be read."""
        if not self._read and offset > 0:
            self.since_ms = timestamp_ms
        self._read += 1
        full = len(self._book) >= self._max
        self._book.add(record)
        if full:
            self.since_ms = self._book.decisions[0].at_ms
        if isinstance(record, DecisionRecord) and record.subject == Subject.PLACE.value:
            for entry in record.placed:
                self._placements.setdefault(entry.bundle, deque(maxlen=_PLACEMENTS_MAX)).append(record)

    def asker(self, begun: Mapping[str, Any]) -> OperationCause | None:
        """Decision that names the operation; for an assignment, which none names, the one that placed the bundle at that time."""
        deed = self._book.by_operation(begun["operation"])
        if deed is not None:
            return _asker(deed.decision, deed.entry)
        for decision in self._placements.get(begun["name"], ()):
            early, late = decision.at_ms - _PLACED_BEFORE_MS, decision.at_ms + _PLACED_WITHIN_MS
            if decision.leader != begun["by"] or not early <= begun["began_ms"] <= late:
                continue
            for entry in decision.placed:
                if (entry.bundle, entry.broker) == (begun["name"], begun["to"]):
                    return _asker(decision, entry)
        return None


def _asker(decision: DecisionRecord, entry: Deed) -> OperationCause:
    destination = None
    if isinstance(entry, MoveEntry):
        begins, destination = State.RELEASING, entry.destination
    elif isinstance(entry, PlacedEntry):
        begins, destination = State.ASSIGNING, entry.broker
    else:
        begins = State.SPLITTING
    what = f"{decision.subject} ({decision.strategy})"
    states = frozenset({begins})
    return OperationCause(
        Origin.DECISION, decision.id, decision.leader, decision.at_ms, what, entry.bundle, states, destination
    )
