"""Questions before something is destroyed or moved, and dry runs."""

import io
import json
from collections.abc import Callable

import pytest
import typer

from statechannel.cli.kit.confirmation import Effect, confirm, count_of
from statechannel.cli.kit.connection import connection_of
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.output import Output
from statechannel.errors import ExitCode, UsageError
from statechannel.queries.connection import Connection
from statechannel.settings import load


class Terminal(io.StringIO):
    """A stream of a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Terminal]:
    """A person at a terminal, who types this; returns what the person sees."""

    def sit_down(text: str) -> Terminal:
        screen = Terminal()
        monkeypatch.setattr("sys.stdin", Terminal(text))
        monkeypatch.setattr("sys.stderr", screen)
        return screen

    return sit_down


def ask(*, yes: bool = False, dry_run: bool = False, output: Output = Output.TABLE, final: bool = False) -> bool:
    effect = Effect(["b1 would release t/n/x"], {"bundle": "t/n/x"})
    return confirm(lambda: effect, connection=connect, yes=yes, dry_run=dry_run, output=output, final=final)


def connect(context: str = "lab") -> Connection:
    settings = load(overrides={"channel": {"name": "c"}, "kafka": {"bootstrap_servers": "k:1"}})
    return connection_of(settings, context)


def refuse_to_compute() -> Effect:
    raise AssertionError("the effect is not shown, and must not be computed")


def test_a_person_is_asked_and_shown_what_would_happen_and_where(typed: Callable[[str], Terminal]) -> None:
    screen = typed("y\n")
    assert ask()
    assert "b1 would release t/n/x\non channel c at k:1 (context lab)\nGo on? [y/N]: " in screen.getvalue()


def test_the_end_of_input_interrupts(typed: Callable[[str], Terminal]) -> None:
    typed("")
    with pytest.raises(typer.Abort):
        ask()


@pytest.mark.parametrize("answer", ["n\n", "\n", "no\n"])
def test_all_but_yes_ends_the_command(answer: str, typed: Callable[[str], Terminal]) -> None:
    typed(answer)
    with pytest.raises(CommandError, match="not confirmed; nothing was changed") as refused:
        ask()
    assert refused.value.exit_code == ExitCode.FAILED


def test_yes_skips_the_question(typed: Callable[[str], Terminal]) -> None:
    screen = typed("")
    for final in (False, True):
        assert confirm(refuse_to_compute, connection=connect, yes=True, dry_run=False, output=Output.TABLE, final=final)
    assert screen.getvalue() == ""


def test_without_a_terminal_only_what_is_final_needs_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (io.StringIO("y\n"), None):
        monkeypatch.setattr("sys.stdin", stream)
        assert ask()
        with pytest.raises(UsageError, match="cannot be undone") as refused:
            ask(final=True)
        assert "--yes" in refused.value.hint


def test_a_dry_run_ends_the_command_and_asks_nothing(typed: Callable[[str], Terminal], capsys):
    screen = typed("")
    assert not ask(dry_run=True, final=True)
    assert capsys.readouterr().out == "b1 would release t/n/x\n"
    assert screen.getvalue() == "dry run on channel c at k:1 (context lab): nothing was changed\n"
    assert not ask(dry_run=True, yes=True, output=Output.JSON)
    assert json.loads(capsys.readouterr().out) == {
        "dry_run": True,
        "channel": "c",
        "bootstrap_servers": "k:1",
        "context": "lab",
        "would": ["b1 would release t/n/x"],
        "bundle": "t/n/x",
    }


def test_counts() -> None:
    assert [count_of(number, "bundle") for number in (0, 1, 2)] == ["0 bundles", "1 bundle", "2 bundles"]
