"""Each condition of the bulk of a replay by itself: what is no plain move is found by `View.read`, and the views are the same."""

from collections import Counter
from typing import Any

import orjson
import pytest

from statechannel.protocol import bulk_fold
from statechannel.protocol.bulk_fold import judge_many, read_many
from statechannel.protocol.bundle import range_name
from statechannel.protocol.codec import COLD_START_KEY, MAX_INT, MAX_VALUE_SIZE_BYTES
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.overruling import StrictReader
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from tests.support.accelerator import TAKER_NAMES, TAKERS
from tests.unit.core.against_twin import FIELDS

TOP = 0xFFFFFFFF
HALF = 0x80000000
LOW, HIGH = f"t/n/{range_name(0, HALF)}", f"t/n/{range_name(HALF, TOP)}"
BY = {"broker": "b1", "incarnation": "b1-1"}
NEXT = "the record that is judged"


@pytest.fixture(autouse=True, params=TAKER_NAMES)
def _taker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test here is one of the Python code, and one of the accelerator."""
    monkeypatch.setattr(bulk_fold, "take_plain_moves", TAKERS[request.param]())


class Story:
    """A log that is written so that each record builds on those before."""

    def __init__(self) -> None:
        self.view = View(0, 1)
        self.records: list[RecordRead] = []
        children = [range_name(0, HALF), range_name(HALF, TOP)]
        self.write("t/n", id="ns", version=3, base=None, state="Active", children=children)
        self.move(LOW, "Assigning", to="b1")
        self.move(LOW, "Assigned", to="b1")

    def fields(self, key: str, state: str, **more: Any) -> dict[str, Any]:
        held = self.view.get(key)
        assert held is not None
        results = {
            "format": 1,
            "kind": "proposal",
            "id": f"r{len(self.records)}",
            "covers": len(self.records) - 1,
            "by": BY,
        }
        results |= {"version": held.version + 1, "base": held.accepted_id, "state": state, "from": None, "to": None}
        return results | more

    def move(self, key: str, state: str, **more: Any) -> Verdict:
        return self.put(key.encode(), orjson.dumps(self.fields(key, state, **more)))

    def write(self, key: str, **fields: Any) -> Verdict:
        results = {"format": 1, "kind": "proposal", "covers": len(self.records) - 1, "by": BY}
        return self.put(key.encode(), orjson.dumps(results | fields))

    def put(self, key: bytes | None, value: bytes | None) -> Verdict:
        offset = len(self.records)
        self.records.append(RecordRead(Topic.CHANNEL, 0, offset, 1_000 + offset, key, value))
        return self.view.read(offset, key, value).verdict


def everything(view: View) -> dict[str, Any]:
    """All that a view holds, compared field by field."""
    keys = {}
    for name, key in view.keys.items():
        held = {slot: getattr(key, slot) for slot in FIELDS if slot not in ("ring", "bounds")}
        held["bounds"] = None if key.bounds is None else list(key.bounds)
        ring = key.ring
        held["ring"] = ring and (ring.namespace, sorted(ring.live), len(ring.parents), ring.owned, ring.highest)
        keys[name] = held
    debts = {
        key.name: (debt.since_offset, debt.newest_offset, debt.highest_version)
        for key, debt in view.ledger.open.items()
    }
    flying = [key.name for key in view.in_flight]
    return {
        "applied": view.applied,
        "keys": keys,
        "debts": debts,
        "load": view.load,
        "in flight": flying,
        "writers": view.writers,
    }


def same(records: list[RecordRead], *, newer: bool = False) -> None:
    one_by_one, plainly, counted = View(0, 1), View(0, 1), View(0, 1)
    verdicts: Counter[Verdict] = Counter(one_by_one.read(r.offset, r.key, r.value).verdict for r in records)
    counter: Counter[Verdict] = Counter()
    assert read_many(plainly, records, 0, len(records)) == len(records) - newer
    stopped = judge_many(StrictReader(counted), records, counter)
    assert (stopped == (len(records) - 1, 2)) if newer else (stopped is None)
    assert everything(plainly) == everything(one_by_one)
    assert everything(counted) == everything(one_by_one)
    assert counter == verdicts


PLAIN: dict[str, Any] = {"state": "Releasing", "from": "b1", "to": "b2"}
BENT: dict[str, dict[str, Any]] = {
    "as it is": {},
    "version one below": {"version": 5},
    "version one above": {"version": 7},
    "version a float": {"version": 6.0},
    "version true": {"version": True},
    "base of another": {"base": "r1"},
    "base null": {"base": None},
    "its own base": {"id": "r2"},
    "from another": {"from": "b2"},
    "from no broker": {"from": " b1"},
    "from a number": {"from": 7},
    "from null": {"from": None},
    "to itself": {"to": "b1"},
    "to null": {"to": None},
    "to no broker": {"to": "-" * 300},
    "to a list": {"to": []},
    "another state": {"state": "Assigning"},
    "no state": {"state": "Nonsense"},
    "absent": {"state": "Absent"},
    "active": {"state": "Active"},
    "splitting": {"state": "Splitting", "to": None, "children": [range_name(0, 5), range_name(5, HALF)]},
    "splitting without a plan": {"state": "Splitting", "to": None},
    "format true": {"format": True},
    "format a float": {"format": 1.0},
    "format nought": {"format": 0},
    "format a text": {"format": "1"},
    "an assert": {"kind": "assert"},
    "a heartbeat": {"kind": "heartbeat"},
    "covers true": {"covers": True},
    "covers a float": {"covers": 3.0},
    "covers just what settled": {"covers": 2},
    "covers less than what settled": {"covers": 1},
    "covers nothing": {"covers": -1},
    "covers too little to be": {"covers": -2},
    "covers the most": {"covers": MAX_INT},
    "covers more than that": {"covers": MAX_INT + 1},
    "id empty": {"id": ""},
    "id a number": {"id": 5},
    "id with a blank": {"id": "a b"},
    "id too long": {"id": "x" * 10_000},
    "forced": {"forced": True},
    "not forced": {"forced": False},
    "forced a text": {"forced": "no"},
    "another broker of that process": {"by": {"broker": "b9", "incarnation": "b1-1"}},
    "another process": {"by": {"broker": "b1", "incarnation": "b1-2"}},
    "no process": {"by": {"broker": "b1"}},
    "by nobody": {"by": None},
    "by a text": {"by": "b1"},
    "fields unknown": {"colour": {"deep": [1, 2]}},
    "an operation": {"operation": "op9", "flow": "transfer", "action": "transfer"},
    "an operation that is none": {"operation": 9, "flow": []},
    "children where none are": {"children": []},
    "very deep": {"x": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]},
    "just fits": {"x": "x"},
}  # fmt: skip


@pytest.mark.parametrize("bent", BENT)
def test_one_bent_field(bent: str) -> None:
    story = Story()
    story.move(LOW, **PLAIN | BENT[bent])
    story.move(HIGH, "Assigning", to="b2")
    same(story.records)


@pytest.mark.parametrize("missing", ["format", "kind", "id", "covers", "by", "version", "base", "state", "from", "to"])
def test_one_field_missing(missing: str) -> None:
    story = Story()
    fields = story.fields(LOW, **PLAIN)
    del fields[missing]
    story.put(LOW.encode(), orjson.dumps(fields))
    story.move(HIGH, "Assigning", to="b2")
    same(story.records)


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_value_as_large_as_may_be(over: int) -> None:
    story = Story()
    fields = story.fields(LOW, **PLAIN, x="")
    fields["x"] = "x" * (MAX_VALUE_SIZE_BYTES + over - len(orjson.dumps(fields)))
    verdict = story.put(LOW.encode(), orjson.dumps(fields))
    assert (verdict is Verdict.ACCEPTED) is (over <= 0)
    same(story.records)


@pytest.mark.parametrize("depth", [1, 5, 20, 28, 29, 30, 31, 32, 33, 34, 35, 40, 64, 65])
@pytest.mark.parametrize("where", ["first", "last"])
@pytest.mark.parametrize("what", ["[", "{"])
def test_depth_is_counted_wherever_it_lies(depth: int, where: str, what: str) -> None:
    story = Story()
    plain = orjson.dumps(story.fields(LOW, **PLAIN))
    deep = b"[" * depth + b"]" * depth if what == "[" else b'{"a":' * depth + b"1" + b"}" * depth
    value = b'{"deep":' + deep + b"," + plain[1:] if where == "first" else plain[:-1] + b',"deep":' + deep + b"}"
    story.put(LOW.encode(), value)
    same(story.records)


@pytest.mark.parametrize("value", [b"", b"null", b"[]", b"{}", b'{"by":', b"\xff", None])
def test_no_record_at_all(value: bytes | None) -> None:
    story = Story()
    story.put(LOW.encode(), value)
    story.put(f"t/n/{range_name(1, 2)}".encode(), value)
    story.put(b"t/other", value)
    story.put(b"nonsense", value)
    story.put(b"!heartbeat", value)
    story.put(None, value)
    story.move(HIGH, "Assigning", to="b2")
    same(story.records)


def test_a_key_in_debt_is_judged_with_its_debt() -> None:
    story = Story()
    assert story.move(LOW, **PLAIN, version=99) is Verdict.VERSION_GAP
    assert story.move(LOW, **PLAIN, covers=2) is Verdict.ACCEPTED
    assert story.view.ledger.open
    assert story.move(LOW, "Assigning", **{"from": "b1", "to": "b2"}) is Verdict.ACCEPTED
    assert not story.view.ledger.open
    same(story.records)


@pytest.mark.parametrize("key", [LOW, "t/n"])
def test_a_newer_format_stops_it_there(key: str) -> None:
    story = Story()
    fields = story.fields(LOW, **PLAIN) | {"format": 2}
    story.put(key.encode(), orjson.dumps(fields))
    same(story.records, newer=True)


def test_it_ends_at_a_gap_at_the_end_and_at_a_cold_start() -> None:
    story = Story()
    story.move(LOW, **PLAIN)
    story.move(LOW, "Assigning", **{"from": "b1", "to": "b2"})
    records = story.records
    count = len(records)
    for end in range(count + 2):
        view = View(0, 1)
        assert read_many(view, records, 0, end) == min(end, count)
        assert view.applied == min(end, count) - 1
    for gap in range(1, count):
        view = View(0, 1)
        assert read_many(view, records[:gap] + records[gap + 1 :], 0, count) == gap
        assert view.applied == gap - 1
    view = View(0, 1)
    assert read_many(view, records, 1, count) == 1
    assert view.applied == -1
    mark = RecordRead(Topic.CHANNEL, 0, 2, 0, COLD_START_KEY, b"{}")
    cut = [*records[:2], mark, *(record._replace(offset=record.offset + 1) for record in records[2:])]
    assert read_many(View(0, 1), cut, 0, len(cut)) == 2
    verdicts: Counter[Verdict] = Counter()
    whole = View(0, 1)
    assert judge_many(StrictReader(whole), cut, verdicts) is None
    assert (whole.applied, verdicts[Verdict.CONTROL], verdicts.total()) == (len(cut) - 1, 1, len(cut))


def test_gaps_are_no_end_where_all_are_judged() -> None:
    story = Story()
    story.move(LOW, **PLAIN)
    far = [record._replace(offset=10 * record.offset) for record in story.records]
    plain, counted = View(0, 1), View(0, 1)
    verdicts: Counter[Verdict] = Counter(plain.read(item.offset, item.key, item.value).verdict for item in far)
    counter: Counter[Verdict] = Counter()
    assert judge_many(StrictReader(counted), far, counter) is None
    assert (everything(counted), counter) == (everything(plain), verdicts)


def test_what_it_notes_of_a_plain_move() -> None:
    story = Story()
    story.move(LOW, **PLAIN, operation="op1", flow="transfer", colour="red")
    view = View(0, 1)
    read_many(view, story.records, 0, len(story.records))
    key = view.get(LOW)
    assert (key.operation, key.flow, key.offset, key.settled) == ("op1", "transfer", 3, 3)
    assert (key.server, key.forced, key.derived, key.was) == (view.writers["b1-1"], False, False, "Assigned")
    assert (dict(key.more or {}), view.load, list(view.in_flight)) == ({"colour": "red"}, {"b2": 1}, [key])
