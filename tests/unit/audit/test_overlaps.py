"""Times in which two processes may have served one bundle."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from statechannel.audit.incidents import ChannelIncidents
from statechannel.audit.local import audit_export, owner_then
from statechannel.audit.moments import AsOf
from statechannel.audit.overlaps import Succession, Successions, WrittenAgain, overlap_rows, overlap_sums
from statechannel.audit.transfer.export_file import read_export
from statechannel.cli.main import app
from statechannel.protocol.bundle import partition_of
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View
from statechannel.stories.processes import WritersHeard
from tests.support.report_logs import LogMaker

HEARD_AGO_MS = 6_000


def paused() -> tuple[LogMaker, list[str], int]:
    """b2 is lost with two bundles, and writes a heartbeat 80 s later; returns the log time at which it was last heard."""
    log = LogMaker()
    bundles = log.namespace("t/n", 3)
    for bundle, broker in zip(bundles, ("b2", "b2", "b1"), strict=True):
        log.assign(bundle, broker)
    log.now_ms += 60_000
    lost_ms = log.now_ms + 5 - HEARD_AGO_MS
    for bundle in bundles[:2]:
        log.lose(bundle, "b3", heard_ago_ms=log.now_ms - lost_ms)
    log.now_ms += 80_000
    log.beat("b2")
    return log, bundles, lost_ms


def rows_of(log: LogMaker, folder: Path, writers: WritersHeard | None = None) -> list[dict[str, Any]]:
    export = read_export(log.export(folder / "log.jsonl"))
    successions = Successions()
    audit_export(export, observers=[successions.observe])
    again = WrittenAgain(successions.taken())
    audit_export(export, observers=[again.observe])
    return list(overlap_rows(successions.rows, again, writers))


def heard_at(*times_ms: int) -> WritersHeard:
    writers = WritersHeard()
    for number, at_ms in enumerate(times_ms):
        info = {"broker": "b2", "incarnation": "b2-1"}
        writers.observe(RecordRead(Topic.REGISTRY, 0, number, at_ms, b"", b""), info)
    return writers


def test_a_lost_owner_that_writes_again_may_have_served_until_then(tmp_path: Path) -> None:
    log, bundles, lost_ms = paused()
    rows = rows_of(log, tmp_path)
    assert [row["bundle"] for row in rows] == bundles[:2]
    assert {(row["from"], row["to"], row["lost_ms"], row["until_ms"], row["heard_in"]) for row in rows} == {
        ("b2", "b3", lost_ms, log.now_ms, "log")
    }
    assert all(row["length_ms"] == log.now_ms - row["since_ms"] for row in rows)
    sums = overlap_sums(rows)
    assert (sums["overlaps"], sums["bundles"], sums["longest_ms"]) == (2, 2, rows[0]["length_ms"])
    assert sums["bundle_ms"] == sum(row["length_ms"] for row in rows)


def test_the_registry_may_have_heard_it_earlier_and_every_command_takes_the_earlier_bound(tmp_path: Path) -> None:
    log, bundles, lost_ms = paused()
    heard_ms = lost_ms + 25_000
    writers = heard_at(lost_ms - 1_000, lost_ms, heard_ms, heard_ms + 1_000)
    assert {(row["until_ms"], row["heard_in"]) for row in rows_of(log, tmp_path, writers)} == {(heard_ms, "registry")}
    export = read_export(tmp_path / "log.jsonl")
    then = owner_then(export, bundles[0], AsOf(time_ms=heard_ms - 1), writers=writers)
    assert (then.heard_again or {})["heard_ms"] == heard_ms
    assert owner_then(export, bundles[0], AsOf(time_ms=heard_ms), writers=writers).heard_again is None
    later = owner_then(export, bundles[0], AsOf(time_ms=heard_ms))
    assert (later.heard_again or {})["heard_in"] == "log"


def lost_messages(log: LogMaker, writers: WritersHeard | None) -> list[str]:
    incidents, view = ChannelIncidents(1_000, writers=writers), View(0, 1)
    for record in log.records:
        incidents.observe(record, view.read(record.offset, record.key, record.value))
    return [item.message for item in incidents.all() if "was lost" in item.message]


def test_status_and_report_name_the_same_bound(tmp_path: Path) -> None:
    log, _, lost_ms = paused()
    writers = heard_at(lost_ms, lost_ms + 25_000)
    (message,) = lost_messages(log, writers)
    assert "it was heard again 25.0 s after it was last heard: at most until then" in message


def test_a_heartbeat_of_a_leader_just_after_the_registry_last_heard_it_is_not_heard_again(tmp_path: Path) -> None:
    """The leader is paused: its last heartbeat in the log is later than the last one in the registry."""
    log = LogMaker()
    bundles = log.namespace("t/n", 2)
    for bundle in bundles:
        log.assign(bundle, "b2")
    lost_ms = log.now_ms + 800
    log.beat("b2")
    log.now_ms += HEARD_AGO_MS
    for bundle in bundles:
        log.lose(bundle, "b3", heard_ago_ms=log.now_ms - lost_ms)
    log.now_ms += 20_000
    log.beat("b3")
    writers = heard_at(lost_ms - 1_000, lost_ms, log.now_ms, log.now_ms + 1_000)
    rows = rows_of(log, tmp_path, writers)
    assert {(row["bundle"], row["until_ms"], row["heard_in"]) for row in rows} == {
        (bundle, log.now_ms, "registry") for bundle in bundles
    }
    then = owner_then(read_export(tmp_path / "log.jsonl"), bundles[0], AsOf(time_ms=log.now_ms - 1), writers=writers)
    assert (then.heard_again or {})["heard_ms"] == log.now_ms
    log.beat("b2", after_ms=500)
    assert {(row["until_ms"], row["heard_in"]) for row in rows_of(log, tmp_path)} == {(log.now_ms, "log")}
    then = owner_then(read_export(tmp_path / "log.jsonl"), bundles[0], AsOf(time_ms=log.now_ms - 1))
    assert (then.heard_again or {})["heard_ms"] == log.now_ms
    (message,) = lost_messages(log, None)
    assert "; it wrote again" in message


def test_one_that_is_paused_twice_is_two_incidents_with_a_bound_each() -> None:
    log, bundles, _ = paused()
    for bundle in bundles[:2]:
        log.transfer(bundle, "b2")
    log.beat("b2")
    log.now_ms += HEARD_AGO_MS
    log.lose(bundles[0], "b3", heard_ago_ms=HEARD_AGO_MS)
    log.beat("b2", after_ms=30_000)
    first, second = lost_messages(log, None)
    assert "repaired 2 bundles" in first
    assert "repaired 1 bundle" in second
    assert "it wrote again 87.0 s after" in first
    assert "it wrote again 36.0 s after" in second


def test_the_order_of_partitions_does_not_matter() -> None:
    """What a lost process wrote to the first partition is known before its loss, in the second one, is."""
    log, _, _ = paused()
    own = partition_of("t/n", 2)
    incidents, view, other = ChannelIncidents(1_000), View(own, 2), View(1 - own, 2)
    beat = log.records[-1]
    for record in (log.records[0]._replace(key=b"!heartbeat", value=beat.value), beat):
        incidents.observe(record._replace(partition=1 - own), other.read(record.offset, record.key, record.value))
    for record in log.records[:-1]:
        incidents.observe(record._replace(partition=own), view.read(record.offset, record.key, record.value))
    (message,) = [item.message for item in incidents.all() if "was lost" in item.message]
    assert "it wrote again 87.0 s after" in message


def test_the_command_lists_them_with_their_sum_and_says_how_sure_it_is(tmp_path: Path) -> None:
    log, bundles, _ = paused()
    path = str(log.export(tmp_path / "log.jsonl"))
    run = CliRunner().invoke(app, ["audit", "overlaps", "--file", path, "--output", "json"])
    document = json.loads(run.stdout)
    assert (document["sums"]["bundles"], [row["bundle"] for row in document["overlaps"]]) == (2, bundles[:2])
    one = CliRunner().invoke(app, ["audit", "overlaps", bundles[1], "--file", path, "--output", "json"])
    assert [row["bundle"] for row in json.loads(one.stdout)["overlaps"]] == [bundles[1]]
    table = CliRunner().invoke(app, ["audit", "overlaps", "--file", path])
    assert "2 of 2 bundles" in table.stdout
    assert "longest that is possible" in table.stderr
    none = CliRunner().invoke(app, ["audit", "overlaps", "t/other", "--file", path])
    assert none.exit_code == 5


def overlaps_of(
    *rows: Succession, again: dict[str, list[int]], registry: dict[str, list[int]] | None = None
) -> list[Any]:
    """The overlaps of these successions; `again` and `registry` have the times at which a lost broker was heard."""
    written = WrittenAgain((row.process, row.taken_ms) for row in rows)
    beat = {"format": 1, "kind": "heartbeat", "id": "h", "covers": -1, "clean_to": -1}
    for broker, times_ms in again.items():
        value = json.dumps(beat | {"by": {"broker": broker, "incarnation": f"{broker}-1"}}).encode()
        for number, at_ms in enumerate(times_ms):
            record = RecordRead(Topic.CHANNEL, 0, number, at_ms, b"!heartbeat", value)
            written.observe(record, Judgement(Verdict.CONTROL))
    writers = None if registry is None else WritersHeard()
    for broker, times_ms in (registry or {}).items():
        for number, at_ms in enumerate(times_ms):
            info = {"broker": broker, "incarnation": f"{broker}-1"}
            writers.observe(RecordRead(Topic.REGISTRY, 0, number, at_ms, b"", b""), info)  # type: ignore[union-attr]
    names = ("partition", "offset", "since_ms", "until_ms", "length_ms", "heard_in")
    return [tuple(row[name] for name in names) for row in overlap_rows(rows, written, writers)]


def passed(
    broker: str, taken_ms: int, since_ms: int | None = None, *, partition: int = 0, offset: int = 0
) -> Succession:
    return Succession("t/n/x", partition, offset, broker, f"{broker}-1", taken_ms - 10, taken_ms, "b9", since_ms, 7)


@pytest.mark.parametrize(
    ("row", "again", "registry", "expected"),
    [
        (passed("b1", 100, 200), [], None, []),
        (passed("b1", 100, 200), [200], None, []),
        (passed("b1", 100, 200), [201], None, [(0, 0, 200, 201, 1, "log")]),
        (passed("b1", 100, 200), [50, 100], None, []),
        (passed("b1", 100, 50), [50, 101], None, [(0, 0, 50, 101, 51, "log")]),
        (passed("b1", 100, 200), [900, 300, 400], None, [(0, 0, 200, 300, 100, "log")]),
        (passed("b1", 100), [300], None, []),
        (passed("b1", 100, 200), [300], [300], [(0, 0, 200, 300, 100, "log")]),
        (passed("b1", 100, 200), [300], [299], [(0, 0, 200, 299, 99, "registry")]),
        (passed("b1", 100, 200), [300], [100], [(0, 0, 200, 300, 100, "log")]),
        (passed("b1", 100, 200), [], [250], [(0, 0, 200, 250, 50, "registry")]),
        (passed("b1", 100, 200), [150, 300], [250], []),
    ],
)
def test_an_overlap_lasts_from_the_successor_to_the_first_word_after_the_loss(
    row: Succession, again: list[int], registry: list[int] | None, expected: list[Any]
) -> None:
    beats = None if registry is None else {"b1": registry}
    assert overlaps_of(row, again={"b1": again}, registry=beats) == expected


def test_each_loss_of_a_process_has_its_own_bound_and_overlaps_are_in_the_order_of_their_starts() -> None:
    rows = (
        passed("b1", 500, 520, partition=0, offset=9),
        passed("b1", 100, 120, partition=1, offset=4),
        passed("b1", 100, 120, partition=1, offset=3),
        passed("b2", 100, 120, partition=0, offset=8),
        passed("b1", 500),
        passed("b1", 300, 310, partition=0, offset=2),
    )
    assert overlaps_of(*rows, again={"b1": [700, 200, 600], "b2": [150], "b3": [130]}) == [
        (0, 8, 120, 150, 30, "log"),
        (1, 3, 120, 200, 80, "log"),
        (1, 4, 120, 200, 80, "log"),
        (0, 2, 310, 600, 290, "log"),
        (0, 9, 520, 600, 80, "log"),
    ]


def test_the_sums_of_overlaps() -> None:
    rows = [
        {"bundle": bundle, "since_ms": since_ms, "until_ms": until_ms, "length_ms": until_ms - since_ms}
        for bundle, since_ms, until_ms in (("x", 10, 30), ("y", 5, 12), ("x", 40, 41))
    ]
    assert list(overlap_sums(rows).values()) == [3, 2, 5, 41, 20, 28]
    assert list(overlap_sums([]).values()) == [0, 0, None, None, 0, 0]


def test_what_is_a_succession() -> None:
    """Accepted, of a bundle, with the lost process; who takes its own bundle back has no successor."""
    log, successions = LogMaker(), Successions()
    bundle, other = log.namespace("t/n", 2)
    for name in (bundle, other):
        log.assign(name, "b1")
    lost = {"broker": "b1", "incarnation": "b1-1", "last_heard_ms": 7}
    repair: dict[str, Any] = {"to": "b2", "forced": True, "lost": lost}
    log.put(bundle, log.proposal(bundle, "Assigning", "b3", **repair) | {"version": 1})  # stale
    log.move(bundle, "Assigning", "b3", **repair | {"lost": lost | {"incarnation": None}})
    log.move(bundle, "Assigned", "b2", to="b2")
    log.move(other, "Assigning", "b3", **repair)
    first = len(log.records) - 1
    log.move(other, "Assigning", "b3", **repair | {"to": "b1"})
    log.move(other, "Assigned", "b1", to="b1")
    log.move(other, "Assigned", "b2", to="b1")
    log.move(bundle, "Assigning", "b3", **repair | {"lost": lost | {"broker": "b2", "incarnation": "b2-1"}})
    log.move(bundle, "Assigned", "b3", to="b2")
    view = View(0, 1)
    log.move("t/m", "Active", children=["0x00000000_0xffffffff"], lost=lost)
    for record in log.records:
        successions.observe(record, view.read(record.offset, record.key, record.value))
    assert [(row.bundle, row.offset, row.process, row.successor) for row in successions.rows] == [
        (other, first, ("b1", "b1-1"), None),
        (other, first + 1, ("b1", "b1-1"), None),
        (bundle, first + 4, ("b2", "b2-1"), "b2"),
    ]
