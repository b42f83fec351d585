"""Duties alone: when debts are paid, heartbeats written and keys purged, at each bound of age, rank and number."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from statechannel.core.bundle import partition_of
from statechannel.core.duties import Duties, _Quiet
from statechannel.core.keys import KeyState
from statechannel.core.ledger import Debt
from statechannel.core.proposals import Result, Status
from statechannel.core.verdict import Verdict
from statechannel.core.view import View
from tests.support.stub_engine import StubEngine

LAG_S = 40.0
"""A tenth of it is 4 s, exactly."""
DELETED_S = 50.0
STEP_S = 0.25


class Partition:
    """A replica that is caught up, as far as duties look at it."""

    def __init__(self, partition: int, partitions: int) -> None:
        self.partition = partition
        self.view = View(partition, partitions)
        self.timestamp_ms = 1_000_000

    @property
    def applied(self) -> int:
        return self.view.applied


class Written:
    """Takes the place of `Proposals`: notes what is written; the test ends it."""

    def __init__(self) -> None:
        self.asserts: list[str] = []
        self.done: dict[str, Callable[[Result], None]] = {}
        self.heartbeats: list[tuple[int, dict[str, Any]]] = []
        self.nulls: list[tuple[int, bytes]] = []
        self.full = False
        self.room = 10
        self.holding_back: set[int] = set()
        self._ids = 0

    def new_id(self) -> str:
        self._ids += 1
        return f"id{self._ids}"

    def restate(self, key: KeyState, done: Callable[[Result], None]) -> str | None:
        if self.full:
            return None
        self.asserts.append(key.name)
        self.done[key.name] = done
        return self.new_id()

    def control(self, partition: int, key: bytes, fields: dict[str, Any]) -> None:
        assert key == b"!heartbeat"
        self.heartbeats.append((partition, fields))

    def purge(self, partition: int, key: bytes) -> None:
        self.nulls.append((partition, key))

    def holds_back(self, partition: int) -> bool:
        return partition in self.holding_back


class Bench:
    """Duties of `a-1`, the leader, on partitions whose logs are written record by record."""

    def __init__(self, *, at_s: float = 100.0, partitions: int = 1, **config: Any) -> None:
        limits = {"compaction_lag_s": LAG_S, "purge_deleted_after_s": DELETED_S, "pending_max": 10}
        engine = StubEngine(partitions=partitions, **limits | config)
        engine.now.mono_s = at_s
        self.engine: Any = engine
        self.engine.acts_as_leader = self.engine.leading = True
        self.engine.ready_since_s = at_s
        self.engine.replicas = [Partition(number, partitions) for number in range(partitions)]
        self.engine.partition_of = lambda namespace: partition_of(namespace, partitions)
        self.engine.wake_soon = lambda what, gap_s: self.woken.append((what, gap_s))
        self.members: dict[str, Any] = {"a": SimpleNamespace(caught_up=True)}
        self.rank = 0
        self.engine.presence = SimpleNamespace(
            members=SimpleNamespace(alive=self.members, rank=lambda _: self.rank), announced=True, writes_format=1
        )
        self.probes: set[int] = set()
        self.echoed: list[tuple[int, str, float]] = []
        self.engine.candidacy = SimpleNamespace(
            must_probe=self.probes.__contains__,
            echo=SimpleNamespace(written=lambda *said: self.echoed.append(said)),
        )
        self.written = Written()
        self.engine.proposals = self.written
        self.woken: list[tuple[object, float]] = []
        self.duties = Duties(self.engine)

    def follow(self, rank: int = 0) -> None:
        """Somebody else leads."""
        self.engine.acts_as_leader = self.engine.leading = False
        self.rank = rank

    def join(self) -> None:
        self.members["b"] = SimpleNamespace(caught_up=False)

    def read(self, name: str, value: bytes | None = b"junk") -> KeyState:
        """A record on a key is judged."""
        replica = self.engine.replicas[self.engine.partition_of(name.partition("/0x")[0])]
        judgement = replica.view.read(replica.applied + 1, name.encode(), value)
        assert judgement.key is not None
        self.duties.judged(replica, judgement.key)
        return judgement.key

    def write(self, name: str, **fields: Any) -> KeyState:
        """A proposal is accepted."""
        by = {"broker": "a", "incarnation": "a-1"}
        made = {"format": 1, "kind": "proposal", "covers": 1_000, "by": by, **fields}
        return self.read(name, orjson.dumps(made))

    def settle(self, key: KeyState) -> None:
        """The key's debt is paid."""
        del self.open(key)[key]

    def open(self, key: KeyState) -> dict[KeyState, Debt]:
        found: dict[KeyState, Debt] = self.engine.replicas[self.engine.partition_of(key.namespace)].view.ledger.open
        return found

    def later(self, seconds: float) -> None:
        self.engine.now.mono_s += seconds

    def paid(self) -> list[str]:
        """What a tick restates."""
        self.written.asserts.clear()
        self.duties.tick()
        return list(self.written.asserts)

    def paid_at_once(self) -> list[str]:
        """What the end of a step restates."""
        self.written.asserts.clear()
        self.duties.pay_what_was_read()
        return list(self.written.asserts)

    def beats(self) -> list[int]:
        """`clean_to` of the heartbeats that a tick writes."""
        self.written.heartbeats.clear()
        self.duties.tick()
        return [fields["clean_to"] for _, fields in self.written.heartbeats]

    def told(self, event: str) -> list[dict[str, Any]]:
        return [facts for name, facts in self.engine.events if name == event]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def namespaces(partition: int, count: int, partitions: int = 2) -> list[str]:
    """Names whose keys lie in a partition."""
    names = (f"t/j{number}" for number in range(1_000))
    return [name for name in names if partition_of(name, partitions) == partition][:count]


