"""Strict codec of samples: records of the sample topic, and lines of files. Pure."""

from __future__ import annotations

import re
from dataclasses import fields
from enum import StrEnum
from typing import Any, Final
from zlib import crc32

import orjson

from loaddata.model.figures import LATEST_MS, is_count, is_figure
from loaddata.samples.partitions import SAMPLE_FORMAT, PartitionSample

VALUE_BYTES_MAX: Final = 4_096
"""Of one record; names of topics have at most 249 bytes."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_FORMATS: Final = re.compile(r"partition-sample/([0-9]{1,9})")
_TEXT_MAX: Final = 512
_FIELDS: Final = dict.fromkeys(field.name for field in fields(PartitionSample)).keys()
_NEEDED: Final = frozenset({"cluster", "broker", "topic", "partition", "taken_at_ms"})


class InvalidSampleReason(StrEnum):
    """Why a record or a line is not a sample."""

    NOT_JSON = "not JSON"
    NOT_A_SAMPLE = "not a sample"
    NEWER_FORMAT = "newer format"
    TOO_LONG = "too long"
    FIELDS = "unknown or missing field"
    FIGURE = "not a sound figure"
    PLACE = "not a topic, partition or broker"
    TIME = "not a time"
    OTHER_KEY = "key and value differ"
    OTHER_PLACE = "not where its key belongs"
    OTHER_CLUSTER = "another cluster"


def key_of(topic: str, partition: int) -> bytes:
    """Key of a sample's record: all samples of a partition lie in one partition of the sample topic, in order."""
    return f"{topic}-{partition}".encode()


def home_of(key: bytes, partitions: int) -> int:
    """Partition of the sample topic in which records of a key lie; what lies elsewhere does not count.

    So all samples of a partition are in order, with any number of writers, and one partition of the topic after the other can be
    averaged. It is what librdkafka's partitioners do by themselves; those of Java's clients do otherwise.
    """
    return crc32(key) % partitions


def encode(sample: PartitionSample) -> bytes:
    """The record's value.

    Raises:
        ValueError: `decode` would refuse it, such as one with NaN; the message is the reason.
    """
    figures = {name: getattr(sample, name) for name in _FIELDS}  # `asdict` takes five times as long
    sample_or_reason = checked(figures)
    if isinstance(sample_or_reason, InvalidSampleReason):
        raise ValueError(f"a sample of {sample.topic}-{sample.partition}: {sample_or_reason}")  # noqa: TRY004 - of the right type
    return orjson.dumps({"format": SAMPLE_FORMAT, **figures})


def decode(value: bytes | None, key: bytes | None = None) -> PartitionSample | InvalidSampleReason:
    """The sample, or why it is not one. Never raises.

    Args:
        value: Of the record, or a line of a file.
        key: Of the record; None: not looked at.
    """
    if value is None:
        return InvalidSampleReason.NOT_A_SAMPLE
    if len(value) > VALUE_BYTES_MAX:
        return InvalidSampleReason.TOO_LONG
    try:
        loaded = orjson.loads(value)  # refuses NaN and Infinity
    except orjson.JSONDecodeError:
        return InvalidSampleReason.NOT_JSON
    if not isinstance(loaded, dict):
        return InvalidSampleReason.NOT_A_SAMPLE
    format_name = loaded.pop("format", None)
    if format_name != SAMPLE_FORMAT:
        number = _FORMATS.fullmatch(format_name) if isinstance(format_name, str) else None
        return InvalidSampleReason.NEWER_FORMAT if number and int(number[1]) > 1 else InvalidSampleReason.NOT_A_SAMPLE
    sample = checked(loaded)
    if isinstance(sample, PartitionSample) and key is not None and key != key_of(sample.topic, sample.partition):
        return InvalidSampleReason.OTHER_KEY
    return sample


def decode_at(
    value: bytes | None, key: bytes | None, at: int, partitions: int, cluster: str = ""
) -> PartitionSample | InvalidSampleReason:
    """As `decode`, of a record of the sample topic.

    Args:
        value: Of the record.
        key: Of the record.
        at: Partition of the sample topic in which it lies.
        partitions: How many that has.
        cluster: Samples of other clusters do not count; empty: all do.
    """
    sample = decode(value, key or b"")
    if isinstance(sample, PartitionSample):
        if home_of(key or b"", partitions) != at:
            return InvalidSampleReason.OTHER_PLACE
        if cluster and sample.cluster not in {"", cluster}:
            return InvalidSampleReason.OTHER_CLUSTER
    return sample


def checked(loaded: dict[str, Any]) -> PartitionSample | InvalidSampleReason:
    """A sample of these fields, or why there is none."""
    if not _NEEDED <= loaded.keys() <= _FIELDS:
        return InvalidSampleReason.FIELDS
    texts = (loaded["cluster"], loaded.get("host", ""), loaded.get("source", ""))
    if not all(isinstance(text, str) and len(text) <= _TEXT_MAX for text in texts):
        return InvalidSampleReason.FIELDS
    topic = loaded["topic"]
    if not isinstance(topic, str) or not _NAME.fullmatch(topic):
        return InvalidSampleReason.PLACE
    if not is_count(loaded["broker"]) or not is_count(loaded["partition"]) or loaded["partition"] >= 2**31:
        return InvalidSampleReason.PLACE
    if not is_count(loaded["taken_at_ms"]) or loaded["taken_at_ms"] > LATEST_MS:
        return InvalidSampleReason.TIME
    disk, share = loaded.get("disk_bytes"), loaded.get("cpu_share")
    rates = (loaded.get("bytes_in_per_s"), loaded.get("bytes_out_per_s"), share)
    if not (disk is None or is_count(disk)) or not all(rate is None or is_figure(rate) for rate in rates):
        return InvalidSampleReason.FIGURE
    if share is not None and share > 1:
        return InvalidSampleReason.FIGURE
    return PartitionSample(**loaded)
