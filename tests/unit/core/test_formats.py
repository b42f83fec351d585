"""Which format may be written, and what becomes of fields that this version does not know."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statechannel.engine.commands import CreateNamespace, Lookup, Transfer
from statechannel.protocol import codec
from statechannel.protocol.codec import MAX_VALUE_SIZE_BYTES
from statechannel.protocol.joiner import Joiner
from statechannel.protocol.log import Topic
from statechannel.protocol.record import FORMAT, NEWEST_FORMAT, formats_of, held_back_by, readable, writable_format
from statechannel.protocol.unknown_fields import KEPT_MAX_BYTES, unknown_in
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from tests.scenarios.world import World

BUNDLE = "t/n/0x00000000_0xffffffff"
READERS = st.integers(1, 5).map(readable)


@given(st.lists(READERS, max_size=6), READERS)
def test_what_is_written_is_the_newest_that_everybody_reads(members, own):
    chosen = writable_format(members, own)
    assert chosen in own
    assert all(chosen in formats for formats in members)
    assert chosen == max(own) or any(chosen + 1 not in formats for formats in members)


def test_whoever_reads_nothing_that_is_known_here_stops_in_any_case():
    assert writable_format([{7}], (1, 2)) == 1


@pytest.mark.parametrize(
    ("info", "formats"),
    [
        ({"formats": [1, 2]}, {1, 2}),
        ({}, {1}),
        ({"formats": "12"}, {1}),
        ({"formats": [True, "2", -1, 2.0, None]}, {1}),
        ({"formats": [2]}, {2}),
        ({"formats": list(range(1, 1000))}, {1}),
    ],
)
def test_what_a_registry_record_says_of_formats(info, formats):
    assert formats_of(info) == formats


def test_who_holds_a_format_back():
    assert held_back_by({"a": {1}, "b": {1, 2}, "c": {1}}) == (2, ("a", "c"))
    assert held_back_by({"a": {1, 2}}) == (2, ())
    assert held_back_by({}) == (FORMAT, ())


def test_no_released_version_knows_of_a_second_format():
    assert NEWEST_FORMAT == FORMAT == 1


def record(number: int, **more):
    by = {"broker": "b", "incarnation": "b-1"}
    fields = {"format": number, "kind": "proposal", "id": "I1", "covers": -1, "by": by, "version": 1, "base": None}
    fields |= {"state": "Active", "children": ["0x00000000_0xffffffff"], **more}
    return orjson.dumps(fields)


@pytest.mark.parametrize("number", [2, 3, 10])
def test_a_reader_of_two_formats_judges_both_and_stops_at_a_third(number):
    value = record(number)
    verdict = Verdict.ACCEPTED if number == 2 else Verdict.UNSUPPORTED_FORMAT
    assert View(0, 1, 2).read(0, b"t/n", value).verdict is verdict
    assert View(0, 1).read(0, b"t/n", value).verdict is Verdict.UNSUPPORTED_FORMAT
    joiner = Joiner(0, 1, 2)
    joiner.read(0, b"t/n", value)
    assert joiner.stopped == (0 if number == 2 else number)
    assert View(0, 1, 2).read(0, b"t/n", record(0)).verdict is Verdict.UNDECODABLE


def test_a_heartbeat_of_a_known_format_counts():
    fields = {"format": 2, "kind": "heartbeat", "id": "h", "covers": 0, "clean_to": 0}
    value = orjson.dumps(fields | {"by": {"broker": "b", "incarnation": "b-1"}})
    assert codec.decode_heartbeat(value) is None
    assert codec.decode_heartbeat(value, 2) is not None


def written(world: World, name: str) -> list[dict]:
    entries = world.logs[Topic.CHANNEL, 0].entries
    return [orjson.loads(entry.value) for entry in entries if entry and entry.value and entry.key == name.encode()]


def served_bundle() -> World:
    world = World()
    for broker in ("a", "b"):
        world.start(broker)
    world.run(8)
    world.ask("a", CreateNamespace("t/n", (0, 0xFFFFFFFF), "op1", 5.0), "create")
    world.run(1)
    world.ask("a", Lookup(f"{BUNDLE}", 5.0), "lookup")
    world.run(2)
    return world


def as_a_later_version(world: World, broker: str, fields: dict) -> None:
    """Have every proposal of a broker carry fields that only a later version knows."""
    process = world.process(broker)
    propose = process.engine.proposals.propose
    process.engine.proposals.propose = lambda *args, **more: propose(*args, **{**more, "carried": fields})


def test_reactions_and_asserts_hand_unknown_fields_on():
    world = served_bundle()
    owner = written(world, BUNDLE)[-1]["to"]
    other = "b" if owner == "a" else "a"
    later = {"priority": 7, "why_then": {"ticket": ["x", None]}}
    as_a_later_version(world, other, later)
    world.ask(other, Transfer(BUNDLE, other, "op2", 5.0), "transfer")
    world.run(2)
    releasing, assigning, assigned = written(world, BUNDLE)[-3:]
    assert [item["state"] for item in (releasing, assigning, assigned)] == ["Releasing", "Assigning", "Assigned"]
    assert assigning["by"]["broker"] == owner  # of this version: it knows nothing of these fields
    for item in (releasing, assigning, assigned):
        assert item.items() >= later.items()
    del world.process(other).engine.proposals.propose
    world.append(Topic.CHANNEL, 0, BUNDLE.encode(), b"junk")
    world.run(6)
    restated = written_asserts(world)[-1]
    assert restated["asserts"] == assigned["id"]
    assert restated.items() >= later.items()


def written_asserts(world: World) -> list[dict]:
    entries = world.logs[Topic.CHANNEL, 0].entries
    values = [entry.value for entry in entries if entry and entry.value and entry.value.startswith(b"{")]
    return [item for item in map(orjson.loads, values) if item.get("kind") == "assert"]


def test_a_joiner_learns_unknown_fields_from_an_assert():
    by = {"broker": "b", "incarnation": "b-1"}
    restated = {"format": 1, "kind": "assert", "id": "A1", "covers": 3, "by": by, "version": 1, "asserts": "I1"}
    restated |= {"state": "Active", "children": ["0x00000000_0xffffffff"], "priority": 7}
    joiner = Joiner(0, 1)
    joiner.read(4, b"t/n", orjson.dumps(restated))
    key = joiner.view().get("t/n")
    assert key.more == {"priority": 7}


def test_too_much_of_it_is_not_handed_on_so_that_every_state_can_be_restated():
    assert unknown_in({"format": 1, "id": "x"}) is None
    assert unknown_in({"id": "x", "priority": 1}) == {"priority": 1}
    assert unknown_in({"more": "x" * KEPT_MAX_BYTES}) is None
    view = View(0, 1)
    value = record(1, more="x" * (MAX_VALUE_SIZE_BYTES - 1_000))
    judgement = view.read(0, b"t/n", value)
    assert judgement.verdict is Verdict.ACCEPTED
    assert judgement.key.more is None


def test_names_that_mean_something_to_the_code_are_only_fields():
    """A later version may call its fields as it likes."""
    names = ("key", "done", "self", "carried", "more", "from_", "__class__")
    view = View(0, 1)
    judgement = view.read(0, b"t/n", record(1, **dict.fromkeys(names, 1)))
    assert judgement.key.more == dict.fromkeys(names, 1)
