"""The election follows the loop that acts on the seat: a loop that halts gives it up, one that goes on stands again."""

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from statechannel.engine.inputs import Input, LeadershipChanged
from statechannel.kafka import election as election_module
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.election import LeaderElection, LoopProgress

LIMIT_S = 6.0
SEAT = TopicPartition("leader", 0)


class LoneGroup:
    """A consumer whose group has no other member: whoever subscribes is seated at the next poll."""

    def __init__(self, _: object) -> None:
        self.subscribed = False
        self.seated = False
        self.closed = False
        self._on_assign: Callable[..., None] = lambda *_: None

    def subscribe(self, _: list[str], *, on_assign: Callable[..., None], **_callbacks: object) -> None:
        self.subscribed, self._on_assign = True, on_assign

    def unsubscribe(self) -> None:
        self.subscribed = self.seated = False

    def poll(self, _: float) -> None:
        time.sleep(0.001)
        if self.subscribed and not self.seated:
            self.seated = True
            self._on_assign(self, [SEAT])

    def incremental_assign(self, _: object) -> None: ...

    def pause(self, _: object) -> None: ...

    def assignment(self) -> list[TopicPartition]:
        return [SEAT] if self.seated else []

    def close(self) -> None:
        self.closed = True


class Loop:
    """Whose progress is asked for."""

    def __init__(self) -> None:
        self.halted_s = 0.0

    def last_s(self) -> float:
        return time.monotonic() - self.halted_s


class Bench:
    def __init__(self, progress: LoopProgress | None) -> None:
        self.inputs: list[Input] = []
        settings = ClientSettings(bootstrap_servers="127.0.0.1:1", client_id="b1")
        self.election = LeaderElection(settings, "leader", "group", self.inputs.append, progress=progress)
        self.group: Any = self.election._consumer
        self.election.stand(True)

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 10.0
        while not condition():
            assert time.monotonic() < deadline_s, self.inputs
            time.sleep(0.002)


@pytest.fixture(autouse=True)
def _lone_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election_module, "Consumer", LoneGroup)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def bench(loop: Loop) -> Iterator[Bench]:
    bench = Bench(LoopProgress(loop.last_s, LIMIT_S))
    yield bench
    bench.election.close()


def test_a_loop_that_halts_for_too_long_gives_the_seat_up_and_comes_back(loop: Loop, bench: Bench) -> None:
    bench.wait(lambda: bench.inputs == [LeadershipChanged(True)])
    loop.halted_s = LIMIT_S + 1.0
    bench.wait(lambda: not bench.group.subscribed)
    assert bench.inputs == [LeadershipChanged(True), LeadershipChanged(False)]
    loop.halted_s = 0.1
    bench.wait(lambda: len(bench.inputs) == 3)
    assert bench.inputs[-1] == LeadershipChanged(True)


def test_a_short_halt_keeps_it(loop: Loop, bench: Bench) -> None:
    bench.wait(lambda: bench.inputs == [LeadershipChanged(True)])
    loop.halted_s = LIMIT_S - 1.0
    polled = bench.election._polled_s
    bench.wait(lambda: bench.election._polled_s > polled + 0.1)
    assert bench.inputs == [LeadershipChanged(True)]


def test_who_withdraws_while_the_loop_halts_does_not_come_back(loop: Loop, bench: Bench) -> None:
    bench.wait(lambda: bench.inputs == [LeadershipChanged(True)])
    loop.halted_s = LIMIT_S + 1.0
    bench.wait(lambda: len(bench.inputs) == 2)
    bench.election.stand(False)
    loop.halted_s = 0.0
    polled = bench.election._polled_s
    bench.wait(lambda: bench.election._polled_s > polled + 0.1)
    assert not bench.group.subscribed


class KeptOut(LoneGroup):
    """A member that is refused at each poll."""

    def __init__(self, _: object) -> None:
        super().__init__(_)
        self.polls = 0

    def poll(self, _: float) -> Any:
        self.polls += 1
        time.sleep(0.001)
        return SimpleNamespace(error=lambda: KafkaError(KafkaError.INCONSISTENT_GROUP_PROTOCOL))


def test_what_keeps_a_member_out_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(election_module, "Consumer", KeptOut)
    bench = Bench(None)
    bench.wait(lambda: bench.group.polls > 20)
    bench.election.close()
    assert len([record for record in caplog.records if "INCONSISTENT_GROUP_PROTOCOL" in record.getMessage()]) == 1


class ExtraPartition(LoneGroup):
    """A group in which another member is assigned partition 0."""

    def poll(self, _: float) -> None:
        time.sleep(0.001)
        if self.subscribed and not self.seated:
            self.seated = True
            self._on_assign(self, [TopicPartition("leader", 1)])


def test_another_partition_is_no_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election_module, "Consumer", ExtraPartition)
    bench = Bench(None)
    bench.wait(lambda: bench.group.seated)
    bench.election.close()
    assert bench.inputs == []


def test_without_a_loop_to_follow_nothing_is_asked() -> None:
    bench = Bench(None)
    bench.wait(lambda: bench.inputs == [LeadershipChanged(True)])
    bench.election.close()
    assert bench.group.closed
