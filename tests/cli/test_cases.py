"""Every case file: what commands print, to the letter, and how they end."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.case_files import read_cases, shown, write_cases

CASES = sorted((Path(__file__).parent / "cases").glob("*.txt"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case_file(path: Path, run: Callable[..., object]) -> None:
    for name, text in FILES.items():
        Path(name).write_text(text)
    cases = read_cases(path)
    found = []
    for case in cases:
        result = run(*case.args)
        here = str(Path.cwd())
        output = [line.replace(here, "HERE") for line in shown(result.stdout, result.stderr)]  # type: ignore[attr-defined]
        found.append((output, result.exit_code))  # type: ignore[attr-defined]
    if os.environ.get("REWRITE_CASES"):
        for case, (output, code) in zip(cases, found, strict=True):
            case.output, case.code = output, code
        write_cases(path, cases)
    for case, (output, code) in zip(cases, found, strict=True):
        assert (case.command, output, code) == (case.command, case.output, case.code)


FILES = {
    "typo.toml": "[membership]\nexpiri_s = 8\n",
    "relation.toml": "[hooks]\ndeadline_s = 45\n",
    "broken.jsonl": '{"export": 1, "topic": "t", "end_offsets": {"0": 2}, "exported_at_ms": 1}\n{"partition": 0,\n',
    "topics.txt": "# mine\nt/n/one\npersistent://t/n/two\nthree\n",
    "client.properties": "security.protocol=SSL\nacks=1\n",
    "gaps.jsonl": (
        '{"export": 1, "topic": "t", "end_offsets": {"0": 2}, "exported_at_ms": 1}\n'
        '{"partition": 0, "offset": 1, "timestamp_ms": 1, "key": "a/b", "value": null}\n'
    ),
}
