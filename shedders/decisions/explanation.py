"""Explanation of a bundle's owner, and of why a bundle was not moved. Pure.

`why`: the channel's records show what happened, decision records show why. Each step is a change on the channel with the
decision that its operation belongs to, in sentences for people. `why_not` answers the opposite question from the newest
decisions, each with its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from math import hypot, sqrt
from typing import Any, NamedTuple

from shedders.decisions.history import BundleDecision, DecisionBook
from shedders.decisions.record import DecisionRecord, LeftEntry, MoveEntry, PlacedEntry, Subject
from statechannel.engine.proposals import SHUTDOWN
from statechannel.protocol.states import Flow
from statechannel.stories.bundle import BundleChange, BundleStory, What

NOT_MADE = "not-made"  # word for a step that was decided, but of which the channel has no record
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
        what: A stable word (`What`, or `not-made`).
        because: Explanation, a sentence with the numbers that decided; None if it is not recorded.
        decision: Id of the decision record; None if no remaining record mentions it.
        result: How the move ended by the decision records.
        took_ms: From its first to its last record on the channel.
    """

    at_ms: int
    bundle: str
    what: str
    message: str
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
        bundle: The live bundle that it is now; None where there is none.
        steps: In the order in which they happened.
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
    trail: BundleStory, book: DecisionBook, asked: Mapping[str, CommandOrigin] | None = None, *, steps_max: int = 20
) -> Explanation:
    """Explain who moved a bundle, when, by which decision and with which numbers, through splits back to its creation.

    Args:
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


def _now(trail: BundleStory) -> str:
    if not trail.changes:
        return "the channel has no record of it"
    if trail.bundle is None:
        last = trail.changes[-1]
        if last.what is What.DELETED:
            return "its namespace was deleted"
        split = next((change for change in reversed(trail.changes) if change.what is What.SPLIT), None)
        if split is not None:
            return f"{split.bundle} was split into {', '.join(split.children)}"
        return "the remaining records do not say who owns it"
    if trail.owner is None:
        return f"{trail.bundle} is assigned to no broker now"
    return f"{trail.bundle} is assigned to {trail.owner}"


def _step(change: BundleChange, book: DecisionBook, asker: CommandOrigin | None) -> ExplanationStep:
    took_ms = change.ended_ms - change.began_ms
    decided = book.by_operation(change.operation)
    chosen = _placement(change, book) if decided is None else None
    because = _because(change, asker, chosen) if decided is None else _decided(decided)
    step = _plain(change, took_ms, because)
    decided = decided or chosen
    return step if decided is None else _with_decision(step, decided)


def _plain(change: BundleChange, took_ms: int, because: str | None) -> ExplanationStep:
    return ExplanationStep(
        at_ms=change.began_ms,
        bundle=change.bundle,
        what=change.what.value,
        message=_sentence(change, took_ms),
        because=because,
        operation=change.operation,
        source=change.source,
        destination=change.destination,
        took_ms=took_ms,
        offset=change.offset,
    )


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
    return replace(
        step,
        decision=decision.id,
        leader=decision.leader,
        term=decision.term,
        cycle=decision.cycle,
        strategy=decision.strategy,
        load=entry.load if isinstance(entry, MoveEntry) else None,
        result=decided.result,
    )


def _sentence(change: BundleChange, took_ms: int) -> str:
    source, destination = change.source, change.destination
    within = f" within {length(took_ms)}" if took_ms else ""
    failed = f": {change.failure}" if change.failure else ""
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
            return f"unloaded from {source or 'its owner'}{within}{failed}"
        case What.TAKEN_BACK:
            wanted = f" to {change.wanted}" if change.wanted else ""
            return f"was to go from {source}{wanted}, but {destination} took it back{within}{failed}"
        case What.RESUMED:
            return f"{destination} served it again after a start{failed}"
        case What.DECLINED:
            return f"{change.wanted or 'its destination'} declined it{within}{failed}"
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
    stated = f" (its reason: {change.reason})" if change.reason and change.reason != change.failure else ""
    to = "" if chosen is None else f"; destination: {_decided(chosen)}"
    if change.lost is not None:
        return f"{change.lost} was lost; {change.by} repaired it{stated}{to}"
    if change.forced or change.flow == Flow.REPAIR:
        return f"a repair by {change.by}{stated}{to}"
    if asker is not None:
        return f"requested by {asker.by} ({asker.command}){stated}{to}"
    if change.what in (What.CREATED, What.DELETED, What.RESUMED):
        return f"requested as operation {change.operation}{stated}" if change.operation else stated.strip() or None
    if chosen is not None and change.what is What.ASSIGNED:
        return f"no broker served it and a client looked it up{stated}{to}"
    if change.reason == SHUTDOWN and change.source == change.by:
        return f"{change.by} was stopped cleanly and handed it over{to}"
    if change.operation is not None and change.what is What.ASSIGNED and change.source is None:
        unknown = (
            "no decision record mentions its operation: brokers without the balancer write none, and old ones expire"
        )
        return (
            f"no broker served it and a client looked it up; {change.by} chose the destination; {unknown}{stated}{to}"
        )
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


def _not_made(trail: BundleStory, book: DecisionBook, shown: set[str]) -> Iterator[ExplanationStep]:
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
    return f"decision {decision.id} of {decision.leader} (term {decision.term}, cycle {decision.cycle}, {decision.strategy})"


def length(length_ms: float) -> str:
    if length_ms < _SECOND_MS:
        return f"{length_ms:.0f} ms"
    if length_ms < 2 * _MINUTE_MS:
        return f"{length_ms / _SECOND_MS:.1f} s"
    return f"{length_ms / _MINUTE_MS:.0f} min"


_NAMED = 3


class Because(StrEnum):
    """Why a decision did not move a bundle: stable words."""

    SKIPPED = "skipped"  # no decision was made
    MOVED = "moved"  # it was
    REFUSED = "refused"  # it was planned, but a filter or the budget prevented it
    LEFT = "left"  # it was examined and left alone
    BROKER_LEFT = "broker-left"  # its broker was examined and left alone
    OTHERS = "others-moved"  # its broker gave others away
    NO_MOVES = "no-moves"  # no broker gave bundles away
    NOT_OVER = "not-over"  # other brokers gave bundles away, its own did not have to
    ELSEWHERE = "elsewhere"  # it came to its broker afterwards
    UNSERVED = "unserved"  # no broker serves it: there is nothing to move


_Judgement = tuple[Because, str | None, str]  # the word, the decision's own word, and a sentence


@dataclass(frozen=True, slots=True)
class NotMovedReason:
    """The reason of one decision not to move a bundle.

    Attributes:
        word: Of `Because`.
        reason: The decision's own word: why it was skipped or left, or what refused it.
        numbers: Score of its broker, mean, standard deviation, highest and lowest of all scores; the strategy's own figures.
    """

    decision: str
    subject: str
    at_ms: int
    leader: str
    term: int
    cycle: int
    strategy: str
    word: str
    reason: str | None
    message: str
    numbers: dict[str, float]


@dataclass(frozen=True, slots=True)
class WhyNot:
    """The answer to `why-not`.

    Attributes:
        messages: Sentences, the most important first.
        verdicts: Of the newest decisions, the newest first; of all that shed, and of the newest look at splits.
        same: Number of the newest decisions that give the same reason.
    """

    bundle: str
    owner: str | None
    messages: Sequence[str]
    verdicts: Sequence[NotMovedReason]
    same: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def why_not(
    bundle: str,
    owner: str | None,
    book: DecisionBook,
    *,
    now_ms: int,
    since_ms: int | None = None,
    decisions_max: int = 20,
) -> WhyNot:
    """Explain why the newest decisions left a bundle where it is.

    Args:
        owner: The broker that serves it; None: no broker does.
        now_ms: Estimate of the log's time.
        since_ms: When it came to its owner, by the log; None: unknown.
    """
    sheds = book.newest(Subject.SHED)[: max(1, decisions_max)]
    verdicts = [
        _not_moved(record, _judge(record, bundle, owner, since_ms), _numbers(record, owner)) for record in sheds
    ]
    # Every broker splits its own bundles: what a former owner recorded no longer counts.
    search = next((record for record in book.newest(Subject.SPLIT) if record.leader == owner), None)
    split_verdict = None if search is None else _split_verdict(search, bundle)
    splits = [] if split_verdict is None else [split_verdict]
    same = 0
    for verdict in verdicts:
        if (verdict.word, verdict.reason) != (verdicts[0].word, verdicts[0].reason):
            break
        same += 1
    unplaced = [] if owner is not None else list(_unplaced(bundle, book, now_ms))
    sentences = unplaced + list(_sentences(bundle, owner, sheds, verdicts, same, now_ms, asked=bool(unplaced)))
    sentences += [
        f"{split.leader} looked for bundles to split {length(max(0, now_ms - split.at_ms))} ago: {split.message}"
        for split in splits
    ]
    return WhyNot(bundle, owner, sentences, [*verdicts, *splits], same)


def _unplaced(bundle: str, book: DecisionBook, now_ms: int) -> Iterator[str]:
    """Why the newest placement of the bundle found no broker; nothing if it found one."""
    placements = ((record, entry) for record in book.newest(Subject.PLACE) for entry in record.placed)
    record, entry = next(((record, entry) for record, entry in placements if entry.bundle == bundle), (None, None))
    if record is not None and entry is not None and entry.broker is None:
        yield f"no broker serves it: {by_whom(record)}, {length(max(0, now_ms - record.at_ms))} ago: {entry.why}"


def _sentences(
    bundle: str,
    owner: str | None,
    sheds: Sequence[DecisionRecord],
    verdicts: Sequence[NotMovedReason],
    same: int,
    now_ms: int,
    *,
    asked: bool,
) -> Iterator[str]:
    if owner is None and not asked:
        yield f"no broker serves {bundle} now: it is in flight, or no client has looked it up yet"
    if not sheds:
        yield "there is no decision record: no balancer is running, or it has not decided yet"
        return
    newest = sheds[0]
    ago = length(max(0, now_ms - newest.at_ms))
    yield f"{by_whom(newest)}, {ago} ago: {verdicts[0].message}"
    if same > 1:
        span = length(max(0, now_ms - sheds[same - 1].at_ms))
        yield f"the last {same} decisions, of the last {span}, give the same reason"
    else:
        before = next((verdict for verdict in verdicts[1:] if verdict.word != verdicts[0].word), None)
        if before is not None:
            yield f"before that (decision {before.decision}): {before.message}"
    if newest.distance is not None:
        yield f"the newest decision: {newest.distance.sentence}"
    counted = {name: count for name, count in newest.cut.items() if name in ("left", "moves", "scores")}
    if counted and verdicts[0].word not in (Because.LEFT, Because.REFUSED, Because.MOVED, Because.SKIPPED):
        lost = ", ".join(f"{count} of `{name}`" for name, count in sorted(counted.items()))
        yield f"the record had no room for {lost}, so details may be missing (setting record_bytes_max)"


def _not_moved(record: DecisionRecord, judgement: _Judgement, numbers: dict[str, float]) -> NotMovedReason:
    word, reason, sentence = judgement
    return NotMovedReason(
        record.id,
        record.subject,
        record.at_ms,
        record.leader,
        record.term,
        record.cycle,
        record.strategy,
        word.value,
        reason,
        sentence,
        numbers,
    )


def _judge(record: DecisionRecord, bundle: str, owner: str | None, since_ms: int | None) -> _Judgement:
    if record.skipped is not None:
        return Because.SKIPPED, record.skipped, f"no decision was made (`{record.skipped}`): {record.why}"
    move = next((move for move in record.moves if move.bundle == bundle), None)
    if move is not None:
        return _planned(move)
    split = _to_be_split(record, bundle)
    if split is not None:
        return split
    left = _left(record, bundle)
    broker = None if owner is None else _left(record, owner)
    if left is not None:
        return Because.LEFT, left.reason, f"it was left alone (`{left.reason}`): {left.why}"
    if owner is None:
        return Because.UNSERVED, None, "no broker serves it, so there is nothing to move"
    if since_ms is not None and record.at_ms < since_ms:
        return Because.ELSEWHERE, None, f"it was not at {owner} yet"
    if broker is not None:
        return Because.BROKER_LEFT, broker.reason, f"{owner} was left alone (`{broker.reason}`): {broker.why}"
    score = _score(record, owner)
    others = [move for move in record.moves if move.source == owner and move.refused is None]
    if others:
        names = ", ".join(move.bundle for move in others[:_NAMED])
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        return Because.OTHERS, None, f"{owner} gave other bundles away: {names}{more} ({others[0].why}){score}"
    if not record.moves:
        return Because.NO_MOVES, record.reason, f"no broker gave bundles away ({record.reason}): {record.why}{score}"
    return (
        Because.NOT_OVER,
        record.reason,
        f"{owner} was not among the brokers that gave bundles away: {record.why}{score}",
    )


def _planned(move: MoveEntry) -> _Judgement:
    if move.refused is not None:
        word, _, _ = move.refused.partition(":")
        to = move.planned or "another broker"
        return Because.REFUSED, word, f"it was to go from {move.source} to {to}, but was refused: {move.refused}"
    to = move.destination or "any broker"
    outcome = f" ({move.outcome})" if move.outcome else ""
    return Because.MOVED, None, f"it was moved from {move.source} to {to}{outcome}; `why` has the details: {move.why}"


def _to_be_split(record: DecisionRecord, bundle: str) -> _Judgement | None:
    split = next((split for split in record.splits if split.bundle == bundle), None)
    if split is None:
        return None
    if split.refused is not None:
        word, _, _ = split.refused.partition(":")
        return Because.REFUSED, word, f"it was to be split, but was not: {split.refused}; {split.why}"
    return Because.MOVED, split.reason, f"it was to be split: {split.why}"


def _split_verdict(record: DecisionRecord, bundle: str) -> NotMovedReason | None:
    judgement, left = _to_be_split(record, bundle), _left(record, bundle)
    if judgement is None and left is not None:
        judgement = Because.LEFT, left.reason, f"it was not split (`{left.reason}`): {left.why}"
    return None if judgement is None else _not_moved(record, judgement, {})


def _left(record: DecisionRecord, name: str) -> LeftEntry | None:
    return next((entry for entry in record.left if entry.name == name), None)


def _score(record: DecisionRecord, owner: str) -> str:
    numbers = _numbers(record, owner)
    if "score" not in numbers:
        return f"; {owner} has no score" if record.scores else ""
    figures = f"mean {numbers['mean']:.4g}, deviation {numbers['std']:.4g}"
    return f"; the score of {owner} is {numbers['score']:.4g} ({figures}, highest {numbers['highest']:.4g})"


def _numbers(record: DecisionRecord, owner: str | None) -> dict[str, float]:
    scores = [score for score in record.scores.values() if score is not None]
    numbers: dict[str, float] = {}
    if scores:
        mean = sum(scores) / len(scores)
        std = hypot(*(score - mean for score in scores)) / sqrt(len(scores))
        numbers = {"mean": mean, "std": std, "highest": max(scores), "lowest": min(scores)}
        own = None if owner is None else record.scores.get(owner)
        if own is not None:
            numbers["score"] = own
    # The strategy's own figures take precedence over those computed here.
    return numbers | {name: value for name, value in record.stats.items() if value is not None}
