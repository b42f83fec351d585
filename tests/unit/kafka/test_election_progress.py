"""The election follows the loop that acts on the seat, and its own thread: whoever halts gives it up, and stands again later."""

import threading
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
from statechannel.settings.groups_cluster import KafkaSettings
from tests.support.waits import WAIT_S, wait_until

LIMIT_S = 6.0
SESSION_MS = 6_000
LEASE_S = SESSION_MS / 2_000
SEAT = TopicPartition("leader", 0)
LEADS, LEADS_NO_MORE = LeadershipChanged(True), LeadershipChanged(False)


class LoneGroup:
    """A consumer whose group has no other member: whoever subscribes is seated at the next poll."""

    def __init__(self, _: object) -> None:
        self.subscribed = False
        self.seated = False
        self.closed = False
        self.seatings = 0
        self.calls_back = True
        self.fetches = False
        self.polls_s: list[float] = []
        self.left = 0
        self.given_back: list[TopicPartition] = []
        self.taken: list[TopicPartition] | None = None
        self.error: BaseException | KafkaError | None = None
        self._on_assign: Callable[..., None] = lambda *_: None

    def subscribe(
        self, _: list[str], *, on_assign: Callable[..., None], on_revoke: Callable[..., None], **_others: object
    ) -> None:
        self.subscribed, self._on_assign, self._on_revoke = True, on_assign, on_revoke

    def unsubscribe(self) -> None:
        self.subscribed = self.seated = False
        self.left += 1

    def poll(self, timeout_s: float) -> Any:
        self.polls_s.append(timeout_s)
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

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        self.given_back += partitions

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
    def __init__(
        self,
        progress: LoopProgress | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        session_ms: int = SESSION_MS,
        stand: bool = True,
    ) -> None:
        self.inputs: list[Input] = []
        self.failures: list[BaseException] = []
        tuning = KafkaSettings.model_construct(session_timeout_ms=session_ms)
        settings = ClientSettings(bootstrap_servers="127.0.0.1:1", client_id="b1", tuning=tuning)
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
        self.election.stand(stand)

    def steps(self, count: int = 10) -> None:
        """Wait for some more polls."""
        until = len(self.group.polls_s) + count
        self.wait(lambda: len(self.group.polls_s) >= until)

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


@pytest.mark.parametrize(("halted_s", "keeps"), [(LIMIT_S, True), (LIMIT_S + 0.001, False)])
def test_the_limit_itself_is_no_halt(halted_s: float, keeps: bool, caplog: pytest.LogCaptureFixture) -> None:
    now = [1_000.0]
    last = [1_000.0]
    bench = Bench(LoopProgress(lambda: last[0], LIMIT_S), clock=lambda: now[0])
    try:
        bench.wait(lambda: bench.inputs == [LEADS])
        last[0] = now[0] - halted_s
        bench.steps()
        assert bench.group.subscribed is keeps
        assert len([line for line in caplog.records if "no progress" in line.getMessage()]) == (not keeps), "said once"
    finally:
        bench.election.close()


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


def test_what_keeps_a_member_out_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(election_module, "Consumer", KeptOut)
    bench = Bench(None)
    bench.wait(lambda: bench.group.polls > 20)
    bench.election.close()
    assert len([record for record in caplog.records if "INCONSISTENT_GROUP_PROTOCOL" in record.getMessage()]) == 1


def test_what_keeps_it_out_after_it_was_in_is_logged_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def refused(times: int) -> None:
        bench.group.error = KafkaError(KafkaError.INCONSISTENT_GROUP_PROTOCOL)
        bench.wait(lambda: bench.group.error is None)
        bench.steps(2)
        assert len([line for line in caplog.records if "INCONSISTENT_GROUP" in line.getMessage()]) == times

    bench.wait(lambda: bench.inputs == [LEADS])
    refused(1)
    refused(1)
    bench.election.stand(False)
    bench.wait(lambda: not bench.group.subscribed)
    bench.election.stand(True)
    bench.wait(lambda: bench.inputs == [LEADS, LEADS_NO_MORE, LEADS])
    refused(2)


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


def test_who_leads_fetches_nothing_and_says_so_once_when_it_closes(bench: Bench) -> None:
    bench.wait(lambda: bench.inputs == [LEADS])
    assert bench.group.seated
    assert not bench.group.fetches
    assert bench.election.close()
    assert bench.inputs == [LEADS, LEADS_NO_MORE]
    assert bench.group.closed
    assert bench.failures == []


def test_who_never_stood_says_nothing_and_leaves_nothing() -> None:
    bench = Bench(None, stand=False)
    bench.steps()
    assert bench.election.close()
    assert bench.inputs == []
    assert bench.group.left == 0
    assert bench.group.closed


