"""Rules that a program can check: length of files, titles, words that must not be left over, addresses and paths."""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.house_rules import modules, tree

ROOT = Path(__file__).parents[2]
LINES_MAX = 600
# Spelled in parts, so that this file does not hold what it looks for.
LEFT_OVER = re.compile(r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")
HOSTS = ("py" + "pi.org", "python" + "hosted.org", "maven" + ".org", "maven.apache" + ".org/maven2", "npmjs" + ".")
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:wo" + r"rk|ho" + r"me|ro" + r"ot|Us" + r"ers)/[\w.]")
BAD_NAMES = {"utils.py", "helpers.py", "misc.py", "common.py"}


@cache
def files() -> tuple[Path, ...]:
    """Every file that is, or would be, committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    return tuple(path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file())


@cache
def texts() -> list[tuple[str, str]]:
    """Name and text of each."""
    found = []
    for file in files():
        try:
            found.append((str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return found


def test_there_is_something_to_look_at():
    assert len(files()) > 100


def test_no_python_file_is_too_long():
    long = {name: len(text.splitlines()) for name, text in texts() if name.endswith(".py")}
    assert {name: count for name, count in long.items() if count > LINES_MAX} == {}


def test_no_function_is_too_long_and_none_has_an_assert_statement():
    """Those vanish under -O; product code raises."""
    found = [
        f"{name}:{node.lineno}"
        for name, file in modules().items()
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Assert)
        or (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno > 90)
    ]
    assert found == []


@pytest.mark.parametrize("name", [str(file.relative_to(ROOT)) for file in files() if file.suffix == ".md"])
def test_markdown_has_one_title_and_begins_with_it(name):
    text = re.sub(r"^```.*?^```", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert text.startswith("# ")
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1


def test_nothing_is_left_over():
    assert [name for name, text in texts() if LEFT_OVER.search(text)] == []


def test_no_package_server_is_named():
    assert [(name, host) for name, text in texts() for host in HOSTS if host in text] == []


def test_no_path_of_somebodys_machine():
    assert [(name, found.group()) for name, text in texts() if (found := MACHINE_PATHS.search(text))] == []


def test_file_names_say_what_is_in_them():
    assert [file.name for file in files() if file.name in BAD_NAMES] == []


def test_no_large_or_built_file_is_committed():
    assert [(str(file), file.stat().st_size) for file in files() if file.stat().st_size > 1_000_000] == []
    assert [str(file) for file in files() if file.suffix in {".jar", ".pyc", ".jsa", ".whl"}] == []


def test_text_files_end_with_one_newline_and_hold_no_tabs_in_python():
    own = [(name, text) for name, text in texts() if text and not name.startswith("tests/golden/")]
    wrong = [name for name, text in own if not text.endswith("\n") or text.endswith("\n\n")]
    wrong += [name for name, text in texts() if name.endswith(".py") and re.search(r"^\t", text, re.MULTILINE)]
    assert wrong == []
