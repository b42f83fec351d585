"""Decision records: what is written is read back, no record is larger than allowed, and nothing is cut in silence."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from shedders.decision.booked_moves import Budget, BudgetSettings
from shedders.decision.dry_run import CheckedMove, SplitDecision
from shedders.decisions.builder import (
    BudgetUse,
    Executed,
    RecordBounds,
    outcome_record,
    place_record,
    shed_record,
    skipped_record,
    split_record,
)
from shedders.decisions.explanation import why_not
from shedders.decisions.history import DecisionBook
from shedders.decisions.record import DecisionRecord, Inputs, decode, encode, key_of
from shedders.decisions.size_limits import Shortener
from shedders.model.cluster import Cluster
from shedders.model.plan import BundleMove, Left, Placed, Reason, SplitPlan
from statechannel.protocol.side_record import InvalidRecord
from tests.support.decision_records import IDS, decision, occasion

texts = st.text(max_size=40) | st.text('é\u20ac\U0001f600"\\\x00\n\ud800', max_size=300) | st.just("w" * 3_000)
names = st.sampled_from(["b1", "b2", "t/n/0x00000000_0xffffffff", ""]) | texts
numbers = st.floats() | st.integers(-5, 5).map(float)
counts = st.integers(0, 1 << 40)
lefts = st.builds(Left, names, texts, texts)
moves = st.builds(BundleMove, names, names, st.none() | names, st.sampled_from(Reason), numbers, texts, st.booleans())
checked = st.builds(CheckedMove, moves, st.none() | names, st.none() | texts)
placed = st.builds(
    Placed,
    names,
    st.none() | names,
    texts,
    st.lists(names, max_size=30),
    st.dictionaries(names, st.tuples(texts, texts), max_size=4),
    st.dictionaries(names, numbers, max_size=4),
)
splits = st.builds(SplitPlan, names, st.lists(st.integers(0, 1 << 32), max_size=80), texts, texts)
executed = st.dictionaries(names, st.builds(Executed, st.none() | texts, texts, st.none() | texts), max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def occasions(draw: st.DrawFn) -> Any:
    return occasion(
        id=draw(st.sampled_from(IDS)),
        term=draw(counts),
        leader=draw(names),
        cycle=draw(counts),
        at_ms=draw(counts),
        inputs=Inputs(
            channel=draw(st.dictionaries(st.integers(0, 9_999).map(str), counts, max_size=6)),
            broker_load=draw(st.none() | counts),
        ),
        strategy=draw(names),
        placement=draw(st.none() | names),
        profile=draw(names),
        settings=draw(st.dictionaries(st.text(max_size=5), json_values, max_size=3)),
        write_settings=draw(st.booleans()),
        trigger=draw(texts),
        took_ms=draw(st.none() | numbers),
    )


@st.composite
def records(draw: st.DrawFn, bounds: RecordBounds) -> DecisionRecord:
    at = draw(occasions())
    done = draw(executed)
    kind = draw(st.sampled_from(["shed", "split", "place", "skipped"]))
    # Repeated, so that there is too much of it.
    times = draw(st.sampled_from([1, 1, 1, 40]))
    left = draw(st.lists(lefts, max_size=6)) * times
    if kind == "split":
        result = draw(st.lists(splits, max_size=6)) * times
        return split_record(
            at, SplitDecision(Cluster({}, {}), result, draw(st.none() | texts), {}), executed=done, bounds=bounds
        )
    if kind == "place":
        return place_record(
            at, Cluster({}, {}), draw(st.lists(placed, max_size=6)) * times, executed=done, bounds=bounds
        )
    if kind == "skipped":
        return skipped_record(at, draw(texts), draw(texts), left=left, bounds=bounds)
    record = decision(
        moves=draw(st.lists(checked, max_size=6)) * times,
        left=left,
        placed=draw(st.lists(placed, max_size=3)),
        scores={
            f"{name}{number}": score
            for number, (name, score) in enumerate(draw(st.lists(st.tuples(names, numbers), max_size=8)) * times)
        },
        stats=draw(st.dictionaries(names, numbers, max_size=6)),
        why=draw(texts),
    )
    use = BudgetUse(BudgetSettings(), Budget(draw(counts), draw(numbers)), draw(st.lists(lefts, max_size=2)))
    return shed_record(at, record, executed=done, budget=use, bounds=bounds)


SMALL = RecordBounds(16_384, 200, 0)


@settings(max_examples=40, deadline=None)
@given(records(SMALL))
def test_a_record_is_never_larger_than_allowed_and_reads_back_as_it_was(record: DecisionRecord) -> None:
    value = encode(record, SMALL.record_bytes)
    assert decode(key_of(record), value) == record
    assert all(count > 0 for count in record.cut.values())


@settings(max_examples=40, deadline=None)
@given(records(RecordBounds()))
def test_in_a_record_with_room_everything_is_told(record: DecisionRecord) -> None:
    assert len(encode(record)) <= RecordBounds().record_bytes
    assert decode(key_of(record), encode(record)) == record
    if "left_counts" not in record.cut:
        assert sum(record.left_counts.values()) == len(record.left) + record.cut.get("left", 0)


@settings(max_examples=40, deadline=None)
@given(records(SMALL), st.sampled_from(["b1", "b2", None]))
def test_any_record_can_be_asked_why_not(record: DecisionRecord, owner: str | None) -> None:
    book = DecisionBook()
    book.add(record)
    result = why_not("t/n/0x00000000_0xffffffff", owner, book, now_ms=record.at_ms)
    assert result.messages
    assert all(isinstance(sentence, str) and sentence for sentence in result.messages)


@given(names, texts, texts, st.none() | texts, counts, st.none() | numbers)
def test_an_outcome_reads_back(
    bundle: str, result: str, why: str, operation: str | None, at_ms: int, took_ms: float | None
) -> None:
    record = outcome_record(
        IDS[0], bundle, result, why, operation=operation, at_ms=at_ms, term=1, leader="b1", took_ms=took_ms
    )
    assert decode(key_of(record), encode(record)) == record


@given(
    st.binary(max_size=200) | st.text(max_size=50).map(lambda text: text.encode(errors="replace")),
    st.none() | st.binary(max_size=30),
)
@example(b'{"kind":"decision","format":1}', None)
def test_junk_is_refused_with_a_reason(value: bytes, key: bytes | None) -> None:
    record = decode(key, value)
    assert isinstance(record, InvalidRecord)
    assert record.why


@given(st.integers(20, 60), texts)
def test_shortening_is_counted_and_leaves_text_that_can_be_written(most: int, text: str) -> None:
    short = Shortener(most)
    result = short.text(text)
    assert len(result) <= most
    assert result.encode().decode() == result
    assert short.count == (len(text) > most)
