"""What the pages name is there: tests, pages, commands, settings, make targets."""

import ast
import re
import shlex
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from statechannel.broker.observe.events import EVENTS
from statechannel.errors import ExitCode
from statechannel.settings.tree import groups
from tests.docs.blocks import command_options
from tests.docs.generate import ROOT, pages

_TEST = re.compile(r"`((?:(?:scenarios|kafka|unit|property|simulation|cli|docs|faults)/|spark/test_)[^`]+)`")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_SETTING = re.compile(rf"`((?:{'|'.join(groups())})\.[a-z_]+)`")
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)


def _read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def _functions(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_test_that_is_named_exists():
    missing, seen = [], 0
    for page in pages():
        for name in _TEST.findall(_read(page)):
            seen += 1
            path, _, function = name.partition("::")
            file = ROOT / "tests" / path
            if not file.is_file() or (function and function not in _functions(file)):
                missing.append(f"{_named(page)}: {name}")
    assert not missing
    assert seen > 40


def test_every_row_of_the_failure_modes_names_a_test():
    lines = [line for line in _read(ROOT / "design/failure-modes.md").splitlines() if line.startswith("| ")]
    rows = [line for line in lines if not line.startswith(("| what fails", "| assumption", "| ---"))]
    assert rows
    checked = [row for row in rows if row.split("|")[2].strip() != "-"]  # nobody checks this assumption yet
    assert [row for row in checked if not _TEST.search(row.split("|")[-2])] == []


def test_every_scenario_shows_a_failure_or_is_a_plain_flow():
    named = set(_TEST.findall(_read(ROOT / "design/failure-modes.md")))
    plain = {
        "assignment_on_first_lookup", "joiner_with_a_bundle_in_flight", "lookups", "namespace_create_delete", "pre_stop",
        "shutdown_one_of_three", "split_evenly", "split_k_way", "transfer", "transfer_deferred_lookup", "unload",
    }  # fmt: skip
    there = {file.stem for file in (ROOT / "tests/scenarios").glob("*.txt")}
    named = {Path(name).stem for name in named}
    assert there - plain - named == set(), "add a row to design/failure-modes.md"


@pytest.mark.parametrize("page", pages(), ids=_named)
def test_links_lead_somewhere(page):
    broken = [link for link in _LINK.findall(_read(page)) if not (page.parent / link).exists()]
    assert broken == []


def test_every_setting_that_is_named_exists():
    known = {f"{group}.{name}" for group, kind in groups().items() for name in kind.model_fields}
    known |= set(EVENTS)  # they are written alike
    unknown = {f"{_named(page)}: {name}" for page in pages() for name in _SETTING.findall(_read(page))}
    assert {one for one in unknown if one.partition(": ")[2] not in known} == set()


def _console_lines() -> list[tuple[str, str]]:
    found = []
    for page in pages():
        for block in _BLOCK.findall(_read(page)):
            found += [(_named(page), line[2:]) for line in block.splitlines() if line.startswith("$ ")]
    return found


def test_every_command_line_that_is_shown_has_its_command_and_options():
    lines = [(page, line) for page, line in _console_lines() if line.startswith("statechannel ")]
    assert len(lines) >= 10
    assert _without_command((page, shlex.split(line, comments=True)) for page, line in lines) == []


def _without_command(lines: Iterable[tuple[str, list[str]]]) -> list[str]:
    """Lines of words whose command does not exist, or does not have an option."""
    options, wrong = command_options(), []
    for place, words in lines:
        lengths = [n for n in range(2, len(words) + 1) if " ".join(words[:n]) in options]
        known = options[" ".join(words[: lengths[-1]])] if lengths else set()
        bad = [word for word in words if word.startswith("-") and word.partition("=")[0] not in known]
        if lengths and any(name.startswith(f"{' '.join(words[: lengths[-1]])} ") for name in options):
            bad += [
                word for word in words[lengths[-1] :][:1] if word.isalpha() and word.islower()
            ]  # no command of the group
        wrong += [f"{place}: {' '.join(words)}: {bad}"] if bad or not lengths else []
    return wrong


def _texts(tree: ast.AST) -> Iterator[str]:
    """Texts of a file of code; what is put into one is a word of its own."""
    parts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts |= set(map(id, node.values))
            yield "".join(one.value if isinstance(one, ast.Constant) else "X" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def test_every_command_that_a_hint_names_exists():
    named = []
    for package in ("statechannel", "loaddata", "shedders", "spark"):
        for file in sorted(file for file in (ROOT / package).rglob("*") if file.suffix in (".py", ".js", ".html")):
            for text in _texts(ast.parse(_read(file))) if file.suffix == ".py" else [_read(file)]:
                named += [(_named(file), line.split()) for line in re.findall(r"`(statechannel [a-z][^`]*)`", text)]
    assert len(named) > 200
    assert _without_command(named) == []


def test_every_make_target_that_is_shown_exists():
    targets = set(re.findall(r"^([a-z]+):", _read(ROOT / "Makefile"), re.MULTILINE))
    shown = {line.split()[1] for _, line in _console_lines() if line.startswith("make ")}
    assert shown
    assert shown <= targets


def test_first_two_commands_of_the_readme():
    """A newcomer types these, in this order."""
    shown = [line for page, line in _console_lines() if page == "README.md"]
    assert shown[:2] == ["make demo", "make test"]


def test_exit_codes_of_the_page_are_those_of_the_code():
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", _read(ROOT / "design/cli.md"), re.MULTILINE)
    assert [(int(number), name) for number, name in rows] == [(int(code), code.name) for code in ExitCode]


def test_decisions_are_numbered_short_and_whole():
    files = sorted((ROOT / "design/decisions").glob("*.md"))
    assert [int(file.name[:4]) for file in files] == list(range(1, len(files) + 1))
    for file in files:
        text = _read(file)
        assert len(text.splitlines()) <= 40, file.name
        assert text.startswith(f"# {int(file.name[:4])}. "), file.name
        for part in ("Context", "Decision", "Rejected", "Consequences"):
            assert f"\n## {part}\n" in text, f"{file.name}: {part}"


def test_pages_that_the_code_names_are_there():
    missing = set()
    for file in (ROOT / "statechannel").rglob("*.py"):
        for name in re.findall(r"\bdesign/[\w/.-]+\.md", _read(file)):
            if not (ROOT / name).exists():
                missing.add(f"{file.relative_to(ROOT)}: {name}")
    assert missing == set()
