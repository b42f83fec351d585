"""How commands speak of forged records: who wrote them, and what cannot be recognized."""

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from statechannel.cli.main import app
from tests.support.report_logs import LogMaker, forged_beside

NOT_RECOGNIZED = "A forged record whose id continues the series of its process is not recognized by the log."
UNREAD = "The registry, which shows more of them, was not read."


def run(*command: str) -> Result:
    return CliRunner().invoke(app, [*command])


@pytest.fixture
def forged(tmp_path: Path) -> str:
    return str(forged_beside().export(tmp_path / "log.jsonl"))


@pytest.mark.parametrize("command", [("audit",), ("audit", "origins")])
def test_what_cannot_be_recognized_is_said_whether_one_was_or_not(
    command: tuple[str, ...], forged: str, tmp_path: Path
) -> None:
    clean = LogMaker()
    clean.assign(clean.namespace("t/n", 1)[0], "b1")
    for path, some in ((forged, True), (str(clean.export(tmp_path / "clean.jsonl")), False)):
        text = " ".join(run(*command, "--file", path).stdout.split())
        assert ("Forged: 1 record names a broker that did not write it" in text) is some
        assert ("no forged record was recognized." in text) is not some
        assert f"{NOT_RECOGNIZED} {UNREAD}" in text


def test_the_writer_of_a_forged_record_is_in_the_name_of_a_broker(forged: str) -> None:
    for command in (("audit", "history", "t/n"), ("audit", "history", "--by", "b2"), ("operation", "show", "op-f")):
        lines = run(*command, "--file", forged, "-o", "wide").stdout.splitlines()
        named = [line for line in lines if "forged as b2" in line]
        assert len(named) == 1, command
        assert named[0].split()[0] == "17"
