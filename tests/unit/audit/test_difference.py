"""Differences between accepted states, by their lines; and the record at which a replica and the log part."""

import orjson
import pytest

from statechannel.audit.difference import AcceptedState, Parting, StateDifferences, key_partition, sides
from statechannel.protocol.bundle import partition_of
from statechannel.protocol.digest import line
from statechannel.protocol.view import View
from tests.support.report_logs import LogMaker

A, B, C, D = (f"t/n/0x{number}0000000_0x{number + 1}0000000" for number in range(4))


def state(key: str, version: int = 3, word: str = "Assigned", from_: str | None = None, to: str | None = "b1") -> bytes:
    return orjson.dumps([key, version, word, from_, to, f"r{version}"]) + b"\n"


@pytest.mark.parametrize(
    ("accepted", "owner", "generation", "live"),
    [
        (AcceptedState(A, 3, "Assigned", "b1", "b2", "r"), "b2", 3, True),
        (AcceptedState(A, 4, "Releasing", "b1", "b2", "r"), "b1", 3, True),
        (AcceptedState(A, 4, "Splitting", "b1", None, "r"), "b1", 3, True),
        (AcceptedState(A, 4, "Assigning", "b1", "b2", "r"), None, None, True),
        (AcceptedState(A, 4, "Unassigned", "b1", None, "r"), None, None, True),
        (AcceptedState(A, 4, "Deleted", "b1", None, "r"), None, None, False),
    ],
)
def test_an_accepted_state_has_an_owner_while_it_is_served(
    accepted: AcceptedState, owner: str | None, generation: int | None, live: bool
) -> None:
    assert (accepted.owner, accepted.generation, accepted.is_live) == (owner, generation, live)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([], [], []),
        ([1, 2], [1, 2], []),
        ([1], [], [(1, None)]),
        ([], [1], [(None, 1)]),
        ([1, 3], [2, 3], [(1, None), (None, 2)]),
        ([2, 3], [1, 3], [(None, 1), (2, None)]),
        ([1, 2, 4], [1, 3, 4], [(2, None), (None, 3)]),
        ([1, 2], [1, -2], [(2, -2)]),
        ([1, 2, 3], [-1, -2, -3], [(1, -1), (2, -2), (3, -3)]),
    ],
)
def test_lines_that_differ_are_paired_by_key(
    before: list[int], after: list[int], expected: list[tuple[int | None, int | None]]
) -> None:
    """A number is a key; a negative one the same key in another version."""

    def of(number: int) -> bytes:
        return state(f"t/n/{abs(number)}", 3 if number > 0 else 4)

    names = {of(number): number for numbers in (before, after) for number in numbers}
    found = [
        tuple(None if side is None else names[side] for side in pair) for pair in sides(map(of, before), map(of, after))
    ]
    assert found == expected


BEFORE = [
    state("t/m", 1, "Active", to=None),
    state("t/n", 1, "Active", to=None),
    state(A),
    state(B, 4, "Releasing", "b1", "b2"),
    state(C, 5, "Unassigned", "b1", None),
    state("t/o", 1, "Deleted", to=None),
    state("t/r", 1, "Deleted", to=None),
]
AFTER = [
    state("t/m", 9, "Deleted", to=None),
    state("t/n", 1, "Active", to=None),
    state(A, 6, to="b2"),
    state(B, 4, "Releasing", "b1", "b3"),
    state(D, 7, "Deleted", "b2", None),
    state("t/o", 2, "Active", to=None),
    state("t/p", 1, "Active", to=None),
    state("t/q", 2, "Deleted", to=None),
    state("t/r", 3, "Deleted", to=None),
]


