"""Error messages: one line with the failure, one with the next step; a traceback only with `--debug`."""

from __future__ import annotations

import errno
import re
import sys
import traceback
from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import typer

from statechannel.errors import ExitCode, StateChannelError
from statechannel.printable import printable

# Typer exports only some of the exceptions that it raises; this is the base of all that mean wrong usage.
_USAGE_BASE: type[Exception] = next(
    cls for cls in typer.BadParameter.__mro__ if issubclass(cls, Exception) and cls.__name__ == "ClickException"
)

_WORD_SHOWN = 100
_LONG_WORD = re.compile(r"\S{300,}")
"""Something typed, or read from a file, that no person reads to its end."""
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
    _begin_output()

    def failed(
        message: str, hint: str, code: ExitCode, *, reason: str | None = None, retryable: bool = False
    ) -> ExitCode:
        message = _one_line(message).removesuffix(".")
        if json:
            from statechannel.cli.kit.output import print_failure

            try:
                print_failure(message, hint, code, reason or code.code, retryable=retryable)
            except BrokenPipeError:
                _silence_stdout()
        _print_error(message, _one_line(hint))
        return code

    try:
        result = run()
        sys.stdout.flush()
    except typer.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return failed("interrupted", "", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        _silence_stdout()
        return ExitCode.OK
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        _silence_stdout()  # Click has ended it for the same reason
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


def _begin_output() -> None:
    # Help and completion print no document, and need not wait for the library that draws tables.
    output = sys.modules.get("statechannel.cli.kit.output")
    if output is not None:
        output.begin_output()


def _silence_stdout() -> None:
    from statechannel.cli.kit.output import silence_stdout

    silence_stdout()


def _one_line(text: str) -> str:
    """The text without line breaks or control characters of what was typed; a list of problems keeps its lines."""
    return "\n  ".join(_LONG_WORD.sub(_shortened, printable(line)) for line in text.split("\n  "))


def _shortened(word: re.Match[str]) -> str:
    return f"{word[0][:_WORD_SHOWN]}... ({len(word[0])} characters)"


def _no_room(error: Exception) -> int:
    """The exit code if a disk is full; 0 for other errors."""
    if not isinstance(error, OSError) or error.errno not in _NO_ROOM:
        return 0
    _silence_stdout()  # often what had no room; nothing more could be said there
    _print_error(f"the output cannot be written: {error.strerror}", "Free space on the disk of the output.")
    return ExitCode.FAILED


def _usage(error: Any) -> tuple[str, str]:
    context = getattr(error, "ctx", None)
    hint = f"See `{context.command_path} --help`." if context is not None else ""
    return _refused_value(error) or " ".join(error.format_message().split()), hint


def _refused_value(error: Any) -> str:
    """A sentence on a value that the validation library refused, with all its bounds; empty for other errors."""
    details, option = getattr(error.__cause__, "errors", None), getattr(error, "param", None)
    if not callable(details) or option is None:
        return ""
    from statechannel.settings.sentences import name_allowed_words, sentence_of, value_text

    (detail, *_) = details(include_url=False)
    longest = max(option.opts, key=len)
    name = longest if longest.startswith("-") else option.human_readable_name
    words = _words_of(option.get_runtime_param().annotation)
    if words:
        return f"{name} {value_text(detail['input'])}: {name_allowed_words(str(detail['input']), words)}"
    unit = "seconds" if (option.metavar or "").upper() == "SECONDS" else ""
    bounds = {sign: getattr(option, name, None) for sign, name in (("ge", "min"), ("le", "max"))}
    return f"{name} {value_text(detail['input'])}: {sentence_of(detail, unit=unit, bounds=bounds)}"


def _words_of(annotation: Any) -> list[str]:
    """The words that a parameter of this type allows; none: it takes other values."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [str(member.value) for member in annotation]
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    return [word for part in get_args(annotation) for word in _words_of(part)]


def _print_error(message: str, hint: str) -> None:
    try:
        sys.stderr.write(f"error: {message}\n" + (f"hint: {hint}\n" if hint else ""))
    except OSError:  # the exit code tells it
        from statechannel.cli.kit.output import silence_stderr

        silence_stderr()


def _trace(debug: bool) -> None:
    if debug:
        traceback.print_exc()
