"""Control records alone: who is told of which, and from when on a partition counts as silent, at each bound."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.engine.controls import Controls
from statechannel.engine.silence import Silence
from statechannel.protocol.codec import CLOSING_PREFIX, HEARTBEAT_KEY
from statechannel.protocol.log import RecordRead, Topic
from tests.support.lone_engine import heartbeat, mark
from tests.support.stub_context import StubContext

AHEAD_MS = 500
BOUND_S = 10.0
END = 7
"""Of the log as of the start."""


class Bench:
    """The control records that `a-1` reads at 100 s by its own clock, 100.5 s by Kafka's."""

    def __init__(self, at_s: float = 100.0) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.sent_at_s: float | None = None
        context: Any = StubContext(partitions=2, cold_start_after_s=BOUND_S)
        context.now.mono_s = at_s
        context.replicas = [SimpleNamespace(end_offset=END), SimpleNamespace(end_offset=END)]
        context.cold_starting = set[int]()
        self.context = context
        self.presence: Any = SimpleNamespace(clock_ahead_ms=AHEAD_MS)
        self.silence = Silence(context, self.presence)
        stubs: Any = {
            "echo": SimpleNamespace(read_back=self._read_back),
            "closing_marks": SimpleNamespace(read=lambda *said: self.calls.append(("closing mark", *said))),
            "proposals": SimpleNamespace(release=lambda partition: self.calls.append(("release", partition))),
            "cold_start": SimpleNamespace(heartbeat_read=lambda *said: self.calls.append(("cold start", *said))),
            "duties": SimpleNamespace(
                heartbeat_read=lambda partition, *, clean: self.calls.append(("duties", partition, clean))
            ),
        }
        self.controls = Controls(context, silence=self.silence, **stubs)

    def _read_back(self, partition: int, record_id: str, now_s: float) -> float | None:
        assert now_s == self.context.now.mono_s
        self.calls.append(("read back", partition, record_id))
        return self.sent_at_s

    def read(self, key: bytes | None, value: bytes | None, offset: int = END, ms: int = 100_500) -> list[Any]:
        """The parts that are called, with their arguments."""
        self.calls.clear()
        self.controls.read(RecordRead(Topic.CHANNEL, 1, offset, ms, key, value))
        return list(self.calls)

    def silent(self) -> list[bool]:
        return [self.silence.is_silent(partition) for partition in (0, 1)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(
    ("clean_to", "clean"), [(-1, False), (0, True), (END - 1, True), (END, False), (END + 1, False)]
)
def test_of_a_heartbeat_all_are_told_who_go_by_it(bench, clean_to, clean):
    assert bench.read(HEARTBEAT_KEY, heartbeat("b-1", clean_to)) == [
        ("duties", 1, clean),
        ("cold start", 1, "b-1"),
        ("release", 1),
    ]


def test_what_was_there_at_the_start_is_no_news(bench):
    assert bench.read(HEARTBEAT_KEY, heartbeat("b-1", 0), END - 1) == [("release", 1)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (HEARTBEAT_KEY, b"junk"),
        (HEARTBEAT_KEY, None),
        (HEARTBEAT_KEY, heartbeat("b-1", 0).replace(b'"format":1', b'"format":2')),
        (b"!cold-start", mark("b-1", 0)),
        (b"t/n", heartbeat("b-1", 0)),
        (None, heartbeat("b-1", 0)),
        (None, None),
        (CLOSING_PREFIX + b"b", None),
        (b"x" + CLOSING_PREFIX, b"{}"),
    ],
)
def test_of_nothing_else_is_anybody_told(bench, key, value):
    assert bench.read(key, value) == []
    assert bench.silent() == [True, True]


def test_a_closing_mark_goes_to_those_who_keep_them(bench):
    key = CLOSING_PREFIX + b"b"
    assert bench.read(key, b"{}", 3, 5) == [("closing mark", key, b"{}", 3, 5)]


@pytest.mark.parametrize(("ms", "silent"), [(90_501, False), (90_500, False), (90_499, True)])
def test_a_partition_is_silent_when_its_newest_heartbeat_is_old_by_kafkas_clock(bench, ms, silent):
    result = bench.read(HEARTBEAT_KEY, heartbeat("b-1", 0), ms=ms)
    assert bench.silent() == [True, silent]
    assert (("release", 1) in result) is not silent


@pytest.mark.parametrize(("at_s", "silent"), [(9.499, False), (9.5, True)])
def test_a_partition_without_a_heartbeat_is_as_if_one_had_come_before_all_time(at_s, silent):
    assert Bench(at_s).silent() == [silent, silent]


@pytest.mark.parametrize(("sent_at_s", "silent"), [(90.0, False), (89.75, True), (None, True)])
def test_an_own_one_counts_from_when_it_was_sent(bench, sent_at_s, silent):
    bench.sent_at_s = sent_at_s
    assert ("read back", 1, "h1") in bench.read(HEARTBEAT_KEY, heartbeat("a-1", 0), ms=0)
    assert bench.silent() == [True, silent]


def test_an_older_one_that_is_read_later_does_not_make_it_silent(bench):
    for bench.sent_at_s in (95.0, 80.0):
        bench.read(HEARTBEAT_KEY, heartbeat("a-1", 0), ms=0)
    assert bench.silent() == [True, False]


def test_nobody_is_silent_before_kafkas_clock_is_known(bench):
    bench.presence.clock_ahead_ms = None
    assert bench.silent() == [False, False]


def test_whoever_starts_cold_does_not_wait_for_a_heartbeat(bench):
    bench.context.cold_starting.add(0)
    assert bench.silent() == [False, True]