def test_who_withdraws_gives_the_seat_up(bench: Bench) -> None:
    bench.wait(lambda: bench.inputs == [LEADS])
    bench.election.stand(False)
    bench.wait(lambda: not bench.group.subscribed)
    assert bench.inputs == [LEADS, LEADS_NO_MORE]


def test_a_seat_that_is_taken_away_is_given_up(bench: Bench) -> None:
    bench.wait(lambda: bench.inputs == [LEADS])
    bench.group.lose([])
    bench.wait(lambda: bench.group.taken is None)
    assert bench.inputs == [LEADS]
    bench.group.lose([SEAT])
    bench.wait(lambda: bench.inputs == [LEADS, LEADS_NO_MORE])
    bench.steps(1)
    assert bench.group.given_back == [SEAT]


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


# --- its lease of half a session, to the millisecond ------------------------------------------------------------------


class StoppedClock:
    """Goes on only where a test says so."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Bench, StoppedClock]]:
    clock = StoppedClock()
    bench = Bench(None, clock=clock)
    yield bench, clock
    bench.election.close()


@pytest.mark.parametrize(("frozen_s", "keeps"), [(LEASE_S, True), (LEASE_S + 0.001, False)])
def test_a_thread_that_was_frozen_for_longer_than_the_lease_stands_again(
    stopped: tuple[Bench, StoppedClock], frozen_s: float, keeps: bool
) -> None:
    bench, clock = stopped
    bench.wait(lambda: bench.inputs == [LEADS])
    clock.now_s += frozen_s
    bench.steps()
    assert bench.inputs == ([LEADS] if keeps else [LEADS, LEADS_NO_MORE, LEADS])
    assert bench.group.left == (not keeps)


@pytest.mark.parametrize(("frozen_s", "takes"), [(LEASE_S, 1), (LEASE_S + 0.001, 2)])
def test_a_seat_that_arrives_late_is_taken_within_the_lease(
    stopped: tuple[Bench, StoppedClock], frozen_s: float, takes: int
) -> None:
    """Meanwhile the group may have seated another: it takes only the next one, for which it stands again."""
    bench, clock = stopped
    bench.election.stand(False)
    bench.wait(lambda: not bench.group.subscribed)
    bench.inputs.clear()
    bench.group.seatings = 0
    pauses = [frozen_s]

    def freeze() -> None:
        clock.now_s += pauses.pop() if pauses else 0.0

    bench.group.frozen = freeze
    bench.election.stand(True)
    bench.wait(lambda: bench.inputs == [LEADS])
    assert bench.group.seatings + 1 - takes in (0, 1), "the seating itself is counted a moment later"


@pytest.mark.parametrize(("later_s", "takes"), [(LEASE_S, False), (LEASE_S + 0.5, True)])
def test_a_seat_without_a_callback_is_looked_for_after_the_lease(
    stopped: tuple[Bench, StoppedClock], later_s: float, takes: bool
) -> None:
    """It stood again during a rebalance: otherwise nobody would lead as long as this member lives."""
    bench, clock = stopped
    bench.election.stand(False)
    bench.wait(lambda: not bench.group.subscribed)
    bench.inputs.clear()
    bench.group.calls_back = False
    bench.election.stand(True)
    bench.wait(lambda: bench.group.seated)
    bench.steps(2)
    for _ in range(2):
        clock.now_s += later_s / 2  # not frozen: the thread runs in between
        bench.steps(3)
    assert bench.inputs == ([LEADS] if takes else [])


def test_a_thread_that_was_frozen_looks_for_no_seat_without_a_callback(stopped: tuple[Bench, StoppedClock]) -> None:
    """What it lost meanwhile is not reported yet."""
    bench, clock = stopped
    bench.election.stand(False)
    bench.wait(lambda: not bench.group.subscribed)
    bench.inputs.clear()
    bench.group.calls_back = False
    bench.election.stand(True)
    bench.wait(lambda: bench.group.seated)
    clock.now_s += LEASE_S + 0.001
    bench.steps()
    assert bench.inputs == []


@pytest.mark.parametrize(("session_ms", "longest_s"), [(SESSION_MS, 0.1), (1_000, 0.05)])
def test_it_looks_up_many_times_in_a_session(session_ms: int, longest_s: float) -> None:
    bench = Bench(None, session_ms=session_ms)
    bench.steps(3)
    bench.election.close()
    assert set(bench.group.polls_s) == {longest_s}


def test_a_process_that_does_not_close_it_ends_all_the_same() -> None:
    before = set(threading.enumerate())
    bench = Bench(None)
    assert all(thread.daemon for thread in set(threading.enumerate()) - before)
    bench.election.close()


def test_closing_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(LoneGroup, "frozen", lambda _: goes_on.wait(WAIT_S))
    bench = Bench(None)
    bench.wait(lambda: bench.group.subscribed)
    assert not bench.election.close(0.01)
    goes_on.set()
    assert bench.election.close()
