"""Wrong command lines (`bad_inputs.txt`): one plain line, perhaps a hint, the right exit code, and no long wait."""

import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from statechannel.printable import printable

TABLE = Path(__file__).with_name("bad_inputs.txt")
LINES = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
GROUPS = sorted({line.split()[1] for line in LINES})
LEAST = 300
PROCESSOR_MAX_S = 5.0
CONTROLS = {"n": "\n", "t": "\t", "x1b": "\x1b"}
FOREIGN_WORDS = re.compile(
    r"Traceback|Value error|Input should|input should|pydantic|should match pattern|\(type=|NoneType"
)


def test_the_table_is_long() -> None:
    assert len(set(LINES)) == len(LINES) >= LEAST


@pytest.mark.parametrize("group", GROUPS)
def test_wrong_command_lines_end_with_one_plain_line(
    group: str, run: Callable[..., Result], closed_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "typo.toml").write_text("[membership]\nexpiri_s = 8\n")
    (tmp_path / "broken.toml").write_text("[membership\n")
    (tmp_path / "binary.bin").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "broken.properties").write_text("no equals sign\n")
    (tmp_path / "acks.properties").write_text("acks=1\n")
    monkeypatch.setenv("STATECHANNEL_KAFKA__REFUSED_WAIT_S", "0")
    replaced = {"LONG": "x" * 20_000, "AWAY": f"127.0.0.1:{closed_port}"}
    problems = []
    for line in LINES:
        code, *words = shlex.split(line)
        if words[0] != group:
            continue
        args = [replaced.get(word, re.sub(r"\\(n|t|x1b)", lambda match: CONTROLS[match[1]], word)) for word in words]
        began_s = time.process_time()
        result = run(*args)
        took_s = time.process_time() - began_s
        if result.exit_code != int(code):
            problems.append(f"{line[:100]}: exit code {result.exit_code}: {result.output[:300]}")
        elif why := unpleasant(result):
            problems.append(f"{line[:100]}: {why}: {result.output[:400]!r}")
        elif took_s > PROCESSOR_MAX_S:
            problems.append(f"{line[:100]}: took {took_s:.1f} s of processor time")
    assert problems == []


def unpleasant(result: Result) -> str:
    """What is wrong with the answer; empty if nothing is."""
    if result.stdout:
        return "something on standard output"
    if FOREIGN_WORDS.search(result.stderr):
        return "words of a library"
    lines = result.stderr.splitlines()
    if lines and lines[0].startswith("Usage: "):  # a group without a command
        return ""
    while lines and not lines[0].startswith("error: "):
        if not lines[0].startswith(("Kafka at ", "note: ", "rolling restart ")):
            return "a line that is neither an error nor a remark"
        lines.pop(0)
    if not lines or len(lines) > 2 or (len(lines) == 2 and not lines[1].startswith("hint: ")):
        return "not one error and at most one hint"
    if any(len(line) > 600 or printable(line) != line or line.endswith(": ") for line in lines):
        return "a line that is too long, or has control characters"
    return ""
