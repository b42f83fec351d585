"""The explorer: its scope without a difference, its search against one without any thought, and what each rule is needed for."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from tests.explorer import brute, outages, paths
from tests.explorer.counterexamples import RULES, Found, Rule, goes_wrong, load, path_of, search
from tests.explorer.outages import Property
from tests.explorer.readers import Readers, states_of
from tests.explorer.search import Level, begin, explore
from tests.explorer.world import KEYS, START, Letter, letters, moves, refused_moves, write
from tests.mutants import planted

LOGS = [rule for rule in RULES if not rule.outage]
OUTAGES = [rule for rule in RULES if rule.outage]
HISTORIES = [rule for rule in OUTAGES if load(rule).begin is None]
"""Events show these: no single reader is wrong, or the log is not all that it stands on."""
QUICK_RECORDS = 2
"""Counterexamples of so many records after the start are searched again in every run."""


def _id(rule: Rule) -> str:
    return rule.path.stem


# --- no difference ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "records", "every", "triples"),
    [("empty", 3, 1, 55_000), ("owned", 3, 8, 500_000), ("splitting", 2, 1, 20_000)],
)
def test_all_readers_agree_on_every_log(start: str, records: int, every: int, triples: int) -> None:
    """More than half a million triples together. The last record follows after every class of logs, or after one in so many."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        levels = list(explore(records, [begin(start)], executor, every=every))
    assert [level.counterexample for level in levels] == [None] * records
    assert sum(level.triples for level in levels) >= triples


@pytest.mark.parametrize(
    ("start", "events", "starts"),
    [
        ("awake", 3, {"strict", "cold", "on the word of the log"}),
        ("abandoned", 2, {"strict", "cold"}),
        ("faults", 2, {"strict", "cold"}),
    ],
)
def test_all_readers_agree_through_every_outage(start: str, events: int, starts: set[str]) -> None:
    tallies = list(outages.explore(events, start=start))
    assert [tally.wrong for tally in tallies] == [None] * events
    assert set(tallies[-1].starts) == starts


def test_a_search_that_was_ended_goes_on_where_it_was() -> None:
    kept: list[bytes] = []
    whole = [
        _counts(level)
        for level in explore(2, [begin("empty")], keep=lambda reached: kept.append(pickle.dumps(reached)))
    ]
    for state in kept:
        reached = pickle.loads(state)
        assert [_counts(level) for level in explore(2, reached)] == whole[reached.records :]


def _counts(level: Level) -> tuple[int, ...]:
    return (level.logs, len(level.classes), level.joined, level.triples)


@pytest.mark.parametrize(("start", "records"), [("empty", 1), ("empty", 2), ("owned", 1), ("splitting", 1)])
def test_the_search_leaves_nothing_out(start: str, records: int) -> None:
    """Every log by itself, and every set of removed records through a replica of its own: the same counts, and none is wrong."""
    counted = brute.count(records, START[start])
    (*_, level) = explore(records, [begin(start)])
    assert (counted.joined, counted.triples) == (level.joined, level.triples)
    assert counted.logs == level.logs
    assert counted.wrong == []


def test_what_the_world_calls_refused_is_refused_for_each_reason_and_its_moves_are_accepted() -> None:
    refused, accepted = set(), set()
    for start in START.values():
        for before in brute.logs_of(1, start):
            readers = Readers(before)
            for key in KEYS:
                state = readers.full.keys.get(key)
                refused |= {_verdict(before, key, fields) for fields in refused_moves(key, state)}
                accepted |= {_verdict(before, key, fields) for fields in moves(key, state)}
    assert refused == {
        Verdict.ILLEGAL_MOVE, Verdict.WRONG_BROKER, Verdict.BAD_CHILDREN, Verdict.STALE_VERSION, Verdict.UNKNOWN_BUNDLE,
    }  # fmt: skip
    assert accepted == {Verdict.ACCEPTED, Verdict.NAMESPACE_IN_USE, Verdict.STALE_VERSION}


