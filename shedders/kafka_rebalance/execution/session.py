"""Execution of a plan from start to end: lock, checks, claim, journal, runner; and requests to it from other hosts."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from loaddata.samples.admin import open_admin
from loaddata.samples.kafka_cluster import read_layout, read_loads
from loaddata.samples.sample_topic import SampleTopic
from shedders.kafka_rebalance.errors import ExecutionRefusedError, PlanUnknownError, PlanUnusableError
from shedders.kafka_rebalance.execution.checks import findings, require_not_refused, settled_layout
from shedders.kafka_rebalance.execution.cluster_port import ClusterPort
from shedders.kafka_rebalance.execution.journal import (
    BEATS,
    PLAN,
    ExecutionLedger,
    HeartbeatSender,
    Journal,
    cluster_lock,
    folder_of,
    has_plan,
    plan_ids,
    read_journal,
    write_durable,
)
from shedders.kafka_rebalance.execution.machine import ExecutionMachine
from shedders.kafka_rebalance.execution.purpose import demoted_brokers, emptied_dirs, leaving_brokers
from shedders.kafka_rebalance.execution.runner import Runner
from shedders.kafka_rebalance.execution.state_topic import (
    PLAN_BYTES_MAX,
    Holder,
    PlanBook,
    StateBook,
    StateTopic,
    in_order,
    lacking,
    merged,
    plan_records,
    record,
)
from shedders.kafka_rebalance.execution.stops import SHOWN
from shedders.kafka_rebalance.execution.values import (
    ExecutionEnd,
    ExecutionEvent,
    ExecutionHistory,
    ExecutionRequest,
    Observation,
    recorded,
)
from shedders.kafka_rebalance.planning.plan_files import parse_plan, plan_bytes, read_plan, to_json
from statechannel.clocks import now_ms
from statechannel.errors import StateChannelError
from statechannel.kafka.errors import KafkaAdapterError

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

    from loaddata.samples.partitions import ClusterLayout, PartitionLoads
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
    from shedders.kafka_rebalance.settings import PartitionsSettings
    from statechannel.kafka.client_settings import ClientSettings

SAMPLES_S = 3_600.0
KEPT = (
    "throttle_bytes_per_s",
    "moves_per_broker",
    "dir_moves_per_broker",
    "moves_max",
    "bytes_in_flight",
    "one_replica",
    "order",
)
"""Settings of the pace that a later executor of the plan keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPlace:
    """Kafka cluster and state folder of executions. `throttle_asked`: the throttle comes from an option."""

    client: ClientSettings
    settings: PartitionsSettings
    root: Path
    throttle_asked: bool = False
    timeout_s: float = 20.0

    @contextmanager
    def topic(self) -> Iterator[StateTopic]:
        pace = self.settings.pace
        with StateTopic(
            self.client, self.settings.state_topic, away_s=pace.executor_away_s, timeout_s=self.timeout_s
        ) as opened:
            yield opened


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPlan:
    """State of a plan, from the folder and the topic.

    Attributes:
        holder: Executor that is alive, of any plan of the cluster.
        seen_at_ms: Last sign of life of the plan's executor in the topic, alive or not; 0: none.
    """

    plan: ReassignmentPlan
    recorded: ExecutionHistory
    holder: Holder | None
    seen_at_ms: int = 0


def host_name() -> str:
    """Identity of this boot of the machine and of the container, as process ids have no meaning in another one."""
    boot, space = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    booted = boot.read_text().strip()[:8] if boot.exists() else ""
    inside = (
        "".join(character for character in str(space.readlink()) if character.isdigit()) if space.is_symlink() else ""
    )
    return f"{socket.gethostname()}/{booted}/{inside}"


def history_of(place: ExecutionPlace, plan_id: str, book: StateBook | None) -> ExecutionHistory:
    """What folder and topic have of a plan that need not be known yet."""
    there = () if book is None else book.book(plan_id).in_order()
    return recorded(merged(read_journal(folder_of(place.root, plan_id)), there))


