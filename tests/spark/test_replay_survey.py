"""From where on a log with gaps tells all, as Spark finds it, against the same found record by record."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from spark.channel.survey import survey
from spark.channel.table import with_group
from spark.replay.survey import known_points
from statechannel.protocol.log import RecordRead, Topic
from statechannel.replay.survey import known_of
from tests.spark.channel_frames import frame_of
from tests.support.lone_engine import heartbeat, mark
from tests.support.mark_cases import CASES, COLD_START, marked_log, two_marks_log
from tests.twin import loggen
from tests.unit.core.against_twin import KNOBS, record_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check(session: SparkSession, logs: list[list[RecordRead]], oldest_kept_ms: int) -> None:
    """Each log is a partition of its own."""
    rows = [record._replace(partition=number) for number, log in enumerate(logs) for record in log]
    found = known_points(frame_of(session, rows), oldest_kept_ms=oldest_kept_ms)
    expected = {number: known_of(log, oldest_kept_ms=oldest_kept_ms) for number, log in enumerate(logs) if log}
    assert found == {number: known for number, known in expected.items() if known is not None}


def test_whatever_stands_on_the_key_of_the_marks(session: SparkSession) -> None:
    check(session, [*(marked_log(case, vouched=True) for case in CASES.values()), two_marks_log()], 0)


def test_random_words_and_gaps(session: SparkSession) -> None:
    rng = Random(1)
    logs = []
    for _ in range(12):
        log = []
        for offset in range(1, rng.randint(4, 16)):
            if rng.random() < 0.08:
                continue
            draw, key, value = rng.random(), COLD_START, mark("b-1", rng.randint(max(-1, offset - 4), offset))
            if draw < 0.4:
                key, value = b"!heartbeat", heartbeat("b-1", rng.randint(-1, offset))
            elif draw < 0.6:
                key, value = rng.choice([COLD_START, b"!heartbeat"]), b'{"through":1}'
            elif draw < 0.7:
                key, value = b"t/n", b"junk"
            log.append(RecordRead(Topic.CHANNEL, 0, offset, offset, key, value))
        logs.append(log)
    check(session, logs, rng.choice([0, 3]))


def test_cleaned_logs(session: SparkSession) -> None:
    log = loggen.generate(7, replace(KNOBS["junky"], beat=6.0, partitions=1)).compacted(7, KNOBS["junky"])
    records = [record_of(line) for line in log.lines]
    check(session, [records], log.exported_at_ms - 3_600_000)


def test_a_mark_that_no_column_holds_is_survived(session: SparkSession) -> None:
    """An integer beyond the format's, in a record so large that a worker decodes it."""
    values = [mark("b-1", 2**63) + b" " * 2_000, mark("b-1", 0) + b" " * 2_000]
    log = [RecordRead(Topic.CHANNEL, 0, n, n, COLD_START, value) for n, value in enumerate(values)]
    assert [one.offset for one in survey(with_group(frame_of(session, log)), {}).seen[0].marks] == [1]
