"""One execution from end to end: lock, checks, claim, journal, runner; and the wishes that reach it from elsewhere."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from loaddata.partitions.admin import open_admin
from shedders.partitions.errors import ExecutionRefusedError
from shedders.partitions.execution import events
from shedders.partitions.execution.checks import findings, refuse
from shedders.partitions.execution.cluster_port import ClusterPort
from shedders.partitions.execution.events import Recorded, recorded
from shedders.partitions.execution.journal import PLAN, Journal, cluster_lock, folder_of, read_journal, write_durable
from shedders.partitions.execution.ledger import BEATS, ExecutionLedger, Heart
from shedders.partitions.execution.machine import Machine
from shedders.partitions.execution.runner import Runner
from shedders.partitions.execution.seen import End, Observation, Wish
from shedders.partitions.execution.settled import now_ms, settled_layout
from shedders.partitions.execution.state_book import Holder, StateBook, merged, plan_records, record
from shedders.partitions.execution.state_topic import StateTopic
from shedders.partitions.plan_file import parse_plan, plan_bytes, read_plan
from shedders.partitions.reassignment import to_json
from statechannel.kafka.errors import KafkaAdapterError

if TYPE_CHECKING:
    from shedders.partitions.plan import Plan
    from shedders.partitions.settings import PartitionsSettings
    from statechannel.kafka.client_settings import ClientSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
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
class Known:
    """What is known of a plan, from the folder and from the topic together."""

    plan: Plan
    events: list[dict[str, Any]]
    holder: Holder | None

    @property
    def recorded(self) -> Recorded:
        """What the events come to."""
        return recorded(self.events)


def host_name() -> str:
    """This machine, until it is started again."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()}/{boot.read_text().strip()[:8] if boot.exists() else ''}"


def known(place: Place, plan_id: str, book: StateBook | None) -> Known:
    """A plan by its id.

    Raises:
        ExecutionRefusedError: Neither the folder nor the topic has it.
    """
    folder = folder_of(place.root, plan_id)
    of_topic = book.plans.get(plan_id) if book is not None else None
    raw = of_topic.plan_bytes() if of_topic is not None else None
    if (folder / PLAN).exists():
        plan = read_plan(folder / PLAN)
    elif raw is not None:
        plan = parse_plan(raw, f"the plan {plan_id} of the state topic")
    else:
        raise ExecutionRefusedError(
            f"no plan {plan_id} is known here", hint="`statechannel partitions status` lists them; or name --state DIR."
        )
    there = of_topic.in_order() if of_topic is not None else []
    return Known(plan=plan, events=merged(read_journal(folder), there), holder=alive_holder(book))


def alive_holder(book: StateBook | None) -> Holder | None:
    """Who executes now, as far as this machine can tell: one of this machine whose process is gone does not."""
    holder = None if book is None else book.alive(max(book.newest_ms, now_ms()))
    if holder is not None and holder.host == host_name() and not psutil.pid_exists(holder.pid):
        return None
    return holder


def execute(
    place: Place,
    plan: Plan,
    *,
    accept_unmet: bool,
    wait: Callable[[float], None],
    by: str,
    wish: Wish = Wish.GO,
    runs: Callable[[Runner], None] = lambda _runner: None,
    shown: Callable[[Machine, Observation], None] = lambda _machine, _seen: None,
) -> End:
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
        layout = settled_layout(admin, plan, timeout_s=place.timeout_s, settle_s=pace.settle_s, wait=wait)
        topic.create(settings.replication_factor)
        of_topic = topic.read().book(plan.id)
        there = of_topic.in_order()
        has_plan = of_topic.plan_bytes() is not None
        past = recorded(merged(read_journal(folder), there))
        if wish is not Wish.CANCEL:
            refuse(findings(plan, layout, begun=bool(past.begun), accept_unmet=accept_unmet))
        _claim(topic, plan.id, executor, wish, wait, pace.executor_away_s)
        stack.callback(_leave, topic, plan.id, executor)
        stack.enter_context(Heart(topic, plan.id, executor, every_s=pace.executor_away_s / BEATS))
        write_durable(folder / PLAN, plan_bytes(plan))
        journal = stack.enter_context(Journal(folder))
        for event in merged(journal.events, there)[len(journal.events) :]:
            journal.append(event)
        rollback = _Rollback(plan, folder)
        ledger = ExecutionLedger(journal, topic, plan.id, executor, now_ms=now_ms, on_batch=rollback.write)
        if not has_plan:
            topic.append(plan.id, plan_records(plan.id, plan_bytes(plan)))
        in_topic = {int(one["n"]) for one in there}
        ledger.publish([one for one in journal.events if int(one["n"]) not in in_topic])
        ledger.write(events.BEGUN, {"host": host_name(), "pid": os.getpid(), "by": by, "wish": str(wish)})
        min_isr = {name: one.min_isr for name, one in layout.topics.items()}
        port = ClusterPort(admin, plan, min_isr, timeout_s=place.timeout_s)
        machine = Machine(plan, pace, recorded(journal.events))
        runner = Runner(machine, port, ledger, pace, now_s=time.monotonic, wait=wait, shown=shown)
        runs(runner)
        return runner.run()


def ask(place: Place, plan_id: str, *, wish: Wish | None, by: str, **throttle: int | None) -> None:
    """Tell whoever executes the plan what is wanted; it hears at its next look.

    Raises:
        KafkaAdapterError: It may have been told or not.
    """
    facts: dict[str, Any] = {"by": by, **throttle}
    if wish is not None:
        facts["wish"] = str(wish)
    with place.topic() as topic:
        topic.append(plan_id, [record("control", plan_id, **facts)])


def _claim(
    topic: StateTopic, plan_id: str, executor: str, wish: Wish, wait: Callable[[float], None], away_s: float
) -> None:
    """Become the one who executes on this cluster; one that says nothing any more is waited for.

    Raises:
        ExecutionRefusedError: Another one lives.
    """
    said_at_ms: int | None = None
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
            return
        if holder is not None:
            lives = said_at_ms is not None and holder.seen_at_ms > said_at_ms
            said_at_ms = holder.seen_at_ms
            if lives or time.monotonic() > ends_s:
                raise ExecutionRefusedError(
                    f"executor {holder.executor} on {holder.host} carries out plan {holder.plan_id} on this cluster",
                    hint="`statechannel partitions status` shows how far it is; `pause` and `cancel` reach it.",
                )
        wait(away_s / 2)


def _leave(topic: StateTopic, plan_id: str, executor: str) -> None:
    try:
        topic.append(plan_id, [record("leave", plan_id, executor=executor)])
    except KafkaAdapterError:
        return  # others see that nothing comes any more


class _Rollback:
    """Writes what each batch had before, for Kafka's own tool."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._moves = {(move.topic, move.partition): move for move in plan.moves}
        self._folder = folder

    def write(self, facts: Mapping[str, Any]) -> None:
        """See `ExecutionLedger.on_batch`."""
        moves = [self._moves[str(topic), int(partition)] for topic, partition, *_ in facts["partitions"]]
        write_durable(self._folder / f"rollback-{int(facts['batch']):04}.json", to_json(moves, "before"))
