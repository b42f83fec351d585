"""Restarts are bounded, a standing loop is noticed, and evidence reaches the log."""

import math
import threading
from types import SimpleNamespace

import pytest

from statechannel.broker import supervision
from statechannel.broker.opening_process import OpeningProcess
from statechannel.broker.supervision import OpenMember, Restarts, SeatRequest, Watchdog, abandon, log_evidence, within
from statechannel.protocol.log import RecordRead, Topic
from statechannel.settings.groups_engine import RuntimeSettings
from tests.support.log_lines import capture_logs
from tests.support.waits import WAIT_S

LOOK_S = 1 / 1024
"""Exact, so that sums of it are."""


def test_back_off_doubles_is_bounded_and_gives_up() -> None:
    restarts = Restarts(
        RuntimeSettings(restarts_max=4, restart_window_s=60, restart_first_wait_s=1, restart_longest_wait_s=3)
    )
    assert [restarts.failed(float(n)) for n in range(5)] == [1, 2, 3, 3, None]
    assert restarts.failed(200.0) == 1  # old failures are forgotten
    assert restarts.failed(260.0) == 2
    assert restarts.failed(260.1) == 2  # the one at 200 is
    assert restarts.total == 8


class Watched:
    """A watchdog on a clock of its own: its test sets how often it looks, and when the loop beats."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: int, step_s: float = LOOK_S, **options: object) -> None:
        self.looked = 0
        self.events: list[tuple[int, float | str]] = []
        self.beat_looks = 0
        """The loop beats after this number of looks."""
        self._looks = looks
        self._step_s = step_s
        self._over = threading.Event()
        monkeypatch.setattr(supervision, "time", SimpleNamespace(monotonic=lambda: self.looked * step_s))
        own = {"limit_s": 10 * LOOK_S, "blocked_s": math.inf, "on_blocked": self._blocked} | options
        self.dog = Watchdog(self._beats, on_stuck=self._stuck, loop_lives=self._look, **own)  # type: ignore[arg-type]

    def run(self) -> list[tuple[int, float | str]]:
        self.dog.start()
        assert self._over.wait(WAIT_S)
        self.dog.close()
        return self.events

    def _beats(self) -> int:
        return self.looked // self.beat_looks if self.beat_looks else 0

    def _look(self) -> bool:
        self.looked += 1
        if self.looked > self._looks:
            self._over.set()
        return self.looked <= self._looks

    def _stuck(self) -> None:
        self.events.append((self.looked, "stuck"))

    def _blocked(self, seconds: float) -> None:
        self.events.append((self.looked, seconds))


def test_a_loop_that_stands_still_is_stuck_after_the_limit_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, 30)
    assert watched.run() == [(11, "stuck")]
    assert watched.dog.stuck


def test_a_loop_that_recovers_may_be_stuck_again(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, 20)
    watched.beat_looks = 15
    assert watched.run() == [(11, "stuck")]
    assert not watched.dog.stuck
    watched = Watched(monkeypatch, 28)
    watched.beat_looks = 15
    assert watched.run() == [(11, "stuck"), (26, "stuck")]


def test_a_loop_that_beats_is_neither_stuck_nor_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, 30, blocked_s=4 * LOOK_S)
    watched.beat_looks = 1
    assert watched.run() == []


def test_time_in_which_the_watchdog_itself_stood_still_counts_as_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Watched(monkeypatch, 10, step_s=3600.0).run() == [(6, "stuck")]


@pytest.mark.parametrize("looks", [6, 30])
def test_a_blocked_loop_is_said_before_it_is_stuck_and_again_after_a_recovery(monkeypatch, looks: int):
    watched = Watched(monkeypatch, looks, blocked_s=4 * LOOK_S, limit_s=20 * LOOK_S)
    watched.beat_looks = 10
    expected = [(5, 5 * LOOK_S), (15, 5 * LOOK_S), (25, 5 * LOOK_S)]
    assert watched.run() == [event for event in expected if event[0] <= looks]


def test_nobody_needs_to_listen_to_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Watched(monkeypatch, 12, blocked_s=4 * LOOK_S, on_blocked=None).run() == [(11, "stuck")]


def test_a_watchdog_may_be_closed_before_it_starts_and_by_whom_it_calls() -> None:
    Watchdog(lambda: 0, limit_s=1.0, on_stuck=lambda: None).close()
    closed = threading.Event()

    def close() -> None:
        watchdog.close()
        if threading.current_thread().daemon:
            closed.set()

    watchdog = Watchdog(lambda: 0, limit_s=0.01, on_stuck=close)
    watchdog.start()
    assert closed.wait(WAIT_S)
    watchdog.close()


@pytest.mark.parametrize(
    ("steps", "asked"),
    [
        ([True], [True]),
        ([True, False], [True, False]),
        (["resume"], []),
        (["yield", "resume"], [False, False]),
        ([True, "yield", "resume"], [True, False, True]),
        ([True, "yield", False, "resume"], [True, False, False, False]),
        ([True, "yield", "resume", "resume"], [True, False, True]),
    ],
)
def test_a_seat_is_given_up_while_the_loop_hangs(steps: list[bool | str], asked: list[bool]) -> None:
    found: list[bool] = []
    seat = SeatRequest(lambda *, stand: found.append(stand))
    for step in steps:
        if step == "yield":
            seat.yield_it()
        elif step == "resume":
            seat.resume()
        else:
            seat.ask(stand=bool(step))
    assert found == asked


@pytest.mark.parametrize(("closed", "event"), [(True, "stopped"), (False, "left-open")])
def test_a_member_that_is_left_open_is_said_once(closed: bool, event: str) -> None:
    member = OpenMember("b1", lambda: 3)
    if closed:
        member.loop_closed()
    with capture_logs() as lines:
        member.say()
        member.say()
    assert [(line["event"], line["broker"], line["serving"]) for line in lines] == [(event, "b1", 3)]


def test_the_child_of_a_fork_has_left_no_member_open(monkeypatch: pytest.MonkeyPatch) -> None:
    process = OpeningProcess()
    monkeypatch.setattr(supervision, "opening_process", lambda: process)
    member = OpenMember("b1", lambda: 3)
    process.leave()
    with capture_logs() as lines:
        member.say()
    assert lines == []


def test_the_parts_of_a_member_whose_loop_was_closed_are_closed_whatever_one_of_them_does() -> None:
    closed: list[str] = []
    over = threading.Event()

    def fail() -> None:
        closed.append("failing")
        if not threading.current_thread().daemon:
            closed.append("and it keeps the interpreter")
        raise OSError("no socket")

    with capture_logs() as lines:
        abandon(OpenMember("b1", lambda: 3), [fail, lambda: closed.append("other"), over.set])
        assert over.wait(WAIT_S)
    assert closed == ["failing", "other"]
    assert [line["event"] for line in lines] == ["stopped", "closing-failed"]


def test_what_may_block_for_ever_gets_its_time() -> None:
    gate = threading.Event()
    daemons: list[bool] = []  # what hangs must not keep the interpreter from its end
    assert within(WAIT_S, lambda: daemons.append(threading.current_thread().daemon))
    assert daemons == [True]
    assert not within(0.01, lambda: gate.wait(WAIT_S) and None)
    gate.set()


@pytest.mark.parametrize(("length", "shown"), [(2_000, True), (2_001, False)])
def test_an_input_is_shown_whole_up_to_two_thousand_characters(length: int, shown: bool) -> None:
    class Text(str):
        __slots__ = ()

        def __repr__(self) -> str:
            return str(self)

    with capture_logs() as lines:
        log_evidence(ValueError("broken"), [Text("x" * length)], "b1")  # type: ignore[list-item]
    assert (lines[0]["input"] == "x" * length) is shown


def test_evidence_names_every_input_and_cuts_long_ones() -> None:
    inputs = [RecordRead(Topic.CHANNEL, 0, 5, 0, b"k", b"x" * 5000), RecordRead(Topic.CHANNEL, 0, 6, 0, b"k", b"y")]
    with capture_logs() as lines:
        log_evidence(ValueError("broken"), inputs, "b1")
    assert [line["event"] for line in lines] == ["evidence", "evidence", "invariant-violated"]
    assert [line["place"] for line in lines[:2]] == [-2, -1]
    assert len(lines[0]["input"]) < 2200
    assert "offset=6" in lines[1]["input"]
