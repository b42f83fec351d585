"""`statechannel debug bundle`, where nothing but this machine can be asked."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from statechannel.cli import debug

Run = Callable[..., Result]


def contents(path: str) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(autouse=True)
def few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        debug, "COMMANDS", (("acl.json", ("acl", "show", "--role", "broker", "--output", "json")), debug.COMMANDS[1])
    )


def test_parts_that_fail_are_named_and_the_others_written(run: Run, closed_port: int) -> None:
    place = ("-b", f"127.0.0.1:{closed_port}", "-X", "sasl.password=hunter22", "--set", "kafka.refused_wait_s=0")
    result = run("debug", "bundle", "out.zip", *place, "--output", "json")
    assert result.exit_code == 0
    told = {part["part"]: part for part in json.loads(result.stdout)["parts"]}
    assert told["acl.json"]["problem"] is None
    for part in ("status.json", "export.jsonl"):
        assert "refuses the connection" in told[part]["problem"]
    parts = contents("out.zip")
    assert json.loads(parts["settings.json"])["client"]["sasl.password"] == "[redacted]"
    versions = json.loads(parts["versions.json"])
    assert versions["packages"]["statechannel"]
    assert versions["accelerated"] is False
    assert versions["accelerator"] in {"not installed", "switched off"}  # `tests/conftest.py` switches it off
    assert json.loads(parts["parts.json"])["parts"][0]["part"] == "versions.json"
    assert all(b"hunter22" not in content for content in parts.values())
    assert "hunter22" not in result.output


def test_without_any_address(run: Run) -> None:
    result = run("debug", "bundle", "out.zip")
    assert result.exit_code == 0
    assert "parts have problems" in result.stderr
    assert {"versions.json", "settings.json", "parts.json"} <= contents("out.zip").keys()


def test_the_time_is_bounded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug.time, "monotonic", iter(range(0, 10_000, 100)).__next__)
    result = run("debug", "bundle", "out.zip", "--no-export", "--timeout", "1", "--output", "json")
    problems = {part["part"]: part["problem"] for part in json.loads(result.stdout)["parts"]}
    assert problems["status.json"] == "not collected: the time was up (--timeout)"
    assert problems["versions.json"] is None


def test_the_size_is_bounded_and_the_newest_lines_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(1_000)))
    assert debug._tail(path, 30).splitlines()[-1] == b"line 999"
    assert debug._tail(path, 30).splitlines()[0].startswith(b"line ")
    assert debug._tail(path, path.stat().st_size) == path.read_bytes()
    with zipfile.ZipFile(tmp_path / "out.zip", "w") as archive:
        collector = debug._Collector(archive, ["secret"], 10, 1e18)
        collector.add("a", lambda: b"123 secret 4567")
        collector.add("b", lambda: b"x")
    assert [part["size_bytes"] for part in collector.parts] == [10, 0]
    assert contents(str(tmp_path / "out.zip")) == {"a": b"123 [redac"}
