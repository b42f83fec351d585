"""One execution from end to end: lock, checks, claim, journal, runner; and the wishes that reach it from elsewhere."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from loaddata.samples.admin import open_admin
from shedders.kafka_rebalance.errors import ExecutionRefusedError, PlanUnknownError, PlanUnusableError
from shedders.kafka_rebalance.execution import events
from shedders.kafka_rebalance.execution.checks import findings, now_ms, refuse, settled_layout
from shedders.kafka_rebalance.execution.cluster_port import ClusterPort
from shedders.kafka_rebalance.execution.events import ExecutionHistory, recorded
from shedders.kafka_rebalance.execution.journal import (
    BEATS,
    PLAN,
    ExecutionLedger,
    Heart,
    Journal,
    cluster_lock,
    folder_of,
    has_plan,
    plan_ids,
    read_journal,
    write_durable,
)
from shedders.kafka_rebalance.execution.machine import ExecutionMachine
from shedders.kafka_rebalance.execution.runner import Runner
from shedders.kafka_rebalance.execution.state_records import (
    Holder,
    PlanBook,
    StateBook,
    event_name,
    in_order,
    merged,
    plan_records,
    record,
)
from shedders.kafka_rebalance.execution.state_topic import StateTopic
from shedders.kafka_rebalance.execution.stops import SHOWN
from shedders.kafka_rebalance.execution.values import ExecutionEnd, ExecutionRequest, Observation
from shedders.kafka_rebalance.planning.plan_file import parse_plan, plan_bytes, read_plan
from shedders.kafka_rebalance.planning.reassignment import to_json
from statechannel.kafka.errors import KafkaAdapterError

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

    from loaddata.samples.layout import ClusterLayout
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
    from shedders.kafka_rebalance.settings import PartitionsSettings
    from statechannel.kafka.client_settings import ClientSettings

KEPT = ("throttle_bytes_per_s", "moves_per_broker", "moves_max", "bytes_in_flight", "one_replica", "order")
"""What was asked for of the pace holds for whoever goes on with the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPlace:
    """Where plans are carried out and their state is kept.

    Attributes:
        client: How Kafka is reached.
        settings: Of the planner.
        root: Folder of the state.
        timeout_s: Bound of one answer.
    """

    client: ClientSettings
    settings: PartitionsSettings
    root: Path
    timeout_s: float = 20.0

    @contextmanager
    def topic(self) -> Iterator[StateTopic]:
        """The state topic."""
        pace = self.settings.pace
        with StateTopic(
            self.client, self.settings.state_topic, away_s=pace.executor_away_s, timeout_s=self.timeout_s
        ) as opened:
            yield opened


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPlan:
    """What is known of a plan, from the folder and from the topic together."""

    plan: ReassignmentPlan
    events: list[dict[str, Any]]
    holder: Holder | None

    @property
    def recorded(self) -> ExecutionHistory:
        """What the events come to."""
        return recorded(self.events)


def host_name() -> str:
    """This machine, until it is started again, and the container: ids of processes mean nothing to another one."""
    boot, space = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    booted = boot.read_text().strip()[:8] if boot.exists() else ""
    inside = "".join(one for one in str(space.readlink()) if one.isdigit()) if space.is_symlink() else ""
    return f"{socket.gethostname()}/{booted}/{inside}"


def known(place: ExecutionPlace, plan_id: str, book: StateBook | None) -> KnownPlan:
    """A plan by its id.

    Raises:
        PlanUnknownError: Neither the folder nor the topic has it.
    """
    folder = folder_of(place.root, plan_id)
    of_topic = book.plans.get(plan_id) if book is not None else None
    raw = of_topic.plan_bytes() if of_topic is not None else None
    if has_plan(folder):
        plan = read_plan(folder / PLAN)
    elif raw is not None:
        plan = parse_plan(raw, f"the plan {plan_id} of the state topic")
    else:
        ids = list(dict.fromkeys((*plan_ids(place.root), *(book.plans if book is not None else ()))))
        raise PlanUnknownError(
            f"no plan {plan_id} is known here",
            hint=f"Known are {', '.join(ids[:SHOWN])}; or name --state DIR." if ids else "None is; name --state DIR.",
        )
    there = of_topic.in_order() if of_topic is not None else []
    return KnownPlan(plan=plan, events=merged(read_journal(folder), there), holder=alive_holder(book))


