"""What the page shows, as documents by section: from changes of bundles and a look at the members. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from statechannel.audit.report.ownership import colours_of
from statechannel.engine.replica_differences import DifferingReplica, replica_differences
from statechannel.http_api.page.bundle_table import BundleStart, BundleStep, ChangeJournal, Holding
from statechannel.http_api.page.heat_map import RangeHeatMap, heat_map_of
from statechannel.http_api.page.moves_seen import MOVES_WINDOW_MS, BundleMovesSeen
from statechannel.http_api.page.page_events import PageEvents
from statechannel.http_api.page.past_page import BETWEEN_MAX, MemberHistory
from statechannel.http_api.page.problems_seen import ClusterLook, FlapSeen, JunkRate, problems_of
from statechannel.protocol.bounded import remember
from statechannel.protocol.bundle import parse_key
from statechannel.protocol.replica import Phase
from statechannel.protocol.states import IN_FLIGHT, State, is_left_by_shutdown

if TYPE_CHECKING:
    from statechannel.audit.forged_records import ForgedRecords
    from statechannel.broker.changes import Change

_OLDEST_MAX: Final = 1_000
_FORGED_MAX: Final = 200
PROBLEMS_MAX: Final = 40
THIS_CONSOLE: Final = "this console"
NAMES_EACH_MS: Final = 60_000
NAMES_GONE_MAX: Final = 1_000
"""Names of namespaces that are gone, of which more are not kept until NAMES_EACH_MS have passed."""
JUNK_WINDOW_MS: Final = 30_000
JUNK_RECORDS: Final = 100
"""Records without a place on the channel within the window that are worth naming; a lost race rejects a few."""
_HOOKS: Final = {State.RELEASING: "on_release", State.ASSIGNING: "on_own", State.SPLITTING: "on_split"}


class PageLimits(NamedTuple):
    """Settings that the page shows or needs.

    Attributes:
        in_flight_s: Age at which the leader repairs an in-flight state.
        hook_s: Time limit of a hook.
        history_max: Steps that are kept.
        column_s: Width of a column of the heat map.
    """

    in_flight_s: float
    hook_s: float
    history_max: int
    column_s: float


class _Between(NamedTuple):
    upper: int
    holding: Holding
    since_ms: int | None
    operation: str | None
    flow: str | None
    decision: str | None


class PageView:
    """The page's state.

    Attributes:
        journal: States of bundles and their newest changes.
        events: What has happened.
        members: What was heard of the members, and when.
        changes: Number of changes taken.
        drains: Decisions that belong to a drain, as far as they were read.
        cordons: Rows of `/v1/cordons` by broker, as they were read last.
    """

    def __init__(self, limits: PageLimits) -> None:
        self.journal = ChangeJournal(limits.history_max)
        self.events = PageEvents(lambda step: self.journal.table.name_of(step.key, step.upper))
        self.members = MemberHistory()
        self.limits = limits
        self._look: ClusterLook | None = None
        self._owned: Counter[str | None] = Counter()
        self._unassigned = 0
        self._between: dict[int, _Between] = {}
        self._heat: RangeHeatMap | None = None
        self._moves = BundleMovesSeen()
        self._names_forgotten_ms = 0
        self.drains: frozenset[str] = frozenset()
        self.cordons: Mapping[str, Mapping[str, Any]] = {}
        self._forged: dict[tuple[str, str], ForgedRecords] = {}
        self._rejected: deque[tuple[int, Mapping[str, int]]] = deque()
        self.changes = 0

    def begin(self, starts: Iterable[BundleStart], positions: dict[int, int]) -> None:
        """Begin with these bundles; what was between owners before this process began has no known age."""
        kept = list(starts)
        self.journal.begin(kept, positions)
        self.events.forget_gaps()
        for known in (self._owned, self._between, self._moves):
            known.clear()
        self._heat = None
        self._unassigned = 0
        for _, _, holding in self.journal.table.rows():
            self._owned[holding.owner] += 1
            self._unassigned += holding.state is State.UNASSIGNED
        for start in kept:
            parts = parse_key(start.key) if _is_between(start.holding, start.flow) else None
            if parts is not None:
                key = self.journal.table.key_of(parts.namespace, parts.lower)
                self._between[key] = _Between(
                    parts.upper, start.holding, start.since_ms, start.operation, start.flow, None
                )

    def take(self, changes: Iterable[Change]) -> None:
        """Changes, in the order of the log."""
        for change in changes:
            for step in self.journal.take(change):
                self._step(step)
            self.changes += 1

    def _step(self, step: BundleStep) -> None:
        before, after = step.before, step.after
        if before is not None:
            self._owned[before.owner] -= 1
            if not self._owned[before.owner]:
                del self._owned[before.owner]
            self._unassigned -= before.state is State.UNASSIGNED
        self._between.pop(step.key, None)
        if after is not None:
            self._owned[after.owner] += 1
            self._unassigned += after.state is State.UNASSIGNED
            if _is_between(after, step.note.flow):
                self._between[step.key] = _Between(
                    step.upper, after, step.at_ms, step.operation, step.note.flow, step.note.decision
                )
        self.events.step(step)
        self._moves.take(step)
        if self._heat is not None:
            self._heat.advance(step.at_ms)
            self._heat.take(step)

    def look(self, look: ClusterLook) -> None:
        """What is known of the members now."""
        self._look = look
        for process, forged in look.forged.items():
            remember(self._forged, process, forged, _FORGED_MAX)
        self.members.take(look)
        self.events.members(list(look.brokers), look.leader, look.mode, look.at_ms)
        self._moves.forget_before(look.at_ms - MOVES_WINDOW_MS)
        self._forget_names(look.at_ms)
        self._rejected.append((look.at_ms, dict(look.rejected)))
        while len(self._rejected) > 2 and self._rejected[1][0] <= look.at_ms - JUNK_WINDOW_MS:  # noqa: PLR2004
            self._rejected.popleft()
        heat = self._heat
        if heat is None or not heat.fits(self.journal.table):
            self._heat = heat_map_of(self.journal, self._width_ms, look.at_ms)
        else:
            heat.advance(look.at_ms)
        if self._heat is not None:
            self._heat.lose(frozenset(row["broker"] for row in look.brokers if row["state"] == "lost"))

    def _forget_names(self, at_ms: int) -> None:
        """Names that are gone are kept as long as something shown has them, and some time more: looking for them takes time."""
        table = self.journal.table
        late = at_ms - self._names_forgotten_ms > NAMES_EACH_MS or table.names_gone > max(NAMES_GONE_MAX, len(table))
        if table.names_gone and late:
            self._names_forgotten_ms = at_ms
            table.forget_names([*(step.key for step in self.journal.steps), *self._moves.keys()])

    @property
    def looked_at_ms(self) -> int:
        """Wall clock of the last look; 0 before the first."""
        return 0 if self._look is None else self._look.at_ms

    @property
    def _width_ms(self) -> int:
        return round(1_000 * self.limits.column_s)

    def sections(self) -> dict[str, Any]:
        """All sections but the heat map; empty before the first look."""
        look = self._look
        if look is None:
            return {}
        owned = {name: count for name, count in self._owned.items() if name is not None and count}
        between = self._between_rows(look)
        differing = _differing(look)
        return {
            "head": self._head(look, owned),
            "brokers": self._brokers(look, owned),
            "between": {"all": len(self._between), "rows": between[:BETWEEN_MAX]},
            "problems": [
                problem.fields()
                for problem in problems_of(
                    look, owned, between, self._flaps(), self._junk(), differing, self.cordons, self._forged
                )[:PROBLEMS_MAX]
            ],
            "replicas": _replicas(look, differing),
            "events": self.events.rows(),
            "colours": colours_of({*owned, *(row["broker"] for row in look.brokers), *self._heat_owners()}),
        }

    def _heat_owners(self) -> Sequence[str]:
        return () if self._heat is None else self._heat.owners

    def heat(self) -> dict[str, Any] | None:
        """The whole heat map."""
        return None if self._heat is None else self._heat.document()

    def heat_changes(self) -> dict[str, Any] | None:
        """Cells that changed since the last call; a new object of `heat_layout` means that the whole map is needed."""
        return None if self._heat is None else self._heat.changed()

    @property
    def heat_layout(self) -> object:
        """Changes where rows or owners do: cells then need the whole map."""
        return None if self._heat is None else (self._heat, len(self._heat.owners))

    def _head(self, look: ClusterLook, owned: Mapping[str, int]) -> dict[str, Any]:
        alive = [row for row in look.brokers if row["state"] not in ("lost", "left")]
        unasked = self._unassigned - sum(row.holding.state is State.UNASSIGNED for row in self._between.values())
        return {
            "leader": look.leader,
            "term": look.term,
            "mode": look.mode,
            "away_since_ms": look.away_since_ms,
            "broker": look.broker,
            "brokers": len(alive),
            "bundles": len(self.journal.table),
            "unasked": unasked,
            "unserved": len(self.journal.table) - unasked - sum(owned.get(row["broker"], 0) for row in alive),
            "mean": round(sum(owned.get(row["broker"], 0) for row in alive) / len(alive), 1) if alive else None,
            "namespaces": self.journal.table.live_namespaces,
            "repair_paused": look.repair_paused,
            "repair_resumes_at_ms": look.repair_resumes_at_ms,
            "place": self.journal.place,
            "newest_ms": self.journal.steps[-1].at_ms if self.journal.steps else None,
            "lag_ms": round(1_000 * look.lag_s),
            "whole_from": self.journal.whole_from,
            "positions": {str(partition): offset for partition, offset in sorted(look.applied.items())},
        }

    def _brokers(self, look: ClusterLook, owned: Mapping[str, int]) -> list[dict[str, Any]]:
        coming = Counter(row.holding.destination for row in self._between.values())
        leaving = Counter(row.holding.owner for row in self._between.values() if row.holding.state is State.RELEASING)
        shown = (
            "broker",
            "state",
            "mode",
            "phase",
            "accepting",
            "draining",
            "leading",
            "software",
            "http",
            "started_at_ms",
        )
        rows = []
        for row in look.brokers:
            name = row["broker"]
            fields: dict[str, Any] = {field: row[field] for field in shown}  # type: ignore[literal-required]
            rows.append(
                {
                    **fields,
                    "bundles": owned.get(name, 0),
                    "lag_records": row["lag_records"] if (row["lag_records"] or 0) > _LAG_SHOWN else 0,
                    "lost_since_ms": look.at_ms - row["heard_ago_ms"] if row["state"] == "lost" else None,
                    "coming": coming[name],
                    "leaving": leaving[name],
                    "came": self._moves.came[name],
                    "went": self._moves.went[name],
                }
            )
        return rows

    def _between_rows(self, look: ClusterLook) -> list[dict[str, Any]]:
        alive = {row["broker"] for row in look.brokers if row["state"] not in ("lost", "left")}
        oldest = nsmallest(_OLDEST_MAX, self._between.items(), key=lambda item: item[1].since_ms or 0)
        return [self._between_row(key, row, alive) for key, row in oldest]

    def _between_row(self, key: int, row: _Between, alive: set[str]) -> dict[str, Any]:
        holding = row.holding
        who = holding.destination if holding.state is State.ASSIGNING else holding.owner
        gone = who is not None and who not in alive
        limit_s = self.limits.hook_s if not gone else self.limits.in_flight_s
        return {
            "bundle": self.journal.table.name_of(key, row.upper),
            "state": holding.state.value,
            "from": holding.owner or holding.source,
            "to": holding.destination,
            "since_ms": row.since_ms,
            "due_ms": None if row.since_ms is None else row.since_ms + round(1_000 * limit_s),
            "repaired_ms": None if row.since_ms is None else row.since_ms + round(1_000 * self.limits.in_flight_s),
            "who": None if gone else who,
            "lost": who if gone else None,
            "hook": None if gone else _HOOKS.get(holding.state),
            "operation": row.operation,
            "flow": row.flow,
            "decision": row.decision,
        }

    def _flaps(self) -> list[FlapSeen]:
        flapping = []
        for key, *times in self._moves.flapping(self.drains):
            held = self.journal.table.get(key)
            if held is not None:
                flapping.append(FlapSeen(self.journal.table.name_of(key, held[0]), *times))
        return flapping

    def _junk(self) -> JunkRate | None:
        if len(self._rejected) < 2:  # noqa: PLR2004
            return None
        (first_ms, before), (last_ms, now) = self._rejected[0], self._rejected[-1]
        more = {verdict: count - before.get(verdict, 0) for verdict, count in now.items()}
        more = {verdict: count for verdict, count in sorted(more.items(), key=lambda item: -item[1]) if count > 0}
        records = sum(more.values())
        return JunkRate(records, max(1.0, (last_ms - first_ms) / 1_000), more) if records >= JUNK_RECORDS else None


def _differing(look: ClusterLook) -> list[DifferingReplica]:
    reports: dict[str, Sequence[Mapping[str, Any]]] = {
        row["broker"]: row["differs"] for row in look.brokers if row["state"] not in ("lost", "left")
    }
    return replica_differences(reports if look.broker else reports | {THIS_CONSOLE: look.differs})


def _replicas(look: ClusterLook, differing: Sequence[DifferingReplica]) -> dict[str, Any]:
    """By the heartbeats of all brokers that are alive."""
    alive = [row for row in look.brokers if row["state"] not in ("lost", "left")]
    return {
        "all": len(alive),
        "caught_up": sum(row["phase"] == Phase.CAUGHT_UP for row in alive),
        "differing": [{"brokers": item.doubtful, "message": item.sentence} for item in differing],
    }


def _is_between(holding: Holding, flow: str | None) -> bool:
    """Whether a broker or the leader has to act so that the bundle gets an owner."""
    return holding.state in IN_FLIGHT or is_left_by_shutdown(holding.state, flow)


_LAG_SHOWN: Final = 1_000
