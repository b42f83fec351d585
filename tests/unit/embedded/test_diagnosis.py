"""The cause of a failed start is one sentence, taken from what the broker wrote."""

from pathlib import Path

import pytest

from statechannel.embedded.server import diagnose, read_since

LOG = Path("/data/broker.log")


@pytest.mark.parametrize(
    ("log", "console", "what", "hint"),
    [
        (
            "INFO fine\nERROR while writing\njava.io.IOException: No space left on device\n",
            "",
            "disk of the data folder is full (java.io.IOException: No space left on device)",
            "free some space",
        ),
        ("", "java.net.BindException: Address already in use", "a port is in use", "--port"),
        ("ERROR x\njava.lang.OutOfMemoryError: Java heap space", "", "out of heap", "larger heap"),
        (
            "2026 ERROR Fatal error\nA: outer\nCaused by: B: inner\nCaused by: C: the root\n",
            "",
            "Caused by: C: the root",
            "read /data/broker.log",
        ),
        ("2026 INFO ok\n2026 ERROR first\n2026 ERROR second", "", "ERROR first", "read"),
        ("", "Error: Could not find or load main class kafka.Kafka", "main class", "read"),
        ("", "one\nlast words\n\n", "last words", "read"),
        ("", "", "it ended without output", "read"),
    ],
)
def test_cause(log: str, console: str, what: str, hint: str) -> None:
    cause = diagnose(log, console, log_path=LOG)
    assert what in cause.what
    assert hint in cause.hint


def test_long_lines_are_cut() -> None:
    assert len(diagnose("ERROR " + "x" * 10_000, "", log_path=LOG).what) < 500


def test_log_is_read_from_an_offset(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    assert read_since(log, 10) == ""
    log.write_text("earlier start\nthis start\n")
    assert read_since(log, len("earlier start\n")) == "this start\n"
    log.write_text("rolled\n")
    assert read_since(log, 1000) == "rolled\n", "a shorter file is a new one"