def alive_holder(book: StateBook | None) -> Holder | None:
    """Who executes now, as far as this machine can tell: one of this machine whose process is gone does not."""
    holder = None if book is None else book.alive(max(book.newest_ms, now_ms()))
    if holder is not None and holder.host == host_name() and not psutil.pid_exists(holder.pid):
        return None
    return holder


def execute(
    place: ExecutionPlace,
    plan: ReassignmentPlan,
    *,
    accept_unmet: bool,
    wait: Callable[[float], None],
    by: str,
    wish: ExecutionRequest = ExecutionRequest.GO,
    runs: Callable[[Runner], None] = lambda _runner: None,
    shown: Callable[[ExecutionMachine, Observation], None] = lambda _machine, _seen: None,
) -> ExecutionEnd:
    """Carry a plan out, or go on with it, or (`wish`) cancel it; until its end.

    Args:
        wait: Waits so many seconds; may return early.
        by: Who wants it.
        runs: Is given the runner before it begins, for interrupts.
        shown: Called after each step.

    Raises:
        ExecutionRefusedError: The cluster or another executor forbids it; nothing was done.
        KafkaAdapterError: Kafka is away; nothing was done.
        StateFolderError: The state cannot be written.
    """
    settings, pace = place.settings, place.settings.pace
    folder = folder_of(place.root, plan.id)
    executor = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    with ExitStack() as stack:
        stack.enter_context(cluster_lock(place.root, plan.cluster_id))
        topic = stack.enter_context(place.topic())
        admin = stack.enter_context(open_admin(place.client, timeout_s=place.timeout_s))
        layout = _checked(place, admin, plan, wish, wait, accept_unmet=accept_unmet)
        topic.create(settings.replication_factor)
        _same_plan(plan, folder, topic.read().book(plan.id))
        if _claim(topic, plan.id, executor, wish, wait, pace.executor_away_s):
            stack.callback(_leave, topic, plan.id, executor)
            layout = _checked(place, admin, plan, wish, wait, accept_unmet=accept_unmet)  # another one worked meanwhile
        else:
            stack.callback(_leave, topic, plan.id, executor)
        stack.enter_context(Heart(topic, plan.id, executor, every_s=pace.executor_away_s / BEATS))
        # Only now: whoever held the cluster before may have written until it left.
        of_topic = topic.read().book(plan.id)
        there = of_topic.in_order()
        in_full = of_topic.plan_bytes() is not None
        write_durable(folder / PLAN, plan_bytes(plan))
        journal = stack.enter_context(Journal(folder))
        here = {event_name(one) for one in journal.events}
        for event in there:
            if event_name(event) not in here:
                journal.append(event)
        rollback = _Rollback(plan, folder)
        ledger = ExecutionLedger(journal, topic, plan.id, executor, now_ms=now_ms, on_batch=rollback.write)
        if not in_full:
            topic.append(plan.id, plan_records(plan.id, plan_bytes(plan)))
        in_topic = {event_name(one) for one in there}
        ledger.publish([one for one in journal.events if event_name(one) not in in_topic])
        kept = {} if wish is ExecutionRequest.CANCEL else {"pace": pace.model_dump(include=set(KEPT), mode="json")}
        ledger.write(events.BEGUN, {"host": host_name(), "pid": os.getpid(), "by": by, "wish": str(wish), **kept})
        min_isr = {name: one.min_isr for name, one in layout.topics.items()}
        port = ClusterPort(admin, plan, min_isr, timeout_s=place.timeout_s)
        machine = ExecutionMachine(plan, pace, recorded(in_order(journal.events)))
        runner = Runner(machine, port, ledger, pace, now_s=time.monotonic, wait=wait, shown=shown)
        runs(runner)
        return runner.run()


def ask(place: ExecutionPlace, plan_id: str, *, wish: ExecutionRequest | None, by: str, **throttle: int | None) -> None:
    """Tell whoever executes the plan what is wanted; it hears at its next look.

    Raises:
        KafkaAdapterError: It may have been told or not.
    """
    facts: dict[str, Any] = {"by": by, **throttle}
    if wish is not None:
        facts["wish"] = str(wish)
    with place.topic() as topic:
        topic.append(plan_id, [record("control", plan_id, **facts)])


