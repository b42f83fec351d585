"""Error messages: one line with the failure, one with the next step; a traceback only with `--debug`."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer

from statechannel.cli.kit.output import begin_output, print_failure, silence_stderr, silence_stdout
from statechannel.errors import ExitCode, StateChannelError

# Typer exports only some of the exceptions that it raises; this is the base of all that mean wrong usage.
_USAGE_BASE: type[Exception] = next(
    cls for cls in typer.BadParameter.__mro__ if issubclass(cls, Exception) and cls.__name__ == "ClickException"
)

_A_BUG = "This is a bug. Run again with `statechannel --debug ...` and report it."
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class CommandError(StateChannelError):
    """A command failed."""

    def __init__(self, message: str, *, hint: str = "", code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message, hint=hint, exit_code=code)
        self.code = code.code
        self.retryable = code is ExitCode.KAFKA_AWAY


def guarded(run: Callable[[], Any], *, debug: bool, json: bool = False) -> int:
    """Run a command; convert its end into an exit code and, if it failed, into lines on standard error.

    Args:
        json: A failure is a JSON document on standard output as well, unless the command has printed one.
    """
    begin_output()

    def failed(
        message: str, hint: str, code: ExitCode, *, reason: str | None = None, retryable: bool = False
    ) -> ExitCode:
        message = message.removesuffix(".")
        if json:
            try:
                print_failure(message, hint, code, reason or code.code, retryable=retryable)
            except BrokenPipeError:
                silence_stdout()
        _print_error(message, hint)
        return code

    try:
        result = run()
        sys.stdout.flush()
    except typer.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return failed("interrupted", "", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        silence_stdout()
        return ExitCode.OK
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        silence_stdout()  # Click has ended it for the same reason
        return ExitCode.OK
    except StateChannelError as error:
        _trace(debug)
        return failed(str(error), error.hint, error.exit_code, reason=error.code, retryable=error.retryable)
    except _USAGE_BASE as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stderr.write(f"{error}\n")
            return ExitCode.USAGE
        return failed(*_usage(error), ExitCode.USAGE)
    except Exception as error:  # the last stand before the user
        _trace(debug)
        return _no_room(error) or failed(f"{type(error).__name__}: {error}", _A_BUG, ExitCode.BUG)
    return result if isinstance(result, int) else ExitCode.OK


def _no_room(error: Exception) -> int:
    """The exit code if a disk is full; 0 for other errors."""
    if not isinstance(error, OSError) or error.errno not in _NO_ROOM:
        return 0
    silence_stdout()  # often what had no room; nothing more could be said there
    _print_error(f"the output cannot be written: {error.strerror}", "Free space on the disk of the output.")
    return ExitCode.FAILED


def _usage(error: Any) -> tuple[str, str]:
    context = getattr(error, "ctx", None)
    hint = f"See `{context.command_path} --help`." if context is not None else ""
    return " ".join(error.format_message().split()), hint


def _print_error(message: str, hint: str) -> None:
    try:
        sys.stderr.write(f"error: {message}\n" + (f"hint: {hint}\n" if hint else ""))
    except OSError:  # the exit code tells it
        silence_stderr()


def _trace(debug: bool) -> None:
    if debug:
        traceback.print_exc()
