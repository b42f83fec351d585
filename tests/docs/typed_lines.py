"""Lines of a page that a reader types: by the part that they stand in, and as words."""

import re
import subprocess

PART = re.compile(r"^\*\*(.+?)\*\*(.*?)(?=^\*\*|^##+ |\Z)", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\$ (.+)$", re.MULTILINE)


def parts_of(section: str) -> dict[str, list[str]]:
    """Commands by the bold words that begin their part."""
    return {title: _COMMAND.findall(text) for title, text in PART.findall(section)}


def words_of(line: str) -> list[str]:
    """What the shell makes of a command of ours."""
    script = f'statechannel() {{ printf "%s\\0" "$@"; }}; {line}'
    return subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout.split("\0")[:-1]