# --- debts, by their age --------------------------------------------------------------------------------------------


def test_a_leader_pays_at_the_age_of_its_setting():
    bench = Bench(debt_age_leader_s=1.5)
    bench.read("t/x")
    assert bench.paid() == []
    bench.later(1.25)
    assert bench.paid() == []
    bench.later(STEP_S)
    assert bench.paid() == ["t/x"]
    assert bench.told("duty.began")[-1] == {"duty": "debts", "partition": 0, "why": "this broker leads"}


def test_a_leader_pays_at_once_while_somebody_joins(bench):
    bench.join()
    bench.read("t/x")
    assert bench.paid() == ["t/x"]


@pytest.mark.parametrize(("rank", "patience_s"), [(0, 4.0), (1, 6.0), (3, 10.0)])
@pytest.mark.parametrize("joining", [False, True])
def test_the_others_wait_a_tenth_of_the_lag_and_an_interval_more_for_each_rank(rank, patience_s, joining):
    bench = Bench(heartbeat_interval_s=2.0)
    bench.follow(rank)
    if joining:
        bench.join()
    bench.read("t/x")
    assert bench.paid() == []
    bench.later(patience_s - STEP_S)
    assert bench.paid() == []
    bench.later(STEP_S)
    assert bench.paid() == ["t/x"]
    assert {"duty": "debts", "partition": 0, "why": "nobody else pays them"} in bench.told("duty.began")


def test_a_debt_is_as_old_as_this_process_knows_it(bench):
    bench.read("t/x")
    bench.paid()
    bench.later(0.5)
    bench.read("t/y")
    bench.paid()
    assert bench.duties.oldest_debt_s() == 0.5
    bench.later(0.5)
    assert bench.paid() == ["t/x"]
    assert bench.duties.oldest_debt_s() == 1.0
    bench.later(0.5)
    assert bench.paid() == ["t/y"]


def test_the_oldest_of_all_partitions_is_told():
    bench = Bench(partitions=2)
    assert bench.duties.oldest_debt_s() == 0.0
    bench.read(*namespaces(1, 1))
    assert bench.duties.oldest_debt_s() == 0.0, "nobody has looked at it yet"
    bench.paid()
    bench.later(2)
    bench.read(*namespaces(0, 1))
    bench.paid()
    bench.later(1)
    assert bench.duties.oldest_debt_s() == 3.0


def test_the_age_of_a_debt_begins_anew_with_the_debt(bench):
    key = bench.read("t/x")
    bench.paid()
    bench.settle(key)
    bench.later(2)
    bench.read("t/x")
    assert bench.paid() == []


def test_nothing_is_paid_in_safe_mode(bench):
    bench.read("t/x")
    bench.paid()
    bench.later(5)
    bench.engine.may_write = False
    assert bench.paid() == []
    assert bench.duties.oldest_debt_s() == 5.0


