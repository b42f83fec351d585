"""What a replay is given: a log as rows, and what is to be found in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from statechannel.audit.engine import AsOf, ReadMode, Wants

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class ReplayLog:
    """Records as rows, with what is known of the whole.

    Attributes:
        name: For people.
        rows: partition, offset, timestamp_ms, key, value; those of partition -1 are notes of the reader.
        ends: Offset after the last record of each partition, empty ones too.
        now_ms: Behind every reading of the rows: what was younger than the lag then was not cleaned away before.
        check: Told the notes; raises where the source is not what it should be.
        likely_gapped: The survey comes first, since the log is known to have gaps, or likely to.
        why_gapped: Why a partition has gaps, for people; empty where only that is known.
        stored: The rows of an archive with what it says of them.
    """

    name: str
    rows: DataFrame
    ends: Mapping[int, int]
    now_ms: Callable[[], int]
    check: Callable[[Sequence[bytes]], None] = lambda _: None
    likely_gapped: bool = False
    why_gapped: Callable[[int], str] = lambda _: ""
    stored: DataFrame | None = None


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What is to be found; the fields are those of `AuditQuestion`."""

    read: ReadMode = ReadMode.AUTO
    as_of: AsOf | None = None
    compaction_lag_ms: int = 0
    wants: Wants = field(default_factory=Wants)
    verdicts: bool = False
