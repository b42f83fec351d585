"""Errors for people: one line that says what happened, one that says what to do next; never a traceback unless asked."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer

from statechannel.cli.exit_codes import ExitCode
from statechannel.errors import StateChannelError

# Typer exports only some of the exceptions that it raises; this is the base of all that mean wrong usage.
_USAGE_BASE: type[Exception] = next(
    cls for cls in typer.BadParameter.__mro__ if issubclass(cls, Exception) and cls.__name__ == "ClickException"
)


class CommandError(StateChannelError):
    """A command cannot do what was asked."""

    def __init__(self, message: str, *, hint: str = "", code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message, hint=hint, exit_code=int(code))


def guarded(run: Callable[[], Any], *, debug: bool) -> int:
    """Run a command and turn however it ends into an exit code and, if it failed, into lines on standard error."""
    try:
        result = run()
    except typer.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _tell("interrupted", "")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return ExitCode.OK
    except StateChannelError as error:
        _trace(debug)
        _tell(str(error), error.hint)
        return error.exit_code
    except _USAGE_BASE as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stderr.write(f"{error}\n")
        else:
            _tell(*_usage(error))
        return ExitCode.USAGE
    except Exception as error:  # the last stand before the user
        _trace(debug)
        _tell(
            f"{type(error).__name__}: {error}",
            "This is a bug. Run again with `statechannel --debug ...` and report it.",
        )
        return ExitCode.BUG
    return result if isinstance(result, int) else ExitCode.OK


def _usage(error: Any) -> tuple[str, str]:
    context = getattr(error, "ctx", None)
    hint = f"See `{context.command_path} --help`." if context is not None else ""
    return error.format_message(), hint


def _tell(message: str, hint: str) -> None:
    if message[-1:] == ".":
        message = message[:-1]
    sys.stderr.write(f"error: {message}\n")
    if hint:
        sys.stderr.write(f"hint: {hint}\n")


def _trace(debug: bool) -> None:
    if debug:
        traceback.print_exc()


def _silence_stdout() -> None:
    # Whoever read our output has gone; the interpreter would complain when it flushes at its end.
    sys.stdout = open("/dev/null", "w")  # noqa: SIM115, PTH123