def test_nothing_is_paid_where_nothing_is_judged():
    bench = Bench(partitions=2)
    names = [*namespaces(0, 1), *namespaces(1, 1)]
    for name in names:
        bench.read(name)
    bench.paid()
    bench.later(5)
    bench.engine.not_judged = {0}
    assert bench.paid() == names[1:]
    assert bench.told("duty.ended") == [{"duty": "heartbeats", "partition": 0}]
    bench.later(5)
    bench.engine.not_judged = {1}
    bench.paid()
    assert bench.told("duty.ended")[1:] == [
        {"duty": "debts", "partition": 1},
        {"duty": "heartbeats", "partition": 1},
    ]


# --- debts, by their number -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("debts", "paid"), [(1, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize("joining", [False, True])
@pytest.mark.parametrize("room", [5, 6])
def test_so_many_are_paid_in_a_tick_and_a_join_hurries_the_rest(debts, paid, joining, room):
    bench = Bench(debt_batch_max=2)
    for number in range(debts):
        bench.read(f"t/x{number}")
    bench.paid()
    bench.later(1)
    if joining:
        bench.join()
    bench.written.room = room
    assert bench.paid() == [f"t/x{number}" for number in range(paid)]
    assert bench.woken == ([(bench.duties.tick, 0.05)] if paid == 2 and joining and room == 6 else [])


def test_the_room_is_half_of_all_that_may_be_on_their_way():
    bench = Bench(debt_batch_max=1, pending_max=12)
    bench.join()
    bench.read("t/x")
    bench.written.room = 6
    bench.paid()
    assert bench.woken == []


def test_where_no_more_may_be_on_their_way_the_tick_ends(bench):
    for name in ("t/x", "t/y"):
        bench.read(name)
    bench.written.full = True
    bench.join()
    assert bench.paid() == []
    assert "debts" not in [facts["duty"] for facts in bench.told("duty.began")]
    bench.written.full = False
    assert bench.paid() == ["t/y"], "the one that was refused waits for its turn"


def test_the_younger_wait_though_an_older_one_is_on_its_way(bench):
    bench.read("t/x")
    bench.paid()
    bench.later(1)
    bench.read("t/y")
    assert bench.paid() == ["t/x"]
    bench.later(0.5)
    assert bench.paid() == []
    bench.later(0.5)
    assert bench.paid() == ["t/y"]


@pytest.mark.parametrize("by_tick", [False, True])
def test_one_that_is_on_its_way_is_not_paid_again_for_four_retries(by_tick):
    bench = Bench(retry_interval_s=0.5)
    bench.join()
    bench.read("t/x")
    assert bench.paid() == ["t/x"]

    def again() -> list[str]:
        if by_tick:
            return bench.paid()
        bench.read("t/x")
        return bench.paid_at_once()

    bench.later(1.75)
    assert again() == []
    bench.later(STEP_S)
    assert again() == ["t/x"]


def test_once_its_end_is_known_it_is_paid_again(bench):
    bench.join()
    bench.read("t/x")
    bench.paid()
    bench.written.done["t/x"](Result(Status.REJECTED))
    assert bench.paid() == ["t/x"]


# --- two payers -----------------------------------------------------------------------------------------------------


def outrun(bench: Bench, name: str = "t/x", *, status: Status = Status.ACCEPTED, at: int = 0) -> None:
    """An assert of ours was accepted and began a debt: somebody else's had settled the one that it meant."""
    key = next(key for key in bench.engine.replicas[0].view.keys.values() if key.name == name)
    offset = bench.open(key)[key].since_offset + at
    bench.written.done[name](Result(status, Verdict.ACCEPTED, offset))


@pytest.mark.parametrize(("rank", "gap_s"), [(0, 0.5), (1, 1.0), (2, 1.5)])
@pytest.mark.parametrize("times", [1, 2])
def test_who_was_outrun_waits_by_its_rank(rank, gap_s, times):
    bench = Bench()
    bench.join()
    bench.rank = rank
    bench.read("t/x")
    bench.paid()
    for _ in range(times):
        outrun(bench)
    bench.later(gap_s * times - STEP_S)
    assert bench.paid() == []
    bench.later(STEP_S)
    assert bench.paid() == ["t/x"]


@pytest.mark.parametrize(("status", "at"), [(Status.REJECTED, 0), (Status.UNKNOWN, 0), (Status.ACCEPTED, 1)])
def test_who_was_not_does_not(bench, status, at):
    bench.join()
    bench.read("t/x")
    bench.paid()
    outrun(bench, status=status, at=at)
    assert bench.paid() == ["t/x"]


