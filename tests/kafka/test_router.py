"""A router on a real Kafka: it follows what brokers do, through deaths and outages, and writes nothing."""

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from statechannel.api import (
    Admission,
    AdmittedCounts,
    BlockingStateChannel,
    Done,
    NotFound,
    Redirect,
    Rejected,
    Undetermined,
    Unowned,
)
from statechannel.broker.changes import Change
from statechannel.kafka.errors import KafkaAdapterError
from statechannel.router import BlockingRouter, Route, Router
from statechannel.settings import Settings
from tests.support.channels import make_settings
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S

EXAMPLE = Path(__file__).resolve().parents[2] / "design" / "examples" / "router.py"
NAMESPACE = "public/default"
TOPIC = f"{NAMESPACE}/orders"


def run_broker(settings: Settings, broker: str, url: str = "") -> BlockingStateChannel:
    listeners = {"http": url} if url else {}
    return BlockingStateChannel.open(
        settings, broker=broker, listeners=listeners, create_topics=True, join_timeout_s=WAIT_S
    )


def create(channel: BlockingStateChannel, bundles: int) -> None:
    """A busy machine may have the broker in safe mode for a moment, in which it refuses."""
    outcomes: list[object] = []

    def created() -> bool:
        outcomes.append(channel.create_namespace(NAMESPACE, bundles).outcome(WAIT_S))
        return isinstance(outcomes[-1], Done) or (
            isinstance(outcomes[-1], Rejected) and outcomes[-1].reason == "namespace-exists"
        )

    try:
        until(created)
    except AssertionError:
        raise AssertionError(f"{NAMESPACE} was not created: {outcomes[-3:]}") from None


def until(check, *, timeout_s: float = WAIT_S):
    ends_s = time.monotonic() + timeout_s
    while not (value := check()):
        assert time.monotonic() < ends_s, "it did not happen in time"
        time.sleep(0.01)
    return value


def await_owner(channel: BlockingStateChannel) -> None:
    """A router may read that a bundle has an owner before the owner itself does, which then refuses to let it go."""
    until(lambda: channel.lookup_cached(TOPIC))


def test_a_router_follows_a_broker(kafka: Kafka, topic_prefix: str) -> None:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix)
    with run_broker(settings, "b1", "http://127.0.0.1:8001") as channel:
        create(channel, 2)
        with BlockingRouter.open(settings, join_timeout_s=WAIT_S) as router:
            unowned = router.lookup(TOPIC)
            assert isinstance(unowned, Unowned)
            assert isinstance(router.lookup("no/such/topic"), NotFound)
            with run_broker(settings, "b2") as other:
                owner = other.lookup(TOPIC, WAIT_S)
                route = until(lambda: found if isinstance(found := router.lookup(TOPIC), Route) else None)
                assert (route.bundle, route.broker, route.generation) == (owner.bundle, owner.broker, owner.generation)
                assert route.urls == owner.urls
                until(lambda: not router.lookup(TOPIC).stale)  # a busy machine may let it fall behind for a moment
                until(lambda: [broker.broker for broker in router.brokers()] == ["b1", "b2"])  # by another reader
                assert [bundle.bundle for bundle in router.owned_by(route.broker)] == [route.bundle]
                assert len(router.bundles(NAMESPACE)) == len(router.bundles()) == 2
                destination = "b2" if route.broker == "b1" else "b1"
                await_owner(channel)
                assert isinstance(channel.transfer(TOPIC, destination).outcome(WAIT_S), Done)
                moved = router.wait(TOPIC, WAIT_S)
                assert isinstance(moved, Route)
                until(lambda: getattr(router.lookup(TOPIC), "broker", None) == destination)
                until(lambda: router.digest() == channel.digest())
            until(lambda: [broker.broker for broker in router.brokers()] == ["b1"])
        assert router.stopped.clean
        assert [broker.broker for broker in channel.picture().brokers] == ["b1"]


