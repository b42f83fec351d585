"""Wishes for whoever carries a plan out, here or on another host: written to the state topic, and the answer awaited."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from shedders.kafka_rebalance.cli.execution import (
    AcceptUnmet,
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
from shedders.model.amounts import rate, size
from shedders.model.amounts import rate as told_rate
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, duration, moment, print_json, print_table, say, stdout, waiting
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from shedders.kafka_rebalance.execution.session import ExecutionPlace
    from shedders.kafka_rebalance.execution.state_records import StateBook
    from shedders.kafka_rebalance.execution.status import ExecutionStatus
    from shedders.kafka_rebalance.execution.values import ExecutionRequest


ANSWER_S = 15.0
_POLL_S = 0.3
_STATE = {"pause": "paused", "go": "begun", "cancel": "cancelling"}


def running_plan(place: ExecutionPlace, plan_id: str | None) -> tuple[str, bool, StateBook | None]:
    """The plan that is meant, whether somebody carries it out now, and what the state topic has (None: it is not there yet).

    Raises:
        KafkaAdapterError: The state topic cannot be read, so nobody knows.
    """
    from shedders.kafka_rebalance.execution.session import alive_holder

    book, trouble = read_book(place)
    if trouble is not None:
        raise trouble
    found = chosen(place, plan_id, book)
    holder = alive_holder(book)
    return found, holder is not None and holder.plan_id == found, book


def tell_executor(
    place: ExecutionPlace,
    plan_id: str | None,
    wish: ExecutionRequest,
    output: Output,
    *,
    hint: str,
    **throttle: int | None,
) -> None:
    """Tell it, and wait until it has heard.

    Raises:
        CommandError: Nobody carries it out; or no answer came in time.
    """
    found, running, _ = running_plan(place, plan_id)
    if not running:
        raise CommandError(f"plan {found} is not being carried out", hint=hint, code=ExitCode.NOT_FOUND)
    from shedders.kafka_rebalance.execution.session import ask

    ask(place, found, wish=wish, by=who(), **throttle)
    heard = _answer(place, found, wish)
    facts: dict[str, Any] = {"plan": found, "asked": str(wish), "state": heard, **throttle}
    if output is Output.JSON:
        print_json(facts)
    else:
        stdout().print(f"plan {found}: {heard}", markup=False)


def _answer(place: ExecutionPlace, plan_id: str, wish: ExecutionRequest) -> str:
    """What the executor says of it.

    Raises:
        CommandError: Nothing in time.
    """
    from shedders.kafka_rebalance.execution.events import recorded

    ends_s = time.monotonic() + ANSWER_S + place.settings.pace.poll_s
    with place.topic() as topic, waiting(f"waiting for the executor of plan {plan_id}", ANSWER_S) as told:
        while time.monotonic() < ends_s:
            past = recorded(topic.read().book(plan_id).in_order())
            if past.state == "ended" and past.stop is not None:
                return f"ended ({past.stop['kind']})"
            if past.state == _STATE[str(wish)]:
                return "running" if past.state == "begun" else past.state
            told("")
            time.sleep(_POLL_S)
    raise CommandError(
        f"the executor of plan {plan_id} has not answered in {ANSWER_S:g} s; it may still hear it",
        hint=f"`statechannel partitions status {plan_id}` shows what becomes of it.",
        code=ExitCode.UNDETERMINED,
    )


@with_connection
def cancel(connect: Connect, plan_id: PlanId = None, state: State = None, output: OutputAs = Output.TABLE) -> None:
    """End a plan: what is under way is taken back, throttles are removed, what has arrived stays (`rollback` undoes it)."""
    place = place_of(connect, state)
    from shedders.kafka_rebalance.execution.session import known
    from shedders.kafka_rebalance.execution.values import ExecutionRequest

    found, running, book = running_plan(place, plan_id)
    if running:
        tell_executor(place, found, ExecutionRequest.CANCEL, output, hint="")
        return
    plan = known(place, found, book).plan
    tell_end(plan, carry_out(place, plan, wish=ExecutionRequest.CANCEL), output)


@with_connection
def pause(connect: Connect, plan_id: PlanId = None, state: State = None, output: OutputAs = Output.TABLE) -> None:
    """Let nothing new set out; what is under way arrives. `resume` goes on."""
    place = place_of(connect, state)
    from shedders.kafka_rebalance.execution.values import ExecutionRequest

    tell_executor(
        place, plan_id, ExecutionRequest.PAUSE, output, hint="Nobody carries it out, so nothing sets out anyway."
    )


@with_connection
def resume(
    connect: Connect,
    plan_id: PlanId = None,
    throttle: Throttle = None,
    accept_unmet: AcceptUnmet = False,
    state: State = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Go on with a plan: one that is paused, or one whose executor stopped or died. --throttle changes it while it runs."""
    place = place_of(connect, state, throttle_bytes_per_s=throttle)
    from shedders.kafka_rebalance.execution.session import known
    from shedders.kafka_rebalance.execution.values import ExecutionRequest

    found, running, book = running_plan(place, plan_id)
    if running:
        changed = {} if throttle is None else {"throttle": rate_of(throttle)}
        tell_executor(place, found, ExecutionRequest.GO, output, hint="", **changed)
        return
    past = known(place, found, book)
    kept = dict(past.recorded.pace)
    if past.recorded.rate is not None:
        kept.setdefault("throttle_bytes_per_s", past.recorded.rate)
    if throttle is not None:
        kept["throttle_bytes_per_s"] = rate_of(throttle)
    elif kept.get("throttle_bytes_per_s") is not None:
        say(f"the throttle stays at {told_rate(kept['throttle_bytes_per_s'])}")
    place = as_before(place, kept)
    tell_end(past.plan, carry_out(place, past.plan, accept_unmet=accept_unmet), output)