def test_who_has_settled_it_was_not_outrun(bench):
    bench.join()
    key = bench.read("t/x")
    bench.paid()
    bench.settle(key)
    bench.written.done["t/x"](Result(Status.ACCEPTED, Verdict.ASSERT_EQUAL, 0))
    bench.read("t/x")
    assert bench.paid_at_once() == ["t/x"]


def test_who_was_outrun_does_not_pay_at_the_end_of_a_step(bench):
    bench.join()
    bench.read("t/x")
    bench.paid_at_once()
    outrun(bench)
    bench.later(60)
    bench.read("t/x")
    assert bench.paid_at_once() == []
    assert bench.paid() == []
    bench.later(0.5)
    assert bench.paid() == ["t/x"]


def test_it_is_forgotten_with_the_debt():
    bench = Bench(partitions=2)
    bench.join()
    (mine,), (other,) = namespaces(0, 1), namespaces(1, 1)
    keys = [bench.read(mine), bench.read(other)]
    bench.paid()
    for key in keys:
        bench.written.done[key.name](Result(Status.ACCEPTED, Verdict.ACCEPTED, 0))
    bench.settle(keys[0])
    bench.paid()
    bench.read(mine)
    bench.read(other)
    assert bench.paid_at_once() == [mine], "the other partition's debt is still open"


# --- at the end of a step -------------------------------------------------------------------------------------------


def test_while_somebody_joins_what_was_read_is_paid_at_once_and_only_once(bench):
    bench.join()
    bench.read("t/x")
    assert bench.paid_at_once() == ["t/x"]
    assert {"duty": "debts", "partition": 0, "why": "joins wait for it"} in bench.told("duty.began")
    bench.later(60)
    assert bench.paid_at_once() == []


@pytest.mark.parametrize("leads", [False, True])
@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("debt", [False, True])
def test_only_a_leader_that_may_write_does_so(bench, leads, writes, debt):
    bench.join()
    key = bench.read("t/x")
    if not debt:
        bench.settle(key)
    bench.engine.acts_as_leader, bench.engine.may_write = leads, writes
    bench.duties.pay_what_was_read()
    does = leads and writes
    assert bench.written.asserts == (["t/x"] if does and debt else [])
    assert len(bench.written.heartbeats) == (does and not debt)


def test_what_was_settled_in_the_same_step_is_no_debt(bench):
    bench.join()
    bench.settle(bench.read("t/x"))
    bench.read("t/y")
    assert bench.paid_at_once() == ["t/y"]


def test_no_heartbeat_is_written_at_the_end_of_a_step_that_leaves_a_debt(bench):
    bench.join()
    bench.read("t/x")
    bench.duties.pay_what_was_read()
    assert bench.written.heartbeats == []


@pytest.mark.parametrize(("after_s", "beats"), [(0.125, 0), (0.25, 1)])
def test_a_step_that_leaves_no_debt_ends_with_a_heartbeat_that_joins_wait_for(bench, after_s, beats):
    bench.join()
    bench.duties.tick()
    bench.settle(bench.read("t/x"))
    bench.later(after_s)
    bench.written.heartbeats.clear()
    bench.duties.pay_what_was_read()
    assert len(bench.written.heartbeats) == beats


@pytest.mark.parametrize("debt", [False, True])
def test_what_is_not_judged_is_neither_paid_nor_vouched_for(bench, debt):
    bench.join()
    key = bench.read("t/x")
    if not debt:
        bench.settle(key)
    bench.engine.not_judged = {0}
    assert bench.paid_at_once() == []
    assert bench.written.heartbeats == []


@pytest.mark.parametrize(
    ("lag_s", "interval_s", "within_s"), [(40.0, 1.0, 4.0), (3_600.0, 1.0, 5.0), (10.0, 1.0, 2.0), (40.0, 3.0, 6.0)]
)
@pytest.mark.parametrize("since", ["joined", "heard"])
def test_without_a_join_it_is_urgent_where_nothing_was_clean_for_long(lag_s, interval_s, within_s, since):
    bench = Bench(compaction_lag_s=lag_s, heartbeat_interval_s=interval_s)
    if since == "heard":
        bench.later(60)
        bench.duties.heartbeat_read(0, clean=True)
    bench.later(within_s)
    bench.duties.heartbeat_read(0, clean=False)
    bench.read("t/x")
    assert bench.paid_at_once() == []
    bench.later(STEP_S)
    bench.read("t/x")
    assert bench.paid_at_once() == ["t/x"]


