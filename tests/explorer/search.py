"""Level by level through all logs; logs with the same future share one class, of which one log is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from statechannel.protocol.verdict import REJECTIONS
from statechannel.protocol.view import Judgement
from tests.explorer.readers import Difference, JoinedEarlier, Readers, differs_from_twin
from tests.explorer.world import START, Letter, letters
from tests.mutants import planted

CHUNK = 100
"""Classes that a worker extends at a time."""


class LogClass(NamedTuple):
    """Logs with the same future.

    Attributes:
        log: One of them.
        joined: Readers of it whose debts differ.
        logs: How many they are.
        cleanings: For each of them, what the cleaner may leave of it; the sum.
        triples: The same over all offsets at which a joiner may begin: of what was before that, the cleaner may remove.
    """

    log: tuple[Letter, ...] = ()
    joined: tuple[JoinedEarlier, ...] = ()
    logs: int = 1
    cleanings: int = 1
    triples: int = 1

    def merge(self, other: LogClass) -> LogClass:
        """Both together."""
        return self._replace(
            logs=self.logs + other.logs,
            cleanings=self.cleanings + other.cleanings,
            triples=self.triples + other.triples,
        )


class Counterexample(NamedTuple):
    """A log about which two readers disagree."""

    log: tuple[Letter, ...]
    why: str


@dataclass(slots=True)
class Level:
    """What one more record led to.

    Attributes:
        classes: By signature.
        logs: Logs of this length that were read; those that no join can follow any more are not continued.
        joined: Logs of this length at whose end the reader of the whole log sees no debt, so that joins complete.
        triples: Of these, with everything that the cleaner may have left and all offsets at which a joiner may begin.
        compared: Classes, and the verdict on the last record, of which a log was read by the twin as well.
        vouched_by_others: Logs at whose end only members see no debt that joined when a tombstone was gone; joins are compared.
        verdicts: Of the last records, over classes.
    """

    classes: dict[bytes, LogClass] = field(default_factory=dict)
    logs: int = 0
    joined: int = 0
    triples: int = 0
    vouched_by_others: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    counterexample: Counterexample | None = None
    compared: set[tuple[bytes, object]] = field(default_factory=set)

    def add(self, signature: bytes, found: LogClass) -> None:
        """Take a class in."""
        known = self.classes.get(signature)
        self.classes[signature] = found if known is None else known.merge(found)

    def merge(self, other: Level) -> None:
        """Take in what another worker has found."""
        for signature, found in other.classes.items():
            self.add(signature, found)
        self.logs += other.logs
        self.joined += other.joined
        self.triples += other.triples
        self.vouched_by_others += other.vouched_by_others
        self.verdicts += other.verdicts
        self.compared |= other.compared
        if self.counterexample is None:
            self.counterexample = other.counterexample


def extend(classes: Sequence[LogClass], left: int, without: str = "") -> Level:
    """Continue each class by every record.

    Args:
        left: Records that may follow after the next one.
        without: A planted bug that takes a rule away; the twin, which has it, is not asked then.
    """
    level = Level()
    with planted(without) if without else nullcontext():
        for each in classes:
            try:
                _extend(each, left, level, bent=bool(without))
            except _Found as found:
                level.counterexample = found.args[0]
                break
    return level


def _nothing_read() -> bool:
    return True


def _rebuild() -> bool:
    return False


class _Found(Exception):  # noqa: N818
    pass


def _extend(before: LogClass, left: int, level: Level, *, bent: bool) -> None:
    readers = Readers(before.log, before.joined)
    touched = {letter.key for letter in before.log}
    take_back = _nothing_read
    dead_ends: dict[object, str] = {}
    effects: dict[object, bytes] = {}
    for letter in list(letters(readers.facts(), len(before.log))):
        content = _without_covers(letter)
        if content in dead_ends:
            level.logs += before.logs
            level.verdicts[dead_ends[content]] += 1
            continue
        log = (*before.log, letter)
        if not take_back():
            readers = Readers(before.log, before.joined)
        take_back = readers.mark(letter.key)
        try:
            readers.judge(letter)
            level.logs += before.logs
            verdict = readers.judgement.verdict if readers.judgement else None
            level.verdicts[str(verdict)] += 1
            debts, effect = readers.debts, _effect_of(letter, readers.judgement)
            if debts > left:
                if effect is not None and not bent:
                    dead_ends[content] = str(verdict)
                continue
            cleanings = before.cleanings * (1 + (letter.key in touched))
            found = LogClass(log, before.joined, before.logs, cleanings, before.triples + cleanings)
            if effect is not None and effect in effects:
                level.add(effects[effect], found)
                continue
            readers.follow()
            if debts == 0:
                others = readers.check_joins()
                if readers.full.ledger.open:
                    level.vouched_by_others += found.logs
                else:
                    level.joined += found.logs
                    level.triples += found.triples
                if others:
                    found = found._replace(joined=(*before.joined, *others))
                    readers, take_back = Readers(log, found.joined), _rebuild
        except Difference as difference:
            raise _Found(Counterexample(log, str(difference))) from None
        signature = blake2b(repr(readers.signature()).encode(), digest_size=16).digest()
        if not bent and (signature, verdict) not in level.compared:
            level.compared.add((signature, verdict))
            why = differs_from_twin(readers)
            if why:
                raise _Found(Counterexample(log, why))
        if left:
            level.add(signature, found)
        if effect is not None and debts:
            effects[effect] = signature


def _without_covers(letter: Letter) -> object:
    head, _, rest = (letter.value or b"").partition(b'"covers":')
    return (letter.key, head, rest.partition(b",")[2]) if rest else letter


def _effect_of(letter: Letter, judgement: Judgement | None) -> object:
    """Equal for rejected proposals with the same effect on all readers; None for other records.

    Ledgers and joiners look at the version and at `covers` alone, unless children may make a joiner skip the record. The verdict
    does not depend on `covers`.
    """
    record = None if judgement is None else judgement.record
    if judgement is None or record is None or judgement.verdict not in REJECTIONS or record.children is not None:
        return None
    return (letter.key, judgement.verdict, record.version, record.covers)


def begin(start: str) -> LogClass:
    """The log of this name in `START`, alone."""
    log = START[start]
    cleanings = triples = 1
    for offset, letter in enumerate(log):
        cleanings *= 1 + any(earlier.key == letter.key for earlier in log[:offset])
        triples += cleanings
    return LogClass(log, (), 1, cleanings, triples)


@dataclass(slots=True)
class Progress:
    """How far a search has come: what is needed to go on with it.

    Attributes:
        records: Records that `classes` have more than the start.
        done: Number of `classes` that were continued so far, into `level`.
    """

    classes: list[LogClass]
    records: int = 0
    done: int = 0
    level: Level = field(default_factory=Level)


def _nothing_kept(_: Progress) -> None:
    pass


def explore(
    records: int,
    begun: Progress | Sequence[LogClass],
    executor: Executor | None = None,
    without: str = "",
    keep: Callable[[Progress], None] = _nothing_kept,
    every: int = 1,
) -> Iterator[Level]:
    """Levels of up to this number of further records; ends at the first counterexample, which is a shortest one.

    Args:
        begun: With which classes to begin, or where an earlier search has come to.
        keep: Called with the progress after each chunk of classes.
        every: The last record follows after one in so many classes.
    """
    now = begun if isinstance(begun, Progress) else Progress(list(begun))
    for number in range(now.records, records):
        waiting = now.classes[now.done :]
        chunks = [waiting[index : index + CHUNK] for index in range(0, len(waiting), CHUNK)]
        after = records - number - 1
        run = map if executor is None else executor.map
        for chunk, part in zip(
            chunks, run(extend, chunks, [after] * len(chunks), [without] * len(chunks)), strict=True
        ):
            now.level.merge(part)
            now.done += len(chunk)
            keep(now)
            if part.counterexample is not None:
                break
        level = now.level
        yield level
        if level.counterexample is not None:
            return
        classes = list(level.classes.values())
        now = Progress(classes[::every] if after == 1 else classes, number + 1)
