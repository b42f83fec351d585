"""`statechannel partitions apply|status|pause|resume|cancel|rollback`: execution of plans.

Requests to an executor, on this or another host, are written to the state topic; its answer is read from there.
"""

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
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from platformdirs import user_state_path

from shedders.kafka_rebalance.cli.arguments import (
    AcceptUnmet,
    Execute,
    MovesPerBroker,
    PaceOptions,
    PlanId,
    State,
    Throttle,
    Unthrottle,
    expanded,
    need_extra,
    parse_amount,
    parse_rate,
    partitions_settings,
    usage_error,
)
from shedders.kafka_rebalance.errors import PlanUnknownError
from shedders.kafka_rebalance.execution.values import ExecutionEnd, ExecutionRequest, StopKind, recorded
from shedders.model.amounts import count, rate, size
from statechannel.cli.kit.confirmation import say_dry_run
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import (
    Output,
    print_facts,
    print_json,
    print_table,
    say,
    silence_stdout,
    stdout,
    waiting,
)
from statechannel.cli.kit.progress import bar
from statechannel.clocks import duration, moment, now_ms
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from shedders.kafka_rebalance.execution.machine import ExecutionMachine
    from shedders.kafka_rebalance.execution.overview import ExecutionStatus
    from shedders.kafka_rebalance.execution.runner import Runner
    from shedders.kafka_rebalance.execution.session import ExecutionPlace
    from shedders.kafka_rebalance.execution.state_topic import StateBook
    from shedders.kafka_rebalance.execution.values import Observation
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
    from statechannel.kafka.errors import KafkaAdapterError

ENDING_S = 0.1
ORDERS = ("plan", "small-first", "large-first")


def place_of(connect: Connect, state: Path | None, **pace: Any) -> ExecutionPlace:
    """Kafka, settings and folder of a command; options of the pace (None: not set) override the settings."""
    need_extra("kafka")
    if pace.get("order") not in {None, *ORDERS}:
        raise usage_error(f"--order {pace['order']}: unknown order", f"Use one of {', '.join(ORDERS)}.")
    from shedders.kafka_rebalance.execution.session import ExecutionPlace

    connection = connect()
    settings = partitions_settings(connection.settings)
    changes = {name: value for name, value in pace.items() if value is not None}
    if (throttle := changes.get("throttle_bytes_per_s")) is not None:
        changes["throttle_bytes_per_s"] = None if throttle == "none" else parse_rate(throttle, "--throttle")
    if "bytes_in_flight" in changes:
        changes["bytes_in_flight"] = parse_amount(changes["bytes_in_flight"], "--bytes-in-flight")
    if changes:
        settings = settings.model_copy(update={"pace": settings.pace.model_copy(update=changes)})
    root = state or user_state_path("statechannel", appauthor=False) / "partitions"
    client, wait_s, asked = connection.client, connection.timeout_s, throttle is not None
    return ExecutionPlace(client=client, settings=settings, root=root, timeout_s=wait_s, throttle_asked=asked)


def as_before(place: ExecutionPlace, kept: Mapping[str, Any]) -> ExecutionPlace:
    """The place, with the pace with which a plan was begun."""
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
    request: ExecutionRequest = ExecutionRequest.GO,
    begins: str = "",
) -> ExecutionEnd:
    """Execute a plan in the foreground with a progress bar, and print `begins` once nothing has refused it.

    SIGINT or SIGTERM ends it in order, a second one at once.
    """
    from shedders.kafka_rebalance.execution.progress import progress_of
    from shedders.kafka_rebalance.execution.session import execute

    over = threading.Event()
    copied: Mapping[tuple[str, int, int], int] | None = None
    remarked: int | None = None

    def wait(length_s: float) -> None:
        if over.wait(length_s):  # ending: no busy loop, as Kafka may be failing
            time.sleep(min(length_s, ENDING_S))

    with bar() as shown, _signals(over) as interrupted_by:

        def runs(runner: Runner) -> None:
            interrupted_by(runner)
            if begins:
                say(begins)

        def show(machine: ExecutionMachine, seen: Observation) -> None:
            nonlocal copied, remarked
            for text in machine.remarks[machine.remarks_before if remarked is None else remarked :]:
                say(f"note: {text}")
            remarked = len(machine.remarks)
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
            request=request,
            noted=lambda text: say(f"note: {text}"),
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
                "ending: Kafka continues moves in flight, with their throttle unless --unthrottle was set; "
                "`statechannel partitions cancel` reverts them (interrupt again to end at once)"
            )

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield runners.append
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tell_end(plan: ReassignmentPlan, end: ExecutionEnd, output: Output, **more: Any) -> None:
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
        reason = f"; {stop.reason}" if stop.reason else ""
        stdout().print(f"plan {plan.id} is {word}: {len(plan.moves)} partitions{dirs}{reason}", markup=False)
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


