"""`statechannel partitions rollback PLAN-ID`: reversal of a plan by a new plan; a dry run without `--execute`."""

from __future__ import annotations

from typing import Annotated

import typer

from shedders.kafka_rebalance.cli.apply import show_dry_run
from shedders.kafka_rebalance.cli.execution import (
    Execute,
    MovesPerBroker,
    State,
    Throttle,
    carry_out,
    place_of,
    tell_end,
)
from shedders.kafka_rebalance.cli.executions import running_plan
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, print_json, say, stdout
from statechannel.errors import ExitCode


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
    from shedders.kafka_rebalance.execution.rollback import way_back
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
    if not back.moves:
        if output is Output.JSON:
            print_json({"plan": None, "undoes": plan_id, "partitions": 0})
        else:
            stdout().print(f"plan {plan_id} has no moves left to roll back", markup=False)
        return
    if execute:
        tell_end(back, carry_out(place, back), output, undoes=plan_id)
    else:
        show_dry_run(place, back, accept_unmet=False, output=output, undoes=plan_id)
