"""The engine `spark` against the local engine: the same answer to every question, as JSON, and the same file of verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spark.replay.audit_engine import answer_with
from statechannel.audit import local
from statechannel.audit.engine import AuditQuestion, ExportSource, ReadMode, Wants
from statechannel.audit.errors import ExportFileError
from statechannel.audit.gap_list import GapFilter
from statechannel.audit.moments import AsOf, LogWindow, parse_as_of
from statechannel.audit.transfer.export_file import write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.protocol.bundle import parse_key
from tests.spark.asking import ALL, check, no_bar
from tests.support.cold_start_worlds import LAG_MS, ColdStartWorld
from tests.support.export_edits import EDITS, records_of
from tests.support.lone_engine import heartbeat
from tests.twin import loggen
from tests.unit.audit import test_lost_head as lost_head
from tests.unit.core.against_twin import KNOBS, seeds

EXAMPLES = Path(__file__).parents[1] / "golden" / "channel-record"
EXPECTED = json.loads((EXAMPLES / "expected.json").read_text())


@pytest.mark.parametrize("name", [name for name in EXPECTED if "-1" in name])
def test_examples(session: Any, name: str, tmp_path: Path) -> None:
    expected = EXPECTED[name]
    file, _, moment = name.partition(" --as-of ")
    question = AuditQuestion(
        ExportSource(EXAMPLES / file),
        read=ReadMode(expected["read"]),
        as_of=parse_as_of(moment) if moment else None,
        wants=ALL,
        verdicts=tmp_path if expected["read"] == "full" else None,
    )
    check(session, question, tmp_path)


def moments(log: loggen.Log, rng: Random) -> Iterator[str | None]:
    times = [line.timestamp_ms for line in log.lines]
    highest = max(log.end_offsets.values())
    while True:
        yield rng.choice([None, str(rng.randint(0, highest)), f"{rng.choice(times)}ms", f"{rng.choice(times) - 1}ms"])


def some_name(log: loggen.Log, rng: Random) -> str:
    keys = [line.key.decode() for line in log.lines if line.key is not None and parse_key(line.key) is not None]
    return rng.choice([*rng.sample(keys, 3), f"{'/'.join(keys[0].split('/')[:2])}/orders", "no/where"])


def limited(wants: Wants, log: loggen.Log, rng: Random) -> Wants:
    """The same, or limited to a window, a writer, and some causes of gaps."""
    if rng.random() < 0.3:
        return wants
    since_ms = rng.choice([line.timestamp_ms for line in log.lines])
    window = LogWindow(AsOf(time_ms=since_ms), rng.choice([None, AsOf(offset=max(log.end_offsets.values()) - 9)]))
    causes = frozenset(rng.sample(["transfer", "unload", "declined", "owner-lost", "repair"], 3))
    return replace(
        wants,
        all_records=rng.random() < 0.7,
        window=window,
        by=rng.choice([None, "broker-1"]),
        gap_filter=GapFilter(window, causes, longer_than_ms=rng.choice([None, 60_000])),
    )


@pytest.mark.parametrize("knobs", ["wild", "newer"])  # the examples above are the others
def test_generated_logs(session: Any, knobs: str, tmp_path: Path) -> None:
    """Several partitions, junk, splits, re-creations, newer formats; cleaned or not; as of offsets and times."""
    for seed in seeds(1):
        rng = Random(f"spark {knobs} {seed}")
        log = loggen.generate(seed + 40, replace(KNOBS[knobs], partitions=rng.choice([1, 2, 5])))
        when = moments(log, rng)
        for number, one in enumerate((log, log.compacted(seed, KNOBS[knobs]))):
            file = tmp_path / "log.jsonl"
            file.write_text(one.export())
            as_of = next(when) if number else None
            wants = limited(replace(ALL, history=rng.choice([None, some_name(log, rng)])), log, rng)
            read = rng.choice([ReadMode.AUTO, ReadMode.JOIN]) if number else ReadMode.AUTO
            question = AuditQuestion(
                ExportSource(file),
                read=read,
                as_of=None if as_of is None else parse_as_of(as_of),
                wants=wants if rng.random() < 0.8 else Wants(),
                verdicts=tmp_path if number == 0 else None,
            )
            check(session, question, tmp_path)


LINES = [
    b'{"export": 1, "topic": "t", "end_offsets": {"0": 3, "1": 2}, "exported_at_ms": 9}',
    b'{"partition": 0, "offset": 0, "timestamp_ms": 1, "key": "a/b", "value": null}',
    b'{"partition": 0, "offset": 1, "timestamp_ms": 1, "key": null, "value": "x"}\r',
    b" \t",
    b'{"partition": 0, "offset": 2, "timestamp_ms": 1, "key_base64": "gA==", "value_base64": "/w=="}',
    b'{"partition": 1, "offset": 0, "timestamp_ms": 1, "key": "a/c", "value": "x"}',
    b"",
    b'{"partition": 1, "offset": 1, "timestamp_ms": 1, "key": "a/c", "value": "\xe2\x80\xa8"}',
]
BAD = {
    "not JSON": (4, b'{"partition": 0,'),
    "not UTF-8": (4, b'{"partition": 0, "offset": 2, "timestamp_ms": 1, "key": "\xff", "value": null}'),
    "an offset again": (4, LINES[2]),
    "the partition before": (7, b'{"partition": 0, "offset": 2, "timestamp_ms": 1, "key": "a/b", "value": null}'),
    "behind the end": (7, b'{"partition": 1, "offset": 2, "timestamp_ms": 1, "key": "a/b", "value": null}'),
    "no such partition": (7, b'{"partition": 2, "offset": 0, "timestamp_ms": 1, "key": "a/b", "value": null}'),
    "no header": (0, b"{}"),
}


@pytest.mark.parametrize("name", ["_log [1] {a,b} ü?.jsonl", ".log.gz"])
def test_odd_lines_and_odd_names(session: Any, name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(b"\n".join(LINES))
    assert check(session, AuditQuestion(ExportSource(file), wants=ALL, verdicts=tmp_path), tmp_path) == "full"


@pytest.mark.parametrize("as_of", ["9999999999999999999ms", "0001-01-01"])
def test_moments_before_and_behind_everything(session: Any, as_of: str, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"\n".join(LINES))
    check(session, AuditQuestion(ExportSource(file), as_of=parse_as_of(as_of), wants=ALL), tmp_path)


@pytest.mark.parametrize("bad", BAD)
def test_a_malformed_file_is_told_in_the_words_of_the_local_engine(session: Any, bad: str, tmp_path: Path) -> None:
    number, line = BAD[bad]
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"\n".join([*LINES[:number], line, *LINES[number + 1 :]]))
    with pytest.raises(ExportFileError, match=f"line {number + 1}: ") as told:
        answer_with(session, AuditQuestion(ExportSource(file)), {})
    with pytest.raises(ExportFileError) as expected:
        local.answer(AuditQuestion(ExportSource(file)), progress=no_bar)
    assert str(told.value) == str(expected.value)


@pytest.mark.parametrize(
    "name", ["a value", "the last value", "a line out", "cut", "the topic", "no digest", "no link"]
)
def test_an_edited_file_is_told_in_the_words_of_the_local_engine(session: Any, name: str, tmp_path: Path) -> None:
    line, _, edit = EDITS[name]
    file = tmp_path / "log.jsonl"
    write_export(file, ExportHeader("t", {0: 4, 1: 3}, 0), records_of(4, 3), now_ms=lambda: 1_700_000_000_000)
    lines = [json.loads(one) for one in file.read_text().splitlines()]
    file.write_text("".join(f"{json.dumps(one)}\n" for one in edit(lines)))
    with pytest.raises(ExportFileError, match=f"line {line}: ") as told:
        answer_with(session, AuditQuestion(ExportSource(file)), {})
    with pytest.raises(ExportFileError) as expected:
        local.answer(AuditQuestion(ExportSource(file)), progress=no_bar)
    assert str(told.value) == str(expected.value)


def test_a_chain_is_followed_across_splits(session: Any, tmp_path: Path) -> None:
    """Each split follows from itself: only where two meet it is seen that a line between them is gone."""
    before = session.conf.get("spark.sql.files.maxPartitionBytes")
    session.conf.set("spark.sql.files.maxPartitionBytes", "16k")
    try:
        file = tmp_path / "log.jsonl"
        write_export(file, ExportHeader("t", {0: 2_000}, 0), records_of(2_000), now_ms=lambda: 1_700_000_000_000)
        question = AuditQuestion(ExportSource(file), wants=ALL)
        assert check(session, question, tmp_path) == "full"
        lines = file.read_bytes().splitlines(keepends=True)
        ends = list(accumulate(len(line) for line in lines))
        opening = next(number for number, end in enumerate(ends) if end > 4 * 16_384 + len(lines[0]))
        for number in (opening - 1, opening):
            file.write_bytes(b"".join([*lines[:number], *lines[number + 1 :]]))
            with pytest.raises(ExportFileError, match=f"line {number + 1}: its `chain` does not match"):
                answer_with(session, question, {})
    finally:
        session.conf.set("spark.sql.files.maxPartitionBytes", before)


def test_a_file_of_many_splits_is_checked_across_them(session: Any, tmp_path: Path) -> None:
    """Each split is in order; together they are not."""
    before = session.conf.get("spark.sql.files.maxPartitionBytes")
    session.conf.set("spark.sql.files.maxPartitionBytes", "16k")
    try:
        header = b'{"export": 1, "topic": "t", "end_offsets": {"0": 2000}, "exported_at_ms": 9}'
        lines = [b'{"partition":0,"offset":%d,"timestamp_ms":1,"key":"a/b","value":null}' % at for at in range(2_000)]
        file = tmp_path / "log.jsonl"
        file.write_bytes(b"\n".join([header, *lines]))
        question = AuditQuestion(ExportSource(file), wants=ALL)
        assert check(session, question, tmp_path) == "full"
        assert session.read.text(str(file)).rdd.getNumPartitions() > 4
        file.write_bytes(b"\n".join([header, *lines[1_000:], *lines[:1_000]]))
        with pytest.raises(ExportFileError, match="line 1002: offset 0 follows offset 1999"):
            answer_with(session, question, {})
    finally:
        session.conf.set("spark.sql.files.maxPartitionBytes", before)


def test_cold_starts(session: Any, tmp_path: Path) -> None:
    """Their keys are named, also where each task has some namespaces only; whole, cleaned, up to a moment."""
    world = ColdStartWorld(0)
    end = len(world.records)
    cleaned = world.cleaned(world.records)
    marker = [record for record in world.records if record.offset != end - 2]  # a gap that cannot have been cleaned
    for number, (records, as_of) in enumerate(((world.records, None), (cleaned, str(end // 2)), (marker, None))):
        path = tmp_path / f"{number}.jsonl"
        write_export(path, ExportHeader("t", {0: end}, 0), records, now_ms=lambda now_ms=world.now_ms: now_ms)
        question = AuditQuestion(
            ExportSource(path),
            as_of=None if as_of is None else parse_as_of(as_of),
            compaction_lag_ms=LAG_MS,
            wants=ALL if number else Wants(),
        )
        check(session, question, tmp_path)


def test_a_lost_head(session: Any, tmp_path: Path) -> None:
    """Restated without a heartbeat behind the mark, and vouched for."""
    mark = len(lost_head.ROWS) + len(lost_head.RESTATED)
    restated = (*lost_head.RESTATED, lost_head.head_mark(3))
    logs = [(restated, 3), ((*restated, (b"!heartbeat", heartbeat("b-1", mark))), 3)]
    for after, first in logs:
        path = lost_head.written(tmp_path, *after, first=first)
        check(session, AuditQuestion(ExportSource(path), compaction_lag_ms=lost_head.LAG_MS, wants=ALL), tmp_path)
