"""Logs to compare the model with: the corpus, and the explorer's logs for each rule of the page."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from tests.corpus.logs import START_MS, random_logs, small_logs
from tests.explorer.counterexamples import RULES, load
from tests.twin.loggen import Log
from tests.twin.wire import Line


def corpus_logs(count: int) -> Iterator[tuple[str, Log]]:
    """The first so many of its small logs, and half as many of the random ones: whole and cleaned, honest and not."""
    return chain(islice(small_logs(), count), islice(random_logs(), count // 2))


def explorer_logs() -> Iterator[tuple[str, Log]]:
    """The shortest log for each rule, whole and as the joiner found it that goes wrong without the rule."""
    for rule in RULES:
        counterexample = load(rule)
        lines = [Line(0, offset, START_MS + offset, *letter) for offset, letter in enumerate(counterexample.log)]
        yield rule.path.stem, Log(lines, {0: len(lines)}, START_MS + 1_000)
        if counterexample.removed:
            left = [line for line in lines if line.offset not in counterexample.removed]
            yield f"{rule.path.stem}-cleaned", Log(left, {0: len(lines)}, START_MS + 1_000)
