"""A cold start by itself, with everything that it asks of the engine set by the test: each condition, and when it counts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.engine.cold_start import ColdStart
from statechannel.engine.config import EngineConfig, Identity
from statechannel.engine.proposals import ProposalResult, ProposalStatus
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.overruling import OverruledState
from statechannel.protocol.replica import Phase
from tests.support.lone_engine import mark

MARK = b"!cold-start"
KEYS = ["t/n", "t/n/0x00000000_0x80000000", "t/n/0x80000000_0xffffffff"]
AFTER_S, EXPIRY_S = 10.0, 6.0
MEMBER = SimpleNamespace(caught_up=True, incarnation="b-1")
JOINING = SimpleNamespace(caught_up=False, incarnation="b-1")


class StubReplica:
    """A partition that was read through offset 7 and waits."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.phase = Phase.WAITING
        self.applied = 7
        self.is_headless = False
        self.overruled: list[OverruledState] = []
        self.marks = SimpleNamespace(newest=-1)
        names = [name.encode() for name in KEYS]
        self.view = SimpleNamespace(keys={name: KeyState("t/n", -1, -1) for name in names}, highest=7)

    @property
    def caught_up(self) -> bool:
        return self.phase is Phase.CAUGHT_UP

    def assume(self) -> list[str]:
        self.phase = Phase.CAUGHT_UP
        return list(KEYS)


class Bench:
    """Process `a-1`, elected, alone, with two partitions that wait; the clock stands at 100 s.

    Attributes:
        own: What the registry tells of it: it is joining.
        acts: What it did that others see, in order, since the last question.
        asserts: Ends of the asserts on their way, by partition and key.
        room: How many may be on their way.
        failed: What to call where the delivery of a mark fails.
    """

    def __init__(self, partitions: int = 2, **config: Any) -> None:
        self.identity = Identity("a", "a-1", b"0123456789", 1_000)
        bounds = {"cold_start_after_s": AFTER_S, "member_expiry_s": EXPIRY_S} | config
        self.config = EngineConfig(partitions=partitions, **bounds)
        self.now = SimpleNamespace(mono_s=100.0)
        self.replicas = [StubReplica(partition) for partition in range(partitions)]
        self.listened = True
        self.registered: set[str] = set()
        self.own = SimpleNamespace(caught_up=False, incarnation="a-1")
        self.members = SimpleNamespace(alive={"a": self.own}, knows=self.registered.__contains__)
        self.read_since_s = 0.0
        self.presence = SimpleNamespace(last_ms=0, has_read_since=lambda moment_s: self.read_since_s >= moment_s)
        self.is_elected = True
        self.cold_starting: Collection[int] = ()
        self.doubtful: Collection[int] = ()
        self.may_write = True
        self.room = 100
        self._offset = 20
        self.acts: list[Any] = []
        self.asserts: dict[tuple[int, str], Callable[[ProposalResult], None]] = {}
        self.failed: list[Callable[[], None]] = []
        self.proposals = SimpleNamespace(
            restate=self._restate,
            control=self._control,
            view_replaced=lambda partition, assumed=False: self._act("forgets" if assumed else "tells", partition),
        )
        self.streams = SimpleNamespace(check=lambda: self._act("streams"))
        context: Any = self
        stubs: Any = (self.presence, self.proposals, self.streams, self)
        self.cold_start = ColdStart(context, *stubs)

    def knows_absence(self) -> bool:
        return self.listened

    def settled(self, partition: int) -> bool:
        return partition not in self.cold_starting and partition not in self.doubtful

    @property
    def in_doubt(self) -> bool:
        return bool(self.cold_starting or self.doubtful)

    def _act(self, *act: Any) -> None:
        self.acts.append(act[0] if len(act) == 1 else act)

    def emit(self, event: str, **facts: Any) -> None:
        self._act(event, *facts.values())

    def start_over(self, partition: int, why: str) -> None:
        self._act("start over", partition)
        self.replicas[partition].phase = Phase.START_OVER
        self.cold_start.abandon(partition)

    def joined(self, replica: StubReplica) -> None:
        self._act("joined", replica.partition)

    def caught_up_changed(self) -> None:
        self._act("caught-up changed", self.in_doubt, self.cold_start.is_candidate)

    def _restate(self, key: KeyState, done: Callable[[ProposalResult], None]) -> str | None:
        if len(self.asserts) == self.room:
            return None
        for replica in self.replicas:
            for name, held in replica.view.keys.items():
                if held is key:
                    self.asserts[replica.partition, name.decode()] = done
        return "as-1"

    def _control(self, partition: int, key: bytes, fields: dict[str, Any], *, failed: Callable[[], None]) -> None:
        assert key == MARK
        assert fields["by"] == {"broker": "a", "incarnation": "a-1"}
        self._act("mark", partition, fields["through"])
        self.failed.append(failed)

    def took(self) -> list[Any]:
        """What it did since the last question."""
        acts, self.acts = self.acts, []
        return acts

    def tick(self, after_s: float = 0.0) -> list[Any]:
        self.now.mono_s += after_s
        self.cold_start.tick()
        return self.took()

    def began(self) -> Bench:
        """It has taken its view of partition 0 for the truth, and its asserts are on their way."""
        self.tick()
        self.tick(AFTER_S)
        return self

    def judged(self, *names: str, partition: int = 0, status: ProposalStatus = ProposalStatus.ACCEPTED) -> None:
        for name in names or KEYS:
            self.asserts.pop((partition, name))(ProposalResult(status))

    def marked(self) -> Bench:
        """Its mark is on its way."""
        self.began().judged()
        assert ("mark", 0, 7) in self.tick()
        return self

    def read(
        self, writer: str, *, counts: bool = True, live: bool = True, partition: int = 0, ms: int = 50_000
    ) -> list[Any]:
        """A mark is read."""
        self._offset += 1
        if counts:
            self.replicas[partition].marks.newest = self._offset
        self.cold_start.read(RecordRead(Topic.CHANNEL, partition, self._offset, ms, MARK, mark(writer, 7)), live=live)
        return self.took()


