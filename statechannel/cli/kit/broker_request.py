"""Commands that send one request to the brokers: decorator that sends it, waits, and prints the result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

from statechannel.broker.request_record import RequestCommand
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, NoWait, OutputAs, Timeout, set_options, with_connection
from statechannel.cli.kit.output import Output, print_json, say, stdout
from statechannel.cli.kit.requests import RequestAnswer, ask, require_success
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from statechannel.cli.kit.connection import Connection


@dataclass(frozen=True, slots=True)
class BrokerRequest:
    """What is asked for.

    Attributes:
        done: Message printed when the request succeeded.
        refused: Checked first: the answer if something prevents the request, None if nothing does.
    """

    asked: RequestCommand
    args: Mapping[str, Any]
    done: str
    refused: Callable[[Connection], RequestAnswer | None] | None = None


def broker_request(command: Callable[..., BrokerRequest]) -> Callable[..., Any]:
    """Turn a function that returns a request into a command: adds `--timeout`, `--no-wait`, `--output` and connection options."""

    @wraps(command)
    def run(connect: Connect, timeout: float | None, no_wait: bool, output: Output, **arguments: Any) -> None:
        request = command(connect, **arguments)
        against = _against(request, connect(), wait=not no_wait)
        if against is not None:
            _finish(against, output, request.done)
            return
        answer = ask(connect(), request.asked, request.args, timeout_s=timeout, wait=not no_wait)
        _finish(answer, output, request.done)

    own = list(inspect.signature(command, eval_str=True).parameters.values())
    set_options(run, [*own, *inspect.signature(_request_options, eval_str=True).parameters.values()])
    return with_connection(run)


def _against(request: BrokerRequest, connection: Connection, *, wait: bool) -> RequestAnswer | None:
    if request.refused is None:
        return None
    try:
        return request.refused(connection)
    except CommandError as error:
        if wait or error.exit_code != ExitCode.NO_BROKER:
            raise
        return None  # the request waits for a broker, which cannot be queried before


def _request_options(timeout: Timeout = None, no_wait: NoWait = False, output: OutputAs = Output.TABLE) -> None:
    """The options themselves, as a signature."""


def _finish(answer: RequestAnswer, output: Output, done: str) -> None:
    if output is Output.JSON:
        print_json(answer.fields())
        require_success(answer)
        return
    require_success(answer)
    if answer.outcome is None:
        say(f"request written; `statechannel operation show {answer.operation}` shows its progress")
        return
    stdout().print(f"{done} (operation {answer.operation}, by {answer.claimed_by})", markup=False)
