"""`statechannel partitions apply|status|pause|resume|cancel|rollback`: execution of plans.

Requests to an executor, on this or another host, are written to the state topic; its answer is read from there.
"""

from __future__ import annotations

import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shedders.kafka_rebalance.cli.execution import (
    AcceptUnmet,
    BytesInFlight,
    Execute,
    MovesMax,
    MovesPerBroker,
    OneReplica,
    Order,
    PlanId,
    State,
    Throttle,
    as_before,
    carry_out,
    chosen,
    place_of,
    rate_of,
    read_book,
    tell_end,
    who,
)
from shedders.kafka_rebalance.errors import PlanUnknownError
from shedders.model.amounts import count, rate, size
from statechannel.cli.kit.confirmation import say_dry_run
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import (
    Output,
    duration,
    moment,
    print_facts,
    print_json,
    print_table,
    say,
    stdout,
    waiting,
)
from statechannel.clocks import now_ms
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from shedders.kafka_rebalance.execution.overview import ExecutionStatus
    from shedders.kafka_rebalance.execution.session import ExecutionPlace
    from shedders.kafka_rebalance.execution.state_records import StateBook
    from shedders.kafka_rebalance.execution.values import ExecutionRequest
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan


ANSWER_S = 15.0
_POLL_S = 0.3
_BEGIN = "Execute one with `statechannel partitions apply PLAN --execute`, or use --state DIR."
_STATE = {"pause": "paused", "go": "begun", "cancel": "cancelling"}


def running_plan(place: ExecutionPlace, plan_id: str | None) -> tuple[str, bool, StateBook | None]:
    """Id of the plan, whether it is being executed now, and the contents of the state topic (None: it does not exist).

    Raises:
        KafkaAdapterError: The state topic cannot be read.
        CommandError: No plan was ever executed.
    """
    from shedders.kafka_rebalance.execution.session import alive_holder

    book, trouble = read_book(place)
    if trouble is not None:
        raise trouble
    running = chosen(place, plan_id, book)
    if running is None:
        raise CommandError("no plan has been executed here", hint=_BEGIN, code=ExitCode.NOT_FOUND)
    holder = alive_holder(book)
    return running, holder is not None and holder.plan_id == running, book


def tell_executor(
    place: ExecutionPlace,
    plan_id: str | None,
    request: ExecutionRequest,
    output: Output,
    *,
    hint: str,
    **throttle: int | None,
) -> None:
    """Send a request to the executor and wait for its answer.

    Raises:
        CommandError: The plan is not being executed, or no answer came in time.
    """
    plan, running, _ = running_plan(place, plan_id)
    if not running:
        raise CommandError(f"plan {plan} is not being executed", hint=hint, code=ExitCode.NOT_FOUND)
    from shedders.kafka_rebalance.execution.session import ask

    ask(place, plan, request=request, by=who(), **throttle)
    heard = _answer(place, plan, request)
    facts: dict[str, Any] = {"plan": plan, "asked": str(request), "state": heard, **throttle}
    if output is Output.JSON:
        print_json(facts)
    else:
        stdout().print(f"plan {plan}: {heard}", markup=False)


def _answer(place: ExecutionPlace, plan_id: str, request: ExecutionRequest) -> str:
    """Answer of the executor.

    Raises:
        CommandError: No answer in time.
    """
    from shedders.kafka_rebalance.execution.values import recorded

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
    from shedders.kafka_rebalance.execution.values import ExecutionRequest

    running_id, running, book = running_plan(place, plan_id)
    if running:
        tell_executor(place, running_id, ExecutionRequest.CANCEL, output, hint="")
        return
    plan = known(place, running_id, book).plan
    tell_end(plan, carry_out(place, plan, request=ExecutionRequest.CANCEL), output)


@with_connection
def pause(connect: Connect, plan_id: PlanId = None, state: State = None, output: OutputAs = Output.TABLE) -> None:
    """Pause a plan: start no further moves; moves in flight finish. `resume` continues."""
    place = place_of(connect, state)
    from shedders.kafka_rebalance.execution.values import ExecutionRequest

    tell_executor(place, plan_id, ExecutionRequest.PAUSE, output, hint="No executor runs it, so no moves are started.")


