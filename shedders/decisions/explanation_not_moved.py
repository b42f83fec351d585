"""Explanation of why a bundle was not moved, from the newest decisions, each with its numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import hypot, sqrt
from typing import Any

from shedders.decisions.book import DecisionBook
from shedders.decisions.explanation import by_whom, length
from shedders.decisions.record import DecisionRecord, LeftEntry, MoveEntry, SplitEntry, Subject

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


@dataclass(frozen=True, slots=True)
class NotMovedReason:
    """The reason of one decision not to move a bundle.

    Attributes:
        word: Of `Because`.
        reason: The decision's own word: why it was skipped or left, or what refused it.
        said: A sentence.
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
    said: str
    numbers: dict[str, float]


@dataclass(frozen=True, slots=True)
class WhyNot:
    """The answer to `why-not`.

    Attributes:
        said: Sentences, the most important first.
        verdicts: Of the newest decisions, the newest first; of all that shed, and of the newest look at splits.
        same: Number of the newest decisions that give the same reason.
    """

    bundle: str
    owner: str | None
    said: Sequence[str]
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
        bundle: A live bundle.
        owner: The broker that serves it; None: no broker does.
        now_ms: Estimate of the log's time.
        since_ms: When it came to its owner, by the log; None: unknown.
        decisions_max: Number of decisions that are examined.
    """
    sheds = book.newest(Subject.SHED)[: max(1, decisions_max)]
    verdicts = [_verdict(record, bundle, owner, since_ms) for record in sheds]
    # Every broker splits its own bundles: what a former owner recorded no longer counts.
    search = next((record for record in book.newest(Subject.SPLIT) if record.leader == owner), None)
    split_verdict = None if search is None else _split_verdict(search, bundle)
    splits = [] if split_verdict is None else [split_verdict]
    same = 0
    for verdict in verdicts:
        if (verdict.word, verdict.reason) != (verdicts[0].word, verdicts[0].reason):
            break
        same += 1
    said = list(_sentences(bundle, owner, sheds, verdicts, same, now_ms))
    said += [
        f"{split.leader} looked for bundles to split {length(max(0, now_ms - split.at_ms))} ago: {split.said}"
        for split in splits
    ]
    return WhyNot(bundle, owner, said, [*verdicts, *splits], same)


def _sentences(
    bundle: str,
    owner: str | None,
    sheds: Sequence[DecisionRecord],
    verdicts: Sequence[NotMovedReason],
    same: int,
    now_ms: int,
) -> Iterator[str]:
    if owner is None:
        yield f"no broker serves {bundle} now: it is in flight, or no client has looked it up yet"
    if not sheds:
        yield "there is no decision record: no balancer is running, or it has not decided yet"
        return
    newest = sheds[0]
    ago = length(max(0, now_ms - newest.at_ms))
    yield f"{by_whom(newest)}, {ago} ago: {verdicts[0].said}"
    if same > 1:
        since = length(max(0, now_ms - sheds[same - 1].at_ms))
        yield f"the last {same} decisions, since {since}, give the same reason"
    else:
        before = next((verdict for verdict in verdicts[1:] if verdict.word != verdicts[0].word), None)
        if before is not None:
            yield f"before that (decision {before.decision}): {before.said}"
    counted = {name: count for name, count in newest.cut.items() if name in ("left", "moves", "scores")}
    if counted and verdicts[0].word not in (Because.LEFT, Because.REFUSED, Because.MOVED, Because.SKIPPED):
        lost = ", ".join(f"{count} of `{name}`" for name, count in sorted(counted.items()))
        yield f"the record had no room for {lost}, so details may be missing (setting record_bytes_max)"


def _verdict(record: DecisionRecord, bundle: str, owner: str | None, since_ms: int | None) -> NotMovedReason:
    word, reason, sentence = _judge(record, bundle, owner, since_ms)
    return _not_moved(record, word, reason, sentence, _numbers(record, owner))


def _not_moved(
    record: DecisionRecord, word: Because, reason: str | None, sentence: str, numbers: dict[str, float]
) -> NotMovedReason:
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


def _judge(
    record: DecisionRecord, bundle: str, owner: str | None, since_ms: int | None
) -> tuple[Because, str | None, str]:
    if record.skipped is not None:
        return Because.SKIPPED, record.skipped, f"no decision was made (`{record.skipped}`): {record.why}"
    move = next((move for move in record.moves if move.bundle == bundle), None)
    if move is not None:
        return _planned(move)
    split = next((split for split in record.splits if split.bundle == bundle), None)
    if split is not None:
        return _to_be_split(split)
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


def _planned(move: MoveEntry) -> tuple[Because, str | None, str]:
    if move.refused is not None:
        word, _, _ = move.refused.partition(":")
        to = move.planned or "another broker"
        return Because.REFUSED, word, f"it was to go from {move.source} to {to}, but was refused: {move.refused}"
    to = move.destination or "any broker"
    outcome = f" ({move.outcome})" if move.outcome else ""
    return Because.MOVED, None, f"it was moved from {move.source} to {to}{outcome}; `why` has the details: {move.why}"


def _to_be_split(split: SplitEntry) -> tuple[Because, str | None, str]:
    if split.refused is not None:
        word, _, _ = split.refused.partition(":")
        return Because.REFUSED, word, f"it was to be split, but was not: {split.refused}; {split.why}"
    return Because.MOVED, split.reason, f"it was to be split: {split.why}"


def _split_verdict(record: DecisionRecord, bundle: str) -> NotMovedReason | None:
    left = _left(record, bundle)
    split = next((split for split in record.splits if split.bundle == bundle), None)
    if split is not None:
        word, reason, sentence = _to_be_split(split)
    elif left is not None:
        word, reason, sentence = Because.LEFT, left.reason, f"it was not split (`{left.reason}`): {left.why}"
    else:
        return None
    return _not_moved(record, word, reason, sentence, {})


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
