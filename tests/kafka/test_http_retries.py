"""Calls of the admin API that are sent again at any broker, while brokers are killed, act once each."""

from __future__ import annotations

from pathlib import Path

from tests.http_retries.calls import counts
from tests.http_retries.run import run_calls
from tests.support.kafka_lanes import Kafka

CALLS = 120


def test_each_call_acts_once(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> None:
    result = run_calls(kafka, topic_prefix, tmp_path, calls=CALLS, seed=1, at_once=6, kill_every_s=1.0)
    assert result.broken == []
    numbers = counts(result.calls)
    assert numbers["calls"] == CALLS
    assert result.kills > 0
    assert numbers["sent more than once"] > 0
    assert numbers["ended in the log"] > 0
