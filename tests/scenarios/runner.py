"""Runs scenario files: blocks of commands, `----`, and what must follow, to the letter.

    # Comments tell the story.
    start a b
    run 2
    ----
    [  0.0] ...

After each command everything that is on its way arrives, but no time passes, unless `run` says so; what happened is compared.
`python -m tests.scenarios.runner --rewrite [FILE...]` (or SCENARIO_REWRITE=1) writes what happened into the files; commit such
a diff only if you understand it. Blocks under `# KNOWN BUG` keep what should happen, and their files must fail until it does.
The commands are the methods of `tests.scenarios.script.Script`.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.scenarios.script import Script

FOLDER = Path(__file__).parent
KNOWN_BUG = "# KNOWN BUG"
_SEPARATOR = "----"
_NOTHING = "(nothing)"


@dataclass
class Block:
    """Comments and commands up to `----`, and the lines expected after it."""

    head: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    @property
    def commands(self) -> list[str]:
        """The lines of the head that are neither empty nor comments."""
        return [line for line in self.head if line.strip() and not line.startswith("#")]

    @property
    def known_bug(self) -> bool:
        """Whether the block says what should happen and does not yet."""
        return any(line.startswith(KNOWN_BUG) for line in self.head)


def parse(text: str) -> list[Block]:
    """Blocks of a scenario file, in order; expectations end at an empty line."""
    blocks = [Block()]
    expecting = False
    for line in text.splitlines():
        if expecting and line.strip():
            blocks[-1].expected.append(line)
        elif expecting:
            expecting = False
            blocks.append(Block())
        elif line.strip() == _SEPARATOR:
            expecting = True
        else:
            blocks[-1].head.append(line)
    return [block for block in blocks if block.head or block.expected]


def happened(text: str) -> list[tuple[Block, list[str]]]:
    """Run a scenario: each block with what happened."""
    script = Script()
    result = []
    for block in parse(text):
        lines = script.run(block.commands) if block.commands else []
        result.append((block, lines or [_NOTHING]))
    return result


def rewritten(text: str) -> str:
    """The file with what happened in place of what was expected."""
    parts = []
    for block, lines in happened(text):
        told = block.expected if block.known_bug else lines
        body = [_SEPARATOR, *told] if block.commands else []
        parts.append("\n".join([*block.head, *body]))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def main(arguments: list[str]) -> int:
    """Rewrite the named files, or all."""
    if arguments[:1] != ["--rewrite"]:
        print("usage: python -m tests.scenarios.runner --rewrite [FILE...]")
        return 2
    for path in [Path(name) for name in arguments[1:]] or sorted(FOLDER.glob("*.txt")):
        before = path.read_text()
        after = rewritten(before)
        if after != before:
            path.write_text(after)
            print(f"rewritten: {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
