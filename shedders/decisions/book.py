"""Index of decisions, each with the outcomes of its moves, by id, operation and bundle. A fold of the topic. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from shedders.decisions.record import (
    AnyRecord,
    DecisionRecord,
    MoveEntry,
    OutcomeRecord,
    PlacedEntry,
    SplitEntry,
    Subject,
)
from statechannel.protocol.side_record import InvalidRecord

Entry = MoveEntry | SplitEntry | PlacedEntry


class BundleDecision(NamedTuple):
    """An entry of a decision about a bundle, with its outcome, if that is known."""

    decision: DecisionRecord
    entry: Entry
    ended: OutcomeRecord | None

    @property
    def result(self) -> str | None:
        """The newest word for its state; None where no operation was started."""
        return self.entry.outcome if self.ended is None else self.ended.result

    @property
    def why_so(self) -> str | None:
        """The sentence that goes with the result."""
        return self.entry.outcome_why if self.ended is None else self.ended.why


class DecisionBook:
    """Takes in records in log order.

    Args:
        decisions_max: Number of the newest decisions that are kept, with their outcomes.

    Attributes:
        junk: Records that could not be read, by reason.
    """

    def __init__(self, decisions_max: int = 100_000) -> None:
        self._max = decisions_max
        self._decisions: dict[str, DecisionRecord] = {}
        self._outcomes: dict[str, dict[str, OutcomeRecord]] = {}
        self._operations: dict[str, tuple[str, int]] = {}
        self.junk: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._decisions)

    def add(self, record: AnyRecord | InvalidRecord) -> None:
        """Take in one record; of two with the same id the first counts."""
        if isinstance(record, InvalidRecord):
            self.junk[record.reason.value] += 1
        elif isinstance(record, OutcomeRecord):
            # Its decision may be older than what is kept.
            if record.decision in self._decisions:
                self._outcomes.setdefault(record.decision, {})[record.bundle] = record
        elif record.id not in self._decisions:
            self._decisions[record.id] = record
            for place, entry in enumerate(record.deeds):
                if entry.operation is not None:
                    self._operations.setdefault(entry.operation, (record.id, place))
            if len(self._decisions) > self._max:
                self._forget(next(iter(self._decisions)))

    def decision(self, decision_id: str) -> DecisionRecord | None:
        return self._decisions.get(decision_id)

    @property
    def decisions(self) -> Sequence[DecisionRecord]:
        """All, in log order."""
        return list(self._decisions.values())

    def newest(self, subject: Subject) -> Sequence[DecisionRecord]:
        """Those of one subject, the newest first."""
        return [decision for decision in reversed(self._decisions.values()) if decision.subject == subject]

    def bundle_decisions(self, record: DecisionRecord) -> Sequence[BundleDecision]:
        """All entries of a decision, each with its outcome."""
        ends = self._outcomes.get(record.id, {})
        return [BundleDecision(record, entry, ends.get(entry.bundle)) for entry in record.deeds]

    def by_operation(self, operation: str | None) -> BundleDecision | None:
        """The decision that started an operation."""
        located = None if operation is None else self._operations.get(operation)
        if located is None:
            return None
        decision, place = self._decisions[located[0]], located[1]
        entry = decision.deeds[place]
        return BundleDecision(decision, entry, self._outcomes.get(decision.id, {}).get(entry.bundle))

    def placed(self, bundle: str, by: str, to: Collection[str], since_ms: int, until_ms: int) -> BundleDecision | None:
        """The first placement that a broker made for a bundle in a span of time: records of placements name no operation.

        Args:
            by: Broker that placed it.
            to: Brokers that it may have chosen.
            since_ms, until_ms: When it was recorded, by the log's time.
        """
        for record in self._decisions.values():
            if record.subject != Subject.PLACE.value or record.leader != by or not since_ms <= record.at_ms <= until_ms:
                continue
            for placed in self.bundle_decisions(record):
                entry = placed.entry
                if isinstance(entry, PlacedEntry) and entry.bundle == bundle and entry.broker in to:
                    return placed
        return None

    def about(self, bundles: Sequence[str]) -> Iterator[BundleDecision]:
        """Everything that was decided about any of these bundles, in log order."""
        wanted = frozenset(bundles)
        for record in self._decisions.values():
            for decided in self.bundle_decisions(record):
                if decided.entry.bundle in wanted:
                    yield decided

    def _forget(self, decision_id: str) -> None:
        record = self._decisions.pop(decision_id)
        self._outcomes.pop(decision_id, None)
        for entry in record.deeds:
            if entry.operation is not None and self._operations.get(entry.operation, ("", 0))[0] == decision_id:
                del self._operations[entry.operation]
