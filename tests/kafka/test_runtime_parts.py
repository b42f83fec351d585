"""Threads of the Kafka clients that fail are seen: started again within bounds, or the member ends with a reason."""

import asyncio

import pytest

from statechannel.api import Owned, StateChannel
from statechannel.kafka.election import LeaderElection
from statechannel.kafka.reader import LogReader
from statechannel.kafka.writer import LogWriter
from tests.support.channels import created, make_settings
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S


def fail_once(monkeypatch: pytest.MonkeyPatch, kind: type, method: str, times: int = 1) -> list[int]:
    """The next calls of a method of the thread's loop raise."""
    left = [times]
    real = getattr(kind, method)

    def broken(self, *args):
        if left[0] > 0:
            left[0] -= 1
            raise ZeroDivisionError("broken on purpose")
        return real(self, *args)

    monkeypatch.setattr(kind, method, broken)
    return left


async def test_reader_and_election_are_started_again(kafka: Kafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch):
    settings = make_settings(kafka.bootstrap_servers, topic_prefix)
    async with StateChannel.open(settings, broker="b1", create_topics=True, join_timeout_s=WAIT_S) as channel:
        await created(channel, "a/b", 1)
        left = fail_once(monkeypatch, LogReader, "_step")
        elections = fail_once(monkeypatch, LeaderElection, "_step")
        async with asyncio.timeout(WAIT_S):
            while left[0] or elections[0]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert isinstance(await channel.lookup("a/b/t", WAIT_S), Owned)
        async with asyncio.timeout(WAIT_S):
            while not channel.status()["leading"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert channel.stopped is None


async def test_reader_that_fails_again_and_again_ends_the_member(kafka: Kafka, topic_prefix: str, monkeypatch):
    settings = make_settings(kafka.bootstrap_servers, topic_prefix)
    channel = await StateChannel.open(settings, broker="b1", create_topics=True, join_timeout_s=WAIT_S)
    fail_once(monkeypatch, LogReader, "_step", times=1000)
    stopped = await asyncio.wait_for(channel.wait_stopped(), WAIT_S)
    assert stopped.reason == "part-failed"
    assert "ZeroDivisionError" in stopped.detail
    assert stopped.exit_code == 70


async def test_writer_that_fails_ends_the_member(kafka: Kafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch):
    settings = make_settings(kafka.bootstrap_servers, topic_prefix)
    channel = await StateChannel.open(settings, broker="b1", create_topics=True, join_timeout_s=WAIT_S)
    fail_once(monkeypatch, LogWriter, "_report_refused", times=1000)
    stopped = await asyncio.wait_for(channel.wait_stopped(), WAIT_S)
    assert stopped.reason == "part-failed"
    assert "writer" in stopped.detail
