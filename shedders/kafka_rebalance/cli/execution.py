"""Shared parts of the commands that execute plans: state folder, signals, progress bar, result."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from platformdirs import user_state_path

from shedders.kafka_rebalance.cli.arguments import need_extra, parse_amount, parse_rate, partitions_settings
from shedders.model.amounts import count, size
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.output import Output, duration, print_json, say, silence_stdout, stdout
from statechannel.cli.kit.progress import bar
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from shedders.kafka_rebalance.execution.machine import ExecutionMachine
    from shedders.kafka_rebalance.execution.runner import Runner
    from shedders.kafka_rebalance.execution.session import ExecutionPlace
    from shedders.kafka_rebalance.execution.state_records import StateBook
    from shedders.kafka_rebalance.execution.values import ExecutionEnd, ExecutionRequest, Observation
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
    from statechannel.cli.kit.options import Connect
    from statechannel.kafka.errors import KafkaAdapterError

State = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="Folder of plans and journals. Default: the user's state folder."),
]
PlanId = Annotated[
    str | None,
    typer.Argument(
        metavar="[PLAN-ID]", help="Id of a plan. Default: the plan that is being executed, else the newest."
    ),
]
Throttle = Annotated[
    str | None,
    typer.Option(
        "--throttle",
        metavar="RATE",
        help="Replication throttle per broker, e.g. 20MB/s, 400KiB/s or 400000; `none`: no throttle.",
    ),
]
MovesPerBroker = Annotated[
    int | None,
    typer.Option(
        "--moves-per-broker",
        metavar="N",
        min=1,
        max=10_000,
        help="Most partitions in flight per broker, as source, destination or leader.",
    ),
]
MovesMax = Annotated[
    int | None,
    typer.Option("--moves-max", metavar="N", min=1, max=1_000_000, help="Most partitions in flight."),
]
BytesInFlight = Annotated[
    str | None,
    typer.Option("--bytes-in-flight", metavar="AMOUNT", help="Most bytes in flight, e.g. 50GB or 512MiB."),
]
OneReplica = Annotated[
    bool | None,
    typer.Option("--one-replica/--all-replicas", help="Move one replica of a partition at a time, or all together."),
]
Order = Annotated[
    str | None,
    typer.Option("--order", metavar="plan|small-first|large-first", help="Order in which partitions are moved."),
]
AcceptUnmet = Annotated[bool, typer.Option("--accept-unmet", help="Also execute a plan that leaves hard goals unmet.")]
Execute = Annotated[bool, typer.Option("--execute", help="Execute the plan; without it, only show what would be done.")]

ENDING_S = 0.1
ORDERS = ("plan", "small-first", "large-first")


def place_of(connect: Connect, state: Path | None, **pace: Any) -> ExecutionPlace:
    """Kafka, settings and folder of a command; options of the pace (None: not set) override the settings.

    Raises:
        CommandError: The extra is missing, or no Kafka cluster is configured.
    """
    need_extra("kafka")
    if pace.get("order") not in {None, *ORDERS}:
        raise CommandError(
            f"--order {pace['order']}: unknown order", hint=f"Use one of {', '.join(ORDERS)}.", code=ExitCode.USAGE
        )
    from shedders.kafka_rebalance.execution.session import ExecutionPlace

    connection = connect()
    settings = partitions_settings(connection.settings)
    changes = {name: value for name, value in pace.items() if value is not None}
    if "throttle_bytes_per_s" in changes:
        changes["throttle_bytes_per_s"] = rate_of(changes["throttle_bytes_per_s"])
    if "bytes_in_flight" in changes:
        changes["bytes_in_flight"] = parse_amount(changes["bytes_in_flight"], "--bytes-in-flight")
    if changes:
        settings = settings.model_copy(update={"pace": settings.pace.model_copy(update=changes)})
    root = state or user_state_path("statechannel", appauthor=False) / "partitions"
    return ExecutionPlace(client=connection.client, settings=settings, root=root, timeout_s=connection.timeout_s)


def rate_of(text: str) -> int | None:
    """Parse bytes per second: `20MB/s`, `400KiB/s`, `400000`; None: `none`, no throttle.

    Raises:
        CommandError: The text is none of these.
    """
    return None if text == "none" else parse_rate(text, "--throttle")


def as_before(place: ExecutionPlace, kept: Mapping[str, Any]) -> ExecutionPlace:
    """The place, with the pace with which a plan was begun.

    Args:
        kept: Settings of the pace, as the journal has them.

    Raises:
        CommandError: They are invalid: written by another version or another program.
    """
    from shedders.kafka_rebalance.execution.session import KEPT
    from shedders.kafka_rebalance.settings import PaceSettings

    pace = place.settings.pace.model_dump() | {name: kept[name] for name in KEPT if name in kept}
    try:
        checked = PaceSettings.model_validate(pace)
    except ValueError as error:
        raise CommandError(
            f"the journal has invalid pace settings: {error}",
            hint="Continue with `statechannel partitions apply PLAN --execute` and your own options.",
            code=ExitCode.REJECTED,
        ) from None
    return replace(place, settings=place.settings.model_copy(update={"pace": checked}))


def who() -> str:
    """Name of the user, for people."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may run under an id without a user
        name = f"uid {os.getuid()}"
    return f"{name}@{socket.gethostname()}"


