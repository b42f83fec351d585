"""Cases of the command line as text: commands, and all that they print, readable by people.

A file holds blocks:

    # a comment
    $ statechannel audit --file none.jsonl
    a line of standard output
    ! a line of standard error
    = 7

A command may follow settings of the environment: `$ COLUMNS=80 statechannel ...` shows it as on a terminal of that width.
`= N` is the exit code and ends a block; outside of blocks there are only comments.
`REWRITE_CASES=1` in the environment rewrites what is expected: read the diff.
"""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

_END = re.compile(r"= (\d+)")


@dataclass
class Case:
    command: str
    before: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    code: int = 0

    @property
    def args(self) -> list[str]:
        words = shlex.split(self.command)
        return words[words.index("statechannel") + 1 :]

    @property
    def environment(self) -> dict[str, str]:
        words = shlex.split(self.command)
        settings = (word.partition("=") for word in words[: words.index("statechannel")])
        return {name: value for name, _, value in settings}

    @property
    def lines(self) -> list[str]:
        return [*self.before, f"$ {self.command}", *self.output, f"= {self.code}"]


def read_cases(path: Path) -> list[Case]:
    cases: list[Case] = []
    before: list[str] = []
    inside = False
    for line in path.read_text().splitlines():
        if line.startswith("$ "):
            if inside:
                raise ValueError(f"{path.name}: no end of the case before {line!r}")
            cases.append(Case(line[2:], before))
            before, inside = [], True
        elif inside and (end := _END.fullmatch(line)):
            cases[-1].code = int(end[1])
            inside = False
        elif inside:
            cases[-1].output.append(line)
        elif line.startswith("#") or not line:
            before.append(line)
        else:
            raise ValueError(f"{path.name}: outside of a case: {line!r}")
    if inside or before:
        raise ValueError(f"{path.name}: the last case has no end, or a comment no case")
    return cases


def write_cases(path: Path, cases: list[Case]) -> None:
    path.write_text("".join(f"{line}\n" for case in cases for line in case.lines))


def shown(stdout: str, stderr: str) -> list[str]:
    """Output as a case has it: without trailing blanks, errors marked."""
    out = [line.rstrip() for line in stdout.splitlines()]
    return [*out, *(f"! {line.rstrip()}" for line in stderr.splitlines())]