def test_it_is_so_of_one_partition_and_not_of_another():
    bench = Bench(partitions=2, debt_age_leader_s=60.0)
    bench.later(10)
    bench.duties.heartbeat_read(1, clean=True)
    (mine,), (other,) = namespaces(0, 1), namespaces(1, 1)
    bench.read(mine)
    bench.read(other)
    assert bench.paid_at_once() == [mine]
    assert bench.paid() == []
    bench.later(60)
    bench.duties.heartbeat_read(1, clean=True)
    assert bench.paid() == [mine, other]


# --- another view ---------------------------------------------------------------------------------------------------


def test_what_was_known_of_the_keys_of_a_view_goes_with_it():
    bench = Bench(partitions=2)
    bench.join()
    (mine,), (other,) = namespaces(0, 1), namespaces(1, 1)
    for name in (mine, other):
        bench.read(name)
    bench.paid()
    for name in (mine, other):
        bench.written.done[name](Result(Status.ACCEPTED, Verdict.ACCEPTED, 0))
    bench.later(0.5)
    bench.paid()
    duties = bench.duties
    for replica in bench.engine.replicas:
        duties._quiet_since_ms |= dict.fromkeys(replica.view.keys.values(), _Quiet(0, 0, 1))
    duties._purging.update({0: iter([]), 1: iter([])})
    bench.engine.replicas[0].view = View(0, 2)
    bench.read(mine)
    duties.view_replaced(0)
    for table in (duties._paying, duties._outrun, duties._quiet_since_ms):
        assert [key.name for key in table] == [other]
    assert [*duties._purging] == [1]
    bench.later(2)
    assert duties.oldest_debt_s() == 2.5, "of the other partition"
    bench.engine.replicas[1].view.ledger.open.clear()
    assert duties.oldest_debt_s() == 2.0, "the new view's debts are as old as it is"


# --- heartbeats -----------------------------------------------------------------------------------------------------


def test_a_heartbeat_says_how_far_the_log_is_clean(bench):
    bench.settle(bench.read("t/x"))
    bench.duties.tick()
    ((partition, fields),) = bench.written.heartbeats
    assert partition == 0
    assert fields == {
        "format": 1, "kind": "heartbeat", "id": "id1", "covers": 0, "by": {"broker": "a", "incarnation": "a-1"},
        "clean_to": 0, "written_at_ms": 100_000,
    }  # fmt: skip
    assert bench.echoed == [(0, "id1", 100.0)]


def test_with_a_debt_it_vouches_for_nothing(bench):
    bench.read("t/x")
    assert bench.beats() == [-1]


@pytest.mark.parametrize("debt", [False, True])
@pytest.mark.parametrize("joining", [False, True])
def test_a_leader_writes_one_each_interval_and_more_for_a_joiner_where_it_is_clean(bench, debt, joining):
    key = bench.read("t/x")
    if not debt:
        bench.settle(key)
    assert len(bench.beats()) == 1
    if joining:
        bench.join()
    bench.later(0.125)
    assert bench.beats() == []
    bench.later(0.125)
    hurried = joining and not debt
    assert len(bench.beats()) == hurried
    bench.later(0.5)
    assert len(bench.beats()) == hurried
    bench.later(0.125)
    assert bench.beats() == []
    bench.later(0.125)
    assert len(bench.beats()) == 1


def test_a_joiner_does_not_make_them_fewer():
    bench = Bench(heartbeat_interval_s=0.125)
    bench.join()
    assert len(bench.beats()) == 1
    bench.later(0.125)
    assert len(bench.beats()) == 1


def test_the_first_clean_one_behind_a_debt_does_not_wait(bench):
    bench.join()
    key = bench.read("t/x")
    assert bench.beats() == [-1]
    bench.settle(key)
    assert bench.beats() == [0]


@pytest.mark.parametrize(("rank", "patience_s"), [(0, 3.0), (1, 4.0), (2, 5.0)])
@pytest.mark.parametrize("since", ["ready", "read", "written"])
def test_the_others_write_one_where_none_was_read_for_so_long(rank, patience_s, since):
    bench = Bench()
    bench.follow(rank)
    if since != "ready":
        bench.later(1)
        bench.duties.heartbeat_read(0, clean=False)
    if since == "written":
        bench.later(patience_s)
        assert len(bench.beats()) == 1
    bench.later(patience_s - STEP_S)
    assert bench.beats() == []
    bench.later(STEP_S)
    assert len(bench.beats()) == 1


