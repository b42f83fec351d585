"""What the page knows as facts for conditions: of the members by a look, and the moves of the last minutes. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from heapq import nlargest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from statechannel.conditions.facts import NO_TOPIC_FACTS
from statechannel.protocol.states import Action, Flow, State

if TYPE_CHECKING:
    from statechannel.conditions.facts import BrokerRow, Facts, PauseFacts, TopicFacts
    from statechannel.http_api.page.bundle_table import BundleStep
    from statechannel.stories.incident import ForgedRecords


class ClusterLook(NamedTuple):
    """What this process knows of the cluster beyond bundles.

    Attributes:
        away_since_ms: Since when Kafka has not answered; None while it does.
        lag_s: Age of the oldest partition's view.
        rejected: Number of rejected records of each verdict since the process began.
        differs: With whom the replica of this process differs, as heartbeats have it.
        forged: By broker and incarnation, what a live member reports of records in its name.
        log_ms: Time by the log's clock, by the newest heartbeat; None: the wall clock has to do.
        lags_ms: How far each member was behind the log when it was heard.
        debts: Keys that await repair; `oldest_debt_ms`: for how long the oldest does.
    """

    at_ms: int
    broker: str
    mode: str
    away_since_ms: int | None
    lag_s: float
    applied: Mapping[int, int]
    leader: str | None
    term: int | None
    brokers: Sequence[BrokerRow]
    rejected: Mapping[str, int]
    pauses: Sequence[PauseFacts] = ()
    topics: TopicFacts = NO_TOPIC_FACTS
    differs: Sequence[Mapping[str, Any]] = ()
    forged: Mapping[tuple[str, str], ForgedRecords] = MappingProxyType({})
    log_ms: int | None = None
    lags_ms: Mapping[str, int] = MappingProxyType({})
    stopped: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    debts: Sequence[Mapping[str, Any]] = ()
    oldest_debt_ms: float | None = None

    @property
    def now_ms(self) -> int:
        """The time by which ages are computed: the log's, while that is heard."""
        return self.at_ms if self.away_since_ms is not None or self.log_ms is None else self.log_ms


def facts_of(look: ClusterLook, channel: str, owned: Mapping[str, int]) -> Facts:
    """What is known of the cluster; not known are broker ids with two processes, and offsets that brokers had read."""
    return {
        "channel": channel,
        "at_ms": look.now_ms,
        "blind_since_ms": look.away_since_ms,
        "behind_s": look.lag_s,
        "stopped": look.stopped,
        "topics": look.topics,
        "brokers": [
            {**row, "bundles": owned.get(row["broker"], 0), "lag_ms": look.lags_ms.get(row["broker"])}
            for row in look.brokers
        ],
        "leader": look.leader,
        "repair_paused": look.pauses,
        "debts": look.debts,
        "oldest_debt_ms": look.oldest_debt_ms,
    }


class ReadElsewhere:
    """How far other processes have read, and since when: a log without new records makes no process late."""

    def __init__(self) -> None:
        self._reports: deque[tuple[int, Mapping[int, int]]] = deque(maxlen=_REPORTS_MAX)

    def behind_ms(self, at_ms: int, applied: Mapping[int, int], others: Iterable[object]) -> int | None:
        """For how long one of the others has read, by its heartbeats, what this process has not; None: no other one is heard."""
        known = [report for report in others if isinstance(report, dict)]
        if not known:
            return None
        ends = {at: [end for report in known if type(end := report.get(str(at))) is int] for at in applied}
        self._reports.append((at_ms, {at: max(theirs, default=-1) for at, theirs in ends.items()}))
        while self._reports and all(end <= applied.get(at, end) for at, end in self._reports[0][1].items()):
            self._reports.popleft()
        return at_ms - self._reports[0][0] if self._reports else 0


_REPORTS_MAX: Final = 240
FLAPS: Final = 4
"""Changes of owner of one bundle within FLAPS_WINDOW_MS, made by the balancer or after failures, that are too many."""
FLAPPING_MAX: Final = 5
MOVES_MAX: Final = 5_000
"""Moves that are counted by broker and bundle, at most: more come only in a storm."""


