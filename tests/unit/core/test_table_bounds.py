"""Tables of a reader that others fill: they are bounded, and what is forgotten changes nothing that anybody judges."""

from typing import Any

import orjson
import pytest

from statechannel.protocol import view as module
from statechannel.protocol.bounded import remember
from statechannel.protocol.bulk_fold import read_many
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from statechannel.protocol.view_rows import dump, restore
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, LoneEngine

WHOLE = "0x00000000_0xffffffff"


def log_of(writers: int) -> list[RecordRead]:
    """One bundle goes to and fro; every record is of another process, and the first one comes again at the end."""
    records, base = [RecordRead(Topic.CHANNEL, 0, 0, 0, NAMESPACE, CREATED)], f"ns1/{WHOLE}"
    for number in range(1, writers + 1):
        moved = {"from": None, "to": "z"} if number % 2 else {"from": "z", "to": None}
        value: dict[str, Any] = {
            "format": 1, "kind": "proposal", "id": f"r{number}", "covers": number - 1, "version": number + 1, "base": base,
            "by": {"broker": "z", "incarnation": f"z{number % (writers - 1)}"},
            "state": "Assigning" if number % 2 else "Unassigned", **moved,
        }  # fmt: skip
        base = f"r{number}"
        records.append(RecordRead(Topic.CHANNEL, 0, number, 0, BUNDLE, orjson.dumps(value)))
    return records


def judged(records: list[RecordRead]) -> View:
    view = View(0, 1)
    assert {view.read(read.offset, read.key, read.value).verdict for read in records} == {Verdict.ACCEPTED}
    return view


@pytest.mark.parametrize("limit", [1, 3, 10_000])
def test_writers_are_bounded_and_no_state_hangs_on_who_is_forgotten(monkeypatch: pytest.MonkeyPatch, limit: int):
    records = log_of(50)
    whole = judged(records)
    assert len(whole.writers) > 40
    monkeypatch.setattr(module, "WRITERS_MAX", limit)
    view, bulk = judged(records), View(0, 1)
    assert read_many(bulk, records, 0, len(records)) == len(records)
    for item in (view, bulk, restore(0, 1, dump(whole), whole.applied)):
        assert len(item.writers) <= limit
        assert list(dump(item)) == list(dump(whole))


def test_a_flood_of_registry_names_makes_nobody_absent() -> None:
    engine = LoneEngine([(NAMESPACE, CREATED, 1000)], members_max=20)
    engine.run(8)
    engine.hear("b")
    assert engine.engine.context.is_lost("nobody")
    for number in range(100):
        engine.hear(f"x{number}")
    engine.hear("c")
    members = engine.engine.presence.members
    assert len(members.alive) == 20
    assert {"a", "b"} <= set(members.alive)
    assert engine.events.count("registry.full") == 1
    assert not engine.engine.context.is_lost("c"), "it is heard, and there is no room for it"
    for _ in range(14):
        engine.hear("b")
        engine.hear("c")
        engine.run(1)
    assert set(members.alive) == {"a", "b", "c"}
    assert engine.engine.context.is_lost("nobody")
    assert not engine.engine.context.is_lost("c")


@pytest.mark.parametrize("limit", [1, 3, 15, 16, 100, 1_000])
def test_a_full_table_keeps_its_newest_and_drops_an_eighth_of_the_oldest_at_most(limit: int) -> None:
    table: dict[int, int] = {}
    for number in range(3 * limit):
        remember(table, number, -number, limit)
        least = min(number + 1, limit - limit // 8)
        assert least <= len(table) <= limit
        assert list(table) == list(range(number + 1 - len(table), number + 1))
    oldest = next(iter(table))
    remember(table, oldest, 7, limit)
    assert list(table)[-1] == oldest, "what is put in again is the newest"
    assert table[oldest] == 7
