"""Explanation of a bundle's owner: the channel's records show what happened, decision records show why. Pure.

Each step is a change on the channel with the decision that its operation belongs to, in sentences for people. `why_not`
answers the opposite question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from shedders.decisions.book import BundleDecision, DecisionBook
from shedders.decisions.bundle_trail import BundleChange, Trail, What
from shedders.decisions.record import DecisionRecord, MoveEntry, PlacedEntry
from statechannel.audit.id_series import FOREIGN
from statechannel.engine.shutdown import SHUTDOWN

NOT_MADE = "not-made"
"""Word for a step that was decided, but of which the channel has no record."""

_SECOND_MS = 1_000
_MINUTE_MS = 60_000
_RECORDED_BEFORE_MS = 1_000
_RECORDED_WITHIN_MS = 5_000
"""Placements are recorded in batches, a second apart, with the broker's own estimate of the log's clock."""


class CommandOrigin(NamedTuple):
    """The user and the command that requested an operation."""

    by: str
    command: str


@dataclass(frozen=True, slots=True)
class ExplanationStep:
    """One thing that happened to a bundle, or to one that it was part of.

    Attributes:
        what: A stable word (`bundle_trail.What`, or `not-made`).
        said: What happened, a sentence.
        because: Explanation, a sentence with the numbers that decided; None if it is not recorded.
        decision: Id of the decision record; None if no remaining record mentions it.
        result: How the move ended by the decision records.
        took_ms: From its first to its last record on the channel.
    """

    at_ms: int
    bundle: str
    what: str
    said: str
    because: str | None
    operation: str | None = None
    decision: str | None = None
    leader: str | None = None
    term: int | None = None
    cycle: int | None = None
    strategy: str | None = None
    source: str | None = None
    destination: str | None = None
    load: float | None = None
    result: str | None = None
    took_ms: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to `why`.

    Attributes:
        title: The bundle or topic of the question.
        bundle: The live bundle that it is now; None where there is none.
        now: Its present state, a sentence.
        steps: In the order in which they happened.
        left_out: Older steps that are not shown.
    """

    title: str
    bundle: str | None
    owner: str | None
    now: str
    steps: Sequence[ExplanationStep]
    left_out: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def why(
    trail: Trail, book: DecisionBook, asked: Mapping[str, CommandOrigin] | None = None, *, steps_max: int = 20
) -> Explanation:
    """Explain who moved a bundle, when, by which decision and with which numbers, through splits back to its creation.

    Args:
        trail: What the channel says.
        asked: Commands, by operation.
        steps_max: Number of the newest steps that are shown.
    """
    known = asked or {}
    steps = [_step(change, book, known.get(change.operation or "")) for change in trail.changes]
    shown = {step.operation for step in steps if step.operation is not None}
    steps += _not_made(trail, book, shown)
    steps.sort(key=lambda step: step.at_ms)
    first = max(0, len(steps) - max(1, steps_max))
    return Explanation(trail.title, trail.bundle, trail.owner, _now(trail), steps[first:], first)


def _now(trail: Trail) -> str:
    if not trail.changes:
        return "the channel has no record of it"
    if trail.bundle is None:
        last = trail.changes[-1]
        if last.what is What.DELETED:
            return "its namespace was deleted"
        split = next((change for change in reversed(trail.changes) if change.what is What.SPLIT), None)
        if split is not None:
            return f"{split.bundle} was split into {', '.join(split.children)}"
        return "the remaining records do not say who serves it"
    if trail.owner is None:
        return f"{trail.bundle} is served by no broker now"
    return f"{trail.bundle} is served by {trail.owner}"


def _step(change: BundleChange, book: DecisionBook, asker: CommandOrigin | None) -> ExplanationStep:
    took_ms = change.ended_ms - change.began_ms
    decided = book.by_operation(change.operation)
    chosen = _placement(change, book) if decided is None else None
    because = _because(change, asker, chosen) if decided is None else _decided(decided)
    step = ExplanationStep(
        at_ms=change.began_ms,
        bundle=change.bundle,
        what=change.what.value,
        said=_sentence(change, took_ms),
        because="; ".join(filter(None, [FOREIGN if change.foreign else None, because])) or None,
        operation=change.operation,
        source=change.source,
        destination=change.destination,
        took_ms=took_ms,
        offset=change.offset,
    )
    decided = decided or chosen
    return step if decided is None else _with_decision(step, decided)


def _placement(change: BundleChange, book: DecisionBook) -> BundleDecision | None:
    """The placement that chose the destination, if a broker made one while it wrote the records of the change."""
    to = {broker for broker in (change.wanted, change.destination) if broker is not None}
    if change.what in (What.CREATED, What.DELETED, What.SPLIT, What.RESUMED) or not to:
        return None
    return book.placed(
        change.bundle, change.by, to, change.began_ms - _RECORDED_BEFORE_MS, change.began_ms + _RECORDED_WITHIN_MS
    )


