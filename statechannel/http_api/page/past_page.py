"""The page as of a moment, and the difference of two: from changes and from what was heard of the members then. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from statechannel.conditions.kinds import FLAPS_WINDOW_MS
from statechannel.http_api.page.page_events import PageEvents
from statechannel.http_api.page.page_facts import BundleMovesSeen
from statechannel.protocol.states import IN_FLIGHT, State

if TYPE_CHECKING:
    from statechannel.http_api.page.bundle_table import BundleStep, ChangeJournal, Holding, LiveBundleTable
    from statechannel.http_api.page.page_facts import ClusterLook

BETWEEN_MAX: Final = 50
DIFFERENCES_MAX: Final = 200
MOMENTS_MAX: Final = 1_000
_ROWS_MAX: Final = 100_000
_FACTS: Final = ("state", "mode", "phase", "accepting", "draining", "leading", "software")
"""What a broker says of itself that is kept."""


class MembersThen(NamedTuple):
    """The members from a moment on."""

    at_ms: int
    leader: str | None
    term: int | None
    mode: str
    brokers: Mapping[str, Mapping[str, Any]]


class MemberHistory:
    """What was heard of the members, each time that it changed: the newest moments."""

    def __init__(self) -> None:
        self._moments: deque[MembersThen] = deque(maxlen=MOMENTS_MAX)
        self._rows = 0

    def take(self, look: ClusterLook) -> None:
        """What is heard now."""
        newest = self._moments[-1] if self._moments else None
        known = {} if newest is None else newest.brokers
        brokers = {}
        for row in look.brokers:
            facts = {name: row[name] for name in _FACTS}
            before = known.get(row["broker"])
            brokers[row["broker"]] = before if before == facts else facts
        then = MembersThen(look.at_ms, look.leader, look.term, look.mode, brokers)
        if newest is None or newest[1:] != then[1:]:
            if len(self._moments) == MOMENTS_MAX:
                self._forget()
            self._moments.append(then)
            self._rows += len(brokers)
            while self._rows > _ROWS_MAX and len(self._moments) > 1:
                self._forget()

    def _forget(self) -> None:
        self._rows -= len(self._moments.popleft().brokers)

    def at(self, at_ms: int) -> MembersThen | None:
        """None: not known, as this process did not listen then, or has forgotten it."""
        return next((then for then in reversed(self._moments) if then.at_ms <= at_ms), None)

    def losses(self) -> list[tuple[int, Mapping[str, int]]]:
        """The brokers that are lost from each moment on."""
        return [
            (then.at_ms, {name: then.at_ms for name, facts in then.brokers.items() if facts["state"] == "lost"})
            for then in self._moments
        ]


def past_document(
    journal: ChangeJournal,
    table: LiveBundleTable,
    place: int,
    at_ms: int,
    members: MembersThen | None,
    events: PageEvents,
) -> dict[str, Any]:
    """The page as of a moment; null is what is not known.

    Args:
        table: Bundles then.
        place: Number of the newest change by then.
        events: Those of members are taken from it; gaps and splits are found again in the changes.
    """
    owned: Counter[str] = Counter()
    states: Counter[str] = Counter()
    coming: Counter[str | None] = Counter()
    leaving: Counter[str | None] = Counter()
    between: dict[int, tuple[int, Holding]] = {}
    moving = 0
    for key, upper, holding in table.rows():
        states[holding.state.value] += 1
        if holding.owner is not None:
            owned[holding.owner] += 1
        if holding.state in IN_FLIGHT:
            moving += 1
            coming[holding.destination] += 1
            if holding.state is State.RELEASING:
                leaving[holding.owner] += 1
            if len(between) < BETWEEN_MAX:
                between[key] = upper, holding
    steps = [step for step in journal.steps if step.place <= place]
    moves = _moves_of(steps, at_ms) if _reaches(journal, at_ms - FLAPS_WINDOW_MS) else None
    names = sorted({*owned, *(() if members is None else members.brokers)})
    alive = None if members is None else [name for name in names if _is_alive(members, name)]
    served = sum(owned.values()) if alive is None else sum(owned[name] for name in alive)
    return {
        "place": place,
        "at_ms": at_ms,
        "states": dict(sorted(states.items())),
        "owners": dict(sorted(owned.items())),
        "head": {
            "leader": None if members is None else members.leader,
            "term": None if members is None else members.term,
            "mode": None if members is None else members.mode,
            "brokers": None if alive is None else len(alive),
            "bundles": len(table),
            "unasked": states[State.UNASSIGNED.value],
            "unserved": len(table) - states[State.UNASSIGNED.value] - served,
            "mean": round(served / len(alive or owned), 1) if alive or (alive is None and owned) else None,
            "known": members is not None,
        },
        "brokers": [
            {
                "broker": name,
                "bundles": owned[name],
                "coming": coming[name],
                "leaving": leaving[name],
                "came": None if moves is None else moves.came[name],
                "went": None if moves is None else moves.went[name],
                **_facts(members, name),
            }
            for name in names
        ],
        "between": {"all": moving, "rows": _between_rows(table, between, steps)},
        "events": _events(table, steps, at_ms, events),
    }


def _is_alive(members: MembersThen, name: str) -> bool:
    return name in members.brokers and members.brokers[name]["state"] not in ("lost", "left")


def _facts(members: MembersThen | None, name: str) -> dict[str, Any]:
    facts = None if members is None else members.brokers.get(name)
    if facts is None:
        # A broker that nobody heard while others were heard, and one of which nothing is known, differ.
        return dict.fromkeys(_FACTS) | {"state": None if members is None else "unheard"}
    return dict(facts)


def _reaches(journal: ChangeJournal, at_ms: int) -> bool:
    return journal.is_whole or bool(journal.steps and journal.steps[0].at_ms <= at_ms)


def _moves_of(steps: Sequence[BundleStep], at_ms: int) -> BundleMovesSeen:
    moves = BundleMovesSeen()
    for step in steps:
        if step.at_ms >= at_ms - FLAPS_WINDOW_MS:
            moves.take(step)
    return moves


def _between_rows(
    table: LiveBundleTable, between: Mapping[int, tuple[int, Holding]], steps: Sequence[BundleStep]
) -> list[dict[str, Any]]:
    begun: dict[int, BundleStep] = {}
    for step in reversed(steps):
        if step.key in between and step.key not in begun:
            begun[step.key] = step
    rows = []
    for key, (upper, holding) in between.items():
        newest = begun.get(key)
        rows.append(
            {
                "bundle": table.name_of(key, upper),
                "state": holding.state.value,
                "from": holding.owner or holding.source,
                "to": holding.destination,
                "since_ms": None if newest is None else newest.at_ms,
                "who": holding.destination if holding.state is State.ASSIGNING else holding.owner,
            }
        )
    return sorted(rows, key=lambda row: row["since_ms"] or 0)


def _events(table: LiveBundleTable, steps: Sequence[BundleStep], at_ms: int, known: PageEvents) -> list[dict[str, Any]]:
    then = PageEvents(lambda step: table.name_of(step.key, step.upper))
    for step in steps:
        then.step(step)
    return then.rows(at_ms, known.of_members(at_ms))


def step_fields(table: LiveBundleTable, step: BundleStep) -> dict[str, Any]:
    """A step as the page has it."""
    note = step.note

    def held(holding: Holding | None) -> dict[str, Any] | None:
        if holding is None:
            return None
        return {"state": holding.state.value, "owner": holding.owner, "to": holding.destination}

    return {
        "place": step.place,
        "at_ms": step.at_ms,
        "partition": step.partition,
        "offset": step.offset,
        "bundle": table.name_of(step.key, step.upper),
        "before": held(step.before),
        "after": held(step.after),
        "operation": step.operation,
        **note._asdict(),
    }


def difference(before: LiveBundleTable, after: LiveBundleTable) -> dict[str, Any]:
    """Bundles whose owner differs, by pair of owners; and how many each broker had.

    Args:
        after: Is given the names of namespaces that `before` alone has.
    """
    known = {key: (upper, holding) for key, upper, holding in before.rows_as_in(after)}
    had, has = Counter(holding.owner for _, holding in known.values()), Counter[str | None]()
    pairs: Counter[tuple[str | None, str | None]] = Counter()
    rows: list[dict[str, Any]] = []
    for key, upper, holding in after.rows():
        has[holding.owner] += 1
        earlier = known.pop(key, None)
        owner = None if earlier is None else earlier[1].owner
        if earlier is not None and earlier[0] == upper and owner == holding.owner:
            continue
        pairs[owner, holding.owner] += 1
        if len(rows) < DIFFERENCES_MAX:
            rows.append({"bundle": after.name_of(key, upper), "from": owner, "to": holding.owner})
    return {
        "pairs": [{"from": pair[0], "to": pair[1], "bundles": count} for pair, count in pairs.most_common()],
        "bundles": rows,
        "all": sum(pairs.values()),
        "gone": len(known),
        "brokers": [
            {"broker": name, "before": had[name], "after": has[name]}
            for name in sorted({*had, *has}, key=lambda name: (name is None, name))
        ],
    }
