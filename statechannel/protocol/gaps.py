"""Missing offsets: whether the cleaner can have taken them (protocol.md section 6)."""

from __future__ import annotations


def could_be_cleaned(before_ms: int | None, now_ms: float | None, lag_ms: float) -> bool:
    """Whether the cleaner can have removed the offsets that are missing behind a record.

    Kafka cleans no record that is younger than `min.compaction.lag.ms`, and nothing behind the first segment that holds one;
    time stamps are LogAppendTime. An offset that cannot have been cleaned is that of a transaction marker, which Kafka gives to
    no consumer.

    Args:
        before_ms: Time stamp of the last record before the missing offsets; None if it is unknown.
        now_ms: Kafka's time when they were missed; None if it is unknown.
        lag_ms: `min.compaction.lag.ms` of the topic.

    Returns:
        True also if a time is unknown.
    """
    return before_ms is None or now_ms is None or now_ms - before_ms >= lag_ms