class SeenMoveCause(StrEnum):
    """Who or what began a move.

    PLANNED are drains, requests of people, shutdowns and first lookups: they are no sign of trouble.
    """

    BALANCER = "balancer"
    FAILURE = "failure"
    PLANNED = "planned"


class MoveSeen(NamedTuple):
    """A bundle that got another owner.

    Attributes:
        key: Of the bundle, in the table.
    """

    at_ms: int
    key: int
    source: str | None
    target: str | None
    cause: SeenMoveCause
    decision: str | None


class BundleMovesSeen:
    """Counts moves by broker and by bundle, until they are older than the window.

    Attributes:
        came, went: Number of moves by broker.
    """

    def __init__(self) -> None:
        self._moves: deque[MoveSeen] = deque()
        self._begun: dict[int, tuple[SeenMoveCause, str | None]] = {}
        self._counted = Counter[int]()  # by key, those that are not planned
        self.came = Counter[str | None]()
        self.went = Counter[str | None]()

    def clear(self) -> None:
        for known in (self._moves, self._begun, self._counted, self.came, self.went):
            known.clear()

    def keys(self) -> set[int]:
        """Of all bundles that are named here."""
        return {move.key for move in self._moves} | self._begun.keys()

    def take(self, step: BundleStep) -> None:
        """A change, in the order of the log."""
        before, after = step.before, step.after
        cause, decision = begun = _cause_of(step, self._begun.get(step.key))
        if (
            after is None
            or (after.owner is not None and after.state is State.ASSIGNED)
            or cause is SeenMoveCause.PLANNED
        ):
            self._begun.pop(step.key, None)
        else:
            self._begun[step.key] = begun
        if after is not None and after.owner is not None and (before is None or before.owner != after.owner):
            source = before.owner or before.source if before is not None else None
            self._moves.append(MoveSeen(step.at_ms, step.key, source, after.owner, cause, decision))
            self._count(self._moves[-1], 1)
            if len(self._moves) > MOVES_MAX:
                self._count(self._moves.popleft(), -1)

    def forget_before(self, at_ms: int) -> None:
        """Moves before this time do not count any more."""
        while self._moves and self._moves[0].at_ms < at_ms:
            self._count(self._moves.popleft(), -1)

    def _count(self, move: MoveSeen, by: int) -> None:
        for counts, name in ((self.came, move.target), (self.went, move.source)):
            counts[name] += by
            if not counts[name]:
                del counts[name]
        if move.cause is not SeenMoveCause.PLANNED:
            self._counted[move.key] += by
            if not self._counted[move.key]:
                del self._counted[move.key]

    def flapping(self, drains: Collection[str]) -> list[tuple[int, list[int]]]:
        """Bundles that move too often, the worst first, with the number of their moves by `SeenMoveCause`.

        Args:
            drains: Decisions that belong to a drain: their moves are planned.
        """
        suspects = {key for key, times in self._counted.items() if times >= FLAPS}
        if not suspects:
            return []
        causes: dict[int, Counter[SeenMoveCause]] = {key: Counter() for key in suspects}
        for move in self._moves:
            if move.key in suspects:
                causes[move.key][SeenMoveCause.PLANNED if move.decision in drains else move.cause] += 1
        of_trouble = {key: own[SeenMoveCause.BALANCER] + own[SeenMoveCause.FAILURE] for key, own in causes.items()}
        worst = nlargest(
            FLAPPING_MAX, (key for key, times in of_trouble.items() if times >= FLAPS), key=of_trouble.__getitem__
        )
        return [(key, [causes[key][cause] for cause in SeenMoveCause]) for key in worst]


def _cause_of(step: BundleStep, begun: tuple[SeenMoveCause, str | None] | None) -> tuple[SeenMoveCause, str | None]:
    """By the record that begins the move; those that follow it have only its operation and flow."""
    note = step.note
    if note.lost is not None or note.flow == Flow.REPAIR or note.action in (Action.REPAIR, Action.DECLINE):
        return SeenMoveCause.FAILURE, None
    if note.decision is not None:
        return SeenMoveCause.BALANCER, note.decision
    if begun is None or (step.after is not None and step.after.state is State.RELEASING):
        return SeenMoveCause.PLANNED, None
    return begun
