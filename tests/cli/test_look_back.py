"""Answers about moments: those outside the log, in the last seconds, of today's future, and of what was deleted by then."""

import json
from pathlib import Path

import orjson
import pytest
from click.testing import Result
from typer.testing import CliRunner

from statechannel.audit.moments import AsOf, parse_as_of, was_yesterday
from statechannel.audit.transfer.export_file import write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.cli.main import app
from statechannel.operations.request_record import Request, encode
from statechannel.operations.table import RequestCommand
from statechannel.protocol.log import RecordRead, Topic
from statechannel.queries.side_files import SideRole, side_file
from statechannel.stories.processes import WritersHeard
from tests.support.doctor_facts import heartbeat as of_broker
from tests.support.report_logs import START_MS, LogMaker

READ_LATER_MS = 1_000


def run(*command: str) -> Result:
    return CliRunner().invoke(app, [*command])


def heartbeat(number: int, broker: str, at_ms: int, **fields: object) -> RecordRead:
    beat = of_broker(broker, seq=number + 1, sent_at_ms=at_ms, **{"leading": False, **fields})
    return RecordRead(Topic.REGISTRY, 0, number, at_ms, broker.encode(), orjson.dumps(beat))


@pytest.fixture
def log() -> LogMaker:
    log = LogMaker()
    for bundle in log.namespace("t/n", 2):
        log.assign(bundle, "b2")
    log.now_ms += 60_000
    return log


def export(log: LogMaker, folder: Path, beats: list[RecordRead] | None = None, by: str = "ann@desk") -> Path:
    """The log, read a second after its newest record, with the requests of its deletions and these heartbeats."""
    path, at_ms, beside = folder / "ev.jsonl", log.now_ms + READ_LATER_MS, {}
    asked = Request("op-x", RequestCommand.DELETE_NAMESPACE.value, 0, {"name": "t/n"}, by)
    rows = {
        SideRole.REQUESTS: [RecordRead(Topic.REQUESTS, 0, 0, START_MS, b"op-x", encode(asked, timeout_s=5.0))],
        SideRole.REGISTRY: beats or [],
    }
    for role, records in rows.items():
        if beats is None and role is SideRole.REGISTRY:
            continue
        header = ExportHeader(f"c-{role}", {0: len(records)}, 0)
        written = write_export(side_file(path, role), header, records, now_ms=lambda: at_ms)
        beside[role.value] = written.digest or ""
    header = ExportHeader("c", {0: len(log.records)}, 0, beside=beside)
    write_export(path, header, log.records, now_ms=lambda: at_ms)
    return path


def look(path: Path, name: str, as_of: str, *more: str) -> Result:
    return run("lookup", name, "--as-of", as_of, "--file", str(path), *more)


MANY = ("audit", "audit gaps", "audit history t/n", "audit rejected", "audit origins", "audit diff T")


@pytest.mark.parametrize("command", [*MANY, "lookup t/n/x"])
def test_milliseconds_without_their_suffix_are_refused_by_every_command(command: str, log: LogMaker, tmp_path: Path):
    """As an offset they would be past the end, and mean now."""
    path, stamp = export(log, tmp_path), str(log.now_ms - 30_000)
    words = [stamp if word == "T" else word for word in command.split()]
    option = () if "diff" in command else ("--as-of", stamp)
    answer = run(*words, *option, "--file", str(path))
    assert (answer.exit_code, f"{stamp}ms" in answer.stderr, answer.stdout) == (2, True, "")
    if command in ("audit gaps", "audit rejected", "audit origins"):
        assert run(*words, "--since", stamp, "--file", str(path)).exit_code == 2


def test_offsets_and_years_are_no_times_without_suffix() -> None:
    expected = [20_260_101, 99_999_999_999, 0, 999_999_999_999_999]
    assert [parse_as_of(text).offset for text in ("20260101", "99999999999", "0", "9" * 15)] == expected


def test_an_offset_past_the_end_is_answered_with_the_note_of_the_audit(log: LogMaker, tmp_path: Path) -> None:
    path = export(log, tmp_path)
    note = "note: offset 99999 is past the end of every partition: it means the end of the log"
    for answer in (look(path, "t/n/x", "99999"), run("audit", "--as-of", "99999", "--file", str(path))):
        assert (answer.exit_code, note in answer.stderr) == (0, True)
    assert "past the end" not in look(path, "t/n/x", str(len(log.records) - 1)).stderr
    answer = run("audit", "gaps", "--since", "99999", "--file", str(path))
    assert "note: --since 99999 is past the end of every partition: no record is listed" in answer.stderr


def test_a_moment_before_the_log_says_so(log: LogMaker, tmp_path: Path) -> None:
    answer = look(export(log, tmp_path), "t/n/x", f"{START_MS - 1}ms")
    assert answer.exit_code == 5
    assert "note: the log has no record up to" in answer.stderr
    assert "`statechannel audit history t/n` lists when it was created" in answer.stderr


@pytest.mark.parametrize(
    ("text", "expected"), [("11:59", False), ("12:01", True), ("12:01:00Z", True), ("5m", False), ("24h", False)]
)
def test_a_time_of_day_that_is_still_to_come_is_yesterdays(text: str, expected: bool) -> None:
    noon_ms = 1_767_268_800_000
    moment = parse_as_of(text, now_ms=noon_ms)
    assert was_yesterday(text, moment, noon_ms) is expected
    assert not was_yesterday(text, AsOf(offset=1), noon_ms)


