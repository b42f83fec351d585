"""Command `statechannel console`: the admin API of a cluster, served by a process that is not one of its brokers."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Annotated

from statechannel.cli.broker import set_up_logs
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs, commands, option, with_connection
from statechannel.cli.kit.output import Output, print_json_line, say, stdout
from statechannel.errors import UsageError
from statechannel.settings import Settings
from statechannel.settings.groups_cluster import AccessRole

app = commands()


@app.command()
@with_connection
def console(
    connect: Connect,
    port: Annotated[
        int | None, option("--port", "Port; 0 picks a free one. Default: http.port, else 8450.", min=0, max=65_535)
    ] = None,
    address: Annotated[str | None, option("--address ADDRESS", "Address of the port. Default: http.address.")] = None,
    new_token: Annotated[
        str | None, option("--new-token NAME", "Print a token, and its line for http.access_file, and end.")
    ] = None,
    role: Annotated[AccessRole, option("--role", "Role of the new token.")] = AccessRole.READ,
    output: OutputAs = Output.TABLE,
) -> None:
    """Serve the admin API of a running cluster until interrupted: on the loopback and read-only, unless the settings say more."""
    from statechannel.http_api.extension import require_extra

    require_extra()
    if new_token is not None:
        _print_token(new_token, role, output)
        return
    flags = [] if address is None else [f"http.address={address}"]
    settings = connect(*flags).settings
    if port is not None or settings.http.port is None:
        http = settings.http.model_copy(update={"port": DEFAULT_PORT if port is None else port})
        settings = settings.model_copy(update={"http": http})
    from statechannel.http_api.access import HttpCallers

    require_extra(settings.http)
    HttpCallers(settings.http)  # what is wrong with the settings is said before Kafka is asked
    set_up_logs(settings)
    asyncio.run(_serve(settings, output))


DEFAULT_PORT = 8_450


def _print_token(name: str, role: AccessRole, output: Output) -> None:
    from statechannel.http_api.access import is_caller_name, new_token

    if not is_caller_name(name):
        raise UsageError(
            f"`{name}` is not the name of a caller",
            hint="1 to 64 of A-Za-z0-9_.:-, the first of them a letter or digit.",
        )
    token, digest = new_token()
    line = f"{name} {role.value} {digest}"
    if output is Output.JSON:
        print_json_line({"name": name, "role": role.value, "token": token, "line": line})
        return
    say("the token, which is shown only now, and the line for http.access_file:")
    stdout().print(token, markup=False, soft_wrap=True)
    stdout().print(line, markup=False, soft_wrap=True)


async def _serve(settings: Settings, output: Output) -> None:
    from statechannel.http_api.serving import server_of
    from statechannel.router import Router

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with Router.open(settings) as router:
        server = server_of(router, settings, loop, broker="")
        url = await asyncio.to_thread(server.start)
        try:
            if output is Output.JSON:
                print_json_line({"url": url})
            else:
                say(f"the live page is at {url}/, the admin API at {url}/v1 (Ctrl-C ends it)")
            stopped = asyncio.ensure_future(router.wait_stopped())
            waiting = asyncio.ensure_future(ended.wait())
            await asyncio.wait({stopped, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if not stopped.done():
                stopped.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await stopped
                return
            end = stopped.result()
        finally:
            await asyncio.to_thread(server.close)
    raise CommandError(f"the console stopped ({end.reason}): {end.detail}", code=end.exit_code)
