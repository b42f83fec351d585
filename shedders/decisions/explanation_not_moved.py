"""Why a bundle was not moved: the newest decisions say it, each with its numbers. Pure."""

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

    SKIPPED = "skipped"  # nothing was decided at all
    MOVED = "moved"  # it was
    REFUSED = "refused"  # it was planned; a filter or the budget stood against it
    LEFT = "left"  # it was looked at and left alone
    BROKER_LEFT = "broker-left"  # its broker was looked at and left alone
    OTHERS = "others-moved"  # its broker gave others away
    NO_MOVES = "no-moves"  # nothing was moved from anybody
    NOT_OVER = "not-over"  # others gave bundles away, its broker needed not
    ELSEWHERE = "elsewhere"  # it came to its broker only afterwards
    UNSERVED = "unserved"  # nobody serves it: there is nothing to be moved


@dataclass(frozen=True, slots=True)
class NotMovedReason:
    """What one decision says about a bundle.

    Attributes:
        word: Of `Because`.
        reason: The word that the decision has for it: why it was skipped, left, or by whom it was refused.
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
        same: So many of the newest decisions, the newest counted, say the same of it.
    """

    bundle: str
    owner: str | None
    said: Sequence[str]
    verdicts: Sequence[NotMovedReason]
    same: int

    def to_json(self) -> dict[str, Any]:
        """As an object for JSON."""
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
    """Why the newest decisions left a bundle where it is.

    Args:
        bundle: A live bundle.
        owner: Who serves it; None: nobody.
        now_ms: The log's time, as it is estimated.
        since_ms: When it came to its owner, by the log; None: nobody knows.
        decisions_max: So many decisions are looked at.
    """
    sheds = book.newest(Subject.SHED)[: max(1, decisions_max)]
    verdicts = [_verdict(record, bundle, owner, since_ms) for record in sheds]
    # Every broker looks after its own bundles: what another one said of it is over.
    look = next((one for one in book.newest(Subject.SPLIT) if one.leader == owner), None)
    splits = [] if look is None else [one for one in (_split_verdict(look, bundle),) if one is not None]
    same = 0
    for one in verdicts:
        if (one.word, one.reason) != (verdicts[0].word, verdicts[0].reason):
            break
        same += 1
    said = list(_sentences(bundle, owner, sheds, verdicts, same, now_ms))
    said += [
        f"{one.leader} looked for bundles to split {length(max(0, now_ms - one.at_ms))} ago: {one.said}"
        for one in splits
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
        yield f"nobody serves {bundle} now: it is on its way, or waits for somebody to ask for it"
    if not sheds:
        yield "there is no decision record: no balancer runs, or it has not decided yet"
        return
    newest = sheds[0]
    ago = length(max(0, now_ms - newest.at_ms))
    yield f"{by_whom(newest)}, {ago} ago: {verdicts[0].said}"
    if same > 1:
        since = length(max(0, now_ms - sheds[same - 1].at_ms))
        yield f"the last {same} decisions, since {since}, say the same"
    else:
        before = next((one for one in verdicts[1:] if one.word != verdicts[0].word), None)
        if before is not None:
            yield f"before that (decision {before.decision}): {before.said}"
    counted = {name: count for name, count in newest.cut.items() if name in ("left", "moves", "scores")}
    if counted and verdicts[0].word not in (Because.LEFT, Because.REFUSED, Because.MOVED, Because.SKIPPED):
        lost = ", ".join(f"{count} of `{name}`" for name, count in sorted(counted.items()))
        yield f"the record had no room for {lost}: more may have been said of it (setting record_bytes_max)"


def _verdict(record: DecisionRecord, bundle: str, owner: str | None, since_ms: int | None) -> NotMovedReason:
    word, reason, said = _judge(record, bundle, owner, since_ms)
    return _said_by(record, word, reason, said, _numbers(record, owner))


def _said_by(
    record: DecisionRecord, word: Because, reason: str | None, said: str, numbers: dict[str, float]
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
        said,
        numbers,
    )


def _judge(
    record: DecisionRecord, bundle: str, owner: str | None, since_ms: int | None
) -> tuple[Because, str | None, str]:
    if record.skipped is not None:
        return Because.SKIPPED, record.skipped, f"nothing was decided (`{record.skipped}`): {record.why}"
    move = next((one for one in record.moves if one.bundle == bundle), None)
    if move is not None:
        return _planned(move)
    split = next((one for one in record.splits if one.bundle == bundle), None)
    if split is not None:
        return _to_be_split(split)
    left = _left(record, bundle)
    broker = None if owner is None else _left(record, owner)
    if left is not None:
        return Because.LEFT, left.reason, f"it was left alone (`{left.reason}`): {left.why}"
    if owner is None:
        return Because.UNSERVED, None, "nobody serves it, so nobody can give it away"
    if since_ms is not None and record.at_ms < since_ms:
        return Because.ELSEWHERE, None, f"it was not at {owner} yet"
    if broker is not None:
        return Because.BROKER_LEFT, broker.reason, f"{owner} was left alone (`{broker.reason}`): {broker.why}"
    score = _score(record, owner)
    given = [one for one in record.moves if one.source == owner and one.refused is None]
    if given:
        names = ", ".join(one.bundle for one in given[:_NAMED])
        more = f" and {len(given) - _NAMED} more" if len(given) > _NAMED else ""
        return Because.OTHERS, None, f"{owner} gave others away: {names}{more} ({given[0].why}){score}"
    if not record.moves:
        return Because.NO_MOVES, record.reason, f"nothing was moved from anybody ({record.reason}): {record.why}{score}"
    return Because.NOT_OVER, record.reason, f"{owner} was not among those that gave bundles away: {record.why}{score}"


def _planned(move: MoveEntry) -> tuple[Because, str | None, str]:
    if move.refused is not None:
        word, _, _ = move.refused.partition(":")
        to = move.planned or "another broker"
        return Because.REFUSED, word, f"it was to go from {move.source} to {to}, but was refused: {move.refused}"
    to = move.destination or "anybody"
    outcome = f" ({move.outcome})" if move.outcome else ""
    return Because.MOVED, None, f"it was moved from {move.source} to {to}{outcome}; `why` tells more: {move.why}"


def _to_be_split(split: SplitEntry) -> tuple[Because, str | None, str]:
    if split.refused is not None:
        word, _, _ = split.refused.partition(":")
        return Because.REFUSED, word, f"it was to be split, but was left whole: {split.refused}; {split.why}"
    return Because.MOVED, split.reason, f"it was to be split: {split.why}"


def _split_verdict(record: DecisionRecord, bundle: str) -> NotMovedReason | None:
    left = _left(record, bundle)
    split = next((one for one in record.splits if one.bundle == bundle), None)
    if split is not None:
        word, reason, said = _to_be_split(split)
    elif left is not None:
        word, reason, said = Because.LEFT, left.reason, f"it was not split (`{left.reason}`): {left.why}"
    else:
        return None
    return _said_by(record, word, reason, said, {})


def _left(record: DecisionRecord, name: str) -> LeftEntry | None:
    return next((one for one in record.left if one.name == name), None)


def _score(record: DecisionRecord, owner: str) -> str:
    numbers = _numbers(record, owner)
    if "score" not in numbers:
        return f"; {owner} has no score" if record.scores else ""
    figures = f"mean {numbers['mean']:.4g}, deviation {numbers['std']:.4g}"
    return f"; the score of {owner} is {numbers['score']:.4g} ({figures}, highest {numbers['highest']:.4g})"


def _numbers(record: DecisionRecord, owner: str | None) -> dict[str, float]:
    scores = [score for score in record.scores.values() if score is not None]
    found: dict[str, float] = {}
    if scores:
        mean = sum(scores) / len(scores)
        std = hypot(*(score - mean for score in scores)) / sqrt(len(scores))
        found = {"mean": mean, "std": std, "highest": max(scores), "lowest": min(scores)}
        own = None if owner is None else record.scores.get(owner)
        if own is not None:
            found["score"] = own
    # What the strategy itself reckoned with stands over what is reckoned here.
    return found | {name: value for name, value in record.stats.items() if value is not None}
