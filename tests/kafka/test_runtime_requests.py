"""Commands that have not joined: through the requests topic, on a real Kafka."""

import asyncio
import time

from ulid import ULID

from statechannel.api import Done, Owned, Rejected, StateChannel
from statechannel.broker.assembly import Access, access
from statechannel.kafka.tail import PartitionTail, append_and_wait
from statechannel.operations.outcomes import from_json
from statechannel.operations.request_record import Progress, Reply, Request, decode, encode
from statechannel.protocol.log import Topic
from tests.support.channels import make_settings
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S

NAMESPACE = "public/default"
TOPIC = f"{NAMESPACE}/orders"


def ask(access: Access, command: str, **args: object):
    """Write a request, wait for the reply; the outcome and everything that was said about it."""
    request = Request(str(ULID()), command, 0, args, "test")
    name = access.topics.names[Topic.REQUESTS]
    offset = append_and_wait(access.client, name, 0, key=request.id.encode(), value=encode(request, timeout_s=WAIT_S))
    said = []
    until_s = time.monotonic() + WAIT_S
    with PartitionTail(access.client, Topic.REQUESTS, name, 0, group_id=access.topics.reader_group) as tail:
        for batch in tail.follow(offset + 1, stop=lambda: time.monotonic() > until_s):
            for record in batch:
                item = decode(record.value, record.timestamp_ms)
                if item is not None and item.id == request.id:
                    said.append(item)
                if isinstance(item, Reply) and item.id == request.id:
                    return from_json(item.outcome), said
    raise AssertionError(f"no reply to {command}: {said}")


async def test_every_command_through_the_topic(kafka: Kafka, topic_prefix: str) -> None:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix)
    result = access(settings)
    async with (
        StateChannel.open(settings, broker="b1", create_topics=True, join_timeout_s=WAIT_S) as answer,
        StateChannel.open(settings, broker="b2", join_timeout_s=WAIT_S) as two,
    ):
        outcome, said = await asyncio.to_thread(ask, result, "create-namespace", namespace=NAMESPACE, bundles=1)
        assert outcome.result == "created"
        assert [item.stage for item in said if isinstance(item, Progress)] == ["claimed", "started"]

        outcome, _ = await asyncio.to_thread(ask, result, "lookup", name=TOPIC)
        assert isinstance(outcome, Owned)
        other = "b2" if outcome.broker == "b1" else "b1"

        outcome, said = await asyncio.to_thread(ask, result, "transfer", name=TOPIC, destination=other)
        assert outcome.result == "transferred"
        assert isinstance(said[-1], Reply)
        assert said[-1].broker != other  # the owner of then executed it

        outcome, _ = await asyncio.to_thread(ask, result, "transfer", name=TOPIC, destination="nobody")
        assert isinstance(outcome, Rejected)

        outcome, _ = await asyncio.to_thread(ask, result, "split", name=TOPIC, parts=2)
        assert outcome.result == "split"

        outcome, _ = await asyncio.to_thread(ask, result, "unload", name=TOPIC)
        assert outcome.result == "unloaded"

        outcome, _ = await asyncio.to_thread(ask, result, "dance")
        assert isinstance(outcome, Rejected)
        assert "dance" in outcome.message

        outcome, _ = await asyncio.to_thread(ask, result, "shutdown", broker="b2", budget_s=10)
        assert isinstance(outcome, Done)
        assert (await asyncio.wait_for(two.wait_stopped(), WAIT_S)).reason == "closed"
        assert answer.stopped is None


async def test_a_request_without_any_broker_is_executed_once_one_comes(kafka: Kafka, topic_prefix: str) -> None:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix)
    result = access(settings)
    async with StateChannel.open(settings, broker="b1", create_topics=True, join_timeout_s=WAIT_S):
        pass
    asked = asyncio.create_task(asyncio.to_thread(ask, result, "create-namespace", namespace=NAMESPACE, bundles=2))
    await asyncio.sleep(0.5)
    async with StateChannel.open(settings, broker="b2", join_timeout_s=WAIT_S) as late:
        outcome, _ = await asked
        assert isinstance(outcome, Done), outcome
        assert isinstance(await late.lookup(TOPIC, WAIT_S), Owned)
