"""`statechannel partitions pause [PLAN-ID]`."""

from __future__ import annotations

from shedders.cli.partitions_asking import tell_executor
from shedders.cli.partitions_executing import PlanId, State, place_of
from statechannel.cli.options import Connect, OutputAs, reaching
from statechannel.cli.output import Output


@reaching
def pause(connect: Connect, plan_id: PlanId = None, state: State = None, output: OutputAs = Output.TABLE) -> None:
    """Let nothing new set out; what is under way arrives. `resume` goes on."""
    place = place_of(connect, state)
    from shedders.partitions.execution.seen import Wish  # noqa: PLC0415 - kafka-python is an extra

    tell_executor(place, plan_id, Wish.PAUSE, output, hint="Nobody carries it out, so nothing sets out anyway.")