def test_yesterdays_time_of_day_has_a_note(log: LogMaker, tmp_path: Path) -> None:
    path = export(log, tmp_path)
    read_ms = log.now_ms + READ_LATER_MS
    later = f"{(read_ms // 3_600_000 + 1) % 24:02d}:{read_ms // 60_000 % 60:02d}"
    for answer in (look(path, "t/n/x", later), run("audit", "gaps", "--until", later, "--file", str(path))):
        assert "today's was still to come at" in answer.stderr


def test_a_deleted_namespace_is_named_with_who_and_when(log: LogMaker, tmp_path: Path) -> None:
    before_ms = log.now_ms
    for bundle in log.live():
        log.unload(bundle, operation="op-x", reason="trial over")
    log.move("t/n", "Deleted", "b3", action="delete", operation="op-x", flow="namespace")
    deleted, offset = log.now_ms, len(log.records) - 1
    path = export(log, tmp_path)
    for name in ("t/n/x", log.records[1].key.decode()):  # type: ignore[union-attr]
        answer = look(path, name, f"{deleted}ms")
        assert answer.exit_code == 5
        assert f"by b3 (offset {offset}; requested by ann@desk; trial over)" in answer.stderr
        assert "it was deleted at 2026-" in answer.stderr
        assert "`statechannel audit history t/n` shows what it had" in answer.stderr
    assert look(path, "t/n/x", f"{before_ms}ms").exit_code == 0


def test_a_namespace_that_was_created_later_is_named_with_when(log: LogMaker, tmp_path: Path) -> None:
    before_ms = log.now_ms
    log.now_ms += 1_000
    log.namespace("t/later", 1)
    path = export(log, tmp_path)
    answer = look(path, "t/later/x", f"{before_ms}ms")
    assert answer.exit_code == 5
    assert "namespace t/later does not exist, as of 2026-" in answer.stderr
    assert f"2026-09-21 14:14:21.030Z by b1 (offset {len(log.records) - 1})" in answer.stderr
    assert "was created at" not in look(path, "t/never/x", "1s").stderr


def test_a_bundle_that_was_split_is_named_with_its_children(log: LogMaker, tmp_path: Path) -> None:
    parent = log.live()[0]
    children = log.split(parent)
    answer = look(export(log, tmp_path), parent, "0s")
    assert answer.exit_code == 5
    assert f"it was split into {', '.join(children)} at 2026-" in answer.stderr
    assert f"`statechannel lookup {children[0]} --as-of 0s` shows who had a part of it" in answer.stderr


def test_a_moment_after_which_the_owner_was_not_heard_may_yet_become_a_gap(log: LogMaker, tmp_path: Path) -> None:
    read_ms = log.now_ms + READ_LATER_MS
    last_ms = read_ms - 3_600
    beats = [heartbeat(n, "b2", at_ms) for n, at_ms in enumerate((last_ms - 1_000, last_ms))]
    path = export(log, tmp_path, [*beats, heartbeat(2, "b1", read_ms - 100)])
    sentence = "b2 was last heard 3.6 s before the log was read, and is not lost before 6 s: this may yet become a gap"
    answer = look(path, "t/n/x", "1s")
    assert (answer.exit_code, sentence in " ".join(answer.stdout.split())) == (0, True)
    unheard = json.loads(look(path, "t/n/x", "1s", "-o", "json").stdout)["unheard"]
    assert unheard == {"broker": "b2", "last_ms": last_ms, "silent_ms": 3_600, "expiry_ms": 6_000}
    assert "may yet" not in look(path, "t/n/x", f"{last_ms - 1}ms").stdout
    answer = run("audit", "gaps", "--open", "--file", str(path))
    assert sentence in " ".join(answer.stderr.split())
    document = json.loads(run("audit", "gaps", "--open", "--file", str(path), "-o", "json").stdout)
    assert (document["gaps"], [row["broker"] for row in document["unheard"]]) == ([], ["b2"])
    assert "may yet" not in run("audit", "gaps", "--until", "30s", "--file", str(path)).stderr


def test_owners_that_are_heard_or_said_goodbye_need_no_caveat(log: LogMaker, tmp_path: Path) -> None:
    read_ms = log.now_ms + READ_LATER_MS
    for beat in (heartbeat(0, "b2", read_ms - 200), heartbeat(0, "b2", read_ms - 3_600, leaving=True)):
        path = export(log, tmp_path, [beat, heartbeat(1, "b1", read_ms)])
        assert "may yet" not in look(path, "t/n/x", "1s").stdout
        assert "may yet" not in run("audit", "gaps", "--open", "--file", str(path)).stderr


def test_without_a_registry_the_last_seconds_have_a_note(log: LogMaker, tmp_path: Path) -> None:
    path = export(log, tmp_path)
    assert "the loss of a broker is noticed after about 6 s" in look(path, "t/n/x", "1s").stderr
    assert "is noticed" not in look(path, "t/n/x", "10s").stderr
    assert "those that began just before it was read" in run("audit", "gaps", "--open", "--file", str(path)).stderr


def test_a_lost_owner_that_nothing_repaired_is_a_gap_already() -> None:
    writers = WritersHeard()
    for record, broker in ((heartbeat(0, "b2", 1_000), "b2"), (heartbeat(1, "b1", 61_000), "b1")):
        writers.observe(record, {"broker": broker, "incarnation": f"{broker}-1", "expiry_s": 6.0})
    (late,) = writers.unheard_now({"b1", "b2", "b9"})
    assert late.sentence().startswith("b2 was last heard 60.0 s before")
    assert "00:00:01.000Z" in late.sentence()
