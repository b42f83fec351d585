"""A replica that holds what the log says is found equal; where it does not, the record is named at which they part."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from statechannel.audit.transfer.export_file import ExportFile, read_export, write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.audit.verify import (
    PartWord,
    ReplicaDump,
    ReplicaWord,
    ReplicaWordError,
    VerifiedPartition,
    VerifyStatus,
    check_words,
    checked_fields,
    different,
    explain,
    parse_dump,
    parse_word,
    worst,
)
from statechannel.broker.observe.replica_digest import dump_lines
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from tests.support.replica_server import copy_of
from tests.support.report_logs import log_of_two
from tests.twin import loggen
from tests.twin.wire import Line
from tests.unit.audit.test_story import BUNDLE, Log
from tests.unit.core.against_twin import KNOBS, by_partition, read

LAG_MS = 3_600_000


def dump_of(views: dict[int, View], *, unknown: frozenset[int] = frozenset()) -> ReplicaDump:
    return parse_dump(line.encode() for line in dump_lines(copy_of(views, unknown)))


@pytest.fixture
def log() -> loggen.Log:
    return loggen.generate(3, KNOBS["honest"])


def export_of(log: loggen.Log, folder: Path) -> ExportFile:
    path = folder / "log.jsonl"
    path.write_text(log.export())
    return read_export(path)


def views_of(log: loggen.Log, *, leave_out: tuple[int, int] | None = None, up_to: int = 10**9) -> dict[int, View]:
    views = {}
    for number, lines in by_partition(log).items():
        view = views[number] = View(number, len(log.end_offsets))
        for line in lines:
            if line.offset > up_to:
                break
            if (number, line.offset) == leave_out:
                view.applied = line.offset
                continue
            read(view, line)
    return views


def checked(export: ExportFile, dump: ReplicaDump) -> list[VerifiedPartition]:
    (word,) = check_words(export, [dump.word], compaction_lag_ms=LAG_MS)
    return word


@pytest.mark.parametrize("up_to", [0, 5, 10**9])
def test_a_replica_of_the_same_log_is_equal_at_its_own_offsets(log: loggen.Log, tmp_path: Path, up_to: int) -> None:
    export = export_of(log, tmp_path)
    partitions = checked(export, dump_of(views_of(log, up_to=up_to)))
    assert {partition.status for partition in partitions} == {VerifyStatus.EQUAL}
    assert all(partition.recomputed == partition.digest for partition in partitions)


def id_of(line: Line) -> object:
    try:
        return json.loads(line.value or b"").get("id")
    except (ValueError, AttributeError):
        return None


def accepted_offsets(log: loggen.Log) -> list[tuple[int, int]]:
    results = []
    for number, lines in by_partition(log).items():
        view = View(number, len(log.end_offsets))
        results += [(number, line.offset) for line in lines if read(view, line).verdict is Verdict.ACCEPTED]
    return results


def test_a_record_that_a_replica_did_not_take_in_is_named(log: loggen.Log, tmp_path: Path) -> None:
    export = export_of(log, tmp_path)
    differing = 0
    ids = {(number, line.offset): id_of(line) for number, lines in by_partition(log).items() for line in lines}
    for number, offset in accepted_offsets(log):
        dump = dump_of(views_of(log, leave_out=(number, offset)))
        check = checked(export, dump)[number]
        again = [line.offset for line in by_partition(log)[number] if id_of(line) == ids[number, offset]]
        if check.status is VerifyStatus.EQUAL or len(again) > 1:
            continue  # what came later does not build on it; or it came once more, and was taken in then
        explain(export, check, dump, compaction_lag_ms=LAG_MS)
        assert check.first["offset"] == offset
        assert check.differing
        differing += check.first["how"] == "the log accepts this record, the replica has not applied it"
    assert differing > 10


def test_what_cannot_be_compared_is_neither_equal_nor_different(log: loggen.Log, tmp_path: Path) -> None:
    export, views = export_of(log, tmp_path), views_of(log)
    partitions = checked(export, dump_of(views, unknown=frozenset({0})))
    assert partitions[0].status is VerifyStatus.UNKNOWN
    for view in views.values():
        view.applied += 1_000
    assert {check.status for check in checked(export, dump_of(views))} == {VerifyStatus.BEYOND}


def test_a_compacted_log_tells_the_present_and_not_the_past(tmp_path: Path) -> None:
    log = loggen.generate(3, KNOBS["honest"])
    export = export_of(log.compacted(3, KNOBS["honest"]), tmp_path)
    statuses = {
        up_to: {check.status for check in checked(export, dump_of(views_of(log, up_to=up_to)))} for up_to in (9, 10**9)
    }
    assert VerifyStatus.DIFFERENT not in statuses[9] | statuses[10**9]
    assert VerifyStatus.INCOMPLETE in statuses[9]


def test_what_is_found_of_a_replica_does_not_depend_on_the_others(tmp_path: Path) -> None:
    log = Log()
    log.assigned()
    views = [View(0, 1), View(0, 1)]
    for view, records in zip(views, (log.records[:1], log.records), strict=True):
        for record in records:
            view.read(*record[2:3], *record[4:])
    path = tmp_path / "log.jsonl"
    cleaned = [log.records[0], log.records[2]]  # the later one of the bundle has superseded the earlier
    write_export(path, ExportHeader("t", {0: 3}, 10**12), cleaned, now_ms=lambda: 10**12)
    export, words = read_export(path), [dump_of({0: view}).word for view in views]
    alone = [check_words(export, [word], compaction_lag_ms=LAG_MS)[0][0].status for word in words]
    together = [item.status for (item,) in check_words(export, words, compaction_lag_ms=LAG_MS)]
    assert together == alone == [VerifyStatus.EQUAL, VerifyStatus.INCOMPLETE]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"replica": 2}',
        b'{"replica": 1, "broker": "b", "incarnation": "i", "partitions": {}}',
        b'{"replica": 1, "broker": "b", "incarnation": "i", "partitions": {"1": {"applied": 1, "digest": "x"}}}',
        b'{"replica": 1, "broker": "b", "incarnation": "i", "partitions": {"0": {"applied": true, "digest": "x"}}}',
        b'{"replica": 1, "broker": "b", "incarnation": "i", "partitions": {"0": {"applied": 1, "digest": 5}}}',
        b'{"replica": 1, "broker": "b", "incarnation": "i", "partitions": {"0": {"applied": -2, "digest": "x"}}}',
        b'{"replica": 1, "broker": "b", "incarnation": "i", "partitions": {"0": 7}}',
        b'{"replica": 1, "broker": "b", "incarnation": "i", "partitions": {"x": {"applied": 1, "digest": "x"}}}',
        b'{"replica": 1, "broker": "b", "incarnation": "i", "partitions": {"\xd9\xa0": {"applied": 1, "digest": "x"}}}',
        b'{"replica": 1, "broker": "b", "incarnation": "i", "partitions": [7]}',
        b'{"replica": 1, "broker": "b", "incarnation": 7, "partitions": {"0": {"applied": 1, "digest": "x"}}}',
        b'{"replica": 1, "broker": 7, "incarnation": "i", "partitions": {"0": {"applied": 1, "digest": "x"}}}',
        b'{"replica": 1, "broker": "b", "incarnation": "i", "partitions": {"0": {"applied": 1, "digest": "x"},'
        b' "2": {"applied": 1, "digest": "x"}}}',
    ],
)
def test_what_is_no_word_of_a_replica_is_refused(body: bytes) -> None:
    with pytest.raises(ReplicaWordError, match="the answer is"):
        parse_word(body)


@pytest.mark.parametrize("line", [b'["t/n", 1, "Act', b"{}\n", b"[1,2,3,4,5,6]\n", b'["t/n"]\n', b'"text12"\n'])
def test_a_dump_that_is_cut_short_is_refused(line: bytes) -> None:
    part = {"applied": 1, "digest": "x", "why": ""}
    word = orjson.dumps({"replica": 1, "broker": "b", "incarnation": "i", "partitions": {"0": part}})
    with pytest.raises(ReplicaWordError, match="a line of the dump"):
        parse_dump([word + b"\n", line])


def test_a_dump_that_ends_early_is_refused(log: loggen.Log) -> None:
    lines = [line.encode() for line in dump_lines(copy_of(views_of(log), frozenset()))]
    assert parse_dump(lines).lines == lines[1:]
    with pytest.raises(ReplicaWordError, match="truncated dump"):
        parse_dump(lines[:-1])


def test_a_dump_of_other_lines_than_its_digest_is_refused(log: loggen.Log) -> None:
    lines = [line.encode() for line in dump_lines(copy_of(views_of(log), frozenset()))]
    with pytest.raises(ReplicaWordError, match="lines do not match"):
        parse_dump([*lines[:-1], lines[1]])


def part_of(**fields: Any) -> PartWord:
    parts = {"0": {"applied": 1, "digest": "x"} | fields}
    return parse_word(orjson.dumps({"replica": 1, "broker": "b", "incarnation": "i", "partitions": parts})).partitions[
        0
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, PartWord(1, "x", "")),
        ({"applied": -1, "digest": None, "why": "behind", "keys": 7}, PartWord(-1, None, "behind", 7)),
        ({"why": 7, "keys": "7"}, PartWord(1, "x", "")),
    ],
)
def test_what_a_replica_says_of_a_partition(fields: dict[str, Any], expected: PartWord) -> None:
    assert part_of(**fields) == expected


def test_the_gravest_status_counts() -> None:
    order = [
        VerifyStatus.DIFFERENT,
        VerifyStatus.BEYOND,
        VerifyStatus.INCOMPLETE,
        VerifyStatus.UNKNOWN,
        VerifyStatus.EQUAL,
    ]
    parts = [VerifiedPartition(number, 0, status, None) for number, status in enumerate(order)]
    assert [worst(parts[number:]) for number in range(5)] == order
    assert worst([]) is VerifyStatus.EQUAL
    assert [part.partition for part in different(parts)] == [0]
    assert checked_fields(parts[1])["status"] == "beyond"


def of_short_log(folder: Path, left_out: int) -> tuple[ExportFile, View]:
    """Three records, of which a replica has not taken one in."""
    log, view = Log(), View(0, 1)
    log.assigned()
    for record in log.records:
        if record.offset == left_out:
            view.applied = record.offset
        else:
            view.read(record.offset, record.key, record.value)
    path = folder / "log.jsonl"
    write_export(path, ExportHeader("t", {0: 3}, 10**12), log.records, now_ms=lambda: 10**12)
    return read_export(path), view


def test_a_difference_is_explained_by_both_states(tmp_path: Path) -> None:
    export, view = of_short_log(tmp_path, 2)
    (partition,) = checked(export, dump_of({0: view}))
    assert (partition.status, partition.recomputed == partition.digest) == (VerifyStatus.DIFFERENT, False)
    explain(export, partition, dump_of({0: view}), compaction_lag_ms=LAG_MS)
    assert (partition.differing, partition.dump_applied, partition.why) == (1, 2, "")
    assert (partition.first["offset"], partition.first["key"]) == (2, BUNDLE)
    assert partition.first["log"] | {"id": None} == {
        "version": 3, "state": "Assigned", "owner": "b1", "generation": 3, "from": None, "to": "b1", "id": None,
    }  # fmt: skip
    assert partition.first["replica"]["state"] == "Assigning"


@pytest.mark.parametrize(
    "dump", [{}, {0: PartWord(2, None, "it reads")}, {0: PartWord(2, None, "")}, {0: PartWord(9, "x", "")}]
)
def test_a_dump_that_cannot_explain_says_why(dump: dict[int, PartWord], tmp_path: Path) -> None:
    export, _ = of_short_log(tmp_path, 2)
    partition = VerifiedPartition(0, 2, VerifyStatus.DIFFERENT, "x")
    explain(export, partition, ReplicaDump(ReplicaWord("b", "b-1", dump), []), compaction_lag_ms=LAG_MS)
    assert (partition.first, bool(partition.why)) == (None, True)
    if dump and dump[0].why:
        assert partition.why == dump[0].why


def test_a_dump_that_equals_the_log_says_that_the_difference_is_gone(tmp_path: Path) -> None:
    export, view = of_short_log(tmp_path, 9)
    partition = VerifiedPartition(0, 1, VerifyStatus.DIFFERENT, "x")
    explain(export, partition, dump_of({0: view}), compaction_lag_ms=LAG_MS)
    assert (partition.first, partition.differing, bool(partition.why)) == (None, 0, True)


@pytest.mark.parametrize("vouched", [True, False])
def test_places_of_a_cleaned_log_are_read_as_far_as_a_heartbeat_vouches_for_them(vouched: bool, tmp_path: Path) -> None:
    log = log_of_two(2 * LAG_MS, vouched=vouched)
    last = len(log.records) - 1
    words = []
    for applied in (0, last, last + 1):
        view = View(0, 1)
        for record in log.records[: applied + 1]:
            view.read(record.offset, record.key, record.value)
        view.applied = applied
        words.append(dump_of({0: view}).word)
    path = tmp_path / "log.jsonl"
    left = [record for record in log.records if record.offset != 1]
    write_export(path, ExportHeader("t", {0: last + 1}, log.now_ms), left, now_ms=lambda: log.now_ms)
    found = [part.status for (part,) in check_words(read_export(path), words, compaction_lag_ms=LAG_MS)]
    expected = [VerifyStatus.EQUAL, VerifyStatus.EQUAL if vouched else VerifyStatus.INCOMPLETE, VerifyStatus.BEYOND]
    assert found == expected