def _verdict(log: Sequence[Letter], key: bytes, fields: dict[str, Any]) -> Verdict:
    readers = Readers(log)
    readers.judge(write(key, f"r{len(log)}", len(log) - 1, **fields))
    assert readers.judgement is not None
    return readers.judgement.verdict


def test_logs_of_one_class_have_the_same_future() -> None:
    """Each log of two records is continued like the log that its class was continued with."""
    futures: dict[object, set[tuple[str, bool]]] = {}
    for log in brute.logs_of(QUICK_RECORDS):
        readers = Readers(log)
        signature = repr(readers.signature())
        future = _future(readers)
        assert futures.setdefault(signature, future) == future
    assert len(futures) > 1


def _future(readers: Readers) -> set[tuple[str, bool]]:
    """Verdicts that may follow, and whether joins complete after them."""
    found = set()
    log = [*readers.log]
    for letter in list(letters(readers.facts(), len(log))):
        take_back = readers.mark(letter.key)
        readers.read(letter)
        assert readers.judgement is not None
        found.add((str(readers.judgement.verdict), readers.debts == 0))
        if not take_back():
            readers = Readers(log)
    return found


def test_taking_a_record_back_leaves_what_was_before() -> None:
    before = Readers(START["owned"])
    for letter in list(letters(before.facts(), len(before.log))):
        readers = Readers(START["owned"])
        take_back = readers.mark(letter.key)
        readers.read(letter)
        if take_back():
            assert repr(readers.signature()) == repr(before.signature())
            assert states_of(readers.full) == states_of(before.full)
            assert list(readers.full.keys) == list(before.full.keys)


# --- what each rule is needed for ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", LOGS, ids=_id)
def test_without_the_rule_a_member_is_wrong_and_with_it_none(rule: Rule) -> None:
    found = load(rule)
    assert not goes_wrong(found)
    with planted(rule.plant):
        assert found.begin is None or goes_wrong(found)
    if found.begin is None:
        assert _falls_back(rule, found)


def _falls_back(rule: Rule, found: Found) -> bool:
    """Whether a topic's version does not grow with the last record."""

    def versions() -> list[int]:
        view, seen = View(0, 1), []
        for offset, letter in enumerate(found.log):
            view.read(offset, *letter)
            seen.append(max((key.version for key in view.live()), default=-1))
        return [version for version in seen if version >= 0]

    with planted(rule.plant):
        bent = versions()
    return bent[-1] < max(versions()) or bent[-1] <= max(bent[:-1])


@pytest.mark.parametrize("rule", [rule for rule in OUTAGES if rule not in HISTORIES], ids=_id)
def test_without_the_rule_a_member_is_wrong_after_an_outage(rule: Rule) -> None:
    found = load(rule)
    path, session = path_of(found)
    expected = states_of(paths.truth_of(path.log).view)
    right = paths.read(path, session)
    with planted(rule.plant):
        bent = paths.read(path, session)
    if Property.WAITS in rule.outage:
        assert paths.vouches(path, session)
        assert right is not None
        assert right.caught_up
        assert bent is None or not bent.caught_up
        return
    assert right is None or not right.caught_up or states_of(right.view) == expected
    assert bent is not None
    if not bent.caught_up:
        bent.assume()
    assert states_of(bent.view) != expected


@pytest.mark.parametrize("rule", HISTORIES, ids=_id)
def test_without_the_rule_these_events_lead_to_two_histories_and_with_it_to_one(rule: Rule) -> None:
    found = load(rule)
    assert outages.replay(rule.begins, found.events) is None
    with planted(rule.plant):
        assert outages.replay(rule.begins, found.events) == found.shows


def _length(rule: Rule) -> int:
    kept = load(rule)
    return len(kept.events) if rule.outage else len(kept.log) - len(START[rule.begins])


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if _length(rule) <= QUICK_RECORDS or rule.begins == "abandoned"], ids=_id
)
def test_the_search_finds_the_kept_log_and_no_shorter_one(rule: Rule) -> None:
    assert search(rule) == load(rule)