def alone(**config: Any) -> Bench:
    return Bench(1, **config)


def judging(partitions: int = 1) -> Bench:
    """It is caught up, and nothing is in doubt."""
    bench = Bench(partitions)
    for replica in bench.replicas:
        replica.phase = Phase.CAUGHT_UP
    return bench


# --- when it is due ------------------------------------------------------------------------------------------------


def test_it_is_due_after_its_bound_and_then_it_stands_for_leader() -> None:
    bench = alone()
    bench.is_elected = False
    assert not bench.cold_start.is_candidate
    assert [bench.tick(wait_s) or bench.cold_start.is_candidate for wait_s in (0.0, AFTER_S - 0.5, 0.5)] == [
        False, False, True,
    ]  # fmt: skip
    assert not bench.cold_start.running, "only the leader starts cold"
    bench.is_elected = True
    assert ("cold-start.began", 0, 7) in bench.tick()


def test_a_leader_starts_cold_no_earlier_than_others() -> None:
    bench = alone()
    assert bench.tick() == []
    assert bench.tick(AFTER_S - 0.5) == []
    assert not bench.cold_start.running


def phase_of(phase: Phase, partition: int = 0) -> Callable[[Bench], None]:
    return lambda bench: setattr(bench.replicas[partition], "phase", phase)


def all_caught_up(bench: Bench) -> None:
    for replica in bench.replicas:
        replica.phase = Phase.CAUGHT_UP


@pytest.mark.parametrize(
    ("change", "due"),
    [
        pytest.param(lambda _: None, True, id="nothing"),
        pytest.param(phase_of(Phase.CAUGHT_UP), True, id="one partition is judged"),
        pytest.param(all_caught_up, False, id="all are judged"),
        pytest.param(phase_of(Phase.READING), False, id="one is still being read"),
        pytest.param(phase_of(Phase.STOPPED, 1), False, id="one is stopped"),
        pytest.param(lambda bench: bench.members.alive.update(b=MEMBER), False, id="somebody is caught up"),
        pytest.param(lambda bench: bench.members.alive.update(b=JOINING), True, id="nobody is"),
        pytest.param(lambda bench: setattr(bench, "listened", False), False, id="it has not listened for long"),
    ],
)
def test_what_makes_it_due(change: Callable[[Bench], None], due: bool) -> None:
    bench = Bench()
    bench.is_elected = False
    change(bench)
    bench.tick()
    bench.tick(AFTER_S)
    assert bench.cold_start.is_candidate is due


@pytest.mark.parametrize(
    "change",
    [phase_of(Phase.READING), lambda bench: bench.members.alive.update(b=MEMBER)],
)
def test_the_wait_begins_anew_where_it_was_not_due(change: Callable[[Bench], None]) -> None:
    bench = alone()
    bench.tick()
    change(bench)
    bench.tick(AFTER_S)
    phase_of(Phase.WAITING)(bench)
    bench.members.alive.pop("b", None)
    bench.tick(0.5)
    bench.tick(AFTER_S - 0.5)
    assert not bench.cold_start.running
    bench.tick(0.5)
    assert bench.cold_start.running


