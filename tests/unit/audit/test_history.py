"""Records of a bundle's history: which they are, how they relate to it, and what each changed."""

from typing import Any

import orjson
import pytest

from statechannel.audit.history import History, control_writer
from statechannel.audit.moments import AsOf, LogWindow
from statechannel.protocol.bundle import KeyParts, named_topic_hash, parse_key
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.verdict import MEANING, REJECTIONS, Verdict
from statechannel.protocol.view import Judgement, View
from statechannel.replay.auditor import audit_part
from statechannel.replay.part import Listeners
from statechannel.replay.survey import STRICT
from statechannel.stories.bundle import end_of, meant, overlap, short_range
from tests.support.lone_engine import CREATED, NAMESPACE, heartbeat, mark
from tests.support.report_logs import LogMaker
from tests.unit.audit.test_observers import SERVED, asserted, move

FULL, LOWER, UPPER = "0x00000000_0xffffffff", "0x00000000_0x80000000", "0x80000000_0xffffffff"
RANGES = {
    "n": "t/n",
    "full": f"t/n/{FULL}",
    "lower": f"t/n/{LOWER}",
    "upper": f"t/n/{UPPER}",
    "third": "t/n/0x80000000_0xc0000000",
    "end": "t/n/0xc0000000_0xffffffff",
    "across": "t/n/0x40000000_0xc0000000",
    "other": f"t/m/{UPPER}",
    "namesake": "t/nn",
}


def rows_of(log: LogMaker, name: str | None, **more: Any) -> list[dict[str, Any]]:
    history, view = History(name, **more), View(0, 1)
    for record in log.records:
        history.observe(record, view.read(record.offset, record.key, record.value))
    return list(history.rows)


@pytest.mark.parametrize(
    ("name", "relations"),
    [
        ("n", {"n": "namespace"} | dict.fromkeys(("full", "lower", "upper", "third", "end", "across"), "bundle")),
        (
            "upper",
            {
                "n": "namespace", "full": "ancestor", "upper": "own", "third": "descendant", "end": "descendant",
                "across": "overlapping",
            },
        ),
        ("end", {"n": "namespace", "full": "ancestor", "upper": "ancestor", "end": "own"}),
        ("third", {"n": "namespace", "full": "ancestor", "upper": "ancestor", "third": "own", "across": "ancestor"}),
        ("lower", {"n": "namespace", "full": "ancestor", "lower": "own", "across": "overlapping"}),
        ("other", {"other": "own"}),
        ("namesake", {"namesake": "namespace"}),
        ("t/n/topic", {"n": "namespace", "full": "bundle"}),
    ],
)  # fmt: skip
def test_which_records_belong_to_a_history_and_how(name: str, relations: dict[str, str]) -> None:
    log = LogMaker()
    for key in RANGES.values():
        log.put(key, b"junk")
    names = {key: word for word, key in RANGES.items()}
    found = {names[row["key"]]: row["relation"] for row in rows_of(log, RANGES.get(name, name))}
    if name == "t/n/topic":
        place = named_topic_hash(name)
        held = {
            word for word, key in RANGES.items() if (it := parse_key(key.encode())) and it.lower <= place < end_of(it)
        }
        relations = {"n": "namespace"} | dict.fromkeys(held - {"n", "namesake", "other"}, "bundle")
    assert found == relations


@pytest.mark.parametrize(
    ("first", "other", "expected"),
    [
        ("n", "upper", True),
        ("upper", "n", True),
        ("n", "n", True),
        ("upper", "lower", False),
        ("lower", "upper", False),
        ("lower", "across", True),
        ("across", "upper", True),
        ("third", "end", False),
        ("end", "upper", True),
        ("upper", "other", False),
        ("n", "namesake", False),
    ],
)
def test_ranges_that_share_a_hash_overlap(first: str, other: str, expected: bool) -> None:
    one, two = parse_key(RANGES[first].encode()), parse_key(RANGES[other].encode())
    assert overlap(one, two) is expected


