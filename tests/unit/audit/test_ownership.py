"""What single records show of a bundle's owners, and the trail of records that leads to the state of a joining reader."""

from typing import Any

import orjson
import pytest
from ulid import ULID

from statechannel.audit.ownership import (
    STEPS_MAX,
    Trails,
    never_served,
    process_started_ms,
    splits_of,
    was_served,
    writing_process,
)
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.record import Record
from statechannel.protocol.view import View
from statechannel.stories.bundle import LostOwner, lost_of
from tests.support.lone_engine import heartbeat
from tests.support.report_logs import LogMaker

KEY = b"t/n/0x00000000_0xffffffff"


def decoded(version: int, state: str, base: str | None = "x", **fields: Any) -> Record:
    head: dict[str, Any] = {"format": 1, "kind": "proposal", "id": f"r{version}", "covers": 0, "version": version}
    head |= {"by": {"broker": "b", "incarnation": "b-1"}, "base": base, "state": state, "from": None, "to": None}
    return View(0, 1).read(0, KEY, orjson.dumps(head | fields)).record


def restated(version: int, state: str, accepted: str, **fields: Any) -> Record:
    return decoded(version, state, kind="assert", id="a", asserts=accepted, **fields)


RELEASING = decoded(4, "Releasing", **{"from": "b"})
UNASSIGNED = decoded(5, "Unassigned", "r4", **{"from": "b"})
ASSIGNED = decoded(6, "Assigned", "r5", to="c")


@pytest.mark.parametrize(
    ("steps", "trail"),
    [
        ([], []),
        ([RELEASING], [0]),
        ([RELEASING, UNASSIGNED], [0, 1]),
        ([RELEASING, decoded(5, "Unassigned", "r3", **{"from": "b"})], [1]),
        ([RELEASING, decoded(6, "Unassigned", "r4", **{"from": "b"})], [1]),
        ([RELEASING, UNASSIGNED, ASSIGNED], [2]),
        ([UNASSIGNED, ASSIGNED, decoded(7, "Releasing", "r6", **{"from": "c"})], [1, 2]),
        ([RELEASING, restated(4, "Releasing", "r4", **{"from": "b"})], [0]),
        ([RELEASING, restated(4, "Releasing", "r9", **{"from": "b"})], [1]),
        ([RELEASING, restated(4, "Releasing", "r4", **{"from": "b"}, to="c")], [1]),
        ([restated(4, "Releasing", "r4", **{"from": "b"})] * 2, [0]),
        ([restated(4, "Releasing", "r4", **{"from": "b"}), UNASSIGNED], [1]),
        ([restated(4, "Releasing", "a", **{"from": "b"}), decoded(5, "Unassigned", "a", **{"from": "b"})], [1]),
    ],
)
def test_a_trail_goes_on_while_each_record_builds_on_the_one_before(steps: list[Record], trail: list[int]) -> None:
    trails = Trails()
    for offset, step in enumerate(steps):
        trails.take(RecordRead(Topic.CHANNEL, 0, offset, 1_000 + offset, KEY, b""), step)
        trails.take(RecordRead(Topic.CHANNEL, 0, 100 + offset, 0, None, b""), step)
    assert [record.offset for record, _ in trails.of(KEY)] == trail
    assert trails.of(b"other") == []
    times = [trails.time_ms(offset) for offset in range(len(steps))]
    held = [0 if offset < min(trail, default=0) else 1_000 + offset for offset in range(len(steps))]
    assert times == held
    assert trails.time_ms(99) == trails.time_ms(100) == 0


def test_a_trail_is_bounded() -> None:
    trails = Trails()
    for version in range(2, STEPS_MAX + 3):
        step = decoded(version, "Unassigned", f"r{version - 1}", **{"from": "b"})
        trails.take(RecordRead(Topic.CHANNEL, 0, version, 0, KEY, b""), step)
        assert len(trails.of(KEY)) == (version - 1 if version < STEPS_MAX + 2 else 1)


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ({"broker": "b", "incarnation": "b-1", "last_heard_ms": 0}, LostOwner("b", "b-1", 0)),
        ({"broker": "b", "incarnation": 7, "last_heard_ms": 5}, LostOwner("b", None, 5)),
        ({"broker": "b", "last_heard_ms": 5}, LostOwner("b", None, 5)),
        ({"broker": "b", "last_heard_ms": -1}, None),
        ({"broker": "b", "last_heard_ms": True}, None),
        ({"broker": 7, "last_heard_ms": 5}, None),
        ("b", None),
    ],
)
def test_the_lost_owner_of_a_record(lost: object, expected: LostOwner | None) -> None:
    assert lost_of(decoded(4, "Assigning", to="c", lost=lost)) == expected


def test_the_process_that_wrote_a_record() -> None:
    view = View(0, 1)
    lines = [(b"!heartbeat", heartbeat("x-1", 0)), (b"!heartbeat", b"junk"), (KEY, b"junk")]
    lines.append((KEY, orjson.dumps(ASSIGNED.raw)))
    records = [RecordRead(Topic.CHANNEL, 0, offset, 0, key, value) for offset, (key, value) in enumerate(lines)]
    found = [writing_process(record, view.read(record.offset, record.key, record.value)) for record in records]
    assert found == [("x", "x-1"), None, None, ("b", "b-1")]
    assert [process_started_ms(name) for name in (str(ULID.from_timestamp(5.0)), "b-1")] == [5_000, None]


def test_the_parents_of_split_bundles() -> None:
    log = LogMaker()
    bundle, other = log.namespace("t/n", 2)
    log.assign(bundle, "b1")
    children = log.split(bundle, 3)
    log.assign(other, "b1")
    log.move(other, "Splitting", **{"from": "b1"})
    found = {key.decode(): parent.name for key, parent in splits_of(log.view).items()}
    assert found == dict.fromkeys(children, bundle)


@pytest.mark.parametrize(
    ("first", "split", "was", "never"),
    [
        (RELEASING, False, True, False),
        (RELEASING, True, True, False),
        (decoded(2, "Releasing", **{"from": "b"}), False, True, False),
        (UNASSIGNED, True, True, False),
        (UNASSIGNED, False, False, False),
        (decoded(3, "Unassigned", **{"from": "b"}), False, False, True),
        (decoded(3, "Unassigned", **{"from": "b"}), True, True, False),
        (decoded(4, "Unassigned", **{"from": "b"}), False, False, False),
        (decoded(5, "Assigning", to="c", **{"from": "b"}), False, True, False),
        (decoded(5, "Assigning", to="c"), False, False, False),
        (decoded(5, "Assigning", to="c", **{"from": "b"}, forced=True), False, False, False),
        (decoded(5, "Unassigned", **{"from": "b"}, flow="unload"), False, True, False),
        (decoded(5, "Unassigned", **{"from": "b"}, flow="assignment"), False, False, False),
    ],
)
def test_whether_a_bundle_had_been_served_before_the_first_record_that_is_left(
    first: Record, split: bool, was: bool, never: bool
) -> None:
    log = LogMaker()
    parent = log.view.get(log.namespace("t/n", 1)[0]) if split else None
    assert (was_served(first, parent), never_served(first, parent, 1)) == (was, never)
