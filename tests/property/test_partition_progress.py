"""Progress, rate and time left against the truth, on a Kafka of a known rate; also after the executor's death."""

from __future__ import annotations

from random import Random

import pytest

from shedders.kafka_rebalance.execution.machine import ExecutionMachine
from shedders.kafka_rebalance.execution.moves import statuses_of
from shedders.kafka_rebalance.execution.progress import ExecutionProgress, ProgressTimes, progress_of
from shedders.kafka_rebalance.execution.runner import Runner
from shedders.kafka_rebalance.execution.values import Observation, StopKind
from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
from shedders.kafka_rebalance.settings import PaceSettings
from tests.support.partition_twin import Deadly, FluidTwin, KilledError, Ledger, Part, make_plan, move

RATE = 1_000_000.0
MIB = 2**20
FETCH = MIB // 4
"""What a copy gets at once. Kafka's fetches are larger, and so are its brokers' rates."""
LOOKS_APART = 3
SLACK_S = 6.0
"""A look at the bytes and one at the partitions: what an estimate cannot know at the end."""
PACES = {
    "throttled": {"throttle_bytes_per_s": round(RATE)},
    "unthrottled": {},
    "few at once": {"moves_per_broker": 1},
    "one replica": {"one_replica": True, "moves_per_broker": 3},
}