@with_connection
def status(connect: Connect, plan_id: PlanId = None, state: State = None, output: OutputAs = Output.TABLE) -> None:
    """Show how far a plan is: partitions, bytes, rate, time left, who carries it out, why it stopped, throttles left."""
    place = place_of(connect, state)
    from shedders.kafka_rebalance.execution.session import known
    from shedders.kafka_rebalance.execution.status import status_of

    book, trouble = read_book(place)
    try:
        plan = known(place, chosen(place, plan_id, book), book)
    except (CommandError, PlanUnknownError):
        if trouble is not None:  # the topic may know it
            raise trouble from None
        raise
    found = status_of(place, plan, now_ms=time.time_ns() // 1_000_000)
    if output is Output.JSON:
        print_json(found.fields() | {"topic_trouble": None if trouble is None else str(trouble)})
        return
    print_table(("plan", found.plan_id), _rows(found))
    if trouble is not None:
        say(f"note: the state topic could not be read: {trouble}")
    if found.throttles_left and not found.running:
        left = ", ".join(found.throttles_left)
        say(f"note: throttles are left on {left}: `statechannel partitions resume` or `cancel` removes them")


def _rows(found: ExecutionStatus) -> list[tuple[str, Any]]:
    figures = found.progress
    stopped = "" if found.stop is None else f"{found.stop['kind']}: {found.stop['reason']}".rstrip(": ")
    of_these = ", ".join(f"{number} {name}" for name, number in figures.partitions.items())
    return [
        ("state", found.state),
        ("carried out by", found.executor),
        ("begun", moment(found.began_at_ms or None)),
        ("partitions", f"{figures.done} of {figures.total} done"),
        *([("of these", of_these)] if of_these else []),
        ("bytes", f"{size(figures.bytes_done)} of {size(figures.bytes_total)}"),
        ("rate", None if figures.rate_bytes_per_s is None else rate(figures.rate_bytes_per_s)),
        ("left", None if figures.left_s is None else duration(figures.left_s * 1_000)),
        ("throttle", None if found.throttle_bytes_per_s is None else rate(found.throttle_bytes_per_s)),
        ("ended", stopped),
        ("next", None if found.stop is None else found.stop["hint"]),
        *(("refused", f"{name}: {why}") for name, why in found.refused.items()),
        *(("remark", text) for text in found.remarks),
    ]