ANSWER_S = 15.0
_POLL_S = 0.3
_BEGIN = "Execute one with `statechannel partitions apply PLAN --execute`, or use --state DIR."
_STATE = {"pause": "paused", "go": "begun", "cancel": "cancelling"}


def ask_executor(
    place: ExecutionPlace, plan_id: str | None, request: ExecutionRequest, output: Output, **throttle: int | None
) -> tuple[str, StateBook | None] | None:
    """Ask the executor of a plan, and print its answer.

    Returns:
        Where no executor is alive: id of the plan, and contents of the state topic; else None.
    """
    from shedders.kafka_rebalance.execution.session import ask, is_executed

    book, trouble = read_book(place)
    if trouble is not None:
        raise trouble
    plan = chosen(place, plan_id, book)
    if plan is None:
        raise CommandError("no plan has been executed here", hint=_BEGIN, code=ExitCode.NOT_FOUND)
    if not is_executed(book, plan):
        return plan, book
    ask(place, plan, request=request, by=who(), **throttle)
    heard = _answer(place, plan, request)
    if output is Output.JSON:
        print_json({"plan": plan, "asked": str(request), "state": heard, **throttle})
    else:
        stdout().print(f"plan {plan}: {heard}", markup=False)
    return None


def _answer(place: ExecutionPlace, plan_id: str, request: ExecutionRequest) -> str:
    ends_s = time.monotonic() + ANSWER_S + place.settings.pace.poll_s
    with place.topic() as topic, waiting(f"waiting for the executor of plan {plan_id}", ANSWER_S) as progress:
        while time.monotonic() < ends_s:
            past = recorded(topic.read().book(plan_id).in_order())
            if past.state == "ended" and past.stop is not None:
                return f"ended ({past.stop['kind']})"
            if past.state == _STATE[str(request)]:
                return "running" if past.state == "begun" else past.state
            progress("")
            time.sleep(_POLL_S)
    raise CommandError(
        f"the executor of plan {plan_id} did not answer within {ANSWER_S:g} s; it may still receive the request",
        hint=f"Check with `statechannel partitions status {plan_id}`.",
        code=ExitCode.UNDETERMINED,
    )


@with_connection
def cancel(connect: Connect, plan_id: PlanId = None, state: State = None, output: OutputAs = Output.TABLE) -> None:
    """Cancel a plan: revert moves in flight and remove throttles; finished moves stay (`rollback` reverts them)."""
    place = place_of(connect, state)
    from shedders.kafka_rebalance.execution.session import known

    idle = ask_executor(place, plan_id, ExecutionRequest.CANCEL, output)
    if idle is not None:
        plan = known(place, *idle).plan
        tell_end(plan, carry_out(place, plan, request=ExecutionRequest.CANCEL), output)


@with_connection
def pause(connect: Connect, plan_id: PlanId = None, state: State = None, output: OutputAs = Output.TABLE) -> None:
    """Pause a plan: start no further moves; moves in flight finish. `resume` continues."""
    place = place_of(connect, state)

    idle = ask_executor(place, plan_id, ExecutionRequest.PAUSE, output)
    if idle is not None:
        hint = "No executor runs it, so no moves are started."
        raise CommandError(f"plan {idle[0]} is not being executed", hint=hint, code=ExitCode.NOT_FOUND)


