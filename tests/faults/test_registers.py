"""The checker of registers says yes to a sound history and no to each way in which it was falsified by hand."""

import io
import itertools
import random
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from tests.faults.registers import Call, CallKind, Noted, Outcome, misplaced, not_kept, read_journal, wrongly_fenced
from tests.faults.storage import Fences, Storage

TOPIC = "t/n/x"
WHOLE, LOWER, UPPER = (
    f"t/n/{name}" for name in ("0x00000000_0xffffffff", "0x00000000_0x80000000", "0x80000000_0xffffffff")
)
"""The topic lies in the lower half."""
A, B = 11, 22


def opened(generation: int, pid: int, bundle: str = WHOLE, *, accepted: bool = True) -> Noted:
    return Noted(accepted, bundle, generation, "ab"[pid == B], pid)


def put(
    value: int, previous: int | None, generation: int, pid: int, *, accepted: bool = True, bundle: str = WHOLE
) -> Noted:
    return Noted(accepted, bundle, generation, "ab"[pid == B], pid, TOPIC, value, previous)


def call(kind: CallKind, value: int | None, sent: int, got: int, outcome: Outcome = Outcome.OK) -> Call:
    return Call(kind, TOPIC, value, outcome, sent, got, "a", A, 3)


def wrote(value: int, sent: int, got: int, outcome: Outcome = Outcome.OK) -> Call:
    return call(CallKind.WRITE, value, sent, got, outcome)


def read(value: int | None, sent: int, got: int) -> Call:
    return call(CallKind.READ, value, sent, got)


def confirmed(value: int | None, sent: int, got: int) -> Call:
    return call(CallKind.CONFIRMED_READ, value, sent, got)


JOURNAL = [
    opened(3, A),
    put(1, None, 3, A),
    put(2, 1, 3, A),
    opened(6, B),
    put(3, 2, 3, A, accepted=False),
    put(4, 2, 6, B),
    put(6, 4, 6, B),
]
"""a owns at 3, then b at 6; one late write of a is refused."""
CALLS = [
    read(None, 5, 8),
    wrote(1, 10, 20),
    read(1, 12, 15),
    wrote(2, 25, 60),
    read(1, 30, 35),
    read(2, 40, 45),
    wrote(3, 50, 80, Outcome.FENCED),
    wrote(4, 70, 90),
    wrote(5, 70, 75, Outcome.NOT_SERVED),
    wrote(6, 95, 99, Outcome.UNKNOWN),
    read(6, 120, 125),
]


def problems(calls: list[Call], journal: list[Noted]) -> list[str]:
    return [
        *wrongly_fenced(journal),
        *not_kept(calls, journal),
        *(violation.what for violation in misplaced(calls, journal)),
    ]


def test_a_sound_history_has_no_problem():
    assert problems(CALLS, JOURNAL) == []


def without(value: int) -> list[Call]:
    return [operation for operation in CALLS if operation.value != value]


@pytest.mark.parametrize(
    ("calls", "journal", "said"),
    [
        (CALLS, [*JOURNAL[:4], put(3, 2, 3, A), put(4, 3, 6, B), put(6, 4, 6, B)], "was accepted after 6"),
        (CALLS, [*JOURNAL[:5], put(4, 2, 6, B, accepted=False), JOURNAL[6]], "was refused after 6"),
        (CALLS, [*JOURNAL[:4], opened(5, A), *JOURNAL[4:]], "generation 5 of a was accepted after 6"),
        (CALLS, [*JOURNAL[:4], opened(6, A), *JOURNAL[4:]], "two processes opened it at generation 6"),
        (CALLS, [JOURNAL[0], *JOURNAL[2:]], "the write of 1 was acknowledged by a and is lost"),
        (CALLS, [*JOURNAL[:2], put(1, 1, 3, A), *JOURNAL[2:]], "the write of 1 is there 2 times"),
        (
            CALLS,
            [*JOURNAL[:4], put(3, 2, 6, B), put(4, 3, 6, B), JOURNAL[6]],
            "the write of 3 was refused (fenced) and is there",
        ),
        (CALLS, [*JOURNAL, put(5, 6, 6, B)], "the write of 5 was refused (not-served) and is there"),
        (CALLS, [*JOURNAL, put(7, 6, 6, B)], "nobody wrote 7"),
        (CALLS, [*JOURNAL[:5], put(4, 1, 6, B), JOURNAL[6]], "put 4 over 2, and had seen 1"),
        ([*CALLS, read(2, 91, 94)], JOURNAL, "the read of 2 at a"),
        ([*CALLS, confirmed(None, 21, 22)], JOURNAL, "the confirmed-read of None at a"),
        ([*CALLS, read(9, 91, 94)], JOURNAL, "which the storage never had"),
        ([*CALLS, read(4, 61, 62)], JOURNAL, "the write of 4 at a"),
        ([*CALLS, read(4, 71, 72), read(2, 73, 74)], JOURNAL, "the read of 2 at a"),
        ([*without(1), wrote(1, 61, 65)], JOURNAL, "the write of 1 at a"),
        (
            [*without(6), wrote(6, 10, 60), read(6, 120, 125)],
            [*JOURNAL[:5], put(6, 2, 6, B), put(4, 6, 6, B)],
            "the read of 6 at a",
        ),
    ],
    ids=[
        "stale write accepted",
        "newest refused",
        "older generation opens",
        "two at one generation",
        "lost write",
        "doubled write",
        "fenced write stored",
        "unserved write stored",
        "invented write",
        "overwritten unseen",
        "stale read",
        "nothing read after a write",
        "invented read",
        "read before the write was sent",
        "reads that go back",
        "reordered writes",
        "reordered, seen by a read",
    ],
)
def test_a_falsified_history_is_seen(calls, journal, said):
    sentences = problems(calls, journal)
    assert any(said in sentence for sentence in sentences), sentences