def test_the_last_range_of_a_ring_is_closed() -> None:
    ends = {word: end_of(parts) for word, key in RANGES.items() if (parts := parse_key(key.encode()))}
    assert (ends["upper"], ends["lower"], ends["third"]) == (1 << 32, 0x80000000, 0xC0000000)
    assert [short_range(RANGES[word]) for word in ("n", "upper")] == ["t/n", UPPER]
    assert short_range("nonsense") == "nonsense"


def record(key: bytes | None, value: bytes | None = b"{}") -> RecordRead:
    return RecordRead(Topic.CHANNEL, 0, 0, 0, key, value)


@pytest.mark.parametrize(
    ("name", "records", "named"),
    [
        (None, [], True),
        ("t/n", [], False),
        ("t/n", [record(None), record(b"t/nn"), record(b"t/n/x"), record(b"t/m")], False),
        ("t/n", [record(b"t/m"), record(f"t/n/{LOWER}".encode())], True),
        (f"t/n/{LOWER}", [record(b"t/n"), record(f"t/n/{UPPER}".encode()), record(b"t/n", None)], False),
        (f"t/n/{LOWER}", [record(f"t/n/{LOWER}".encode())], True),
        (f"t/n/{LOWER}", [record(b"t/n", f'["{LOWER}"]'.encode())], True),
        (f"t/n/{LOWER}", [record(b"t/m", f'["{LOWER}"]'.encode())], False),
        ("t/n/topic", [record(f"t/n/{UPPER}".encode())], True),
        ("t/n/topic", [record(b"t/m")], False),
    ],
)
def test_whether_a_log_names_the_subject(name: str | None, records: list[RecordRead], named: bool) -> None:
    assert History(name).is_named(records) is named


@pytest.mark.parametrize(
    ("value", "writer"),
    [
        (None, (None, None)),
        (b"{", (None, None)),
        (b"[]", (None, None)),
        (b'{"by": 7}', (None, None)),
        (b'{"by": {"broker": "b", "incarnation": "i"}}', ("b", "i")),
        (b'{"by": {"broker": 7, "incarnation": "i"}}', (None, "i")),
        (b'{"by": {"broker": "b"}}', ("b", None)),
    ],
)
def test_the_writer_of_a_mark(value: bytes | None, writer: tuple[str | None, str | None]) -> None:
    assert control_writer(value) == writer


def test_without_a_name_marks_and_junk_are_listed_and_heartbeats_are_not() -> None:
    log = LogMaker()
    log.namespace("t/n", 1)
    log.put("!heartbeat", heartbeat("x-1", 0))
    log.put("!cold-start", mark("x-1", 0))
    log.put("nonsense", b"junk")
    log.put("t/n", None)
    log.put("t/n", b"junk")
    log.records.append(log.records[3]._replace(key=None, offset=6))
    names = ("offset", "relation", "kind", "by", "incarnation")
    rows = [tuple(row[name] for name in names) for row in rows_of(log, None)]
    assert rows == [
        (0, "namespace", "proposal", "b1", "b1-1"),
        (2, "none", "mark", "x", "x-1"),
        (3, "none", "-", None, None),
        (4, "namespace", "null", None, None),
        (5, "namespace", "-", None, None),
        (6, "none", "-", None, None),
    ]
    assert [row["offset"] for row in rows_of(log, "t/n")] == [0, 4, 5]
    assert [row["offset"] for row in rows_of(log, None, by="x")] == [2]
    window = LogWindow(AsOf(offset=2), AsOf(offset=4))
    assert [row["offset"] for row in rows_of(log, None, window=window)] == [2, 3, 4]


def life() -> tuple[LogMaker, str, str]:
    """A transfer with an operation, a stale record, a repair, a split, a new namespace. And the bundle, and its first half."""
    log = LogMaker()
    bundle = log.namespace("t/n", 1)[0]
    log.assign(bundle, "b1")
    step: dict[str, Any] = {"from": "b1", "to": "b2", "operation": "op", "decision": "d-1", "flow": "transfer"}
    log.move(bundle, "Releasing", "b1", **step, action="transfer")
    log.move(bundle, "Assigning", "b1", **step)
    log.put(bundle, log.proposal(bundle, "Assigned", "b9", to="b9") | {"version": 2})
    log.move(bundle, "Assigned", "b2", **step)
    log.lose(bundle, "b3", heard_ago_ms=100)
    halves = log.split(bundle)
    for half in halves:
        log.unload(half)
    log.move("t/n", "Deleted")
    log.move("t/n", "Active", children=[FULL], operation="again")
    log.assign(bundle, "b1")
    return log, bundle, halves[0]