@pytest.mark.parametrize(
    ("partition", "writer", "anew"),
    [(1, "b-1", True), (1, "a-1", False), (0, "b-1", False), (0, "a-1", False)],
)
def test_a_heartbeat_where_it_waits_is_a_member_that_lives(partition: int, writer: str, anew: bool) -> None:
    """Not an own one, which says only what it knew itself; nor one where nothing is waited for."""
    bench = Bench()
    bench.is_elected = False
    phase_of(Phase.CAUGHT_UP)(bench)
    bench.tick()
    bench.tick(AFTER_S)
    assert bench.cold_start.is_candidate
    bench.cold_start.heartbeat_read(partition, writer)
    assert bench.cold_start.is_candidate is not anew
    bench.tick(AFTER_S - 0.5)
    assert bench.cold_start.is_candidate is not anew
    assert bench.took() == []


def left(bench: Bench, partition: int) -> None:
    """The reader of a partition had to start over, and waits again."""
    phase_of(Phase.WAITING, partition)(bench)
    bench.cold_start.abandon(partition)


def starts_cold(bench: Bench) -> list[int]:
    """Partitions that it takes for the truth now; all are due."""
    assert bench.cold_start.is_candidate
    bench.tick()
    return list(bench.cold_start.running)


def test_a_partition_that_was_left_just_now_is_waited_for_however_long_another_one_has_waited() -> None:
    bench = Bench()
    bench.is_elected = False
    bench.tick()
    bench.tick(AFTER_S)
    left(bench, 1)
    bench.tick(AFTER_S - 0.5)
    bench.is_elected = True
    assert starts_cold(bench) == [0]


@pytest.mark.parametrize("by_mark", [False, True])
def test_a_partition_that_was_judged_since_is_waited_for_anew(by_mark: bool) -> None:
    bench = Bench()
    phase_of(Phase.CAUGHT_UP)(bench)
    left(bench, 1)
    bench.tick()
    bench.tick(AFTER_S)
    if by_mark:
        bench.judged(partition=1)
        assert ("mark", 1, 7) in bench.tick()
        bench.read("a-1", partition=1)
    else:
        phase_of(Phase.CAUGHT_UP, 1)(bench)
        bench.cold_start.abandon(1)
    bench.is_elected = False
    phase_of(Phase.WAITING)(bench)
    bench.tick()
    bench.tick(AFTER_S)
    left(bench, 1)
    bench.is_elected = True
    bench.tick(0.5)
    assert starts_cold(bench) == [0]


# --- the asserts ---------------------------------------------------------------------------------------------------


def test_it_takes_what_waits_for_the_truth_and_asserts_each_key_at_once() -> None:
    bench = Bench()
    phase_of(Phase.CAUGHT_UP)(bench)
    bench.tick()
    assert bench.tick(AFTER_S) == [("forgets", 1), ("cold-start.began", 1, 7)]
    assert list(bench.cold_start.running) == [1]
    assert sorted(bench.asserts) == [(1, name) for name in KEYS]
    assert bench.in_doubt
    assert not bench.settled(1)
    assert bench.settled(0)


def test_keys_are_asserted_in_the_order_in_which_they_were_read() -> None:
    assert [name for _, name in alone().began().asserts] == KEYS


@pytest.mark.parametrize("window", [1, 2])
def test_so_many_are_on_their_way_at_once(window: int) -> None:
    bench = alone(cold_start_window=window).began()
    assert len(bench.asserts) == window
    bench.tick()
    assert len(bench.asserts) == window
    bench.judged(KEYS[0])
    bench.tick()
    assert [name for _, name in bench.asserts] == KEYS[1 : 1 + window]


def test_those_for_which_there_was_no_room_follow() -> None:
    bench = alone()
    bench.room = 1
    bench.began()
    for name in KEYS:
        assert [key for _, key in bench.asserts] == [name]
        assert bench.took() == []
        bench.judged(name)
        bench.took()
        marks = bench.tick()
    assert marks == [("mark", 0, 7)]


def test_where_there_was_no_room_at_all_it_goes_on_later() -> None:
    bench = alone(cold_start_window=1)
    bench.room = 0
    bench.tick()
    assert bench.tick(AFTER_S) == [("forgets", 0), ("cold-start.began", 0, 7)]
    assert bench.tick() == [], "and writes no mark meanwhile"
    bench.room = 1
    bench.tick()
    assert list(bench.asserts) == [(0, KEYS[0])]


