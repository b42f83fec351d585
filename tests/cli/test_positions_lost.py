"""A topic that is not the one that brokers have read, or ends before what they have read, and nobody alive to say so."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.audit.engine import LOCAL, AuditQuestion, ExportSource
from statechannel.audit.errors import ExportFileError
from statechannel.audit.transfer.export_file import read_export, write_export
from statechannel.audit.transfer.line import BadLine, parse_header
from statechannel.cli.doctor.checks import Severity, examine
from statechannel.cli.doctor.command import CHECKS
from statechannel.cli.kit.progress import TERMINAL
from statechannel.engine.proven_positions import ProvenPositions
from statechannel.kafka.admin import OffsetBounds
from statechannel.protocol.codec import HEAD_KEY, encode
from statechannel.protocol.log import RecordRead, Topic
from statechannel.queries import registry as topic_state
from statechannel.queries.audit_log import answered
from statechannel.stories.processes import WritersHeard
from tests.support.doctor_facts import healthy
from tests.unit.audit.test_lost_head import written

THIS, OTHER = "topic-one", "topic-two"


def head_mark(known: int) -> tuple[bytes, bytes]:
    by = {"broker": "b1", "incarnation": "x"}
    return HEAD_KEY, encode({"through": 0, "first": 0, "known": known, "by": by})


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> Any:
    def lost(heartbeats: list[dict[str, Any]], log: list[tuple[bytes, bytes]]) -> dict[int, int]:
        @contextmanager
        def open_tail(_: object, topic: Topic, partition: int) -> Iterator[object]:
            records = [RecordRead(topic, partition, offset, 1, *record) for offset, record in enumerate(log)]
            yield SimpleNamespace(span=lambda: None, records=lambda _: records)

        monkeypatch.setattr(topic_state, "open_tail", open_tail)
        positions = ProvenPositions(THIS, 1)
        for info in heartbeats:
            positions.take(info)
        return topic_state.positions_lost(None, positions, {0: OffsetBounds(0, len(log))})  # type: ignore[arg-type]

    return lost


LOG = [(b"t/n", b"{}")] * 3


@pytest.mark.parametrize("log", [LOG, []], ids=["some records", "empty"])
@pytest.mark.parametrize("topic", [THIS, OTHER, None])
def test_what_brokers_have_read_and_the_log_does_not_have_is_lost(lost: Any, topic: str | None, log: Any) -> None:
    assert lost([{"log": topic, "applied": {"0": 7}}, {"log": topic, "applied": {"0": 5}}], log) == {0: 7}


def test_of_another_topic_nothing_is_left_however_long_this_one_is(lost: Any) -> None:
    assert lost([{"log": OTHER, "applied": {"0": 1}}], LOG) == {0: 1}
    assert lost([{"log": THIS, "applied": {"0": 2}}], LOG) == {}
    assert lost([{"log": THIS, "applied": {"0": 2, "7": 9}}, {"applied": "junk"}], LOG) == {}


def test_what_was_restated_or_given_up_is_lost_no_longer(lost: Any) -> None:
    heartbeats = [{"log": OTHER, "applied": {"0": 7}}]
    assert lost(heartbeats, [*LOG, head_mark(6)]) == {0: 7}
    assert lost(heartbeats, [*LOG, head_mark(7)]) == {}


def test_the_doctor_says_it_and_counts_records_in_wrong_partitions() -> None:
    facts = replace(healthy(), positions_lost={0: 41})
    (finding,) = [item for item in examine(CHECKS, facts) if item.check == "head"]
    assert finding.severity is Severity.CRITICAL
    assert finding.todo
    (finding, _) = [item for item in examine(CHECKS, replace(healthy(), misplaced=2)) if item.check == "log"]
    assert finding.severity is Severity.WARNING


def test_an_audit_is_tentative_then(tmp_path: Path) -> None:
    source = ExportSource(written(tmp_path, first=0))
    answer = answered(LOCAL, AuditQuestion(source), WritersHeard(), TERMINAL).answer
    assert "tentative" not in answer
    assert "positions_lost" not in answer
    answer = answered(LOCAL, AuditQuestion(source), WritersHeard(positions_lost={0: 7}), TERMINAL).answer
    assert (answer["tentative"], answer["positions_lost"]) == (True, {"0": 7})


def test_an_export_made_then_says_so_for_ever(tmp_path: Path) -> None:
    made = read_export(written(tmp_path, first=0))
    records = [record for part in made.partitions.values() for record in part]
    header = replace(made.header, positions_lost={0: 41}, digest=None)
    path = tmp_path / "lost.jsonl"
    digest = write_export(path, header, records, now_ms=lambda: 1).digest
    assert digest != made.header.digest
    for writers in (None, WritersHeard()):  # with the file of the registry, and without it
        answer = answered(LOCAL, AuditQuestion(ExportSource(path)), writers, TERMINAL).answer
        assert (answer["tentative"], answer["positions_lost"]) == (True, {"0": 41})
    edited = path.read_bytes().replace(b'"positions_lost":{"0":41}', b'"positions_lost":{"0":17}')
    path.write_bytes(edited)
    with pytest.raises(ExportFileError):
        answered(LOCAL, AuditQuestion(ExportSource(path)), None, TERMINAL)


@pytest.mark.parametrize("lost", ['{"0": -1}', '{"x": 1}', "[1]", '{"0": "1"}'])
def test_a_header_that_names_no_offset_is_refused(lost: str) -> None:
    line = f'{{"export":1,"topic":"t","end_offsets":{{"0":4}},"exported_at_ms":1,"positions_lost":{lost}}}'
    with pytest.raises(BadLine):
        parse_header(line.encode())
