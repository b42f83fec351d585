"""Intervals of service: read from a process's own record, widened by what it told clients, and compared."""

from pathlib import Path

import orjson

from tests.faults.service import Check, Service, overlaps, read_record, widen

WHOLE, LOWER, UPPER = (
    f"t/n/{name}" for name in ("0x00000000_0xffffffff", "0x00000000_0x80000000", "0x80000000_0xffffffff")
)


def served(pid: int, bundle: str, generation: int, begin_ns: int, end_ns: int) -> Service:
    return Service("ab"[pid - 1], pid, bundle, generation, begin_ns, end_ns)


def test_a_record_is_read_as_intervals_from_the_first_to_the_last_yes(tmp_path: Path):
    lines = [
        {"at_ns": 5},
        {"at_ns": 10, "serves": {LOWER: 3}},
        {"at_ns": 20},
        {"at_ns": 30, "serves": {LOWER: 3, UPPER: 4}},
        {"at_ns": 40},
        {"at_ns": 50, "serves": {LOWER: 5}},
        {"at_ns": 60},
    ]
    path = tmp_path / "b1-1.served"
    path.write_bytes(b"\n".join(map(orjson.dumps, lines)) + b'\n{"at_ns": 7')
    services = read_record(path, "a", 1)
    expected = [served(1, LOWER, 3, 10, 40), served(1, UPPER, 4, 30, 40), served(1, LOWER, 5, 50, 60)]
    assert sorted(services, key=lambda service: (service.begin_ns, service.generation)) == expected
    assert read_record(tmp_path / "never-written", "a", 1) == []


def test_what_clients_were_told_outside_an_interval_is_one_of_its_own():
    services = widen([served(1, LOWER, 3, 10, 40)], [Check("a", 1, LOWER, 3, 40), Check("a", 1, LOWER, 3, 55)])
    assert services == [served(1, LOWER, 3, 10, 40), served(1, LOWER, 3, 55, 55)]


def test_intervals_overlap_where_two_processes_share_a_place_and_a_moment():
    def seen(*services: Service) -> int:
        return len(list(overlaps(services)))

    first = served(1, WHOLE, 3, 10, 40)
    assert seen(first, served(2, WHOLE, 5, 41, 60)) == 0
    assert seen(first, served(2, WHOLE, 5, 40, 60)) == 1
    assert seen(served(2, UPPER, 5, 20, 25), first) == 1
    assert seen(first, served(1, UPPER, 4, 20, 60)) == 0, "one process alone"
    assert seen(served(1, LOWER, 4, 10, 60), served(2, UPPER, 4, 10, 60)) == 0
    assert seen(first, served(2, WHOLE.replace("t/n", "t/m"), 5, 10, 60)) == 0
    assert seen(served(1, WHOLE, 3, 10, 99), served(2, WHOLE, 5, 20, 30), served(2, WHOLE, 7, 40, 50)) == 2