def test_none_is_written_while_the_log_is_away() -> None:
    bench = alone()
    bench.may_write = False
    bench.began()
    assert not bench.asserts
    bench.may_write = True
    bench.tick()
    assert len(bench.asserts) == len(KEYS)
    bench.judged()
    bench.may_write = False
    assert bench.tick() == [], "nor the mark"


@pytest.mark.parametrize(
    ("status", "again"),
    [
        (ProposalStatus.ACCEPTED, False),
        (ProposalStatus.REJECTED, False),
        (ProposalStatus.NOT_WRITTEN, True),
        (ProposalStatus.UNKNOWN, True),
    ],
)
def test_an_assert_that_may_not_be_in_the_log_is_written_again(status: ProposalStatus, again: bool) -> None:
    bench = alone().began()
    bench.judged(*KEYS[1:])
    bench.judged(KEYS[0], status=status)
    acts = bench.tick()
    assert bench.asserts.keys() == ({(0, KEYS[0])} if again else set())
    assert (("mark", 0, 7) in acts) is not again


# --- the mark ------------------------------------------------------------------------------------------------------


def test_it_is_written_once_when_every_assert_was_judged() -> None:
    bench = alone().began()
    bench.judged(*KEYS[1:])
    assert bench.tick() == []
    bench.judged(KEYS[0])
    assert bench.tick() == [("mark", 0, 7)]
    assert bench.tick() == []
    bench.failed[0]()
    assert bench.tick() == [("mark", 0, 7)], "an error was reported"


def doubtful(bench: Bench) -> None:
    bench.read("stranger")


@pytest.mark.parametrize(
    ("change", "acts"),
    [
        pytest.param(lambda _: None, [("mark", 0, 7)], id="nothing"),
        pytest.param(lambda bench: setattr(bench, "may_write", False), [], id="the log is away"),
        pytest.param(lambda bench: setattr(bench, "is_elected", False), [], id="it leads no more"),
        pytest.param(doubtful, [], id="somebody else's mark is in doubt"),
        pytest.param(
            lambda bench: bench.members.alive.update(b=MEMBER),
            [("start over", 0), ("cold-start.abandoned", 0)], id="somebody is caught up",
        ),
        pytest.param(lambda bench: bench.members.alive.update(b=JOINING), [("mark", 0, 7)], id="nobody is"),
        pytest.param(
            lambda bench: setattr(bench.own, "caught_up", True), [("mark", 0, 7)], id="an own word from before is heard late"
        ),
    ],
)  # fmt: skip
def test_the_last_look_before_the_mark(change: Callable[[Bench], None], acts: list[Any]) -> None:
    bench = alone().began()
    bench.took()
    bench.judged()
    change(bench)
    assert bench.tick() == acts


def test_when_it_is_read_back_the_view_counts() -> None:
    bench = alone().marked()
    assert bench.read("a-1") == [("cold-start.ended", 0, 7), ("joined", 0), ("caught-up changed", False, False)]
    assert not bench.in_doubt
    assert bench.read("a-1") == [], "a second one, after an error that was none"
    assert bench.read("a-1", counts=False) == []


def test_with_others_under_way_only_this_partition_is_joined() -> None:
    bench = Bench().marked()
    bench.took()
    assert bench.read("a-1") == [("cold-start.ended", 0, 7), ("joined", 0)]
    assert bench.cold_start.is_candidate
    assert list(bench.cold_start.running) == [1]


def test_where_another_mark_is_in_doubt_the_view_does_not_count_yet() -> None:
    bench = alone().marked()
    bench.cold_start._doubtful[0] = {"stranger": 60_000}
    assert bench.read("a-1") == [("cold-start.ended", 0, 7), ("caught-up changed", True, False)]


def test_an_own_mark_of_an_earlier_attempt_ends_nothing() -> None:
    bench = alone().began()
    bench.took()
    assert bench.read("a-1") == []
    assert bench.cold_start.running


def test_an_own_mark_that_is_void_starts_over_and_waits_anew() -> None:
    bench = alone().marked()
    assert bench.read("a-1", counts=False) == [("start over", 0), ("cold-start.abandoned", 0)]
    assert not bench.cold_start.is_candidate
    phase_of(Phase.WAITING)(bench)
    assert bench.tick() == []
    assert bench.tick(AFTER_S - 0.5) == []
    assert ("cold-start.began", 0, 7) in bench.tick(0.5)


