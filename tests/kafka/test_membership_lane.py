"""A member that is behind in the channel still hears who is there, itself included, and says how old its answers are."""

import asyncio
import time
from typing import Any

import pytest
from confluent_kafka import Producer

from statechannel.api import Owned, StateChannel
from statechannel.engine.context import Mode
from statechannel.engine.provenance import Provenance
from statechannel.engine.transitions import Transitions
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.protocol.log import RecordRead, Topic
from tests.support.channels import created, make_settings
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S

JUNK = b"a/b/junk"
STEP_S = 0.002
SAFE_AFTER_S = 10.0
BEHIND_S = 3 * SAFE_AFTER_S
"""A member that read its heartbeats behind the junk would be in safe mode by then."""


async def test_junk_in_the_channel_does_not_keep_a_member_from_hearing_itself(
    kafka: Kafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at, changed = Provenance.look_at, Transitions.mode_changed
    modes: list[Mode] = []

    def slowly(provenance: Provenance, event: RecordRead) -> None:
        if event.key == JUNK:
            time.sleep(STEP_S)
        look_at(provenance, event)

    def noted(transitions: Transitions, before: Mode) -> None:
        modes.append(transitions._context.mode)
        changed(transitions, before)

    monkeypatch.setattr(Provenance, "look_at", slowly)
    patient = {"membership": {"expiry_s": 2 * SAFE_AFTER_S}, "safe_mode": {"after_s": SAFE_AFTER_S}}
    settings = make_settings(kafka.bootstrap_servers, topic_prefix, **patient)
    async with StateChannel.open(settings, broker="b1", create_topics=True, join_timeout_s=WAIT_S) as channel:
        await created(channel, "a/b", 1)
        before = await channel.lookup("a/b/t", WAIT_S)
        assert isinstance(before, Owned)
        assert before.stale_age_s is None
        monkeypatch.setattr(Transitions, "mode_changed", noted)
        await asyncio.to_thread(
            write_junk,
            kafka.bootstrap_servers,
            ChannelTopics(topic_prefix).names[Topic.CHANNEL],
            round(BEHIND_S / STEP_S),
        )
        ages: list[float] = []

        def lag_s() -> float:
            ages.append(channel.status()["partitions"][0]["lag_s"])
            return ages[-1]

        async with asyncio.timeout(WAIT_S):
            while lag_s() < BEHIND_S / 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            answer = await channel.lookup("a/b/t", WAIT_S)
            assert isinstance(answer, Owned)
            assert answer.stale_age_s >= BEHIND_S / 2 - 1.0
            while lag_s() > 1.0:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        after = await channel.lookup("a/b/t", WAIT_S)
    assert modes == []
    assert isinstance(after, Owned)
    assert after.stale_age_s is None


def write_junk(bootstrap: str, topic: str, count: int) -> None:
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for _ in range(count):
        producer.produce(topic, b"?", JUNK, partition=0, on_delivery=lambda error, _: errors.append(error))
        producer.poll(0)
    producer.flush(WAIT_S)
    assert errors == [None] * count