def test_who_writes_them_says_so_and_says_when_it_ceases(bench):
    bench.follow()
    bench.later(3)
    bench.duties.tick()
    assert bench.told("duty.began") == [{"duty": "heartbeats", "partition": 0, "why": "nobody else writes them"}]
    for _ in range(16):
        bench.later(STEP_S)
        bench.duties.heartbeat_read(0, clean=True)
        bench.duties.tick()
        assert bench.told("duty.ended") == []
    for _ in range(2):
        bench.later(STEP_S)
        bench.duties.heartbeat_read(0, clean=True)
        bench.duties.tick()
        assert bench.told("duty.ended") == [{"duty": "heartbeats", "partition": 0}], "once"
    assert len(bench.told("duty.began")) == 1


@pytest.mark.parametrize(("leading", "why"), [(True, "this broker leads"), (False, "no leader is heard")])
def test_who_acts_as_leader_says_why(bench, leading, why):
    bench.engine.leading = leading
    for _ in range(2):
        bench.duties.tick()
        assert bench.told("duty.began") == [{"duty": "heartbeats", "partition": 0, "why": why}], "once"


def test_debts_are_a_duty_until_none_is_open(bench):
    bench.join()
    keys = [bench.read("t/x"), bench.read("t/y")]
    bench.paid()
    began = [facts["duty"] for facts in bench.told("duty.began")]
    assert began == ["debts", "heartbeats"]
    bench.settle(keys[0])
    bench.paid()
    assert bench.told("duty.ended") == []
    bench.settle(keys[1])
    for _ in range(2):
        bench.paid()
        assert bench.told("duty.ended") == [{"duty": "debts", "partition": 0}], "once"
    bench.read("t/x")
    bench.later(5)
    bench.paid()
    assert [facts["duty"] for facts in bench.told("duty.began")] == ["debts", "heartbeats", "debts"]


@pytest.mark.parametrize("why", ["probe", "held back"])
def test_who_has_to_read_one_back_writes_one_each_interval_whoever_else_does(bench, why):
    bench.follow()
    assert bench.beats() == []
    (bench.probes if why == "probe" else bench.written.holding_back).add(0)
    assert len(bench.beats()) == 1
    bench.later(0.75)
    bench.duties.heartbeat_read(0, clean=True)
    assert bench.beats() == []
    bench.later(STEP_S)
    assert len(bench.beats()) == 1


def test_who_has_to_read_one_back_does_not_write_fewer_for_a_joiner(bench):
    bench.join()
    bench.probes.add(0)
    assert len(bench.beats()) == 1
    bench.later(STEP_S)
    assert len(bench.beats()) == 1


@pytest.mark.parametrize("announced", [False, True])
@pytest.mark.parametrize("holds_back", [False, True])
@pytest.mark.parametrize("leads", [False, True])
def test_in_safe_mode_only_what_was_held_back_makes_it_write_and_it_vouches_for_nothing(
    bench, announced, holds_back, leads
):
    if not leads:
        bench.follow()
    bench.settle(bench.read("t/x"))
    bench.engine.may_write = False
    bench.engine.presence.announced = announced
    bench.later(5)
    if holds_back:
        bench.written.holding_back.add(0)
    assert bench.beats() == ([-1] if announced and holds_back else [])


def test_what_vouched_for_nothing_was_no_clean_one(bench):
    bench.join()
    bench.settle(bench.read("t/x"))
    bench.engine.may_write = False
    bench.written.holding_back.add(0)
    assert bench.beats() == [-1]
    bench.engine.may_write = True
    bench.written.holding_back.clear()
    assert bench.beats() == [0]


# --- a clock that begins with nought --------------------------------------------------------------------------------


def test_heartbeats_of_the_first_second():
    bench = Bench(at_s=0.0)
    bench.follow()
    bench.later(2.75)
    assert bench.beats() == []
    bench.later(STEP_S)
    assert len(bench.beats()) == 1