@pytest.mark.parametrize("writer", ["a-1", "b-1"])
def test_any_heartbeat_ends_it(writer: str) -> None:
    bench = alone().marked()
    bench.cold_start.heartbeat_read(0, writer)
    assert bench.took() == [("start over", 0), ("cold-start.abandoned", 0)]


# --- marks of others -----------------------------------------------------------------------------------------------


def test_whoever_reads_a_mark_of_a_member_starts_over() -> None:
    bench = judging()
    bench.registered.add("b-1")
    assert bench.read("b-1") == [("start over", 0), "streams"]
    assert not bench.in_doubt


@pytest.mark.parametrize("more", [{"counts": False}, {"live": False}])
def test_a_void_mark_and_one_that_was_crossed_change_nothing(more: dict[str, bool]) -> None:
    bench = judging()
    bench.registered.add("b-1")
    assert bench.read("b-1", **more) == []


def test_each_key_that_was_overruled_is_reported_once() -> None:
    bench = judging()
    bench.replicas[0].overruled = [OverruledState("t/n", "this", "that")]
    assert bench.read("b-1", live=False) == [("cold-start.overruled", 0, "t/n", "this", "that")]
    assert bench.read("b-1", live=False) == []


@pytest.mark.parametrize("bounds", [{}, {"cold_start_after_s": EXPIRY_S, "member_expiry_s": AFTER_S}])
def test_a_mark_is_junk_once_the_registry_is_read_to_its_wait_and_tells_of_nobody(bounds: dict[str, float]) -> None:
    """Log times of two topics may be two seconds apart; a member was registered for its whole wait before its mark."""
    bench = Bench(**bounds)
    all_caught_up(bench)
    bench.presence.last_ms = 50_000 - 6_000 + 2_000 - 1
    assert bench.read("stranger", ms=50_000) == ["streams"]
    assert bench.in_doubt
    assert not bench.settled(0)
    assert bench.settled(1)
    assert bench.tick() == []
    bench.presence.last_ms += 1
    assert bench.tick() == [("joined", 0), ("caught-up changed", False, False)]
    assert not bench.in_doubt


def test_a_mark_is_junk_once_the_registry_is_read_to_its_end_though_its_clock_is_behind() -> None:
    bench = judging()
    assert bench.read("stranger", ms=50_000) == ["streams"]
    bench.presence.last_ms = 50_000 - 7_200_000
    bench.read_since_s = bench.now.mono_s - 0.1
    assert bench.tick() == []
    bench.read_since_s = bench.now.mono_s
    assert bench.tick() == [("joined", 0), ("caught-up changed", False, False)]


def test_a_member_that_is_registered_late_still_counts() -> None:
    bench = judging()
    assert bench.read("b-1") == ["streams"]
    bench.registered.add("b-1")
    assert bench.tick() == [("start over", 0)]
    assert not bench.in_doubt


def test_of_several_marks_each_is_judged_by_its_own_time() -> None:
    bench = judging()
    assert bench.read("stranger", ms=50_000) == ["streams"]
    assert bench.read("another", ms=60_000) == ["streams"]
    bench.presence.last_ms = 50_000
    assert bench.tick() == []
    assert bench.in_doubt
    bench.presence.last_ms = 60_000
    assert bench.tick() == [("joined", 0), ("caught-up changed", False, False)]


def test_only_so_many_marks_are_remembered() -> None:
    bench = Bench(1, remembered_max=3)
    all_caught_up(bench)
    for number in range(9):
        bench.read(f"stranger-{number}")
    assert list(bench.cold_start._doubtful[0]) == ["stranger-6", "stranger-7", "stranger-8"]


def test_doubt_that_ends_during_a_cold_start_ends_only_itself() -> None:
    bench = alone().began()
    bench.took()
    doubtful(bench)
    bench.presence.last_ms = 50_000
    assert bench.tick() == []
    assert list(bench.cold_start.running) == [0]
    bench.judged()
    assert bench.tick() == [("mark", 0, 7)]


def test_what_was_doubted_of_a_view_is_forgotten_with_it() -> None:
    bench = judging()
    doubtful(bench)
    bench.cold_start.abandon(0)
    assert not bench.in_doubt
    assert bench.took() == [], "no cold start was under way"


def test_a_partition_that_is_left_ends_no_other_ones_wait() -> None:
    bench = Bench()
    bench.is_elected = False
    bench.tick()
    bench.tick(AFTER_S)
    bench.cold_start.abandon(0)
    assert bench.cold_start.is_candidate
    bench.tick(0.5)
    assert bench.cold_start.is_candidate
