"""The rules of the model are those of the code: on real logs, every verdict and state of the one is that of the other."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from itertools import islice

import pytest

from tests.corpus.logs import random_logs
from tests.model.commands import TRACE
from tests.model.logs import corpus_logs, explorer_logs
from tests.model.traces import Reader, Trace, bind, traces_of
from tests.mutants import planted
from tests.support.model_checker import checker

LOGS = 160


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with checker(TRACE) as alloy:
        yield Reader(alloy)


@pytest.fixture(scope="module")
def trace() -> Trace:
    """An honest log with a bundle that is moved."""
    traces = (part for name, log in random_logs() if name.startswith("honest") for part in traces_of(name, log))
    return next(part for part in traces if part.whole and part.strict_steps >= 12 and part.tuples.get("debts"))


def test_all_steps_of_logs_of_the_corpus_match(reader: Reader) -> None:
    tally = bind(reader, corpus_logs(LOGS))
    assert tally.different == []
    assert tally.matched == tally.strict + tally.lenient > 2_000
    assert all(tally.left_out.values())


def test_all_steps_of_the_logs_of_the_page_match(reader: Reader) -> None:
    tally = bind(reader, explorer_logs())
    assert tally.different == []
    assert tally.logs > 30


def test_honest_logs_are_honest_as_the_model_words_it(reader: Reader) -> None:
    logs = [(name, log) for name, log in islice(random_logs(), 60) if name.startswith(("honest", "junk"))]
    traces = [trace for name, log in logs for trace in traces_of(name, log) if trace.whole]
    assert len(traces) > 20
    assert [step for trace in traces for step in reader.ask(trace, ["dishonest"])] == []


FALSE = {
    "verdict": "wrongVerdicts",
    "accepted": "wrongAccepted",
    "debts": "wrongDebts",
    "saidVersion": "wrongStates",
    "saidState": "wrongStates",
    "saidTo": "wrongStates",
    "saidId": "wrongStates",
    "took": "wrongTaken",
    "view": "wrongSeen",
}


@pytest.mark.parametrize(("name", "kind"), FALSE.items())
def test_what_the_code_is_said_to_have_said_falsely_is_found(
    reader: Reader, trace: Trace, name: str, kind: str
) -> None:
    assert reader.differences(trace) == []
    false = deepcopy(trace)
    row = [*false.tuples[name]][-1]
    del false.tuples[name][row]
    if name == "verdict":
        false.put("verdict", row[0], "WrongBase" if row[1] != "WrongBase" else "Accepted")
    assert kind in {step.what for step in reader.differences(false)}


def test_a_false_verdict_is_named_with_its_offset(reader: Reader, trace: Trace) -> None:
    false = deepcopy(trace)
    offset, row = next((int(row[0][1:]), row) for row in false.tuples["verdict"] if row[1] == "Accepted")
    del false.tuples["verdict"][row]
    false.put("verdict", row[0], "StaleVersion")
    assert (offset, "wrongVerdicts") in {(step.offset, step.what) for step in reader.differences(false)}


@pytest.mark.parametrize(
    "bug", ["version-gap-accepted", "duplicate-taken-for-clean", "paid-by-too-little", "covers-ignored"]
)
def test_a_rule_that_the_code_lacks_is_found(reader: Reader, bug: str) -> None:
    with planted(bug):
        tally = bind(reader, islice(corpus_logs(40), 60))
        tally_of_page = bind(reader, explorer_logs())
    assert tally.different or tally_of_page.different
    assert tally_of_page.matched + tally.matched < sum(part.strict + part.lenient for part in (tally, tally_of_page))
