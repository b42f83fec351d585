"""Diagnosis of a failed start, from the broker's log and output."""

import re
from dataclasses import dataclass
from pathlib import Path

_LONGEST_READ_BYTES = 4 * 1024 * 1024
_LONGEST_CAUSE = 400


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why a broker did not start: `what` for the message, `hint` for the user."""

    what: str
    hint: str
    port_in_use: bool = False


_KNOWN = (
    (
        "No space left on device",
        StartFailure("the disk of the data folder is full", "free some space, then start again"),
    ),
    (
        "Address already in use",
        StartFailure(
            "a port is in use",
            "stop the program that listens there, or choose another port with --port",
            port_in_use=True,
        ),
    ),
    (
        "OutOfMemoryError",
        StartFailure("Java ran out of heap", "give the broker a larger heap"),
    ),
    (
        "Could not reserve enough space",
        StartFailure("this machine has not enough free memory for the heap", "free some memory"),
    ),
    (
        "Permission denied",
        StartFailure("a file of the data folder is not accessible", "check the folder's owner and mode"),
    ),
)


def read_since(path: Path, offset: int) -> str:
    """Return what was appended to a log since `offset`; a log that has rolled is read whole."""
    try:
        size = path.stat().st_size
        start = offset if offset <= size else 0
        with path.open("rb") as file:
            file.seek(max(start, size - _LONGEST_READ_BYTES))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def diagnose(log: str, console: str, *, log_path: Path) -> StartFailure:
    """Find the cause in the broker's log, then in what Java printed.

    Args:
        log: The part of the broker's log that this start wrote.
        console: Standard output and error of the process.
        log_path: Where the user finds the whole log.
    """
    for text in (log, console):
        for phrase, cause in _KNOWN:
            if phrase in text:
                return StartFailure(_with_line(cause.what, text, phrase), cause.hint, cause.port_in_use)
    line = _error_line(log) or _error_line(console) or _last_line(console)
    what = line or "it ended without output"
    return StartFailure(what, f"read {log_path}")


def _with_line(what: str, text: str, phrase: str) -> str:
    line = next(line for line in text.splitlines() if phrase in line)
    return f"{what} ({_shorten(line)})"


def _error_line(text: str) -> str | None:
    lines = text.splitlines()
    causes = [line for line in lines if line.lstrip().startswith("Caused by:")]
    if causes:
        return _shorten(causes[-1])
    pattern = re.compile(r"\b(ERROR|FATAL)\b|^Exception in thread|^Error:|Exception: ")
    return next((_shorten(line) for line in lines if pattern.search(line)), None)


def _last_line(text: str) -> str | None:
    lines = [line for line in text.splitlines() if line.strip()]
    return _shorten(lines[-1]) if lines else None


def _shorten(line: str) -> str:
    stripped = line.strip()
    return stripped if len(stripped) <= _LONGEST_CAUSE else stripped[:_LONGEST_CAUSE] + "…"
