"""What the page shows, as documents by section: from changes of bundles and a look at the members. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from statechannel.audit.report.ownership import colours_of
from statechannel.conditions.facts import (
    HOOKS,
    BrokerRow,
    ChannelHealth,
    ConditionLimits,
    ConditionSeverity,
    Facts,
    FlapFacts,
    JunkFacts,
    MovingBundle,
    Occurrence,
    bundle_facts,
    is_unowned,
)
from statechannel.conditions.kinds import FLAPS_WINDOW_MS
from statechannel.conditions.table import current, verdict_of
from statechannel.engine.replica_differences import DifferingReplica, replica_differences
from statechannel.http_api.page.bundle_table import BundleStart, BundleStep, ChangeJournal, Holding
from statechannel.http_api.page.heat_map import RangeHeatMap, heat_map_of
from statechannel.http_api.page.page_events import PageEvents
from statechannel.http_api.page.page_facts import BundleMovesSeen, ClusterLook, facts_of
from statechannel.http_api.page.past_page import BETWEEN_MAX, MemberHistory
from statechannel.protocol.bounded import remember
from statechannel.protocol.bundle import parse_key
from statechannel.protocol.states import IN_FLIGHT, Action, State, is_left_by_shutdown
from statechannel.stories.incident import Declines

if TYPE_CHECKING:
    from statechannel.broker.changes import Change
    from statechannel.settings import Settings
    from statechannel.stories.incident import ForgedRecords

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
        drains: Decisions that belong to a drain, as far as they were read.
        cordons: Rows of `/v1/cordons` by broker, as they were read last.
        heat: None before the first look.
        unserved: Since when bundles that had an owner are without, by key (ms since 1970).
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.journal = ChangeJournal(settings.http.page_history_max)
        self.events = PageEvents(lambda step: self.journal.table.name_of(step.key, step.upper))
        self.members = MemberHistory()
        self._limits = ConditionLimits.of(settings)
        self._look: ClusterLook | None = None
        self._owned: Counter[str | None] = Counter()
        self._unassigned = 0
        self._between: dict[int, _Between] = {}
        self.heat: RangeHeatMap | None = None
        self._moves = BundleMovesSeen()
        self._names_forgotten_ms = 0
        self.drains: frozenset[str] = frozenset()
        self.cordons: Mapping[str, Mapping[str, Any]] = {}
        self._forged: dict[tuple[str, str], ForgedRecords] = {}
        self._declines = Declines()
        self._begun_ms: int | None = None
        self._led_ms: int | None = None
        self.unserved: dict[int, int] = {}
        self._rejected: deque[tuple[int, Mapping[str, int]]] = deque()
        self.changes = 0

    def begin(self, starts: Iterable[BundleStart], positions: dict[int, int]) -> None:
        """Begin with these bundles; what was between owners before this process began has no known age."""
        kept = list(starts)
        self.journal.begin(kept, positions)
        self.events.forget_gaps()
        for known in (self._owned, self._between, self._moves, self.unserved):
            known.clear()
        self._declines, self._begun_ms = Declines(), None
        self.heat = None
        self._unassigned = 0
        for _, _, holding in self.journal.table.rows():
            self._owned[holding.owner] += 1
            self._unassigned += holding.state is State.UNASSIGNED
        for start in kept:
            parts = parse_key(start.key) if _is_unsettled(start.holding, start.flow) else None
            if parts is not None:
                key = self.journal.table.key_of(parts.namespace, parts.lower)
                self._between[key] = _Between(parts.upper, start.holding, None, start.operation, start.flow, None)

    def take(self, changes: Iterable[Change]) -> None:
        """Changes, in the order of the log."""
        for change in changes:
            steps = self.journal.take(change)
            for step in steps:
                self._step(step)
            if steps:
                self._note_declines(change, steps[-1])
            self.changes += 1

    def _note_declines(self, change: Change, step: BundleStep) -> None:
        parts = parse_key(change.bundle.encode())
        if parts is not None and parts.is_namespace:
            self._declines.forget_namespace(parts.namespace)
        elif step.after is None or step.after.owner is not None:
            self._declines.forget([change.bundle])
        if change.action == Action.DECLINE and change.from_ is not None and not change.forced:
            process, since_ms = (change.from_, change.incarnation), self.unserved.get(step.key)
            self._declines.note(change.bundle, process, change.reason, change.timestamp_ms, since_ms)
            if step.after is not None and step.after.state is State.UNASSIGNED:
                asked_for = _Between(step.upper, step.after, step.at_ms, step.operation, step.note.flow, None)
                self._between.setdefault(step.key, asked_for)

    def _step(self, step: BundleStep) -> None:
        before, after = step.before, step.after
        if before is not None:
            self._owned[before.owner] -= 1
            if not self._owned[before.owner]:
                del self._owned[before.owner]
            self._unassigned -= before.state is State.UNASSIGNED
        self._between.pop(step.key, None)
        if after is None or after.state is State.ASSIGNED:
            self.unserved.pop(step.key, None)
        elif before is not None and before.state is State.ASSIGNED:
            self.unserved[step.key] = step.at_ms
        if after is not None:
            self._owned[after.owner] += 1
            self._unassigned += after.state is State.UNASSIGNED
            if _is_unsettled(after, step.note.flow):
                self._between[step.key] = _Between(
                    step.upper, after, step.at_ms, step.operation, step.note.flow, step.note.decision
                )
        self.events.step(step)
        self._moves.take(step)
        if self.heat is not None:
            self.heat.advance(step.at_ms)
            self.heat.take(step)

    def look(self, look: ClusterLook) -> None:
        """What is known of the members now."""
        self._look = look
        self._begun_ms = look.at_ms if self._begun_ms is None else self._begun_ms
        heard_ms = [look.now_ms - row["heard_ago_ms"] for row in look.brokers if row["leading"]]
        self._led_ms = max(heard_ms, default=self._led_ms)
        for process, forged in look.forged.items():
            remember(self._forged, process, forged, _FORGED_MAX)
        self.members.take(look)
        self.events.members(list(look.brokers), look.leader, look.mode, look.at_ms)
        self._moves.forget_before(look.at_ms - FLAPS_WINDOW_MS)
        self._forget_names(look.at_ms)
        self._rejected.append((look.at_ms, dict(look.rejected)))
        while len(self._rejected) > 2 and self._rejected[1][0] <= look.at_ms - JUNK_WINDOW_MS:  # noqa: PLR2004
            self._rejected.popleft()
        if self.heat is None or not self.heat.fits(self.journal.table):
            self.heat = heat_map_of(self.journal, round(1_000 * self.settings.http.page_column_s), look.at_ms)
        self.heat.advance(look.at_ms)
        lost = [row for row in look.brokers if row["state"] == "lost"]
        self.heat.lose({row["broker"]: look.at_ms - row["heard_ago_ms"] for row in lost})

    def _forget_names(self, at_ms: int) -> None:
        """Names that are gone are kept as long as something shown has them, and some time more: looking for them takes time."""
        table = self.journal.table
        late = at_ms - self._names_forgotten_ms > NAMES_EACH_MS or table.names_gone > max(NAMES_GONE_MAX, len(table))
        if table.names_gone and late:
            self._names_forgotten_ms = at_ms
            table.forget_names([*(step.key for step in self.journal.steps), *self._moves.keys()])

    @property
    def alive(self) -> set[str]:
        """Brokers that are heard."""
        return set() if self._look is None else {row["broker"] for row in self._look.brokers if _is_alive(row)}

    @property
    def looked_at_ms(self) -> int:
        """Wall clock of the last look; 0 before the first."""
        return 0 if self._look is None else self._look.at_ms

    def sections(self) -> dict[str, Any]:
        """All sections but the heat map; empty before the first look."""
        look = self._look
        if look is None:
            return {}
        owned = {name: count for name, count in self._owned.items() if name is not None and count}
        between = {key: row for key, row in self._between.items() if _is_between(row.holding, row.flow)}
        conditions = self.conditions(look, owned)
        problems = [_problem(item) for item in conditions if item.severity is not ConditionSeverity.NOTE]
        return {
            "head": {"health": verdict_of(conditions).value, **self._head(look, owned)},
            "brokers": self._brokers(look, owned),
            "between": {"all": len(between), "rows": self._between_rows(between)},
            "problems": problems[:PROBLEMS_MAX],
            "replicas": {"differing": [{"brokers": row.doubtful, "message": row.sentence} for row in _differing(look)]},
            "events": self.events.rows(),
            "colours": colours_of(
                {*owned, *(row["broker"] for row in look.brokers), *(() if self.heat is None else self.heat.owners)}
            ),
        }

    def conditions(self, look: ClusterLook, owned: Mapping[str, int]) -> list[Occurrence]:
        """What is wrong now, by the same table as in `status`."""
        moving = [
            MovingBundle(
                self.journal.table.name_of(key, row.upper), row.holding.state, row.holding.owner or row.holding.source,
                row.holding.destination, self._begun_ms if row.since_ms is None else row.since_ms,
                self.unserved.get(key), row.operation, row.flow,
            )
            for key, row in nsmallest(_OLDEST_MAX, self._between.items(), key=lambda item: item[1].since_ms or 0)
        ]  # fmt: skip
        cluster, at_ms = facts_of(look, self.settings.channel.name, owned), look.now_ms
        declined: list[Any] = self._declines.bundle_rows(cluster["brokers"])
        is_led = look.leader is not None or self._led_ms is None
        leaderless_ms = None if is_led else max(0, at_ms - (self._led_ms or 0))
        facts: Facts = {
            **cluster,
            **bundle_facts(moving, owned, cluster["brokers"], {row["bundle"] for row in declined}, at_ms),
            "no_leader_for_ms": leaderless_ms,
            "declines": self._declines.count_rows(at_ms),
            "declined_bundles": declined,
            "disowned": [
                forged.sentence(name) for (name, _), forged in sorted(self._forged.items()) if forged.is_shown(at_ms)
            ],
            "cordons": self.cordons,
            "flaps": self._flaps(),
            "junk": self._junk(),
        }
        return current(facts, self._limits)

    @property
    def heat_layout(self) -> object:
        """Changes where rows, owners or older columns do: cells then need the whole map."""
        return None if self.heat is None else (self.heat, len(self.heat.owners), self.heat.corrections)

    def _head(self, look: ClusterLook, owned: Mapping[str, int]) -> dict[str, Any]:
        alive = [row for row in look.brokers if _is_alive(row)]
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
            "place": self.journal.place,
            "newest_ms": self.journal.steps[-1].at_ms if self.journal.steps else None,
            "lag_ms": round(1_000 * look.lag_s),
        }

    def _brokers(self, look: ClusterLook, owned: Mapping[str, int]) -> list[dict[str, Any]]:
        coming = Counter(row.holding.destination for row in self._between.values())
        leaving = Counter(row.holding.owner for row in self._between.values() if row.holding.state is State.RELEASING)
        shown = ("broker", "state", "mode", "phase", "accepting", "draining", "leading", "software", "api")
        return [
            {
                **{field: row[field] for field in shown},  # type: ignore[literal-required]
                "bundles": owned.get(row["broker"], 0),
                "lag_records": row["lag_records"] if (row["lag_records"] or 0) > _LAG_SHOWN else 0,
                "lost_since_ms": look.at_ms - row["heard_ago_ms"] if row["state"] == "lost" else None,
                "silent": _is_alive(row) and row["heard_ago_ms"] >= self._limits.suspect_ms,
                "coming": coming[row["broker"]],
                "leaving": leaving[row["broker"]],
                "came": self._moves.came[row["broker"]],
                "went": self._moves.went[row["broker"]],
            }
            for row in look.brokers
        ]

    def _between_rows(self, between: Mapping[int, _Between]) -> list[dict[str, Any]]:
        oldest = nsmallest(BETWEEN_MAX, between.items(), key=lambda item: item[1].since_ms or 0)
        alive = self.alive
        return [self._between_row(key, row, alive) for key, row in oldest]

    def _between_row(self, key: int, row: _Between, alive: set[str]) -> dict[str, Any]:
        holding = row.holding
        who = holding.destination if holding.state is State.ASSIGNING else holding.owner
        gone = who is not None and who not in alive
        repair_s = self.settings.repair.in_flight_limit_s
        limit_s = repair_s if gone else self.settings.hooks.deadline_s
        return {
            "bundle": self.journal.table.name_of(key, row.upper),
            "state": holding.state.value,
            "from": holding.owner or holding.source,
            "to": holding.destination,
            "since_ms": row.since_ms,
            "due_ms": None if row.since_ms is None else row.since_ms + round(1_000 * limit_s),
            "repaired_ms": None if row.since_ms is None else row.since_ms + round(1_000 * repair_s),
            "who": None if gone else who,
            "lost": who if gone else None,
            "hook": None if gone else HOOKS.get(holding.state),
            "operation": row.operation,
            "flow": row.flow,
            "decision": row.decision,
        }

    def _flaps(self) -> list[FlapFacts]:
        table = self.journal.table
        rows = ((key, table.get(key), counts) for key, counts in self._moves.flapping(self.drains))
        return [FlapFacts(table.name_of(key, held[0]), *counts) for key, held, counts in rows if held is not None]

    def _junk(self) -> JunkFacts | None:
        if len(self._rejected) < 2:  # noqa: PLR2004
            return None
        (first_ms, before), (last_ms, now) = self._rejected[0], self._rejected[-1]
        more = {verdict: count - before.get(verdict, 0) for verdict, count in now.items()}
        more = {verdict: count for verdict, count in sorted(more.items(), key=lambda item: -item[1]) if count > 0}
        records = sum(more.values())
        return JunkFacts(records, max(1.0, (last_ms - first_ms) / 1_000), more) if records >= JUNK_RECORDS else None


def _differing(look: ClusterLook) -> list[DifferingReplica]:
    reports: dict[str, Sequence[Mapping[str, Any]]] = {
        row["broker"]: row["differs"] for row in look.brokers if _is_alive(row)
    }
    return replica_differences(reports if look.broker else reports | {THIS_CONSOLE: look.differs})


def _problem(condition: Occurrence) -> dict[str, Any]:
    """A row of the section `problems`."""
    return {
        "kind": condition.code,
        "due_to": condition.due_to,
        "subject": condition.subject,
        "message": condition.message,
        "hint": condition.next_step,
        "since_ms": condition.since_ms,
        "severe": condition.severity.verdict is not ChannelHealth.HEALTHY,
    }


def _is_alive(row: BrokerRow) -> bool:
    return row["state"] not in ("lost", "left")


def _is_unsettled(holding: Holding, flow: str | None) -> bool:
    """Whether a bundle is between two owners, or has lost its owner though no unload was requested."""
    return holding.state in IN_FLIGHT or is_unowned(holding.state, flow)


def _is_between(holding: Holding, flow: str | None) -> bool:
    """Whether a broker or the leader has to act so that the bundle gets an owner."""
    return holding.state in IN_FLIGHT or is_left_by_shutdown(holding.state, flow)


_LAG_SHOWN: Final = 1_000
