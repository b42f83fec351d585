"""The audit of every example log gives the answer that the formats page's authors expect, verdicts included."""

import json
from pathlib import Path

import pytest

from statechannel.audit.engine import ReadMode
from statechannel.audit.local import audit_export
from statechannel.audit.moments import parse_as_of
from statechannel.audit.transfer.export_file import read_export

EXAMPLES = Path(__file__).parents[2] / "golden" / "channel-record"
EXPECTED = json.loads((EXAMPLES / "expected.json").read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_answer_and_verdicts(name: str, tmp_path: Path) -> None:
    expected = EXPECTED[name]
    file, _, moment = name.partition(" --as-of ")
    stored = EXAMPLES / file.replace(".jsonl", ".verdicts.jsonl")
    verdicts = tmp_path / "verdicts.jsonl" if expected["read"] == "full" and not moment else None

    answer = audit_export(
        read_export(EXAMPLES / file),
        read=ReadMode(expected["read"]),
        as_of=parse_as_of(moment) if moment else None,
        verdicts=verdicts,
    )

    assert answer == expected["audit"]
    if verdicts is not None:
        assert _lines(verdicts)[:-1] == _lines(stored)


@pytest.mark.parametrize("file", [name for name in EXPECTED if " " not in name])
def test_auto_reads_as_the_log_allows(file: str) -> None:
    """A log with gaps is joined; one without is read in full, which is never less sure."""
    export = read_export(EXAMPLES / file)
    gaps = any(
        [record.offset for record in records] != list(range(export.header.end_offsets[partition]))
        for partition, records in export.partitions.items()
    )
    assert audit_export(export)["read"] == ("join" if gaps else "full")


def _lines(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_text().splitlines()]
