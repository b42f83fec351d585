"""`statechannel partitions apply PLAN`: dry run of a plan, or its execution with `--execute`."""

from __future__ import annotations

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
    State,
    Throttle,
    carry_out,
    place_of,
    tell_end,
)
from shedders.model.amounts import count, size
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, duration, print_json, print_table, say, stdout
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from shedders.kafka_rebalance.execution.session import ExecutionPlace
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan

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
    from shedders.kafka_rebalance.planning.plan_file import read_plan

    plan = read_plan(plan_file)
    if execute:
        tell_end(plan, carry_out(place, plan, accept_unmet=accept_unmet), output)
    else:
        show_dry_run(place, plan, accept_unmet=accept_unmet, output=output)


def show_dry_run(
    place: ExecutionPlace, plan: ReassignmentPlan, *, accept_unmet: bool, output: Output, **more: Any
) -> None:
    """Print what would be done.

    Raises:
        CommandError: The plan would be refused.
    """
    from shedders.kafka_rebalance.execution.dry_run import dry_run

    result = dry_run(place, plan, accept_unmet=accept_unmet)
    if output is Output.JSON:
        print_json(result.fields() | more)
    else:
        sentence = f"plan {plan.id}: {count(len(plan.moves), 'partition')}, {result.open_count} of them not done yet"
        stdout().print(f"{sentence}; {size(result.copied_bytes)} to copy", markup=False)
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
    say("dry run: nothing was changed; use --execute to execute the plan")