def written(place: ExecutionPlace) -> PartitionLoads | None:
    """What samples show of the last hour; None: there is no throttle, or there are no samples that can be read."""
    sample = place.settings.sample
    if place.settings.pace.throttle_bytes_per_s is None:
        return None
    window_s = min(sample.window_s, SAMPLES_S)
    topic = SampleTopic(place.client, sample.topic, window_s=window_s, timeout_s=place.timeout_s)
    with suppress(StateChannelError):  # only a warning needs them
        read = read_loads(topic, now_ms=now_ms(), window_s=window_s, interval_s=sample.interval_s)
        return None if read is None else read.loads
    return None


def known(place: ExecutionPlace, plan_id: str, book: StateBook | None) -> KnownPlan:
    folder = folder_of(place.root, plan_id)
    of_topic = PlanBook() if book is None else book.book(plan_id)
    raw, where = of_topic.plan_bytes(), f"the plan {plan_id} of the state topic"
    if has_plan(folder):
        plan = read_plan(folder / PLAN)
    elif raw is not None:
        plan = parse_plan(raw, where)
    elif of_topic.of:
        raise PlanUnusableError(
            f"{where} is not whole: parts are missing or damaged, or it has more than {PLAN_BYTES_MAX} bytes",
            hint="Use the host that began it, or its state folder with --state DIR.",
        )
    else:
        in_topic = () if book is None else (other for other, each in book.plans.items() if each.of)
        ids = list(dict.fromkeys((*plan_ids(place.root), *in_topic)))
        raise PlanUnknownError(
            f"plan {plan_id} not found",
            hint=f"Known plans: {', '.join(ids[:SHOWN])}; or use --state DIR."
            if ids
            else "No plan is known; use --state DIR.",
        )
    last = None if book is None else book.holder
    seen_at_ms = last.seen_at_ms if last is not None and last.plan_id == plan_id else 0
    past = history_of(place, plan_id, book)
    return KnownPlan(plan=plan, recorded=past, holder=alive_holder(book), seen_at_ms=seen_at_ms)


def alive_holder(book: StateBook | None) -> Holder | None:
    """Present executor, as far as this machine knows; a process of this machine that is gone does not count."""
    holder = None if book is None else book.alive(max(book.newest_ms, now_ms()))
    if holder is not None and holder.host == host_name() and not psutil.pid_exists(holder.pid):
        return None
    return holder


def is_executed(book: StateBook | None, plan_id: str) -> bool:
    """Whether an executor of this plan is alive."""
    holder = alive_holder(book)
    return holder is not None and holder.plan_id == plan_id


