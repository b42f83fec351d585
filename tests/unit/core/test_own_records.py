"""What becomes of this broker's own records where they are no records, and of closing marks that outlived their reason."""

import orjson

from statechannel.engine.commands import CreateNamespace, DeleteNamespace, Lookup, Unload
from statechannel.protocol.bundle import namespace_bounds
from statechannel.protocol.log import Topic
from tests.scenarios.world import World

WHOLE = "0x00000000_0xffffffff"
LAST_VERSION = 2**53 - 1


def running(*brokers: str) -> World:
    world = World()
    for broker in brokers:
        world.start(broker)
    world.run(8)
    world.lines.clear()
    return world


def test_a_record_of_ours_that_nobody_can_decode_is_rejected_and_not_waited_for() -> None:
    world = running("a")
    for number in range(5):
        world.ask("a", CreateNamespace("t/x", (-1, 0xFFFFFFFF), f"op{number}", 5.0), f"create {number}")
        world.run(1)
    answers = [line for line in world.lines if "answers" in line]
    assert len(answers) == 5
    assert all("rejected (undecodable)" in answer for answer in answers)
    assert len(world.process("a").engine.proposals) == 0


def test_a_namespace_at_the_end_of_all_versions_costs_no_records() -> None:
    world = running("a")
    by = {"broker": "h", "incarnation": "h"}
    hostile = {"format": 1, "kind": "proposal", "id": "H1", "covers": 0, "by": by, "version": LAST_VERSION}
    hostile |= {"base": None, "state": "Active", "children": [WHOLE]}
    world.append(Topic.CHANNEL, 0, b"t/h", orjson.dumps(hostile))
    world.ask("a", Lookup("t/h/topic", 10.0), "lookup")
    world.run(12)
    assert not [line for line in world.lines if f"t/h/{WHOLE}" in line and "Assigning" in line]
    assert any("answers lookup" in line and "owned" not in line for line in world.lines)
    assert len(world.process("a").engine.proposals) == 0


def test_the_records_of_a_namespace_say_why_it_was_created_and_deleted() -> None:
    world = running("a")
    world.ask("a", CreateNamespace("t/n", tuple(namespace_bounds(1)), "op1", 5.0, "for the tills"), "create")
    world.run(1)
    world.ask("a", Lookup("t/n/topic", 5.0), "lookup")
    world.run(1)
    world.ask("a", DeleteNamespace("t/n", "op2", 100.0, "ticket 7"), "delete")
    world.run(3)
    records = [orjson.loads(record.value) for record in world.logs[Topic.CHANNEL, 0].entries if record.value]
    reasons = [
        (record.get("state"), record.get("reason")) for record in records if record.get("operation") in ("op1", "op2")
    ]
    assert reasons[0] == ("Active", "for the tills")
    assert ("Releasing", "ticket 7") in reasons
    assert ("Deleted", "ticket 7") in reasons


def test_who_joins_after_a_namespace_was_created_anew_does_not_believe_its_old_closing_mark() -> None:
    world = running("a")
    world.ask("a", CreateNamespace("t/n", tuple(namespace_bounds(1)), "op1", 5.0), "create")
    world.run(1)
    world.ask("a", DeleteNamespace("t/n", "op2", 100.0), "delete")
    world.run(2)
    world.ask("a", CreateNamespace("t/n", tuple(namespace_bounds(1)), "op3", 5.0), "create again")
    world.run(1)
    world.start("b")
    world.run(8)
    assert not world.process("b").engine.closing_marks.holds("t/n")
    world.ask("b", Lookup("t/n/topic", 3.0), "lookup")
    world.run(4)
    assert any("answers lookup: owned by" in line for line in world.lines)


def test_names_and_reasons_that_are_no_unicode_are_refused_or_mended() -> None:
    world = running("a")
    world.ask("a", CreateNamespace("t/n", tuple(namespace_bounds(1)), "op1", 5.0), "create")
    world.run(1)
    world.ask("a", Lookup("t/n/topic", 5.0), "lookup")
    world.run(1)
    world.lines.clear()
    world.ask("a", Lookup("t/n/\ud800", 5.0), "bad lookup")
    world.ask("a", DeleteNamespace("t/\ud800", "op2", 5.0), "bad delete")
    world.ask("a", Unload("t/n/topic", "op3", 5.0, "because \ud800" + "x" * 1_000_000), "unload")
    world.run(1)
    result = "\n".join(world.lines)
    assert "bad lookup: not found" in result
    assert "bad delete: not found" in result
    assert "unload: started op3" in result
