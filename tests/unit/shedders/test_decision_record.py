"""Records of decisions: what they say, what is cut, and what a reader refuses."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleStats
from shedders.decision.booked_moves import Budget, BudgetSettings
from shedders.decision.distance import DistanceReader
from shedders.decision.dry_run import CheckedMove, SplitDecision
from shedders.decisions import builder
from shedders.decisions.builder import (
    BudgetUse,
    Executed,
    RecordBounds,
    fingerprint,
    outcome_record,
    place_record,
    shed_record,
    skipped_record,
    split_record,
)
from shedders.decisions.explanation import NOT_MADE, Because
from shedders.decisions.record import (
    VALUE_MAX_BYTES,
    DecisionRecord,
    InvalidDecisionReason,
    OutcomeRecord,
    Subject,
    UnwritableRecordError,
    decode,
    encode,
    key_of,
)
from shedders.model.cluster import Broker, Bundle, Cluster
from shedders.model.plan import Label, Left, Placed, Reason, SplitPlan
from shedders.schemas import decision_schema
from statechannel.protocol.side_record import InvalidRecord
from statechannel.stories.bundle import What
from tests.support.decision_records import AT_MS, IDS, LOWER, NAMESPACE, UPPER, WHOLE, decision, move, occasion, record

PAGE = Path(__file__).parents[3] / "design" / "reference" / "decisions-topic.md"
SCHEMA = Path(__file__).parents[3] / "design" / "reference" / "decision.schema.json"
ONE, TWO = f"{NAMESPACE}/{LOWER}", f"{NAMESPACE}/{UPPER}"


def test_the_schema_in_design_is_that_of_the_code() -> None:
    """Mend it with: python -m shedders.schemas."""
    assert SCHEMA.read_text(encoding="utf-8") == decision_schema()


def test_the_examples_of_the_page_are_records_and_its_words_are_those_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    examples = [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```", text, re.DOTALL | re.MULTILINE)]
    results = [
        decode(example["id" if example["kind"] == "decision" else "decision"].encode(), json.dumps(example).encode())
        for example in examples
    ]
    assert [type(item) for item in results] == [DecisionRecord, OutcomeRecord]
    assert [json.loads(encode(item)) for item in results if not isinstance(item, InvalidRecord)] == examples
    words = set(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", text))
    assert set(builder.SKIPPED) | set(What) | set(Because) | set(InvalidDecisionReason) | {NOT_MADE} <= words
    for word, (label, reason) in builder.SKIPPED.items():
        (row,) = (line for line in text.splitlines() if line.startswith("| `") and f"`{word}`" in line.split("|")[1])
        assert {label.value, reason.value} <= set(re.split(r"[ ,|]+", row)), row
    for name in DecisionRecord.model_fields:
        assert f"`{name}`" in text or name in ("kind", "format", "why"), name


def test_a_record_says_what_was_decided() -> None:
    record = shed_record(
        occasion(),
        decision(
            moves=[
                move(ONE),
                CheckedMove(replace(move(TWO), destination=None), "b3", "anti-affinity: b3 has one of them"),
            ],
            left=[Left("b2", "outdated", "its report is 1900 s old"), Left(WHOLE, "cooling", "moved 5 s ago")],
            scores={"b1": 0.8, "b2": inf, "b3": 0.2},
            stats={"average": 0.5, "std": 0.3},
            why="2 bundles from b1",
        ),
        executed={ONE: Executed("op-1")},
        budget=BudgetUse(BudgetSettings(), Budget(99, 15.5), on_the_way=2),
    )
    assert (record.id, record.subject, record.term, record.leader, record.cycle) == (IDS[1], "shed", 7, "b1", 1)
    assert (record.label, record.reason, record.skipped) == ("Success", "Overloaded", None)
    expected = [(ONE, "b2", "b2", "op-1"), (TWO, None, "b3", None)]
    assert [(move.bundle, move.destination, move.planned, move.operation) for move in record.moves] == expected
    assert record.moves[0].outcome == "started"
    assert record.moves[0].refused is None
    assert record.moves[1].refused == "anti-affinity: b3 has one of them"
    assert [(bundle.name, bundle.reason) for bundle in record.left] == [("b2", "outdated"), (WHOLE, "cooling")]
    assert record.left_counts == {"cooling": 1, "outdated": 1}
    assert record.scores == {"b1": 0.8, "b2": None, "b3": 0.2}
    assert record.stats == {"average": 0.5, "std": 0.3}
    assert (record.budget.moves_left, record.budget.load_percent_left, record.budget.on_the_way) == (99, 15.5, 2)
    assert record.inputs.channel == {"0": 41}
    assert record.cut == {}
    assert decode(key_of(record), encode(record)) == record


def test_moves_that_the_budget_holds_back_are_refused() -> None:
    held = BudgetUse(BudgetSettings(), Budget(0, 0.0), [Left(TWO, "budget", "it has 30.0 % of the load")])
    record = shed_record(occasion(), decision(moves=[move(ONE), move(TWO)]), budget=held)
    assert [move.refused for move in record.moves] == [None, "budget: it has 30.0 % of the load"]


def uneven() -> Cluster:
    """b1 has two bundles, b2 has none; half of each direction is used."""
    one = BundleStats(msg_throughput_in=1e6, msg_throughput_out=1e6)
    used, unused = ResourceUsage(16_000.0, 32_000.0), ResourceUsage(0.0, 32_000.0)
    busy = BrokerLoad(bandwidth_in=used, bandwidth_out=used, msg_throughput_in=2e6, msg_throughput_out=2e6)
    idle = BrokerLoad(bandwidth_in=unused, bandwidth_out=unused)
    return Cluster(
        {"b1": Broker("b1", load=busy), "b2": Broker("b2", load=idle)},
        {name: Bundle(name, "b1", stats=one) for name in (ONE, TWO)},
    )


def test_a_record_has_the_distance_to_the_best_of_the_moves_that_are_made() -> None:
    base = decision(moves=[move(ONE), move(TWO)])
    distances = DistanceReader(uneven(), 60.0)
    held = BudgetUse(BudgetSettings(), Budget(0, 0.0), [Left(TWO, "budget", "it has 50.0 % of the load")])
    both, first = (shed_record(occasion(), base, budget=use, distances=distances).distance for use in (None, held))
    assert (both.broker, both.largest_use, both.load_moved) == ("b2", 0.5, 4e6)
    assert both.bound == pytest.approx(0.25)
    assert both.gap_percent == pytest.approx(100.0)
    assert (first.broker, first.resource, first.largest_use, first.load_moved) == ("b1", "bandwidth_in", 0.25, 2e6)
    assert first.bound == first.any_load_bound == pytest.approx(0.25)
    record = shed_record(occasion(), base, distances=distances)
    assert decode(key_of(record), encode(record)) == record


def test_records_without_a_distance_are_read() -> None:
    """Earlier versions did not write it, and drains have none."""
    record = shed_record(occasion(), decision(moves=[move(ONE)]))
    assert record.distance is None
    old = json.loads(encode(record))
    del old["distance"]
    assert decode(key_of(record), json.dumps(old).encode()) == record


@pytest.mark.parametrize("word", [*builder.SKIPPED, "something-new"])
def test_a_skipped_cycle_has_its_word_and_upstreams(word: str) -> None:
    record = skipped_record(occasion(), word, "because", left=[Left("b1", "no-load-data", "it has reported no load")])
    label, reason = builder.SKIPPED.get(word, (Label.SKIP, Reason.UNKNOWN))
    assert (record.skipped, record.label, record.reason, record.why) == (word, label.value, reason.value, "because")
    assert [bundle.name for bundle in record.left] == ["b1"]
    assert decode(key_of(record), encode(record)) == record


def test_a_look_at_splits_has_those_left_whole_among_the_left() -> None:
    looked = SplitDecision(
        Cluster({}, {ONE: Bundle(ONE, "b1")}),
        [SplitPlan(ONE, (1 << 30,), "MsgRate", "40000 messages/s"), SplitPlan(TWO, (), "hits", "2 times in a row")],
        None,
        {},
    )
    record = split_record(occasion(), looked, executed={ONE: Executed("op-s", "unknown", "no answer")})
    assert (record.subject, record.label, record.reason) == ("split", "Success", "MsgRate")
    assert [(split.bundle, split.positions, split.operation, split.outcome) for split in record.splits] == [
        (ONE, [1 << 30], "op-s", "unknown")
    ]
    assert [(bundle.name, bundle.reason) for bundle in record.left] == [(TWO, "hits")]
    none = split_record(occasion(), replace(looked, splits=[], why="the cluster is left alone: safe mode"))
    assert (none.label, none.why) == ("Skip", "the cluster is left alone: safe mode")


def test_a_placement_says_among_whom_it_was_free() -> None:
    placed = [
        Placed(ONE, "b2", "least used", best=["b2", "b3"], removed={"b1": ("cordon", "disk")}, scores={"b2": 0.1}),
        Placed(TWO, None, "no broker may take it", removed={"b1": ("cordon", "disk"), "b2": ("cordon", "disk")}),
    ]
    record = place_record(occasion(), Cluster({}, {}), placed)
    assert (record.subject, record.label, record.reason) == ("place", "Failure", "NoBrokers")
    assert [
        (placement.broker, placement.best, placement.best_count, placement.removed, placement.score)
        for placement in record.placed
    ] == [("b2", ["b2", "b3"], 2, {"cordon": 1}, 0.1), (None, [], 0, {"cordon": 2}, None)]
    assert place_record(occasion(), Cluster({}, {}), placed[:1]).label == "Success"


def test_settings_are_told_when_asked_for_and_have_one_fingerprint_in_any_order() -> None:
    settings = {"b": 1, "a": {"y": [1], "x": None}}
    record = shed_record(occasion(settings=settings, write_settings=True), decision())
    silent = shed_record(occasion(settings={"a": {"x": None, "y": [1]}, "b": 1}), decision())
    assert record.settings == settings
    assert silent.settings is None
    assert record.fingerprint == silent.fingerprint == fingerprint(settings)
    assert fingerprint({"b": 2}) != fingerprint({"b": 1})


def test_what_is_cut_is_counted_and_the_most_important_stays() -> None:
    bounds = RecordBounds(record_bytes=16_384, text_chars=100)
    left = [Left(f"{NAMESPACE}/x-{number}", "cooling" if number % 9 else "rare", "y" * 500) for number in range(5_000)]
    entry = record(
        bounds=bounds,
        moves=[move(f"{NAMESPACE}/m-{number}") for number in range(20)],
        left=[Left("b3", "nothing-fits", "no bundle levels it out"), *left],
        scores={f"b{number}": float(number) for number in range(1, 1_001)},
        brokers=1_000,
    )
    assert len(encode(entry, 16_384)) <= 16_384
    assert len(entry.moves) == 20
    assert entry.left[0].name == "b3"
    assert {bundle.reason for bundle in entry.left} == {"nothing-fits", "cooling", "rare"}
    assert entry.left_counts == {"cooling": 4_444, "rare": 556, "nothing-fits": 1}
    assert entry.cut["left"] == 5_001 - len(entry.left)
    assert entry.cut["scores"] == 1_000 - len(entry.scores)
    assert entry.cut["texts"] > 0
    # The plan's brokers, then both ends.
    assert {"b1", "b2", "b1000", "b3"} <= entry.scores.keys()
    assert all(len(bundle.why) <= 100 for bundle in entry.left)
    assert entry.left[-1].why.endswith("\u2026")


def test_settings_that_are_too_large_are_left_out_and_counted() -> None:
    bounds = RecordBounds(record_bytes=16_384)
    record = shed_record(occasion(settings={"x": "y" * 20_000}, write_settings=True), decision(), bounds=bounds)
    assert (record.settings, record.cut) == (None, {"settings": 1})


def test_memory_has_room_of_its_own() -> None:
    """A thousand brokers and a plan of many moves: the next leader goes on from it although the record is full."""
    memory = {"watched": {f"broker-{number:04d}": [0.123456] * 30 for number in range(1_000)}}
    many = [move(f"{NAMESPACE}/m-{number}") for number in range(2_000)]
    changed = replace(decision(moves=many), memory=memory)
    record = shed_record(occasion(), changed)
    assert record.memory == memory
    assert "moves" in record.cut
    assert 128 * 1024 < len(encode(record)) <= (128 + 512) * 1024
    small = shed_record(occasion(), changed, bounds=RecordBounds(memory_bytes=0))
    assert (small.memory, small.cut["memory"]) == (None, 1)
    assert len(encode(small)) <= 128 * 1024
    # What is on top never makes it longer than a value may be.
    assert RecordBounds(record_bytes=VALUE_MAX_BYTES).beyond_bytes == 0
    with pytest.raises(ValueError, match="memory_bytes is negative"):
        RecordBounds(memory_bytes=-1)


@pytest.mark.parametrize(("size", "text"), [(1, 500), (VALUE_MAX_BYTES + 1, 500), (20_000, 1), (20_000, 5_000)])
def test_bounds_are_bounded(size: int, text: int) -> None:
    with pytest.raises(ValueError, match="a record has"):
        RecordBounds(size, text)


def test_text_of_third_parties_cannot_break_a_record() -> None:
    entry = record(
        moves=[move("t/n/\ud800\n", why="bell\x07 \ud83d", load=nan)],
        left=[Left("b1", "w\x00rd", "")],
        why='quote " and \\',
    )
    assert decode(key_of(entry), encode(entry)) == entry
    assert entry.moves[0].bundle == "t/n/\ufffd\ufffd"
    assert entry.moves[0].load is None
    assert list(entry.left_counts) == ["w\ufffdrd"]


def test_an_outcome_is_found_by_its_decisions_key() -> None:
    record = outcome_record(
        IDS[1], ONE, "taken back!", "b2 declined", operation="op-1", at_ms=AT_MS, term=7, leader="b1", took_ms=inf
    )
    assert (record.result, record.took_ms) == ("taken-back", None)
    assert key_of(record) == IDS[1].encode()
    assert decode(key_of(record), encode(record)) == record
    odd = outcome_record(IDS[1], ONE, "1st", "x", operation=None, at_ms=1, term=1, leader="b1")
    assert odd.result == "w-1st"


def test_a_record_that_is_too_large_is_not_written() -> None:
    with pytest.raises(UnwritableRecordError, match="more than 100"):
        encode(record(), 100)


def _changed(**fields: Any) -> bytes:
    loaded = json.loads(encode(record(moves=[move()])))
    loaded.update(fields)
    return json.dumps({name: value for name, value in loaded.items() if value != "-"}).encode()


def test_unknown_fields_are_ignored() -> None:
    entry = decode(IDS[1].encode(), _changed(later="something"))
    assert isinstance(entry, DecisionRecord)
    assert entry == record(moves=[move()])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, InvalidDecisionReason.NOT_JSON),
        (b"", InvalidDecisionReason.NOT_JSON),
        (b"{", InvalidDecisionReason.NOT_JSON),
        (b"\xff", InvalidDecisionReason.NOT_JSON),
        (b"[]", InvalidDecisionReason.NOT_JSON),
        (b"3", InvalidDecisionReason.NOT_JSON),
        (b"[" * 100_000, InvalidDecisionReason.NOT_JSON),
        (b" " * (VALUE_MAX_BYTES + 1), InvalidDecisionReason.TOO_LARGE),
        (b"{}", InvalidDecisionReason.FORMAT),
        (_changed(format=2), InvalidDecisionReason.FORMAT),
        (_changed(format=True), InvalidDecisionReason.FORMAT),
        (_changed(format="1"), InvalidDecisionReason.FORMAT),
        (_changed(kind="else"), InvalidDecisionReason.KIND),
        (_changed(kind=None), InvalidDecisionReason.KIND),
        (_changed(id="x"), InvalidDecisionReason.FIELDS),
        (_changed(id=IDS[2]), InvalidDecisionReason.KEY),
        (_changed(term="7"), InvalidDecisionReason.FIELDS),
        (_changed(term=-1), InvalidDecisionReason.FIELDS),
        (_changed(term=1.5), InvalidDecisionReason.FIELDS),
        (_changed(scores={"b1": "0.5"}), InvalidDecisionReason.FIELDS),
        (_changed(why="-"), InvalidDecisionReason.FIELDS),
        (_changed(moves=[{}]), InvalidDecisionReason.FIELDS),
        (_changed(label="two words"), InvalidDecisionReason.FIELDS),
        (_changed(kind="outcome"), InvalidDecisionReason.FIELDS),
        (encode(record()).replace(b'"took_ms":4.5', b'"took_ms":NaN'), InvalidDecisionReason.NOT_JSON),
    ],
)
def test_what_a_reader_refuses(value: bytes | None, reason: InvalidDecisionReason) -> None:
    record = decode(IDS[1].encode(), value)
    assert record.reason is reason
    assert record.why


def test_a_record_without_a_key_is_refused() -> None:
    entry = decode(None, encode(record()))
    assert entry.reason is InvalidDecisionReason.KEY


def test_every_field_of_the_record_is_in_the_schema_with_its_type() -> None:
    schema: Mapping[str, Any] = json.loads(decision_schema())
    properties = schema["$defs"]["DecisionRecord"]["properties"]
    assert set(properties) == set(DecisionRecord.model_fields)
    assert set(Subject) == set(properties["subject"]["enum"])