def read_book(place: ExecutionPlace) -> tuple[StateBook | None, KafkaAdapterError | None]:
    """Contents of the state topic; None and the error if it cannot be read or does not exist."""
    from statechannel.kafka.errors import KafkaAdapterError

    try:
        with place.topic() as topic:
            return (topic.read() if topic.exists() else None), None
    except KafkaAdapterError as error:
        return None, error


def chosen(place: ExecutionPlace, plan_id: str | None, book: StateBook | None) -> str | None:
    """Id of the plan that the arguments mean; None: they name none, and none was ever executed."""
    from shedders.kafka_rebalance.execution.journal import plan_ids
    from shedders.kafka_rebalance.execution.session import alive_holder

    if plan_id is not None:
        return plan_id
    holder = alive_holder(book)
    if holder is not None:
        return holder.plan_id
    there = plan_ids(place.root)
    if there:
        return there[0]
    if book is not None and book.plans:
        return max(book.plans, key=lambda plan: book.plans[plan].last_ms)
    return None


def carry_out(
    place: ExecutionPlace,
    plan: ReassignmentPlan,
    *,
    accept_unmet: bool = False,
    request: ExecutionRequest | None = None,
) -> ExecutionEnd:
    """Execute a plan in the foreground with a progress bar; SIGINT or SIGTERM ends it in order, a second one at once."""
    from shedders.kafka_rebalance.execution.progress import progress_of
    from shedders.kafka_rebalance.execution.session import execute
    from shedders.kafka_rebalance.execution.values import ExecutionRequest as Wishes

    over = threading.Event()
    copied: Mapping[tuple[str, int, int], int] | None = None

    def wait(length_s: float) -> None:
        if over.wait(length_s):  # ending: no busy loop, as Kafka may be failing
            time.sleep(min(length_s, ENDING_S))

    with bar() as shown, _signals(over) as runs:

        def show(machine: ExecutionMachine, seen: Observation) -> None:
            nonlocal copied
            copied = copied if seen.copied is None else seen.copied  # only some observations have it
            if shown.seen:
                times = machine.times(time.monotonic())
                figures = progress_of(plan, machine.statuses, seen.topics, copied, times, machine.dirs)
                left = "" if figures.left_s is None else f", {duration(figures.left_s * 1_000)} left"
                copied_text = f"{size(figures.bytes_done)} of {size(figures.bytes_total)}"
                text = f"{plan.id}: {figures.in_flight} in flight, {copied_text}{left}"
                shown.show(plan.id, text, figures.done, figures.total)

        return execute(
            place,
            plan,
            accept_unmet=accept_unmet,
            wait=wait,
            by=who(),
            request=request or Wishes.GO,
            runs=runs,
            shown=show,
        )


@contextmanager
def _signals(over: threading.Event) -> Iterator[Callable[[Runner], None]]:
    """Let signals interrupt the runner that is passed in; before there is one they end the command."""
    runners: list[Runner] = []
    signals: list[int] = []

    def handle(number: int, _frame: object) -> None:
        signals.append(number)
        if not runners or len(signals) > 1:
            raise KeyboardInterrupt
        runners[0].interrupt(f"ended by {signal.Signals(number).name}")
        over.set()
        with suppress(Exception):  # the signal may interrupt the writing of a line
            say(
                "ending: throttles are removed, so moves in flight continue at full speed; "
                "`statechannel partitions cancel` reverts them (interrupt again to end at once)"
            )

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield runners.append
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tell_end(plan: ReassignmentPlan, end: ExecutionEnd, output: Output, **more: Any) -> None:
    """Print the result of an execution.

    Raises:
        CommandError: The execution stopped before its end.
    """
    from shedders.kafka_rebalance.execution.values import StopKind

    stop = end.stop
    left = [f"{kind} {name}" for kind, name in end.throttles_left]
    facts = {
        "plan": plan.id,
        "ended": str(stop.kind),
        "reason": stop.reason or None,
        "hint": stop.hint or None,
        "partitions": len(plan.moves),
        "dir_moves": len(plan.dir_moves),
        "throttles_left": left,
        **more,
    }
    if output is Output.JSON:
        try:
            print_json(facts)
            sys.stdout.flush()
        except BrokenPipeError:
            if stop.good:
                raise
            silence_stdout()  # the reader is gone; the exit code still counts
    elif stop.good:
        word = "done" if stop.kind is StopKind.DONE else "cancelled; finished moves stay (`rollback` reverts them)"
        dirs = f", {count(len(plan.dir_moves), 'replica')} between log directories" if plan.dir_moves else ""
        stdout().print(f"plan {plan.id} is {word}: {len(plan.moves)} partitions{dirs}", markup=False)
    hint = stop.hint
    if left:
        command = "resume" if stop.kind is StopKind.DONE else "cancel"
        hint = f"Throttles are left on {', '.join(left)}: `statechannel partitions {command} {plan.id}` removes them. {hint}"
    if not stop.good:
        code = ExitCode.INTERRUPTED if stop.kind is StopKind.INTERRUPTED else ExitCode.REJECTED
        if stop.kind in {StopKind.KAFKA_AWAY, StopKind.FAILED}:
            code = ExitCode.UNKNOWN
        raise CommandError(f"plan {plan.id} has stopped ({stop.kind}): {stop.reason}", hint=hint, code=code)
    if left:
        say(f"note: {hint}")
