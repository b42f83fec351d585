"""`audit verify` of a file: what replicas say over HTTP, also where they say nothing, or nonsense."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from statechannel.audit.transfer.export_file import read_export, write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.protocol.view import View
from tests.support.export_edits import records_of
from tests.support.replica_server import serving

LOG = "logs/junk-1.jsonl"


def view_of(path: Path, *, leave_out: int = -1) -> View:
    view = View(0, 1)
    for record in read_export(path).partitions[0]:
        if record.offset == leave_out:
            view.applied = record.offset
        else:
            view.read(record.offset, record.key, record.value)
    return view


def ask(run: Callable[..., Result], *args: str, code: int) -> Any:
    result = run("audit", "verify", "--file", LOG, *args, "--output", "json")
    assert result.exit_code == code, result.stdout + result.stderr
    return json.loads(result.stdout)


def test_equal_and_different_replicas(run: Callable[..., Result], tmp_path: Path) -> None:
    with serving({0: view_of(tmp_path / LOG)}) as good, serving({0: view_of(tmp_path / LOG, leave_out=47)}) as bad:
        (result,) = ask(run, "--replica", good, code=0)["replicas"]
        assert (result["status"], result["partitions"][0]["applied"]) == ("equal", 77)
        result = ask(run, "--replica", good, "--replica", bad, code=1)["replicas"]
        assert [item["status"] for item in result] == ["equal", "different"]
        first = result[1]["partitions"][0]["first"]
        assert (first["offset"], first["key"]) == (47, "a-1/q/0xefffffff_0xffffffff")
        assert (first["log"]["state"], first["replica"]["state"]) == ("Deleted", "Splitting")
        table = run("audit", "verify", "--file", LOG, "--replica", bad)
        assert table.exit_code == 1
        assert "offset 47, key a-1/q/0xefffffff_0xffffffff" in table.stdout


def test_replicas_that_cannot_be_compared(run: Callable[..., Result], tmp_path: Path, closed_port: int) -> None:
    view = view_of(tmp_path / LOG)
    (result,) = ask(run, "--replica", f"http://127.0.0.1:{closed_port}", code=4)["replicas"]
    assert result["status"] == "unreachable"
    assert "does not answer" in result["error"]
    with serving({0: view}, digest=b"<html>") as other:
        assert "not JSON" in ask(run, "--replica", other, code=4)["replicas"][0]["error"]
    with serving({0: view, 1: View(1, 2)}) as wider:
        assert "2 partitions" in ask(run, "--replica", wider, code=4)["replicas"][0]["error"]
    with serving({0: view_of(tmp_path / LOG, leave_out=47)}, dump=b"") as mute:
        (result,) = ask(run, "--replica", mute, code=1)["replicas"]
        assert "cannot be located without a dump" in result["partitions"][0]["why"]
    view.applied = 1_000
    with serving({0: view}) as ahead:
        (result,) = ask(run, "--replica", ahead, code=4)["replicas"]
        assert result["status"] == result["partitions"][0]["status"] == "beyond"


def test_no_replica_is_held_against_a_log_that_was_edited(run: Callable[..., Result], tmp_path: Path) -> None:
    view = view_of(tmp_path / LOG)
    edited = tmp_path / "edited.jsonl"
    write_export(edited, ExportHeader("t", {0: 3}, 0), records_of(3), now_ms=lambda: 1_700_000_000_000)
    edited.write_text("".join(edited.read_text().splitlines(keepends=True)[:-1]))
    with serving({0: view}) as replica:
        result = run("audit", "verify", "--file", str(edited), "--replica", replica)
    assert result.exit_code == 7
    assert "line 3: the end of the chain does not match" in result.stderr


@pytest.mark.parametrize("body", [b"x" * (5 << 20)], ids=["5 MiB"])
def test_an_answer_without_end_is_not_read_to_its_end(run: Callable[..., Result], tmp_path: Path, body: bytes) -> None:
    with serving({0: view_of(tmp_path / LOG)}, digest=body) as endless:
        assert "is longer than" in ask(run, "--replica", endless, code=4)["replicas"][0]["error"]
