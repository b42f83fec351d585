"""The leader's seat on a real broker: one at a time, sticky, given up in time."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient, NewPartitions

from statechannel.engine.inputs import LeadershipChanged
from statechannel.kafka.election import LeaderElection
from statechannel.settings.groups_cluster import KafkaSettings
from tests.support.kafka_adapter import WAIT_S, Channel, Inbox, make_channel
from tests.support.kafka_lanes import Kafka
from tests.support.waits import wait_until

SESSION_MS = 6_000  # the least that a broker with default settings allows


@pytest.fixture
def channel(kafka: Kafka, topic_prefix: str) -> Channel:
    tuning = KafkaSettings.model_construct(session_timeout_ms=SESSION_MS)
    return make_channel(kafka.bootstrap_servers, topic_prefix, tuning=tuning)


class Member:
    def __init__(self, channel: Channel, clock: Callable[[], float] = time.monotonic) -> None:
        self.inbox = Inbox()
        topics = channel.topics
        self.election = LeaderElection(
            channel.settings, topics.leader_topic, topics.leader_group, self.inbox.put, clock=clock
        )
        self.election.stand(True)

    @property
    def elected(self) -> bool:
        return bool(self.inbox.inputs) and self.inbox.inputs[-1] == LeadershipChanged(True)

    def wait(self, elected: bool) -> None:
        self.inbox.wait_for(lambda inputs: bool(inputs) and inputs[-1] == LeadershipChanged(elected))


@contextmanager
def closing(*members: Member) -> Iterator[None]:
    try:
        yield
    finally:
        for member in members:
            member.election.close()


def wait_one(members: list[Member]) -> Member:
    deadline_s = time.monotonic() + WAIT_S
    while True:
        elected = [m for m in members if m.elected]
        if len(elected) == 1:
            return elected[0]
        assert time.monotonic() < deadline_s, f"{len(elected)} leaders"
        time.sleep(0.02)


def wait_group(channel: Channel, members: int) -> None:
    """Until the election group has rebalanced with so many members, and what that led to has been delivered."""
    admin, group = AdminClient(channel.settings.admin_config()), channel.topics.leader_group

    def is_stable() -> bool:
        described = admin.describe_consumer_groups([group])[group].result(WAIT_S)
        return described.state is ConsumerGroupState.STABLE and len(described.members) == members

    wait_until(is_stable)
    time.sleep(1.0)


def test_a_join_never_moves_the_seat_and_a_close_gives_it_on_at_once(kafka: Kafka, topic_prefix: str) -> None:
    session_s = 30.0  # longer than a busy machine takes for a hand-over
    tuning = KafkaSettings.model_construct(session_timeout_ms=int(1_000 * session_s))
    channel = make_channel(kafka.bootstrap_servers, topic_prefix, tuning=tuning)
    first = Member(channel)
    first.wait(elected=True)
    second = Member(channel)
    wait_group(channel, 2)
    third = Member(channel)
    wait_group(channel, 3)
    with closing(second, third):
        assert first.inbox.inputs == [LeadershipChanged(True)]
        assert second.inbox.inputs == third.inbox.inputs == []
        began_s = time.monotonic()
        first.election.close()
        assert first.inbox.inputs[-1] == LeadershipChanged(False)
        leader = wait_one([second, third])
        assert time.monotonic() - began_s < session_s - 5, "waited for the session"
        fourth = Member(channel)
        with closing(fourth):
            wait_group(channel, 3)
            assert leader.inbox.inputs == [LeadershipChanged(True)]
            assert fourth.inbox.inputs == []


def test_of_an_election_topic_with_more_partitions_only_the_first_counts(channel: Channel) -> None:
    admin = AdminClient(channel.settings.admin_config())
    for future in admin.create_partitions([NewPartitions(channel.topics.leader_topic, 3)]).values():
        future.result(WAIT_S)
    members = [Member(channel) for _ in range(3)]
    with closing(*members):
        wait_group(channel, 3)
        leader = wait_one(members)
        leader.election.close()
        wait_group(channel, 2)
        wait_one([member for member in members if member is not leader])


def test_who_does_not_stand_any_more_gives_the_seat_up(channel: Channel) -> None:
    first = Member(channel)
    first.wait(elected=True)
    second = Member(channel)
    with closing(first, second):
        first.election.stand(False)
        first.wait(elected=False)
        second.wait(elected=True)
        second.election.stand(False)
        second.wait(elected=False)
        first.election.stand(True)
        first.wait(elected=True)


def test_a_thread_that_did_not_run_for_half_a_session_steps_down_first(channel: Channel) -> None:
    skew_s = [0.0]
    member = Member(channel, clock=lambda: time.monotonic() + skew_s[0])
    with closing(member):
        member.wait(elected=True)
        skew_s[0] += SESSION_MS / 2_000 + 0.5
        member.inbox.wait_for(lambda inputs: len(inputs) >= 3)
        assert member.inbox.inputs[:3] == [LeadershipChanged(True), LeadershipChanged(False), LeadershipChanged(True)]


CHILD = """
import sys, time
from statechannel.kafka.client_settings import ClientSettings
from statechannel.settings.groups_cluster import KafkaSettings
from statechannel.kafka.election import LeaderElection
servers, topic, group, session_ms = sys.argv[1:]
settings = ClientSettings(servers, tuning=KafkaSettings.model_construct(session_timeout_ms=int(session_ms)))
tell = lambda change: print(time.monotonic(), change.elected, flush=True)
LeaderElection(settings, topic, group, tell).stand(True)
time.sleep(600)
"""


@pytest.fixture
def process(channel: Channel) -> Iterator[subprocess.Popen[str]]:
    arguments = [
        channel.settings.bootstrap_servers,
        channel.topics.leader_topic,
        channel.topics.leader_group,
        str(SESSION_MS),
    ]
    child = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def read_change(child: subprocess.Popen[str]) -> tuple[float, bool]:
    at_s, elected = child.stdout.readline().split()
    return float(at_s), elected == "True"


def test_a_killed_leader_is_replaced_after_its_session(channel: Channel, process: subprocess.Popen[str]) -> None:
    assert read_change(process)[1] is True
    others = [Member(channel), Member(channel)]
    with closing(*others):
        wait_group(channel, 3)
        process.kill()
        wait_one(others)


def test_a_paused_leader_steps_down_when_it_wakes_and_the_new_one_stays(
    channel: Channel, process: subprocess.Popen[str]
) -> None:
    assert read_change(process)[1] is True
    other = Member(channel)
    with closing(other):
        wait_group(channel, 2)
        os.kill(process.pid, signal.SIGSTOP)
        other.wait(elected=True)
        woken_s = time.monotonic()
        os.kill(process.pid, signal.SIGCONT)
        stepped_down_s, elected = read_change(process)
        assert elected is False
        assert stepped_down_s > woken_s
        wait_group(channel, 2)
        assert other.inbox.inputs == [LeadershipChanged(True)]


def test_a_leader_that_stands_anew_in_the_middle_of_a_rebalance_leaves_no_seat_that_nobody_takes(
    channel: Channel, request: pytest.FixtureRequest
) -> None:
    """The group waits for a member that is paused, and meanwhile the one that sat steps down and wants to sit again."""
    skew_s = [0.0]
    sitting = Member(channel, clock=lambda: time.monotonic() + skew_s[0])
    with closing(sitting):
        sitting.wait(elected=True)
        paused: subprocess.Popen[str] = request.getfixturevalue("process")
        wait_group(channel, 2)
        os.kill(paused.pid, signal.SIGSTOP)
        newcomer = Member(channel)
        with closing(newcomer):
            time.sleep(2.5)  # the group waits for the paused one, until its session ends
            skew_s[0] += SESSION_MS / 2_000 + 0.5
            sitting.wait(elected=False)
            wait_one([sitting, newcomer])
