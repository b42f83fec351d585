"""A sample as JSON: whole there and back, and strict with everything else."""

import math
from dataclasses import replace
from typing import Any

import orjson
import pytest

from loaddata.samples.partitions import PartitionSample
from loaddata.samples.sample_topic import InvalidSampleReason, decode, encode, key_of

SAMPLE = PartitionSample(
    cluster="c",
    broker=1,
    host="h",
    topic="orders",
    partition=3,
    taken_at_ms=60_000,
    disk_bytes=10,
    bytes_in_per_s=1.5,
    bytes_out_per_s=0.0,
    cpu_share=0.25,
    source="test",
)


def test_there_and_back() -> None:
    assert decode(encode(SAMPLE), b"orders-3") == SAMPLE
    bare = PartitionSample(cluster="", broker=0, host="", topic="t", partition=0, taken_at_ms=0)
    assert decode(encode(bare), key_of("t", 0)) == bare
    assert orjson.loads(encode(SAMPLE))["format"] == "partition-sample/1"


@pytest.mark.parametrize(
    "change",
    [
        {"bytes_in_per_s": math.nan},
        {"bytes_out_per_s": math.inf},
        {"cpu_share": -0.1},
        {"cpu_share": 1.1},
        {"disk_bytes": -1},
        {"disk_bytes": 1.5},
        {"topic": "no topic"},
        {"partition": -1},
        {"taken_at_ms": -5},
    ],
)
def test_what_is_not_sound_is_not_written(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a sample of"):
        encode(replace(SAMPLE, **change))


def changed(**fields: Any) -> bytes:
    return orjson.dumps({**orjson.loads(encode(SAMPLE)), **fields})


@pytest.mark.parametrize(
    ("value", "junk"),
    [
        (None, InvalidSampleReason.NOT_A_SAMPLE),
        (b"", InvalidSampleReason.NOT_JSON),
        (b"{", InvalidSampleReason.NOT_JSON),
        (b"[]", InvalidSampleReason.NOT_A_SAMPLE),
        (b'{"a": NaN}', InvalidSampleReason.NOT_JSON),
        (encode(SAMPLE).replace(b"1.5", b"NaN"), InvalidSampleReason.NOT_JSON),
        (encode(SAMPLE).replace(b"1.5", b"Infinity"), InvalidSampleReason.NOT_JSON),
        (encode(SAMPLE).replace(b"1.5", b"1e17"), InvalidSampleReason.FIGURE),
        (b" " * 5_000, InvalidSampleReason.TOO_LONG),
        (changed(format="partition-sample/2"), InvalidSampleReason.NEWER_FORMAT),
        (changed(format="partition-sample/2", more=1), InvalidSampleReason.NEWER_FORMAT),
        (changed(format="partition-sample/0"), InvalidSampleReason.NOT_A_SAMPLE),
        (changed(format=1), InvalidSampleReason.NOT_A_SAMPLE),
        (changed(more=1), InvalidSampleReason.FIELDS),
        (changed(host=5), InvalidSampleReason.FIELDS),
        (changed(topic=""), InvalidSampleReason.PLACE),
        (changed(partition=True), InvalidSampleReason.PLACE),
        (changed(broker="1"), InvalidSampleReason.PLACE),
        (changed(taken_at_ms=1.5), InvalidSampleReason.TIME),
        (changed(taken_at_ms=2**60), InvalidSampleReason.TIME),
        (changed(disk_bytes="10"), InvalidSampleReason.FIGURE),
        (changed(cpu_share=1.01), InvalidSampleReason.FIGURE),
        (changed(bytes_in_per_s=-1), InvalidSampleReason.FIGURE),
        (changed(partition=4), InvalidSampleReason.OTHER_KEY),
    ],
)
def test_junk(value: bytes | None, junk: InvalidSampleReason) -> None:
    assert decode(value, b"orders-3") == junk