@pytest.mark.parametrize(("at_s", "beats"), [(0.125, 0), (0.25, 1)])
def test_clean_heartbeats_for_a_joiner_of_the_first_second(at_s, beats):
    bench = Bench(at_s=0.0)
    bench.join()
    bench.later(at_s)
    assert len(bench.beats()) == beats


def test_a_leader_of_the_first_second():
    bench = Bench(at_s=0.0)
    bench.later(0.75)
    assert bench.beats() == []
    bench.later(STEP_S)
    assert len(bench.beats()) == 1


@pytest.mark.parametrize("by_tick", [False, True])
def test_debts_of_the_first_second(by_tick):
    bench = Bench(at_s=0.0)
    bench.join()
    bench.read("t/x")
    assert (bench.paid() if by_tick else bench.paid_at_once()) == ["t/x"]


def test_nothing_was_clean_in_the_first_seconds():
    bench = Bench(at_s=0.0)
    bench.later(4.25)
    bench.read("t/x")
    assert bench.paid_at_once() == ["t/x"]


# --- purge ----------------------------------------------------------------------------------------------------------


def purging(**config: Any) -> Bench:
    """One that goes over the keys in every tick."""
    return Bench(purge_interval_s=0.0, **config)


def quiet(bench: Bench, name: str) -> KeyState:
    """A key that does not exist and owes nothing."""
    key = bench.read(name)
    bench.settle(key)
    return key


def purged(bench: Bench, after_ms: int = 0) -> list[bytes]:
    """What a tick purges when the log is so much older."""
    for replica in bench.engine.replicas:
        replica.timestamp_ms += after_ms
    bench.written.nulls.clear()
    bench.duties.tick()
    return [key for _, key in bench.written.nulls]


def test_junk_is_purged_when_it_was_quiet_for_longer_than_the_lag():
    bench = purging()
    quiet(bench, "t/x")
    assert purged(bench) == []
    assert purged(bench, 40_000) == []
    assert bench.told("purge.wrote") == []
    assert purged(bench, 1) == [b"t/x"]
    assert bench.told("purge.wrote") == [{"partition": 0, "keys": 1}]


def test_the_log_may_be_as_old_as_kafka():
    bench = purging()
    bench.engine.replicas[0].timestamp_ms = 0
    quiet(bench, "t/x")
    assert purged(bench) == []
    assert purged(bench, 40_001) == [b"t/x"]


def test_all_that_were_purged_are_told_together():
    bench = purging()
    for number in range(3):
        quiet(bench, f"t/x{number}")
    purged(bench)
    assert len(purged(bench, 40_001)) == 3
    assert bench.told("purge.wrote") == [{"partition": 0, "keys": 3}]


def test_so_many_are_purged_in_a_round():
    bench = purging(debt_batch_max=2)
    for number in range(3):
        quiet(bench, f"t/x{number}")
    purged(bench)
    assert purged(bench, 40_001) == [b"t/x0", b"t/x1"]


@pytest.mark.parametrize("state", ["leads not", "may not write"])
def test_nothing_is_purged_by_who(state):
    bench = purging()
    quiet(bench, "t/x")
    purged(bench)
    if state == "leads not":
        bench.follow()
    else:
        bench.engine.may_write = False
    assert purged(bench, 40_001) == []
    assert bench.told("purge.wrote") == []


WHOLE = "0x00000000_0xffffffff"
NAMESPACE, BUNDLE = "t/n", f"t/n/{WHOLE}"


def create(bench: Bench) -> KeyState:
    return bench.write(NAMESPACE, id="n1", version=1, base=None, state="Active", children=[WHOLE])


def test_what_exists_is_never_purged():
    bench = purging()
    create(bench)
    fields = {"id": "b1", "version": 2, "base": f"n1/{WHOLE}", "state": "Assigning", "from": None, "to": "a"}
    assert bench.write(BUNDLE, **fields).to == "a"
    assert len(bench.engine.replicas[0].view.keys) == 2
    assert purged(bench) == []
    assert purged(bench, 10**9) == []


def test_what_owes_or_was_purged_is_left_alone():
    bench = purging()
    owing, gone = bench.read("t/owing"), quiet(bench, "t/gone")
    purged(bench)
    gone.purged = True
    assert purged(bench, 40_001) == []
    gone.purged = False
    bench.settle(owing)
    assert purged(bench, 40_001) == [], "it is quiet from now on"
    assert purged(bench, 40_001) == [b"t/owing", b"t/gone"]


