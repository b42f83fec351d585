"""`statechannel partitions cancel [PLAN-ID]`."""

from __future__ import annotations

from shedders.cli.partitions_asking import running_plan, tell_executor
from shedders.cli.partitions_executing import PlanId, State, carry_out, place_of, tell_end
from statechannel.cli.options import Connect, OutputAs, reaching
from statechannel.cli.output import Output


@reaching
def cancel(connect: Connect, plan_id: PlanId = None, state: State = None, output: OutputAs = Output.TABLE) -> None:
    """End a plan: what is under way is taken back, throttles are removed, what has arrived stays (`rollback` undoes it)."""
    place = place_of(connect, state)
    from shedders.partitions.execution.seen import Wish  # noqa: PLC0415 - kafka-python is an extra
    from shedders.partitions.execution.session import known  # noqa: PLC0415

    found, running, book = running_plan(place, plan_id)
    if running:
        tell_executor(place, found, Wish.CANCEL, output, hint="")
        return
    plan = known(place, found, book).plan
    tell_end(plan, carry_out(place, plan, wish=Wish.CANCEL), output)