def test_each_difference_is_a_row_and_counted() -> None:
    differences = StateDifferences(1)
    rows = [
        (
            row["key"],
            row["change"],
            row["differs"],
            row["before"] and row["before"]["version"],
            row["after"] and row["after"]["to"],
        )
        for row in differences.rows(BEFORE, AFTER)
    ]
    assert rows == [
        ("t/m", "went", ["state"], 1, None),
        (A, "changed", ["owner", "generation"], 3, "b2"),
        (B, "changed", [], 4, "b3"),
        (C, "went", [], 5, None),
        (D, "came-and-went", [], None, None),
        ("t/o", "came", ["state"], 1, None),
        ("t/p", "came", [], None, None),
        ("t/q", "came-and-went", [], None, None),
        ("t/r", "changed", [], 1, None),
    ]
    assert dict(+differences.counts) == {
        "namespaces_went": 1, "namespaces_state": 2, "bundles_changed": 2, "bundles_owner": 1, "bundles_generation": 1,
        "bundles_went": 1, "bundles_came-and-went": 1, "namespaces_came": 2, "namespaces_came-and-went": 1,
        "namespaces_changed": 1,
    }  # fmt: skip
    assert dict(+differences.changed) == {"bundles_owner": 1, "bundles_generation": 1}
    assert differences.moved() == {"b1": {"before": 2, "after": 1}, "b2": {"before": 0, "after": 1}}


def test_partitions_whose_states_are_unknown_are_left_out() -> None:
    unknown = frozenset({partition_of("t/n", 8)})
    others = {name for name in ("t/m", "t/o", "t/p", "t/q", "t/r") if partition_of(name, 8) not in unknown}
    differences = StateDifferences(8, unknown)
    assert {row["key"] for row in differences.rows(BEFORE, AFTER)} == others
    every = {row["key"]: row["partition"] for row in StateDifferences(8).rows(BEFORE, AFTER)}
    assert every == {name: partition_of("/".join(name.split("/")[:2]), 8) for name in every}
    assert key_partition("nonsense", 8) == -1


def parted(log: LogMaker, claimed: dict[str, bytes | None], joined_to: int = -1) -> tuple[int, str, str]:
    """Where a replica that claims these lines parts from the log."""
    view, offsets = View(0, 1), {}
    for record in log.records:
        view.read(record.offset, record.key, record.value)
    for name in claimed:
        key = view.get(name)
        offsets |= {} if key is None else {name: key.offset}
    parting, view = Parting(claimed, offsets), View(0, 1)
    for record in log.records:
        judgement = view.read(record.offset, record.key, record.value)
        if record.offset > joined_to:
            parting.observe(record, judgement)
    return parting.first()


def at(log: LogMaker, name: str, until: int) -> bytes | None:
    """Line of a key after the records below an offset."""
    view = View(0, 1)
    for record in log.records[:until]:
        view.read(record.offset, record.key, record.value)
    key = view.get(name)
    return None if key is None else line(key)


@pytest.fixture
def log() -> LogMaker:
    """Offset 0 the namespace; 1 to 3 the first bundle, 4 and 5 the second; 6 to 8 a transfer of the first, 9 a copy of 6."""
    log = LogMaker()
    first, second = log.namespace("t/n", 2)
    log.move(first, "Assigning", to="b1")
    log.move(first, "Assigned", to="b1")
    log.move(first, "Assigned", to="b1")
    log.assign(second, "b2")
    log.transfer(first, "b2")
    log.put(first, log.records[6].value)
    log.put(first, b"junk")
    return log


FIRST, SECOND = "t/n/0x00000000_0x80000000", "t/n/0x80000000_0xffffffff"


@pytest.mark.parametrize(
    ("claims", "offset", "key"),
    [
        ({FIRST: 8}, 8, FIRST),
        ({FIRST: 7}, 7, FIRST),
        ({FIRST: 3}, 3, FIRST),
        ({FIRST: 1}, 1, FIRST),
        ({FIRST: 0}, 0, FIRST),
        ({SECOND: 5}, 5, SECOND),
        ({SECOND: 1}, 4, SECOND),
        ({FIRST: 8, SECOND: 5}, 5, SECOND),
        ({"t/n": 0}, 0, "t/n"),
        ({"t/n": 0, FIRST: 0, SECOND: 0}, 0, "t/n"),
    ],
)
def test_a_replica_that_was_left_behind_parts_at_the_record_that_it_lacks(
    log: LogMaker, claims: dict[str, int], offset: int, key: str
) -> None:
    """`claims`: the replica has of each key what the log had before the record at this offset."""
    found = parted(log, {name: at(log, name, until) for name, until in claims.items()})
    missed = parted(log, {FIRST: at(log, FIRST, 8)})[2]
    assert found == (offset, key, missed)