def execute(
    place: ExecutionPlace,
    plan: ReassignmentPlan,
    *,
    accept_unmet: bool,
    wait: Callable[[float], None],
    by: str,
    request: ExecutionRequest = ExecutionRequest.GO,
    noted: Callable[[str], None] = lambda _text: None,
    runs: Callable[[Runner], None] = lambda _runner: None,
    shown: Callable[[ExecutionMachine, Observation], None] = lambda _machine, _seen: None,
) -> ExecutionEnd:
    """Execute, continue or (`request`) cancel a plan, until its end.

    Args:
        wait: Waits for a number of seconds; may return early.
        noted: Called with what an operator should know before it starts.
        runs: Called with the runner before it starts, for interrupts.

    Raises:
        StateChannelError: The cluster, another executor or the state folder forbids it; nothing was done.
    """
    settings, pace = place.settings, place.settings.pace
    folder = folder_of(place.root, plan.id)
    executor = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    with ExitStack() as stack:
        stack.enter_context(cluster_lock(place.root, plan.cluster_id))
        topic = stack.enter_context(place.topic())
        admin = stack.enter_context(open_admin(place.client, timeout_s=place.timeout_s))
        past = history_of(place, plan.id, topic.read() if topic.exists() else None)
        cancels = request is ExecutionRequest.CANCEL

        def check() -> ClusterLayout:
            """Layout of the cluster after all checks; to cancel, only the cluster must be the right one."""
            layout = settled_layout(admin, plan, past, timeout_s=place.timeout_s, settle_s=pace.settle_s, wait=wait)
            loads = None if cancels else written(place)
            results = findings(plan, layout, past, begun=True, accept_unmet=accept_unmet, pace=pace, loads=loads)
            results = [finding for finding in results if not cancels or finding.check == "cluster"]
            require_not_refused(results)
            for finding in results:
                noted(f"{finding.text}. {finding.hint}".rstrip(". "))
            return layout

        layout = check()
        topic.create(settings.replication_factor)
        _require_same_plan(plan, folder, topic.read().book(plan.id))
        waited = _claim(topic, plan.id, executor, request, wait, pace.executor_away_s)
        stack.callback(_leave, topic, plan.id, executor)
        if waited:  # another executor worked in between
            layout = check()
        beat = record("beat", plan.id, executor=executor, host=host_name(), pid=os.getpid(), wish=str(request))
        every_s, factor = pace.executor_away_s / BEATS, settings.replication_factor
        stack.enter_context(HeartbeatSender(topic, plan.id, beat, every_s=every_s, replication_factor=factor))
        # Only now, as the previous holder of the cluster may have written until it left.
        of_topic = topic.read().book(plan.id)
        topic_events = of_topic.in_order()
        write_durable(folder / PLAN, plan_bytes(plan))
        journal = stack.enter_context(Journal(folder))
        for event in lacking(topic_events, journal.events):
            journal.append(event)
        on_batch, fill = partial(_write_rollback, plan, folder), partial(_fill, topic, admin, plan)
        ledger = ExecutionLedger(journal, topic, plan.id, executor, now_ms=now_ms, on_batch=on_batch, on_new_topic=fill)
        if of_topic.plan_bytes() is None:
            fill()
        ledger.publish(lacking(journal.events, topic_events))
        kept = {} if cancels else {"pace": pace.model_dump(include=set(KEPT), mode="json")}
        facts = {"host": host_name(), "pid": os.getpid(), "by": by, "wish": str(request), **kept}
        ledger.write(ExecutionEvent.BEGUN, facts | {"throttle_asked": place.throttle_asked})
        min_isr = {name: topic.min_isr for name, topic in layout.topics.items()}
        port = ClusterPort(admin, plan, min_isr, timeout_s=place.timeout_s)
        machine = ExecutionMachine(plan, pace, recorded(in_order(journal.events)))
        runner = Runner(machine, port, ledger, pace, now_s=time.monotonic, wait=wait, shown=shown)
        runs(runner)
        return runner.run()


def _fill(topic: StateTopic, admin: KafkaAdminClient, plan: ReassignmentPlan) -> None:
    """Write the plan into a topic that lacks it."""
    if topic.was_missing:
        _keep_off(admin, plan, topic.name)
    topic.append(plan.id, plan_records(plan.id, plan_bytes(plan)))
    topic.was_missing = False


def _keep_off(admin: KafkaAdminClient, plan: ReassignmentPlan, name: str) -> None:
    """Move a state topic that was just created off what the plan empties or demotes; Kafka may have placed it there."""
    port = ClusterPort(admin, replace(plan, moves=(), dir_moves=()), {})
    leaving, dirs, key = leaving_brokers(plan), emptied_dirs(plan), (name, 0)
    layout = read_layout(admin, now_ms=0)
    now = layout.topics[name].partitions[0].replicas if name in layout.topics else ()
    alive = [broker for broker in layout.brokers if broker.alive]
    free = [broker for broker in (*now, *(each.id for each in alive)) if broker not in leaving]
    is_demoted = demoted_brokers(plan).__contains__
    leaders = sorted(free, key=is_demoted)[:1]
    target = sorted([*dict.fromkeys((*leaders, *free))][: len(now)], key=is_demoted)
    if target and target != [*now]:
        port.submit({key: tuple(target)})
        port.elect((key,))
    for broker in alive:
        usable = [each for each in broker.log_dirs if not each.offline and not each.cordoned]
        kept = [each.path for each in usable if (broker.id, each.path) not in dirs]
        if kept and broker.id in target and any(holder == broker.id for holder, _ in dirs):
            port.move_dirs({(*key, broker.id): kept[0]})


