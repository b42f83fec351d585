"""The twin gives exactly the answers of the examples that come with the formats page."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.twin import audit, join, junk, loggen, strictjson, wire

GOLDEN = Path(__file__).parent.parent / "golden" / "channel-record"
EXPECTED: dict[str, dict[str, Any]] = json.loads((GOLDEN / "expected.json").read_text("utf-8"))
WITH_VERDICTS = sorted(path.name for path in GOLDEN.glob("*.verdicts.jsonl"))


def read_golden(name: str) -> str:
    return (GOLDEN / name).read_bytes().decode("utf-8")


@pytest.mark.parametrize("case", sorted(EXPECTED))
def test_audit_answers_of_the_examples(case: str) -> None:
    name, _, as_of = case.partition(" --as-of ")
    answer = audit.audit(read_golden(name), read=EXPECTED[case]["read"], as_of=as_of or None)
    assert answer.audit == EXPECTED[case]["audit"]


@pytest.mark.parametrize("case", sorted(EXPECTED))
def test_auto_reads_fully_what_has_no_gaps(case: str) -> None:
    name, _, as_of = case.partition(" --as-of ")
    export = audit.from_export(read_golden(name))
    kept_ms = export.exported_at_ms - audit.LAG_MS
    gaps = any(audit.has_gaps(*audit.cut_off(export, p, as_of or None), kept_ms) for p in export.end_offsets)
    answer = audit.audit(export, read="auto", as_of=as_of or None).audit
    assert answer == EXPECTED[case]["audit"] | {"read": "join" if gaps else "full"}


@pytest.mark.parametrize("name", WITH_VERDICTS)
def test_verdicts_of_the_examples(name: str) -> None:
    log = read_golden(name.replace(".verdicts", ""))
    expected = [json.loads(row) for row in read_golden(name).split("\n") if row]
    assert audit.audit(log, read="full").verdicts == expected


def test_every_example_is_tested() -> None:
    logs = {path.name for path in GOLDEN.glob("*.jsonl")} - set(WITH_VERDICTS)
    assert logs == {case.partition(" ")[0] for case in EXPECTED}
    assert len(WITH_VERDICTS) >= 7


BY = {"broker": "b", "incarnation": "i"}
HEAD = {"format": 1, "id": "I", "covers": 3, "by": BY}
CHANGE = HEAD | {"version": 2, "from": None, "to": "b"}
HALVES = ["0x00000000_0x7fffffff", "0x7fffffff_0xffffffff"]
BUNDLE = "a/b/0x00000000_0xffffffff"
SOUND: tuple[tuple[str, dict[str, Any]], ...] = (
    (BUNDLE, CHANGE | {"kind": "proposal", "base": "J", "state": "Assigning"}),
    (BUNDLE, CHANGE | {"kind": "proposal", "base": "J", "state": "Deleted", "children": HALVES}),
    (BUNDLE, CHANGE | {"kind": "assert", "asserts": "J", "state": "Assigned"}),
    ("a/b", HEAD | {"kind": "proposal", "version": 2, "base": None, "state": "Active",
                    "children": HALVES}),
    ("a/b", HEAD | {"kind": "assert", "version": 2, "asserts": "J", "state": "Deleted"}),
    ("!heartbeat", HEAD | {"kind": "heartbeat", "clean_to": 2}),
)  # fmt: skip


@pytest.mark.parametrize("index", range(len(SOUND)))
def test_every_odd_value_comes_out_as_the_table_says(index: int) -> None:
    key, record = SOUND[index]
    kind = wire.read_key(key.encode()).kind
    wrong = []
    for way in junk.ways(record, kind):
        outcome = junk.DECODES if wire.decode(key.encode(), way.value) else junk.UNDECODABLE
        if wire.newer_format(way.value) is not None:
            outcome = junk.NEWER
        if outcome != way.outcome:
            wrong.append((way.name, outcome))
    assert wrong == []


def test_the_loop_reads_the_same_grammar_as_the_library() -> None:
    """The scan that deep values fall back on must agree on the values that are not deep."""
    for way in junk.ways(SOUND[0][1], "bundle"):
        try:
            text = strictjson.decode_text(way.value)
            scanned = strictjson.scan_top_format(text)
        except strictjson.NotJsonError:
            scanned = "not JSON"
        try:
            parsed = strictjson.parse_object(way.value).get("format")
        except strictjson.NotJsonError:
            parsed = "not JSON"
        except strictjson.TooDeepError as deep:
            parsed = deep.top_format
        if not isinstance(parsed, (list, dict)):
            assert (way.name, type(scanned), scanned) == (way.name, type(parsed), parsed)


@pytest.mark.parametrize("key", junk.ODD_KEYS)
def test_odd_keys_have_no_known_form(key: bytes | None) -> None:
    assert wire.read_key(key).kind == "unknown"


def test_the_generator_reaches_every_verdict() -> None:
    counts: Counter[str] = Counter()
    knobs = replace(loggen.WILD, large=False, newer=0.5)
    for seed in range(20):
        answer = audit.audit(loggen.generate(seed, knobs).export(), read="full")
        counts.update(row["verdict"] for row in answer.verdicts)
    assert set(counts) == {
        "control", "unsupported-format", "wrong-partition", "purged", "undecodable",
        "assert-equal", "assert-stale", "duplicate", "unknown-bundle", "stale-version",
        "version-gap", "wrong-base", "illegal-move", "wrong-broker", "bad-children",
        "namespace-in-use", "accepted",
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(25))
def test_a_joiner_of_a_compacted_log_equals_the_full_reader(seed: int) -> None:
    """With honest heartbeats and asserts, whatever the junk: states, debts and verdicts."""
    knobs = replace(loggen.JUNKY, large=False)
    log = loggen.generate(seed, knobs)
    full = audit.audit(log.export(), read="full")
    verdicts = {(row["partition"], row["offset"]): row["verdict"] for row in full.verdicts}
    for compaction in range(3):
        export = audit.from_export(log.compacted(seed * 10 + compaction, knobs).export())
        answer = audit.audit(export, read="join")
        if "tentative" in answer.audit:
            continue
        assert answer.states == full.states
        assert answer.audit["debts"] == full.audit["debts"]
        for partition in export.end_offsets:
            lines, end = audit.cut_off(export, partition, None)
            if audit.has_gaps(lines, end, export.exported_at_ms - audit.LAG_MS):
                read = join.read_joining(lines, partition, len(export.end_offsets), export.exported_at_ms, audit.LAG_MS)
                for verdict in read.judge.verdicts if read.judge else []:
                    assert verdicts[partition, verdict.line.offset] == verdict.verdict