def brief(row: dict[str, Any]) -> tuple[Any, ...]:
    sides = [
        row[side] and (row[side]["state"], row[side]["owner"], row[side]["version"]) for side in ("before", "after")
    ]
    children = row["children"] and (row["children"]["count"], [child["state"] for child in row["children"]["of_this"]])
    began = row["began"] and (row["began"]["offset"], row["began"]["action"])
    lost, winner = row["lost"] and row["lost"]["broker"], row["winner"] and row["winner"]["version"]
    return row["offset"], *sides, children, began, lost, winner, row["decision"]


def test_what_each_record_of_a_bundle_changed() -> None:
    log, bundle, _ = life()
    assert [brief(row) for row in rows_of(log, bundle)] == [
        (0, None, ("Active", None, 1), (1, ["Unassigned"]), None, None, None, None),
        (1, ("Unassigned", None, 1), ("Assigning", None, 2), None, None, None, None, None),
        (2, ("Assigning", None, 2), ("Assigned", "b1", 3), None, None, None, None, None),
        (3, ("Assigned", "b1", 3), ("Releasing", "b1", 4), None, None, None, None, "d-1"),
        (4, ("Releasing", "b1", 4), ("Assigning", None, 5), None, (3, "transfer"), None, None, "d-1"),
        (5, None, None, None, None, None, 5, None),
        (6, ("Assigning", None, 5), ("Assigned", "b2", 6), None, (3, "transfer"), None, None, "d-1"),
        (7, ("Assigned", "b2", 6), ("Assigning", None, 7), None, None, "b2", None, None),
        (8, ("Assigning", None, 7), ("Assigned", "b3", 8), None, None, None, None, None),
        (9, ("Assigned", "b3", 8), ("Splitting", "b3", 9), None, None, None, None, None),
        (10, ("Splitting", "b3", 9), ("Deleted", None, 10), (2, ["Assigned"] * 2), None, None, None, None),
        (11, ("Assigned", "b3", 11), ("Releasing", "b3", 12), None, None, None, None, None),
        (12, ("Releasing", "b3", 12), ("Unassigned", None, 13), None, None, None, None, None),
        (13, ("Assigned", "b3", 11), ("Releasing", "b3", 12), None, None, None, None, None),
        (14, ("Releasing", "b3", 12), ("Unassigned", None, 13), None, None, None, None, None),
        (15, ("Active", None, 1), ("Deleted", None, 14), None, None, None, None, None),
        (16, ("Deleted", None, 14), ("Active", None, 15), (1, ["Unassigned"]), None, None, None, None),
        (17, ("Unassigned", None, 15), ("Assigning", None, 16), None, None, None, None, None),
        (18, ("Assigning", None, 16), ("Assigned", "b1", 17), None, None, None, None, None),
    ]


def test_the_children_of_a_split_are_those_that_belong_to_the_history() -> None:
    log, bundle, half = life()
    lower = [brief(row) for row in rows_of(log, half)]
    assert [row[0] for row in lower] == [*range(13), 15, 16, 17, 18]
    assert lower[10][3] == (2, ["Assigned"])
    assert [row[3] for row in lower if row[0] == 16] == [(1, ["Unassigned"])]
    noted = {row["offset"] for row in rows_of(log, bundle) if row["note"]}
    assert noted == {0, 5, 7, 10, 16}, "children, a rejection, a repair"


@pytest.mark.parametrize(("sure", "before"), [(True, ("Assigned", "b1", 3)), (False, None)])
@pytest.mark.parametrize("name", [f"t/n/{FULL}", "t/n", None])
def test_a_history_continues_from_what_a_joining_reader_holds(
    name: str | None, sure: bool, before: tuple[Any, ...] | None
) -> None:
    log, view, history = LogMaker(), View(0, 1), History(name)
    for namespace in ("t/n", "t/m"):
        log.assign(log.namespace(namespace, 1)[0], "b1")
    for line in log.records:
        view.read(line.offset, line.key, line.value)
    history.joined(view, sure=sure)
    log.transfer(f"t/n/{FULL}", "b2")
    for line in log.records[6:]:
        history.observe(line, view.read(line.offset, line.key, line.value))
    first, *_, last = history.rows
    assert (brief(first)[1], brief(last)[2]) == (before, ("Assigned", "b2", 6))