def test_what_is_settled_again_is_quiet_from_then_on():
    bench = purging()
    key = quiet(bench, "t/x")
    purged(bench)
    key.settled += 1
    assert purged(bench, 40_001) == []
    assert purged(bench, 40_000) == []
    assert purged(bench, 1) == [b"t/x"]


def test_junk_in_a_namespace_that_exists_waits_no_longer_than_other_junk():
    bench = purging()
    create(bench)
    quiet(bench, f"{NAMESPACE}/0x00000000_0x00000001")
    purged(bench)
    assert purged(bench, 40_000) == []
    assert purged(bench, 1) == [b"t/n/0x00000000_0x00000001"]


@pytest.mark.parametrize(("lag_s", "wait_ms"), [(40.0, 50_000), (60.0, 60_000)])
def test_bundles_of_a_deleted_namespace_wait_for_days(lag_s, wait_ms):
    bench = purging(compaction_lag_s=lag_s)
    create(bench)
    deleted = bench.write(NAMESPACE, id="n2", version=2, base="n1", state="Deleted")
    assert str(deleted.state) == "Deleted"
    quiet(bench, f"{NAMESPACE}/0x00000000_0x00000001")
    purged(bench)
    assert purged(bench, wait_ms) == []
    assert purged(bench, 1) == [b"t/n/0x00000000_0x00000001"]


# --- purge, portion by portion --------------------------------------------------------------------------------------


@pytest.fixture
def portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statechannel.core.duties.LOOKED_AT_A_TICK", 2)


@pytest.mark.usefixtures("portions")
@pytest.mark.parametrize(("keys", "ticks"), [(1, 1), (2, 2), (3, 2), (4, 3)])
def test_a_round_takes_a_portion_a_tick(keys, ticks):
    bench = Bench(purge_interval_s=10.0)
    for number in range(keys):
        quiet(bench, f"t/x{number}")
    for tick in range(1, ticks + 1):
        bench.duties.tick()
        assert len(bench.duties._quiet_since_ms) == min(keys, 2 * tick)
        assert bool(bench.duties._purging) == (tick < ticks)


@pytest.mark.parametrize(("after_s", "found"), [(9.75, 1), (10.0, 2)])
def test_the_next_round_begins_after_the_interval(after_s, found):
    bench = Bench(at_s=0.0, purge_interval_s=10.0)
    quiet(bench, "t/x")
    bench.duties.tick()
    quiet(bench, "t/y")
    bench.later(after_s)
    bench.duties.tick()
    assert len(bench.duties._quiet_since_ms) == found


@pytest.mark.usefixtures("portions")
def test_the_bound_is_for_the_round_and_not_for_the_tick():
    bench = Bench(purge_interval_s=10.0, debt_batch_max=3)
    for number in range(5):
        quiet(bench, f"t/x{number}")
    for _ in range(3):
        purged(bench)
    bench.later(10)
    assert purged(bench, 40_001) == [b"t/x0", b"t/x1"]
    assert purged(bench) == [b"t/x2"]
    assert purged(bench) == []
    bench.later(10)
    assert purged(bench) == [b"t/x0", b"t/x1"]


def test_partitions_that_are_not_judged_are_not_in_the_round():
    bench = Bench(partitions=2)
    for name in (*namespaces(0, 1), *namespaces(1, 1)):
        quiet(bench, name)
    bench.engine.not_judged = {0}
    bench.duties.tick()
    assert [key.name for key in bench.duties._quiet_since_ms] == namespaces(1, 1)


@pytest.mark.usefixtures("portions")
def test_what_a_round_does_not_meet_is_forgotten_in_its_own_partition():
    bench = Bench(partitions=2, purge_interval_s=10.0)
    few, many = namespaces(0, 2), namespaces(1, 3)
    for name in (*few[:1], *many):
        quiet(bench, name)
    for _ in range(2):
        bench.duties.tick()
    assert {key.name for key in bench.duties._quiet_since_ms} == {*few[:1], *many}
    del bench.engine.replicas[0].view.keys[few[0].encode()]
    del bench.engine.replicas[1].view.keys[many[1].encode()]
    bench.later(10)
    bench.duties.tick()
    assert {key.name for key in bench.duties._quiet_since_ms} == {*many}, "the other partition's round goes on"
    bench.duties.tick()
    assert {key.name for key in bench.duties._quiet_since_ms} == {many[0], many[2]}
