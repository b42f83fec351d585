"""Files beside an export: its digest covers them, and each command says what is edited, missing or of another export."""

import json
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest
from click.testing import Result
from typer.testing import CliRunner

from statechannel.audit.errors import ExportFileError
from statechannel.audit.transfer.export_file import read_export, write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.cli.main import app
from statechannel.operations.request_record import Request, encode
from statechannel.operations.table import RequestCommand
from statechannel.protocol.log import RecordRead, Topic
from statechannel.queries.side_files import SideRole, side_file
from tests.support.report_logs import LogMaker

CREATED = "create-t/n"


def log_of() -> LogMaker:
    log = LogMaker()
    for bundle in log.namespace("t/n", 2):
        log.assign(bundle, "b2")
    return log


def export(folder: Path, by: str = "ann@desk", *, covers: bool = True, registry: bool = True) -> tuple[Path, str]:
    """An export with its requests and, empty, its registry; returns its digest too."""
    log, path = log_of(), folder / "ev.jsonl"
    body = encode(Request(CREATED, RequestCommand.CREATE_NAMESPACE.value, 0, {"name": "t/n"}, by), timeout_s=5.0)
    request = RecordRead(Topic.REQUESTS, 0, 0, log.now_ms, CREATED.encode(), body)
    rows: dict[SideRole, Sequence[RecordRead]] = {SideRole.REQUESTS: [request]}
    if registry:
        rows[SideRole.REGISTRY] = []
    beside = {}
    for role, records in rows.items():
        header = ExportHeader(f"c-{role}", {0: len(records)}, 0)
        written = write_export(side_file(path, role), header, records, now_ms=lambda: log.now_ms)
        beside[role.value] = written.digest or ""
    header = ExportHeader("c", {0: len(log.records)}, 0, beside=beside if covers else None)
    written = write_export(path, header, log.records, now_ms=lambda: log.now_ms)
    return path, written.digest or ""


def run(*command: str) -> Result:
    return CliRunner().invoke(app, [*command])


def strip(path: Path, **fields: str) -> None:
    """Remove the digests of a file, and replace texts."""
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        for name in ("digest", "chain"):
            line.pop(name, None)
        for before, after in fields.items():
            if "value" in line:
                line["value"] = line["value"].replace(before, after)
    path.write_bytes(b"\n".join(orjson.dumps(line) for line in lines))


READERS = (("audit", "origins", "--every"), ("audit", "gaps"), ("operation", "list"), ("operation", "show", CREATED))


def test_the_digest_of_an_export_covers_the_files_beside_it(tmp_path: Path) -> None:
    path, digest = export(tmp_path)
    assert read_export(path).header.beside == {
        role: read_export(side_file(path, role)).header.digest for role in (SideRole.REGISTRY, SideRole.REQUESTS)
    }
    other, other_digest = export(tmp_path, "eve@desk")
    assert (other, other_digest != digest) == (path, True)
    checked = json.loads(run("audit", "verify-export", str(path), "--digest", other_digest, "-o", "json").stdout)
    assert {side["status"] for side in checked["beside"].values()} == {"covered"}
    for command in READERS:
        answer = run(*command, "--file", str(path))
        assert (answer.exit_code, "note: " in answer.stderr and "digest" in answer.stderr) == (0, False), answer.stderr


@pytest.mark.parametrize("name", ["removed", "another", "renamed"])
def test_the_list_of_files_itself_cannot_be_edited(name: str, tmp_path: Path) -> None:
    path, _ = export(tmp_path)
    header, _, rest = path.read_text().partition("\n")
    fields = json.loads(header)
    if name == "removed":
        del fields["beside"]
    elif name == "another":
        fields["beside"]["requests"] = "0" * 32
    else:
        fields["beside"]["policies"] = fields["beside"].pop("requests")
    path.write_text(f"{json.dumps(fields)}\n{rest}")
    with pytest.raises(ExportFileError, match="the end of the chain does not match the header"):
        read_export(path)


@pytest.mark.parametrize("beside", [["requests"], {"requests": 1}, {"requests": "x"}, {"../x": "0" * 32}, None])
def test_a_malformed_list_of_files_is_refused(beside: object, tmp_path: Path) -> None:
    path, _ = export(tmp_path)
    header, _, rest = path.read_text().partition("\n")
    path.write_text(json.dumps(json.loads(header) | {"beside": beside}) + "\n" + rest)
    with pytest.raises(ExportFileError, match="`beside`"):
        read_export(path)