def _with_decision(step: ExplanationStep, decided: BundleDecision) -> ExplanationStep:
    decision, entry = decided.decision, decided.entry
    facts = asdict(step)
    facts |= {
        "decision": decision.id,
        "leader": decision.leader,
        "term": decision.term,
        "cycle": decision.cycle,
        "strategy": decision.strategy,
        "load": entry.load if isinstance(entry, MoveEntry) else None,
        "result": decided.result,
    }
    return ExplanationStep(**facts)


def _sentence(change: BundleChange, took_ms: int) -> str:
    source, destination = change.source, change.destination
    within = f" within {length(took_ms)}" if took_ms else ""
    match change.what:
        case What.CREATED:
            return f"created with its namespace {change.bundle}, by {change.by}"
        case What.DELETED:
            return f"its namespace {change.bundle} was deleted, by {change.by}"
        case What.ASSIGNED:
            return f"assigned to {destination}{within}"
        case What.MOVED:
            return f"moved from {source} to {destination}{within}"
        case What.UNLOADED:
            return f"unloaded from {source or 'its owner'}{within}"
        case What.TAKEN_BACK:
            wanted = f" to {change.wanted}" if change.wanted else ""
            return f"was to go from {source}{wanted}, but {destination} took it back{within}"
        case What.RESUMED:
            return f"{destination} served it again after a start"
        case What.DECLINED:
            return f"{change.wanted or 'its destination'} declined it{within}"
        case What.SPLIT:
            return f"split by {destination} into {', '.join(_ranges(change.children))}{within}"
        case What.SUPERSEDED:
            return f"was in flight from {source or 'no broker'} to {change.wanted or 'any broker'} when another operation began"
    to = f" to {change.wanted}" if change.wanted else ""
    return f"is in flight from {source or 'no broker'}{to}"


def _ranges(children: Sequence[str]) -> list[str]:
    return [child.rpartition("/")[2] for child in children]


def _because(change: BundleChange, asker: CommandOrigin | None, chosen: BundleDecision | None) -> str | None:
    """The cause according to the channel's records, who requested it, and who chose the destination."""
    stated = f" (its reason: {change.reason})" if change.reason else ""
    to = "" if chosen is None else f"; destination: {_decided(chosen)}"
    if change.lost is not None:
        return f"{change.lost} was lost; {change.by} repaired it{stated}{to}"
    if change.forced:
        return f"a repair by {change.by}{stated}{to}"
    if asker is not None:
        return f"requested by {asker.by} ({asker.command}){stated}{to}"
    if change.what in (What.CREATED, What.DELETED, What.RESUMED):
        return f"requested as operation {change.operation}{stated}" if change.operation else stated.strip() or None
    if chosen is not None and change.what is What.ASSIGNED:
        return f"no broker served it and a client looked it up{stated}{to}"
    if change.reason == SHUTDOWN and change.source == change.by:
        return f"{change.by} was stopped cleanly and handed it over{to}"
    if change.operation is not None:
        what = "no decision record mentions its operation: it was requested by hand, or the record has expired"
        return f"{what}{stated}{to}"
    if change.source is None:
        return f"no broker served it and a client looked it up; {change.by} chose the destination{stated}{to}"
    return f"{stated.strip()}{to}".removeprefix("; ") or None


def _decided(decided: BundleDecision) -> str:
    decision, entry = decided.decision, decided.entry
    reason = entry.reason if not isinstance(entry, PlacedEntry) else decision.label
    text = f"{by_whom(decision)}, {reason}: {entry.why}"
    if isinstance(entry, PlacedEntry) and entry.best_count > 1:
        text += f"; {entry.best_count} brokers were equally good"
    return text


def _not_made(trail: Trail, book: DecisionBook, shown: set[str]) -> Iterator[ExplanationStep]:
    """Operations of decisions that never reached the channel."""
    for decided in book.about(trail.names):
        entry, decision = decided.entry, decided.decision
        if decided.result is None or (entry.operation is not None and entry.operation in shown):
            continue
        if isinstance(entry, MoveEntry):
            what = f"was to go from {entry.source} to {entry.destination or 'any broker'}"
        elif isinstance(entry, PlacedEntry):
            what = f"was to go to {entry.broker or 'no broker'}"
        else:
            places = len(entry.positions)
            what = f"was to be split at {places} places" if places else "was to be split by its owner"
        detail = f": {decided.why_so}" if decided.why_so else ""
        sentence = f"{what}; the channel has no record of it ({decided.result}{detail})"
        source = entry.source if isinstance(entry, MoveEntry) else None
        step = ExplanationStep(
            decision.at_ms, entry.bundle, NOT_MADE, sentence, _decided(decided), entry.operation, source=source
        )
        yield _with_decision(step, decided)


def by_whom(decision: DecisionRecord) -> str:
    """Who decided, as text."""
    return f"decision {decision.id} of {decision.leader} (term {decision.term}, cycle {decision.cycle}, {decision.strategy})"


def length(length_ms: float) -> str:
    """A duration in the unit that fits."""
    if length_ms < _SECOND_MS:
        return f"{length_ms:.0f} ms"
    if length_ms < 2 * _MINUTE_MS:
        return f"{length_ms / _SECOND_MS:.1f} s"
    return f"{length_ms / _MINUTE_MS:.0f} min"