def world(seed: int, *, skewed: bool) -> tuple[FluidTwin, ReassignmentPlan]:
    """Ten to sixty partitions on four to eight brokers; skewed: most of what moves goes to one broker."""
    rng = Random(seed)
    brokers = list(range(1, rng.randint(4, 8) + 1))
    parts, moves = {}, []
    for number in range(rng.randint(10, 60)):
        key = (f"t{number % 3}", number // 3)
        before = tuple(rng.sample(brokers[1:], 2))
        spare = [broker for broker in brokers if broker not in before]
        new = 1 if skewed and rng.random() < 0.7 else rng.choice(spare)
        size = round(rng.paretovariate(1.2) * 4 * MIB) % (200 * MIB)
        parts[key] = Part(list(before), set(before), before[0], size)
        moves.append(move(key, before, (before[0], new), size))
    twin = FluidTwin(parts, set(brokers), rng, rate_bytes_per_s=RATE, fetch_bytes=FETCH)
    return twin, make_plan(moves)


class Watched:
    """Runs a plan on the twin and notes its progress, by the journal as `status` reads it, at each look."""

    def __init__(self, twin: FluidTwin, plan: ReassignmentPlan, pace: PaceSettings, *, kills: list[int] | None = None):
        self.twin, self.plan, self.pace = twin, plan, pace
        self.ledger = Ledger(kills=kills or [], now_ms=self.now_ms)
        self.looks: list[tuple[float, ExecutionProgress, int]] = []
        self.count = 0

    def now_ms(self) -> int:
        return round((self.twin.now_s + 1) * 1_000)

    def progress(self, *, driven: bool = True) -> ExecutionProgress:
        """As `status` computes it, of a fresh look at the cluster."""
        past, seen = self.ledger.recorded(), self.twin.observe(full=True, configs=())
        until_ms = past.done_at_ms or self.now_ms()
        times = ProgressTimes(
            now_ms=self.now_ms(),
            elapsed_s=(until_ms - past.began_at_ms) / 1_000,
            marks=past.marks,
            first=past.first_mark,
            pace=self.pace.model_copy(update={"throttle_bytes_per_s": past.rate}),
            driven=driven,
        )
        return progress_of(self.plan, statuses_of(self.plan, seen.topics), seen.topics, seen.copied, times)

    def truth(self) -> int:
        """Bytes of the plan that are in place."""
        arrived = sum(
            each.copied_bytes
            for each in self.plan.moves
            if not (part := self.twin.parts[each.key]).moving and set(part.replicas) == set(each.after)
        )
        return arrived + self.twin.done_bytes

    def note(self, _machine: ExecutionMachine, _seen: Observation) -> None:
        self.count += 1
        if self.count % LOOKS_APART == 0:
            self.looks.append((self.twin.now_s, self.progress(), self.truth()))

    def run(self) -> None:
        """One executor, until its end or death."""
        machine = ExecutionMachine(self.plan, self.pace, self.ledger.recorded())
        port = Deadly(self.twin, self.ledger)
        runner = Runner(
            machine,
            port,  # type: ignore[arg-type]
            self.ledger,
            self.pace,
            now_s=lambda: self.twin.now_s,
            wait=self.twin.wait,
            shown=self.note,
        )
        self.ledger.write("begun", {"executor": f"e{self.ledger.count}"})
        assert runner.run().stop.kind is StopKind.DONE


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
@pytest.mark.parametrize("skewed", [False, True], ids=["even", "skewed"])
@pytest.mark.parametrize("seed", range(2))
def test_progress_and_time_left_are_true(seed: int, skewed: bool, pace: dict[str, object]) -> None:
    twin, plan = world(seed, skewed=skewed)
    watched = Watched(twin, plan, PaceSettings.model_validate(pace))
    watched.run()
    ends_s = max(at_s for at_s, figures, _ in watched.looks if figures.done < figures.total)
    worst = 0.0
    for at_s, figures, truth in watched.looks:
        if not pace.get("one_replica"):
            assert abs(figures.bytes_done - truth) <= 0.05 * plan.copied_bytes
        if figures.bytes_done < 0.05 * plan.copied_bytes or figures.done == figures.total:
            continue
        assert figures.left_s is not None
        left_s = ends_s - at_s
        worst = max(worst, (abs(figures.left_s - left_s) - SLACK_S) / max(left_s, 1.0))
    assert worst <= 0.2, worst


@pytest.mark.parametrize("seed", range(2))
def test_the_status_of_a_dead_executor_is_true(seed: int) -> None:
    """Elapsed goes on, the rate is what the brokers copy, nothing is promised for what nobody starts."""
    twin, plan = world(seed, skewed=False)
    throttle = round(RATE)
    watched = Watched(twin, plan, PaceSettings(throttle_bytes_per_s=throttle, moves_per_broker=1), kills=[70])
    with pytest.raises(KilledError):
        watched.run()
    at_death = watched.progress(driven=False)
    assert at_death.unsent > 0
    died_s = twin.now_s
    while any(part.moving for part in twin.parts.values()):
        before, before_s = watched.truth(), twin.now_s
        twin.wait(10.0)
        figures = watched.progress(driven=False)
        assert figures.bytes_done == watched.truth()
        assert figures.elapsed_s == pytest.approx(at_death.elapsed_s + twin.now_s - died_s, abs=0.01)
        assert figures.left_s is None
        assert figures.unsent == at_death.unsent, "nobody starts them"
        if not figures.in_flight:
            break
        assert figures.rate_bytes_per_s is not None
        assert figures.in_flight_left_s is not None
        ways = len({broker for part in twin.parts.values() for broker in part.adding})
        assert figures.rate_bytes_per_s <= throttle * ways
        assert figures.rate_bytes_per_s >= 0.5 * (watched.truth() - before) / (twin.now_s - before_s) - FETCH
    idle = watched.progress(driven=False)
    assert (idle.rate_bytes_per_s, idle.left_s, idle.in_flight_left_s) == (None, None, None)
    watched.ledger.kills = []
    watched.run()
    done = watched.progress()
    twin.wait(100.0)
    assert watched.progress() == done, "time passes, a plan that is done stays as it is"
    watched.run()
    assert watched.progress() == done, "a later executor finds nothing to do"
    assert done.left_s == 0
    assert done.bytes_done == done.bytes_total == plan.copied_bytes
    assert done.rate_bytes_per_s == pytest.approx(plan.copied_bytes / done.elapsed_s, rel=0.01)


def test_a_plan_that_is_executed_again_after_a_rollback_begins_again() -> None:
    twin, plan = world(1, skewed=False)
    watched = Watched(twin, plan, PaceSettings())
    watched.run()
    first = watched.progress()
    twin.wait(10_000.0)
    for each in plan.moves:
        part = twin.parts[each.key]
        part.replicas, part.isr, part.leader = list(each.before), set(each.before), each.before[0]
    watched.run()
    again = watched.progress()
    assert again.elapsed_s < 1_000
    assert again.elapsed_s == pytest.approx(first.elapsed_s, rel=0.2)
    assert watched.ledger.recorded().moved == {each.key for each in plan.moves}
