"""Restarts are bounded, a standing loop is noticed, and evidence reaches the log."""

import threading
import time

from statechannel.broker.supervision import RestartPolicy, Restarts, Watchdog, log_evidence
from statechannel.protocol.log import RecordRead, Topic
from tests.support.log_lines import capture_logs
from tests.support.waits import WAIT_S


def test_back_off_doubles_is_bounded_and_gives_up() -> None:
    restarts = Restarts(RestartPolicy(limit=4, window_s=60, first_wait_s=1, longest_wait_s=3))
    assert [restarts.failed(float(n)) for n in range(5)] == [1, 2, 3, 3, None]
    assert restarts.failed(200.0) == 1  # old failures are forgotten
    assert restarts.total == 6


def test_watchdog_sees_a_loop_that_stands_still_and_its_recovery() -> None:
    beats = [0]
    stuck = threading.Event()
    watchdog = Watchdog(lambda: beats[0], limit_s=0.1, on_stuck=stuck.set)
    watchdog.start()
    for _ in range(20):
        beats[0] += 1
        time.sleep(0.02)
    assert not stuck.is_set()
    assert stuck.wait(WAIT_S)
    beats[0] += 1
    deadline_s = time.monotonic() + WAIT_S
    while watchdog.stuck and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not watchdog.stuck
    watchdog.close()


def test_evidence_names_every_input_and_cuts_long_ones() -> None:
    inputs = [RecordRead(Topic.CHANNEL, 0, 5, 0, b"k", b"x" * 5000), RecordRead(Topic.CHANNEL, 0, 6, 0, b"k", b"y")]
    with capture_logs() as lines:
        log_evidence(ValueError("broken"), inputs, "b1")
    assert [line["event"] for line in lines] == ["evidence", "evidence", "invariant-violated"]
    assert [line["place"] for line in lines[:2]] == [-2, -1]
    assert len(lines[0]["input"]) < 2200
    assert "offset=6" in lines[1]["input"]
