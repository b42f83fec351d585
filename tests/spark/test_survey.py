"""What the JVM says of a log against the same said record by record."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from spark.channel.survey import MAY_BE_NEWER, newest_old, survey
from spark.channel.table import with_group
from statechannel.protocol.codec import newer_format
from statechannel.protocol.log import RecordRead, Topic
from tests.spark.channel_frames import frame_of
from tests.support.pure_table import seen_in
from tests.twin import junk, loggen
from tests.unit.core.against_twin import KNOBS, record_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOUND = {
    "format": 1,
    "kind": "proposal",
    "id": "x",
    "covers": 1,
    "by": {"broker": "b", "incarnation": "i"},
    "version": 2,
    "base": "a",
    "state": "Assigned",
    "from": None,
    "to": "b",
}
TRICKY = (
    b'{"format":1,"x":{"format":1}}',
    b'{"format":1,"format":2}',
    b'{"form\\u0061t":2,"x":"\\"format\\":1,"}',
    b'{"x":{"format":1},"f\\u006frmat":3}',
    b'{"x":[{"format":1}]}',
    b'{"format":1 ,"kind":2}',
    b'{"format": 1}',
    b'{"format":1e0}',
    b'{"format":10}',
    b'{"format" :2}',
    b'\xf0{"format":2,"format":1}',
    b'{"format":2}\xf0',
    b'{"format":9007199254740991}',
    b'{"format":9007199254740992}',
    b" " * 900_000 + b'{"format":2}',
    b'[{"format":2}]',
    b'"format": 1',
    b"",
    None,
)


def test_no_newer_format_is_passed_over(session: SparkSession) -> None:
    values = [way.value for kind in ("bundle", "namespace") for way in junk.ways(SOUND, kind) if not junk.is_large(way)]
    keys = (b"a/b", b"a/b/0x00000000_0xffffffff", b"!heartbeat", b"!\xff", b"\xff", None, b"")
    cases = [(key, value) for value in [*values, *TRICKY] for key in (keys if value in TRICKY else keys[:1])]
    rows = [RecordRead(Topic.CHANNEL, 0, offset, 1, key, value) for offset, (key, value) in enumerate(cases)]
    results = {
        row["offset"]: row["newer"]
        for row in frame_of(session, rows).selectExpr("offset", f"{MAY_BE_NEWER} as newer").collect()
    }
    newer = [row.offset for row in rows if newer_format(row.key, row.value)]
    assert len(newer) > 5
    assert [rows[offset] for offset in newer if not results[offset]] == []


@pytest.mark.parametrize(("knobs", "seed"), [("newer", 1), ("wild", 5)])
def test_the_same_is_seen(session: SparkSession, knobs: str, seed: int) -> None:
    """With gaps before, at and behind a newer format, and with what the cleaner left."""
    log = loggen.generate(seed, KNOBS[knobs]).compacted(seed, KNOBS[knobs])
    generator = Random(seed)
    records = [record for line in log.lines if generator.random() < 0.9 for record in [record_of(line)]]
    positions = {number: generator.choice([0, 3]) for number in log.end_offsets}
    records = [record for record in records if record.offset >= positions[record.partition]]
    apart = {number: [r for r in records if r.partition == number] for number in log.end_offsets}
    rows = with_group(frame_of(session, generator.sample(records, len(records)))).persist()
    try:
        result = survey(rows, positions)
        expected = {number: seen_in(part, positions[number]) for number, part in apart.items() if part}
        assert dict(result.seen) == expected
        middle_ms = records[len(records) // 2].timestamp_ms
        old = {
            number: max(
                (r.offset for r in apart[number] if r.timestamp_ms <= middle_ms and r.offset <= seen.last), default=-1
            )
            for number, seen in expected.items()
        }
        assert newest_old(rows, result.seen, oldest_kept_ms=middle_ms) == old
    finally:
        rows.unpersist()


def test_control_records_do_not_pass_the_driver_whole(session: SparkSession) -> None:
    """Junk as large as Kafka takes it, and more heartbeats than the first look brings along."""
    sound = b'{"format":1,"kind":"heartbeat","id":"a","covers":1,"by":{"broker":"b","incarnation":"i"},"clean_to":%d}'
    values = [b"x" * 900_000, sound % 0, sound % 1 + b" " * 2_000, None, *(sound % n for n in range(20_000))]
    log = [RecordRead(Topic.CHANNEL, 0, n, n, b"!heartbeat", value) for n, value in enumerate(values)]
    seen = survey(with_group(frame_of(session, log)), {}).seen
    assert seen == {0: seen_in(log, 0)}


def test_junk_under_the_key_of_heartbeats_is_survived(session: SparkSession) -> None:
    """More of it than the driver has memory: it used to end the JVM."""
    junk_rows = session.range(1_200).selectExpr(
        "0 as partition",
        "id as offset",
        "id as timestamp_ms",
        "cast('!heartbeat' as binary) as key",
        "cast(repeat('x', 900000) as binary) as value",
        "cast(null as array<struct<key: string, value: binary>>) as headers",
    )
    assert survey(with_group(junk_rows), {}).seen[0].records == 1_200