def test_a_file_without_its_digests_is_refused_by_every_reader(tmp_path: Path) -> None:
    path, digest = export(tmp_path)
    requests = side_file(path, SideRole.REQUESTS)
    strip(requests, ann="eve")
    answer = run("audit", "verify-export", str(path), "--digest", digest)
    assert (answer.exit_code, str(requests) in answer.stderr) == (7, True)
    assert "edited or rewritten, or of another export" in answer.stderr
    for command in READERS:
        answer = run(*command, "--file", str(path))
        assert (answer.exit_code, "eve" in answer.stdout) == (7, False), command
        assert f"{requests} is not the file that was made with {path}" in answer.stderr


def test_a_file_of_another_export_is_refused(tmp_path: Path) -> None:
    path, digest = export(tmp_path)
    (tmp_path / "other").mkdir()
    other, _ = export(tmp_path / "other", "eve@desk")
    requests = side_file(path, SideRole.REQUESTS)
    requests.write_bytes(side_file(other, SideRole.REQUESTS).read_bytes())
    assert run("audit", "verify-export", str(path), "--digest", digest).exit_code == 7
    assert run("audit", "origins", "--file", str(path)).exit_code == 7


def test_a_missing_file_is_named_by_every_reader(tmp_path: Path) -> None:
    path, digest = export(tmp_path)
    side_file(path, SideRole.REQUESTS).unlink()
    for command in READERS:
        answer = run(*command, "--file", str(path))
        note = f"note: {side_file(path, SideRole.REQUESTS)} is missing: it was made with {path}"
        assert (answer.exit_code, answer.stderr.count(note)) == (0, 1), (command, answer.stderr)
    side_file(path, SideRole.REGISTRY).unlink()
    answer = run("audit", "verify-export", str(path), "--digest", digest)
    assert answer.exit_code == 4
    assert all(f"{side_file(path, role)}: missing" in answer.stderr for role in (SideRole.REQUESTS, SideRole.REGISTRY))


def test_a_file_that_was_not_made_with_the_export_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other, _ = export(tmp_path / "other")
    path, digest = export(tmp_path, registry=False)
    registry = side_file(path, SideRole.REGISTRY)
    assert not registry.exists()
    registry.write_bytes(side_file(other, SideRole.REGISTRY).read_bytes())
    answer = run("audit", "verify-export", str(path), "--digest", digest)
    assert (answer.exit_code, f"{registry}: not made with the export" in answer.stderr) == (7, True)
    answer = run("audit", "gaps", "--file", str(path))
    assert (answer.exit_code, f"note: {registry} was not made with {path}" in answer.stderr) == (0, True)


def test_an_export_of_an_earlier_version_is_read_with_a_note_and_verified_by_a_digest_for_each_file(tmp_path: Path):
    path, digest = export(tmp_path, covers=False)
    sides = [read_export(side_file(path, role)).header.digest or "" for role in (SideRole.REGISTRY, SideRole.REQUESTS)]
    answer = run("audit", "origins", "--every", "--file", str(path))
    assert answer.exit_code == 0
    assert answer.stderr.count(f"the digest of {path}, of an earlier version, does not cover the files next to it") == 1
    assert run("audit", "verify-export", str(path)).exit_code == 0
    assert run("audit", "verify-export", str(path), "--digest", digest).exit_code == 4
    every = [option for one in (digest, *sides) for option in ("--digest", one)]
    assert run("audit", "verify-export", str(path), *every).exit_code == 0
    answer = run("audit", "verify-export", str(path), *every, "--digest", "0" * 32)
    assert (answer.exit_code, "has the digest " + "0" * 32 in answer.stderr) == (7, True)
    strip(side_file(path, SideRole.REQUESTS), ann="eve")
    assert run("audit", "verify-export", str(path)).exit_code == 4
    answer = run("audit", "origins", "--every", "--file", str(path))
    assert f"note: {side_file(path, SideRole.REQUESTS)} has no digest of its records" in answer.stderr
