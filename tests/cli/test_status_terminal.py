"""`status` on a terminal that cannot go back."""

import io

import pytest

from statechannel.cli.kit.output import Output
from statechannel.cli.kit.screen import screen
from statechannel.cli.status.tables import status_blocks
from tests.cli.test_status_view import AT, figures


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_that_cannot_go_back_is_shown_block_after_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    with screen(Output.TABLE) as draw:
        draw(status_blocks(figures()), {}, AT)
        draw(status_blocks(figures()), {}, AT)
    assert terminal.getvalue().count("bundle-state at kafka:9092") == 2