def ask(place: ExecutionPlace, plan_id: str, *, request: ExecutionRequest, by: str, **throttle: int | None) -> None:
    """Send a request to the executor of the plan, which reads it with its next observation; after an error it may be sent."""
    with place.topic() as topic:
        topic.append(plan_id, [record("control", plan_id, by=by, **throttle, wish=str(request))])


def _require_same_plan(plan: ReassignmentPlan, folder: Path, of_topic: PlanBook) -> None:
    """Check that the id belongs to this plan, as journal, topic and rollback files use it."""
    recorded_plans = []
    with suppress(PlanUnusableError):
        if has_plan(folder):
            recorded_plans.append(read_plan(folder / PLAN))
    with suppress(PlanUnusableError):
        raw = of_topic.plan_bytes()
        if raw is not None:
            recorded_plans.append(parse_plan(raw, f"the plan {plan.id} of the state topic"))
    for other in recorded_plans:
        if _content_of(other) != _content_of(plan):
            raise PlanUnusableError(
                f"plan {plan.id} was started with other moves than those of this file",
                hint=f"The file was edited: make a new plan, or continue with `statechannel partitions resume {plan.id}`.",
            )


def _content_of(plan: ReassignmentPlan) -> object:
    moves = [(move.topic, move.partition, move.before, move.after, move.leader_after) for move in plan.moves]
    dirs = [(move.key, move.before, move.after) for move in plan.dir_moves]
    return plan.cluster_id, dict(plan.topic_ids), moves, dirs


def _claim(
    topic: StateTopic,
    plan_id: str,
    executor: str,
    request: ExecutionRequest,
    wait: Callable[[float], None],
    away_s: float,
) -> bool:
    """Claim the cluster for this executor; a silent holder is waited for until it expires.

    Returns:
        Whether it waited, so that earlier reads are out of date.
    """
    reported_at_ms: int | None = None
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
            wish=str(request),
            replaces=holder.executor if holder is not None and dead else "",
        )
        topic.append(plan_id, [claim])
        holder = topic.read().holder
        if holder is not None and holder.executor == executor:
            return waited
        if holder is not None:
            lives = reported_at_ms is not None and holder.seen_at_ms > reported_at_ms
            reported_at_ms = holder.seen_at_ms
            if lives or time.monotonic() > ends_s:
                raise ExecutionRefusedError(
                    f"executor {holder.executor} on {holder.host} executes plan {holder.plan_id} on this cluster",
                    hint="`statechannel partitions status` shows its progress; `pause` and `cancel` control it.",
                )
        wait(away_s / 2)
        waited = True


def _leave(topic: StateTopic, plan_id: str, executor: str) -> None:
    with suppress(KafkaAdapterError):  # others notice the missing heartbeats
        if not topic.failing:
            topic.append(plan_id, [record("leave", plan_id, executor=executor)])


def _write_rollback(plan: ReassignmentPlan, folder: Path, facts: Mapping[str, Any]) -> None:
    moves = {move.key: move for move in plan.moves}
    dir_moves = {move.key: move for move in plan.dir_moves}
    batch = [moves[str(topic), int(partition)] for topic, partition, *_ in facts["partitions"]]
    dirs = [dir_moves[str(topic), int(number), int(broker)] for topic, number, broker, _ in facts.get("dirs", ())]
    write_durable(folder / f"rollback-{int(facts['batch']):04}.json", to_json(batch, "before", dirs))