def test_a_replica_that_missed_a_split_or_a_deletion_parts_there(log: LogMaker) -> None:
    halves = log.split(FIRST)
    split = len(log.records) - 1
    before = {name: at(log, name, split) for name in (FIRST, *halves)}
    assert parted(log, before)[:2] == (split, FIRST)
    assert parted(log, dict.fromkeys(halves))[:2] == (split, min(halves))
    for name in (*halves, SECOND):
        log.unload(name)
    deleted = len(log.records)
    log.move("t/n", "Deleted")
    gone = {name: at(log, name, deleted) for name in ("t/n", SECOND, *halves)}
    assert parted(log, gone)[:2] == (deleted, "t/n")
    del gone["t/n"]
    assert parted(log, gone)[:2] == (deleted, min(gone))
    log.namespace("t/n", 2)
    assert parted(log, gone)[:2] == (deleted, min(gone))
    log.namespace("t/m", 1)
    assert parted(log, gone)[:2] == (deleted, min(gone))


def claimed_by(log: LogMaker, offset: int) -> dict[str, bytes | None]:
    """The line of a replica that has accepted the record at an offset."""
    record = log.records[offset]
    value, name = orjson.loads(record.value or b""), (record.key or b"").decode()
    return {name: orjson.dumps([name, *(value[word] for word in ("version", "state", "from", "to", "id"))]) + b"\n"}


def test_a_replica_that_let_the_loser_of_a_race_win_has_missed_the_winner() -> None:
    log = LogMaker()
    bundle = log.namespace("t/n", 1)[0]
    log.put("t/n", log.proposal("t/n", "Active", children=["0x00000000_0xffffffff"]) | {"version": 1, "base": None})
    log.assign(bundle, "b1")
    loser = log.proposal(bundle, "Releasing", **{"from": "b1"}, to="b3") | {"id": "loser"}
    log.move(bundle, "Releasing", **{"from": "b1"}, to="b2")
    log.put(bundle, loser)
    log.put(bundle, loser | {"id": "odd", "base": "never"})
    missed, accepted, never = (parted(log, claimed_by(log, offset)) for offset in (5, 6, 2))
    assert (missed[0], accepted[0]) == (4, 6)
    assert parted(log, claimed_by(log, 1))[::2] == (0, missed[2])
    assert len({missed[2], accepted[2], never[2]}) == 2
    other = {bundle: state(bundle, 4, "Releasing", "b1", "b9")}
    last = parted(log, other)
    assert last[0] == 6
    assert last[2] not in (missed[2], accepted[2])
    assert parted(log, other, joined_to=9)[0] == 4
    assert parted(log, {"t/x": state("t/x")}, joined_to=9)[0] == -1


def test_lines_are_in_the_order_of_their_whole_keys() -> None:
    before, after = state("a/z"), state("b/a")
    assert list(sides([before], [after])) == [(before, None), (None, after)]
    assert list(sides([after], [before])) == [(None, before), (after, None)]


def test_a_bundle_that_the_log_never_had_parts_where_its_namespace_began(log: LogMaker) -> None:
    log.beat("b1")
    for name in ("t/n/0x00000000_0x10000000", "t/n/junk"):
        assert parted(log, {name: state(name)})[0] == 0
    log.split(FIRST)
    for name in ("t/n/0x00000000_0x10000000", "t/n/junk"):
        assert parted(log, {name: state(name)})[0] == 0


def test_the_first_record_may_be_the_one_that_only_the_replica_accepts() -> None:
    log = LogMaker()
    log.put(FIRST, log.proposal(FIRST, "Releasing", **{"from": "b1"}) | {"version": 4, "base": "never"})
    log.namespace("t/n", 2)
    assert parted(log, claimed_by(log, 0))[0] == 0