@with_connection
def resume(
    connect: Connect,
    plan_id: PlanId = None,
    throttle: Throttle = None,
    unthrottle: Unthrottle = None,
    accept_unmet: AcceptUnmet = False,
    state: State = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Continue a plan that is paused, or whose executor stopped or died. --throttle changes the throttle of a running plan."""
    place = place_of(connect, state, throttle_bytes_per_s=throttle, unthrottle=unthrottle)
    from shedders.kafka_rebalance.execution.session import known

    asked = {} if throttle is None else {"throttle": place.settings.pace.throttle_bytes_per_s}
    idle = ask_executor(place, plan_id, ExecutionRequest.GO, output, **asked)
    if idle is None:
        if unthrottle or accept_unmet:
            say("note: --unthrottle and --accept-unmet count where an executor begins, not for the one that runs")
        return
    past = known(place, *idle)
    kept = dict(past.recorded.pace)
    if past.recorded.rate is not None:
        kept.setdefault("throttle_bytes_per_s", past.recorded.rate)
    if asked:
        kept["throttle_bytes_per_s"] = asked["throttle"]
    place = as_before(place, kept)
    remains = None if asked else place.settings.pace.throttle_bytes_per_s
    note = "" if remains is None else f"the throttle remains {rate(remains)}, except where another tool set its own"
    tell_end(past.plan, carry_out(place, past.plan, accept_unmet=accept_unmet, begins=note), output)


@with_connection
def status(connect: Connect, plan_id: PlanId = None, state: State = None, output: OutputAs = Output.TABLE) -> None:
    """Show the progress of a plan: partitions, bytes, rate, time left, executor, reason of a stop, throttles left."""
    place = place_of(connect, state)
    from shedders.kafka_rebalance.execution.overview import status_of
    from shedders.kafka_rebalance.execution.session import known

    book, trouble = read_book(place)
    wanted = chosen(place, plan_id, book)
    junk = {} if book is None else {str(why): number for why, number in sorted(book.junk.items())}
    for why, number in junk.items():
        say(f"note: ignored of {place.settings.state_topic}: {count(number, 'record')}: {why}")
    if wanted is None:
        if trouble is not None:  # the topic may have a plan
            raise trouble
        _show_idle(output, junk)
        return
    try:
        plan = known(place, wanted, book)
    except PlanUnknownError:
        if trouble is not None:  # the topic may know it
            raise trouble from None
        raise
    result = status_of(place, plan, now_ms=now_ms())
    if output is Output.JSON:
        print_json(_document(result) | {"topic_trouble": trouble and str(trouble), "junk": junk})
        return
    print_facts([("plan", result.plan_id), *_rows(result)])
    if trouble is not None:
        say(f"note: the state topic could not be read: {trouble}")
    if result.throttles_left and not result.running:
        left = ", ".join(result.throttles_left)
        say(f"note: throttles are left on {left}: `statechannel partitions resume` or `cancel` removes them")


def _show_idle(output: Output, junk: Mapping[str, int]) -> None:
    from shedders.kafka_rebalance.execution.overview import ExecutionStatus

    if output is Output.JSON:
        nothing = dict.fromkeys(field.name for field in fields(ExecutionStatus))
        idle = {"state": "idle", "running": False, "next_step": _BEGIN, "topic_trouble": None, "junk": junk}
        print_json(nothing | idle)
        return
    state = "idle: nothing is being executed, and no plan has been executed here"
    print_facts([("state", state), ("next", _BEGIN)])


def _document(result: ExecutionStatus) -> dict[str, Any]:
    facts = asdict(result)
    dirs = facts["log_dirs"]
    return facts | {"log_dirs": {name: value for name, value in dirs.items() if name not in {"left_of", "busy"}}}


def _rows(result: ExecutionStatus) -> list[tuple[str, Any]]:
    figures = result.progress
    stopped = "" if result.stop is None else f"{result.stop['kind']}: {result.stop['reason']}".rstrip(": ")
    of_these = ", ".join(f"{number} {name}" for name, number in figures.partitions.items())
    return [
        ("state", result.state),
        ("executor", result.executor),
        *([("no executor since", _undriven(result))] if result.undriven_since_ms is not None else []),
        ("begun", moment(result.began_at_ms or None)),
        ("elapsed", duration(figures.elapsed_s * 1_000) if result.began_at_ms else None),
        ("partitions", f"{figures.done} of {figures.total} done"),
        *([("of these", of_these)] if of_these else []),
        *([("log directories", _dirs(result))] if result.log_dirs.total else []),
        ("bytes", f"{size(figures.bytes_done)} of {size(figures.bytes_total)}"),
        ("rate", None if figures.rate_bytes_per_s is None else rate(figures.rate_bytes_per_s)),
        ("left", _left(result)),
        ("throttle", _throttle(result)),
        ("ended", stopped),
        ("next", result.next_step),
        *(("refused", f"{name}: {why}") for name, why in result.refused.items()),
        *(("remark", text) for text in result.remarks),
    ]


def _undriven(result: ExecutionStatus) -> str:
    since = moment(result.undriven_since_ms)
    was = f" (last executor: {result.last_executor})" if result.last_executor else ""
    waiting = f"; no executor starts the {count(result.unsent, 'move')} left" if result.unsent else ""
    return f"{since}{was}{waiting}"


def _dirs(result: ExecutionStatus) -> str:
    dirs = result.log_dirs
    amounts = f"{size(dirs.bytes_done)} of {size(dirs.bytes_total)}"
    return f"{dirs.done} of {count(dirs.total, 'replica')} moved, {dirs.in_flight} in flight; {amounts}"


def _throttle(result: ExecutionStatus) -> str | None:
    """What Kafka has: each rate with its brokers, where they differ."""
    by_rate: dict[int | None, list[str]] = {}
    for broker, bytes_per_s in result.throttles.items():
        by_rate.setdefault(bytes_per_s, []).append(broker)
    texts = [
        ("none" if bytes_per_s is None else rate(bytes_per_s))
        + (f" on {', '.join(brokers)}" if len(by_rate) > 1 else "")
        for bytes_per_s, brokers in by_rate.items()
    ]
    return "; ".join([*texts, *(f"topic {name} does not list what is in flight" for name in result.unlisted)]) or None


def _left(result: ExecutionStatus) -> str | None:
    figures = result.progress
    if figures.left_s is not None:
        return duration(figures.left_s * 1_000)
    if figures.in_flight_left_s is None:
        return None
    arrival = duration(figures.in_flight_left_s * 1_000)
    return f"unknown; {count(figures.in_flight + result.log_dirs.in_flight, 'move')} in flight, there in {arrival}"


_WAVES_SHOWN = 20


@with_connection
@expanded
def apply(
    connect: Connect,
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file written by `partitions plan`.")],
    execute: Execute = False,
    asked: PaceOptions = PaceOptions(),
    accept_unmet: AcceptUnmet = False,
    state: State = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Show what executing a plan would do: batches, bytes, checks. With --execute, execute it to its end."""
    place = place_of(connect, state, **asdict(asked))
    from shedders.kafka_rebalance.planning.plan_files import read_plan

    _begin(connect, place, read_plan(plan_file), execute=execute, accept_unmet=accept_unmet, output=output)


def _begin(
    connect: Connect,
    place: ExecutionPlace,
    plan: ReassignmentPlan,
    *,
    execute: bool,
    accept_unmet: bool,
    output: Output,
    **more: Any,
) -> None:
    """Execute a plan, or show what that would do."""
    if execute:
        tell_end(plan, carry_out(place, plan, accept_unmet=accept_unmet), output, **more)
        return
    from shedders.kafka_rebalance.execution.overview import dry_run
    from shedders.kafka_rebalance.execution.session import history_of

    past = history_of(place, plan.id, read_book(place)[0])
    result = dry_run(place, plan, past, accept_unmet=accept_unmet)
    if output is Output.JSON:
        print_json(asdict(result) | more)
    else:
        sentence = f"plan {plan.id}: {count(len(plan.moves), 'partition')}, {result.open_count} of them not done yet"
        stdout().print(f"{sentence}; {size(result.copied_bytes)} to copy", markup=False)
        if plan.dir_moves:
            replicas = f"{count(len(plan.dir_moves), 'replica')} between log directories, {result.dirs_open} of them not done yet"
            stdout().print(f"{replicas}; {size(result.dir_bytes)} to copy", markup=False)
        rows = [(n, wave.partitions, size(wave.copied_bytes)) for n, wave in enumerate(result.waves, 1)]
        if rows:
            print_table(("batch", "partitions", "copied"), rows[:_WAVES_SHOWN])
        if len(rows) > _WAVES_SHOWN:
            say(f"and {len(rows) - _WAVES_SHOWN} more")
        reckoned = "; ".join(result.estimate.sentences())
        say(f"takes about {duration(result.estimate.duration_s * 1_000)} ({reckoned})")
        for finding in result.findings:
            say(f"{'refused' if finding.refused else 'note'}: {finding.text}. {finding.hint}".rstrip(". "))
    refused = [finding for finding in result.findings if finding.refused]
    if refused:
        raise CommandError(
            f"plan {plan.id} would be refused: {refused[0].text}", hint=refused[0].hint, code=ExitCode.REJECTED
        )
    say_dry_run(connect().cluster)
    say("--execute executes the plan")


@with_connection
def rollback(
    connect: Connect,
    plan_id: Annotated[str, typer.Argument(metavar="PLAN-ID", help="Id of the plan to roll back.")],
    execute: Execute = False,
    throttle: Throttle = None,
    moves_per_broker: MovesPerBroker = None,
    state: State = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Roll back the executed moves of a plan, by a new plan with its own id. With --execute, execute that plan."""
    place = place_of(connect, state, throttle_bytes_per_s=throttle, moves_per_broker=moves_per_broker)
    from shedders.kafka_rebalance.execution.overview import way_back
    from shedders.kafka_rebalance.execution.session import is_executed, known

    book, trouble = read_book(place)
    if trouble is not None:
        raise trouble
    if is_executed(book, plan_id):
        raise CommandError(
            f"plan {plan_id} is being executed",
            hint=f"Cancel it first: `statechannel partitions cancel {plan_id}`.",
            code=ExitCode.REJECTED,
        )
    back = way_back(place, known(place, plan_id, book).plan)
    for text in back.remarks:
        say(f"note: {text}")
    if back.empty:
        if output is Output.JSON:
            print_json({"plan": None, "undoes": plan_id, "partitions": 0})
        else:
            stdout().print(f"plan {plan_id} has no moves left to roll back", markup=False)
        return
    _begin(connect, place, back, execute=execute, accept_unmet=False, output=output, undoes=plan_id)
