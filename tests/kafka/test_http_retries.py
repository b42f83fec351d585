"""Calls of the admin API that are retried while brokers are killed act once; `make retries` has the long run."""

from collections import Counter
from pathlib import Path

import pytest

from statechannel.http_api.actions import operation_of
from statechannel.protocol.states import State
from tests.http_retries import CLIENT, RetriedCall, RetryAnswer, faults_of, retry
from tests.support.kafka_lanes import Kafka


@pytest.mark.lane("fast")
def test_retried_calls_act_once(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> None:
    result = retry(kafka, tmp_path, topic_prefix, calls=60, seed=11, pause_s=(0.2, 1.0))
    assert not result.faults
    assert result.kills >= 1
    assert result.acted > result.calls // 4
    assert result.sent > 2 * result.calls


def test_the_checker_sees_what_may_not_be() -> None:
    call = RetriedCall(1, "transfer", "/path", {})
    operation = operation_of(CLIENT, call.key)
    done = RetryAnswer("accepted", 200, operation, "transferred")
    call.answers = [done, done]
    assert faults_of(call, Counter({(operation, State.RELEASING): 1})) == []
    for acts in (0, 2):
        assert faults_of(call, Counter({(operation, State.RELEASING): acts}))
    call.answers = [done, RetryAnswer("rejected", 409, operation, "busy")]
    assert faults_of(call, Counter({(operation, State.RELEASING): 1}))
    call.answers = [RetryAnswer("rejected", 409, operation, "not-assigned")]
    assert faults_of(call, Counter({(operation, State.RELEASING): 1}))
    call.answers = [RetryAnswer("accepted", 200, "another", "transferred")]
    assert faults_of(call, Counter({(operation, State.RELEASING): 1}))
    call.answers, call.refused = [], Counter({"generation-changed": 1})
    assert faults_of(call, Counter({(operation, State.RELEASING): 1}))
