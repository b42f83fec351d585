"""`statechannel partitions resume [PLAN-ID]`."""

from __future__ import annotations

from shedders.amounts import rate as told_rate
from shedders.cli.partitions_asking import running_plan, tell_executor
from shedders.cli.partitions_executing import (
    AcceptUnmet,
    PlanId,
    State,
    Throttle,
    as_before,
    carry_out,
    place_of,
    rate_of,
    tell_end,
)
from statechannel.cli.options import Connect, OutputAs, reaching
from statechannel.cli.output import Output, say


@reaching
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
    from shedders.partitions.execution.seen import Wish  # noqa: PLC0415 - kafka-python is an extra
    from shedders.partitions.execution.session import known  # noqa: PLC0415

    found, running, book = running_plan(place, plan_id)
    if running:
        changed = {} if throttle is None else {"throttle": rate_of(throttle)}
        tell_executor(place, found, Wish.GO, output, hint="", **changed)
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
