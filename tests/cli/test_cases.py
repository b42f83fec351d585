"""Every case file: what commands print, to the letter, and how they end."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from shedders.kafka_rebalance.planning.plan_files import plan_bytes, to_json
from statechannel.audit.transfer.export_file import write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.operations import request_record
from statechannel.operations.request_record import Request
from statechannel.protocol.log import RecordRead, Topic
from tests.cli.case_files import read_cases, shown, write_cases
from tests.support.export_edits import records_of
from tests.support.report_logs import LogMaker
from tests.unit.audit.test_overlaps import paused
from tests.unit.partitions.plans import MOVES, PLAN

CASES = sorted((Path(__file__).parent / "cases").glob("*.txt"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case_file(path: Path, run: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        Path(name).write_text(text)
    cases = read_cases(path)
    results = []
    for case in cases:
        with monkeypatch.context() as context:
            for name, value in case.environment.items():
                context.setenv(name, value)
            result = run(*case.args)
        here = str(Path.cwd())
        output = [line.replace(here, "HERE") for line in shown(result.stdout, result.stderr)]  # type: ignore[attr-defined]
        results.append((output, result.exit_code))  # type: ignore[attr-defined]
    if os.environ.get("REWRITE_CASES"):
        for case, (output, code) in zip(cases, results, strict=True):
            case.output, case.code = output, code
        write_cases(path, cases)
    for case, (output, code) in zip(cases, results, strict=True):
        assert (case.command, output, code) == (case.command, case.output, case.code)


LAYOUT = """{"format": "kafka-layout/1", "cluster_id": "lab", "brokers": [
{"id": 1, "rack": "a"}, {"id": 2, "rack": "b"}, {"id": 3, "rack": "c"}, {"id": 4, "rack": "a", "alive": false}],
"topics": [{"name": "logs", "partitions": [
  {"partition": 0, "replicas": [1, 2], "disk_bytes": 40000000}, {"partition": 1, "replicas": [2, 1], "disk_bytes": 10000000}]},
 {"name": "orders", "partitions": [{"partition": 0, "replicas": [1, 3]}]}]}
"""


def exported(*, edited: bool) -> str:
    """An export file of today, of records that mean nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.jsonl"
        write_export(path, ExportHeader("t", {0: 3}, 0), records_of(3), now_ms=lambda: 1_700_000_000_000)
        text = path.read_text()
    return text.replace('\\"n\\": 1', '\\"n\\": 7') if edited else text


def moved() -> LogMaker:
    """A bundle that a client looked up, and that was handed over later."""
    log = LogMaker()
    bundle, _ = log.namespace("t/n", 2)
    log.assign(bundle, "b2", operation="op-lookup")
    log.transfer(bundle, "b1", operation="op-move")
    return log


def logged() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return moved().export(Path(folder) / "export.jsonl").read_text()


def requests_beside() -> str:
    """The requests of the channel of `moved`: one person asked for an operation."""
    log = moved()
    asked = request_record.encode(Request("op-lookup", "lookup", 0, {"name": "t/n"}, "ann@desk"), timeout_s=60)
    records = [RecordRead(Topic.REQUESTS, 0, 0, log.records[0].timestamp_ms, b"op-lookup", asked)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.jsonl"
        write_export(path, ExportHeader("bundle-state-requests", {0: 1}, 0), records, now_ms=lambda: log.now_ms)
        return path.read_text()


def overlapped() -> str:
    """An export with a lost owner that was heard again after its successor began."""
    with tempfile.TemporaryDirectory() as folder:
        log, _, _ = paused()
        return log.export(Path(folder) / "export.jsonl").read_text()


FILES = {
    "overlapped.jsonl": overlapped(),
    "asked.jsonl": logged(),
    "asked.requests.jsonl": requests_beside(),
    "plan.json": plan_bytes(PLAN).decode(),
    "newer.json": plan_bytes(PLAN).decode().replace("partition-plan/1", "partition-plan/2"),
    "edited.json": plan_bytes(PLAN).decode().replace('"leader_after":3', '"leader_after":9'),
    "half.json": plan_bytes(PLAN).decode()[:900],
    "reassign.json": to_json(MOVES).decode(),
    "other.json": '{"version":1,"partitions":[{"topic":"gone","partition":0,"replicas":[7]}]}',
    "layout.json": LAYOUT,
    "empty-layout.json": '{"format": "kafka-layout/1", "brokers": [{"id": 1}], "topics": []}',
    "holes.json": LAYOUT.replace('"partition": 1', '"partition": 2'),
    "unknown-broker.json": LAYOUT.replace("[1, 3]", "[1, 8]"),
    "nan.json": LAYOUT.replace("40000000", "NaN"),
    "zero.toml": "[default]\ndisk_bytes = 0\n",
    "there.json": "",
    "typo.toml": "[membership]\nexpiri_s = 8\n",
    "relation.toml": "[hooks]\ndeadline_s = 45\n",
    "broken.jsonl": '{"export": 1, "topic": "t", "end_offsets": {"0": 2}, "exported_at_ms": 1}\n{"partition": 0,\n',
    "edited.jsonl": exported(edited=True),
    "whole.jsonl": exported(edited=False),
    "topics.txt": "# mine\nt/n/one\npersistent://t/n/two\nthree\n",
    "client.properties": "security.protocol=SSL\nacks=1\n",
    "gaps.jsonl": (
        '{"export": 1, "topic": "t", "end_offsets": {"0": 2}, "exported_at_ms": 1}\n'
        '{"partition": 0, "offset": 1, "timestamp_ms": 1, "key": "a/b", "value": null}\n'
    ),
}