def test_wait_has_a_bundle_assigned(kafka: Kafka, topic_prefix: str) -> None:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix)
    with run_broker(settings, "b1") as channel, BlockingRouter.open(settings, join_timeout_s=WAIT_S) as router:
        create(channel, 1)
        until(lambda: isinstance(router.lookup(TOPIC), Unowned))
        nobody = router.wait(TOPIC, 0.3)
        assert isinstance(nobody, Undetermined)
        assert nobody.reason == "timed-out"
        route = router.wait(TOPIC, WAIT_S, assign=True)
        assert isinstance(route, Route)
        assert route.broker == "b1"


def test_the_guard_admits_here_and_redirects_there(kafka: Kafka, topic_prefix: str) -> None:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix)
    opened = [run_broker(settings, broker, f"http://{broker}") for broker in ("b1", "b2")]
    with opened[0] as b1, opened[1] as b2, BlockingRouter.open(settings, join_timeout_s=WAIT_S) as router:
        create(b1, 1)
        until(lambda: isinstance(router.lookup(TOPIC), Unowned))
        nobody = b1.guard(TOPIC)
        assert (nobody.reason, nobody.broker) == ("no-owner", None)
        b1.lookup(TOPIC, WAIT_S)
        if router.wait(TOPIC, WAIT_S).broker == "b2":
            await_owner(b1)
            assert isinstance(b1.transfer(TOPIC, "b1").outcome(WAIT_S), Done)
        here = until(lambda: admitted if isinstance(admitted := b1.guard(TOPIC, size_bytes=10), Admission) else None)
        assert here.generation == b1.accepts_writes(here.bundle)
        assert isinstance(b1.guard(TOPIC, write=False, size_bytes=5), Admission)
        assert b1.admitted() == {here.bundle: AdmittedCounts(reads=1, read_bytes=5, writes=1, write_bytes=10)}
        there = until(lambda: answer if (answer := b2.guard(TOPIC)).reason == "other-owner" else None)
        assert (there.broker, there.urls, there.generation) == ("b1", {"http": "http://b1"}, here.generation)
        route = router.follow(TOPIC, Redirect.from_json(there.to_json()))
        assert (route.broker, route.generation) == ("b1", here.generation)
        ahead = router.follow(TOPIC, there._replace(broker="b9", generation=99))
        assert (ahead.broker, ahead.generation) == ("b9", 99)
        until(lambda: isinstance(router.lookup(TOPIC), Route))  # a busy machine may make b1 seem lost for a moment
        until(lambda: router.follow(TOPIC, there._replace(broker="b9", generation=1)).broker == "b1")


def test_changes_resume_by_offset(kafka: Kafka, topic_prefix: str) -> None:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix)
    with run_broker(settings, "b1") as channel, BlockingRouter.open(settings, join_timeout_s=WAIT_S) as router:
        create(channel, 1)
        channel.lookup(TOPIC, WAIT_S)
        first = []
        for change in router.changes(since={}):
            assert isinstance(change, Change)
            first.append(change)
            if change.state == "Assigned":
                break
        assert [str(change.state) for change in first] == ["Active", "Assigning", "Assigned"]
        since = {first[0].partition: first[0].offset + 1}
        stream = router.changes(since=since, limit=1)  # whoever is too slow reads again what is missing
        again = [next(stream) for _ in range(2)]
        assert again == first[1:]
        await_owner(channel)
        assert isinstance(channel.unload(TOPIC).outcome(WAIT_S), Done)
        channel.lookup(TOPIC, WAIT_S)
        states = [str(next(stream).state) for _ in range(4)]
        assert states == ["Releasing", "Unassigned", "Assigning", "Assigned"]


