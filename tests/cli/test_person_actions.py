"""`audit actions`: all that a person did, from every topic that says so; and the same in the report."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from shedders.policies.kinds import PolicyKind
from shedders.policies.record import PolicyRecord, made_key
from shedders.policies.record import encode as encode_policy
from shedders.policies.topic import DeletionNote
from statechannel.audit.transfer.export_file import write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.cli.audit.actions import requested_actions
from statechannel.cli.main import app
from statechannel.operations.request_record import Reply, Request, encode
from statechannel.operations.table import RequestCommand
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.side_record import Headers
from statechannel.queries.side_files import SideRole, side_file
from tests.support.report_logs import HOSTILE, START_MS, LogMaker

ANN, BOB = "ann@desk", "bob@desk"


def asked(number: int, command: RequestCommand, by: str = ANN, **args: Any) -> list[bytes]:
    """A request and its reply."""
    name = f"op-{number}"
    reply = Reply(name, "b1", "b1-1", {"answer": "accepted", "outcome": "done", "result": f"result-{number}"})
    return [encode(Request(name, command.value, 0, args, by), timeout_s=5.0), encode(reply)]


REQUESTS = [
    *asked(1, RequestCommand.CREATE_NAMESPACE, namespace="t/n", bundles=2, reason="a shop"),
    *asked(2, RequestCommand.TRANSFER, name="t/n/x", destination="b3", reason="closer"),
    *asked(3, RequestCommand.LOOKUP, name="t/n/x", read_only=False),
    *asked(
        4, RequestCommand.EXTENSION, extension="balancer", ask="may-take", to="leader", name="t/n/x", destination="b3"
    ),
    *asked(5, RequestCommand.EXTENSION, extension="balancer", ask="drain", to="leader", broker="b2", why="disk"),
    *asked(6, RequestCommand.UNLOAD, BOB, name="t/n/x"),
    b'{"junk": 1}',
    encode(Request("op-open", RequestCommand.SPLIT.value, 0, {"name": "t/n/x", "parts": 3}, ANN), timeout_s=5.0),
]
PIN = made_key(PolicyKind.PIN, "t/n")
OVERRIDE = made_key(PolicyKind.CORDON, "b1", override=True)
POLICIES: list[tuple[bytes, bytes | None, Headers]] = [
    (PIN.encode(), encode_policy(PolicyRecord(PIN, {"broker": "b1"}, ANN, "ticket 7", None, 900)), ()),
    (PIN.encode(), None, DeletionNote(ANN, "ticket 8").headers()),
    (OVERRIDE.encode(), encode_policy(PolicyRecord(OVERRIDE, {}, f"system:drain/op-5/{ANN}", "disk", 10**13, 900)), ()),
    (OVERRIDE.encode(), None, ()),
]


def request_records() -> list[RecordRead]:
    return [
        RecordRead(Topic.REQUESTS, 0, offset, START_MS + 10 * offset, b"k", value)
        for offset, value in enumerate(REQUESTS)
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    log, path, beside = LogMaker(), tmp_path / "ev.jsonl", {}
    for bundle in log.namespace("t/n", 2):
        log.assign(bundle, "b2")
    policies = [
        RecordRead(Topic.REQUESTS, 0, offset, START_MS + 5 + 10 * offset, key, value)
        for offset, (key, value, _) in enumerate(POLICIES)
    ]
    headers = {offset: given for offset, (_, _, given) in enumerate(POLICIES)}
    for role, records in ((SideRole.REQUESTS, request_records()), (SideRole.POLICIES, policies)):
        written = write_export(
            side_file(path, role),
            ExportHeader(f"c-{role}", {0: len(records)}, 0),
            records,
            now_ms=lambda: log.now_ms,
            headers_of=lambda record, role=role: headers[record.offset] if role is SideRole.POLICIES else (),  # type: ignore[misc]
        )
        beside[role.value] = written.digest or ""
    write_export(
        path, ExportHeader("c", {0: len(log.records)}, 0, beside=beside), log.records, now_ms=lambda: log.now_ms
    )
    return path


def run(*command: str) -> Result:
    return CliRunner().invoke(app, [*command])


def rows_of(path: Path, *options: str) -> list[dict[str, Any]]:
    answer = run("audit", "actions", "--file", str(path), "-o", "json", *options)
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)["actions"]


def short(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["what"], row["name"], row["destination"], row["reason"], row["result"]


ALL_OF_ANN = [
    ("create-namespace", "t/n", None, "a shop", "result-1"),
    ("set pin", "t/n", None, "ticket 7", None),
    ("delete pin", "t/n", None, "ticket 8", None),
    ("transfer", "t/n/x", "b3", "closer", "result-2"),
    ("set override of cordon", "b1", None, "disk", None),
    ("drain", "b2", None, "disk", "result-5"),
    ("split", "t/n/x", None, None, None),
]


def test_all_that_a_person_did_is_in_one_list(path: Path) -> None:
    rows = rows_of(path, "--by", ANN)
    assert [short(row) for row in rows] == ALL_OF_ANN
    assert [row["operation"] for row in rows if row["what"] in ("transfer", "split")] == ["op-2", "op-open"]
    assert rows[-1]["details"] == "parts=3"
    assert rows[1]["details"] == "broker=b1"
    assert {row["topic"] for row in rows} == {"requests", "policies"}


def test_what_changes_nothing_is_left_out_with_a_note(path: Path) -> None:
    table = run("audit", "actions", "--by", ANN, "--file", str(path))
    assert "note: 2 that change nothing are left out" in table.stderr
    assert "may-take" not in table.stdout
    every = rows_of(path, "--by", ANN, "--every")
    assert [row["what"] for row in every if row["question"]] == ["lookup", "may-take"]


def test_without_a_name_all_are_listed_and_deletions_that_name_nobody_too(path: Path) -> None:
    rows = rows_of(path)
    expected = [("end override of cordon", ""), ("unload", BOB)]
    assert [(row["what"], row["by"]) for row in rows if row["by"] != ANN] == expected
    assert "who deleted a policy is not in exports" in run("audit", "actions", "--file", str(path)).stderr
    one = run("audit", "actions", "--by", BOB, "--file", str(path))
    assert "1 without a name: `statechannel audit actions` lists them" in one.stderr


@pytest.mark.parametrize(("by", "hint"), [("ann", "Known: ann@desk."), ("eve@desk", "Known: ann@desk, bob@desk.")])
def test_a_person_who_did_nothing_is_refused_with_those_who_did(by: str, hint: str, path: Path) -> None:
    answer = run("audit", "actions", "--by", by, "--file", str(path))
    assert (answer.exit_code, hint in answer.stderr) == (5, True)


def test_a_window_selects_by_log_time(path: Path) -> None:
    expected = ["create-namespace", "set pin", "delete pin"]
    assert [row["what"] for row in rows_of(path, "--until", f"{START_MS + 15}ms")] == expected
    answer = run("audit", "actions", "--since", "5", "--file", str(path))
    assert (answer.exit_code, "is an offset" in answer.stderr) == (2, True)


def test_other_commands_name_it(path: Path) -> None:
    for command in (("audit", "history"), ("audit", "origins"), ("operation", "list")):
        answer = run(*command, "--by", ANN, "--file", str(path))
        assert "audit actions --by" in answer.stderr, command
    rows = json.loads(run("operation", "list", "--by", ANN, "--file", str(path), "-o", "json").stdout)["operations"]
    assert [(row["destination"], row["reason"]) for row in rows if row["operation"] == "op-2"] == [("b3", "closer")]


def test_policies_are_selected_by_their_author(path: Path) -> None:
    def changes(by: str) -> Result:
        return run("policy", "history", "--by", by, "--file", str(path), "-o", "json")

    assert [row["what"] for row in json.loads(changes(ANN).stdout)["changes"]] == ["set", "deleted", "set"]
    missing = changes(BOB)
    assert (missing.exit_code, f"Known: {ANN}" in missing.stderr) == (5, True)


def test_the_report_has_the_same_list(path: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    answer = run("audit", "report", "--file", str(path), "--out", str(page), "--output", "json")
    listed = json.loads(answer.stdout)["actions"]
    assert listed["all"] == len(listed["rows"]) == 9
    assert [short(row) for row in listed["rows"] if row["by"] == ANN] == ALL_OF_ANN
    text = page.read_text()
    assert all(word in text for word in ("What persons did", "ticket 8", "closer"))
    for role in (SideRole.REQUESTS, SideRole.POLICIES):
        side_file(path, role).unlink()
    alone = run("audit", "report", "--file", str(path), "--out", str(page), "--output", "json")
    assert json.loads(alone.stdout)["actions"] is None
    assert "Not known: requests and policies are in topics that were not read" in page.read_text()


def test_foreign_words_in_the_report_are_texts(tmp_path: Path) -> None:
    value = encode(Request("op-1", RequestCommand.UNLOAD.value, 0, {"name": HOSTILE, "reason": HOSTILE}, HOSTILE))
    (row,) = requested_actions([RecordRead(Topic.REQUESTS, 0, 0, START_MS, b"k", value)])
    assert (row.by, row.name, row.reason) == (HOSTILE, HOSTILE, HOSTILE)
    log, path, page = LogMaker(), tmp_path / "ev.jsonl", tmp_path / "page.html"
    log.namespace("t/n", 1)
    record = RecordRead(Topic.REQUESTS, 0, 0, START_MS, b"k", value)
    header = ExportHeader("c-requests", {0: 1}, 0)
    write_export(side_file(path, SideRole.REQUESTS), header, [record], now_ms=lambda: log.now_ms)
    write_export(path, ExportHeader("c", {0: 1}, 0), log.records, now_ms=lambda: log.now_ms)
    assert run("audit", "report", "--file", str(path), "--out", str(page)).exit_code == 0
    text = page.read_text()
    assert "<img src=x" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize("break_it", [lambda value: value[:-1], lambda _: b"", lambda _: b"[]"])
def test_malformed_records_are_no_actions(break_it: Callable[[bytes], bytes]) -> None:
    records = [record._replace(value=break_it(record.value or b"")) for record in request_records()]
    assert requested_actions(records) == []
