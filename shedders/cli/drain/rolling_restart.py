"""`statechannel rolling-restart`."""

from __future__ import annotations

from typing import Annotated

import typer

from shedders.cli.drain import cordons
from shedders.cli.drain.command import Force, Rate, Why, rate_of
from shedders.cli.drain.follower import new_id
from shedders.cli.drain.rolling import Restart, RestartWish, progressed, require_program, words_of
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
        list[str] | None, typer.Option("--broker", metavar="BROKER", help="Only these; may be repeated. Default: all.")
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--command", metavar="CMD", help="Restarts one broker; {broker} stands for its id. No shell runs."
        ),
    ] = None,
    manual: Annotated[bool, typer.Option("--manual", help="You restart each broker; this waits for it.")] = False,
    rate: Rate = None,
    force: Force = False,
    why: Why = None,
    by: By = None,
    operation: Annotated[str | None, typer.Option("--operation", metavar="ID", help="Go on with this restart.")] = None,
    back_within: Annotated[
        float, typer.Option("--back-within", metavar="SECONDS", min=1, max=86_400, help="Until a broker is back.")
    ] = 300.0,
    command_within: Annotated[
        float, typer.Option("--command-within", metavar="SECONDS", min=1, max=86_400, help="For the command to end.")
    ] = 300.0,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, max=86_400, help="For the drain of one broker.")
    ] = 1_800.0,
    fresh_within: Annotated[
        float, typer.Option("--fresh-within", metavar="SECONDS", min=1, max=3_600, help="For fresh load reports.")
    ] = 60.0,
    leader_within: Annotated[
        float, typer.Option("--leader-within", metavar="SECONDS", min=1, max=3_600, help="Until a broker leads.")
    ] = 60.0,
    output: OutputAs = Output.TABLE,
) -> None:
    """Restart brokers one after the other, the leader last: drain, restart, wait until it is back, uncordon.

    It stops at the first that cannot be emptied or does not come back. With --operation it goes on where it stopped; the
    command may then run a second time for the broker it stopped at.
    """
    if (command is None) is not manual:
        raise CommandError("say either --command CMD or --manual", hint="See --help.", code=ExitCode.USAGE)
    words = None if command is None else words_of(command)
    if words is not None:
        require_program(words)
    for name in broker or ():
        cordons.key_of(name)
    rate_per_s = rate_of(rate)
    connection = connect()
    if operation is not None and not progressed(connection, operation).brokers:
        raise CommandError(
            f"there is no rolling restart {operation}",
            hint="It may not have come to its first broker; begin one without --operation.",
            code=ExitCode.NOT_FOUND,
        )
    wish = RestartWish(
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
    say(f"rolling restart {wish.restart}")
    with bar() as shown:
        done = Restart(connection, wish, shown).run(broker or ())
    if output is Output.JSON:
        print_json({"operation": wish.restart, "restarted": done})
        return
    names = ", ".join(str(one["broker"]) for one in done) or "none was left to restart"
    stdout().print(f"restarted: {names} (operation {wish.restart})", markup=False)