def _checked(
    place: ExecutionPlace,
    admin: KafkaAdminClient,
    plan: ReassignmentPlan,
    wish: ExecutionRequest,
    wait: Callable[[float], None],
    *,
    accept_unmet: bool,
) -> ClusterLayout:
    """The cluster, after all that may refuse the plan; to cancel it only has to be the right cluster.

    Raises:
        ExecutionRefusedError: It is refused.
    """
    settle_s = place.settings.pace.settle_s
    layout = settled_layout(admin, plan, timeout_s=place.timeout_s, settle_s=settle_s, wait=wait)
    found = findings(plan, layout, begun=True, accept_unmet=accept_unmet)
    refuse([one for one in found if one.check == "cluster"] if wish is ExecutionRequest.CANCEL else found)
    return layout


def _same_plan(plan: ReassignmentPlan, folder: Path, of_topic: PlanBook) -> None:
    """An id stands for one plan: journal, topic and rollback files go by it.

    Raises:
        PlanUnusableError: Another one was begun with this id.
    """
    there = []
    with suppress(PlanUnusableError):
        if has_plan(folder):
            there.append(read_plan(folder / PLAN))
    with suppress(PlanUnusableError):
        raw = of_topic.plan_bytes()
        if raw is not None:
            there.append(parse_plan(raw, f"the plan {plan.id} of the state topic"))
    for other in there:
        if _does(other) != _does(plan):
            raise PlanUnusableError(
                f"plan {plan.id} was begun with other moves than this file has",
                hint=f"It was changed by hand: plan anew, or go on with `statechannel partitions resume {plan.id}`.",
            )


def _does(plan: ReassignmentPlan) -> object:
    moves = [(one.topic, one.partition, one.before, one.after, one.leader_after) for one in plan.moves]
    return plan.cluster_id, dict(plan.topic_ids), moves


def _claim(
    topic: StateTopic, plan_id: str, executor: str, wish: ExecutionRequest, wait: Callable[[float], None], away_s: float
) -> bool:
    """Become the one who executes on this cluster; one that says nothing any more is waited for.

    Returns:
        Whether it was: what was read before is old then.

    Raises:
        ExecutionRefusedError: Another one lives.
    """
    said_at_ms: int | None = None
    waited = False
    ends_s = time.monotonic() + 2 * away_s + 1.0
    while True:
        holder = topic.read().holder
        dead = holder is not None and holder.host == host_name() and not psutil.pid_exists(holder.pid)
        claim = record(
            "claim",
            plan_id,
            executor=executor,
            host=host_name(),
            pid=os.getpid(),
            wish=str(wish),
            replaces=holder.executor if holder is not None and dead else "",
        )
        topic.append(plan_id, [claim])
        holder = topic.read().holder
        if holder is not None and holder.executor == executor:
            return waited
        if holder is not None:
            lives = said_at_ms is not None and holder.seen_at_ms > said_at_ms
            said_at_ms = holder.seen_at_ms
            if lives or time.monotonic() > ends_s:
                raise ExecutionRefusedError(
                    f"executor {holder.executor} on {holder.host} carries out plan {holder.plan_id} on this cluster",
                    hint="`statechannel partitions status` shows how far it is; `pause` and `cancel` reach it.",
                )
        wait(away_s / 2)
        waited = True


def _leave(topic: StateTopic, plan_id: str, executor: str) -> None:
    try:
        topic.append(plan_id, [record("leave", plan_id, executor=executor)])
    except KafkaAdapterError:
        return  # others see that nothing comes any more


class _Rollback:
    """Writes what each batch had before, for Kafka's own tool."""

    def __init__(self, plan: ReassignmentPlan, folder: Path) -> None:
        self._moves = {(move.topic, move.partition): move for move in plan.moves}
        self._folder = folder

    def write(self, facts: Mapping[str, Any]) -> None:
        """See `ExecutionLedger.on_batch`."""
        moves = [self._moves[str(topic), int(partition)] for topic, partition, *_ in facts["partitions"]]
        write_durable(self._folder / f"rollback-{int(facts['batch']):04}.json", to_json(moves, "before"))
