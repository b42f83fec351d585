"""The logs of the corpus: each is made from its number alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, cycle, islice
from typing import Any, NamedTuple

import orjson

from tests.explorer import brute
from tests.explorer.world import START, Letter, heartbeat
from tests.support.audits import check
from tests.twin import audit, loggen
from tests.twin.loggen import Knobs, Log
from tests.twin.wire import Line

START_MS = 1_700_000_000_000
STEPS = (6, 12, 25, 60)
KINDS = {
    "honest": replace(loggen.HONEST, large=False),
    "junk": replace(loggen.JUNKY, large=False),
    "hostile": replace(loggen.WILD, large=False, newer=0.0),
    "newer": replace(loggen.WILD, large=False, newer=1.0),
}
"""How random logs are made. Asserts and heartbeats of `hostile` logs may lie; `newer` ones have a record of a newer format."""


class Case(NamedTuple):
    """One log and its answers.

    Attributes:
        export: The file, as `statechannel export` writes it.
        read: How to read it: `full`, or `join` where records are missing.
        expected: What `statechannel audit --output json` says.
        states: `[version, state, from, to, id]` of every key that exists.
        verdicts: Of every record; none for a log that is joined.
    """

    name: str
    export: str
    read: str
    expected: dict[str, Any]
    states: dict[str, list[Any]]
    verdicts: list[dict[str, Any]]

    def line(self) -> bytes:
        """One line of a file of the corpus."""
        return orjson.dumps(self._asdict()) + b"\n"


class CorpusError(Exception):
    """The product and the twin differ about a log."""


def cases(count: int) -> Iterator[Case]:
    """The first so many: every small log first, then random ones of each kind, whole and cleaned in turn."""
    yield from islice(map(case_of, chain(small_logs(), random_logs())), count)


def case_of(named: tuple[str, Log]) -> Case:
    """With the answers of both implementations, which must be the same.

    Raises:
        CorpusError: They differ.
    """
    name, log = named
    export = log.export()
    try:
        check(audit.from_export(export), "auto", None)
    except AssertionError as error:
        raise CorpusError(f"{name}: {error}") from error
    answer = audit.audit(export)
    states = {
        key: [state.version, state.state, state.source, state.to, state.id]
        for key, state in sorted(answer.states.items())
    }
    return Case(name, export, answer.audit["read"], answer.audit, states, answer.verdicts)


def small_logs() -> Iterator[tuple[str, Log]]:
    """Every log of the explorer's world of up to two records, and of one more than a bundle that is about to be split."""
    number = 0
    for records in (1, 2):
        for letters in brute.logs_of(records):
            yield f"small-{number:05}", _log(letters)
            number += 1
    for letters in brute.logs_of(1, START["splitting"]):
        for triple in brute.triples_of(letters):
            if triple.begin == len(letters):
                yield f"small-{number:05}", _log(letters, triple.removed)
                number += 1


def _log(letters: Sequence[Letter], removed: frozenset[int] = frozenset()) -> Log:
    """With a heartbeat that vouches for all of it where records are missing."""
    lines = [Line(0, offset, START_MS + offset, *letter) for offset, letter in enumerate(letters)]
    if removed:
        lines.append(Line(0, len(letters), START_MS + len(letters), *heartbeat(len(letters) - 1)))
    kept = [line for line in lines if line.offset not in removed]
    return Log(kept, {0: len(lines)}, START_MS + 1_000)


def random_logs() -> Iterator[tuple[str, Log]]:
    """Logs of each kind in turn, each whole and, where the cleaner leaves something, cleaned; without end."""
    for seed, (kind, knobs) in enumerate(cycle(KINDS.items())):
        sized: Knobs = replace(knobs, steps=STEPS[seed // len(KINDS) % len(STEPS)])
        log = loggen.generate(seed, sized)
        yield f"{kind}-{seed:05}", log
        cleaned = log.compacted(seed, sized)
        if cleaned.lines:
            yield f"{kind}-{seed:05}-cleaned", cleaned
