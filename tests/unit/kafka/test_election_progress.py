"""The election follows the loop that acts on the seat, and its own thread: whoever halts gives it up, and stands again later."""

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
from tests.support.waits import wait_until

LIMIT_S = 6.0
SEAT = TopicPartition("leader", 0)


class LoneGroup:
    """A consumer whose group has no other member: whoever subscribes is seated at the next poll."""

    def __init__(self, _: object) -> None:
        self.subscribed = False
        self.seated = False
        self.closed = False
        self.seatings = 0
        self.calls_back = True
        self.fetches = False
        self.taken: list[TopicPartition] | None = None
        self.error: BaseException | KafkaError | None = None
        self._on_assign: Callable[..., None] = lambda *_: None

    def subscribe(
        self, _: list[str], *, on_assign: Callable[..., None], on_revoke: Callable[..., None], **_others: object
    ) -> None:
        self.subscribed, self._on_assign, self._on_revoke = True, on_assign, on_revoke

    def unsubscribe(self) -> None:
        self.subscribed = self.seated = False

    def poll(self, _: float) -> Any:
        time.sleep(0.001)
        if self.subscribed and not self.seated:
            self.frozen()
            self.seated = True
            if self.calls_back:
                self._on_assign(self, [SEAT])
            self.seatings += 1
        taken, self.taken = self.taken, None
        if taken is not None:
            self._on_revoke(self, taken)
        error, self.error = self.error, None
        if isinstance(error, BaseException):
            raise error
        return None if error is None else SimpleNamespace(error=lambda: error)

    def frozen(self) -> None:
        """Called in the poll, right before the assignment arrives."""

    def incremental_assign(self, _: object) -> None:
        self.fetches = True

    def pause(self, _: object) -> None:
        self.fetches = False

    def incremental_unassign(self, _: object) -> None:
        """Nothing is left of it."""

    def lose(self, partitions: list[TopicPartition]) -> None:
        """The group takes the seat away, and gives it again only to who stands again."""
        self.taken = partitions

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
    def __init__(self, progress: LoopProgress | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.inputs: list[Input] = []
        self.failures: list[BaseException] = []
        settings = ClientSettings(bootstrap_servers="127.0.0.1:1", client_id="b1")
        self.election = LeaderElection(
            settings,
            "leader",
            "group",
            self.inputs.append,
            on_failure=self.failures.append,
            progress=progress,
            clock=clock,
        )
        self.group: Any = self.election._consumer
        self.election.stand(True)

    def wait(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, lambda: self.inputs, pause_s=0.002)


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


def test_a_seat_that_arrives_in_a_poll_in_which_the_thread_was_frozen_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Meanwhile the group may have seated another: it takes only the next one, for which it stands again."""
    settings = ClientSettings(bootstrap_servers="127.0.0.1:1", client_id="b1")
    frozen_s, seatings_at_leading = [settings.tuning.session_timeout_ms / 1_000], []
    skipped_s = 0.0

    def freeze(_: LoneGroup) -> None:
        nonlocal skipped_s
        skipped_s += frozen_s.pop() if frozen_s else 0.0

    groups: list[LoneGroup] = []

    def make(config: object) -> LoneGroup:
        groups.append(LoneGroup(config))
        return groups[-1]

    def sink(event: Input) -> None:
        if event == LeadershipChanged(True):
            seatings_at_leading.append(groups[0].seatings)

    monkeypatch.setattr(LoneGroup, "frozen", freeze)
    monkeypatch.setattr(election_module, "Consumer", make)
    election = LeaderElection(settings, "leader", "group", sink, clock=lambda: time.monotonic() + skipped_s)
    try:
        election.stand(True)
        wait_until(lambda: seatings_at_leading, lambda: groups[0].seatings)
        assert seatings_at_leading == [1], "it took the first seat"
    finally:
        election.close()


LEADS, LEADS_NO_MORE = LeadershipChanged(True), LeadershipChanged(False)


def test_who_leads_fetches_nothing_and_says_so_once_when_it_closes(bench: Bench) -> None:
    bench.wait(lambda: bench.inputs == [LEADS])
    assert bench.group.seated
    assert not bench.group.fetches
    assert bench.election.close()
    assert bench.inputs == [LEADS, LEADS_NO_MORE]
    assert bench.group.closed
    assert bench.failures == []


def test_who_never_stood_says_nothing() -> None:
    bench = Bench(None)
    bench.election.stand(False)
    assert bench.election.close()
    assert bench.inputs in ([], [LEADS, LEADS_NO_MORE])  # it may have been elected before it withdrew


def test_a_seat_that_is_taken_away_is_given_up(bench: Bench) -> None:
    bench.wait(lambda: bench.inputs == [LEADS])
    bench.group.lose([])
    bench.wait(lambda: bench.group.taken is None)
    bench.group.lose([SEAT])
    bench.wait(lambda: bench.inputs == [LEADS, LEADS_NO_MORE])


def test_an_election_that_ends_by_an_exception_gives_the_seat_up_and_is_reported(bench: Bench) -> None:
    bench.wait(lambda: bench.inputs == [LEADS])
    bench.group.error = RuntimeError("the client is broken")
    bench.wait(lambda: bench.group.closed)
    assert [str(error) for error in bench.failures] == ["the client is broken"]
    assert bench.inputs == [LEADS, LEADS_NO_MORE]


@pytest.mark.parametrize(("code", "leads"), [(KafkaError._TRANSPORT, True), (KafkaError._MAX_POLL_EXCEEDED, False)])
def test_of_the_clients_errors_one_says_that_the_seat_is_lost(bench: Bench, code: int, leads: bool) -> None:
    bench.wait(lambda: bench.inputs == [LEADS])
    bench.group.error = KafkaError(code)
    bench.wait(lambda: bench.group.error is None)
    bench.wait(lambda: leads or bench.inputs[1:2] == [LEADS_NO_MORE])
    assert (bench.inputs == [LEADS]) is leads


def test_a_seat_that_the_client_holds_without_having_said_so_is_taken_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stood again during a rebalance: otherwise nobody would lead as long as this member lives."""
    skipped_s = 0.0

    class Group(LoneGroup):
        def __init__(self, config: object) -> None:
            super().__init__(config)
            self.calls_back = False

    monkeypatch.setattr(election_module, "Consumer", Group)
    bench = Bench(None, clock=lambda: time.monotonic() + skipped_s)
    try:
        bench.wait(lambda: bench.group.seated)
        assert bench.inputs == []
        for _ in range(200):
            skipped_s += 0.1
            time.sleep(0.01)
            if bench.inputs:
                break
        assert bench.inputs == [LEADS]
    finally:
        bench.election.close()
