"""`status` on a terminal that cannot go back."""

import io
from functools import partial

import pytest

from statechannel.cli.kit.output import Output
from statechannel.cli.kit.screen import screen
from statechannel.cli.status.tables import status_display
from tests.cli.test_status_view import AT, figures


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_that_cannot_go_back_is_shown_picture_after_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    with screen(Output.TABLE) as draw:
        draw(partial(status_display, figures()), {}, AT)
        draw(partial(status_display, figures()), {}, AT)
    assert terminal.getvalue().count("bundle-state at kafka:9092") == 2