def test_a_history_continues_from_what_a_cold_start_has_put_in_place() -> None:
    rows = [*SERVED, asserted(3, "Assigned", to="c"), (b"!cold-start", mark("x-1", 2))]
    rows.append(move(5, 4, "other", "Releasing", **{"from": "c"}))
    history = History("t/n")
    records = [RecordRead(Topic.CHANNEL, 0, at, 1_000 * at, key, value) for at, (key, value) in enumerate(rows)]
    audit_part(0, 1, records, STRICT, history.observe, Listeners([history]))
    *_, last = history.rows
    assert brief(last)[:3] == (5, ("Assigned", "c", 3), ("Releasing", "c", 4))


def test_what_a_cold_start_says_is_absent_was_never_there() -> None:
    absent = orjson.loads(asserted(0, "Absent")[1]) | {"covers": 0, "asserts": None}
    rows = [
        (NAMESPACE, CREATED),
        (NAMESPACE, orjson.dumps(absent)),
        (b"!cold-start", mark("x-1", 0)),
        (NAMESPACE, CREATED),
    ]
    history = History("t/n")
    records = [RecordRead(Topic.CHANNEL, 0, at, 1_000 * at, key, value) for at, (key, value) in enumerate(rows)]
    audit_part(0, 1, records, STRICT, history.observe, Listeners([history]))
    accepted = [brief(row) for row in history.rows if row["verdict"] == "accepted"]
    assert [row[:3] for row in accepted] == [(at, None, ("Active", None, 1)) for at in (0, 3)]


def test_a_topic_lies_in_the_ranges_that_hold_its_hash() -> None:
    place = named_topic_hash("t/n/topic")
    parts, title = meant("t/n/topic")
    held = [
        overlap(parts, KeyParts("t/n", place + lower, place + upper)) for lower, upper in ((-2, 0), (-1, 1), (1, 2))
    ]
    assert held == [False, True, False]
    assert title != "t/n/topic"


def test_the_records_of_all_namespaces_are_in_the_order_of_time_and_those_of_one_in_that_of_the_log() -> None:
    every, one = History(None), History("t/n")
    for partition, offset, at_ms in ((0, 0, 50), (0, 1, 40), (1, 0, 45), (1, 1, 40)):
        line = RecordRead(Topic.CHANNEL, partition, offset, at_ms, b"t/n", b"junk")
        for history in (every, one):
            history.observe(line, Judgement(Verdict.UNDECODABLE, None, None, "why"))
    assert [(row["timestamp_ms"], row["partition"]) for row in every.rows] == [(40, 0), (40, 1), (45, 1), (50, 0)]
    assert [row["timestamp_ms"] for row in one.rows] == [50, 40, 45, 40]
    assert {row["note"] for row in one.rows} == {"why"}


def test_a_rejection_is_noted_by_what_the_judge_says_or_the_meaning_of_its_verdict() -> None:
    log, view, history = life()[0], View(0, 1), History(None)
    log.put("t/n", log.proposal("t/n", "Active", children=[FULL]) | {"version": 1})
    log.put("t/x", log.proposal("t/x", "Active", children=[FULL]) | {"version": 7, "base": "x"})
    judged = []
    for line in log.records:
        judged.append(view.read(line.offset, line.key, line.value))
        history.observe(line, judged[-1])
    for row in history.rows:
        judgement = judged[row["offset"]]
        if judgement.verdict in REJECTIONS:
            assert row["note"].startswith(judgement.why or MEANING[judgement.verdict])


def test_two_namespaces_do_not_touch_each_others_states() -> None:
    log = LogMaker()
    bundle = log.namespace("t/n", 1)[0]
    log.assign(bundle, "b1")
    log.namespace("t/m", 1)
    log.transfer(bundle, "b2")
    assert [brief(row)[1] for row in rows_of(log, None)][4] == ("Assigned", "b1", 3)