@with_connection
def resume(
    connect: Connect,
    plan_id: PlanId = None,
    throttle: Throttle = None,
    accept_unmet: AcceptUnmet = False,
    state: State = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Continue a plan that is paused, or whose executor stopped or died. --throttle changes the throttle of a running plan."""
    place = place_of(connect, state, throttle_bytes_per_s=throttle)
    from shedders.kafka_rebalance.execution.session import known
    from shedders.kafka_rebalance.execution.values import ExecutionRequest

    plan, running, book = running_plan(place, plan_id)
    if running:
        changed = {} if throttle is None else {"throttle": rate_of(throttle)}
        tell_executor(place, plan, ExecutionRequest.GO, output, hint="", **changed)
        return
    past = known(place, plan, book)
    kept = dict(past.recorded.pace)
    if past.recorded.rate is not None:
        kept.setdefault("throttle_bytes_per_s", past.recorded.rate)
    if throttle is not None:
        kept["throttle_bytes_per_s"] = rate_of(throttle)
    elif kept.get("throttle_bytes_per_s") is not None:
        say(f"the throttle remains {rate(kept['throttle_bytes_per_s'])}")
    place = as_before(place, kept)
    tell_end(past.plan, carry_out(place, past.plan, accept_unmet=accept_unmet), output)


@with_connection
def status(connect: Connect, plan_id: PlanId = None, state: State = None, output: OutputAs = Output.TABLE) -> None:
    """Show the progress of a plan: partitions, bytes, rate, time left, executor, reason of a stop, throttles left."""
    place = place_of(connect, state)
    from shedders.kafka_rebalance.execution.overview import status_of
    from shedders.kafka_rebalance.execution.session import known

    book, trouble = read_book(place)
    wanted = chosen(place, plan_id, book)
    if wanted is None:
        if trouble is not None:  # the topic may have a plan
            raise trouble
        _show_idle(output)
        return
    try:
        plan = known(place, wanted, book)
    except PlanUnknownError:
        if trouble is not None:  # the topic may know it
            raise trouble from None
        raise
    result = status_of(place, plan, now_ms=now_ms())
    if output is Output.JSON:
        print_json(_document(result) | {"topic_trouble": trouble and str(trouble)})
        return
    print_facts([("plan", result.plan_id), *_rows(result)])
    if trouble is not None:
        say(f"note: the state topic could not be read: {trouble}")
    if result.throttles_left and not result.running:
        left = ", ".join(result.throttles_left)
        say(f"note: throttles are left on {left}: `statechannel partitions resume` or `cancel` removes them")


def _show_idle(output: Output) -> None:
    """The status where no plan was ever executed."""
    from shedders.kafka_rebalance.execution.overview import ExecutionStatus

    if output is Output.JSON:
        nothing = dict.fromkeys(field.name for field in fields(ExecutionStatus))
        print_json(nothing | {"state": "idle", "running": False, "next_step": _BEGIN, "topic_trouble": None})
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
        ("throttle", None if result.throttle_bytes_per_s is None else rate(result.throttle_bytes_per_s)),
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
def apply(
    connect: Connect,
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file written by `partitions plan`.")],
    execute: Execute = False,
    throttle: Throttle = None,
    moves_per_broker: MovesPerBroker = None,
    moves_max: MovesMax = None,
    bytes_in_flight: BytesInFlight = None,
    one_replica: OneReplica = None,
    order: Order = None,
    accept_unmet: AcceptUnmet = False,
    state: State = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Show what executing a plan would do: batches, bytes, checks. With --execute, execute it to its end."""
    place = place_of(
        connect,
        state,
        throttle_bytes_per_s=throttle,
        moves_per_broker=moves_per_broker,
        moves_max=moves_max,
        bytes_in_flight=bytes_in_flight,
        one_replica=one_replica,
        order=order,
    )
    from shedders.kafka_rebalance.planning.plan_files import read_plan

    plan = read_plan(plan_file)
    if execute:
        tell_end(plan, carry_out(place, plan, accept_unmet=accept_unmet), output)
    else:
        show_dry_run(place, plan, connect().cluster, accept_unmet=accept_unmet, output=output)


def show_dry_run(
    place: ExecutionPlace, plan: ReassignmentPlan, cluster: str, *, accept_unmet: bool, output: Output, **more: Any
) -> None:
    """Print what would be done to a cluster.

    Raises:
        CommandError: The plan would be refused.
    """
    from shedders.kafka_rebalance.execution.overview import dry_run

    result = dry_run(place, plan, accept_unmet=accept_unmet)
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
            say(f"{'refused' if finding.refused else 'note'}: {finding.text}")
    refused = [finding for finding in result.findings if finding.refused]
    if refused:
        raise CommandError(
            f"plan {plan.id} would be refused: {refused[0].text}", hint=refused[0].hint, code=ExitCode.REJECTED
        )
    say_dry_run(cluster)
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
    from shedders.kafka_rebalance.execution.session import known

    _, running, book = running_plan(place, plan_id)
    if running:
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
    if execute:
        tell_end(back, carry_out(place, back), output, undoes=plan_id)
    else:
        show_dry_run(place, back, connect().cluster, accept_unmet=False, output=output, undoes=plan_id)