def test_any_thread_may_ask(kafka: Kafka, topic_prefix: str) -> None:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix)
    with run_broker(settings, "b1") as channel, BlockingRouter.open(settings, join_timeout_s=WAIT_S) as router:
        create(channel, 4)
        names = [bundle.bundle for bundle in channel.picture().bundles]
        # A router that has not read the new records yet answers, rightly, that there is no such bundle.
        until(lambda: not any(isinstance(router.lookup(name), NotFound) for name in names))
        answers: list[object] = []
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                answers.extend(router.lookup(name) for name in names)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for name in names:
            channel.lookup(name, WAIT_S)
        until(lambda: all(isinstance(router.lookup(name), Route) for name in names))
        over.set()
        for thread in threads:
            thread.join(WAIT_S)
        assert {type(answer) for answer in answers} <= {Route, Unowned, Undetermined}


async def test_without_a_channel(kafka: Kafka, topic_prefix: str) -> None:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix)
    with pytest.raises(KafkaAdapterError) as caught:
        await Router.open(settings)
    assert caught.value.hint
    assert f"{topic_prefix}-registry" in str(caught.value)


async def test_close_ends_what_waits(kafka: Kafka, topic_prefix: str) -> None:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix)
    channel = await asyncio.to_thread(run_broker, settings, "b1")
    try:
        await asyncio.to_thread(create, channel, 1)
        async with Router.open(settings, join_timeout_s=WAIT_S) as router:
            await asyncio.to_thread(until, lambda: isinstance(router.lookup(TOPIC), Unowned))
            waiting = asyncio.create_task(router.wait(TOPIC, WAIT_S))
            await asyncio.sleep(0.05)
        answer = await waiting
        assert isinstance(answer, Undetermined)
        assert answer.reason == "stopped"
    finally:
        await asyncio.to_thread(channel.close)


def test_it_says_that_no_broker_lives(kafka: Kafka, topic_prefix: str) -> None:
    quick = {"membership": {"interval_s": 0.3, "expiry_s": 5.0}, "safe_mode": {"after_s": 3.0, "settle_s": 2.0}}
    settings = make_settings(kafka.bootstrap_servers, topic_prefix, **quick)
    child = subprocess.Popen(
        [sys.executable, str(EXAMPLE.with_name("broker.py")), "b1", kafka.bootstrap_servers],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"STATECHANNEL_CHANNEL__NAME": topic_prefix, "PATH": ""},
    )
    try:
        assert any(line.startswith("Owned(") for line in child.stdout)
        with BlockingRouter.open(settings, join_timeout_s=WAIT_S) as router:
            until(lambda: isinstance(router.lookup("example/orders/new"), Route))
            child.kill()
            until(lambda: getattr(router.lookup("example/orders/new"), "reason", "") == "no-broker")
            assert router.brokers() == []
            time.sleep(4.0)  # nobody writes: that is no reason to take Kafka to be away
            assert router.lookup("example/orders/new").reason == "no-broker"
    finally:
        child.kill()
        child.wait()
    with BlockingRouter.open(settings, join_timeout_s=WAIT_S) as late:  # it began after the last one had died
        until(lambda: not isinstance(late.lookup("example/orders/new"), Route))  # it was heard a moment ago
        answer = late.wait("example/orders/new", 0.5)
        assert isinstance(answer, Undetermined)
        assert answer.reason == "no-broker"
        assert "no broker is alive: the last one was heard" in answer.message


def test_the_example_names_the_owner_and_follows(kafka: Kafka, topic_prefix: str) -> None:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix)
    with run_broker(settings, "b1", "http://127.0.0.1:8001") as channel:
        create(channel, 1)
        child = subprocess.Popen(
            [sys.executable, str(EXAMPLE), kafka.bootstrap_servers, TOPIC],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"STATECHANNEL_CHANNEL__NAME": topic_prefix, "PATH": ""},
        )
        try:
            first = child.stdout.readline()
            assert first.startswith("b1 at {'http': 'http://127.0.0.1:8001'}, generation"), first + child.stdout.read()
            await_owner(channel)
            assert isinstance(channel.unload(TOPIC).outcome(WAIT_S), Done)
            lines = iter(child.stdout.readline, "")
            assert any("Releasing" in line for line in lines), "the program ended without it"
        finally:
            child.kill()
            child.wait()
