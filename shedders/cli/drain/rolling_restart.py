"""`statechannel rolling-restart`."""

from __future__ import annotations

from typing import Annotated

import typer

from shedders.cli.drain import cordons
from shedders.cli.drain.command import Force, Rate, Why, rate_of
from shedders.cli.drain.follower import new_id
from shedders.cli.drain.rolling import Restart, RestartRequest, progressed, require_program, words_of
from shedders.cli.policy.write import By
from shedders.cli.progress_bars import bar
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, print_json, say, stdout
from statechannel.errors import ExitCode

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_connection
def rolling_restart(
    connect: Connect,
    broker: Annotated[
        list[str] | None,
        typer.Option("--broker", metavar="BROKER", help="Brokers to restart; may be repeated. Default: all."),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--command",
            metavar="CMD",
            help="Command that restarts one broker; {broker} is replaced by its id. No shell runs.",
        ),
    ] = None,
    manual: Annotated[bool, typer.Option("--manual", help="Wait while you restart each broker yourself.")] = False,
    rate: Rate = None,
    force: Force = False,
    why: Why = None,
    by: By = None,
    operation: Annotated[
        str | None, typer.Option("--operation", metavar="ID", help="Id of a restart to continue.")
    ] = None,
    back_within: Annotated[
        float,
        typer.Option("--back-within", metavar="SECONDS", min=1, max=86_400, help="Time limit until a broker is back."),
    ] = 300.0,
    command_within: Annotated[
        float, typer.Option("--command-within", metavar="SECONDS", min=1, max=86_400, help="Time limit of the command.")
    ] = 300.0,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=1, max=86_400, help="Time limit for the drain of one broker."),
    ] = 1_800.0,
    fresh_within: Annotated[
        float,
        typer.Option("--fresh-within", metavar="SECONDS", min=1, max=3_600, help="Time limit for fresh load reports."),
    ] = 60.0,
    leader_within: Annotated[
        float,
        typer.Option(
            "--leader-within", metavar="SECONDS", min=1, max=3_600, help="Time limit until a leader is elected."
        ),
    ] = 60.0,
    output: OutputAs = Output.TABLE,
) -> None:
    """Restart brokers one after the other, the leader last: drain, restart, wait until it is back, uncordon.

    It stops at the first broker that cannot be drained or does not come back. With --operation it continues there; the
    command may then run a second time for that broker.
    """
    if (command is None) is not manual:
        raise CommandError("either --command CMD or --manual is required", hint="See --help.", code=ExitCode.USAGE)
    words = None if command is None else words_of(command)
    if words is not None:
        require_program(words)
    for name in broker or ():
        cordons.key_of(name)
    rate_per_s = rate_of(rate)
    connection = connect()
    if operation is not None and not progressed(connection, operation).brokers:
        raise CommandError(
            f"rolling restart {operation} not found",
            hint="It may have stopped before its first broker; start a new one without --operation.",
            code=ExitCode.NOT_FOUND,
        )
    request = RestartRequest(
        operation or new_id(),
        words,
        rate_per_s,
        force,
        why or "",
        by,
        back_s=back_within,
        command_s=command_within,
        drain_s=timeout,
        fresh_s=fresh_within,
        leader_s=leader_within,
    )
    say(f"rolling restart {request.restart}")
    with bar() as shown:
        done = Restart(connection, request, shown).run(broker or ())
    if output is Output.JSON:
        print_json({"operation": request.restart, "restarted": done})
        return
    names = ", ".join(str(result["broker"]) for result in done) or "no broker was left to restart"
    stdout().print(f"restarted: {names} (operation {request.restart})", markup=False)
