"""What a view costs: memory by the bundle, and work that does not grow with the number of bundles (counted, not timed)."""

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import orjson

from statechannel.protocol.bundle import children_of, namespace_bounds, partition_of
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View

LIMIT_SIZE_BYTES = 64 * 2**20


def value(**fields: Any) -> bytes:
    by = {"broker": "broker-1", "incarnation": "01JABCDEFGHJKMNPQRSTVWXYZ0"}
    record = {"format": 1, "kind": "proposal", "covers": 2**40, "by": by, "flow": "assignment"} | fields
    return orjson.dumps(record)


def create(view: View, name: str, count: int) -> list[str]:
    children = children_of(namespace_bounds(count))
    record = value(id=f"create-{name[2:]}", version=1, base=None, state="Active", children=children)
    assert view.read(view.applied + 1, name.encode(), record).verdict is Verdict.ACCEPTED
    return children


def assign(view: View, name: str, child: str, broker: str) -> None:
    key = f"{name}/{child}".encode()
    number = view.applied + 1
    base = f"create-{name[2:]}/{child}"
    for version, state in ((2, "Assigning"), (3, "Assigned")):
        record_id = f"01JABCDEFGHJKMNPQR{number:07d}{version}"
        fields = {"id": record_id, "version": version, "base": base, "state": state, "from": None, "to": broker}
        assert view.read(view.applied + 1, key, value(**fields)).verdict is Verdict.ACCEPTED
        base = record_id


def test_sixty_five_thousand_assigned_bundles_fit_into_64_mib() -> None:
    view = View(0, 1)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for name in ("t/a", "t/b"):
            for index, child in enumerate(create(view, name, 32_500)):
                assign(view, name, child, f"broker-{index % 100}")
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(1 for key in view.live() if key.state == "Assigned") == 65_000
    assert after - before < LIMIT_SIZE_BYTES, f"{(after - before) / 2**20:.1f} MiB"


def calls_of(act: Callable[[], object]) -> int:
    """Number of calls, Python's and C's, that `act` makes."""
    number = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()  # a collection calls finalizers and callbacks of others
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(before)
        gc.enable()
    return number


def costs(bundles: int) -> dict[str, int]:
    """Calls by kind of record on a view of so many bundles, all of them Assigned and with a debt each."""
    view = View(0, 1)
    partition_of.cache_clear()
    children = create(view, "t/a", bundles)
    for child in children:
        assign(view, "t/a", child, "broker-1")
    for child in children[: bundles // 2]:
        view.read(view.applied + 1, f"t/a/{child}".encode(), b"junk")
    name = f"t/a/{children[bundles // 2]}".encode()
    held = view.keys[name]

    def move(state: str, from_: str | None, to: str | None, **more: Any) -> bytes:
        fields = {"id": f"m{view.applied}", "version": held.version + 1, "base": held.accepted_id, "state": state}
        return value(**fields | {"from": from_, "to": to} | more)

    def read(record: bytes | None, verdict: Verdict, key: bytes = name) -> int:
        verdicts: list[Verdict] = []
        calls = calls_of(lambda: verdicts.append(view.read(view.applied + 1, key, record).verdict))
        assert verdicts == [verdict]
        return calls

    lower, upper = children[bundles // 2].split("_")
    middle = f"0x{(int(lower, 16) + int(upper, 16)) // 2:08x}"
    return {
        "rejected": read(move("Deleted", None, None, children=[]), Verdict.ILLEGAL_MOVE),
        "undecodable": read(b"junk", Verdict.UNDECODABLE),
        "resumed": read(move("Assigned", None, "broker-1"), Verdict.ACCEPTED),
        "released": read(move("Releasing", "broker-1", "b2"), Verdict.ACCEPTED),
        "assigning": read(move("Assigning", "broker-1", "b2"), Verdict.ACCEPTED),
        "assigned": read(move("Assigned", "broker-1", "b2"), Verdict.ACCEPTED),
        "splitting": read(move("Splitting", "b2", None), Verdict.ACCEPTED),
        "namespace in use": read(value(id="d", version=2, base="x", state="Deleted"), Verdict.STALE_VERSION, b"t/a"),
        "null": read(None, Verdict.UNDECODABLE),
        "split": read(
            move("Deleted", "b2", None, children=[f"{lower}_{middle}", f"{middle}_{upper}"]), Verdict.ACCEPTED
        ),
    }


def test_a_record_costs_the_same_among_few_bundles_and_among_many() -> None:
    costs(16)  # whatever is made on first use
    few, many = costs(16), costs(4096)
    # The sorted ring is a list of lists: a split may divide one of them, and bisects two.
    assert many.pop("split") <= few.pop("split") + 10
    assert many == few
    assert max(many.values()) < 150
