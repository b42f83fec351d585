"""The election follows the loop that acts on the seat, and its own thread: whoever halts gives it up, and stands again later."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from statechannel.engine.inputs import Input, LeadershipChanged
from statechannel.kafka import election as election_module
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.election import LeaderElection, LoopProgress
from tests.support.waits import wait_until

LIMIT_S = 6.0


class LoneGroup:
    """A consumer whose group has no other member: whoever subscribes is seated at the next poll."""

    def __init__(self, _: object) -> None:
        self.subscribed = False
        self.seated = False
        self.closed = False
        self.seatings = 0
        self._on_assign: Callable[..., None] = lambda *_: None

    def subscribe(self, _: list[str], *, on_assign: Callable[..., None], **_callbacks: object) -> None:
        self.subscribed, self._on_assign = True, on_assign

    def unsubscribe(self) -> None:
        self.subscribed = self.seated = False

    def poll(self, _: float) -> None:
        time.sleep(0.001)
        if self.subscribed and not self.seated:
            self.frozen()
            self.seated = True
            self._on_assign(self, ["the seat"])
            self.seatings += 1

    def frozen(self) -> None:
        """Called in the poll, right before the assignment arrives."""

    def incremental_assign(self, _: object) -> None: ...

    def pause(self, _: object) -> None: ...

    def assignment(self) -> list[str]:
        return ["the seat"] if self.seated else []

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
