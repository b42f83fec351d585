"""Ports of a watcher to a real Kafka: its layout and loads, the planner, and the execution of plans in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from loaddata.samples.admin import open_admin
from loaddata.samples.kafka_cluster import loads_now, read_layout, read_time_ms
from loaddata.samples.sample_topic import SampleTopic
from shedders.kafka_rebalance.errors import ExecutionRefusedError, PlanUnknownError
from shedders.kafka_rebalance.execution.checks import now_ms
from shedders.kafka_rebalance.execution.journal import write_durable
from shedders.kafka_rebalance.execution.session import ExecutionPlace, alive_holder, ask, execute, known
from shedders.kafka_rebalance.execution.state_records import plan_records
from shedders.kafka_rebalance.execution.values import ExecutionRequest, Key, StopKind, recorded
from shedders.kafka_rebalance.planning.plan_files import plan_bytes, read_plan
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.watch.values import ClusterHealth, LookForPlan, health_of
from shedders.kafka_rebalance.watch.watcher import RecordedPlan
from statechannel.errors import StateChannelError
from statechannel.kafka.errors import KafkaAdapterError

if TYPE_CHECKING:
    from loaddata.samples.partitions import ClusterLayout, PartitionLoads
    from shedders.kafka_rebalance.execution.machine import ExecutionMachine
    from shedders.kafka_rebalance.execution.runner import Runner
    from shedders.kafka_rebalance.execution.values import Observation
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
    from shedders.kafka_rebalance.planning.request import PlanRequest
    from shedders.kafka_rebalance.watch.topic import WatchBook

PROPOSALS: Final = "proposals"
PROPOSALS_MAX: Final = 50
_BRIEF_S: Final = 0.1


def _last(moved: Mapping[Key, int]) -> int:
    return max(moved.values(), default=0)


def present_ms(place: ExecutionPlace, book: WatchBook | None) -> tuple[int, str]:
    """Present time by Kafka's clock, of which the log's times are, for those who do not write to it.

    Returns:
        The time; and why it is by the clock of this machine instead, for people.
    """
    try:
        with open_admin(place.client, timeout_s=place.timeout_s) as admin:
            return read_time_ms(admin, timeout_s=place.timeout_s), ""
    except KafkaAdapterError as error:
        return max(0 if book is None else book.newest_ms, now_ms()), str(error)


class LiveCluster:
    """The cluster, read at each look.

    Args:
        place: Kafka and settings.
        request: What plans are for; the bounds of each look are added.
    """

    def __init__(self, place: ExecutionPlace, request: PlanRequest) -> None:
        self._place, self._request = place, request
        self._layout: ClusterLayout | None = None

    def look(self) -> ClusterHealth:
        """See `WatchedCluster`."""
        with open_admin(self._place.client, timeout_s=self._place.timeout_s) as admin:
            self._layout = read_layout(admin, now_ms=now_ms(), timeout_s=self._place.timeout_s)
        return health_of(self._layout)

    def plan(self, bounds: LookForPlan) -> ReassignmentPlan:
        """See `WatchedCluster`."""
        if self._layout is None:
            self.look()
        assert self._layout is not None  # noqa: S101 - look sets it
        request = replace(self._request, bytes_max=bounds.bytes_max, moves_max=bounds.moves_max)
        plan = plan_partitions(
            self._layout, self._loads(self._layout), request, resting=bounds.resting, now_s=time.monotonic
        )
        return replace(plan, made_at_ms=now_ms())

    def _loads(self, layout: ClusterLayout) -> PartitionLoads:
        sample, place = self._place.settings.sample, self._place
        topic = SampleTopic(place.client, sample.topic, window_s=sample.window_s, timeout_s=place.timeout_s)
        with open_admin(place.client, timeout_s=place.timeout_s) as admin:
            return loads_now(
                admin,
                layout,
                topic,
                now_ms=layout.read_at_ms,
                window_s=sample.window_s,
                interval_s=sample.interval_s,
                completeness_min=sample.completeness_min,
                timeout_s=place.timeout_s,
            )


class LivePlans:
    """Plans of a watcher: proposals in the state folder, executions in a thread by `session.execute`.

    Args:
        place: Kafka, settings and state folder.
        by: Name of the watcher, for the journal.
        over: Set when the process is to end: waits return early.
    """

    def __init__(self, place: ExecutionPlace, by: str, over: threading.Event) -> None:
        self._place, self._by, self._over = place, by, over
        self._thread: threading.Thread | None = None
        self._end: tuple[StopKind, str] | None = None
        self._runner: Runner | None = None
        self._interrupted = ""
        self._paused = False

    @property
    def running(self) -> bool:
        """See `PlanDriver`."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def paused(self) -> bool:
        """See `PlanDriver`."""
        return self.running and self._paused

    @property
    def end(self) -> tuple[StopKind, str] | None:
        """See `PlanDriver`."""
        return None if self.running else self._end

    def recorded(self, plan_id: str) -> RecordedPlan:
        """See `PlanDriver`."""
        with self._place.topic() as topic:
            book = topic.read() if topic.exists() else None
        holder = alive_holder(book)
        foreign = (
            "" if holder is None else f"executor {holder.executor} on {holder.host} executes plan {holder.plan_id}"
        )
        if not plan_id:
            plans = {} if book is None else book.plans
            moved = [recorded(plan.in_order()).moved for plan in plans.values() if plan.last_ms]
            newest = {key: at_ms for of in sorted(moved, key=_last) for key, at_ms in of.items()}
            return RecordedPlan(foreign=foreign, moved=newest)
        try:
            past = known(self._place, plan_id, book).recorded
        except PlanUnknownError:
            return RecordedPlan(known=self._proposal(plan_id).exists(), foreign=foreign)
        kind = "" if past.stop is None else past.stop.get("kind", "")
        ended = {str(end): end for end in (StopKind.DONE, StopKind.CANCELLED)}.get(kind)
        return RecordedPlan(known=True, end=ended, foreign=foreign)

    def publish(self, plan: ReassignmentPlan) -> str:
        """See `PlanDriver`; the newest files are kept."""
        path = self._proposal(plan.id)
        write_durable(path, plan_bytes(plan))
        files = sorted(path.parent.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
        for old in files[PROPOSALS_MAX:]:
            old.unlink(missing_ok=True)
        return str(path)

    def share(self, plan_id: str) -> None:
        """See `PlanDriver`."""
        raw = plan_bytes(read_plan(self._proposal(plan_id)))
        with self._place.topic() as topic:
            topic.create(self._place.settings.replication_factor)
            topic.append(plan_id, plan_records(plan_id, raw))

    def start(self, plan_id: str, request: ExecutionRequest) -> None:
        """See `PlanDriver`."""
        self._end, self._runner, self._interrupted, self._paused = None, None, "", False
        self._thread = threading.Thread(
            target=self._run, args=(plan_id, request), name=f"partitions-plan {plan_id}", daemon=True
        )
        self._thread.start()

    def ask(self, plan_id: str, request: ExecutionRequest) -> None:
        """See `PlanDriver`."""
        ask(self._place, plan_id, request=request, by=self._by)

    def interrupt(self, reason: str) -> None:
        """See `PlanDriver`."""
        self._interrupted = reason
        if self._runner is not None:
            self._runner.interrupt(reason)

    def wait_end(self, timeout_s: float) -> bool:
        """Wait until nothing is executed; False: it still is."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.running

    def _proposal(self, plan_id: str) -> Path:
        return self._place.root / PROPOSALS / f"{plan_id}.json"

    def _run(self, plan_id: str, request: ExecutionRequest) -> None:
        """Execute to the end, whatever it is: the watcher decides what follows."""
        try:
            end = execute(
                self._place,
                self._plan(plan_id),
                accept_unmet=False,
                wait=self._wait,
                by=self._by,
                request=request,
                runs=self._take_runner,
                shown=self._note,
            )
            self._end = (end.stop.kind, end.stop.reason)
        except ExecutionRefusedError as error:
            self._end = (StopKind.HELD, str(error))
        except KafkaAdapterError as error:
            self._end = (StopKind.KAFKA_AWAY, str(error))
        except StateChannelError as error:
            self._end = (StopKind.FAILED, str(error))
        except Exception as error:  # a fault in an execution must not end the watcher unnoticed
            self._end = (StopKind.FAILED, f"{type(error).__name__}: {error}")

    def _plan(self, plan_id: str) -> ReassignmentPlan:
        path = self._proposal(plan_id)
        if path.exists():
            return read_plan(path)
        with self._place.topic() as topic:
            return known(self._place, plan_id, topic.read()).plan

    def _take_runner(self, runner: Runner) -> None:
        self._runner = runner
        if self._interrupted:
            runner.interrupt(self._interrupted)

    def _note(self, _machine: ExecutionMachine, seen: Observation) -> None:
        self._paused = seen.asked.request is ExecutionRequest.PAUSE

    def _wait(self, length_s: float) -> None:
        if self._over.wait(length_s):  # ending: no busy loop, as Kafka may be failing
            time.sleep(min(length_s, _BRIEF_S))