def test_a_read_that_is_not_trusted_is_told_and_not_held_against_others():
    calls = [*CALLS, read(1, 91, 92), confirmed(4, 93, 94)]
    violations = list(misplaced(calls, JOURNAL, lambda operation: operation.kind is not CallKind.READ))
    assert [violation.call.value for violation in violations] == [1]
    early = [*CALLS, read(4, 61, 62)]
    assert list(misplaced(early, JOURNAL, lambda operation: operation.kind is not CallKind.READ)) == []


def by_search(calls: list[Call]) -> bool:
    """Whether some order of all calls is that of a register and fits the clocks: the definition itself, for few calls."""

    def fits(order: tuple[Call, ...]) -> bool:
        value = None
        for at, operation in enumerate(order):
            if any(later.over_ns < operation.sent_ns for later in order[at + 1 :]):
                return False
            if operation.kind is CallKind.WRITE:
                value = operation.value
            elif operation.value != value:
                return False
        return True

    return any(fits(order) for order in itertools.permutations(calls))


def test_the_judgement_is_that_of_a_search_over_all_orders():
    """With the storage's order given: some storage order is consistent if and only if the search finds an order."""
    judged = {True: 0, False: 0}
    for seed in range(400):
        rng = random.Random(seed)
        writes = [wrote(value, start := rng.randrange(12), start + rng.randrange(6)) for value in (1, 2)]
        values = rng.choices([None, 1, 2], k=2)
        reads = [read(value, start := rng.randrange(14), start + rng.randrange(5)) for value in values]
        calls = [*writes, *reads]
        orders = [[put(a, None, 3, A), put(b, a, 3, A)] for a, b in ((1, 2), (2, 1))]
        fits = any(not list(misplaced(calls, order)) for order in orders)
        assert fits == by_search(calls), (seed, calls)
        judged[fits] += 1
    assert min(judged.values()) > 40


def test_the_storage_fences_by_place_and_keeps_a_journal(tmp_path: Path):
    out = io.BytesIO()
    storage = Storage(out)

    def ask(do: str, **args: object) -> dict[str, object]:
        return storage.answer({"do": do, "id": 1, "broker": "a", "pid": A, **args})

    def write(value: int, previous: int | None, generation: int, bundle: str) -> object:
        asked = {"topic": TOPIC, "value": value, "previous": previous, "generation": generation, "bundle": bundle}
        return ask("put", **asked)["ok"]

    assert ask("open", bundle=WHOLE, generation=3) == {"ok": True, "values": {}}
    assert write(1, None, 3, WHOLE)
    assert ask("open", bundle=UPPER, generation=6) == {"ok": True, "values": {}}
    assert write(2, 1, 3, WHOLE), "the other half is still open at the parent's generation"
    assert ask("open", bundle=LOWER, generation=6) == {"ok": True, "values": {TOPIC: 2}}
    assert not write(3, 2, 3, WHOLE)
    assert not ask("open", bundle=WHOLE, generation=5)["ok"]
    assert ask("confirm", topic=TOPIC, generation=6)["ok"]
    assert not ask("confirm", topic=TOPIC, generation=5)["ok"]
    assert write(4, 2, 6, LOWER)
    path = tmp_path / "storage.jsonl"
    path.write_bytes(out.getvalue())
    journal = read_journal(path)
    expected = [(1, True), (2, True), (3, False), (4, True)]
    assert [(entry.value, entry.accepted) for entry in journal if entry.topic] == expected
    calls = [wrote(value, value * 10, value * 10 + 5) for value in (1, 2, 4)]
    assert problems([*calls, replace(wrote(3, 30, 35), outcome=Outcome.FENCED)], journal) == []
    assert orjson.loads(out.getvalue().splitlines()[0])["bundle"] == WHOLE


def test_fences_only_rise():
    fences = Fences()
    fences.raise_to(10, 20, 5)
    fences.raise_to(0, 15, 3)
    assert [fences.level_at(position) for position in (0, 9, 10, 14, 15, 19, 20)] == [3, 3, 5, 5, 5, 5, 0]
    assert (fences.highest(0, 10), fences.highest(0, 11), fences.highest(20, 99)) == (3, 5, 0)
