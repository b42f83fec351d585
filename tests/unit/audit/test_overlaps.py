"""Times in which two processes may have served one bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from statechannel.audit.forgeries import ForgeryCheck
from statechannel.audit.incidents import ChannelIncidents
from statechannel.audit.local import audit_export, owner_then
from statechannel.audit.moments import AsOf
from statechannel.audit.overlaps import Successions, WrittenAgain, overlap_rows, overlap_sums
from statechannel.audit.transfer.export_file import read_export
from statechannel.audit.writers import WritersHeard
from statechannel.cli.main import app
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.view import View
from tests.support.report_logs import LogMaker

HEARD_AGO_MS = 6_000


def paused(again: bool = True) -> tuple[LogMaker, list[str], int]:
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
    if again:
        log.beat("b2")
    return log, bundles, lost_ms


def rows_of(log: LogMaker, folder: Path, writers: WritersHeard | None = None) -> list[dict[str, Any]]:
    export = read_export(log.export(folder / "log.jsonl"))
    successions = Successions()
    audit_export(export, observers=[successions.observe])
    again = WrittenAgain(successions.rows, writers)
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


def test_status_and_report_name_the_same_bound(tmp_path: Path) -> None:
    log, _, lost_ms = paused()
    writers = heard_at(lost_ms, lost_ms + 25_000)
    incidents, view = ChannelIncidents(1_000, check=ForgeryCheck(writers)), View(0, 1)
    for record in log.records:
        incidents.observe(record, view.read(record.offset, record.key, record.value))
    (message,) = [item.message for item in incidents.all() if "was lost" in item.message]
    assert "it was heard again 25.0 s after it was last heard: at most until then" in message


def test_an_owner_that_is_not_heard_again_or_before_its_successor_served_is_no_overlap(tmp_path: Path) -> None:
    log, _, lost_ms = paused(again=False)
    assert rows_of(log, tmp_path) == []
    assert rows_of(log, tmp_path, heard_at(lost_ms, lost_ms + 5_000)) == []


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
